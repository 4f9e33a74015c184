//! One leader follows another: asked to, and killed. And a cluster that rests.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use etcd_client::{Client, LeaseGrantOptions};
use rustix::process::Signal;
use tokio::task::JoinHandle;

use crate::cluster::{Fleet, ms, ownership, settled, table};
use crate::guarantees::DISTURBANCE;
use crate::page::{Figure, Summary};
use crate::site::{GRACE, Ground, QUEUED, SHARDS, Site, TTL};
use crate::support::etcd::Etcd;

const EXECUTORS: usize = 16;

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
            .reach(DISTURBANCE, 0.0, more(moved, this.before[2]))
            .reach("leases that lapsed", 0.0, more(lapsed, this.before[1]))
            .reach("executors that registered anew", 0.0, more(joined, this.before[0]))
    }
}

/// SIGTERM of the leader, to a table from its successor.
pub async fn graceful(ground: Ground, runs: usize) -> Figure {
    let mut site = Site::start(ground, "10s").await;
    let mut disturbance = Disturbance::begin(&site).await;
    let mut floor = match &site.ground {
        Ground::Etcd(server) => Some(Floor::start(server).await),
        Ground::Postgres(_) | Ground::Host => None,
    };
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let standby = site.successor().await;
        if let (Some(floor), Ground::Etcd(server)) = (&mut floor, &site.ground) {
            floors.push(floor.hand_over(server).await);
        }
        site.pass_on();
        let begun = Instant::now();
        site.leader.signal(Signal::TERM);
        let table = table(site.leader_address()).await;
        times.push(ms(begun.elapsed()));
        disturbance.look(&table);
        let old = std::mem::replace(&mut site.leader, standby);
        let status = old.ended().await;
        assert!(status.success(), "a leader that was asked to stop ended with {status}");
    }
    let how = format!(
        "SIGTERM to the leader, until its successor, which had waited for at least {} s, answered `GetRoutingTable` on a new connection \
         to its own port. {SHARDS} shards, {EXECUTORS} executors with a lease of 10 s. The port is tried every millisecond.",
        QUEUED.as_secs()
    );
    let own = Summary::of(times.clone());
    let mut figure = Figure::new(&format!("hand-over on {}, asked for", site.ground), how).times(times);
    if !floors.is_empty() {
        let least = Summary::of(floors.clone());
        let what = "on the same etcd, just before each hand-over, a lease is revoked: from that call to the answer to another client's campaign that \
                    had waited for as long";
        figure = figure.floor(what, floors).reach("median, in floors", 10.0, own.median / least.median);
    }
    let median = if matches!(site.ground, Ground::Postgres(_)) { 150.0 } else { 100.0 };
    let figure = figure.reach("median", median, own.median).reach("max", 500.0, own.max);
    disturbance.end(&site, figure).await
}

/// SIGKILL of the leader, to a table from its successor.
pub async fn crash(ground: Ground, runs: usize) -> Figure {
    let (times, site, disturbance) = struck(ground, runs, Signal::KILL).await;
    let name = format!("hand-over on {}, after a crash", site.ground);
    let own = Summary::of(times.clone());
    let figure = match site.ground {
        Ground::Host => {
            let how = "SIGKILL of the leader, to the same. Its standby waits for the end of the process, so no time has to run out first. The same \
                       shards and executors.";
            Figure::new(&name, how).times(times).reach("median", 100.0, own.median).reach("max", 500.0, own.max)
        }
        Ground::Etcd(_) | Ground::Postgres(_) => {
            let how = format!(
                "SIGKILL of the leader, to the same. `leadership.lease_ttl` is {} s; the rest of the lease has to run out first. The same shards and \
                 executors.",
                TTL.as_secs()
            );
            Figure::new(&name, how).times(times).reach("max: TTL + 1 s", ms(TTL) + 1000.0, own.max)
        }
    };
    disturbance.end(&site, figure).await
}

/// SIGSTOP of a leader on one host, to a table from its successor.
pub async fn hang(runs: usize) -> Figure {
    let (times, site, disturbance) = struck(Ground::Host, runs, Signal::STOP).await;
    let max = Summary::of(times.clone()).max;
    let how = format!(
        "SIGSTOP of the leader, to the same. `leadership.host.grace` is {} s: for so long its heartbeat has to stand still before its standby \
         kills it. The same shards and executors.",
        GRACE.as_secs()
    );
    let figure =
        Figure::new("hand-over on SQLite, after a hang", how).times(times).reach("max: grace + 500 ms", ms(GRACE) + 500.0, max);
    disturbance.end(&site, figure).await
}

/// A leader after the other ends by a signal that it cannot answer; how long each successor took.
async fn struck(ground: Ground, runs: usize, signal: Signal) -> (Vec<f64>, Site, Disturbance) {
    let mut site = Site::start(ground, "10s").await;
    let mut disturbance = Disturbance::begin(&site).await;
    let mut times = Vec::new();
    for _ in 0..runs {
        let standby = site.successor().await;
        site.pass_on();
        let begun = Instant::now();
        site.leader.signal(signal);
        let table = table(site.leader_address()).await;
        times.push(ms(begun.elapsed()));
        disturbance.look(&table);
        let old = std::mem::replace(&mut site.leader, standby);
        old.ended().await;
    }
    (times, site, disturbance)
}

/// Writes to etcd while nothing happens but renewals.
pub async fn idle(time: Duration) -> Figure {
    const MANY: usize = 100;
    let site = Site::start(Ground::Etcd(Etcd::single().await), "3s").await;
    let revision = async || match &site.ground {
        Ground::Etcd(server) => server.revision().await,
        Ground::Postgres(_) | Ground::Host => 0,
    };
    let fleet = Fleet::start(MANY, &site.seats).await;
    settled(site.leader_address(), MANY).await;
    let _standby = site.successor().await;
    let (before, renewals) = (revision().await, fleet.seen.leased.load(Ordering::Relaxed));
    tokio::time::sleep(time).await;
    let written = revision().await - before;
    let renewals = fleet.seen.leased.load(Ordering::Relaxed) - renewals;
    let how = format!(
        "How far etcd's revision moved within {} s, while {MANY} executors with a lease of 3 s renewed it {renewals} times at a leader with one \
         standby. Every write moves it; keeping a lease alive does not.",
        time.as_secs()
    );
    Figure::new("writes of an idle cluster", how).reach("etcd's revisions", 0.0, written as f64)
}
