//! Replicas: who serves, and how the leadership passes on. Executors that live notice none of it.
//!
//! The scenarios of this file, of `start` and of `lost` are the same on every store, and those of `network` on every store that is
//! reached over one; what differs stands in the [`Place`]. The rest is about one store each.

mod etcd;
mod host;
mod late;
mod lost;
mod network;
mod postgres;
mod start;

use std::net::TcpStream;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Manager, PATIENCE, Place, Replicas, on_every_store, poll_until, window};

/// What a machine with two busy cores may be late by.
const SLACK: Duration = Duration::from_millis(1500);

/// How rarely a leader looks after a leadership of 6 s, the longest of most scenarios: a third of that.
const LOOK: Duration = Duration::from_secs(2);

/// What a stop may take, whatever the store does.
const STOP: Duration = Duration::from_secs(1);

on_every_store!(
    three_replicas_start,
    three_replicas_start_at_once,
    the_leader_is_told_to_stop,
    the_leader_is_killed,
    an_operator_asks_the_leader_to_step_down,
    a_second_leader_is_started_by_mistake,
    every_replica_is_replaced_in_turn,
    nothing_happens_and_nothing_is_written,
);

/// Alive, and of no use to executors and clients.
async fn stands_by(replica: &Manager) {
    assert!(TcpStream::connect(replica.grpc).is_err(), "its gRPC port is closed");
    assert_eq!(replica.get("/healthz").await.0, 200);
    assert_eq!(replica.get("/readyz").await, (503, "{\"reason\":\"standby\"}".to_owned()));
    assert_eq!(replica.metric("shard_manager_is_leader").await, 0.0);
    assert_eq!(replica.metric("shard_manager_leader_since_epoch").await, 0.0);
    assert_eq!(replica.status().await["role"], "standby");
}

/// Cases 13 and 18: one serves. The others are alive, and say that they wait, and for whom.
async fn three_replicas_start<P: Place>() {
    let replicas = Replicas::<P>::start(3, &[]).await;
    let leader = &replicas.cluster.manager;
    assert!(leader.is_ready().await);
    assert_eq!(leader.metric("shard_manager_is_leader").await, 1.0);
    for standby in &replicas.standbys {
        replicas.waits(standby).await;
        assert!(standby.status().await["leader"].as_str().unwrap().contains(&leader.identity()));
        stands_by(standby).await;
    }
}

/// On an empty store, which each of them would make its own. One gets it.
async fn three_replicas_start_at_once<P: Place>() {
    let place = P::make().await;
    let (store, settings) = (place.store(), P::settings(&[]));
    let stand = || Manager::stand(&store, &settings);
    let (a, b, c) = tokio::join!(stand(), stand(), stand());
    let all = [&a, &b, &c];
    let roles = poll_until("one leads, and the others know it", PATIENCE, async || {
        let mut roles = Vec::new();
        for replica in all {
            let status = replica.status().await;
            status["leader"].as_str()?;
            roles.push(status["role"].as_str()?.to_owned());
        }
        roles.iter().all(|role| role == "leader" || role == "standby").then_some(roles)
    })
    .await;
    assert_eq!(roles.iter().filter(|role| *role == "leader").count(), 1, "{roles:?}");
}

/// It gives the leadership up when all is done, and the next one serves at once; who still waits says so.
async fn the_leader_is_told_to_stop<P: Place>() {
    let mut replicas = Replicas::<P>::start(3, &[]).await;
    let rest = replicas.at_rest().await;
    let (code, took) = replicas.cluster.manager.child.stop(PATIENCE).await;
    assert_eq!(code, Some(0));
    assert!(took < STOP, "it took {took:?}");
    let old = replicas.cluster.manager.identity();
    let queue = replicas.place.queue().await;
    assert!(!queue.iter().any(|it| it.contains(&old)), "it gave the leadership up: {queue:?}");
    replicas.succession(SLACK).await;
    replicas.waits(&replicas.standbys[0]).await;
    replicas.still(&rest).await;
    assert!(replicas.cluster.table().await.term > rest.term());
}

/// Nobody gives anything up: its time has to end, where the store does not see that it is dead.
async fn the_leader_is_killed<P: Place>() {
    let mut replicas = Replicas::<P>::start(3, &[]).await;
    let rest = replicas.at_rest().await;
    replicas.cluster.manager.child.kill();
    replicas.succession(P::CRASH + SLACK).await;
    replicas.still(&rest).await;
}

/// The leader that hands over lets another one lead, and stays a process.
async fn an_operator_asks_the_leader_to_step_down<P: Place>() {
    let mut replicas = Replicas::<P>::start(3, &[]).await;
    let rest = replicas.at_rest().await;
    let answer = replicas.cluster.manager.json(&["step-down", "--reason", "a test"]).await;
    assert!(answer["stepping_down"].as_str().unwrap().contains(&replicas.cluster.manager.identity()));
    let mut old = replicas.succession(SLACK).await;
    replicas.waits(&old).await;
    let queue = replicas.place.queue().await;
    assert!(queue[0].contains(&replicas.cluster.manager.identity()), "{queue:?}");
    assert!(old.child.is_running());
    stands_by(&old).await;
    replicas.still(&rest).await;
}

/// It waits, whatever it was meant to do, and neither its coming nor its end is noticed.
async fn a_second_leader_is_started_by_mistake<P: Place>() {
    let mut replicas = Replicas::<P>::start(1, &[]).await;
    let rest = replicas.at_rest().await;
    let written = replicas.place.written().await;
    replicas.join().await;
    stands_by(&replicas.standbys[0]).await;
    replicas.standbys[0].child.kill();
    replicas.still(&rest).await;
    assert_eq!(replicas.cluster.table().await.term, rest.term());
    assert_eq!(replicas.place.written().await, written);
}

/// Case 18: an upgrade, of one process after the other. At no look do two lead.
async fn every_replica_is_replaced_in_turn<P: Place>() {
    let mut replicas = Replicas::<P>::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    for _ in 0..2 {
        replicas.cluster.manager.child.signal(Signal::TERM);
        let mut replaced = replicas.succession(SLACK).await;
        assert_eq!(replaced.child.exit_code(STOP).await, Some(0));
        replaced.restart_as_standby().await;
        replicas.waits(&replaced).await;
        replicas.standbys.push(replaced);
        replicas.still(&rest).await;
    }
}

/// Case 27: renewals of executors and of the leadership write nothing, for two leases of the executors.
async fn nothing_happens_and_nothing_is_written<P: Place>() {
    let mut replicas = Replicas::<P>::start(2, &["executors.lease_ttl=3s"]).await;
    let _rest = replicas.at_rest().await;
    let before = replicas.place.activity().await;
    window(Duration::from_secs(6)).await;
    assert_eq!(replicas.place.activity().await, before);
}
