//! What only PostgreSQL has: sessions that an administrator ends, a server that is shut down in order, and a clock that decides.

use std::time::{Duration, Instant};

use super::{LOOK, SLACK};
use crate::harness::{OnPostgres, PATIENCE, Replicas, TTL, stays};

/// Case 30: again and again, for longer than a leadership lasts. Everybody connects anew, and nobody loses anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_session_is_ended_by_an_administrator() {
    let mut replicas = Replicas::<OnPostgres>::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    let begun = Instant::now();
    while begun.elapsed() < 2 * TTL {
        assert!(replicas.place.server.terminate_backends("shard-manager%").await > 0, "somebody was connected");
        stays("the leader leads", TTL / 2, async || replicas.cluster.manager.is_ready().await).await;
    }
    // It can still write.
    replicas.cluster.manager.json(&["cordon", "a"]).await;
    replicas.cluster.state_is("a", "cordoned").await;
    replicas.cluster.manager.json(&["uncordon", "a"]).await;
    replicas.waits(&replicas.standbys[0]).await;
    replicas.still(&rest).await;
    assert_eq!(replicas.cluster.table().await.term, rest.term());
    assert_eq!(replicas.cluster.manager.stop().await, Some(0));
    replicas.succession(LOOK + SLACK).await;
}

/// It is shut down in order, tells everybody so, and comes back after the leadership's time. The leader stops by its own deadline, not at
/// the first refusal; the standby has waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_is_shut_down_for_longer_than_the_lease() {
    let mut replicas = Replicas::<OnPostgres>::start(2, &["executors.lease_ttl=15s"]).await;
    let rest = replicas.at_rest().await;
    replicas.place.server.stop();
    stays("the leader still hopes", TTL / 2, async || replicas.cluster.manager.is_ready().await).await;
    assert_eq!(replicas.cluster.manager.child.exit_code(TTL + SLACK).await, Some(4));
    assert!(replicas.standbys[0].child.is_running());
    replicas.place.server.start_again().await;
    replicas.succession(PATIENCE).await;
    replicas.still(&rest).await;
}

/// Case 68: the row is over all at once, though the leader renewed it in time. It finds out at its next renewal; its successor leaves
/// executors the time that the old one may have promised them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_clock_jumps_by_a_minute() {
    let mut replicas = Replicas::<OnPostgres>::start(2, &["leadership.lease_ttl=6s"]).await;
    let rest = replicas.at_rest().await;
    replicas.place.server.execute("UPDATE test.leader SET expires_at = expires_at - interval '1 minute'").await;
    let code = replicas.cluster.manager.child.exit_code(LOOK + SLACK).await;
    assert_eq!(code, Some(4));
    replicas.succession(LOOK + SLACK).await;
    replicas.still(&rest).await;
}

/// A leadership that was given up wakes who waits: nobody looks by himself as often as that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_hands_over_to_one_who_sleeps() {
    let mut replicas = Replicas::<OnPostgres>::start(2, &["leadership.lease_ttl=60s"]).await;
    assert_eq!(replicas.cluster.manager.stop().await, Some(0));
    replicas.succession(Duration::from_secs(1)).await;
}
