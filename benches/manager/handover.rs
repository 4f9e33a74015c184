//! One leader follows another: asked to, and killed. And a cluster that rests.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use etcd_client::{Client, LeaseGrantOptions};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::cluster::{Fleet, Process, eventually, ms, ownership, settled, table};
use crate::page::Figure;
use crate::support::etcd::Etcd;
use crate::support::free_address;

const SHARDS: u32 = 1024;
const EXECUTORS: usize = 16;
const TTL: Duration = Duration::from_secs(2);
/// How long a successor has waited when its leader goes, at the least.
const QUEUED: Duration = Duration::from_secs(1);
/// What every key of the measured cluster begins with.
const QUEUE: &str = "/shard-manager/leader/";

/// Two places for managers on one etcd, one of them the leader's.
struct Site {
    etcd: Etcd,
    directory: TempDir,
    seats: [SocketAddr; 2],
    leads: usize,
    leader: Process,
    executor_lease: &'static str,
}

impl Site {
    async fn start(executor_lease: &'static str) -> Site {
        let (etcd, directory) = (Etcd::single().await, tempfile::tempdir().unwrap());
        let seats = [free_address(), free_address()];
        let leader = serve(&etcd, directory.path().to_owned(), seats[0], executor_lease);
        table(seats[0]).await;
        Site { etcd, directory, seats, leads: 0, leader, executor_lease }
    }

    fn leader_address(&self) -> SocketAddr {
        self.seats[self.leads]
    }

    /// A standby that has waited for so long.
    async fn successor(&self) -> Process {
        let seat = self.seats[1 - self.leads];
        let standby = serve(&self.etcd, self.directory.path().to_owned(), seat, self.executor_lease);
        eventually("a successor in the queue", async || (self.etcd.keys(QUEUE).await.len() == 2).then_some(())).await;
        tokio::time::sleep(QUEUED).await;
        standby
    }
}

fn serve(etcd: &Etcd, directory: PathBuf, seat: SocketAddr, executor_lease: &str) -> Process {
    let sets = [
        format!("number_of_shards={SHARDS}"),
        format!("grpc.listen={seat}"),
        "http.listen=127.0.0.1:0".to_owned(),
        "persistence.type=etcd".to_owned(),
        format!("persistence.etcd.endpoints={}", etcd.endpoints().join(",")),
        format!("leadership.lease_ttl={}s", TTL.as_secs()),
        format!("executors.lease_ttl={executor_lease}"),
    ];
    Process::serve(&directory, &format!("manager-{}", seat.port()), &sets)
}

/// A bare hand-over: whoever holds a lease revokes it, and whoever waits is answered.
struct Floor {
    client: Client,
    holds: i64,
    waits: (i64, JoinHandle<Instant>),
    runs: i64,
}

impl Floor {
    async fn start(etcd: &Etcd) -> Floor {
        let client = etcd.client().await;
        let (holds, campaign) = Floor::campaign(etcd, 1).await;
        campaign.await.unwrap();
        Floor { client, holds, waits: Floor::campaign(etcd, 2).await, runs: 2 }
    }

    async fn campaign(etcd: &Etcd, lease: i64) -> (i64, JoinHandle<Instant>) {
        // Not the tests' client: its time-out would end the campaign.
        let mut client = Client::connect(etcd.endpoints(), None).await.unwrap();
        client.lease_grant(3600, Some(LeaseGrantOptions::new().with_id(lease))).await.unwrap();
        let task = tokio::spawn(async move {
            client.campaign("/floor/leader", "floor", lease).await.unwrap();
            Instant::now()
        });
        (lease, task)
    }

    /// Milliseconds from the call to the answer. The one who waited holds it then, and another one begins to wait.
    async fn hand_over(&mut self, etcd: &Etcd) -> f64 {
        let begun = Instant::now();
        self.client.lease_revoke(self.holds).await.unwrap();
        let answered = (&mut self.waits.1).await.unwrap();
        self.holds = self.waits.0;
        self.runs += 1;
        self.waits = Floor::campaign(etcd, self.runs).await;
        ms(answered - begun)
    }
}

/// What executors and readers must not notice.
struct Disturbance {
    fleet: Fleet,
    before: [u64; 3],
    renewals: u64,
    ownership: Vec<(Option<String>, u64)>,
    changed: usize,
}

impl Disturbance {
    async fn begin(site: &Site) -> Disturbance {
        let fleet = Fleet::start(EXECUTORS, &site.seats).await;
        let ownership = ownership(&settled(site.leader_address(), EXECUTORS).await);
        let (before, renewals) = (fleet.seen.changes(), fleet.seen.leased.load(Ordering::Relaxed));
        Disturbance { fleet, before, renewals, ownership, changed: 0 }
    }

    fn look(&mut self, now: &shard_manager::rpc::RoutingTable) {
        let now = ownership(now);
        self.changed += self.ownership.iter().zip(&now).filter(|(before, now)| before != now).count();
        self.ownership = now;
    }

    /// The executors' own view is asked once more, after each had time to hear of every table.
    async fn end(self, site: &Site, figure: Figure) -> Figure {
        let mut this = self;
        this.look(&settled(site.leader_address(), EXECUTORS).await);
        let [joined, lapsed, moved] = this.fleet.seen.changes();
        let more = |now: u64, before: u64| (now - before) as f64;
        eprintln!("  {} renewals meanwhile", this.fleet.seen.leased.load(Ordering::Relaxed) - this.renewals);
        figure
            .reach("shards whose owner or epoch changed", 0.0, this.changed as f64)
            .reach("starts and ends of work on a shard, as executors saw it", 0.0, more(moved, this.before[2]))
            .reach("leases that lapsed", 0.0, more(lapsed, this.before[1]))
            .reach("executors that registered anew", 0.0, more(joined, this.before[0]))
    }
}

/// SIGTERM of the leader, to a table from its successor.
pub async fn graceful(runs: usize) -> Vec<Figure> {
    let mut site = Site::start("10s").await;
    let mut disturbance = Disturbance::begin(&site).await;
    let mut floor = Floor::start(&site.etcd).await;
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let standby = site.successor().await;
        floors.push(floor.hand_over(&site.etcd).await);
        site.leads = 1 - site.leads;
        let begun = Instant::now();
        site.leader.terminate();
        let table = table(site.leader_address()).await;
        times.push(ms(begun.elapsed()));
        disturbance.look(&table);
        let old = std::mem::replace(&mut site.leader, standby);
        let status = old.ended().await;
        assert!(status.success(), "a leader that was asked to stop ended with {status}");
    }
    let how = format!(
        "SIGTERM to the leader, until its successor, which had been queued for at least {} s, answered `GetRoutingTable` on a new connection \
         to its own port. {SHARDS} shards, {EXECUTORS} executors with a lease of 10 s. The port is tried every millisecond.",
        QUEUED.as_secs()
    );
    let figure = Figure::new("hand-over, asked for", how).times(times.clone()).floor(
        "on the same etcd, just before each hand-over, a lease is revoked: from that call to the answer to another client's campaign that had \
         waited for as long",
        floors.clone(),
    );
    let (own, least) = (crate::page::Summary::of(times), crate::page::Summary::of(floors));
    let figure = figure
        .reach("median, in floors", 10.0, own.median / least.median)
        .reach("median", 100.0, own.median)
        .reach("max", 500.0, own.max);
    vec![disturbance.end(&site, figure).await]
}

/// SIGKILL of the leader, to a table from its successor.
pub async fn crash(runs: usize) -> Vec<Figure> {
    let mut site = Site::start("10s").await;
    let mut disturbance = Disturbance::begin(&site).await;
    let mut times = Vec::new();
    for _ in 0..runs {
        let standby = site.successor().await;
        site.leads = 1 - site.leads;
        let begun = Instant::now();
        site.leader.kill();
        let table = table(site.leader_address()).await;
        times.push(ms(begun.elapsed()));
        disturbance.look(&table);
        let old = std::mem::replace(&mut site.leader, standby);
        old.ended().await;
    }
    let bound = ms(TTL) + 1000.0;
    let late = times.iter().filter(|&&time| time > bound).count();
    let how = format!(
        "SIGKILL of the leader, to the same. `leadership.lease_ttl` is {} s; the rest of the lease has to run out first. The same shards, executors \
         and queue.",
        TTL.as_secs()
    );
    let max = crate::page::Summary::of(times.clone()).max;
    let figure = Figure::new("hand-over, after a crash", how).times(times).reach("max: TTL + 1 s", bound, max).reach(
        "runs above that",
        0.0,
        late as f64,
    );
    vec![disturbance.end(&site, figure).await]
}

/// Writes to etcd while nothing happens but renewals.
pub async fn idle(time: Duration) -> Vec<Figure> {
    const MANY: usize = 100;
    let site = Site::start("3s").await;
    let fleet = Fleet::start(MANY, &site.seats).await;
    settled(site.leader_address(), MANY).await;
    let _standby = site.successor().await;
    let (before, renewals) = (site.etcd.revision().await, fleet.seen.leased.load(Ordering::Relaxed));
    tokio::time::sleep(time).await;
    let written = site.etcd.revision().await - before;
    let renewals = fleet.seen.leased.load(Ordering::Relaxed) - renewals;
    let how = format!(
        "How far etcd's revision moved within {} s, while {MANY} executors with a lease of 3 s renewed it {renewals} times at a leader with one \
         standby. Every write moves it; keeping a lease alive does not.",
        time.as_secs()
    );
    vec![Figure::new("writes of an idle cluster", how).reach("etcd's revisions", 0.0, written as f64)]
}
