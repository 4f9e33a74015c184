//! Executors that an operator removes, and admits again.

use std::process::Output;
use std::time::Duration;

use crate::harness::{Cluster, PATIENCE, boot_ns, poll_until, run, stays, window};

const L: Duration = Duration::from_secs(2);

async fn ask(cluster: &Cluster, arguments: &[&str]) -> Output {
    run(&[arguments, &["--manager", &cluster.manager.grpc.to_string()]].concat()).await
}

async fn done(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = ask(cluster, arguments).await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn refused(cluster: &Cluster, arguments: &[&str], says: &str) {
    let output = ask(cluster, arguments).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    assert!(said.contains(says), "{arguments:?} does not say {says:?}: {said}");
}

/// A removal is a standing condition of the id. Its process holds nothing and stays, and comes back by itself once it is admitted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_is_removed_and_admitted_again() {
    let mut cluster = Cluster::start(&[]).await;
    let (a, b) = (cluster.executor("a").await, cluster.executor("b").await);
    let mut x = cluster.executor_with("x", &["--stop-delay", "800"]).await;
    cluster.at_rest(&["a", "b", "x"]).await;
    let said = done(&cluster, &["remove", "x", "--wait", "--timeout", "15s", "--reason", "old machine"]).await;
    assert!(said.contains("shards left, ") && said.contains("of them being stopped by it"), "{said}");
    let empty = boot_ns();
    assert!(x.holds().is_empty());
    assert_eq!(cluster.state_of("x").await.as_deref(), Some("removed"));
    let log = cluster.manager.child.printed().join("\n");
    let line = |text: &str| log.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{log}"));
    let asked = line("an operator removes an executor");
    assert!(asked.contains("old machine") && asked.contains("asked_by"), "{asked}");
    let came = line("a removal that an operator asked for");
    assert!(came.contains("in force") && came.contains("asked_by"), "{came}");
    cluster.at_rest(&["a", "b"]).await;
    assert_eq!(cluster.manager.json(&["status"]).await["executors"], 2, "who is removed is no executor any more");

    for verb in ["uncordon", "cordon", "drain"] {
        refused(&cluster, &[verb, "x"], "executor x was removed: `shard-manager admit x` takes that back (NOT_NOW)").await;
    }
    refused(&cluster, &["admit", "a"], "executor a is not removed").await;
    // Neither another process nor another leader lets it come back.
    let other = cluster.executor("x").await;
    poll_until("both hear that they are removed", PATIENCE, async || {
        let heard = |executor: &crate::harness::Executor| {
            executor.child.printed().iter().any(|line| line.contains("removed: it stops every shard"))
        };
        (heard(&x) && heard(&other)).then_some(())
    })
    .await;
    drop(other);
    assert_eq!(cluster.manager.stop().await, Some(0));
    cluster.manager.restart().await;
    window(L * 2).await;
    assert_eq!(x.changes_since(empty), [], "nothing came back");
    assert_eq!(cluster.state_of("x").await.as_deref(), Some("removed"));
    assert!(x.child.is_running());

    done(&cluster, &["admit", "x"]).await;
    cluster.at_rest(&["a", "b", "x"]).await;
    drop((a, b, x));
    cluster.check_gaps(Duration::from_secs(2));
}

/// Whoever waits for a removal hears that it was taken back, and not that it is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_is_waited_for_and_taken_back() {
    let mut cluster = Cluster::start(&[]).await;
    let x = cluster.executor("x").await;
    cluster.at_rest(&["x"]).await;
    let waits = ask(&cluster, &["remove", "x", "--wait", "--timeout", "30s"]);
    let takes_back = async {
        cluster.state_is("x", "removing").await;
        done(&cluster, &["admit", "x"]).await;
    };
    let (output, ()) = tokio::join!(waits, takes_back);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.ends_with("error: executor x was not removed: the removal is not in force any more, it is active\n"), "{said}");
    drop(x);
}

/// Nobody can take the shards: they stay served, and whoever waits hears why. The removal goes on once somebody comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_executor_is_removed() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    let before = cluster.at_rest(&["a"]).await;
    let output = ask(&cluster, &["remove", "a", "--wait", "--timeout", "6s"]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the manager says: 64 shards stay on 1 leaving executor because nobody can take them"), "{said}");
    let last =
        "executor a was not removed within 6s: executor a: 64 of 64 shards left; the removal goes on until `shard-manager admit`";
    assert!(said.contains(last), "{said}");
    assert_eq!(cluster.state_of("a").await.as_deref(), Some("removing"));
    stays("every shard stays owned", L, async || cluster.table().await.shards == before.shards).await;
    let b = cluster.executor("b").await;
    cluster.at_rest(&["b"]).await;
    cluster.state_is("a", "removed").await;
    drop((a, b));
    cluster.check_gaps(Duration::from_secs(1));
}

/// An operator's word frees the shards of a dead process long before its lease ends (P3). Of one that was just heard it is not taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_executor_is_removed_long_before_its_lease_ends() {
    let mut cluster = Cluster::start(&["executors.lease_ttl=16s"]).await;
    let (a, mut x) = (cluster.executor("a").await, cluster.executor("x").await);
    cluster.at_rest(&["a", "x"]).await;
    refused(&cluster, &["remove", "x", "--dead"], "so it is not dead").await;
    assert_eq!(x.holds().len(), 32, "and nothing has changed");

    x.bury();
    let leased_until = x.lease_until();
    poll_until("the manager believes it", PATIENCE, async || {
        ask(&cluster, &["remove", "x", "--dead", "--reason", "it burnt"]).await.status.success().then_some(())
    })
    .await;
    cluster.at_rest_within(&["a"], Duration::from_secs(5)).await;
    assert!(boot_ns() < leased_until, "its lease is not over");
    let log = cluster.manager.child.printed().join("\n");
    let said = log.lines().find(|line| line.contains("its shards are free at once")).unwrap_or_else(|| panic!("{log}"));
    assert!(said.contains("WARN") && said.contains('x'), "{said}");
    let asked = log.lines().rfind(|line| line.contains("an operator says that an executor's process is gone"));
    let asked = asked.unwrap_or_else(|| panic!("{log}"));
    assert!(asked.contains("WARN") && asked.contains("it burnt"), "{asked}");

    let x = cluster.executor("x").await;
    poll_until("it hears that it is removed", PATIENCE, async || x.child.said("removed: it stops every shard")).await;
    assert!(x.holds().is_empty());
    done(&cluster, &["admit", "x"]).await;
    cluster.at_rest(&["a", "x"]).await;
    drop((a, x));
    cluster.check_safety();
}
