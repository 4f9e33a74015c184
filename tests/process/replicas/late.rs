//! A leader that learns late what happened: answers of the store that are lost or held back, and a store that is away just when the
//! leadership is to be given up.

use std::time::Duration;

use super::SLACK;
use crate::harness::{Direction, Manager, Networked, PATIENCE, Replicas, TTL, on_every_network, poll_until, run, stays};

on_every_network!(
    the_answer_to_a_commit_is_lost_and_the_leadership_with_it,
    bytes_go_one_way_for_longer_than_a_request_may_take,
    the_leader_steps_down_while_the_store_is_unreachable,
);

/// Says `cordon a` or `uncordon a` at a manager; whether it was told that this is in force.
async fn is_told(manager: &Manager, command: &str) -> bool {
    run(&[command, "a", "--manager", &manager.grpc.to_string()]).await.status.success()
}

/// Cases 20 and 23: the commit has landed, its answer is lost, and when the leader asks what became of it another one leads. It tells its
/// caller nothing, and its successor goes on from what landed.
async fn the_answer_to_a_commit_is_lost_and_the_leadership_with_it<P: Networked>() {
    let mut replicas = Replicas::<P>::start(2, &["leadership.lease_ttl=10s"]).await;
    let rest = replicas.at_rest().await;
    let before = replicas.place.written().await;
    replicas.place.proxy().hold(Direction::Answers);
    let depose = async {
        poll_until("the commit lands", PATIENCE, async || (replicas.place.written().await > before).then_some(())).await;
        let landed = replicas.place.written().await;
        replicas.place.depose().await;
        poll_until("the successor writes", PATIENCE, async || (replicas.place.written().await > landed).then_some(())).await;
        replicas.place.proxy().drop_all();
        replicas.place.proxy().restore();
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
async fn bytes_go_one_way_for_longer_than_a_request_may_take<P: Networked>() {
    // A request may take 2 s.
    let (ttl, cut) = ("leadership.lease_ttl=10s", Duration::from_secs(3));
    let mut replicas = Replicas::<P>::start(2, &[ttl, "executors.lease_ttl=10s"]).await;
    let rest = replicas.at_rest().await;
    for (command, state) in [("cordon", "cordoned"), ("uncordon", "active")] {
        match command {
            "cordon" => replicas.place.proxy().hold(Direction::Answers),
            _ => replicas.place.proxy().hold(Direction::Requests),
        }
        let heal = async {
            stays("it leads", cut, async || replicas.cluster.manager.is_ready().await).await;
            replicas.place.proxy().restore();
        };
        let (told, ()) = tokio::join!(is_told(&replicas.cluster.manager, command), heal);
        assert!(!told, "{command}: it was not known to be in force when the caller was answered");
        replicas.cluster.state_is("a", state).await;
        let revision = replicas.cluster.table().await.revision;
        assert_eq!(revision, replicas.place.written().await, "{command}: memory equals the store");
    }
    assert_eq!(replicas.cluster.table().await.term, rest.term());
    replicas.still(&rest).await;
}

/// It cannot give the leadership up, so that has to end; it stops leading at once all the same, and waits again as soon as the store is back.
async fn the_leader_steps_down_while_the_store_is_unreachable<P: Networked>() {
    let mut replicas = Replicas::<P>::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    replicas.place.proxy().black_hole();
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
    replicas.place.proxy().restore();
    replicas.waits(&old).await;
    assert_eq!(old.get("/readyz").await, (503, "{\"reason\":\"standby\"}".to_owned()));
    replicas.still(&rest).await;
}
