//! Executors that do not do in time what they are told.

use std::time::Duration;

use shard_manager::cli::journal::{Entry, Line};
use shard_manager::rpc::Holdings;

use crate::harness::{Cluster, Executor, Fake, PATIENCE, boot_ns, poll_until};

const L: Duration = Duration::from_secs(2);
/// The manager adds this to a lease of 2 s.
const MARGIN: Duration = Duration::from_millis(120);
const SETTLE: Duration = Duration::from_millis(300);
/// Round trips, commits, and other processes on the machine.
const SLACK: Duration = Duration::from_secs(1);

fn of_shard(executor: &Executor, since: u64, shard: u32) -> Vec<Line> {
    let named = |line: &Line| match line.entry {
        Entry::Start { shard: it, .. } | Entry::Stop { shard: it, .. } | Entry::Fenced { shard: it, .. } => it == shard,
        Entry::Begin | Entry::Lease { .. } => false,
    };
    executor.changes_since(since).into_iter().filter(named).collect()
}

/// Case 31, first half: every command ends without the answer that it wants. The handoff ends all the same, with one plan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_stop_more_slowly_than_a_command_waits() {
    let mut cluster = Cluster::start(&["executors.command_timeout=300ms"]).await;
    let a = cluster.executor_with("a", &["--stop-delay", "1000"]).await;
    cluster.at_rest(&["a"]).await;
    let joined = boot_ns();
    let b = cluster.executor("b").await;
    let table = cluster.at_rest_within(&["a", "b"], SETTLE + Duration::from_secs(1) + SLACK).await;
    for shard in table.of("b") {
        let (gone, come) = (of_shard(&a, joined, shard), of_shard(&b, joined, shard));
        assert!(matches!(gone.as_slice(), [Line { entry: Entry::Stop { .. }, .. }]), "stopped once: {gone:?}");
        assert!(matches!(come.as_slice(), [Line { entry: Entry::Start { .. }, .. }]), "started once: {come:?}");
    }
    assert_eq!(cluster.manager.metric("shard_manager_releases_timed_out_total").await, 0.0);
    // Without an owner only for as long as it takes to say so: the time to stop counts as the old owner's.
    cluster.check_gaps(Duration::from_millis(700));
}

/// Cases 31, second half, and 63: the work on a shard never stops. Our client ends it when the shard's own lease does, says so, and the
/// shard has another owner within L + margin after its release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_never_stop() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor_with("a", &["--stop-delay", "600000", "--leave-timeout", "0s"]).await;
    cluster.at_rest(&["a"]).await;
    let incarnation = a.incarnation();
    let joined = boot_ns();
    let b = cluster.executor("b").await;
    let table = cluster.at_rest_within(&["a", "b"], SETTLE + L + MARGIN + SLACK).await;
    poll_until("b runs its shards", PATIENCE, async || (b.holds().len() == table.of("b").len()).then_some(())).await;
    for shard in table.of("b") {
        let (gone, come) = (of_shard(&a, joined, shard), of_shard(&b, joined, shard));
        assert!(matches!(gone.as_slice(), [Line { entry: Entry::Fenced { .. }, .. }]), "fenced, once: {gone:?}");
        assert!(matches!(come.as_slice(), [Line { entry: Entry::Start { .. }, .. }]), "started once: {come:?}");
        assert!(gone[0].at_ns < come[0].at_ns, "{gone:?} {come:?}");
    }
    let kept: Vec<Line> = table.of("a").into_iter().flat_map(|shard| of_shard(&a, joined, shard)).collect();
    assert_eq!(kept, [], "what a keeps was left alone");
    assert_eq!(a.incarnation(), incarnation);
    cluster.check_safety();
}

/// Case 63, the other half: an owner that renews for ever and never starts what it was granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn granted_shards_are_never_started() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    cluster.at_rest(&["a"]).await;
    let mut fake = Fake::new(&cluster.manager, "lazy", 7);
    fake.register().await.unwrap();
    poll_until("it is granted something", SETTLE + SLACK, async || {
        fake.renew_claiming(Holdings::default()).await.unwrap();
        (!fake.assignment.shards.is_empty()).then_some(())
    })
    .await;
    poll_until("a has everything again", L + MARGIN + L / 3 + SLACK, async || {
        fake.renew_claiming(Holdings::default()).await.unwrap();
        (a.holds().len() == 64).then_some(())
    })
    .await;
    assert!(cluster.manager.metric("shard_manager_shards_not_admitted_total").await > 0.0);
    cluster.check_safety();
}

/// Case 63: an owner that renews for ever and claims for ever what it was told to stop. After L + margin nobody waits for its word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_shards_are_claimed_for_ever() {
    let mut cluster = Cluster::start(&[]).await;
    let mut fake = Fake::new(&cluster.manager, "stubborn", 7);
    fake.register().await.unwrap();
    poll_until("it is granted everything", SETTLE + SLACK, async || {
        fake.renew().await.unwrap();
        (fake.assignment.shards.len() == 64).then_some(())
    })
    .await;
    let everything = fake.assignment.clone();
    fake.renew().await.unwrap();
    let joined = boot_ns();
    let b = cluster.executor("b").await;
    poll_until("b has its share", SETTLE + L + MARGIN + SLACK, async || {
        fake.renew_claiming(everything.clone()).await.unwrap();
        (b.holds().len() >= 29).then_some(())
    })
    .await;
    let first = b.changes_since(joined)[0].at_ns;
    assert!(first - joined >= u64::try_from((L + MARGIN).as_nanos()).unwrap(), "not before no lease covers them");
    let started = b.holds().len() as f64;
    assert_eq!(cluster.manager.metric("shard_manager_releases_timed_out_total").await, started);
    fake.renew().await.unwrap();
    assert!(fake.assignment.shards.len() <= 35, "it is told what is left to it");
}
