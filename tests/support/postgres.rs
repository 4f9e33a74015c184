//! Real PostgreSQL servers on loopback, each with a data directory of its own, and what can be done to them.
//!
//! `POSTGRES_BIN_DIR` names the directory of another version's `postgres` and `initdb`; by default it is the newest below
//! `/usr/lib/postgresql`, installed by `tools/ensure-servers`. PostgreSQL refuses to run as root: a test that does runs it as `postgres`.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};
use tempfile::TempDir;

use super::etcd::PATIENCE;
use super::free_address;

/// What a server is started with besides what every one has.
#[derive(Default)]
pub struct Options {
    /// Lines for `postgresql.conf`, after all others, so they win.
    pub config: Vec<String>,
    /// Instead of a `pg_hba.conf` that lets everybody in.
    pub hba: Option<String>,
    /// Files in the data directory, by name, readable to the server alone: keys and certificates.
    pub files: Vec<(String, Vec<u8>)>,
}

/// One server. It ends with this, also where the test panics. A runner that kills a test kills its process group, of which the
/// postmaster is one, and the server's other processes end when they see it gone.
pub struct Postgres {
    pub address: SocketAddr,
    directory: TempDir,
    options: Options,
    process: Option<Child>,
}

impl Postgres {
    /// One server, ready.
    pub async fn start() -> Postgres {
        Postgres::start_with(Options::default()).await
    }

    /// The same, set up in some other way.
    pub async fn start_with(options: Options) -> Postgres {
        let directory = tempfile::tempdir().unwrap();
        // The server's user has to get through.
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o711)).unwrap();
        let mut postgres = Postgres { address: free_address(), directory, options, process: None };
        let copy = Command::new("cp").arg("-a").arg(template()).arg(postgres.data()).status().unwrap();
        assert!(copy.success(), "the template of a data directory was not copied");
        postgres.write_files();
        postgres.start_again().await;
        postgres
    }

    /// Starts it after [`Postgres::stop`] or [`Postgres::kill`], with the data and the address that it had; ready afterwards.
    pub async fn start_again(&mut self) {
        self.spawn();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.as_mut().unwrap().try_wait().unwrap() {
                panic!("postgres ended with {status}:\n{}", self.log());
            }
            // A password is another test's matter: being asked for one is an answer.
            match tokio::time::timeout(Duration::from_secs(1), self.connect_options().connect()).await {
                Ok(Ok(_)) => return,
                Ok(Err(sqlx::Error::Database(error))) if error.code().is_none_or(|code| !code.starts_with("57")) => return,
                _ => {}
            }
            assert!(Instant::now() < deadline, "postgres does not answer:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn spawn(&mut self) {
        assert!(self.process.is_none(), "it runs");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = as_server(program("postgres"));
        command.arg("-D").arg(self.data());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.process = Some(command.spawn().unwrap());
    }

    fn write_files(&self) {
        let port = self.address.port();
        let base = format!(
            "\nlisten_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\nshared_buffers = 16MB\n\
             max_connections = 60\nlog_line_prefix = '%m [%p] %a '\n"
        );
        let config_path = self.data().join("postgresql.conf");
        let mut config = std::fs::read_to_string(&config_path).unwrap();
        config.push_str(&base);
        config.push_str(&self.options.config.join("\n"));
        config.push('\n');
        // In place: owner and mode stay.
        std::fs::write(config_path, config).unwrap();
        if let Some(hba) = &self.options.hba {
            std::fs::write(self.data().join("pg_hba.conf"), hba).unwrap();
        }
        for (name, bytes) in &self.options.files {
            let path = self.data().join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            give_to_server(&path);
        }
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// What the server has said so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// For `persistence.postgres.url`.
    pub fn url(&self) -> String {
        self.url_at(self.address)
    }

    /// The same through a proxy.
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("postgres://postgres@{address}/postgres")
    }

    fn connect_options(&self) -> PgConnectOptions {
        self.url().parse::<PgConnectOptions>().unwrap().application_name("test")
    }

    /// A connection that knows nothing of us.
    pub async fn client(&self) -> PgConnection {
        self.connect_options().connect().await.unwrap()
    }

    /// Runs statements on a connection of their own.
    pub async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut self.client().await)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// The first column of the rows of a query, each as text.
    pub async fn column(&self, sql: &str) -> Vec<String> {
        let as_text = format!("SELECT it.first_column::text FROM ({sql}) AS it(first_column)");
        let rows = sqlx::query(AssertSqlSafe(as_text)).fetch_all(&mut self.client().await).await;
        rows.unwrap_or_else(|error| panic!("{sql}: {error}")).iter().map(|row| row.get(0)).collect()
    }

    /// Ends the sessions whose application_name is like that (SQL `LIKE`); returns how many.
    pub async fn terminate_backends(&self, like: &str) -> usize {
        let ended =
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE $1 AND pid <> pg_backend_pid()";
        sqlx::query(ended).bind(like).fetch_all(&mut self.client().await).await.unwrap().len()
    }

    /// The *fast* shutdown: open transactions are rolled back, all is written, and it ends.
    pub fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        signal(process.id(), Signal::INT);
        if !ended_within(&mut process, PATIENCE) {
            self.process = Some(process);
            panic!("postgres does not stop:\n{}", self.log());
        }
    }

    /// SIGKILL of the postmaster and every process of it at once; they are gone afterwards.
    pub fn kill(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let all = freeze(process.id());
        all.iter().for_each(|id| signal(*id, Signal::KILL));
        process.wait().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while all.iter().any(|id| is_alive(*id)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// SIGSTOP of every process: connections are accepted by the kernel, nobody answers.
    pub fn pause(&self) {
        freeze(self.process.as_ref().expect("it runs").id());
    }

    /// SIGCONT of every process.
    pub fn go_on(&self) {
        thaw(self.process.as_ref().expect("it runs").id());
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The *immediate* shutdown: unlike a kill it leaves no shared memory behind.
        if let Some(process) = &mut self.process {
            thaw(process.id());
            signal(process.id(), Signal::QUIT);
            if ended_within(process, Duration::from_secs(10)) {
                self.process = None;
            }
        }
        self.kill();
        // The id of the segment that a killed server left, so that no later one finds the machine full of them.
        let lock = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        if let Some(segment) = lock.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            Command::new("ipcrm").args(["-m", segment]).stderr(Stdio::null()).status().ok();
        }
    }
}

/// Stops the postmaster, which then makes no others, and then the others; returns all of them.
fn freeze(postmaster: u32) -> Vec<u32> {
    signal(postmaster, Signal::STOP);
    let mut all = vec![postmaster];
    let deadline = Instant::now() + PATIENCE;
    // A signal to stop is not yet a process that has stopped: one more may have been under way.
    loop {
        let new: Vec<u32> = children(postmaster).into_iter().filter(|id| !all.contains(id)).collect();
        new.iter().for_each(|id| signal(*id, Signal::STOP));
        all.extend(new);
        if state(postmaster) == Some('T') || Instant::now() > deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let new: Vec<u32> = children(postmaster).into_iter().filter(|id| !all.contains(id)).collect();
    new.iter().for_each(|id| signal(*id, Signal::STOP));
    all.extend(new);
    all
}

fn thaw(postmaster: u32) {
    children(postmaster).iter().for_each(|id| signal(*id, Signal::CONT));
    signal(postmaster, Signal::CONT);
}

fn signal(id: u32, signal: Signal) {
    // One that ended meanwhile needs none.
    kill_process(Pid::from_raw(id.try_into().unwrap()).unwrap(), signal).ok();
}

fn children(parent: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    list.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// The letter that stands behind the name in brackets; `None` where there is no such process.
fn state(id: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn is_alive(id: u32) -> bool {
    state(id).is_some_and(|state| state != 'Z')
}

fn ended_within(process: &mut Child, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if process.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Where a binary of PostgreSQL is.
pub fn program(name: &str) -> PathBuf {
    if let Some(directory) = std::env::var_os("POSTGRES_BIN_DIR") {
        return PathBuf::from(directory).join(name);
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|it| it.file_name().to_str()?.parse::<u32>().ok()).max();
    let newest = newest.expect("no PostgreSQL below /usr/lib/postgresql; tools/ensure-servers installs it");
    PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin/{name}"))
}

/// Whom the server runs as, where that is somebody else than this process.
fn server_user() -> Option<(u32, u32)> {
    if !rustix::process::getuid().is_root() {
        return None;
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let entry = passwd.lines().find_map(|line| line.strip_prefix("postgres:")).expect("a user postgres, made by the package");
    let mut ids = entry.split(':').skip(1).map(|id| id.parse().unwrap());
    Some((ids.next().unwrap(), ids.next().unwrap()))
}

fn as_server(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").env("LC_ALL", "C");
    if let Some((user, group)) = server_user() {
        command.uid(user).gid(group);
    }
    command
}

fn give_to_server(path: &Path) {
    if let Some((user, group)) = server_user() {
        chown(path, Some(user), Some(group)).unwrap();
    }
}

/// A data directory as `initdb` leaves it, made once on a machine; only ever copied.
fn template() -> PathBuf {
    let initdb = program("initdb");
    let version = Command::new(&initdb).arg("--version").output().unwrap().stdout;
    let version: String = String::from_utf8(version).unwrap().chars().filter(char::is_ascii_digit).collect();
    let user = rustix::process::getuid().as_raw();
    let template = std::env::temp_dir().join(format!("shard-manager-test-postgres-{version}-small-{user}"));
    if template.exists() {
        return template;
    }
    let building = tempfile::Builder::new().prefix("shard-manager-test-initdb").tempdir().unwrap();
    give_to_server(building.path());
    let data = building.path().join("data");
    let mut command = as_server(initdb);
    command.arg("-D").arg(&data).args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]);
    // A directory of half the size, as every server gets a copy.
    command.arg("--wal-segsize=1");
    let made = command.output().unwrap();
    assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
    // Whoever was first has made the same.
    if let Err(error) = std::fs::rename(&data, &template) {
        assert!(template.exists(), "{}: {error}", template.display());
    }
    template
}
