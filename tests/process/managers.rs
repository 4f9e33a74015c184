//! The manager goes away, sleeps, comes back: executors that live keep what they have.

use std::time::Duration;

use shard_manager::cli::journal::{Entry, Line};

use crate::harness::{Cluster, Executor, PATIENCE, boot_ns, poll_until, window};

const L: Duration = Duration::from_secs(2);

/// Waits until an executor has fenced everything.
async fn fenced(executor: &Executor) {
    let what = format!("{} fences itself", executor.id);
    poll_until(&what, PATIENCE, async || executor.holds().is_empty().then_some(())).await;
    let last = executor.lines().into_iter().rfind(Line::is_about_a_shard).unwrap();
    assert!(matches!(last.entry, Entry::Fenced { .. }), "{last:?}");
}

/// Case 39: they fence themselves meanwhile, and come back to the same shards at the same epochs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manager_is_down_for_longer_than_the_lease() {
    let mut cluster = Cluster::start(&[]).await;
    let executors = [cluster.executor("a").await, cluster.executor("b").await, cluster.executor("c").await];
    let before = cluster.at_rest(&["a", "b", "c"]).await;
    let incarnations = executors.each_ref().map(Executor::incarnation);
    cluster.manager.child.kill();
    for executor in &executors {
        fenced(executor).await;
    }
    cluster.manager.restart().await;
    let after = cluster.at_rest(&["a", "b", "c"]).await;
    assert_eq!(before.shards, after.shards, "owners, incarnations and epochs");
    poll_until("every shard runs again", PATIENCE, async || {
        (executors.iter().map(|it| it.holds().len()).sum::<usize>() == 64).then_some(())
    })
    .await;
    assert_eq!(executors.each_ref().map(Executor::incarnation), incarnations, "nobody had to register anew");
    assert_eq!(cluster.check_safety().moves(), 0);
}

/// Case 40: on waking it first reads what arrived meanwhile (L9, P10).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manager_is_frozen_for_longer_than_the_lease() {
    let mut cluster = Cluster::start(&[]).await;
    let executors = [cluster.executor("a").await, cluster.executor("b").await, cluster.executor("c").await];
    let before = cluster.at_rest(&["a", "b", "c"]).await;
    for _ in 0..2 {
        cluster.manager.child.freeze().await;
        for executor in &executors {
            fenced(executor).await;
        }
        window(L / 2).await;
        cluster.manager.child.thaw();
        cluster.at_rest(&["a", "b", "c"]).await;
        poll_until("every shard runs again", PATIENCE, async || {
            (executors.iter().map(|it| it.holds().len()).sum::<usize>() == 64).then_some(())
        })
        .await;
    }
    window(2 * L).await;
    assert_eq!(before.shards, cluster.table().await.shards, "owners, incarnations and epochs");
    assert_eq!(cluster.manager.metric("shard_manager_lease_lapses_total").await, 0.0);
    assert_eq!(cluster.manager.metric("shard_manager_stalls_total").await, 2.0);
    assert_eq!(cluster.check_safety().moves(), 0);
}

/// Case 53: a new leader moves nothing just because it is new, also where balance could be a little better, and also in between
/// when it has heard some executors and not yet others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_finds_executors_that_it_has_not_heard() {
    let mut cluster = Cluster::start(&["executors.settle_time=0s"]).await;
    let a = cluster.executor("a").await;
    cluster.at_rest(&["a"]).await;
    let b = cluster.executor("b").await;
    cluster.at_rest(&["a", "b"]).await;
    let c = cluster.executor("c").await;
    let before = cluster.at_rest(&["a", "b", "c"]).await;
    // Two renewals fit into this: what was granted last is held.
    window(L).await;
    c.child.freeze().await;
    let restarted = boot_ns();
    assert_eq!(cluster.manager.stop().await, Some(0));
    cluster.manager.restart().await;
    window(L / 2).await;
    c.child.thaw();
    window(2 * L).await;
    assert_eq!(before.shards, cluster.table().await.shards, "owners, incarnations and epochs");
    for executor in [&a, &b] {
        assert_eq!(executor.changes_since(restarted), [], "{} started or stopped something", executor.id);
    }
    cluster.check_safety();
}
