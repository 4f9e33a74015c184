//! From the first attempt to the win: what goes wrong while somebody waits.

use std::time::{Duration, Instant};

use shard_manager::backend::etcd::Members;
use shard_manager::election::etcd::{EtcdElection, Options};
use shard_manager::election::{Candidacy, Election, Patience};
use tokio_util::sync::CancellationToken;

use crate::rig::{Candidate, assert_nothing_left, key_of, lease_of, lost, queue_of, settings};
use crate::support::etcd::{Etcd, eventually};
use crate::support::proxy::Proxy;

const TIMEOUT: Duration = Duration::from_millis(500);

async fn leader_and_standby(etcd: &Etcd) -> (shard_manager::election::Leadership, Candidate, crate::rig::Standing) {
    let leader = Candidate::new("first", etcd.endpoints(), 2, TIMEOUT).wins().await;
    let standby = Candidate::new("second", etcd.endpoints(), 2, TIMEOUT);
    let standing = standby.stands();
    queue_of(etcd, 2).await;
    (leader, standby, standing)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_waits_longer_than_its_lease_keeps_it_and_wins_on_it() {
    let etcd = Etcd::single().await;
    let leader = Candidate::new("first", etcd.endpoints(), 2, TIMEOUT).wins().await;
    let standby = Candidate::new("second", etcd.endpoints(), 2, Duration::from_millis(200));
    let standing = standby.stands();
    let (leases, revision) = (queue_of(&etcd, 2).await, etcd.revision().await);
    // Three times the lease.
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        assert_eq!(queue_of(&etcd, 2).await, leases);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(etcd.revision().await, revision, "who leads and who waits write nothing");
    leader.release().await.unwrap();
    let second = standing.wins().await;
    assert_eq!((lease_of(&second), standby.failures()), (leases[1], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_revoked_in_the_queue_is_replaced() {
    let etcd = Etcd::single().await;
    let (leader, standby, standing) = leader_and_standby(&etcd).await;
    let old = queue_of(&etcd, 2).await[1];
    etcd.client().await.lease_revoke(old).await.unwrap();
    let new = eventually("a new lease", async || {
        etcd.keys(crate::rig::QUEUE).await.get(1).map(|key| key.lease()).filter(|lease| *lease != old)
    });
    let new = new.await;
    assert_eq!(standby.failures(), 1);
    leader.release().await.unwrap();
    assert_eq!(lease_of(&standing.wins().await), new);
}

/// etcd answers a campaign with success when the key ahead goes, although the winner's own key does not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_win_on_a_key_that_is_gone_is_not_accepted() {
    let etcd = Etcd::single().await;
    let (leader, standby, standing) = leader_and_standby(&etcd).await;
    let own = etcd.keys(crate::rig::QUEUE).await[1].key().to_vec();
    etcd.client().await.delete(own.clone(), None).await.unwrap();
    leader.release().await.unwrap();
    let second = standing.wins().await;
    let (key, revision) = key_of(&second);
    assert_ne!(key.as_bytes(), own);
    assert_eq!(etcd.keys(crate::rig::QUEUE).await[0].create_revision(), revision);
    assert_eq!(standby.failures(), 1);
}

/// A standby behind a proxy that delays answers: what it hears of its win, and of its reading it back, comes at known times.
async fn about_to_read_back() -> (Etcd, Proxy, Candidate, crate::rig::Standing, i64) {
    let etcd = Etcd::single().await;
    let proxy = Proxy::to(etcd.members[0].client).await;
    let leader = Candidate::new("first", etcd.endpoints(), 6, TIMEOUT).wins().await;
    let standby = Candidate::new("second", vec![proxy.endpoint()], 6, Duration::from_secs(2));
    let standing = standby.stands();
    let lease = queue_of(&etcd, 2).await[1];
    // Long enough in the queue for a prompt answer.
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.delay_answers(Duration::from_millis(600));
    leader.release().await.unwrap();
    // The answer to the campaign is in, the one to the read is on its way.
    tokio::time::sleep(Duration::from_millis(900)).await;
    (etcd, proxy, standby, standing, lease)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirming_read_that_fails_once_costs_nothing() {
    let (_etcd, proxy, standby, standing, lease) = about_to_read_back().await;
    assert!(!standing.task.is_finished());
    proxy.drop_all();
    proxy.delay_answers(Duration::ZERO);
    assert_eq!(lease_of(&standing.wins().await), lease);
    assert_eq!(standby.failures(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirming_read_that_never_succeeds_blocks_nobody_for_longer_than_the_lease() {
    let (etcd, proxy, standby, standing, _) = about_to_read_back().await;
    let cut = Instant::now();
    proxy.black_hole();
    let third = Candidate::new("third", etcd.endpoints(), 6, TIMEOUT).wins().await;
    assert!(cut.elapsed() < Duration::from_secs(8), "{:?}", cut.elapsed());
    assert!(!standing.task.is_finished());
    eventually("the failure is counted", async || (standby.failures() > 0).then_some(())).await;
    standing.stops().await;
    drop(third);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_ends_a_campaign_leaves_nothing_at_etcd() {
    let etcd = Etcd::single().await;
    let (mut leader, _, standing) = leader_and_standby(&etcd).await;
    standing.stops().await;
    queue_of(&etcd, 1).await;

    // The future of a campaign is dropped while it waits.
    let dropped = Candidate::new("dropped", etcd.endpoints(), 2, TIMEOUT).stands();
    queue_of(&etcd, 2).await;
    dropped.task.abort();
    queue_of(&etcd, 1).await;
    assert!(tokio::time::timeout(Duration::from_millis(100), leader.lost()).await.is_err());

    // A leadership is dropped without being released.
    drop(leader);
    assert_nothing_left(&etcd).await;

    // A campaign is dropped at every moment from before the grant to after the win.
    for step in 0..60 {
        let candidate = Candidate::new("hasty", etcd.endpoints(), 2, TIMEOUT);
        let moment = Duration::from_micros(300 * step);
        let _ = tokio::time::timeout(moment, candidate.election.campaign(&CancellationToken::new())).await;
    }
    assert_nothing_left(&etcd).await;

    // etcd refuses the campaign, after it granted the lease.
    let refused = Candidate::new(&"x".repeat(2 * 1024 * 1024), etcd.endpoints(), 2, TIMEOUT);
    let standing = refused.stands();
    eventually("two failures", async || (refused.failures() >= 2).then_some(())).await;
    standing.stops().await;
    assert_nothing_left(&etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_but_the_campaign_waits_for_ever() {
    let etcd = Etcd::single().await;
    let proxy = Proxy::to(etcd.members[0].client).await;

    // Black hole during the grant.
    proxy.black_hole();
    let candidate = Candidate::new("first", vec![proxy.endpoint()], 2, TIMEOUT);
    let standing = candidate.stands();
    eventually("two failures", async || (candidate.failures() >= 2).then_some(())).await;
    proxy.restore();
    proxy.drop_all();
    let leader = standing.wins().await;

    // During the revocation at the end: a failure that is told, in the time of a request.
    proxy.black_hole();
    let since = Instant::now();
    let failure = leader.release().await.unwrap_err();
    assert!(since.elapsed() < TIMEOUT * 2, "{failure} took {:?}", since.elapsed());
    proxy.restore();
    proxy.drop_all();

    // While it waits: renewals and looks at who leads. The lease's deadline ends the attempt, and the next one fails too.
    let leader = Candidate::new("second", etcd.endpoints(), 2, TIMEOUT).wins().await;
    let waiting = Candidate::new("third", vec![proxy.endpoint()], 2, TIMEOUT);
    let standing = waiting.stands();
    queue_of(&etcd, 2).await;
    proxy.black_hole();
    eventually("two failures", async || (waiting.failures() >= 2).then_some(())).await;
    proxy.restore();
    proxy.drop_all();
    queue_of(&etcd, 2).await;
    leader.release().await.unwrap();
    standing.wins().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_asked_to_stop_does_so_wherever_it_is() {
    // Nobody listens: retries, and the pauses between them.
    let nowhere = format!("http://{}", crate::support::free_address());
    for pause in [0, 100, 700] {
        let standing = Candidate::new("first", vec![nowhere.clone()], 10, Duration::from_secs(5)).stands();
        tokio::time::sleep(Duration::from_millis(pause)).await;
        standing.stops().await;
    }
    let etcd = Etcd::single().await;
    let proxy = Proxy::to(etcd.members[0].client).await;
    let _leader = Candidate::new("leader", etcd.endpoints(), 10, Duration::from_secs(5)).wins().await;
    for black_hole in [false, true] {
        let standing = Candidate::new("second", vec![proxy.endpoint()], 10, Duration::from_secs(5)).stands();
        queue_of(&etcd, 2).await;
        if black_hole {
            proxy.black_hole();
            standing.stops().await;
        } else {
            standing.stops().await;
            let since = Instant::now();
            queue_of(&etcd, 1).await;
            assert!(since.elapsed() < Duration::from_millis(100), "{:?}", since.elapsed());
        }
    }
    // Asked before it begins.
    let token = CancellationToken::new();
    token.cancel();
    assert!(Candidate::new("third", vec![nowhere], 10, TIMEOUT).election.campaign(&token).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_comes_later_is_waited_for() {
    let mut etcd = Etcd::single().await;
    etcd.members[0].kill();
    let candidate = Candidate::new("first", etcd.endpoints(), 2, TIMEOUT);
    let standing = candidate.stands();
    eventually("two failures", async || (candidate.failures() >= 2).then_some(())).await;
    etcd.run(0);
    standing.wins().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_says_who_leads_and_nobody_is_no_failure() {
    let etcd = Etcd::single().await;
    let (leader, standby, standing) = leader_and_standby(&etcd).await;
    let mut seen = standby.election.leader().unwrap();
    let named = seen.wait_for(|leader| leader.as_deref() == Some("first"));
    tokio::time::timeout(Duration::from_secs(5), named).await.unwrap().unwrap();

    // The own key counts for nobody: a queue that is empty, and a campaign that cannot enter it.
    leader.release().await.unwrap();
    let second = standing.wins().await;
    let third = Candidate::new("third", etcd.endpoints(), 2, TIMEOUT);
    let standing = third.stands();
    let mut seen = third.election.leader().unwrap();
    tokio::time::timeout(Duration::from_secs(5), seen.wait_for(|leader| leader.as_deref() == Some("second")))
        .await
        .unwrap()
        .unwrap();
    second.release().await.unwrap();
    standing.wins().await;
    assert_eq!((standby.failures(), third.failures()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_gone_counts_as_released() {
    let etcd = Etcd::single().await;
    let mut leader = Candidate::new("first", etcd.endpoints(), 2, TIMEOUT).wins().await;
    etcd.client().await.lease_revoke(lease_of(&leader)).await.unwrap();
    lost(&mut leader).await;
    leader.release().await.unwrap();
}

#[test]
fn a_ttl_that_cannot_be_kept_is_refused() {
    for (ttl, request_timeout) in [(1000, 100), (1500, 100), (2500, 100), (2000, 1001), (0, 100)] {
        let members =
            Members::new(&settings(vec!["http://127.0.0.1:1".to_owned()], Duration::from_millis(request_timeout))).unwrap();
        let options = Options {
            prefix: "/test/".to_owned(),
            ttl: Duration::from_millis(ttl),
            candidacy: Candidacy {
                holder: "first".to_owned(),
                pulse: Default::default(),
                patience: Patience::Wait,
                announce_every: Duration::from_secs(30),
                on_failure: std::sync::Arc::new(|| {}),
            },
        };
        let refused = EtcdElection::new(members.into(), options).unwrap_err().to_string();
        assert!(refused.contains("leadership.lease_ttl = ") && refused.contains("whole seconds, at least 2s"), "{refused}");
    }
}
