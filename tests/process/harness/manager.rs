//! A manager's process, and where it keeps its state.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shard_manager::rpc::shard_manager_admin_client::ShardManagerAdminClient;
use shard_manager::rpc::shard_manager_client::ShardManagerClient;
use tonic::transport::{Channel, Endpoint};

use super::{Child, PATIENCE, free_address, poll_until};

/// Where the state lives. Scenarios do not look into it, save those that break one kind of store.
#[derive(Clone, Debug)]
pub enum Store {
    Sqlite(PathBuf),
    /// Any number of managers share it, each by an endpoint of its own where a proxy stands before it.
    Etcd {
        /// One, or several separated by commas.
        endpoint: String,
        prefix: String,
    },
    /// The same.
    Postgres {
        url: String,
        schema: String,
    },
}

impl Store {
    /// As `section.key=value`.
    pub fn settings(&self) -> Vec<String> {
        match self {
            Store::Sqlite(path) => vec![format!("persistence.sqlite.path={}", path.display())],
            Store::Etcd { endpoint, prefix } => vec![
                "persistence.type=etcd".to_owned(),
                format!("persistence.etcd.endpoints={endpoint}"),
                format!("persistence.etcd.prefix={prefix}"),
            ],
            Store::Postgres { url, schema } => vec![
                "persistence.type=postgres".to_owned(),
                format!("persistence.postgres.url={url}"),
                format!("persistence.postgres.schema={schema}"),
            ],
        }
    }

    /// Loses everything. Of a database file only.
    pub fn wipe(&self) {
        for suffix in ["", "-wal", "-shm", ".leader"] {
            let mut name = self.path().as_os_str().to_owned();
            name.push(suffix);
            match std::fs::remove_file(&name) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{name:?}: {error}"),
                _ => {}
            }
        }
    }

    /// The database file.
    pub fn path(&self) -> &Path {
        match self {
            Store::Sqlite(path) => path,
            Store::Etcd { .. } | Store::Postgres { .. } => panic!("{self:?} is no file"),
        }
    }
}

/// A manager that can be ended and started again at the same addresses.
pub struct Manager {
    pub child: Child,
    store: Store,
    settings: Vec<String>,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
}

impl Manager {
    /// Starts one and waits until it serves. Settings are `section.key=value`.
    pub async fn start(store: &Store, settings: &[&str]) -> Manager {
        let settings = settings.iter().map(ToString::to_string).collect();
        Manager::start_at(free_address(), free_address(), store.clone(), settings).await
    }

    async fn start_at(grpc: SocketAddr, http: SocketAddr, store: Store, settings: Vec<String>) -> Manager {
        let mut child = Manager::spawn(grpc, http, &store, &settings);
        let http = child.announced("HTTP listening on ").await.parse().unwrap();
        let grpc = child.announced("gRPC listening on ").await.parse().unwrap();
        Manager { child, store, settings, grpc, http }
    }

    /// Starts one that may have to wait for its turn, and waits until it answers on HTTP.
    pub async fn stand(store: &Store, settings: &[&str]) -> Manager {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let (grpc, http) = (free_address(), free_address());
        let mut child = Manager::spawn(grpc, http, store, &settings);
        child.announced("HTTP listening on ").await;
        Manager { child, store: store.clone(), settings, grpc, http }
    }

    /// Starts a process without waiting for anything.
    pub fn spawn(grpc: SocketAddr, http: SocketAddr, store: &Store, settings: &[String]) -> Child {
        let mut arguments = vec!["serve".to_owned()];
        let own = [format!("grpc.listen={grpc}"), format!("http.listen={http}")];
        for setting in own.iter().chain(&store.settings()).chain(settings) {
            arguments.extend(["--set".to_owned(), setting.clone()]);
        }
        Child::spawn("the manager", &arguments)
    }

    /// Starts it again, at the same addresses, over the same store; what runs still is killed.
    pub async fn restart(&mut self) {
        self.restart_with(&[]).await;
    }

    /// The same, with settings that override those before.
    pub async fn restart_with(&mut self, settings: &[&str]) {
        self.child.kill();
        self.settings.extend(settings.iter().map(ToString::to_string));
        *self = Manager::start_at(self.grpc, self.http, self.store.clone(), self.settings.clone()).await;
    }

    /// Starts it again over another store, at the same addresses; what runs still is killed.
    pub async fn move_to(&mut self, store: &Store) {
        self.child.kill();
        *self = Manager::start_at(self.grpc, self.http, store.clone(), self.settings.clone()).await;
    }

    /// The same for one that may have to wait for its turn; waits until it answers on HTTP.
    pub async fn restart_as_standby(&mut self) {
        self.child.kill();
        self.child = Manager::spawn(self.grpc, self.http, &self.store, &self.settings);
        self.child.announced("HTTP listening on ").await;
    }

    /// SIGTERM; the exit code.
    pub async fn stop(&mut self) -> Option<i32> {
        self.child.stop(PATIENCE).await.0
    }

    fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap();
        endpoint.connect_timeout(Duration::from_secs(1)).timeout(Duration::from_secs(5)).connect_lazy()
    }

    /// A client on a connection of its own.
    pub fn client(&self) -> ShardManagerClient<Channel> {
        ShardManagerClient::new(self.channel())
    }

    /// A client on a connection of its own.
    pub fn admin(&self) -> ShardManagerAdminClient<Channel> {
        ShardManagerAdminClient::new(self.channel())
    }

    /// Any other service of its port.
    pub fn connection(&self) -> Channel {
        self.channel()
    }

    /// GET on the HTTP port: status and text.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let answer = reqwest::get(format!("http://{}{path}", self.http)).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// The same, of a process that may be gone or frozen.
    pub async fn try_get(&self, path: &str) -> Option<(u16, String)> {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(1)).build().unwrap();
        let answer = client.get(format!("http://{}{path}", self.http)).send().await.ok()?;
        Some((answer.status().as_u16(), answer.text().await.ok()?))
    }

    /// Whether it serves, by what it says of itself.
    pub async fn is_ready(&self) -> bool {
        self.try_get("/readyz").await.is_some_and(|(status, _)| status == 200)
    }

    /// `/status`.
    pub async fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.get("/status").await.1).unwrap()
    }

    /// How it shows up in the queue and in logs.
    pub fn identity(&self) -> String {
        format!("process {} on ", self.child.pid())
    }

    /// The sum of a metric over its labels; those that begin with `name`, so that a label can be part of it.
    pub async fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics").await;
        let samples: Vec<f64> = text.lines().filter_map(|line| sample(line, name)).collect();
        assert!(!samples.is_empty(), "no metric {name}");
        samples.iter().sum()
    }

    /// Polls a metric until it has grown above `floor`.
    pub async fn metric_above(&self, name: &str, floor: f64) {
        let what = format!("{name} is above {floor}");
        poll_until(&what, PATIENCE, async || (self.metric(name).await > floor).then_some(())).await;
    }

    /// A command of the binary with `--json` against this manager; what it printed.
    pub async fn json(&self, command: &[&str]) -> serde_json::Value {
        let address = self.grpc.to_string();
        let output = super::run(&[command, &["--json", "--manager", &address]].concat()).await;
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn sample(line: &str, name: &str) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let exact = rest.starts_with([' ', '{']) || name.ends_with('}');
    exact.then(|| rest.rsplit(' ').next().unwrap().parse().unwrap())
}
