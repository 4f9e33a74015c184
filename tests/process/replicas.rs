//! Replicas on etcd: who serves, and how the leadership passes on. Executors that live notice none of it.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::harness::{Cluster, Manager, PATIENCE, Replicas, Store, TTL, poll_until, stays, window};
use crate::support::etcd::Etcd;

/// What a machine with two busy cores may be late by.
const SLACK: Duration = Duration::from_millis(1500);

async fn says_who_leads(standby: &Manager, leader: &Manager) {
    poll_until("it says who leads", Duration::from_secs(5), async || {
        standby.status().await["leader"].as_str()?.contains(&leader.identity()).then_some(())
    })
    .await;
}

/// Cases 13 and 18: one serves. The others are alive, and say that they wait, and for whom.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_start() {
    let replicas = Replicas::start(3, &[]).await;
    let leader = &replicas.cluster.manager;
    assert!(leader.is_ready().await);
    assert_eq!(leader.metric("shard_manager_is_leader").await, 1.0);
    for standby in &replicas.standbys {
        says_who_leads(standby, leader).await;
        assert!(TcpStream::connect(standby.grpc).is_err(), "its gRPC port is closed");
        assert_eq!(standby.get("/healthz").await.0, 200);
        assert_eq!(standby.get("/readyz").await, (503, "{\"reason\":\"standby\"}".to_owned()));
        assert_eq!(standby.metric("shard_manager_is_leader").await, 0.0);
        assert_eq!(standby.metric("shard_manager_leader_since_epoch").await, 0.0);
        assert_eq!(standby.status().await["role"], "standby");
    }
}

/// It gives the leadership up when all is done, and the next one serves at once; who still waits says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_told_to_stop() {
    let mut replicas = Replicas::start(3, &[]).await;
    let rest = replicas.at_rest().await;
    says_who_leads(&replicas.standbys[1], &replicas.cluster.manager).await;
    let (code, took) = replicas.cluster.manager.child.stop(PATIENCE).await;
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(1), "it took {took:?}");
    assert_eq!(replicas.queue().await.len(), 2, "its key is gone");
    replicas.succession(SLACK).await;
    says_who_leads(&replicas.standbys[0], &replicas.cluster.manager).await;
    replicas.still(&rest).await;
    assert!(replicas.cluster.table().await.term > rest.term());
}

/// Nobody gives anything up: the lease at etcd has to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_killed() {
    let mut replicas = Replicas::start(3, &[]).await;
    let rest = replicas.at_rest().await;
    replicas.cluster.manager.child.kill();
    replicas.succession(TTL + SLACK).await;
    replicas.still(&rest).await;
}

/// The leader that hands over goes to the end of the queue, and stays a process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_asks_the_leader_to_step_down() {
    let mut replicas = Replicas::start(3, &[]).await;
    let rest = replicas.at_rest().await;
    let answer = replicas.cluster.manager.json(&["step-down", "--reason", "a test"]).await;
    assert!(answer["stepping_down"].as_str().unwrap().contains(&replicas.cluster.manager.identity()));
    let mut old = replicas.succession(SLACK).await;
    replicas.waits(&old).await;
    let queue = replicas.queue().await;
    assert_eq!(queue.len(), 3);
    assert!(queue[2].contains(&old.identity()), "{queue:?}");
    assert!(queue[0].contains(&replicas.cluster.manager.identity()), "{queue:?}");
    assert!(old.child.is_running());
    assert_eq!(old.get("/readyz").await, (503, "{\"reason\":\"standby\"}".to_owned()));
    assert_eq!(old.metric("shard_manager_is_leader").await, 0.0);
    assert!(TcpStream::connect(old.grpc).is_err(), "its gRPC port is closed");
    replicas.still(&rest).await;
}

/// Case 27: renewals of executors and of leases write nothing, for three leases of the executors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_happens_and_nothing_is_written() {
    let mut replicas = Replicas::start(2, &["executors.lease_ttl=3s"]).await;
    let _rest = replicas.at_rest().await;
    let before = replicas.etcd.revision().await;
    window(Duration::from_secs(9)).await;
    assert_eq!(replicas.etcd.revision().await, before);
}

/// Below another prefix is another cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clusters_share_one_etcd() {
    let etcd = Etcd::single().await;
    let store = |prefix: &str| Store::Etcd { endpoint: etcd.endpoints().join(","), prefix: prefix.to_owned() };
    let start = async |prefix: &str, shards: &str| {
        let one = [shards];
        Cluster::around(Manager::start(&store(prefix), &Replicas::settings(&one)).await, store(prefix))
    };
    // One prefix begins with the other, and the numbers of shards differ: whoever read the other's records would refuse them.
    let mut one = start("/shards/", "number_of_shards=64").await;
    let mut two = start("/shards/two/", "number_of_shards=32").await;
    let (a, b) = (one.executor("a").await, two.executor("b").await);
    let (first, second) = (one.at_rest(&["a"]).await, two.at_rest(&["b"]).await);
    assert_ne!(first.cluster_id, second.cluster_id);
    assert_eq!((first.shards.len(), second.shards.len()), (64, 32));
    assert_eq!(two.manager.stop().await, Some(0));
    assert!(one.manager.is_ready().await);
    two.manager.restart().await;
    assert_eq!(two.at_rest(&["b"]).await.shards, second.shards);
    assert_eq!(one.table().await, first, "what the other did wrote nothing here");
    drop((a, b));
}

/// The member that leads etcd itself dies: the leadership of the manager goes on, under the same term.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_raft_leader_of_etcd_is_killed() {
    let ttl = Duration::from_secs(6);
    let mut replicas = Replicas::start_on_three_members(2, &["leadership.lease_ttl=6s"]).await;
    let rest = replicas.at_rest().await;
    let leads = replicas.etcd.raft_leader().await;
    replicas.etcd.members[leads].kill();
    let killed = Instant::now();
    stays("the leader leads", ttl + SLACK, async || replicas.cluster.manager.is_ready().await).await;
    assert!(killed.elapsed() > ttl, "its lease would have ended");
    replicas.still(&rest).await;
    assert_eq!(replicas.cluster.table().await.term, rest.term());
    // It can still write.
    replicas.cluster.manager.json(&["cordon", "a"]).await;
    replicas.cluster.state_is("a", "cordoned").await;
}
