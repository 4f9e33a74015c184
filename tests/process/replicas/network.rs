//! Between a leader and its store, and what becomes of the store itself. A leader that cannot reach it stops by its own deadline; what
//! passes is survived.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{SLACK, STOP};
use crate::harness::{
    Cluster, Manager, Networked, PATIENCE, Replicas, Store, TTL, free_address, on_every_network, poll_until, stays,
};
use crate::support::proxy::{Direction, Proxy};

/// The default with a TTL of 2 s: what the attempt to give the leadership up may take where the store does not answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

on_every_network!(
    the_leader_is_cut_off,
    the_leader_is_cut_off_and_may_stand_by,
    every_connection_is_dropped_once,
    the_server_is_restarted,
    the_server_stands_still,
    the_answer_to_a_commit_is_lost,
    the_server_is_not_there,
    the_server_is_there_and_silent,
    a_standby_is_told_to_stop_while_the_server_is_silent,
    two_clusters_share_one_server,
);

/// Case 8: no byte moves. It stops by its own deadline, before another one leads.
async fn the_leader_is_cut_off<P: Networked>() {
    let mut replicas = Replicas::<P>::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    replicas.place.proxy().black_hole();
    let cut = Instant::now();
    let mut old = replicas.succession(TTL + SLACK).await;
    let left = (TTL + REQUEST_TIMEOUT + SLACK).saturating_sub(cut.elapsed());
    assert_eq!(old.child.exit_code(left).await, Some(4));
    replicas.still(&rest).await;
}

/// The same, where the process stays: it comes back as a standby once it reaches the store.
async fn the_leader_is_cut_off_and_may_stand_by<P: Networked>() {
    let mut replicas = Replicas::<P>::start(2, &["leadership.on_loss=standby"]).await;
    let rest = replicas.at_rest().await;
    replicas.place.proxy().black_hole();
    let mut old = replicas.succession(TTL + SLACK).await;
    poll_until("it says that it waits", PATIENCE, async || {
        (old.try_get("/readyz").await? == (503, "{\"reason\":\"standby\"}".to_owned())).then_some(())
    })
    .await;
    replicas.place.proxy().restore();
    replicas.waits(&old).await;
    assert!(old.child.is_running());
    replicas.still(&rest).await;
}

/// Case 7: what is lost is a round trip.
async fn every_connection_is_dropped_once<P: Networked>() {
    let mut replicas = Replicas::<P>::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    replicas.place.proxy().drop_all();
    stays("the leader leads", TTL * 2, async || replicas.cluster.manager.is_ready().await).await;
    replicas.still(&rest).await;
    assert_eq!(replicas.cluster.table().await.term, rest.term());
}

/// Case 7, with everybody at once: the leader leads on, and who waited waits again.
async fn the_server_is_restarted<P: Networked>() {
    let mut replicas = Replicas::<P>::start(2, &["leadership.lease_ttl=6s"]).await;
    let rest = replicas.at_rest().await;
    replicas.place.restart().await;
    stays("the leader leads", Duration::from_secs(6) + SLACK, async || replicas.cluster.manager.is_ready().await).await;
    replicas.waits(&replicas.standbys[0]).await;
    replicas.still(&rest).await;
    assert_eq!(replicas.cluster.table().await.term, rest.term());
    assert_eq!(replicas.cluster.manager.stop().await, Some(0));
    replicas.succession(PATIENCE).await;
    replicas.still(&rest).await;
}

/// Case 30: for three TTLs. The leader stops by its own deadline, as nobody tells it anything; standbys wait for longer, and the first
/// one leads when the server goes on.
async fn the_server_stands_still<P: Networked>() {
    let mut replicas = Replicas::<P>::start(2, &["executors.lease_ttl=15s"]).await;
    let rest = replicas.at_rest().await;
    replicas.place.hang();
    let hung = Instant::now();
    assert_eq!(replicas.cluster.manager.child.exit_code(TTL + REQUEST_TIMEOUT + SLACK).await, Some(4));
    let left = (TTL * 3).saturating_sub(hung.elapsed());
    stays("the standby waits", left, async || replicas.standbys[0].child.is_running()).await;
    replicas.place.go_on();
    replicas.succession(PATIENCE).await;
    replicas.still(&rest).await;
}

/// Case 23: the leader finds out that it landed, and goes on from there.
async fn the_answer_to_a_commit_is_lost<P: Networked>() {
    let mut replicas = Replicas::<P>::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    for (command, state) in [("cordon", "cordoned"), ("uncordon", "active")] {
        let before = replicas.place.written().await;
        replicas.place.proxy().hold(Direction::Answers);
        let lose = async {
            poll_until("the commit lands", PATIENCE, async || (replicas.place.written().await > before).then_some(())).await;
            replicas.place.proxy().drop_all();
            replicas.place.proxy().restore();
        };
        let command = [command, "a"];
        tokio::join!(replicas.cluster.manager.json(&command), lose);
        replicas.cluster.state_is("a", state).await;
        let revision = replicas.cluster.table().await.revision;
        assert_eq!(revision, replicas.place.written().await, "memory equals the store");
    }
    assert_eq!(replicas.cluster.table().await.term, rest.term());
    replicas.still(&rest).await;
}

/// Two replicas that cannot reach their store are alive and say so, and count; one stops when it is told to. The other.
async fn cannot_start<P: Networked>(store: &Store) -> Manager {
    let mut stopped = Manager::stand(store, &P::settings(&[])).await;
    let stays = Manager::stand(store, &P::settings(&[])).await;
    for replica in [&stopped, &stays] {
        replica.metric_above("shard_manager_campaign_attempt_failures_total", 1.0).await;
        assert_eq!(replica.get("/healthz").await.0, 200);
        assert_eq!(replica.get("/readyz").await, (503, "{\"reason\":\"starting\"}".to_owned()));
        assert_eq!(replica.metric("shard_manager_is_leader").await, 0.0);
        assert!(TcpStream::connect(replica.grpc).is_err(), "its gRPC port is closed");
    }
    let (code, took) = stopped.child.stop(PATIENCE).await;
    assert_eq!(code, Some(0));
    assert!(took < STOP, "it took {took:?}");
    stays
}

/// Case 11: nobody listens there.
async fn the_server_is_not_there<P: Networked>() {
    let place = P::make().await;
    cannot_start::<P>(&place.store_at(free_address())).await;
}

/// Case 11: nobody answers there, for a while. Who has waited for that leads then.
async fn the_server_is_there_and_silent<P: Networked>() {
    let place = P::make().await;
    place.proxy().black_hole();
    let replica = cannot_start::<P>(&place.store_at(place.proxy().address)).await;
    place.proxy().restore();
    poll_until("it leads", PATIENCE, async || replica.is_ready().await.then_some(())).await;
}

/// Case 10: it waits already, and the server has gone silent since. What it left there ends by itself.
async fn a_standby_is_told_to_stop_while_the_server_is_silent<P: Networked>() {
    let replicas = Replicas::<P>::start(1, &[]).await;
    let proxy = Proxy::to(replicas.place.server()).await;
    let mut standby = Manager::stand(&replicas.place.store_at(proxy.address), &P::settings(&[])).await;
    replicas.waits(&standby).await;
    proxy.black_hole();
    let (code, took) = standby.child.stop(PATIENCE).await;
    assert_eq!(code, Some(0));
    assert!(took < STOP, "it took {took:?}");
    let alone = async || (replicas.place.queue().await.len() == 1).then_some(());
    poll_until("nothing is left of it", PATIENCE, alone).await;
    assert!(replicas.cluster.manager.is_ready().await);
}

/// Under another name is another cluster.
async fn two_clusters_share_one_server<P: Networked>() {
    let place = P::make().await;
    let start = async |store: Store, shards: &str| Cluster::around(Manager::start(&store, &P::settings(&[shards])).await, store);
    // One name begins with the other, and the numbers of shards differ: whoever read the other's records would refuse them.
    let mut one = start(place.store(), "number_of_shards=64").await;
    let mut two = start(place.neighbour(), "number_of_shards=32").await;
    let (a, b) = (one.executor("a").await, two.executor("b").await);
    let (first, second) = (one.at_rest(&["a"]).await, two.at_rest(&["b"]).await);
    assert_ne!(first.cluster_id, second.cluster_id);
    assert_eq!((first.shards.len(), second.shards.len()), (64, 32));
    assert_eq!(two.manager.stop().await, Some(0));
    assert!(one.manager.is_ready().await);
    two.manager.restart().await;
    assert_eq!(two.at_rest(&["b"]).await.shards, second.shards);
    assert_eq!(one.table().await, first, "what the other did wrote nothing here");
    drop((a, b));
}
