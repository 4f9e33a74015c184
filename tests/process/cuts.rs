//! The network between manager and executors: cut in one direction, in both, for one answer.

use std::collections::BTreeSet;
use std::time::Duration;

use shard_manager::cli::journal::Entry;

use crate::harness::{Cluster, Direction, PATIENCE, Proxy, boot_ns, free_address, poll_until, window};

const L: Duration = Duration::from_secs(2);

/// Case 32: the manager's commands reach an executor that never answers. Nobody else waits for it, and it gets its shards, and loses
/// them, by its own renewals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_to_one_executor_are_never_answered() {
    let mut cluster = Cluster::start(&["executors.probe_interval=20s"]).await;
    let (a, b) = (cluster.executor("a").await, cluster.executor("b").await);
    cluster.at_rest(&["a", "b"]).await;
    let listen = free_address();
    let proxy = Proxy::to(listen).await;
    proxy.black_hole();
    let x = cluster.executor_with("x", &["--listen", &listen.to_string(), "--advertise", &proxy.address.to_string()]).await;
    let table = cluster.at_rest(&["a", "b", "x"]).await;
    assert_eq!(x.holds().len(), table.of("x").len());

    let joined = boot_ns();
    let c = cluster.executor("c").await;
    cluster.at_rest(&["a", "b", "x", "c"]).await;
    // A renewal of x comes every third of L; everybody else is told at once.
    let starts = c.changes_since(joined);
    for (from, within) in [(&a, Duration::from_millis(500)), (&b, Duration::from_millis(500)), (&x, L / 3 + L / 4)] {
        for stop in from.changes_since(joined) {
            let Entry::Stop { shard, .. } = stop.entry else { panic!("{} did {stop:?}", from.id) };
            let start = starts.iter().find(|line| matches!(line.entry, Entry::Start { shard: it, .. } if it == shard)).unwrap();
            let gap = Duration::from_nanos(start.at_ns - stop.at_ns);
            assert!(gap <= within, "shard {shard} of {} had no owner for {gap:?}", from.id);
        }
    }
    // It is told again and again; on a busy machine the first of these is overtaken by the next assignment.
    let manager = &cluster.manager;
    poll_until("a command to x timed out", PATIENCE, async || {
        (manager.metric("shard_manager_commands_total{outcome=\"timed-out\"}").await > 0.0).then_some(())
    })
    .await;
    cluster.check_safety();
}

/// Case 34: commands get through, renewals do not. The lease runs out all the same, by the executor's own clock first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_alone_are_cut_off() {
    let mut cluster = Cluster::start(&[]).await;
    let (a, b) = (cluster.executor("a").await, cluster.executor("b").await);
    let proxy = Proxy::to(cluster.manager.grpc).await;
    let x = cluster.executor_with("x", &["--manager", &proxy.address.to_string()]).await;
    let before = cluster.at_rest(&["a", "b", "x"]).await;
    poll_until("x runs its shards", PATIENCE, async || (x.holds().len() == before.of("x").len()).then_some(())).await;
    let cut = boot_ns();
    proxy.black_hole();
    cluster.at_rest(&["a", "b"]).await;
    assert!(x.holds().is_empty());
    let fences = x.changes_since(cut);
    for shard in before.of("x") {
        let fenced = fences.iter().find(|line| matches!(line.entry, Entry::Fenced { shard: it, .. } if it == shard)).unwrap();
        let starts = [&a, &b].into_iter().flat_map(|it| it.changes_since(cut));
        let started =
            starts.filter(|line| matches!(line.entry, Entry::Start { shard: it, .. } if it == shard)).collect::<Vec<_>>();
        assert_eq!(started.len(), 1, "{started:?}");
        assert!(fenced.at_ns < started[0].at_ns, "shard {shard}: {fenced:?}, {started:?}");
    }
    let incarnation = x.incarnation();
    proxy.restore();
    cluster.at_rest(&["a", "b", "x"]).await;
    assert_ne!(x.incarnation(), incarnation);
    cluster.check_safety();
}

/// Case 38: the manager renewed, and the executor never heard of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_a_renewal_is_lost() {
    let mut cluster = Cluster::start(&[]).await;
    let proxy = Proxy::to(cluster.manager.grpc).await;
    let x = cluster.executor_with("x", &["--manager", &proxy.address.to_string()]).await;
    let before = cluster.at_rest(&["x"]).await;
    for _ in 0..3 {
        let cut = boot_ns();
        let renewals = cluster.manager.metric("shard_manager_lease_renewals_total{outcome=\"renewed\"}").await;
        proxy.hold(Direction::Answers);
        cluster.manager.metric_above("shard_manager_lease_renewals_total{outcome=\"renewed\"}", renewals).await;
        let until = x.lease_until();
        proxy.drop_all();
        proxy.restore();
        poll_until("x has a newer lease", L, async || (x.lease_until() > until).then_some(())).await;
        assert_eq!(x.changes_since(cut), []);
    }
    assert_eq!(before.shards, cluster.table().await.shards, "owners, incarnations and epochs");
    cluster.check_safety();
}

/// Case 43: probes that fail take nothing away; they keep new shards from coming.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_alone_fail() {
    let mut cluster = Cluster::start(&["executors.probe_interval=300ms", "executors.probe_timeout=200ms"]).await;
    let (a, mut b) = (cluster.executor("a").await, cluster.executor("b").await);
    let listen = free_address();
    let proxy = Proxy::to(listen).await;
    let x = cluster.executor_with("x", &["--listen", &listen.to_string(), "--advertise", &proxy.address.to_string()]).await;
    let before = cluster.at_rest(&["a", "b", "x"]).await;
    poll_until("x runs its shards", PATIENCE, async || (x.holds().len() == before.of("x").len()).then_some(())).await;
    let cut = boot_ns();
    proxy.black_hole();
    cluster.state_is("x", "suspect").await;
    window(2 * L).await;
    assert_eq!(before.shards, cluster.table().await.shards, "owners, incarnations and epochs");
    for executor in [&a, &b, &x] {
        assert_eq!(executor.changes_since(cut), [], "{} started or stopped something", executor.id);
    }

    let lost = before.of("b");
    b.child.kill();
    poll_until("the shards of b are at a", PATIENCE, async || {
        let here: BTreeSet<u32> = a.holds().into_keys().collect();
        here.is_superset(&lost).then_some(())
    })
    .await;
    assert_eq!(x.changes_since(cut), [], "the suspect got something");
    proxy.restore();
    cluster.state_is("x", "active").await;
    cluster.at_rest(&["a", "x"]).await;
    cluster.check_safety();
}
