//! What the README promises a newcomer.

use std::collections::BTreeSet;
use std::time::Duration;

use shard_manager::cli::journal::Entry;

use crate::harness::{Cluster, PATIENCE, boot_ns, poll_until, window};

const L: Duration = Duration::from_secs(2);
/// What the README's commands start with, save for L.
const AS_IN_THE_README: [&str; 3] = ["number_of_shards=1024", "executors.lease_ttl=2s", "executors.settle_time=500ms"];

/// Three executors share 1,024 shards; the shards of one that is killed are owned again within L + 600 ms; and a manager that is
/// killed and comes back moves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_is_killed_then_the_manager() {
    let mut cluster = Cluster::start(&AS_IN_THE_README).await;
    let (a, b) = (cluster.executor("a").await, cluster.executor("b").await);
    let mut c = cluster.executor("c").await;
    let table = cluster.at_rest(&["a", "b", "c"]).await;
    for (id, count) in table.counts() {
        assert!((307..=376).contains(&count), "{id} has {count}");
    }
    the_commands_say_so(&cluster).await;

    let lost = table.of("c");
    let killed = boot_ns();
    c.child.kill();
    let again = poll_until("every shard of c started elsewhere", PATIENCE, async || {
        let started = [&a, &b].into_iter().flat_map(|it| it.changes_since(killed));
        let started = started.filter_map(|line| match line.entry {
            Entry::Start { shard, .. } if lost.contains(&shard) => Some((shard, line.at_ns)),
            _ => None,
        });
        let started: Vec<(u32, u64)> = started.collect();
        let shards: BTreeSet<u32> = started.iter().map(|it| it.0).collect();
        (shards == lost).then_some(started)
    })
    .await;
    let latest = again.iter().map(|it| it.1).max().unwrap();
    let took = Duration::from_nanos(latest - killed);
    assert!(took <= L + Duration::from_millis(600), "owned again after {took:?}");

    let before = cluster.at_rest(&["a", "b"]).await;
    for shard in &table.of("a") {
        assert_eq!(before.shards[*shard as usize].executor.as_deref(), Some("a"), "shard {shard} moved for nothing");
    }
    let killed = boot_ns();
    cluster.manager.restart().await;
    window(2 * L).await;
    let after = cluster.table().await;
    assert_eq!(before.shards, after.shards, "owners, incarnations and epochs");
    assert!(after.term > before.term);
    for executor in [&a, &b] {
        assert_eq!(executor.changes_since(killed), [], "{} started or stopped something", executor.id);
    }
    cluster.check_safety();
}

/// What the commands print, as the issue states it.
async fn the_commands_say_so(cluster: &Cluster) {
    let table = cluster.manager.json(&["table"]).await;
    assert_eq!(table["number_of_shards"], 1024);
    let shards = table["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 1024);
    for (at, shard) in shards.iter().enumerate() {
        assert_eq!((&shard["shard"], &shard["state"]), (&at.into(), &"held".into()));
        assert!(shard["executor"].is_string() && shard["epoch"].as_u64().unwrap() >= table["term"].as_u64().unwrap());
    }
    let executors = cluster.manager.json(&["executors"]).await;
    let executors = executors.as_array().unwrap();
    assert_eq!(executors.len(), 3);
    let mut sum = 0;
    for executor in executors {
        assert_eq!((&executor["state"], &executor["weight"]), (&"active".into(), &1.into()));
        assert!(executor["incarnation"].as_u64().unwrap() > 0 && executor["endpoint"].as_str().unwrap().starts_with("http://"));
        assert!(executor["lease_remaining_ms"].as_u64().unwrap() <= 2000);
        sum += executor["shards"].as_u64().unwrap();
    }
    assert_eq!(sum, 1024);
    let status = cluster.manager.json(&["status"]).await;
    assert_eq!(
        (&status["role"], &status["number_of_shards"], &status["executors"], &status["unassigned"]),
        (&"leader".into(), &1024.into(), &3.into(), &0.into())
    );
    assert_eq!((&status["violations"], &status["cluster_id"]), (&serde_json::json!([]), &table["cluster_id"]));
}
