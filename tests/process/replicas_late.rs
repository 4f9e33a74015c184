//! A leader that learns late what happened: answers from etcd that are lost or held back, an etcd that is away just when the leadership is to
//! be given up, and callers who speak to a leader that sleeps.

use std::time::Duration;

use crate::harness::{Fake, Manager, PATIENCE, Replicas, TTL, poll_until, run, stays};

/// What a machine with two busy cores may be late by.
const SLACK: Duration = Duration::from_millis(1500);

/// Says `cordon a` or `uncordon a` at a manager; whether it was told that this is in force.
async fn is_told(manager: &Manager, command: &str) -> bool {
    run(&[command, "a", "--manager", &manager.grpc.to_string()]).await.status.success()
}

/// Case 61: who renews on a connection that waits to be accepted while the leader sleeps is not answered either, and nobody registers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_turn_to_a_leader_that_sleeps() {
    let mut replicas = Replicas::start(2, &[]).await;
    let mut known = Fake::new(&replicas.cluster.manager, "known", 1);
    known.register().await.unwrap();
    replicas.cluster.manager.child.freeze().await;
    let mut old = replicas.succession(TTL + SLACK).await;
    let written = replicas.written().await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..4 {
        // Each on a connection of its own, which the kernel has taken and nobody has accepted.
        let (mut renews, mut registers) = (known.clone(), Fake::new(&old, &format!("new-{number}"), 2));
        renews.client = old.client();
        calls.spawn(async move { renews.renew().await.map(drop) });
        calls.spawn(async move { registers.register().await.map(drop) });
    }
    let early = stays("nobody answers who sleeps", Duration::from_millis(200), async || calls.try_join_next().is_none());
    early.await;
    old.child.thaw();
    while let Some(call) = calls.join_next().await {
        let refused = call.unwrap().unwrap_err();
        assert!(!refused.message().contains("Timeout expired"), "it was not answered at all: {refused}");
    }
    assert_eq!(old.child.exit_code(PATIENCE).await, Some(4));
    assert_eq!(replicas.written().await, written, "it wrote nothing");
}

/// Cases 20 and 23: the commit has landed, its answer is lost, and when the leader asks what became of it another one leads. It tells its
/// caller nothing, and its successor goes on from what landed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_a_commit_is_lost_and_the_leadership_with_it() {
    let mut replicas = Replicas::start(2, &["leadership.lease_ttl=10s"]).await;
    let rest = replicas.at_rest().await;
    let before = replicas.written().await;
    replicas.proxy.swallow_answers();
    let depose = async {
        poll_until("the commit lands", PATIENCE, async || (replicas.written().await > before).then_some(())).await;
        let landed = replicas.written().await;
        replicas.depose().await;
        poll_until("the successor writes", PATIENCE, async || (replicas.written().await > landed).then_some(())).await;
        replicas.proxy.drop_all();
        replicas.proxy.restore();
    };
    let (told, ()) = tokio::join!(is_told(&replicas.cluster.manager, "cordon"), depose);
    assert!(!told, "who does not lead any more says nothing of what is in force");
    // Long before a lease of 10 s or a look at the key would say so.
    assert_eq!(replicas.cluster.manager.child.exit_code(SLACK).await, Some(4));
    replicas.succession(SLACK).await;
    replicas.cluster.state_is("a", "cordoned").await;
    replicas.still(&rest).await;
}

/// Bytes go one way only, for longer than a request may take but not for as long as the lease: the leader leads on, nobody is told what is
/// not known yet, and memory equals the store afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_go_one_way_for_longer_than_a_request_may_take() {
    // A request may take 2 s.
    let (ttl, cut) = ("leadership.lease_ttl=10s", Duration::from_secs(3));
    let mut replicas = Replicas::start(2, &[ttl, "executors.lease_ttl=10s"]).await;
    let rest = replicas.at_rest().await;
    for (command, state) in [("cordon", "cordoned"), ("uncordon", "active")] {
        match command {
            "cordon" => replicas.proxy.swallow_answers(),
            _ => replicas.proxy.swallow_requests(),
        }
        let heal = async {
            stays("it leads", cut, async || replicas.cluster.manager.is_ready().await).await;
            replicas.proxy.restore();
        };
        let (told, ()) = tokio::join!(is_told(&replicas.cluster.manager, command), heal);
        assert!(!told, "{command}: it was not known to be in force when the caller was answered");
        replicas.cluster.state_is("a", state).await;
        let revision = replicas.cluster.table().await.revision;
        assert_eq!(i64::try_from(revision).unwrap(), replicas.written().await, "{command}: memory equals the store");
    }
    assert_eq!(replicas.cluster.table().await.term, rest.term());
    replicas.still(&rest).await;
}

/// It cannot give the leadership up, so that has to end; it stops leading at once all the same, and waits again as soon as etcd is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_steps_down_while_etcd_is_unreachable() {
    let mut replicas = Replicas::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    replicas.proxy.black_hole();
    replicas.cluster.manager.json(&["step-down", "--reason", "a test"]).await;
    poll_until("it does not lead any more", SLACK, async || {
        let (_, metrics) = replicas.cluster.manager.try_get("/metrics").await?;
        metrics.contains("shard_manager_is_leader 0").then_some(())
    })
    .await;
    let mut old = replicas.succession(TTL + SLACK).await;
    replicas.still(&rest).await;
    assert!(old.child.is_running());
    assert_ne!(old.get("/readyz").await.0, 200);
    replicas.proxy.restore();
    replicas.waits(&old).await;
    let queue = replicas.queue().await;
    assert!(queue.len() == 2 && queue[1].contains(&old.identity()), "{queue:?}");
    assert_eq!(old.get("/readyz").await, (503, "{\"reason\":\"standby\"}".to_owned()));
    replicas.still(&rest).await;
}
