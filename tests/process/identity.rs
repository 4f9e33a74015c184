//! One id, several processes: the newer one wins, and nothing runs twice.

use std::time::Duration;

use shard_manager::cli::journal::Entry;
use shard_manager::rpc::{reason, reason_of};

use crate::harness::{Cluster, Fake, PATIENCE, boot_ns, poll_until, stays, window};

const L: Duration = Duration::from_secs(2);
/// Round trips, commits, and other processes on the machine.
const SLACK: Duration = Duration::from_secs(1);

/// Case 37: at the same endpoint the old process is proven gone. Its shards go on there at once, at higher epochs, and nothing moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_is_killed_and_comes_back_at_the_same_port() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    let mut x = cluster.executor("x").await;
    let before = cluster.at_rest(&["a", "x"]).await;
    let moves = cluster.check_safety().moves();
    x.child.kill();
    let (killed, old) = (boot_ns(), x.incarnation());
    let again = cluster.executor_in_place_of(&x).await;
    let held = before.of("x");
    poll_until("x has its shards again, before any lease is over", SLACK, async || {
        let starts = again.changes_since(killed).into_iter().filter(|line| line.incarnation != old);
        (starts.count() == held.len()).then_some(())
    })
    .await;
    let after = cluster.at_rest(&["a", "x"]).await;
    assert_eq!(after.of("x"), held);
    for shard in held {
        let (old, new) = (&before.shards[shard as usize], &after.shards[shard as usize]);
        assert!(new.epoch > old.epoch && new.incarnation != old.incarnation, "shard {shard}: {old:?}, then {new:?}");
    }
    window(L).await;
    assert_eq!(a.changes_since(killed), [], "nothing moved to a");
    // The journal goes on in the same file, which tells that the old process was gone.
    assert_eq!(cluster.check_safety().moves(), moves, "a new incarnation is no move");
}

/// Case 46: told to end in order and to keep its shards, an executor stops them and gives none away; its next process has them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_keeps_its_shards_is_restarted() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    let mut x = cluster.executor_with("x", &["--keep-shards"]).await;
    let before = cluster.at_rest(&["a", "x"]).await;
    let (asked, held) = (boot_ns(), before.of("x"));
    assert_eq!(x.child.stop(PATIENCE).await.0, Some(0));
    assert!(x.holds().is_empty(), "it stopped them in order");
    let again = cluster.executor_in_place_of(&x).await;
    poll_until("x has its shards again", PATIENCE, async || (again.holds().len() == held.len()).then_some(())).await;
    assert_eq!(cluster.at_rest(&["a", "x"]).await.of("x"), held);
    window(L).await;
    assert_eq!(a.changes_since(asked), [], "nothing moved to a");
    cluster.check_safety();
}

/// Case 37: two processes with one id run at two endpoints. The newer waits until the older has stopped; the older is told, ends with
/// exit code 5, and that is the end of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_run_under_one_id() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    let mut older = cluster.executor("x").await;
    let before = cluster.at_rest(&["a", "x"]).await;
    poll_until("the older one runs", PATIENCE, async || (older.holds().len() == before.of("x").len()).then_some(())).await;
    let joins = cluster.manager.metric("shard_manager_executor_joins_total").await;
    let second = boot_ns();
    let newer = cluster.executor("x").await;
    assert_eq!(older.child.exit_code(L / 3 + SLACK).await, Some(5));
    let said = older.child.printed().join("\n");
    assert!(said.contains("superseded"), "{said}");
    assert!(older.holds().is_empty());

    let after = cluster.at_rest(&["a", "x"]).await;
    assert_eq!(after.of("x"), before.of("x"), "nothing moved");
    for shard in after.of("x") {
        let (old, new) = (&before.shards[shard as usize], &after.shards[shard as usize]);
        assert!(new.epoch > old.epoch && new.incarnation == newer.incarnation(), "shard {shard}: {old:?}, then {new:?}");
    }
    stays("x is one and the same process", 2 * L, async || {
        let executors = cluster.executors().await;
        executors.iter().filter(|it| it.id == "x").all(|it| it.incarnation == newer.incarnation())
    })
    .await;
    assert_eq!(cluster.manager.metric("shard_manager_executor_joins_total").await, joins + 1.0);
    assert_eq!(a.changes_since(second), []);
    cluster.check_safety();
}

/// The same, while the older one is frozen: its lease is waited for. When it wakes up it fences first, is told, and ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_process_wakes_up_after_it_was_replaced() {
    let mut cluster = Cluster::start(&[]).await;
    let mut older = cluster.executor("x").await;
    let before = cluster.at_rest(&["x"]).await;
    poll_until("the older one runs", PATIENCE, async || (older.holds().len() == 64).then_some(())).await;
    older.child.freeze().await;
    let (frozen, lease_ends) = (boot_ns(), older.lease_until());
    let newer = cluster.executor("x").await;
    poll_until("the newer one runs", L + SLACK, async || (newer.holds().len() == 64).then_some(())).await;
    assert!(newer.changes_since(frozen).iter().all(|line| line.at_ns > lease_ends), "it waited for the lease");
    older.child.thaw();
    assert_eq!(older.child.exit_code(PATIENCE).await, Some(5));
    let woken = older.changes_since(frozen);
    assert_eq!(woken.len(), 64, "{woken:?}");
    assert!(woken.iter().all(|line| matches!(line.entry, Entry::Fenced { .. })), "{woken:?}");
    let after = cluster.table().await;
    assert!(before.shards.iter().zip(&after.shards).all(|(old, new)| old.epoch < new.epoch));
    cluster.check_safety();
}

/// Case 66: what an old incarnation sent long ago arrives after the new one registered. Neither takes effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_an_old_incarnation_arrive_late() {
    let cluster = Cluster::start(&["executors.settle_time=0s"]).await;
    let mut old = Fake::new(&cluster.manager, "x", 1);
    old.register().await.unwrap();
    poll_until("it is granted everything", PATIENCE, async || {
        old.renew().await.unwrap();
        (old.assignment.shards.len() == 64).then_some(())
    })
    .await;
    let mut new = Fake { incarnation: 2, ..old.clone() };
    new.register().await.unwrap();
    poll_until("the new one is granted everything", PATIENCE, async || {
        new.renew().await.unwrap();
        (new.assignment.shards.len() == 64).then_some(())
    })
    .await;
    new.renew().await.unwrap();
    let before = cluster.table().await;
    assert!(before.shards.iter().all(|it| it.incarnation == 2));

    for _ in 0..2 {
        let refused = old.register().await.unwrap_err();
        assert_eq!(reason_of(&refused).as_deref(), Some(reason::SUPERSEDED), "{refused}");
        let refused = old.renew().await.unwrap_err();
        assert_eq!(reason_of(&refused).as_deref(), Some(reason::SUPERSEDED), "{refused}");
        old.deregister().await.unwrap();
    }
    // The new one's own duplicate is harmless: the same epochs.
    let repeated = new.register().await.unwrap();
    let epochs: Vec<u64> = before.shards.iter().map(|it| it.epoch).collect();
    assert_eq!(repeated.assignment.unwrap().epochs, epochs);
    assert!(new.renew().await.unwrap().assignment.is_none());
    assert_eq!(cluster.table().await.shards, before.shards);

    new.deregister().await.unwrap();
    let refused = new.renew().await.unwrap_err();
    assert_eq!(reason_of(&refused).as_deref(), Some(reason::UNKNOWN_EXECUTOR), "{refused}");
    let refused = new.register().await.unwrap_err();
    assert_eq!(
        reason_of(&refused).as_deref(),
        Some(reason::UNKNOWN_EXECUTOR),
        "a delayed registration of one that left: {refused}"
    );
    assert!(cluster.executors().await.is_empty());
}
