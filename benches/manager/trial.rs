//! One small cluster: managers as processes, and executors of this process that write down when each shard is worked on.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use shard_manager::client::{ExecutorSession, Happening, ObserverError, SessionEvent, SessionObserver, ShardGrant, ShardHost};
use shard_manager::rpc::ChangeExecutorRequest;
use shard_manager::rpc::shard_manager_admin_client::ShardManagerAdminClient;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::cluster::{Process, connect, eventually, table};
use crate::support::free_address;

pub const SHARDS: u32 = 64;

/// How an executor treats its shards.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Ends when it is told to.
    Willing,
    /// Ends so much later.
    Slow(Duration),
    /// Never ends.
    Stubborn,
    /// Never begins.
    Refusing,
}

/// What the executors of a trial did. A shard is worked on from its start until it is told to stop, or its executor dies.
#[derive(Default)]
pub struct Log(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    changes: Vec<Change>,
    joined: Vec<Instant>,
    /// Granted or renewed, by executor.
    leases: HashMap<String, u64>,
}

struct Change {
    at: Instant,
    who: Arc<str>,
    shard: u32,
    starts: bool,
}

impl Log {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap()
    }

    fn change(&self, who: &Arc<str>, shard: u32, starts: bool) {
        let mut lines = self.lines();
        // Read under the lock, so that they are in order.
        let change = Change { at: Instant::now(), who: Arc::clone(who), shard, starts };
        lines.changes.push(change);
    }

    /// How many shards an executor works on.
    pub fn count(&self, who: &str) -> usize {
        let lines = self.lines();
        let of = |starts: bool| lines.changes.iter().filter(|it| &*it.who == who && it.starts == starts).count();
        of(true) - of(false)
    }

    /// How many shards are worked on.
    pub fn covered(&self) -> usize {
        self.lines().working().iter().filter(|&&executors| executors > 0).count()
    }

    /// Whether all are.
    pub fn is_covered(&self) -> bool {
        self.covered() == SHARDS as usize
    }

    /// The longest for which a shard was worked on by nobody, of those times that ended after `since`.
    pub fn longest_gap(&self, since: Instant) -> Duration {
        let lines = self.lines();
        let (mut working, mut idle_since, mut longest) = ([0; SHARDS as usize], [None; SHARDS as usize], Duration::ZERO);
        for &Change { at, shard, starts, .. } in &lines.changes {
            let shard = shard as usize;
            working[shard] += if starts { 1 } else { -1 };
            if working[shard] == 0 {
                idle_since[shard] = Some(at);
            } else if let Some(idle_since) = idle_since[shard].take().filter(|_| at > since) {
                longest = longest.max(at - idle_since);
            }
        }
        longest
    }

    /// From then until the last start.
    pub fn last_start(&self, from: Instant) -> Duration {
        let lines = self.lines();
        let last = lines.changes.iter().rev().find(|it| it.starts).map(|it| it.at);
        last.map_or(Duration::ZERO, |at| at.saturating_duration_since(from))
    }

    /// When executors registered, as they heard it.
    pub fn joined(&self) -> Vec<Instant> {
        self.lines().joined.clone()
    }

    fn leases(&self, who: &str) -> u64 {
        self.lines().leases.get(who).copied().unwrap_or_default()
    }
}

impl Lines {
    /// How many executors work on each shard.
    fn working(&self) -> [i32; SHARDS as usize] {
        let mut working = [0; SHARDS as usize];
        for change in &self.changes {
            working[change.shard as usize] += if change.starts { 1 } else { -1 };
        }
        working
    }
}

/// Writes down that work on a shard ended, however it does.
struct Working<'a>(&'a Worker, u32);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.log.change(&self.0.who, self.1, false);
    }
}

struct Worker {
    who: Arc<str>,
    work: Work,
    log: Arc<Log>,
}

impl ShardHost for Worker {
    async fn run(&self, grant: ShardGrant) {
        if let Work::Refusing = self.work {
            return;
        }
        self.log.change(&self.who, grant.shard.0, true);
        let working = Working(self, grant.shard.0);
        grant.cancelled().await;
        drop(working);
        match self.work {
            Work::Willing | Work::Refusing => {}
            Work::Slow(time) => tokio::time::sleep(time).await,
            Work::Stubborn => pending().await,
        }
    }
}

struct Witness {
    who: String,
    log: Arc<Log>,
}

impl SessionObserver for Witness {
    fn observe(&mut self, event: &SessionEvent) -> Result<(), ObserverError> {
        match event.what {
            Happening::Joined { .. } => self.log.lines().joined.push(Instant::now()),
            Happening::Leased { .. } => *self.log.lines().leases.entry(self.who.clone()).or_default() += 1,
            _ => {}
        }
        Ok(())
    }
}

/// See the module.
pub struct Trial {
    executors: BTreeMap<String, ExecutorSession>,
    // Before the directory, so that processes end first.
    managers: [Option<Process>; 2],
    seats: [SocketAddr; 2],
    sets: Vec<String>,
    pub log: Arc<Log>,
    pub directory: TempDir,
}

impl Trial {
    /// A manager that serves, with these keys set besides.
    pub async fn start(sets: &[String]) -> Trial {
        let (directory, seats) = (tempfile::tempdir().unwrap(), [free_address(), free_address()]);
        let sets = sets.to_vec();
        let mut trial = Trial { executors: BTreeMap::new(), managers: [None, None], seats, sets, log: Arc::default(), directory };
        trial.start_manager(&[]).await;
        trial
    }

    /// A manager in the first seat, until it serves; and when its port was closed last.
    pub async fn start_manager(&mut self, more: &[String]) -> Instant {
        self.managers[0] = Some(self.serve(0, more).0);
        self.opened(0).await
    }

    /// Waits until the one in that seat serves. When its port was closed last, so that nobody who looked late makes what follows shorter.
    pub async fn opened(&self, seat: usize) -> Instant {
        let mut closed = Instant::now();
        eventually("an open port", async || {
            let asked = Instant::now();
            let is_open = TcpStream::connect(self.seats[seat]).await.is_ok();
            closed = if is_open { closed } else { asked };
            is_open.then_some(())
        })
        .await;
        table(self.seats[seat]).await;
        closed
    }

    /// Another one in the second seat, until it waits.
    pub async fn start_standby(&mut self) {
        let (process, http) = self.serve(1, &[]);
        self.managers[1] = Some(process);
        eventually("a standby that knows its leader", async || {
            let status = reqwest::get(format!("http://{http}/status")).await.ok()?;
            let status: serde_json::Value = status.json().await.ok()?;
            (status["role"] == "standby" && status["leader"].is_string()).then_some(())
        })
        .await;
    }

    fn serve(&self, seat: usize, more: &[String]) -> (Process, SocketAddr) {
        let http = free_address();
        let mut sets = vec![
            format!("number_of_shards={SHARDS}"),
            format!("grpc.listen={}", self.seats[seat]),
            format!("http.listen={http}"),
            format!("executors.lease_ttl={}ms", crate::guarantees::LEASE),
            format!("executors.settle_time={}ms", crate::guarantees::SETTLE),
        ];
        sets.extend(self.sets.iter().chain(more).cloned());
        (Process::serve(self.directory.path(), &format!("manager-{seat}"), &sets), http)
    }

    /// The one in the first seat.
    pub fn manager(&self) -> &Process {
        self.managers[0].as_ref().expect("it runs")
    }

    /// It is gone when this returns.
    pub fn kill_manager(&mut self) {
        self.managers[0] = None;
    }

    /// An executor at a free port. It knows the managers that there are.
    pub async fn join(&mut self, id: &str, work: Work) {
        self.join_at(id, work, ([127, 0, 0, 1], 0).into()).await;
    }

    /// The same at this port, as soon as that is free.
    pub async fn join_at(&mut self, id: &str, work: Work, listen: SocketAddr) {
        let session = eventually("a free port", async || {
            let worker = Worker { who: id.into(), work, log: Arc::clone(&self.log) };
            let witness = Witness { who: id.to_owned(), log: Arc::clone(&self.log) };
            let builder = ExecutorSession::builder(id.parse().unwrap(), worker);
            let known = self.seats.iter().zip(&self.managers).filter(|(_, manager)| manager.is_some());
            builder.managers(known.map(|(seat, _)| seat.to_string())).listen(listen).observer(witness).start().await.ok()
        });
        let session = session.await;
        self.executors.insert(id.to_owned(), session);
    }

    /// It ends without a word to anybody. Where it listened.
    pub fn kill(&mut self, id: &str) -> SocketAddr {
        self.executors.remove(id).expect("it runs").local_addr()
    }

    /// Waits until each of these works on something, and together on everything.
    pub async fn shared_by(&self, ids: &[&str]) {
        let shared = || ids.iter().all(|id| self.log.count(id) > 0) && self.log.is_covered();
        eventually("work for each of them", async || shared().then_some(())).await;
    }

    /// Waits until this one works on everything.
    pub async fn all_at(&self, id: &str) {
        let all = || self.log.count(id) == SHARDS as usize;
        eventually("one that works on everything", async || all().then_some(())).await;
    }

    /// Waits until all shards are worked on.
    pub async fn covered(&self) {
        eventually("work on every shard", async || self.log.is_covered().then_some(())).await;
    }

    /// Waits until some shard is not worked on.
    pub async fn uncovered(&self) {
        eventually("a shard without work", async || (!self.log.is_covered()).then_some(())).await;
    }

    /// Waits until nothing is worked on.
    pub async fn idle(&self) {
        eventually("an end of all work", async || (self.log.covered() == 0).then_some(())).await;
    }

    /// Waits until this one works on nothing, and others on everything.
    pub async fn left(&self, id: &str) {
        let left = || self.log.count(id) == 0 && self.log.is_covered();
        eventually("others that work on everything", async || left().then_some(())).await;
    }

    /// Waits until an executor has just renewed its lease.
    pub async fn renewed(&self, id: &str) {
        let before = self.log.leases(id);
        eventually("a renewal", async || (self.log.leases(id) > before).then_some(())).await;
    }

    pub async fn drain(&self, id: &str) {
        let mut operator = ShardManagerAdminClient::new(connect(self.seats[0]).await.unwrap());
        let change = ChangeExecutorRequest { executor_id: id.to_owned(), ..ChangeExecutorRequest::default() };
        operator.drain_executor(change).await.unwrap();
    }
}
