//! Rebalancing, paused by an operator.

use std::time::Duration;

use shard_manager::rpc::PauseRebalancingRequest;
use shard_manager::rpc::shard_manager_admin_client::ShardManagerAdminClient;

use crate::harness::{Cluster, PATIENCE, Place, Replicas, on_every_store, poll_until, run, stays};

on_every_store!(the_leader_of_a_pause_is_killed);

/// What an operator said outlives who heard it: the next leader pauses until the same moment, and says so.
async fn the_leader_of_a_pause_is_killed<P: Place>() {
    let mut replicas = Replicas::<P>::start(2, &[]).await;
    let (a, b) = (replicas.executor("a").await, replicas.executor("b").await);
    replicas.cluster.at_rest(&["a", "b"]).await;
    let paused = replicas.cluster.manager.json(&["rebalance", "pause", "--for", "10m", "--reason", "a game is on"]).await;
    replicas.cluster.manager.child.kill();
    replicas.succession(PATIENCE).await;

    let manager = &replicas.cluster.manager;
    let status = manager.json(&["rebalance", "status"]).await;
    assert_eq!((&status["paused"], &status["until_unix_ms"]), (&true.into(), &paused["until_unix_ms"]));
    let note = status["notes"][0].as_str().unwrap();
    assert!(note.starts_with("rebalancing is paused until ") && note.ends_with(": a game is on"), "{note}");
    assert_eq!(manager.metric("shard_manager_rebalancing_paused").await, 1.0);
    let until = (paused["until_unix_ms"].as_u64().unwrap() / 1000) as f64;
    assert_eq!(manager.metric("shard_manager_rebalancing_paused_until_epoch").await, until);
    assert_eq!(manager.status().await["rebalancing_paused_until_ms"], paused["until_unix_ms"]);
    let found = "as a leader before this one wrote down";
    assert!(manager.child.printed().iter().any(|line| line.contains(found)), "its log says so");

    let c = replicas.executor("c").await;
    replicas.cluster.state_is("c", "active").await;
    stays("c gets nothing", Duration::from_secs(1), async || replicas.cluster.table().await.of("c").is_empty()).await;
    replicas.cluster.manager.json(&["rebalance", "resume"]).await;
    replicas.cluster.at_rest(&["a", "b", "c"]).await;
    assert_eq!(replicas.cluster.manager.metric("shard_manager_rebalancing_paused").await, 0.0);
    drop((a, b, c));
    replicas.cluster.check_safety();
}

/// Nobody has to think of it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_over() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    cluster.at_rest(&["a"]).await;
    cluster.manager.json(&["rebalance", "pause", "--for", "4s"]).await;
    let b = cluster.executor("b").await;
    poll_until("a shard waits for the end of the pause", PATIENCE, async || {
        let shard = cluster.manager.json(&["explain", "0"]).await;
        let waits = shard["waits_for"][0].as_str().unwrap_or_default().to_owned();
        (waits.starts_with("pinned: it would move to b for balance, but rebalancing is paused") && shard["executor"] == "a")
            .then_some(())
    })
    .await;
    assert!(b.holds().is_empty());
    cluster.at_rest(&["a", "b"]).await;
    assert_eq!(cluster.manager.json(&["rebalance", "status"]).await["paused"], false);
    assert_eq!(cluster.manager.metric("shard_manager_rebalancing_paused").await, 0.0);
    let printed = cluster.manager.child.printed();
    for said in ["an operator asks to pause rebalancing", "rebalancing is paused until", "rebalancing goes on: its pause is over"]
    {
        assert!(printed.iter().any(|line| line.contains(said)), "{said}");
    }
    drop((a, b));
    cluster.check_safety();
}

/// An executor dies, and one is drained: that has nothing to do with balance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_go_during_a_pause() {
    let mut cluster = Cluster::start(&[]).await;
    let (mut a, b) = (cluster.executor("a").await, cluster.executor("b").await);
    cluster.at_rest(&["a", "b"]).await;
    cluster.manager.json(&["rebalance", "pause", "--for", "10m"]).await;
    let c = cluster.executor("c").await;
    cluster.state_is("c", "active").await;
    a.child.kill();
    // Nobody takes from b what is its own, so c gets all that a had.
    cluster.at_rest(&["b", "c"]).await;
    let address = cluster.manager.grpc.to_string();
    assert!(run(&["drain", "b", "--wait", "--timeout", "15s", "--manager", &address]).await.status.success());
    cluster.at_rest(&["c"]).await;
    drop((a, b, c));
    cluster.check_safety();
}

/// What is refused is named, with the rule.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_has_no_sensible_length() {
    let cluster = Cluster::start(&[]).await;
    let address = cluster.manager.grpc.to_string();
    let mut admin = ShardManagerAdminClient::connect(format!("http://{address}")).await.unwrap();
    for (length, length_ms) in [("999ms", 999), ("8days", 691_200_000)] {
        let output = run(&["rebalance", "pause", "--for", length, "--manager", &address]).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("'{length}'")) && said.contains("a pause lasts 1s to 7days"), "{said}");
        // Who does not use the command is refused by the manager.
        let request = PauseRebalancingRequest { length_ms, ..PauseRebalancingRequest::default() };
        let said = admin.pause_rebalancing(request).await.unwrap_err().message().to_owned();
        assert!(said.contains(&format!("{length_ms} ms")) && said.contains("1 s to 7 days"), "{said}");
    }
    assert_eq!(cluster.manager.json(&["rebalance", "resume"]).await["paused"], false, "there was none");
}
