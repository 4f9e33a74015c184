//! Replicas that start, wait, and end before they ever led: they disturb nobody, and leave nothing behind.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::STOP;
use crate::harness::{Child, Manager, PATIENCE, Place, Replicas, TTL, free_address, on_every_store, poll_until, window};
use crate::lifecycle::handles_signals;

on_every_store!(
    a_standby_is_told_to_stop,
    a_standby_is_told_to_stop_while_it_starts,
    a_successor_is_told_to_stop_while_it_takes_over,
    a_standby_waits_for_longer_than_its_lease,
    a_replica_has_another_number_of_shards,
    a_replica_finds_bytes_that_are_no_state,
    the_winners_port_is_taken,
);

fn spawn<P: Place>(place: &P, settings: &[&str]) -> Child {
    let settings: Vec<String> = P::settings(settings).into_iter().map(str::to_owned).collect();
    Manager::spawn(free_address(), free_address(), &place.store(), &settings)
}

/// The exit code, and everything that was said.
async fn ends(mut child: Child) -> (Option<i32>, String) {
    let code = child.exit_code(PATIENCE).await;
    (code, child.printed().join("\n"))
}

/// Case 10: while it waits.
async fn a_standby_is_told_to_stop<P: Place>() {
    let mut replicas = Replicas::<P>::start(3, &[]).await;
    let (code, took) = replicas.standbys[0].child.stop(PATIENCE).await;
    assert_eq!(code, Some(0));
    assert!(took < STOP, "it took {took:?}");
    let queue = replicas.place.queue().await;
    assert!(!queue.iter().any(|it| it.contains(&replicas.standbys[0].identity())), "nothing is left of it: {queue:?}");
    assert!(replicas.cluster.manager.is_ready().await);
    replicas.waits(&replicas.standbys[1]).await;
}

/// Case 10: at any moment from its start on.
async fn a_standby_is_told_to_stop_while_it_starts<P: Place>() {
    let replicas = Replicas::<P>::start(1, &[]).await;
    for pause in [0, 5, 10, 20, 40, 80, 160] {
        let child = spawn(&replicas.place, &[]);
        poll_until("it handles signals", PATIENCE, async || handles_signals(child.pid()).then_some(())).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let asked = Instant::now();
        child.signal(Signal::TERM);
        let (code, said) = ends(child).await;
        assert_eq!(code, Some(0), "after {pause} ms: {said}");
        assert!(asked.elapsed() < STOP, "after {pause} ms it took {:?}: {said}", asked.elapsed());
        assert_eq!(replicas.place.queue().await.len(), 1, "after {pause} ms something of it stayed");
    }
    assert!(replicas.cluster.manager.is_ready().await);
}

/// Case 5: just when it was elected. It takes over nothing any more, and leaves nothing behind.
async fn a_successor_is_told_to_stop_while_it_takes_over<P: Place>() {
    let mut replicas = Replicas::<P>::start(1, &[]).await;
    for pause in [0, 2, 5, 10, 20, 40] {
        replicas.join().await;
        let mut successor = replicas.standbys.pop().unwrap();
        let old = replicas.cluster.manager.identity();
        replicas.cluster.manager.child.signal(Signal::TERM);
        poll_until("it is its turn", PATIENCE, async || {
            (!replicas.place.queue().await.iter().any(|it| it.contains(&old))).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let (code, took) = successor.child.stop(PATIENCE).await;
        assert_eq!(code, Some(0), "after {pause} ms");
        assert!(took < STOP, "after {pause} ms it took {took:?}");
        assert_eq!(replicas.cluster.manager.child.exit_code(PATIENCE).await, Some(0));
        assert!(replicas.place.is_deserted().await, "after {pause} ms something stayed: {:?}", replicas.place.queue().await);
        replicas.cluster.manager.restart().await;
    }
}

/// Case 1: neither its patience nor its lease ends; where the store knows of its turn, it leads by the very one that it waited with.
async fn a_standby_waits_for_longer_than_its_lease<P: Place>() {
    let mut replicas = Replicas::<P>::start(2, &["persistence.request_timeout=200ms"]).await;
    let queue = replicas.place.queue().await;
    window(3 * TTL).await;
    assert_eq!(replicas.place.queue().await, queue);
    assert_eq!(replicas.standbys[0].metric("shard_manager_campaign_attempt_failures_total").await, 0.0);
    assert_eq!(replicas.cluster.manager.stop().await, Some(0));
    replicas.succession(PATIENCE).await;
    if queue.len() > 1 {
        assert_eq!(replicas.place.queue().await, queue[1..]);
    }
}

/// Case 12: both numbers are named, nothing is written, and the leader goes on.
async fn a_replica_has_another_number_of_shards<P: Place>() {
    let mut replicas = Replicas::<P>::start(1, &[]).await;
    let rest = replicas.at_rest().await;
    let activity = replicas.place.activity().await;
    let (code, said) = ends(spawn(&replicas.place, &["number_of_shards=65"])).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("number_of_shards is 65") && said.contains("has 64"), "{said}");
    assert_eq!(replicas.place.activity().await, activity, "it did not campaign");
    replicas.still(&rest).await;
}

/// Cases 12 and 26: it names the record before it would campaign, and leaves it as it is; the leader, which has read it when it was
/// good, goes on.
async fn a_replica_finds_bytes_that_are_no_state<P: Place>() {
    let mut replicas = Replicas::<P>::start(1, &[]).await;
    let rest = replicas.at_rest().await;
    let record = replicas.place.spoil().await;
    let activity = replicas.place.activity().await;
    let (code, said) = ends(spawn(&replicas.place, &[])).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains(&record), "{said}");
    assert_eq!(replicas.place.activity().await, activity, "it did not campaign");
    replicas.still(&rest).await;
}

/// Case 5: it wins, cannot serve, and gives up what it won.
async fn the_winners_port_is_taken<P: Place>() {
    let place = P::make().await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (code, said) = ends(Manager::spawn(address, free_address(), &place.store(), &[])).await;
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains(&format!("cannot listen on {address} for gRPC")), "{said}");
    assert!(place.is_deserted().await, "something stayed: {:?}", place.queue().await);
}
