//! From the win to the loss: how long a leader may believe.

use std::time::{Duration, Instant};

use shard_manager::clock;
use shard_manager::election::{Leadership, Lost};
use shard_manager::types::BootInstant;

use crate::rig::{Candidate, SLACK, assert_held_for, deadline, deadlines, key_of, lease_of, lost, queue_of};
use crate::support::etcd::Etcd;
use crate::support::proxy::Proxy;

const TTL: Duration = Duration::from_secs(3);
const TIMEOUT: Duration = Duration::from_millis(1400);

async fn leader_behind_proxy() -> (Etcd, Proxy, Candidate, Leadership) {
    let etcd = Etcd::single().await;
    let proxy = Proxy::to(etcd.members[0].client).await;
    let candidate = Candidate::new("first", vec![proxy.endpoint()], TTL.as_secs(), TIMEOUT);
    let leader = candidate.wins().await;
    (etcd, proxy, candidate, leader)
}

/// Waits for the loss, and checks that it comes at the deadline, which is not beyond `latest`.
async fn assert_expires_by(leader: &mut Leadership, latest: BootInstant) {
    let receiver = deadlines(leader);
    let believed = deadline(leader);
    assert!(believed <= latest, "believed until {believed:?}, at most {latest:?}");
    let reason = lost(leader).await;
    let late = clock::now().since(latest);
    assert!(matches!(reason, Lost::Expired(_)), "{reason}");
    assert!(late < SLACK, "{late:?} after the deadline");
    assert_eq!(*receiver.borrow(), BootInstant::default(), "after a loss there is nothing to believe in");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_is_made_anew_and_the_lease_really_renewed() {
    let (etcd, proxy, _, mut leader) = leader_behind_proxy().await;
    let before = deadline(&leader);
    proxy.drop_all();
    assert_held_for(&etcd, &mut leader, TTL + Duration::from_secs(1)).await;
    assert!(deadline(&leader) > before, "a reconnection is a renewal");
    let left = etcd.client().await.lease_time_to_live(lease_of(&leader), None).await.unwrap();
    assert!(left.ttl() >= 1, "{}", left.ttl());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_restarts_costs_no_leadership() {
    let mut etcd = Etcd::single().await;
    let mut leader = Candidate::new("first", etcd.endpoints(), 8, TIMEOUT).wins().await;
    let before = key_of(&leader);
    etcd.members[0].kill();
    etcd.run(0);
    assert_held_for(&etcd, &mut leader, Duration::from_secs(9)).await;
    assert_eq!(key_of(&leader), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_stops_a_ttl_after_its_last_acknowledged_send() {
    let (_etcd, proxy, _, mut leader) = leader_behind_proxy().await;
    // Idle for half a TTL: from then on it is not a full one.
    tokio::time::sleep(TTL / 2).await;
    let cut = clock::now();
    proxy.black_hole();
    let believed = deadline(&leader);
    assert!(believed > cut, "it was renewed while nothing happened");
    assert_expires_by(&mut leader, cut.after(TTL)).await;
    assert!(clock::now() >= believed, "nor does it stop early");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_come_late_do_not_move_the_deadline() {
    let (_etcd, proxy, _, leader) = leader_behind_proxy().await;
    let delay = Duration::from_millis(700);
    proxy.delay_answers(delay);
    // Answers that were on their way before.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut deadlines = deadlines(&leader);
    deadlines.borrow_and_update();
    let until = Instant::now() + TTL * 2;
    let mut renewals = 0;
    while Instant::now() < until {
        if renewals == 2 {
            // The handshake of a new stream counts from its send too.
            proxy.drop_all();
        }
        deadlines.changed().await.unwrap();
        let (deadline, now) = (*deadlines.borrow_and_update(), clock::now());
        assert!(deadline <= now.after(TTL - delay), "renewed {:?} too far", deadline.since(now.after(TTL - delay)));
        renewals += 1;
    }
    assert!(renewals >= 4, "{renewals}");
}

/// Two renewals are under way at once, and the answer to the first one counts for the first one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_matched_to_sends_in_their_order() {
    let etcd = Etcd::single().await;
    let proxy = Proxy::to(etcd.members[0].client).await;
    let ttl = Duration::from_secs(3);
    let leader = Candidate::new("first", vec![proxy.endpoint()], 3, Duration::from_millis(1500)).wins().await;
    // Longer than the interval of a second, shorter than the patience.
    let delay = Duration::from_millis(1300);
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.delay_answers(delay);
    let mut deadlines = deadlines(&leader);
    deadlines.borrow_and_update();
    for _ in 0..4 {
        deadlines.changed().await.unwrap();
        let (deadline, now) = (*deadlines.borrow_and_update(), clock::now());
        assert!(deadline <= now.after(ttl - delay), "renewed {:?} too far", deadline.since(now.after(ttl - delay)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnecting_ends_at_the_deadline() {
    let (_etcd, proxy, _, mut leader) = leader_behind_proxy().await;
    let cut = clock::now();
    proxy.black_hole();
    tokio::time::sleep(TTL / 4).await;
    // From here on it connects anew, again and again: that extends nothing.
    proxy.drop_all();
    assert_expires_by(&mut leader, cut.after(TTL)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnection_counts_from_its_send_and_lasts_a_whole_ttl() {
    let (etcd, proxy, _, mut leader) = leader_behind_proxy().await;
    proxy.black_hole();
    tokio::time::sleep(TTL / 3).await;
    let back = clock::now();
    proxy.restore();
    proxy.drop_all();
    assert_held_for(&etcd, &mut leader, TTL).await;
    assert!(deadline(&leader) >= back.after(TTL));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_found_gone_is_reported_at_once() {
    let etcd = Etcd::single().await;
    let proxy = Proxy::to(etcd.members[0].client).await;
    let mut leader = Candidate::new("first", vec![proxy.endpoint()], 20, TIMEOUT).wins().await;
    let since = Instant::now();
    etcd.client().await.lease_revoke(lease_of(&leader)).await.unwrap();
    proxy.drop_all();
    let reason = lost(&mut leader).await;
    assert!(matches!(reason, Lost::Expired(_)), "{reason}");
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_deleted_or_made_anew_is_noticed_although_the_lease_lives() {
    for made_anew in [false, true] {
        let etcd = Etcd::single().await;
        let mut leader = Candidate::new("first", etcd.endpoints(), TTL.as_secs(), TIMEOUT).wins().await;
        let (key, since) = (key_of(&leader).0, Instant::now());
        etcd.client().await.delete(key.clone(), None).await.unwrap();
        if made_anew {
            etcd.client().await.put(key, "first", None).await.unwrap();
        }
        let reason = lost(&mut leader).await;
        assert!(matches!(reason, Lost::Taken(_)), "{reason}");
        assert!(since.elapsed() < TTL / 3 + SLACK, "{:?}", since.elapsed());
        assert_eq!(deadline(&leader), BootInstant::default());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_coordinator_hangs_loses() {
    let etcd = Etcd::single().await;
    let first = Candidate::new("first", etcd.endpoints(), TTL.as_secs(), TIMEOUT);
    let mut leader = first.wins().await;
    // Before it serves there is nothing that could hang.
    assert_held_for(&etcd, &mut leader, TTL + Duration::from_millis(500)).await;
    let until = Instant::now() + TTL + Duration::from_millis(500);
    while Instant::now() < until {
        first.pulse.beat();
        assert!(tokio::time::timeout(Duration::from_millis(50), leader.lost()).await.is_err());
    }
    let hung = Instant::now();
    let second = Candidate::new("second", etcd.endpoints(), TTL.as_secs(), TIMEOUT).stands();
    let reason = lost(&mut leader).await;
    assert!(matches!(reason, Lost::Expired(_)), "{reason}");
    assert!(hung.elapsed() < TTL + SLACK, "{:?}", hung.elapsed());
    leader.release().await.unwrap();
    let _second = second.wins().await;

    // The next campaign of the same process is not held back by how the last one ended.
    let standing = first.stands();
    let lease = queue_of(&etcd, 2).await[1];
    tokio::time::sleep(TTL + Duration::from_millis(500)).await;
    assert_eq!(queue_of(&etcd, 2).await[1], lease);
    standing.stops().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_is_followed_when_its_lease_ends() {
    let etcd = Etcd::single().await;
    let proxy = Proxy::to(etcd.members[0].client).await;
    let mut leader = Candidate::new("first", vec![proxy.endpoint()], 2, Duration::from_secs(1)).wins().await;
    let second = Candidate::new("second", etcd.endpoints(), 2, Duration::from_secs(1)).stands();
    queue_of(&etcd, 2).await;
    let cut = Instant::now();
    proxy.black_hole();
    let lost_first = async {
        lost(&mut leader).await;
        Instant::now()
    };
    let (lost_at, won_at) = tokio::join!(lost_first, async {
        let leader = second.wins().await;
        (Instant::now(), leader)
    });
    assert!(lost_at <= won_at.0, "the old one stopped before the new one began");
    assert!(won_at.0 - cut < Duration::from_secs(3), "{:?}", won_at.0 - cut);
}
