//! Executors that stop running, and executors that die.

use std::collections::BTreeSet;
use std::time::Duration;

use shard_manager::cli::journal::Entry;

use crate::harness::{Cluster, PATIENCE, boot_ns, poll_until, stays};

const L: Duration = Duration::from_secs(2);
/// The manager adds this to a lease of 2 s.
const MARGIN: Duration = Duration::from_millis(120);
const SETTLE: Duration = Duration::from_millis(300);
/// Round trips, commits, and other processes on the machine.
const SLACK: Duration = Duration::from_secs(1);

/// Case 33: what it held is fenced before it takes in anything new, and it comes back as another incarnation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_is_frozen_past_its_lease() {
    let mut cluster = Cluster::start(&[]).await;
    let (a, b, x) = (cluster.executor("a").await, cluster.executor("b").await, cluster.executor("x").await);
    let before = cluster.at_rest(&["a", "b", "x"]).await;
    let (held, incarnation) = (before.of("x"), x.incarnation());
    poll_until("x runs its shards", PATIENCE, async || (x.holds().len() == held.len()).then_some(())).await;
    x.child.freeze().await;
    let frozen = boot_ns();
    let meanwhile = cluster.at_rest(&["a", "b"]).await;
    x.child.thaw();
    let after = cluster.at_rest(&["a", "b", "x"]).await;
    poll_until("x runs shards again", PATIENCE, async || (x.holds().len() == after.of("x").len()).then_some(())).await;

    let changes = x.changes_since(frozen);
    let (fences, rest) = changes.split_at(held.len());
    let fenced = fences.iter().filter_map(|line| match line.entry {
        Entry::Fenced { shard, .. } if line.incarnation == incarnation => Some(shard),
        _ => None,
    });
    assert_eq!(fenced.collect::<BTreeSet<u32>>(), held, "all of it was fenced before anything else happened: {changes:?}");
    assert!(rest.iter().all(|line| line.incarnation != incarnation), "the old incarnation did something after that: {rest:?}");
    for (shard, now) in after.shards.iter().enumerate() {
        let (first, between) = (&before.shards[shard], &meanwhile.shards[shard]);
        assert!(first.epoch <= between.epoch && between.epoch <= now.epoch, "shard {shard}");
        assert!(first.incarnation == now.incarnation || first.epoch < now.epoch, "shard {shard}");
    }
    drop((a, b));
    cluster.check_safety();
}

/// Case 44: new ones own everything within L + margin + the settle time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_executor_is_killed_and_new_ones_come() {
    let mut cluster = Cluster::start(&["number_of_shards=256"]).await;
    let mut old = [cluster.executor("a").await, cluster.executor("b").await, cluster.executor("c").await];
    cluster.at_rest(&["a", "b", "c"]).await;
    let killed = boot_ns();
    old.iter_mut().for_each(|executor| executor.child.kill());
    let new = [cluster.executor("d").await, cluster.executor("e").await, cluster.executor("f").await];
    cluster.at_rest(&["d", "e", "f"]).await;
    poll_until("all of it runs", PATIENCE, async || (new.iter().map(|it| it.holds().len()).sum::<usize>() == 256).then_some(()))
        .await;
    let starts = new.iter().flat_map(|it| it.changes_since(killed));
    let took = Duration::from_nanos(starts.map(|line| line.at_ns).max().unwrap() - killed);
    assert!(took <= L + MARGIN + SETTLE + SLACK, "covered again after {took:?}");
    cluster.check_safety();
}

/// Case 45: it leaves the state too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_owns_nothing_is_killed() {
    let mut cluster = Cluster::start(&["number_of_shards=2"]).await;
    let mut executors = [cluster.executor("a").await, cluster.executor("b").await, cluster.executor("c").await];
    let table = poll_until("both shards are owned", PATIENCE, async || {
        cluster.try_table().await.filter(|table| table.counts().len() == 2)
    })
    .await;
    let idle = executors.iter_mut().find(|it| table.of(&it.id).is_empty()).unwrap();
    idle.child.kill();
    poll_until("it is not known any more", L + MARGIN + SLACK, async || cluster.state_of(&idle.id).await.is_none().then_some(()))
        .await;
    assert_eq!(table.shards, cluster.table().await.shards, "nothing moved");
    cluster.check_safety();
}

/// A kill and a start again under the same id within the lease, at another port: the old process may live for all that anybody knows,
/// so its lease is waited for (P3); then its shards go on at the new one and nothing moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_is_killed_and_comes_back_at_another_port() {
    let mut cluster = Cluster::start(&[]).await;
    let (a, mut x) = (cluster.executor("a").await, cluster.executor("x").await);
    let before = cluster.at_rest(&["a", "x"]).await;
    let killed = boot_ns();
    x.child.kill();
    let lease_ends = x.lease_until();
    let again = cluster.executor("x").await;
    let after = poll_until("x has its shards again", L + MARGIN + SLACK, async || {
        cluster.try_table().await.filter(|table| again.holds().len() == before.of("x").len() && table.releasing == 0)
    })
    .await;
    assert_eq!(before.of("x"), after.of("x"));
    assert_eq!(a.changes_since(killed), [], "nothing moved to a");
    let early: Vec<_> = again.changes_since(killed).into_iter().filter(|line| line.at_ns < lease_ends).collect();
    assert_eq!(early, [], "before the old process's lease was over");
    cluster.check_safety();
}

/// Case 27: nobody writes while nothing happens, however often leases are renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_cluster_writes_nothing() {
    let mut cluster = Cluster::start(&[]).await;
    let executors = [cluster.executor("a").await, cluster.executor("b").await];
    let before = cluster.at_rest(&["a", "b"]).await;
    let bytes = || {
        let path = cluster.store.path();
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        (std::fs::read(path).unwrap(), std::fs::read(log).unwrap())
    };
    let (renewals, content) = (cluster.manager.metric("shard_manager_lease_renewals_total").await, bytes());
    stays("the database's bytes are the same", 3 * L, async || bytes() == content).await;
    assert_eq!(cluster.table().await.revision, before.revision);
    let renewed = cluster.manager.metric("shard_manager_lease_renewals_total").await - renewals;
    assert!(renewed >= 10.0, "only {renewed} renewals");
    drop(executors);
}
