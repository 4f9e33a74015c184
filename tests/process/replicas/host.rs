//! What only one host has: a standby that sees its leader die, and may end it.

use std::time::Duration;

use sqlx::Connection;

use super::SLACK;
use crate::harness::{OnOneHost, PATIENCE, Place, Replicas, poll_until, stays};

/// Nothing but the death itself tells: the grace is not waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_killed_and_the_grace_is_long() {
    let mut replicas = Replicas::<OnOneHost>::start(2, &["leadership.host.grace=60s"]).await;
    let rest = replicas.at_rest().await;
    replicas.cluster.manager.child.kill();
    replicas.succession(SLACK).await;
    replicas.still(&rest).await;
}

/// It never wakes up: whoever takes over made sure of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hangs_is_killed() {
    let mut replicas = Replicas::<OnOneHost>::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    replicas.cluster.manager.child.freeze().await;
    let mut old = replicas.succession(OnOneHost::HANG + SLACK).await;
    assert_eq!(old.child.exit_code(PATIENCE).await, None, "a signal ended it");
    replicas.still(&rest).await;
}

/// Freezes the leader in the middle of a commit, so that it holds the database's lock for writing.
async fn freeze_over_a_commit(replicas: &Replicas<OnOneHost>) {
    let leader = &replicas.cluster.manager;
    let busy = async {
        loop {
            for command in ["cordon", "uncordon"] {
                leader.json(&[command, "a"]).await;
            }
        }
    };
    let freeze = poll_until("it is frozen over a commit", PATIENCE * 2, async || {
        leader.child.freeze().await;
        let mut other = replicas.place.client(Duration::ZERO).await;
        if other.begin_with("BEGIN IMMEDIATE").await.is_err() {
            return Some(());
        }
        drop(other);
        leader.child.thaw();
        None
    });
    tokio::select! {
        () = freeze => {}
        () = busy => {}
    }
}

/// Case 69: it is killed, and the lock with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_sleeps_in_a_commit() {
    let mut replicas = Replicas::<OnOneHost>::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    freeze_over_a_commit(&replicas).await;
    let mut old = replicas.succession(OnOneHost::HANG + SLACK).await;
    assert_eq!(old.child.exit_code(PATIENCE).await, None, "a signal ended it");
    replicas.still(&rest).await;
}

/// Case 69, where nobody may be killed: the standby waits for the lock, and says so. What was under way when the leader fell asleep may
/// land when it wakes, and nothing after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_sleeps_in_a_commit_and_must_not_be_killed() {
    let mut replicas = Replicas::<OnOneHost>::start(2, OnOneHost::LET_SLEEP).await;
    let rest = replicas.at_rest().await;
    freeze_over_a_commit(&replicas).await;
    let failures = "shard_manager_campaign_attempt_failures_total";
    replicas.standbys[0].metric_above(failures, 0.0).await;
    stays("it waits", Duration::from_millis(500), async || !replicas.standbys[0].is_ready().await).await;
    replicas.cluster.manager.child.thaw();
    let mut old = replicas.succession(PATIENCE).await;
    assert_eq!(old.child.exit_code(PATIENCE).await, Some(4));
    replicas.still(&rest).await;
}
