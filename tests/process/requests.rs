//! Requests that break a rule, and bytes that are no request. Each is refused with the value and the rule, and nothing changes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use shard_manager::rpc::renew_lease_request::Claim;
use shard_manager::rpc::shard_executor_client::ShardExecutorClient;
use shard_manager::rpc::{
    self, ApplyAssignmentRequest, ChangeExecutorRequest, DeregisterRequest, GetRoutingTableRequest, Holdings, RegisterRequest,
    RenewLeaseRequest, Version, reason, reason_of,
};
use tonic::{Code, Status};

use crate::harness::{Cluster, Fake, PATIENCE, poll_until};

/// Holds a refusal to the rules: its code, its reason, and every one of these words in its text.
#[track_caller]
fn is_refused<T: std::fmt::Debug>(answer: Result<T, Status>, words: &[&str]) {
    let status = answer.expect_err("it must be refused");
    assert_eq!(
        (status.code(), reason_of(&status).as_deref()),
        (Code::InvalidArgument, Some(reason::INVALID_ARGUMENT)),
        "{status}"
    );
    for word in words {
        assert!(status.message().contains(word), "{word:?} in {:?}", status.message());
    }
}

fn version(term: u64, revision: u64) -> Option<Version> {
    Some(Version { term, revision })
}

fn held(shards: &[u32], epochs: &[u64]) -> Holdings {
    Holdings { shards: shards.to_vec(), epochs: epochs.to_vec() }
}

const TOO_LARGE: u64 = (1 << 62) + 1;

/// Ids, clusters and versions that no call takes, with the words that must be in the refusal.
const BAD_IDS: [(&str, &str); 6] =
    [("", "\"\""), ("a b", "\"a b\""), ("a/b", "\"a/b\""), ("ä", "\"ä\""), ("a\0", "a\\0"), ("\u{202e}", "202e")];
const BAD_CLUSTERS: [(&str, &str); 3] = [("", "\"\""), ("x", "\"x\""), ("00000000-0000-0000-0000-00000000000g", "000g")];
const BAD_VERSIONS: [(u64, u64); 4] = [(u64::MAX, 1), (TOO_LARGE, 1), (1, u64::MAX), (1, TOO_LARGE)];

/// Sets of shards that are none.
fn bad_holdings() -> Vec<(Holdings, &'static str)> {
    vec![
        (held(&[1, 0], &[1, 1]), "shard 0 follows shard 1"),
        (held(&[1, 1], &[1, 1]), "shard 1 follows shard 1"),
        (held(&[64], &[1]), "shard 64 does not exist: there are 64"),
        (held(&[u32::MAX], &[1]), "shard 4294967295"),
        (held(&[1], &[0]), "epoch 0 of shard 1"),
        (held(&[1], &[u64::MAX]), "epoch 18446744073709551615 of shard 1"),
        (held(&[1], &[TOO_LARGE]), "epoch 4611686018427387905"),
        (held(&[1, 2], &[1]), "2 shards but 1 epochs"),
        (held(&[], &[1]), "0 shards but 1 epochs"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registration_breaks_a_rule() {
    let cluster = Cluster::start(&[]).await;
    let before = cluster.table().await;
    let good = RegisterRequest { executor_id: "x".into(), incarnation: 1, endpoint: "h:1".into(), ..RegisterRequest::default() };
    let mut client = cluster.manager.client();
    let long = "i".repeat(254);
    for (executor_id, word) in BAD_IDS.into_iter().chain([(long.as_str(), "1 to 253")]) {
        is_refused(
            client.register(RegisterRequest { executor_id: executor_id.into(), ..good.clone() }).await,
            &["executor_id", word, "1 to 253"],
        );
    }
    is_refused(client.register(RegisterRequest { incarnation: 0, ..good.clone() }).await, &["incarnation", "0 is refused"]);
    for (endpoint, rule) in [
        ("", "host:port"),
        ("nowhere", "a port"),
        ("h:0", "a port"),
        ("h:65536", "port"),
        ("https://h:1", "must be http"),
        ("http://user:secret@h:1", "user"),
        ("h:1/path", "no path"),
        ("0.0.0.0:1", "every interface"),
        ("[::]:1", "every interface"),
    ] {
        is_refused(
            client.register(RegisterRequest { endpoint: endpoint.into(), ..good.clone() }).await,
            &["endpoint", &format!("{endpoint:?}"), rule],
        );
    }
    let endless = format!("{}:1", "h".repeat(100_000));
    is_refused(client.register(RegisterRequest { endpoint: endless, ..good.clone() }).await, &["endpoint", "100002 bytes"]);
    for weight in [1001, u32::MAX] {
        is_refused(
            client.register(RegisterRequest { weight, ..good.clone() }).await,
            &["weight", &weight.to_string(), "1 to 1000"],
        );
    }
    for (cluster_id, word) in &BAD_CLUSTERS[1..] {
        is_refused(
            client.register(RegisterRequest { cluster_id: (*cluster_id).into(), ..good.clone() }).await,
            &["cluster_id", word, "UUID"],
        );
    }
    for (term, revision) in BAD_VERSIONS {
        let request = RegisterRequest { cluster_id: before.cluster_id.clone(), mark: version(term, revision), ..good.clone() };
        is_refused(client.register(request).await, &["mark", &format!("{term}/{revision}"), "4611686018427387904"]);
    }
    assert_eq!(cluster.table().await, before, "nothing changed");
    assert!(cluster.executors().await.is_empty());
    client.register(good).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_breaks_a_rule() {
    let cluster = Cluster::start(&["executors.settle_time=0s", "executors.lease_ttl=20s"]).await;
    let mut fake = Fake::new(&cluster.manager, "x", 1);
    fake.register().await.unwrap();
    poll_until("it holds everything", PATIENCE, async || {
        fake.renew().await.unwrap();
        (fake.assignment.shards.len() == 64).then_some(())
    })
    .await;
    fake.renew().await.unwrap();
    let before = cluster.table().await;
    let good = fake.renewal(fake.assignment.clone());
    let mut client = cluster.manager.client();
    for (executor_id, word) in BAD_IDS {
        is_refused(
            client.renew_lease(RenewLeaseRequest { executor_id: executor_id.into(), ..good.clone() }).await,
            &["executor_id", word],
        );
    }
    is_refused(client.renew_lease(RenewLeaseRequest { incarnation: 0, ..good.clone() }).await, &["incarnation", "0 is refused"]);
    for (cluster_id, word) in BAD_CLUSTERS {
        is_refused(
            client.renew_lease(RenewLeaseRequest { cluster_id: cluster_id.into(), ..good.clone() }).await,
            &["cluster_id", word, "UUID"],
        );
    }
    for (term, revision) in BAD_VERSIONS {
        is_refused(
            client.renew_lease(RenewLeaseRequest { mark: version(term, revision), ..good.clone() }).await,
            &["mark", &format!("{term}/{revision}")],
        );
    }
    is_refused(client.renew_lease(RenewLeaseRequest { claim: None, ..good.clone() }).await, &["claim"]);
    for (holdings, words) in bad_holdings() {
        let claim = Some(Claim::Held(holdings.clone()));
        is_refused(client.renew_lease(RenewLeaseRequest { claim, ..good.clone() }).await, &["held", words]);
        let storage_epochs = Some(holdings);
        is_refused(client.renew_lease(RenewLeaseRequest { storage_epochs, ..good.clone() }).await, &["storage_epochs", words]);
    }
    // Well formed, and refused for what it says.
    let foreign = "00000000-0000-0000-0000-000000000001".to_owned();
    let refused = client.renew_lease(RenewLeaseRequest { cluster_id: foreign.clone(), ..good.clone() }).await.unwrap_err();
    assert_eq!(reason_of(&refused).as_deref(), Some(reason::WRONG_CLUSTER));
    assert!(refused.message().contains(&foreign) && refused.message().contains(&before.cluster_id), "{refused}");
    let refused = client.renew_lease(RenewLeaseRequest { executor_id: "stranger".into(), ..good.clone() }).await.unwrap_err();
    assert_eq!(reason_of(&refused).as_deref(), Some(reason::UNKNOWN_EXECUTOR));
    assert_eq!(cluster.table().await, before, "nothing changed");
    assert!(client.renew_lease(good).await.unwrap().into_inner().assignment.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_call_breaks_a_rule() {
    let cluster = Cluster::start(&[]).await;
    let before = cluster.table().await;
    let good = DeregisterRequest { executor_id: "x".into(), incarnation: 1, cluster_id: before.cluster_id.clone() };
    let mut client = cluster.manager.client();
    let mut admin = cluster.manager.admin();
    for (executor_id, word) in BAD_IDS {
        is_refused(
            client.deregister(DeregisterRequest { executor_id: executor_id.into(), ..good.clone() }).await,
            &["executor_id", word],
        );
        let wish = || ChangeExecutorRequest { executor_id: executor_id.into(), ..ChangeExecutorRequest::default() };
        is_refused(admin.drain_executor(wish()).await, &["executor_id", word]);
        is_refused(admin.cordon_executor(wish()).await, &["executor_id", word]);
        is_refused(admin.uncordon_executor(wish()).await, &["executor_id", word]);
    }
    is_refused(client.deregister(DeregisterRequest { incarnation: 0, ..good.clone() }).await, &["incarnation"]);
    for (cluster_id, word) in BAD_CLUSTERS {
        is_refused(
            client.deregister(DeregisterRequest { cluster_id: cluster_id.into(), ..good.clone() }).await,
            &["cluster_id", word],
        );
    }
    for (term, revision) in BAD_VERSIONS {
        let request = GetRoutingTableRequest { cluster_id: before.cluster_id.clone(), known: version(term, revision) };
        is_refused(client.get_routing_table(request).await, &["known", &format!("{term}/{revision}")]);
    }
    let request = GetRoutingTableRequest { cluster_id: String::new(), known: version(5, 6) };
    is_refused(client.get_routing_table(request).await, &["cluster_id", "5/6"]);
    let request = GetRoutingTableRequest { cluster_id: "x".into(), known: None };
    is_refused(client.get_routing_table(request).await, &["cluster_id", "\"x\"", "UUID"]);
    let refused =
        admin.drain_executor(ChangeExecutorRequest { executor_id: "y".into(), ..ChangeExecutorRequest::default() }).await;
    assert_eq!(reason_of(&refused.unwrap_err()).as_deref(), Some(reason::UNKNOWN_EXECUTOR));
    assert_eq!(cluster.table().await, before, "nothing changed");
}

/// What a stranger, or a broken manager, says to an executor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_breaks_a_rule() {
    let mut cluster = Cluster::start(&[]).await;
    let x = cluster.executor("x").await;
    let table = cluster.at_rest(&["x"]).await;
    poll_until("x runs everything", PATIENCE, async || (x.holds().len() == 64).then_some(())).await;
    let (held_before, now) = (x.holds(), crate::harness::boot_ns());
    let good = ApplyAssignmentRequest {
        cluster_id: table.cluster_id.clone(),
        version: version(table.term + 1, table.revision),
        executor_id: "x".into(),
        incarnation: x.incarnation(),
        assignment: Some(Holdings::default()),
        wait_ms: 0,
    };
    let mut client = ShardExecutorClient::connect(format!("http://{}", x.address)).await.unwrap();
    for (holdings, words) in bad_holdings() {
        let request = ApplyAssignmentRequest { assignment: Some(holdings), ..good.clone() };
        is_refused(client.apply_assignment(request).await, &[words]);
    }
    for (term, revision) in BAD_VERSIONS {
        let request = ApplyAssignmentRequest { version: version(term, revision), ..good.clone() };
        is_refused(client.apply_assignment(request).await, &[]);
    }
    is_refused(client.apply_assignment(ApplyAssignmentRequest { version: None, ..good.clone() }).await, &["version"]);
    is_refused(client.apply_assignment(ApplyAssignmentRequest { assignment: None, ..good.clone() }).await, &["assignment"]);
    for (request, expected) in [
        (ApplyAssignmentRequest { incarnation: good.incarnation ^ 1, ..good.clone() }, reason::WRONG_INCARNATION),
        (ApplyAssignmentRequest { executor_id: "y".into(), ..good.clone() }, reason::WRONG_INCARNATION),
        (
            ApplyAssignmentRequest { cluster_id: "00000000-0000-0000-0000-000000000001".into(), ..good.clone() },
            reason::WRONG_CLUSTER,
        ),
        (ApplyAssignmentRequest { version: version(table.term - 1, table.revision), ..good.clone() }, reason::STALE_TERM),
        (ApplyAssignmentRequest { version: version(table.term, table.revision - 1), ..good.clone() }, reason::STALE_TERM),
    ] {
        let refused = client.apply_assignment(request).await.unwrap_err();
        assert_eq!(reason_of(&refused).as_deref(), Some(expected), "{refused}");
    }
    assert_eq!((x.holds(), x.changes_since(now)), (held_before, vec![]));
    cluster.check_safety();
}

/// Bytes that are no protocol, too much of it, and connections that are opened and left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_arrives() {
    let mut cluster = Cluster::start(&[]).await;
    let x = cluster.executor("x").await;
    let before = cluster.at_rest(&["x"]).await;
    let ports = [cluster.manager.grpc, cluster.manager.http, x.address];
    let mut left_open = Vec::new();
    for port in ports {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let endless = [preface.as_slice(), &[0xff; 4096]].concat();
        let long = [b"GET /".as_slice(), &[b'a'; 200_000], b" HTTP/1.1\r\n\r\n"].concat();
        for bytes in
            [b"\0\0\0".as_slice(), b"\x16\x03\x01\x02\0", b"GET / HTTP/9.9\r\n\r\n", preface, &endless, &long, &[0x80; 70_000]]
        {
            let mut stream = TcpStream::connect(port).unwrap();
            // It may hang up in the middle.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let _ = stream.read(&mut [0; 100]);
        }
        for _ in 0..50 {
            left_open.push(TcpStream::connect(port).unwrap());
        }
    }
    let mut fake = Fake::new(&cluster.manager, "y", 1);
    // A message that is longer than anything that is taken.
    let huge = RegisterRequest { executor_id: "i".repeat(rpc::MAX_MESSAGE_BYTES), ..fake.registration() };
    let refused = cluster.manager.client().register(huge).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert_eq!(cluster.table().await, before);
    let joins = cluster.manager.metric("shard_manager_executor_joins_total").await;
    fake.register().await.unwrap();
    assert_eq!(cluster.manager.metric("shard_manager_executor_joins_total").await, joins + 1.0);
    assert_eq!(cluster.manager.metric("shard_manager_lease_lapses_total").await, 0.0);
    drop(left_open);
    cluster.check_safety();
}
