//! Shards that an operator moves, and what becomes of those who wait for it.

use std::process::Output;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Child, Cluster, PATIENCE, boot_ns, run, window};

const L: Duration = Duration::from_secs(2);

async fn ask(cluster: &Cluster, arguments: &[&str]) -> Output {
    run(&[arguments, &["--manager", &cluster.manager.grpc.to_string()]].concat()).await
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

/// Shards move where an operator wants them, and stay there; what would break the balance is refused, and changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_are_moved_by_hand_within_the_bounds() {
    let mut cluster = Cluster::start(&["rebalance_threshold=0.25"]).await;
    let (a, b) = (cluster.executor("a").await, cluster.executor("b").await);
    let before = cluster.at_rest(&["a", "b"]).await;
    // 32 each, which rest with 24 to 40.
    let ours: Vec<u32> = before.of("a").into_iter().collect();
    let mut arguments = vec!["move".to_owned()];
    arguments.extend(ours[..7].iter().map(ToString::to_string));
    arguments.push(format!("{0}-{0}", ours[7]));
    arguments.extend(["--to", "b", "--wait", "--reason", "hot", "--json"].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = ask(&cluster, &arguments).await;
    assert!(output.status.success(), "{}", said(&output));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["to"], &answer["done"], &answer["moving"]), (&"b".into(), &"moved".into(), &8.into()));
    assert_eq!((a.holds().len(), b.holds().len()), (24, 40), "they run where they should");
    assert_eq!(cluster.manager.metric("shard_manager_moves_total{cause=\"operator\"}").await, 8.0);
    let log = cluster.manager.child.printed().join("\n");
    let line = log.lines().find(|line| line.contains("an operator moves shards")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("hot"), "{line}");
    let came = log.lines().find(|line| line.contains("a move that an operator asked for")).unwrap_or_else(|| panic!("{log}"));
    assert!(came.contains("in force"), "{came}");

    let moved = boot_ns();
    let ninth = ours[8].to_string();
    let output = ask(&cluster, &["move", &ninth, "--to", "b"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let bound = "executor b would have 41 shards, and rests with 40 at the most";
    assert!(said(&output).contains(bound) && said(&output).contains("NOT_NOW"), "{}", said(&output));
    for (arguments, says) in [
        (["move", &ninth, "--to", "nobody"], "executor nobody is not registered"),
        (["move", "64", "--to", "b"], "shards: 64 is refused: shards are 0 to 63"),
    ] {
        let output = ask(&cluster, &arguments).await;
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains(says), "{}", said(&output));
    }
    let output = ask(&cluster, &["move", &ours[0].to_string(), "--to", "b"]).await;
    assert!(said(&output).contains("at executor b, or on its way there, already"), "{}", said(&output));
    window(L * 2).await;
    assert_eq!((a.changes_since(moved), b.changes_since(moved)), (vec![], vec![]), "nothing moves it back");
    drop((a, b));
    cluster.check_gaps(Duration::from_millis(700));
}

/// The executor that is to have them dies while they are on their way: they end where somebody lives, and whoever waits is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_whose_destination_dies_says_where_the_shards_are() {
    let mut cluster = Cluster::start(&["rebalance_threshold=0.5"]).await;
    let a = cluster.executor_with("a", &["--stop-delay", "1000"]).await;
    let mut b = cluster.executor("b").await;
    let before = cluster.at_rest(&["a", "b"]).await;
    let shard = before.of("a").into_iter().next().unwrap();
    let address = cluster.manager.grpc.to_string();
    let arguments = ["move", &shard.to_string(), "--to", "b", "--wait", "--timeout", "30s", "--manager", &address];
    let mut waiting = Child::spawn("move", &arguments.map(str::to_owned));
    waiting.announced("0 of 1 shards at executor b, 1 being stopped by").await;
    b.child.kill();
    assert_eq!(waiting.exit_code(Duration::from_secs(30)).await, Some(1));
    let printed = waiting.printed().join("\n");
    assert!(
        printed.contains(&format!(
            "not every shard is at executor b, which went away or did not start them: shard {shard} at executor a"
        )),
        "{printed}"
    );
    cluster.at_rest(&["a"]).await;
    drop((a, b));
    cluster.check_safety();
}

/// Ctrl-C ends the waiting and nothing else, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stops_waiting_for_a_drain_hears_that_it_goes_on() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    cluster.at_rest(&["a"]).await;
    let address = cluster.manager.grpc.to_string();
    let arguments = ["drain", "a", "--wait", "--manager", &address].map(str::to_owned);
    let mut waiting = Child::spawn("drain", &arguments);
    waiting.announced("executor a: 64 of 64 shards left").await;
    waiting.signal(Signal::INT);
    assert_eq!(waiting.exit_code(PATIENCE).await, Some(130));
    let printed = waiting.printed().join("\n");
    let last = "interrupted, executor a was not drained yet: executor a: 64 of 64 shards left; the drain stays in force until `shard-manager uncordon`";
    assert!(printed.contains(last), "{printed}");
    cluster.state_is("a", "draining").await;
    drop(a);
}
