//! Managers as processes, executors as sessions, and what a reader sees of them.

use std::collections::HashSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use shard_manager::client::{ExecutorSession, Happening, ObserverError, SessionEvent, SessionObserver, ShardGrant, ShardHost};
use shard_manager::rpc::shard_manager_client::ShardManagerClient;
use shard_manager::rpc::{GetRoutingTableRequest, MAX_MESSAGE_BYTES, NOBODY, RoutingTable};
use shard_manager::types::BootInstant;
use tokio::runtime::{Builder, Handle, Runtime};
use tonic::transport::{Channel, Endpoint};

/// How long anything may take that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The binary that is measured.
pub const BINARY: &str = env!("CARGO_BIN_EXE_shard-manager");

/// A process of the binary; killed when dropped.
pub struct Process(Child);

impl Process {
    /// With its output in `<directory>/<name>.log`, which grows.
    pub fn spawn(directory: &Path, name: &str, arguments: &[String]) -> Process {
        let log = File::options().create(true).append(true).open(directory.join(format!("{name}.log"))).unwrap();
        let mut command = Command::new(BINARY);
        command.args(arguments).current_dir(directory).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Process(command.spawn().unwrap())
    }

    /// `serve`, with these keys set.
    pub fn serve(directory: &Path, name: &str, sets: &[String]) -> Process {
        let mut arguments = vec!["serve".to_owned()];
        arguments.extend(sets.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
        Process::spawn(directory, name, &arguments)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.id().try_into().unwrap()).unwrap(), signal).unwrap();
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Waits for its end.
    pub async fn ended(mut self) -> ExitStatus {
        eventually("the end of a process", async || self.0.try_wait().unwrap()).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Polls every millisecond until there is a value.
pub async fn eventually<T>(what: &str, condition: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, condition).await
}

/// The same, for what takes long.
pub async fn eventually_within<T>(patience: Duration, what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "{what} did not come within {patience:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A thread with a runtime of its own, for what must not wait for the rest of this process. May be dropped within another runtime.
pub struct Apart(Option<Runtime>);

impl Apart {
    pub fn new() -> Apart {
        Apart(Some(Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()))
    }

    pub fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is there until it is dropped").handle()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// In milliseconds.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// A connection of its own; `None` while nobody listens there.
pub async fn connect(address: SocketAddr) -> Option<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect_timeout(Duration::from_secs(1)).tcp_nodelay(true).connect().await.ok()
}

/// Tries, each time on a new connection, until a table is answered there.
pub async fn table(address: SocketAddr) -> RoutingTable {
    let ask = async || {
        let mut client = ShardManagerClient::new(connect(address).await?).max_decoding_message_size(MAX_MESSAGE_BYTES);
        client.get_routing_table(GetRoutingTableRequest::default()).await.ok().map(tonic::Response::into_inner)
    };
    eventually("a table", ask).await
}

/// Who owns each shard, and at which epoch: what must not change.
pub fn ownership(table: &RoutingTable) -> Vec<(Option<String>, u64)> {
    let owner = |&owner: &u32| table.owners.get(owner as usize).map(|owner| owner.executor_id.clone());
    table.owner.iter().map(owner).zip(table.epochs.iter().copied()).collect()
}

/// Whether every shard is held, by so many executors together, and none is on its way.
pub fn is_settled(table: &RoutingTable, executors: usize) -> bool {
    let owners: HashSet<u32> = table.owner.iter().copied().collect();
    owners.len() == executors && !owners.contains(&NOBODY) && table.releasing.is_empty()
}

/// Waits until a table is settled and stays as it is for a while.
pub async fn settled(address: SocketAddr, executors: usize) -> RoutingTable {
    let mut since = (Instant::now(), None);
    eventually("a table at rest", async || {
        let table = table(address).await;
        if !is_settled(&table, executors) || since.1 != table.version {
            since = (Instant::now(), table.version);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        (since.0.elapsed() > Duration::from_millis(1500)).then_some(table)
    })
    .await
}

/// Executors in this process.
pub struct Fleet {
    pub seen: Arc<Seen>,
    _sessions: Vec<ExecutorSession>,
}

/// What happened to all executors of a fleet.
#[derive(Debug, Default)]
pub struct Seen {
    /// Registrations that were answered.
    pub joined: AtomicU64,
    /// Leases granted or renewed.
    pub leased: AtomicU64,
    /// Leases that had run out before they were renewed.
    pub lapsed: AtomicU64,
    /// Starts and ends of work on a shard.
    pub moved: AtomicU64,
}

impl Seen {
    /// Registrations, lapses, and starts and ends of work.
    pub fn changes(&self) -> [u64; 3] {
        [&self.joined, &self.lapsed, &self.moved].map(|count| count.load(Ordering::Relaxed))
    }
}

struct Watcher {
    seen: Arc<Seen>,
    until: Option<BootInstant>,
}

impl SessionObserver for Watcher {
    fn observe(&mut self, event: &SessionEvent) -> Result<(), ObserverError> {
        let count = |count: &AtomicU64| count.fetch_add(1, Ordering::Relaxed);
        match event.what {
            Happening::Began => return Ok(()),
            Happening::Joined { .. } => count(&self.seen.joined),
            Happening::Leased { until } => {
                if self.until.replace(until).is_some_and(|until| until < event.at) {
                    count(&self.seen.lapsed);
                }
                count(&self.seen.leased)
            }
            Happening::Started(..) | Happening::Stopped(..) => count(&self.seen.moved),
            Happening::Fenced(..) | Happening::Superseded => {
                count(&self.seen.moved);
                count(&self.seen.lapsed)
            }
        };
        Ok(())
    }
}

/// Does nothing with a shard.
struct Idle;

impl ShardHost for Idle {
    async fn run(&self, grant: ShardGrant) {
        grant.cancelled().await;
    }
}

impl Fleet {
    /// So many executors, which know all `managers`.
    pub async fn start(executors: usize, managers: &[SocketAddr]) -> Fleet {
        let seen = Arc::new(Seen::default());
        let mut sessions = Vec::new();
        for at in 0..executors {
            let builder = ExecutorSession::builder(format!("executor-{at}").parse().unwrap(), Idle);
            let watcher = Watcher { seen: Arc::clone(&seen), until: None };
            sessions.push(builder.managers(managers.iter().map(ToString::to_string)).observer(watcher).start().await.unwrap());
        }
        Fleet { seen, _sessions: sessions }
    }
}
