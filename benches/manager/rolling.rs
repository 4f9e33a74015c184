//! Everything is restarted, one process after the other: managers under those who read, executors under their shards.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use shard_manager::cli::journal::check::read;
use shard_manager::cli::journal::{Entry, Line};
use shard_manager::client::Router;
use shard_manager::types::{ShardId, Version};

use crate::cluster::{Fleet, Process, eventually, ms, ownership, settled, table};
use crate::host::serve;
use crate::page::{Figure, Summary};
use crate::site::{QUEUE, QUEUED};
use crate::support::etcd::Etcd;
use crate::support::free_address;

const MANAGERS: usize = 3;
const SHARDS: u32 = 1024;
const EXECUTORS: usize = 16;
const READERS: u32 = 4;

/// What readers asked, and what they were answered.
#[derive(Default)]
struct Reads {
    asked: AtomicU64,
    answered: AtomicU64,
    over: AtomicBool,
}

/// Asks for one shard after the other, as fast as a caller who has a thousand calls a second. It waits for nothing.
async fn read_on(router: Router, first: u32, reads: Arc<Reads>) {
    let mut shard = first;
    while !reads.over.load(Ordering::Relaxed) {
        reads.asked.fetch_add(1, Ordering::Relaxed);
        if router.route(ShardId(shard % SHARDS), Duration::ZERO).await.is_ok() {
            reads.answered.fetch_add(1, Ordering::Relaxed);
        }
        shard += READERS;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Each of three managers on etcd is asked to stop and started anew, always the one that leads.
pub async fn managers(rounds: usize) -> Vec<Figure> {
    let (etcd, directory) = (Etcd::single().await, tempfile::tempdir().unwrap());
    let seats: Vec<SocketAddr> = (0..MANAGERS).map(|_| free_address()).collect();
    let start = |seat: usize| {
        let sets = [
            format!("number_of_shards={SHARDS}"),
            format!("grpc.listen={}", seats[seat]),
            format!("http.listen={}", free_address()),
            "persistence.type=etcd".to_owned(),
            format!("persistence.etcd.endpoints={}", etcd.endpoints().join(",")),
        ];
        Process::serve(directory.path(), &format!("manager-{seat}"), &sets)
    };
    let queued = async |managers: usize| {
        eventually("managers in the queue", async || (etcd.keys(QUEUE).await.len() == managers).then_some(())).await;
    };
    let mut managers = Vec::new();
    for seat in 0..MANAGERS {
        managers.push(start(seat));
        queued(seat + 1).await;
    }
    let _fleet = Fleet::start(EXECUTORS, &seats).await;
    let before = ownership(&settled(seats[0], EXECUTORS).await);

    let router = Router::start(seats.iter().map(ToString::to_string)).unwrap();
    router.at_least(Version::default()).await;
    let reads = Arc::new(Reads::default());
    let readers: Vec<_> = (0..READERS).map(|first| tokio::spawn(read_on(router.clone(), first, Arc::clone(&reads)))).collect();
    let (mut gaps, mut stale) = (Vec::new(), Vec::new());
    for restart in 0..rounds * MANAGERS {
        let seat = restart % MANAGERS;
        tokio::time::sleep(QUEUED).await;
        let begun = Instant::now();
        managers[seat].signal(Signal::TERM);
        // A reader that comes now sees the successor's first table; from then on the one at hand is an old one.
        let successor = seats[(seat + 1) % MANAGERS];
        let first = table(successor).await;
        let (answered, version) = (Instant::now(), Version::from(first.version.unwrap()));
        router.at_least(version).await;
        gaps.push(ms(answered - begun));
        stale.push(ms(answered.elapsed()));
        let status = managers.remove(seat).ended().await;
        assert!(status.success(), "a manager that was asked to stop ended with {status}");
        managers.insert(seat, start(seat));
        queued(MANAGERS).await;
    }
    reads.over.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    let leader = seats[(rounds * MANAGERS) % MANAGERS];
    let changed = before.iter().zip(&ownership(&settled(leader, EXECUTORS).await)).filter(|(before, now)| before != now).count();
    let (asked, answered) = (reads.asked.load(Ordering::Relaxed), reads.answered.load(Ordering::Relaxed));
    let in_gaps = gaps.iter().zip(&stale).map(|(gap, stale)| stale / gap).fold(0.0, f64::max);
    let how = format!(
        "Three managers on etcd, the leading one asked to stop by SIGTERM and started anew, {} times in turn, while {READERS} readers asked one `Router` \
         for an owner {asked} times and waited for nothing: the time of each gap, from SIGTERM until the successor answered somebody who came just then. \
         {SHARDS} shards, {EXECUTORS} executors.",
        rounds * MANAGERS
    );
    vec![
        Figure::new("a rolling restart of managers", how)
            .times(gaps)
            .reach("reads that `Router` did not answer", 0.0, (asked - answered) as f64)
            .reach("from the successor's first answer until `Router` has its table, in lengths of that gap, max", 1.0, in_gaps)
            .reach("shards whose owner or epoch changed", 0.0, changed as f64),
    ]
}

/// Each of three executors is asked to stop and started anew, under its id and at its address.
pub async fn executors(rounds: usize) -> Vec<Figure> {
    const MANY: usize = 3;
    const SHARDS: u32 = 600;
    let (directory, grpc) = (tempfile::tempdir().unwrap(), free_address());
    let _manager =
        serve(directory.path(), grpc, free_address(), &[&format!("number_of_shards={SHARDS}"), "executors.lease_ttl=2s"]);
    table(grpc).await;
    let seats: Vec<SocketAddr> = (0..MANY).map(|_| free_address()).collect();
    let journals: Vec<PathBuf> = (0..MANY).map(|at| directory.path().join(format!("{at}.jsonl"))).collect();
    let start = |at: usize| {
        let arguments = ["executor", "--keep-shards", "--id", &format!("executor-{at}"), "--listen", &seats[at].to_string()];
        let mut arguments = arguments.map(ToOwned::to_owned).to_vec();
        arguments.extend(["--manager".to_owned(), grpc.to_string()]);
        arguments.extend(["--journal".to_owned(), journals[at].to_string_lossy().into_owned()]);
        Process::spawn(directory.path(), &format!("executor-{at}"), &arguments)
    };
    let mut executors: Vec<Process> = (0..MANY).map(start).collect();
    let owners = |table| ownership(&table).into_iter().map(|(owner, _)| owner).collect::<Vec<Option<String>>>();
    let before = owners(settled(grpc, MANY).await);
    let mut bare = Vec::new();
    for restart in 0..rounds * MANY {
        let at = restart % MANY;
        let log = directory.path().join(format!("executor-{at}.log"));
        let said = || std::fs::read_to_string(&log).unwrap().matches(" listens on ").count();
        let lives = said();
        let begun = Instant::now();
        executors[at].signal(Signal::TERM);
        executors.remove(at).ended().await;
        executors.insert(at, start(at));
        eventually("its port", async || (said() > lives).then_some(())).await;
        bare.push(ms(begun.elapsed()));
        settled(grpc, MANY).await;
    }
    let moved = before.iter().zip(&owners(settled(grpc, MANY).await)).filter(|(before, now)| before != now).count();
    let gaps = gaps(&journals);
    let over = Summary::of(gaps.clone()).median - Summary::of(bare.clone()).median;
    let how = format!(
        "Three `executor` processes with {SHARDS} shards between them, each in turn asked to stop by SIGTERM with `--keep-shards` and started anew as soon \
         as it had ended, {} times: for each shard the time from its last line in the old process's journal to its first in the new one's.",
        rounds * MANY
    );
    let floor = "from SIGTERM to the end of the process, and from the start of the next to its open port";
    vec![
        Figure::new("a rolling restart of executors", how)
            .times(gaps)
            .floor(floor, bare)
            .reach("shards that moved", 0.0, moved as f64)
            .reach("median, beyond that of the floor: 100 ms", 100.0, over),
    ]
}

/// Milliseconds for which each shard had nobody, each time.
fn gaps(journals: &[PathBuf]) -> Vec<f64> {
    let mut lines: Vec<Line> = read(journals).unwrap().into_iter().flatten().collect();
    lines.sort_by_key(|line| line.at_ns);
    let (mut stopped, mut gaps) = (BTreeMap::new(), Vec::new());
    for line in lines {
        match line.entry {
            Entry::Stop { shard, .. } | Entry::Fenced { shard, .. } => drop(stopped.insert(shard, line.at_ns)),
            Entry::Start { shard, .. } => gaps.extend(stopped.remove(&shard).map(|at| (line.at_ns - at) as f64 / 1e6)),
            Entry::Begin | Entry::Lease { .. } => {}
        }
    }
    gaps
}
