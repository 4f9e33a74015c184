//! Real etcd servers on loopback, each with a directory of its own, and what can be done to them.
//!
//! `ETCD_BIN_DIR` names the directory of another version's `etcd`; by default it is the one in the path, installed by `tools/ensure-servers`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, GetOptions, KeyValue};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::free_address;

/// How long anything may take that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One cluster. Its servers end with it, also where the test panics; a runner that kills a test kills its process group.
pub struct Etcd {
    pub members: Vec<Member>,
    directory: TempDir,
    options: Vec<String>,
}

/// One server.
pub struct Member {
    name: String,
    pub client: SocketAddr,
    peer: SocketAddr,
    /// `http`, unless the cluster was started with TLS options.
    scheme: &'static str,
    process: Option<Child>,
}

impl Etcd {
    /// One server, ready.
    pub async fn single() -> Etcd {
        Etcd::start(1, "http", &[]).await
    }

    /// Three of them, with a leader.
    pub async fn three() -> Etcd {
        Etcd::start(3, "http", &[]).await
    }

    /// As many as that, with more options.
    pub async fn start(members: usize, scheme: &'static str, options: &[String]) -> Etcd {
        let mut etcd = Etcd::spawn(members, scheme, options);
        if scheme == "http" && !etcd.ready().await {
            // Somebody else took a port between its choice and its use.
            etcd = Etcd::spawn(members, scheme, options);
            assert!(etcd.ready().await, "etcd does not answer; its logs are in {:?}", etcd.directory.keep());
        }
        etcd
    }

    fn spawn(members: usize, scheme: &'static str, options: &[String]) -> Etcd {
        let member = |at| Member { name: format!("m{at}"), client: free_address(), peer: free_address(), scheme, process: None };
        let members = (0..members).map(member).collect();
        let mut etcd = Etcd { members, directory: tempfile::tempdir().unwrap(), options: options.to_vec() };
        for at in 0..etcd.members.len() {
            etcd.run(at);
        }
        etcd
    }

    /// Starts a member that does not run; with the data that it had.
    pub fn run(&mut self, at: usize) {
        let peers: Vec<String> = self.members.iter().map(|it| format!("{}=http://{}", it.name, it.peer)).collect();
        let member = &mut self.members[at];
        assert!(member.process.is_none());
        let data = self.directory.path().join(&member.name);
        let log = std::fs::File::create(self.directory.path().join(format!("{}.log", member.name))).unwrap();
        let program = std::env::var_os("ETCD_BIN_DIR").map_or("etcd".into(), |directory| PathBuf::from(directory).join("etcd"));
        let (client, peer) = (format!("{}://{}", member.scheme, member.client), format!("http://{}", member.peer));
        let mut command = Command::new(&program);
        command
            .args(["--name", &member.name, "--data-dir"])
            .arg(data)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &peers.join(","), "--initial-cluster-state", "new", "--logger", "zap"])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(&self.options);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let spawned = command.spawn();
        let child = spawned.unwrap_or_else(|error| panic!("{}: {error}; tools/ensure-servers installs it", program.display()));
        member.process = Some(child);
    }

    async fn ready(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        for at in 0..self.members.len() {
            loop {
                if self.members[at].process.as_mut().unwrap().try_wait().unwrap().is_some() {
                    return false;
                }
                let client = self.client_of(at).await;
                let answer = tokio::time::timeout(Duration::from_secs(1), client.kv_client().get("x", None)).await;
                if matches!(answer, Ok(Ok(_))) {
                    break;
                }
                if Instant::now() > deadline {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        true
    }

    /// All endpoints.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Member::endpoint).collect()
    }

    /// A client that knows nothing of us, of one member.
    pub async fn client_of(&self, at: usize) -> Client {
        let options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(2)).with_timeout(Duration::from_secs(5));
        Client::connect([self.members[at].endpoint()], Some(options)).await.unwrap()
    }

    /// As [`Etcd::client_of`], of the first one.
    pub async fn client(&self) -> Client {
        self.client_of(0).await
    }

    /// Every key below a prefix, by creation.
    pub async fn keys(&self, prefix: &str) -> Vec<KeyValue> {
        let options = GetOptions::new().with_prefix();
        let mut keys = self.client().await.get(prefix, Some(options)).await.unwrap().take_kvs();
        keys.sort_by_key(KeyValue::create_revision);
        keys
    }

    /// How far etcd has counted: grows with each write and nothing else.
    pub async fn revision(&self) -> i64 {
        self.client().await.get("x", None).await.unwrap().header().unwrap().revision()
    }

    /// Which member leads the cluster's raft.
    pub async fn raft_leader(&self) -> usize {
        for at in 0..self.members.len() {
            if let Ok(status) = self.client_of(at).await.status().await
                && status.leader() == status.header().unwrap().member_id()
            {
                return at;
            }
        }
        panic!("no member leads");
    }
}

impl Member {
    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.client)
    }

    fn signal(&self, signal: Signal) {
        let id = self.process.as_ref().expect("it runs").id();
        kill_process(Pid::from_raw(id.try_into().unwrap()).unwrap(), signal).unwrap();
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().ok();
            process.wait().ok();
        }
    }

    /// SIGSTOP.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Polls until `condition` holds; fails after [`PATIENCE`].
pub async fn eventually<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "{what} did not happen within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
