//! Replicas that start, wait, and end before they ever led: they disturb nobody, and leave nothing behind.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use etcd_client::KeyValue;
use rustix::process::Signal;

use crate::harness::{Child, Manager, PATIENCE, Replicas, Store, TTL, free_address, poll_until, window};
use crate::lifecycle::handles_signals;
use crate::support::etcd::Etcd;
use crate::support::proxy::Proxy;

/// What a stop may take, whatever etcd does.
const STOP: Duration = Duration::from_secs(1);

fn spawn(store: &Store, settings: &[&str]) -> Child {
    let settings: Vec<String> = Replicas::settings(settings).into_iter().map(str::to_owned).collect();
    Manager::spawn(free_address(), free_address(), store, &settings)
}

/// The exit code, and everything that was said.
async fn ends(mut child: Child) -> (Option<i32>, String) {
    let code = child.exit_code(PATIENCE).await;
    (code, child.printed().join("\n"))
}

/// Case 10: in the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_told_to_stop() {
    let mut replicas = Replicas::start(3, &[]).await;
    let (code, took) = replicas.standbys[0].child.stop(PATIENCE).await;
    assert_eq!(code, Some(0));
    assert!(took < STOP, "it took {took:?}");
    let queue = replicas.queue().await;
    assert_eq!(queue.len(), 2, "its key is gone: {queue:?}");
    assert!(replicas.cluster.manager.is_ready().await);
    assert_eq!(replicas.standbys[1].status().await["role"], "standby");
}

/// Case 10: at any moment from its start on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_told_to_stop_while_it_starts() {
    let replicas = Replicas::start(1, &[]).await;
    for pause in [0, 5, 10, 20, 40, 80, 160] {
        let child = spawn(&replicas.store(), &[]);
        poll_until("it handles signals", PATIENCE, async || handles_signals(child.pid()).then_some(())).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let asked = Instant::now();
        child.signal(Signal::TERM);
        let (code, said) = ends(child).await;
        assert_eq!(code, Some(0), "after {pause} ms: {said}");
        assert!(asked.elapsed() < STOP, "after {pause} ms it took {:?}: {said}", asked.elapsed());
        assert_eq!(replicas.queue().await.len(), 1, "after {pause} ms its key stayed");
    }
    assert!(replicas.cluster.manager.is_ready().await);
}

/// Case 5: just when it was elected. It takes over nothing any more, and leaves nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_is_told_to_stop_while_it_takes_over() {
    let mut replicas = Replicas::start(1, &[]).await;
    let store = replicas.store();
    for pause in [0, 2, 5, 10, 20, 40] {
        let mut successor = Manager::stand(&store, &Replicas::settings(&[])).await;
        replicas.waits(&successor).await;
        replicas.cluster.manager.child.signal(Signal::TERM);
        poll_until("it is its turn", PATIENCE, async || (replicas.queue().await.len() == 1).then_some(())).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let (code, took) = successor.child.stop(PATIENCE).await;
        assert_eq!(code, Some(0), "after {pause} ms");
        assert!(took < STOP, "after {pause} ms it took {took:?}");
        assert_eq!(replicas.queue().await.len(), 0, "after {pause} ms its key stayed");
        assert_eq!(replicas.cluster.manager.child.exit_code(PATIENCE).await, Some(0));
        assert!(replicas.etcd.client().await.leases().await.unwrap().leases().is_empty(), "after {pause} ms a lease stayed");
        replicas.cluster.manager.restart().await;
    }
}

/// Case 11: it is alive and says so, counts, stops when told to, and else stands as soon as etcd is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_is_not_there() {
    let etcd = Etcd::single().await;
    let proxy = Proxy::to(etcd.members[0].client).await;
    proxy.black_hole();
    for endpoint in [format!("http://{}", free_address()), proxy.endpoint()] {
        let silent = endpoint == proxy.endpoint();
        let store = Store::Etcd { endpoint, prefix: "/test/".to_owned() };
        let mut stopped = Manager::stand(&store, &Replicas::settings(&[])).await;
        let stays = Manager::stand(&store, &Replicas::settings(&[])).await;
        for replica in [&stopped, &stays] {
            replica.metric_above("shard_manager_campaign_attempt_failures_total", 1.0).await;
            assert_eq!(replica.get("/healthz").await.0, 200);
            assert_eq!(replica.get("/readyz").await, (503, "{\"reason\":\"starting\"}".to_owned()));
            assert_eq!(replica.metric("shard_manager_is_leader").await, 0.0);
            assert!(std::net::TcpStream::connect(replica.grpc).is_err(), "its gRPC port is closed");
        }
        let (code, took) = stopped.child.stop(PATIENCE).await;
        assert_eq!(code, Some(0));
        assert!(took < STOP, "it took {took:?}");
        if silent {
            proxy.restore();
            poll_until("it leads", PATIENCE, async || stays.is_ready().await.then_some(())).await;
        }
    }
}

/// Case 10: in the queue, with an etcd that has gone silent since. Its key stays then, until its lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_told_to_stop_while_etcd_is_silent() {
    let replicas = Replicas::start(1, &[]).await;
    let proxy = Proxy::to(replicas.etcd.members[0].client).await;
    let store = Store::Etcd { endpoint: proxy.endpoint(), prefix: "/test/".to_owned() };
    let mut standby = Manager::stand(&store, &Replicas::settings(&[])).await;
    replicas.waits(&standby).await;
    proxy.black_hole();
    let (code, took) = standby.child.stop(PATIENCE).await;
    assert_eq!(code, Some(0));
    assert!(took < STOP, "it took {took:?}");
    poll_until("its key is gone", PATIENCE, async || (replicas.queue().await.len() == 1).then_some(())).await;
}

/// What makes a key this very one.
fn one(key: &KeyValue) -> (Vec<u8>, i64, i64) {
    (key.key().to_vec(), key.create_revision(), key.lease())
}

/// Case 1: neither its patience nor its lease ends; it leads by the very key that it waited with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_waits_for_longer_than_its_lease() {
    let mut replicas = Replicas::start(2, &["persistence.request_timeout=200ms"]).await;
    let waiting = replicas.keys().await.pop().unwrap();
    window(3 * TTL).await;
    assert_eq!(replicas.keys().await.pop().map(|key| one(&key)), Some(one(&waiting)));
    assert_eq!(replicas.standbys[0].metric("shard_manager_campaign_attempt_failures_total").await, 0.0);
    assert_eq!(replicas.cluster.manager.stop().await, Some(0));
    replicas.succession(PATIENCE).await;
    assert_eq!(replicas.keys().await.iter().map(one).collect::<Vec<_>>(), [one(&waiting)]);
}

/// Case 2: it queues again by itself, on a new lease, and is elected later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standbys_lease_is_revoked() {
    let mut replicas = Replicas::start(2, &[]).await;
    let first = replicas.keys().await.pop().unwrap();
    replicas.etcd.client().await.lease_revoke(first.lease()).await.unwrap();
    replicas.waits(&replicas.standbys[0]).await;
    assert_ne!(replicas.keys().await.pop().unwrap().lease(), first.lease());
    assert_eq!(replicas.standbys[0].metric("shard_manager_campaign_attempt_failures_total").await, 1.0);
    assert!(replicas.cluster.manager.is_ready().await);
    assert_eq!(replicas.cluster.manager.stop().await, Some(0));
    replicas.succession(PATIENCE).await;
}

/// Case 12: both numbers are named, nothing is written, and the leader goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_has_another_number_of_shards() {
    let mut replicas = Replicas::start(1, &[]).await;
    let rest = replicas.at_rest().await;
    let revision = replicas.etcd.revision().await;
    let (code, said) = ends(spawn(&replicas.store(), &["number_of_shards=65"])).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("number_of_shards is 65") && said.contains("has 64"), "{said}");
    assert_eq!(replicas.etcd.revision().await, revision, "it did not campaign");
    replicas.still(&rest).await;
}

/// Cases 12 and 26: it names the record before it would campaign, and leaves it as it is; the leader, which has read it when it was
/// good, goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_finds_bytes_that_are_no_state() {
    let mut replicas = Replicas::start(1, &[]).await;
    let rest = replicas.at_rest().await;
    let mut client = replicas.etcd.client().await;
    client.put("/test/state/shards/0", "no state", None).await.unwrap();
    let revision = replicas.etcd.revision().await;
    let (code, said) = ends(spawn(&replicas.store(), &[])).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("shards/0"), "{said}");
    assert_eq!(replicas.etcd.revision().await, revision, "it did not campaign");
    replicas.still(&rest).await;
}

/// Case 5: it wins, cannot serve, and gives up what it won.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_winners_port_is_taken() {
    let etcd = Etcd::single().await;
    let store = Store::Etcd { endpoint: etcd.endpoints().join(","), prefix: "/test/".to_owned() };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (code, said) = ends(Manager::spawn(address, free_address(), &store, &[])).await;
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains(&format!("cannot listen on {address} for gRPC")), "{said}");
    assert!(etcd.keys("/test/leader/").await.is_empty(), "its key is gone");
    assert!(etcd.client().await.leases().await.unwrap().leases().is_empty(), "and its lease");
}
