//! A leader that sleeps, is cut off from etcd, or is deposed: it stops by itself, its successor finds everything as it was, and
//! nothing that the old one does afterwards counts.

use std::time::{Duration, Instant};

use crate::harness::{Fake, Manager, PATIENCE, Replicas, TTL, poll_until, stays};

/// What a machine with two busy cores may be late by.
const SLACK: Duration = Duration::from_millis(1500);

/// The default with a TTL of 2 s: what the attempt to give the leadership up may take where etcd does not answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Cases 19 and 61: sleeps until another leads, with a renewal waiting in its socket when it wakes.
async fn sleeps_past_its_ttl(replicas: &mut Replicas) -> Manager {
    let mut fake = Fake::new(&replicas.cluster.manager, "fake", 1);
    fake.register().await.unwrap();
    fake.renew().await.unwrap();
    replicas.cluster.manager.child.freeze().await;
    let old = replicas.succession(TTL + SLACK).await;
    let written = replicas.written().await;
    // On the connection that the old one had open before it slept.
    let mut held = fake.clone();
    let renewal = tokio::spawn(async move { held.renew().await });
    stays("nobody answers who sleeps", Duration::from_millis(200), async || !renewal.is_finished()).await;
    old.child.thaw();
    let refused = renewal.await.unwrap().unwrap_err();
    assert!(!refused.message().contains("Timeout expired"), "it was not answered at all: {refused}");
    poll_until("it does not lead any more", PATIENCE, async || {
        let Some((_, metrics)) = old.try_get("/metrics").await else { return Some(()) };
        metrics.contains("shard_manager_is_leader 0").then_some(())
    })
    .await;
    assert!(fake.renew().await.is_err(), "nor later");
    assert_eq!(replicas.written().await, written, "it wrote nothing");
    old
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_sleeps_past_its_ttl() {
    let mut replicas = Replicas::start(2, &[]).await;
    let mut old = sleeps_past_its_ttl(&mut replicas).await;
    assert_eq!(old.child.exit_code(PATIENCE).await, Some(4));
    assert!(replicas.cluster.manager.is_ready().await);
}

/// Their connections to it stay open and silent: they turn to the next replica in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_are_connected_to_a_leader_that_sleeps() {
    let mut replicas = Replicas::start(3, &[]).await;
    let rest = replicas.at_rest().await;
    replicas.cluster.manager.child.freeze().await;
    let mut old = replicas.succession(TTL + SLACK).await;
    replicas.still(&rest).await;
    old.child.thaw();
    assert_eq!(old.child.exit_code(PATIENCE).await, Some(4));
    replicas.still(&rest).await;
}

/// The process stays, waits, and leads again when it is its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_sleeps_past_its_ttl_and_may_stand_by() {
    let mut replicas = Replicas::start(2, &["leadership.on_loss=standby"]).await;
    let old = sleeps_past_its_ttl(&mut replicas).await;
    replicas.waits(&old).await;
    assert_eq!(old.get("/readyz").await, (503, "{\"reason\":\"standby\"}".to_owned()));
    let term = replicas.cluster.table().await.term;
    replicas.standbys.push(old);
    assert_eq!(replicas.cluster.manager.stop().await, Some(0));
    replicas.succession(SLACK).await;
    assert!(replicas.cluster.table().await.term > term);
}

/// Case 8: no byte moves. It stops by its own deadline, before etcd lets another lead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_cut_off_from_etcd() {
    let mut replicas = Replicas::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    replicas.proxy.black_hole();
    let cut = Instant::now();
    let mut old = replicas.succession(TTL + SLACK).await;
    let left = (TTL + REQUEST_TIMEOUT + SLACK).saturating_sub(cut.elapsed());
    assert_eq!(old.child.exit_code(left).await, Some(4));
    replicas.still(&rest).await;
}

/// The same, where the process stays: it comes back as a standby once it reaches etcd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_cut_off_from_etcd_and_may_stand_by() {
    let mut replicas = Replicas::start(2, &["leadership.on_loss=standby"]).await;
    let rest = replicas.at_rest().await;
    replicas.proxy.black_hole();
    let mut old = replicas.succession(TTL + SLACK).await;
    poll_until("it says that it waits", PATIENCE, async || {
        (old.try_get("/readyz").await? == (503, "{\"reason\":\"standby\"}".to_owned())).then_some(())
    })
    .await;
    replicas.proxy.restore();
    replicas.waits(&old).await;
    assert!(old.child.is_running());
    replicas.still(&rest).await;
}

/// Case 7: what is lost is a round trip.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_connection_to_etcd_is_dropped_once() {
    let mut replicas = Replicas::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    replicas.proxy.drop_all();
    stays("the leader leads", TTL * 2, async || replicas.cluster.manager.is_ready().await).await;
    replicas.still(&rest).await;
    assert_eq!(replicas.cluster.table().await.term, rest.term());
}

/// Case 7, with everybody at once: the leader leads on, and who waited waits again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_is_restarted() {
    let mut replicas = Replicas::start(2, &["leadership.lease_ttl=6s"]).await;
    let rest = replicas.at_rest().await;
    replicas.etcd.members[0].kill();
    replicas.etcd.run(0);
    stays("the leader leads", Duration::from_secs(6) + SLACK, async || replicas.cluster.manager.is_ready().await).await;
    replicas.waits(&replicas.standbys[0]).await;
    replicas.still(&rest).await;
    assert_eq!(replicas.cluster.table().await.term, rest.term());
    assert_eq!(replicas.cluster.manager.stop().await, Some(0));
    replicas.succession(PATIENCE).await;
    replicas.still(&rest).await;
}

/// Case 23: the leader finds out that it landed, and goes on from there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_a_commit_is_lost() {
    let mut replicas = Replicas::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    for (command, state) in [("cordon", "cordoned"), ("uncordon", "active")] {
        let before = replicas.written().await;
        replicas.proxy.swallow_answers();
        let manager = &replicas.cluster.manager;
        let lose = async {
            poll_until("the commit lands", PATIENCE, async || (replicas.written().await > before).then_some(())).await;
            replicas.proxy.drop_all();
            replicas.proxy.restore();
        };
        let command = [command, "a"];
        tokio::join!(manager.json(&command), lose);
        replicas.cluster.state_is("a", state).await;
        let revision = replicas.cluster.table().await.revision;
        assert_eq!(i64::try_from(revision).unwrap(), replicas.written().await, "memory equals the store");
    }
    assert_eq!(replicas.cluster.table().await.term, rest.term());
    replicas.still(&rest).await;
}

/// It looks after its key as often as it renews, whatever its lease says. That is an unasked end, never a 0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leaders_key_is_deleted() {
    let mut replicas = Replicas::start(2, &["leadership.lease_ttl=6s"]).await;
    let rest = replicas.at_rest().await;
    replicas.depose().await;
    let deposed = Instant::now();
    // etcd lets the next one lead at once. What bounds the time with two is this look; what the old one writes meanwhile is refused.
    let code = replicas.cluster.manager.child.exit_code(Duration::from_secs(2) + SLACK).await;
    assert_eq!(code, Some(4), "after {:?}", deposed.elapsed());
    replicas.succession(SLACK).await;
    replicas.still(&rest).await;
}

/// Case 20: the fence says so long before the next look at the key, also where a key of that name is there again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_leader_commits() {
    let mut replicas = Replicas::start(1, &["leadership.lease_ttl=60s"]).await;
    let _rest = replicas.at_rest().await;
    let key = replicas.depose().await;
    replicas.etcd.client().await.put(key.key(), key.value(), None).await.unwrap();
    let written = replicas.written().await;
    let address = replicas.cluster.manager.grpc.to_string();
    let cordon = crate::harness::run(&["cordon", "a", "--manager", &address]).await;
    assert!(!cordon.status.success(), "nobody is told that it worked");
    assert_eq!(replicas.cluster.manager.child.exit_code(SLACK).await, Some(4));
    assert_eq!(replicas.written().await, written);
}
