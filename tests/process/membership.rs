//! Executors come: how the shards spread, and what that moves.

use std::time::Duration;

use shard_manager::cli::journal::Entry;

use crate::harness::{Cluster, PATIENCE, boot_ns, poll_until, stays, window};

const L: Duration = Duration::from_secs(2);

/// Case 46: two come, within the settle time, to one that has everything. Each shard that moves moves once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_executors_join_together() {
    let mut cluster = Cluster::start(&["number_of_shards=1024", "executors.settle_time=1s"]).await;
    let a = cluster.executor("a").await;
    cluster.at_rest(&["a"]).await;
    let joined = boot_ns();
    let b = cluster.executor("b").await;
    window(Duration::from_millis(150)).await;
    let c = cluster.executor("c").await;
    let table = cluster.at_rest(&["a", "b", "c"]).await;
    window(L).await;
    assert_eq!(cluster.table().await, table, "it is at rest");
    let stops = a.changes_since(joined).len();
    assert_eq!(stops, 1024 - table.of("a").len(), "a stops what leaves, once, and nothing else");
    for executor in [&b, &c] {
        let changes = executor.changes_since(joined);
        assert!(changes.iter().all(|line| matches!(line.entry, Entry::Start { .. })), "{}: {changes:?}", executor.id);
        assert_eq!(changes.len(), table.of(&executor.id).len());
    }
    // A handoff is one release and one grant, a few round trips apart.
    cluster.check_gaps(Duration::from_millis(700));
}

/// Case 46: they come a second apart. The first join is answered before the second; nothing moves back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_executors_join_one_after_the_other() {
    let mut cluster = Cluster::start(&["number_of_shards=1024"]).await;
    let a = cluster.executor("a").await;
    cluster.at_rest(&["a"]).await;
    let b = cluster.executor("b").await;
    window(Duration::from_secs(1)).await;
    let c = cluster.executor("c").await;
    let table = cluster.at_rest(&["a", "b", "c"]).await;
    window(L).await;
    assert_eq!(cluster.table().await, table, "it is at rest");
    let starts = |since: u64, executor: &crate::harness::Executor| {
        executor.changes_since(since).iter().filter(|line| matches!(line.entry, Entry::Start { .. })).count()
    };
    assert_eq!(starts(0, &a), 1024, "nothing came back to a");
    // At the most half of the shards, and then a third.
    let moves = starts(0, &b) + starts(0, &c);
    assert!(moves <= 564 + 376, "{moves} moves");
    cluster.check_gaps(Duration::from_millis(700));
}

/// Case 47: as many executors as shards: one each, also where the last one comes late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_as_many_executors_as_shards() {
    let mut cluster = Cluster::start(&["number_of_shards=3"]).await;
    let first = [cluster.executor("a").await, cluster.executor("b").await];
    poll_until("two share three", PATIENCE, async || {
        cluster.try_table().await.filter(|table| table.counts().values().sum::<usize>() == 3 && table.counts().len() == 2)
    })
    .await;
    let last = cluster.executor("c").await;
    cluster.at_rest(&["a", "b", "c"]).await;
    for executor in first.iter().chain([&last]) {
        poll_until("it runs one", PATIENCE, async || (executor.holds().len() == 1).then_some(())).await;
    }
    cluster.check_safety();
}

/// Weights: an executor of weight 3 rests with three times the shards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_weigh_differently() {
    let mut cluster = Cluster::start(&["number_of_shards=400"]).await;
    let executors = [cluster.executor_with("heavy", &["--weight", "3"]).await, cluster.executor("light").await];
    let table = poll_until("all is owned", PATIENCE, async || {
        cluster.try_table().await.filter(|table| table.counts().values().sum::<usize>() == 400)
    })
    .await;
    let heavy = table.of("heavy").len();
    assert!((270..=330).contains(&heavy), "{heavy} of 400");
    drop(executors);
    cluster.check_safety();
}

/// Case 48: a rolling restart, each by SIGTERM and at another port, costs few moves, and no shard is ever without an owner for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_restart_one_after_the_other() {
    let mut cluster = Cluster::start(&["number_of_shards=120", "executors.calm_time=8s"]).await;
    let ids = ["a", "b", "c", "d"];
    let mut executors = Vec::new();
    for id in ids {
        executors.push(cluster.executor(id).await);
    }
    cluster.at_rest(&ids).await;
    let restarted = boot_ns();
    for (at, id) in ids.into_iter().enumerate() {
        assert_eq!(executors[at].child.stop(PATIENCE).await.0, Some(0));
        executors[at] = cluster.executor(id).await;
        cluster.state_is(id, "active").await;
    }
    let table = cluster.at_rest(&ids).await;
    stays("it is at rest", L, async || cluster.table().await == table).await;
    // Every shard leaves its executor once. Those of the first are met by a later restart again, and the last one takes its share at the
    // end.
    let starts = starts_since(&cluster, restarted);
    assert!(starts <= 120 + 30 + 30 + 5, "{starts} starts");
    cluster.check_gaps(Duration::from_millis(700));
}

/// Case 48: each gives its shards away when its replacement has come. They go there, and nothing else moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_are_replaced_one_after_the_other() {
    let mut cluster = Cluster::start(&["number_of_shards=120", "executors.calm_time=8s"]).await;
    let (old, new) = (["a", "b", "c", "d"], ["e", "f", "g", "h"]);
    let mut executors = Vec::new();
    for id in old {
        executors.push(cluster.executor(id).await);
    }
    cluster.at_rest(&old).await;
    let began = boot_ns();
    let mut replacements = Vec::new();
    for (executor, id) in executors.iter_mut().zip(new) {
        replacements.push(cluster.executor(id).await);
        cluster.state_is(id, "active").await;
        assert_eq!(executor.child.stop(PATIENCE).await.0, Some(0));
    }
    let table = cluster.at_rest(&new).await;
    stays("it is at rest", L, async || cluster.table().await == table).await;
    let starts = starts_since(&cluster, began);
    assert!(starts <= 120 * 6 / 5, "{starts} starts");
    cluster.check_gaps(Duration::from_millis(700));
}

fn starts_since(cluster: &Cluster, since: u64) -> usize {
    cluster.lines().iter().filter(|line| line.at_ns > since && matches!(line.entry, Entry::Start { .. })).count()
}
