//! A leader that sleeps or is deposed: it stops by itself, its successor finds everything as it was, and nothing that the old one does
//! afterwards counts.

use std::time::{Duration, Instant};

use super::{LOOK, SLACK, stands_by};
use crate::harness::{Fake, Manager, PATIENCE, Place, Replicas, on_every_store, poll_until, stays};

on_every_store!(
    the_leader_sleeps_past_its_ttl,
    executors_are_connected_to_a_leader_that_sleeps,
    executors_turn_to_a_leader_that_sleeps,
    the_leader_sleeps_past_its_ttl_and_may_stand_by,
    the_leader_is_deposed,
    a_deposed_leader_may_stand_by,
    a_deposed_leader_commits,
);

/// Cases 19 and 61: sleeps until another leads, with a renewal waiting in its socket when it wakes.
async fn sleeps_past_its_ttl<P: Place>(replicas: &mut Replicas<P>) -> Manager {
    let mut fake = Fake::new(&replicas.cluster.manager, "fake", 1);
    fake.register().await.unwrap();
    // When it has everything, nothing is written for the length of its lease: the leader does not fall asleep over a commit.
    poll_until("it is granted everything", PATIENCE, async || {
        fake.renew().await.unwrap();
        (fake.assignment.shards.len() == 64).then_some(())
    })
    .await;
    replicas.cluster.manager.child.freeze().await;
    let old = replicas.succession(P::HANG + SLACK).await;
    let written = replicas.place.written().await;
    // On the connection that the old one had open before it slept.
    let mut held = fake.clone();
    let renewal = tokio::spawn(async move { held.renew().await });
    stays("nobody answers who sleeps", Duration::from_millis(200), async || !renewal.is_finished()).await;
    old.child.thaw();
    let refused = renewal.await.unwrap().unwrap_err();
    assert!(!refused.message().contains("Timeout expired"), "it was not answered at all: {refused}");
    poll_until("it does not lead any more", PATIENCE, async || {
        let Some((_, metrics)) = old.try_get("/metrics").await else { return Some(()) };
        metrics.contains("shard_manager_is_leader 0").then_some(())
    })
    .await;
    assert!(fake.renew().await.is_err(), "nor later");
    assert_eq!(replicas.place.written().await, written, "it wrote nothing");
    old
}

async fn the_leader_sleeps_past_its_ttl<P: Place>() {
    let mut replicas = Replicas::<P>::start(2, P::LET_SLEEP).await;
    let mut old = sleeps_past_its_ttl(&mut replicas).await;
    assert_eq!(old.child.exit_code(PATIENCE).await, Some(4));
    assert!(replicas.cluster.manager.is_ready().await);
}

/// Their connections to it stay open and silent: they turn to the next replica in time.
async fn executors_are_connected_to_a_leader_that_sleeps<P: Place>() {
    let mut replicas = Replicas::<P>::start(3, P::LET_SLEEP).await;
    let rest = replicas.at_rest().await;
    replicas.cluster.manager.child.freeze().await;
    let mut old = replicas.succession(P::HANG + SLACK).await;
    replicas.still(&rest).await;
    old.child.thaw();
    assert_eq!(old.child.exit_code(PATIENCE).await, Some(4));
    replicas.still(&rest).await;
}

/// Case 61: who renews on a connection that waits to be accepted while the leader sleeps is not answered either, and nobody registers.
async fn executors_turn_to_a_leader_that_sleeps<P: Place>() {
    let mut replicas = Replicas::<P>::start(2, P::LET_SLEEP).await;
    let mut known = Fake::new(&replicas.cluster.manager, "known", 1);
    known.register().await.unwrap();
    replicas.cluster.manager.child.freeze().await;
    let mut old = replicas.succession(P::HANG + SLACK).await;
    let written = replicas.place.written().await;
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
    assert_eq!(replicas.place.written().await, written, "it wrote nothing");
}

/// The process stays, waits, and leads again when it is its turn.
async fn the_leader_sleeps_past_its_ttl_and_may_stand_by<P: Place>() {
    let settings = [P::LET_SLEEP, &["leadership.on_loss=standby"]].concat();
    let mut replicas = Replicas::<P>::start(2, &settings).await;
    let old = sleeps_past_its_ttl(&mut replicas).await;
    replicas.waits(&old).await;
    stands_by(&old).await;
    let term = replicas.cluster.table().await.term;
    replicas.standbys.push(old);
    assert_eq!(replicas.cluster.manager.stop().await, Some(0));
    replicas.succession(SLACK).await;
    assert!(replicas.cluster.table().await.term > term);
}

/// A leader looks after its leadership as often as it renews, however long that would last. An unasked end, never a 0.
async fn the_leader_is_deposed<P: Place>() {
    let mut replicas = Replicas::<P>::start(2, &["leadership.lease_ttl=6s"]).await;
    let rest = replicas.at_rest().await;
    replicas.place.depose().await;
    let deposed = Instant::now();
    // The store lets the next one lead at once. What bounds the time with two is this look; what the old one writes is refused.
    let code = replicas.cluster.manager.child.exit_code(LOOK + SLACK).await;
    assert_eq!(code, Some(4), "after {:?}", deposed.elapsed());
    replicas.succession(LOOK + SLACK).await;
    replicas.still(&rest).await;
}

/// The process stays, and waits; it may well win again, as it is the only one.
async fn a_deposed_leader_may_stand_by<P: Place>() {
    let mut replicas = Replicas::<P>::start(1, &["leadership.on_loss=standby"]).await;
    let rest = replicas.at_rest().await;
    replicas.place.depose().await;
    poll_until("it leads again", PATIENCE, async || replicas.cluster.try_table().await.filter(|table| table.term > rest.term()))
        .await;
    replicas.still(&rest).await;
    assert!(replicas.cluster.manager.child.is_running());
}

/// Case 20: the fence says so long before the next look at the leadership.
async fn a_deposed_leader_commits<P: Place>() {
    let mut replicas = Replicas::<P>::start(1, P::LOOK_RARELY).await;
    let _rest = replicas.at_rest().await;
    replicas.place.overtake().await;
    let written = replicas.place.written().await;
    let address = replicas.cluster.manager.grpc.to_string();
    let cordon = crate::harness::run(&["cordon", "a", "--manager", &address]).await;
    assert!(!cordon.status.success(), "nobody is told that it worked");
    assert_eq!(replicas.cluster.manager.child.exit_code(SLACK).await, Some(4));
    assert_eq!(replicas.place.written().await, written);
}
