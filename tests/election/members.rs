//! A cluster of which a part is dead, dies or hangs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use shard_manager::assignment::state::{Meta, State};
use shard_manager::backend::Fence;
use shard_manager::backend::etcd::Members;
use shard_manager::election::Leadership;
use shard_manager::store::etcd::EtcdStore;
use shard_manager::store::{Error, Store};
use shard_manager::types::{ClusterId, Revision, Term};

use crate::rig::{Candidate, assert_held_for, lost, settings};
use crate::support::etcd::{Etcd, PATIENCE};
use crate::support::free_address;
use crate::support::proxy::Proxy;

const TIMEOUT: Duration = Duration::from_secs(2);

pub fn store(settings: &shard_manager::backend::etcd::Settings) -> EtcdStore {
    EtcdStore::new(Arc::new(Members::new(settings).unwrap()), "/test/", 128, 1_572_864).unwrap()
}

pub fn first_state(fence: &Fence) -> State {
    let cluster_id = ClusterId("00112233-4455-6677-8899-aabbccddeeff".parse().unwrap());
    let (token, inventory) = (fence.token(), Default::default());
    let seal = Default::default();
    State::new(Meta {
        cluster_id,
        number_of_shards: 10,
        term: Term(1),
        token,
        attempt: 0,
        lease_ttl_ms: 1000,
        inventory,
        seal,
        pause: None,
    })
}

/// Commits the next state, and sends it again as long as it is not known what became of it.
async fn settle(store: &EtcdStore, fence: &Fence, state: &mut State, expected: Option<Revision>) -> Revision {
    state.meta.attempt += 1;
    let changes = state.changes_since(None);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match store.commit(fence, expected, &changes).await {
            Ok(revision) => return revision,
            Err(Error::OutcomeUnknown { .. } | Error::Unavailable { .. }) if Instant::now() < deadline => {}
            Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_dead_member_in_the_list_costs_no_read_and_no_write() {
    let etcd = Etcd::single().await;
    let (alive, dead) = (etcd.members[0].endpoint(), format!("http://{}", free_address()));
    let leader = Candidate::new("first", vec![dead.clone(), alive.clone()], 4, TIMEOUT).wins().await;
    let mut state = first_state(leader.fence());
    let mut revision = None;
    for round in 0..100 {
        let endpoints = if round % 2 == 0 { vec![dead.clone(), alive.clone()] } else { vec![alive.clone(), dead.clone()] };
        // A fresh one each time, that has learned nothing yet.
        let store = store(&settings(endpoints, TIMEOUT));
        assert_eq!(store.load().await.unwrap().map(|loaded| loaded.revision), revision);
        state.meta.attempt += 1;
        revision = Some(store.commit(leader.fence(), revision, &state.changes_since(None)).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_hung_member_in_the_list_costs_time_once() {
    let etcd = Etcd::single().await;
    let hung = Proxy::to(etcd.members[0].client).await;
    hung.black_hole();
    let endpoints = vec![hung.endpoint(), etcd.members[0].endpoint()];
    let leader = Candidate::new("first", endpoints.clone(), 4, TIMEOUT).wins().await;
    let store = store(&settings(endpoints, TIMEOUT));
    let mut state = first_state(leader.fence());
    let mut revision = None;
    let since = Instant::now();
    for _ in 0..100 {
        state.meta.attempt += 1;
        revision = Some(store.commit(leader.fence(), revision, &state.changes_since(None)).await.unwrap());
        assert_eq!(store.load().await.unwrap().unwrap().revision, revision.unwrap());
    }
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
}

/// Three members, a leader, and commits one after the other until the end of `disturbance`.
async fn commits_through(etcd: &mut Etcd, disturbance: impl AsyncFnOnce(&mut Etcd)) -> Leadership {
    let endpoints = etcd.endpoints();
    let mut leader = Candidate::new("first", endpoints.clone(), 6, TIMEOUT).wins().await;
    let store = store(&settings(endpoints, TIMEOUT));
    let fence = leader.fence().clone();
    let mut state = first_state(&fence);
    let mut revision = settle(&store, &fence, &mut state, None).await;
    let committing = async {
        loop {
            revision = settle(&store, &fence, &mut state, Some(revision)).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = committing => {}
        () = disturbance(etcd) => {}
        reason = leader.lost() => panic!("{reason}"),
    }
    leader
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_raft_leader_is_killed_and_it_costs_only_time() {
    let mut etcd = Etcd::three().await;
    let mut leader = commits_through(&mut etcd, async |etcd| {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let victim = etcd.raft_leader().await;
        etcd.members[victim].kill();
        tokio::time::sleep(Duration::from_secs(7)).await;
        etcd.run(victim);
        tokio::time::sleep(Duration::from_secs(1)).await;
    })
    .await;
    assert_held_for(&etcd, &mut leader, Duration::from_millis(500)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_member_hangs_in_turn_and_it_costs_only_time() {
    let mut etcd = Etcd::three().await;
    let mut leader = commits_through(&mut etcd, async |etcd| {
        for at in 0..3 {
            etcd.members[at].stop();
            tokio::time::sleep(Duration::from_secs(4)).await;
            etcd.members[at].go_on();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
    assert_held_for(&etcd, &mut leader, Duration::from_millis(500)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_whose_member_hangs_is_still_elected() {
    let etcd = Etcd::three().await;
    let mut leader = Candidate::new("first", vec![etcd.members[1].endpoint()], 2, Duration::from_secs(1)).wins().await;
    let standby = Candidate::new("second", etcd.endpoints(), 2, Duration::from_millis(900));
    let standing = standby.stands();
    crate::rig::queue_of(&etcd, 2).await;
    let since = Instant::now();
    etcd.members[0].stop();
    // Not behind a campaign that nobody will ever answer.
    crate::support::etcd::eventually("another attempt", async || (standby.failures() > 0).then_some(())).await;
    assert!(since.elapsed() < Duration::from_secs(4), "it was noticed by the lease's stream: {:?}", since.elapsed());
    if tokio::time::timeout(Duration::from_secs(3), leader.lost()).await.is_ok() {
        // The member that hangs led the raft cluster; then the leadership may be lost as well.
        leader.release().await.ok();
    } else {
        leader.release().await.unwrap();
    }
    standing.wins().await;
    etcd.members[0].go_on();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_a_quorum_stops_by_its_own_deadline() {
    let mut etcd = Etcd::three().await;
    let mut leader = Candidate::new("first", etcd.endpoints(), 3, Duration::from_secs(1)).wins().await;
    let since = Instant::now();
    etcd.members[0].kill();
    etcd.members[1].kill();
    lost(&mut leader).await;
    assert!(since.elapsed() < Duration::from_millis(3500), "{:?}", since.elapsed());
}
