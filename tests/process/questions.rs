//! What operators ask: why a shard is where it is, and what would move. The answers are held against what then really happens.

use std::time::Duration;

use serde_json::Value;

use crate::harness::{Cluster, PATIENCE, Table, poll_until, run};

/// Texts of a JSON array.
fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// Asks about a shard until the answer is what is looked for.
async fn explain_until(cluster: &Cluster, shard: u32, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let number = shard.to_string();
    poll_until(what, PATIENCE, async || Some(cluster.manager.json(&["explain", &number]).await).filter(|it| is(it))).await
}

fn any_begins(value: &Value, text: &str) -> bool {
    texts(value).iter().any(|it| it.starts_with(text))
}

/// Nobody is there: that is what is said, to people and to programs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_nobody_owns_is_explained() {
    let cluster = Cluster::start(&[]).await;
    let shard = explain_until(&cluster, 7, "it has settled", |it| any_begins(&it["waits_for"], "no executor")).await;
    assert_eq!((&shard["state"], &shard["executor"]), (&"unassigned".into(), &Value::Null));
    assert_eq!(texts(&shard["history"]), ["nobody has ever owned it"]);
    assert_eq!(texts(&shard["waits_for"]), ["no executor is registered: start one"]);

    let address = cluster.manager.grpc.to_string();
    let output = run(&["explain", "7", "--manager", &address]).await;
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("\nwaits for  no executor is registered: start one"), "{printed}");
    let output = run(&["explain", "64", "--manager", &address]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("64 is refused: there are 64 shards, counted from 0"), "{said}");
}

/// Its owner is killed: while the lease runs, and after somebody else got it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_whose_owner_was_killed_is_explained() {
    let mut cluster = Cluster::start(&["executors.lease_ttl=4s"]).await;
    let (mut a, b) = (cluster.executor("a").await, cluster.executor("b").await);
    let table = cluster.at_rest(&["a", "b"]).await;
    let shard = *table.of("a").first().unwrap();
    let before = explain_until(&cluster, shard, "it is served", |it| texts(&it["waits_for"]).is_empty()).await;
    assert_eq!(before["executor"], "a");
    assert!(before["since_unix_ms"].is_u64());
    assert!(any_begins(&before["history"], "granted to a at epoch "), "{before}");

    a.child.kill();
    let silent =
        explain_until(&cluster, shard, "a is missed", |it| any_begins(&it["waits_for"], "a has not renewed its lease for "))
            .await;
    assert_eq!((&silent["state"], &silent["executor"]), (&"held".into(), &"a".into()));
    let after =
        explain_until(&cluster, shard, "b has it", |it| it["executor"] == "b" && texts(&it["waits_for"]).is_empty()).await;
    assert!(texts(&after["history"])[0].ends_with(" ago, after a, whose lease ended"), "{after}");
    assert!(after["epoch"].as_u64() > before["epoch"].as_u64());
    drop((a, b));
}

/// Its owner is drained, and takes its time to stop it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_stopped_slowly_is_explained() {
    let mut cluster = Cluster::start(&["executors.lease_ttl=20s"]).await;
    let (x, b) = (cluster.executor_with("x", &["--stop-delay", "3000"]).await, cluster.executor("b").await);
    let table = cluster.at_rest(&["x", "b"]).await;
    let shard = *table.of("x").first().unwrap();
    let address = cluster.manager.grpc.to_string();
    assert!(run(&["drain", "x", "--manager", &address]).await.status.success());
    let stopping = explain_until(&cluster, shard, "x is told to stop it", |it| it["state"] == "releasing").await;
    assert_eq!((&stopping["executor"], &stopping["destination"]), (&"x".into(), &"b".into()));
    assert_eq!(texts(&stopping["history"])[1], "x was told to stop it: it is drained, or it leaves");
    assert!(any_begins(&stopping["waits_for"], "x to stop it: confirmed by its answer, or in "), "{stopping}");
    let after =
        explain_until(&cluster, shard, "b has it", |it| it["executor"] == "b" && texts(&it["waits_for"]).is_empty()).await;
    assert!(texts(&after["history"])[0].ends_with(", after x, which was drained or left"), "{after}");
    drop((x, b));
}

/// Owners by shard, after what a plan says would move.
fn after(table: &Table, plan: &Value) -> Vec<Option<String>> {
    let mut owners: Vec<Option<String>> = table.shards.iter().map(|it| it.executor.clone()).collect();
    for step in plan["moves"].as_array().unwrap() {
        let shard = usize::try_from(step["shard"].as_u64().unwrap()).unwrap();
        assert_eq!(step["from"].as_str().map(str::to_owned), owners[shard]);
        owners[shard] = Some(step["to"].as_str().unwrap().to_owned());
    }
    owners
}

fn owners(table: &Table) -> Vec<Option<String>> {
    table.shards.iter().map(|it| it.executor.clone()).collect()
}

/// What was planned is what happens, when an executor joins and when one dies; and nothing happens because it was planned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_come_true() {
    let mut cluster = Cluster::start(&[]).await;
    let (mut a, b) = (cluster.executor("a").await, cluster.executor("b").await);
    let table = cluster.at_rest(&["a", "b"]).await;
    let plan = cluster.manager.json(&["plan", "--join", "c", "--shards"]).await;
    let expected = after(&table, &plan);
    assert_eq!((&plan["placed"], &plan["evacuated"]), (&0.into(), &0.into()));
    let unchanged = cluster.manager.json(&["plan", "--join", "d=3", "--leave", "a", "--drain", "b"]).await;
    let told = |id: &str| unchanged["executors"].as_array().unwrap().iter().find(|it| it["id"] == id).unwrap()["after"].clone();
    assert_eq!([told("a"), told("b"), told("d")], [0, 0, 64].map(Value::from));
    assert_eq!(cluster.table().await, table, "same owners, same epochs, same revision");

    let c = cluster.executor("c").await;
    let table = cluster.at_rest(&["a", "b", "c"]).await;
    assert_eq!(owners(&table), expected);
    assert_eq!(cluster.manager.json(&["plan"]).await["moves"], Value::Array(Vec::new()), "nothing is left to do");

    let plan = cluster.manager.json(&["plan", "--leave", "a"]).await;
    let expected = after(&table, &plan);
    assert_eq!(plan["evacuated"], table.of("a").len());
    a.child.kill();
    let table = cluster.at_rest(&["b", "c"]).await;
    assert_eq!(owners(&table), expected);
    drop((a, b, c));
}

/// A question that makes no sense is refused, by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_plans_are_refused() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    cluster.at_rest_within(&["a"], Duration::from_secs(10)).await;
    let address = cluster.manager.grpc.to_string();
    for (arguments, code, says) in [
        (&["--leave", "nobody"][..], 1, "executor nobody is not registered"),
        (&["--drain", "nobody"], 1, "executor nobody is not registered"),
        (&["--join", "a"], 1, "executor a is known already"),
        (&["--leave", "a", "--drain", "a"], 1, "drain: \"a\" is refused: an executor stands in one of join, leave and drain"),
        (&["--join", "d=0"], 2, "the weight of d must be 1 to 1000"),
    ] {
        let output = run(&[&["plan", "--manager", &address], arguments].concat()).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(says), "{arguments:?}: {said}");
    }
    drop(a);
}
