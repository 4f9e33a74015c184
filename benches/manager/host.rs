//! One manager on SQLite: an executor dies, and very many register.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use shard_manager::cli::journal::check::read;
use shard_manager::cli::journal::{Entry, Line};
use shard_manager::clock;
use shard_manager::rpc::shard_manager_client::ShardManagerClient;
use shard_manager::rpc::{RegisterRequest, RoutingTable};
use tokio::task::JoinSet;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::cluster::{Process, connect, eventually, is_settled, ms, settled, table};
use crate::page::{Figure, Summary};
use crate::support::free_address;

pub fn serve(directory: &Path, grpc: SocketAddr, http: SocketAddr, sets: &[&str]) -> Process {
    let mut all = vec![format!("grpc.listen={grpc}"), format!("http.listen={http}")];
    all.extend(sets.iter().map(|set| (*set).to_owned()));
    Process::serve(directory, "manager", &all)
}

const SHARDS: usize = 1024;

/// SIGKILL of one of three executors, until the last of its shards is started elsewhere.
pub async fn kill(runs: usize) -> Vec<Figure> {
    let (directory, grpc) = (tempfile::tempdir().unwrap(), free_address());
    let _manager = serve(directory.path(), grpc, free_address(), &["executors.lease_ttl=2s", "executors.calm_time=0s"]);
    table(grpc).await;
    let journal = |at: usize, life: usize| directory.path().join(format!("{at}-{life}.jsonl"));
    let start = |at: usize, life: usize| {
        let arguments = ["executor", "--id", &format!("executor-{at}"), "--manager", &grpc.to_string(), "--journal"];
        let mut arguments = arguments.map(ToOwned::to_owned).to_vec();
        arguments.push(journal(at, life).to_string_lossy().into_owned());
        Process::spawn(directory.path(), &format!("executor-{at}"), &arguments)
    };
    let mut executors: Vec<(usize, Process)> = (0..3).map(|at| (0, start(at, 0))).collect();
    let mut times = Vec::new();
    for run in 0..runs {
        let victim = run % 3;
        let shards = shards_of(&settled(grpc, 3).await, &format!("executor-{victim}"));
        let killed = clock::now();
        executors[victim].1.kill();
        eventually("new owners", async || is_settled(&table(grpc).await, 2).then_some(())).await;
        let survivors: Vec<PathBuf> = (0..3).filter(|&at| at != victim).map(|at| journal(at, executors[at].0)).collect();
        let killed_ns = u64::try_from(killed.0.as_nanos()).unwrap();
        let last = eventually("the start of the last shard", async || last_start(&survivors, killed_ns, &shards)).await;
        times.push((last - killed_ns) as f64 / 1e6);
        let life = executors[victim].0 + 1;
        executors[victim] = (life, start(victim, life));
    }
    let max = Summary::of(times.clone()).max;
    let how = format!(
        "SIGKILL of one of three `executor` processes with {SHARDS} shards between them and a lease L of 2 s, until a survivor's journal says that it \
         started the last of the shards. The manager may give them away when the lease, which was renewed up to L/3 before, and its margin of 120 ms \
         are over."
    );
    vec![Figure::new("an executor dies", how).times(times).reach("max: L + 500 ms", 2500.0, max)]
}

fn shards_of(table: &RoutingTable, executor: &str) -> BTreeSet<u32> {
    let is_theirs = |owner: &u32| table.owners[*owner as usize].executor_id == executor;
    (0u32..).zip(&table.owner).filter(|(_, owner)| is_theirs(owner)).map(|(shard, _)| shard).collect()
}

/// When the last of `shards` was started, once all were.
fn last_start(journals: &[PathBuf], after_ns: u64, shards: &BTreeSet<u32>) -> Option<u64> {
    // A line that is being written just now is read the next time.
    let lines = read(journals).ok()?;
    let start = |line: &Line| match line.entry {
        Entry::Start { shard, .. } if line.at_ns > after_ns && shards.contains(&shard) => Some((shard, line.at_ns)),
        _ => None,
    };
    let starts: Vec<(u32, u64)> = lines.iter().flatten().filter_map(start).collect();
    let started: BTreeSet<u32> = starts.iter().map(|(shard, _)| *shard).collect();
    (started == *shards).then(|| starts.iter().map(|(_, at)| *at).max()).flatten()
}

/// Very many executors register at once, over few connections.
pub async fn registrations(runs: usize) -> Vec<Figure> {
    const MANY: usize = 1000;
    const CONNECTIONS: usize = 8;
    let (mut times, mut floors, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let (directory, grpc, http) = (tempfile::tempdir().unwrap(), free_address(), free_address());
        // Nothing is to be assigned meanwhile: these executors are not there.
        let _manager = serve(directory.path(), grpc, http, &["executors.settle_time=20s"]);
        table(grpc).await;
        let mut channels = Vec::new();
        for _ in 0..CONNECTIONS {
            channels.push(connect(grpc).await.unwrap());
        }
        let (before, mut calls) = (landed(http).await, JoinSet::new());
        let begun = Instant::now();
        for at in 0..MANY {
            let mut client = ShardManagerClient::new(channels[at % CONNECTIONS].clone());
            let (executor_id, endpoint) = (format!("executor-{at}"), format!("127.0.0.1:{}", 1 + at));
            let registration =
                RegisterRequest { executor_id, endpoint, incarnation: 1 + at as u64, ..RegisterRequest::default() };
            calls.spawn(async move { client.register(registration).await.map(drop) });
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap().unwrap();
        }
        times.push(ms(begun.elapsed()));
        commits.push(landed(http).await - before);

        let begun = Instant::now();
        for at in 0..MANY {
            let mut client = HealthClient::new(channels[at % CONNECTIONS].clone());
            calls.spawn(async move { client.check(HealthCheckRequest::default()).await.map(drop) });
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap().unwrap();
        }
        floors.push(ms(begun.elapsed()));
    }
    let (own, commits) = (Summary::of(times.clone()), Summary::of(commits));
    let most = commits.max;
    let commits = commits.median;
    let how = format!(
        "{MANY} `Register` calls sent at once over {CONNECTIONS} connections to a manager on SQLite, until the last was answered: each after it was durable. \
         It took {commits} commits (median), because one carries all that arrived during the one before it."
    );
    let floor = "as many calls of the health service over the same connections, which do nothing";
    let figure = Figure::new("1,000 registrations", how).times(times).floor(floor, floors);
    vec![figure.reach("max: 2 s", 2000.0, own.max).reach("commits, max", 250.0, most)]
}

/// Commits that landed, as the manager counts them.
pub async fn landed(http: SocketAddr) -> f64 {
    metric(http, "shard_manager_commits_total{outcome=\"landed\"}").await
}

/// The sum of all values of a metric of a manager.
pub async fn metric(http: SocketAddr, name: &str) -> f64 {
    let page = reqwest::get(format!("http://{http}/metrics")).await.unwrap().text().await.unwrap();
    let values = page.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().unwrap()).sum()
}
