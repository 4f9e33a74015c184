//! Executors go in order: drained by an operator, or by their own wish.

use std::time::Duration;

use crate::harness::{Cluster, PATIENCE, boot_ns, poll_until, run, stays, window};

const L: Duration = Duration::from_secs(2);

async fn drain(cluster: &Cluster, id: &str) {
    let output = run(&["drain", id, "--wait", "--timeout", "15s", "--manager", &cluster.manager.grpc.to_string()]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A drain is a standing condition of the id (case 51): it outlives the manager and the executor, and ends with `uncordon`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_executor_and_the_manager_restart() {
    let mut cluster = Cluster::start(&[]).await;
    let (a, b) = (cluster.executor("a").await, cluster.executor("b").await);
    let mut x = cluster.executor("x").await;
    cluster.at_rest(&["a", "b", "x"]).await;
    drain(&cluster, "x").await;
    assert!(x.holds().is_empty());
    assert_eq!(cluster.state_of("x").await.as_deref(), Some("drained"));
    let drained = boot_ns();

    assert_eq!(cluster.manager.stop().await, Some(0));
    cluster.manager.restart().await;
    cluster.state_is("x", "drained").await;
    let c = cluster.executor("c").await;
    cluster.at_rest(&["a", "b", "c"]).await;
    x.child.kill();
    let x = cluster.executor("x").await;
    cluster.state_is("x", "drained").await;
    window(L).await;
    assert_eq!(x.changes_since(drained), [], "nothing came back");

    // Its process may also be away for long; the wish stays with the id.
    drop(x);
    poll_until("it lapsed", PATIENCE, async || (cluster.state_of("x").await.as_deref() == Some("lapsed")).then_some(())).await;
    let x = cluster.executor("x").await;
    cluster.state_is("x", "drained").await;
    window(L / 2).await;
    assert_eq!(x.changes_since(drained), [], "nothing came back");

    let address = cluster.manager.grpc.to_string();
    assert!(run(&["uncordon", "x", "--manager", &address]).await.status.success());
    cluster.at_rest(&["a", "b", "c", "x"]).await;
    drop((a, b, c));
    cluster.check_gaps(Duration::from_secs(1));
}

/// A cordoned executor keeps what it has and gets nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_is_cordoned() {
    let mut cluster = Cluster::start(&[]).await;
    let (a, mut b, x) = (cluster.executor("a").await, cluster.executor("b").await, cluster.executor("x").await);
    let before = cluster.at_rest(&["a", "b", "x"]).await;
    let address = cluster.manager.grpc.to_string();
    assert!(run(&["cordon", "x", "--manager", &address]).await.status.success());
    assert_eq!(cluster.state_of("x").await.as_deref(), Some("cordoned"));
    let cordoned = boot_ns();
    b.child.kill();
    poll_until("the shards of b are at a", PATIENCE, async || (a.holds().len() == 64 - before.of("x").len()).then_some(())).await;
    assert_eq!(x.changes_since(cordoned), []);
    assert!(run(&["uncordon", "x", "--manager", &address]).await.status.success());
    cluster.at_rest(&["a", "x"]).await;
    cluster.check_safety();
}

/// Nobody can take the shards: a drain waits, takes nothing away, and goes on once somebody comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_executor_is_drained() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    let before = cluster.at_rest(&["a"]).await;
    let address = cluster.manager.grpc.to_string();
    assert!(run(&["drain", "a", "--manager", &address]).await.status.success());
    cluster.state_is("a", "draining").await;
    stays("every shard stays owned", L, async || cluster.table().await.shards == before.shards).await;
    let b = cluster.executor("b").await;
    cluster.at_rest(&["b"]).await;
    cluster.state_is("a", "drained").await;
    drop((a, b));
    cluster.check_gaps(Duration::from_millis(700));
}

/// Whoever waits for such a drain is told why nothing happens, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_cannot_go_on_says_why() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    cluster.at_rest(&["a"]).await;
    let output = run(&["drain", "a", "--wait", "--timeout", "12s", "--manager", &cluster.manager.grpc.to_string()]).await;
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("executor a: 64 of 64 shards left\n").count(), 1, "{said}");
    let mut notes: Vec<&str> = said.lines().filter(|line| line.starts_with("the manager says: ")).collect();
    assert!(notes.iter().any(|note| note.contains("nobody can take them")), "{said}");
    let all = notes.len();
    notes.sort_unstable();
    notes.dedup();
    assert_eq!(notes.len(), all, "each once: {said}");
    assert!(said.contains("executor a was not drained within 12s: executor a: 64 of 64 shards left"), "{said}");
    drop(a);
}

/// SIGTERM: an executor leaves. Its shards move away before it ends, each without an owner only for as long as a handoff takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_is_asked_to_end() {
    let mut cluster = Cluster::start(&["number_of_shards=256"]).await;
    let (a, b) = (cluster.executor("a").await, cluster.executor("b").await);
    let mut x = cluster.executor_with("x", &["--stop-delay", "200"]).await;
    cluster.at_rest(&["a", "b", "x"]).await;
    let (code, took) = x.child.stop(PATIENCE).await;
    assert_eq!(code, Some(0));
    assert!(took < L + Duration::from_secs(1), "it took {took:?}");
    assert!(x.holds().is_empty());
    assert_eq!(cluster.state_of("x").await, None, "it is not known any more");
    cluster.at_rest_within(&["a", "b"], Duration::from_millis(500)).await;
    drop((a, b));
    cluster.check_gaps(Duration::from_millis(700));
}

/// The last one out has nobody to hand over to: it ends after its time-out, and says so to the manager.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_executor_is_asked_to_end() {
    let mut cluster = Cluster::start(&[]).await;
    let mut a = cluster.executor_with("a", &["--leave-timeout", "500ms"]).await;
    cluster.at_rest(&["a"]).await;
    let (code, took) = a.child.stop(PATIENCE).await;
    assert_eq!(code, Some(0));
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(2), "it took {took:?}");
    assert!(cluster.executors().await.is_empty());
    // It deregistered, so nobody has to wait for its lease.
    let b = cluster.executor("b").await;
    cluster.at_rest_within(&["b"], Duration::from_millis(1300)).await;
    drop(b);
    cluster.check_safety();
}
