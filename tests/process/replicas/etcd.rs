//! What only etcd has: an order in which replicas wait, leases apart from keys, and members of its own.

use std::time::{Duration, Instant};

use super::SLACK;
use crate::harness::{OnEtcd, PATIENCE, Place, Replicas, stays};

/// Who hands over goes to the end of the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_steps_down_before_two() {
    let mut replicas = Replicas::<OnEtcd>::start(3, &[]).await;
    let next = replicas.standbys[0].identity();
    replicas.cluster.manager.json(&["step-down", "--reason", "a test"]).await;
    let old = replicas.succession(SLACK).await;
    assert_eq!(replicas.cluster.manager.identity(), next);
    replicas.waits(&old).await;
    let queue = replicas.place.queue().await;
    assert_eq!(queue.len(), 3);
    assert!(queue[2].contains(&old.identity()), "{queue:?}");
}

/// Case 2: it queues again by itself, on a new lease, and is elected later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standbys_lease_is_revoked() {
    let mut replicas = Replicas::<OnEtcd>::start(2, &[]).await;
    let first = replicas.place.keys().await.pop().unwrap();
    replicas.place.servers.client().await.lease_revoke(first.lease()).await.unwrap();
    replicas.waits(&replicas.standbys[0]).await;
    assert_ne!(replicas.place.keys().await.pop().unwrap().lease(), first.lease());
    assert_eq!(replicas.standbys[0].metric("shard_manager_campaign_attempt_failures_total").await, 1.0);
    assert!(replicas.cluster.manager.is_ready().await);
    assert_eq!(replicas.cluster.manager.stop().await, Some(0));
    replicas.succession(PATIENCE).await;
}

/// The member that leads etcd itself dies: the leadership of the manager goes on, under the same term.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_raft_leader_of_etcd_is_killed() {
    let ttl = Duration::from_secs(6);
    let mut replicas = Replicas::start_at(OnEtcd::three_members().await, 2, &["leadership.lease_ttl=6s"]).await;
    let rest = replicas.at_rest().await;
    let leads = replicas.place.servers.raft_leader().await;
    replicas.place.servers.members[leads].kill();
    let killed = Instant::now();
    stays("the leader leads", ttl + SLACK, async || replicas.cluster.manager.is_ready().await).await;
    assert!(killed.elapsed() > ttl, "its lease would have ended");
    replicas.still(&rest).await;
    assert_eq!(replicas.cluster.table().await.term, rest.term());
    // It can still write.
    replicas.cluster.manager.json(&["cordon", "a"]).await;
    replicas.cluster.state_is("a", "cordoned").await;
}
