//! Every rule by exact outcomes: the actions, the answer, the mark. "No action" included.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use super::*;
use crate::types::{Revision, Term};

const L: u64 = 3000;
const I: Incarnation = Incarnation(7);

fn at(ms: u64) -> BootInstant {
    BootInstant(Duration::from_millis(ms))
}

fn v(term: u64, revision: u64) -> Version {
    Version { term: Term(term), revision: Revision(revision) }
}

fn cluster(number: u128) -> ClusterId {
    ClusterId(uuid::Uuid::from_u128(number))
}

fn set(pairs: &[(u32, u64)]) -> Holdings {
    Holdings::from_pairs(pairs.iter().map(|&(shard, epoch)| (ShardId(shard), Epoch(epoch))))
}

fn answer(version: Version, assignment: Option<Holdings>) -> Answer {
    let lease_ttl = Duration::from_millis(L);
    Answer { cluster_id: cluster(1), version, number_of_shards: 16, lease_ttl, assignment, claim_wanted: false }
}

fn push(version: Version, assignment: Holdings) -> Push {
    Push { cluster_id: cluster(1), version, executor_id: "e".into(), incarnation: I.0, assignment }
}

fn start(shard: u32, epoch: u64) -> Action {
    Action::Start(ShardId(shard), Epoch(epoch))
}

fn stop(shard: u32, epoch: u64) -> Action {
    Action::Stop(ShardId(shard), Epoch(epoch))
}

fn fence(shard: u32, epoch: u64) -> Action {
    Action::Fence(ShardId(shard), Epoch(epoch))
}

fn new() -> Ledger {
    Ledger::new("e".parse().unwrap(), I)
}

fn ended(ledger: &mut Ledger, now: u64, shard: u32, epoch: u64) {
    ledger.ended(at(now), ShardId(shard), Epoch(epoch));
}

/// One call, sent and answered at `now`.
fn call(ledger: &mut Ledger, now: u64, version: Version, assignment: Option<Holdings>) -> Vec<Action> {
    let attempt = ledger.compose(at(now)).unwrap();
    ledger.answered(at(now), &attempt, answer(version, assignment)).unwrap();
    ledger.take_actions()
}

/// Registered at 0 with version 5/10, holding shards 1 and 2 at epoch 9.
fn member() -> Ledger {
    let mut ledger = new();
    assert_eq!(call(&mut ledger, 0, v(5, 10), Some(set(&[(1, 9), (2, 9)]))), [Action::Leased(at(L)), start(1, 9), start(2, 9)]);
    ledger
}

#[test]
fn a_lease_counts_from_the_sending_of_that_very_attempt() {
    let mut ledger = new();
    let attempt = ledger.compose(at(100)).unwrap();
    assert_eq!((attempt.kind, attempt.incarnation, attempt.cluster_id), (Kind::Register, I, None));
    assert_eq!(ledger.answered(at(900), &attempt, answer(v(5, 10), None)), Ok(()));
    assert_eq!(ledger.take_actions(), [Action::Leased(at(100 + L))]);
    assert_eq!(ledger.lease(), Some(at(100 + L)));
}

#[test]
fn an_answer_that_comes_after_the_lease_that_it_grants_changes_nothing() {
    let mut ledger = new();
    let attempt = ledger.compose(at(100)).unwrap();
    assert_eq!(ledger.answered(at(100 + L), &attempt, answer(v(5, 10), Some(set(&[(1, 9)])))), Err(Ignored::Late));
    assert_eq!((ledger.take_actions(), ledger.mark(), ledger.lease()), (vec![], Version::default(), None));
}

#[test]
fn an_answer_below_the_mark_renews_nothing_and_is_ignored() {
    let mut ledger = member();
    let attempt = ledger.compose(at(1000)).unwrap();
    ledger.push(at(1001), &push(v(5, 12), set(&[(1, 9), (2, 9)]))).unwrap();
    let stale = ledger.answered(at(1002), &attempt, answer(v(5, 11), Some(set(&[(1, 9), (2, 9), (3, 9)]))));
    assert_eq!(stale, Err(Ignored::Stale { version: v(5, 11), mark: v(5, 12) }));
    assert_eq!((ledger.take_actions(), ledger.lease(), ledger.mark()), (vec![], Some(at(L)), v(5, 12)));
    // The same version renews, and a higher term is above every revision.
    assert_eq!(call(&mut ledger, 1100, v(5, 12), None), [Action::Leased(at(1100 + L))]);
    assert_eq!(call(&mut ledger, 1200, v(6, 1), None), [Action::Leased(at(1200 + L))]);
}

#[test]
fn case_36_late_and_disordered_pushes_are_refused_and_the_same_one_again_is_harmless() {
    let mut ledger = member();
    assert_eq!(ledger.push(at(10), &push(v(5, 12), set(&[(2, 9), (3, 11)]))), Ok(()));
    assert_eq!(ledger.take_actions(), [stop(1, 9), start(3, 11)]);
    let stale = PushRefusal::StaleTerm { version: v(5, 11), mark: v(5, 12) };
    assert_eq!(ledger.push(at(11), &push(v(5, 11), set(&[(1, 9), (2, 9)]))), Err(stale));
    assert_eq!(ledger.push(at(12), &push(v(5, 12), set(&[(2, 9), (3, 11)]))), Ok(()));
    assert_eq!(ledger.take_actions(), []);
    assert_eq!(*ledger.held(), set(&[(1, 9), (2, 9), (3, 11)]), "what stops is still held");
    ended(&mut ledger, 20, 1, 9);
    assert_eq!((&*ledger.held(), ledger.is_settled()), (&set(&[(2, 9), (3, 11)]), true));
}

#[test]
fn a_push_for_somebody_else_bounces_and_changes_nothing() {
    let mut ledger = member();
    let good = push(v(5, 12), set(&[]));
    let foreign = Push { cluster_id: cluster(2), ..good.clone() };
    assert_eq!(
        ledger.push(at(10), &foreign),
        Err(PushRefusal::WrongCluster { named: cluster(2), actual: cluster(1) }),
        "and never makes it register anew (L12)"
    );
    assert_eq!(ledger.compose(at(10)).unwrap().kind, Kind::Renew);
    for wrong in [Push { incarnation: 8, ..good.clone() }, Push { executor_id: "f".into(), ..good.clone() }] {
        assert!(matches!(ledger.push(at(10), &wrong), Err(PushRefusal::WrongIncarnation { .. })));
    }
    let beyond = push(v(5, 12), set(&[(16, 9)]));
    assert_eq!(ledger.push(at(10), &beyond), Err(PushRefusal::NoSuchShard { shard: ShardId(16), number_of_shards: 16 }));
    assert_eq!((ledger.take_actions(), ledger.mark()), (vec![], v(5, 10)));
    assert_eq!(new().push(at(0), &good), Err(PushRefusal::NotReady));
}

#[test]
fn case_34_a_push_never_extends_a_lease() {
    let mut ledger = member();
    ledger.push(at(L - 1), &push(v(5, 12), set(&[(1, 9), (2, 9)]))).unwrap();
    assert_eq!(ledger.lease(), Some(at(L)));
    assert_eq!(ledger.push(at(L), &push(v(5, 13), set(&[(1, 9), (2, 9)]))), Err(PushRefusal::LeaseOver));
    assert_eq!(ledger.take_actions(), [fence(1, 9), fence(2, 9)]);
}

#[test]
fn case_33_after_a_long_stop_every_shard_is_fenced_before_anything_is_taken_in() {
    let mut ledger = member();
    // The process slept. Whatever comes first, the fences stand before it.
    let attempt = ledger.compose(at(60_000)).unwrap();
    assert_eq!(ledger.take_actions(), [fence(1, 9), fence(2, 9)]);
    assert_eq!(attempt.claim.len(), 2, "until they are dropped they are held");
    ended(&mut ledger, 60_001, 1, 9);
    ended(&mut ledger, 60_001, 2, 9);
    let attempt = ledger.compose(at(60_002)).unwrap();
    assert_eq!((attempt.kind, attempt.incarnation, attempt.claim.len()), (Kind::Renew, I, 0));
    assert_eq!(ledger.take_actions(), []);
}

#[test]
fn case_33_a_shard_that_is_not_dropped_yet_is_not_started_again() {
    let mut ledger = member();
    ledger.look(at(L));
    assert_eq!(ledger.take_actions(), [fence(1, 9), fence(2, 9)]);
    assert_eq!(call(&mut ledger, L + 1, v(5, 11), Some(set(&[(1, 9)]))), [Action::Leased(at(L + 1 + L))]);
    ended(&mut ledger, L + 2, 2, 9);
    assert_eq!(ledger.take_actions(), []);
    ended(&mut ledger, L + 3, 1, 9);
    assert_eq!(ledger.take_actions(), [start(1, 9)]);
}

#[test]
fn case_39_a_manager_that_comes_back_gives_the_set_again_at_the_same_epochs() {
    let mut ledger = member();
    ledger.look(at(L));
    ended(&mut ledger, L, 1, 9);
    ended(&mut ledger, L, 2, 9);
    ledger.take_actions();
    let again = call(&mut ledger, 9000, v(6, 1), Some(set(&[(1, 9), (2, 9)])));
    assert_eq!(again, [Action::Leased(at(9000 + L)), start(1, 9), start(2, 9)]);
}

#[test]
fn case_38_a_lost_answer_loses_nothing() {
    let mut ledger = member();
    let lost = ledger.compose(at(1000)).unwrap();
    assert_eq!(call(&mut ledger, 1200, v(5, 10), None), [Action::Leased(at(1200 + L))]);
    assert!(lost.in_full && !ledger.compose(at(1300)).unwrap().in_full, "a claim that was answered need not be repeated");
    assert_eq!(*ledger.held(), set(&[(1, 9), (2, 9)]));
}

#[test]
fn case_35_an_answer_lacks_what_is_released_and_that_keeps_its_old_deadline() {
    let mut ledger = member();
    assert_eq!(call(&mut ledger, 1000, v(5, 11), Some(set(&[(2, 9)]))), [stop(1, 9), Action::Leased(at(1000 + L))]);
    assert_eq!(ledger.next_look(), Some(at(L)), "the lease of shard 1 is not renewed (L6)");
    assert_eq!(call(&mut ledger, 2000, v(5, 11), Some(set(&[(2, 9)]))), [Action::Leased(at(2000 + L))]);
    ledger.look(at(L - 1));
    assert_eq!(ledger.take_actions(), []);
    ledger.look(at(L));
    assert_eq!(ledger.take_actions(), [fence(1, 9)], "case 63: renewing for ever does not keep it");
    assert_eq!(*ledger.held(), set(&[(1, 9), (2, 9)]));
}

#[test]
fn case_59_every_attempt_carries_the_mark_that_its_claim_was_true_at() {
    let mut ledger = new();
    call(&mut ledger, 0, v(5, 10), None);
    let early = ledger.compose(at(10)).unwrap();
    ledger.push(at(11), &push(v(5, 11), set(&[(1, 9)]))).unwrap();
    assert_eq!((early.mark, early.claim.len()), (v(5, 10), 0));
    let later = ledger.compose(at(12)).unwrap();
    assert_eq!((later.mark, &*later.claim), (v(5, 11), &set(&[(1, 9)])));
}

#[test]
fn case_60_a_push_from_before_the_fresh_lease_is_refused() {
    let mut ledger = member();
    ledger.look(at(L));
    ended(&mut ledger, L, 1, 9);
    ended(&mut ledger, L, 2, 9);
    ledger.take_actions();
    // No difference to report: the answer has no set, and still raises the mark (L3).
    assert_eq!(call(&mut ledger, 9000, v(5, 14), None), [Action::Leased(at(9000 + L))]);
    let delayed = push(v(5, 11), set(&[(1, 9), (2, 9)]));
    assert_eq!(ledger.push(at(9001), &delayed), Err(PushRefusal::StaleTerm { version: v(5, 11), mark: v(5, 14) }));
    assert_eq!(ledger.take_actions(), []);
}

#[test]
fn case_58_a_lease_that_is_being_ended_is_not_given_up_on() {
    // LEASE_ENDING means "ask again" and does not reach the ledger; what follows does.
    let mut ledger = member();
    let attempt = ledger.compose(at(1000)).unwrap();
    ledger.refused(at(1001), &attempt, Verdict::UnknownExecutor, Incarnation(8));
    assert_eq!(ledger.take_actions(), [stop(1, 9), stop(2, 9)]);
    assert_eq!(ledger.compose(at(1002)), None, "everything stops first");
    assert_eq!(ledger.push(at(1002), &push(v(5, 20), set(&[(3, 9)]))), Err(PushRefusal::NotReady));
    ended(&mut ledger, 1003, 1, 9);
    ended(&mut ledger, 1004, 2, 9);
    let attempt = ledger.compose(at(1005)).unwrap();
    assert_eq!((attempt.kind, attempt.incarnation), (Kind::Register, Incarnation(8)));
    assert_eq!((attempt.cluster_id, attempt.mark), (Some(cluster(1)), v(5, 10)), "it tells where it comes from");
    assert_eq!(ledger.lease(), None);
}

#[test]
fn who_was_removed_stops_everything_and_registers_until_it_is_admitted() {
    let mut ledger = member();
    let attempt = ledger.compose(at(1000)).unwrap();
    ledger.refused(at(1001), &attempt, Verdict::Removed, Incarnation(8));
    assert_eq!(ledger.take_actions(), [stop(1, 9), stop(2, 9)]);
    ended(&mut ledger, 1003, 1, 9);
    ended(&mut ledger, 1004, 2, 9);
    for now in [2000, 4000, 8000] {
        let attempt = ledger.compose(at(now)).unwrap();
        assert_eq!((attempt.kind, attempt.incarnation), (Kind::Register, Incarnation(8)));
        ledger.refused(at(now), &attempt, Verdict::Removed, Incarnation(9));
        assert_eq!((ledger.take_actions(), ledger.end()), (vec![], None));
    }
    assert_eq!(call(&mut ledger, 9000, v(5, 30), Some(set(&[(1, 12)]))), [Action::Leased(at(9000 + L)), start(1, 12)]);
}

#[test]
fn who_was_removed_ends_when_it_is_asked_to() {
    let mut ledger = new();
    let attempt = ledger.compose(at(0)).unwrap();
    ledger.refused(at(1), &attempt, Verdict::Removed, Incarnation(8));
    ledger.stop(at(2));
    assert_eq!(ledger.end(), Some(End::Stopped), "nobody knows of it");
}

#[test]
fn shards_that_do_not_stop_hold_a_new_registration_up_until_their_lease_ends() {
    let mut ledger = member();
    let attempt = ledger.compose(at(1000)).unwrap();
    ledger.refused(at(1001), &attempt, Verdict::UnknownExecutor, Incarnation(8));
    ended(&mut ledger, 1002, 1, 9);
    ledger.take_actions();
    assert_eq!((ledger.compose(at(L - 1)), ledger.next_look()), (None, Some(at(L))));
    assert_eq!(ledger.compose(at(L)), None);
    assert_eq!(ledger.take_actions(), [fence(2, 9)]);
    ended(&mut ledger, L, 2, 9);
    assert_eq!(ledger.compose(at(L)).unwrap().kind, Kind::Register);
}

#[test]
fn l12_only_the_answer_to_an_own_call_makes_it_join_another_cluster() {
    let mut ledger = member();
    let attempt = ledger.compose(at(1000)).unwrap();
    let foreign = Answer { cluster_id: cluster(2), ..answer(v(1, 1), None) };
    assert_eq!(ledger.answered(at(1001), &attempt, foreign.clone()), Err(Ignored::Foreign { named: cluster(2) }));
    ledger.refused(at(1001), &attempt, Verdict::WrongCluster, Incarnation(8));
    assert_eq!(ledger.take_actions(), [stop(1, 9), stop(2, 9)]);
    ended(&mut ledger, 1002, 1, 9);
    ended(&mut ledger, 1002, 2, 9);
    let attempt = ledger.compose(at(1003)).unwrap();
    assert_eq!((attempt.cluster_id, attempt.mark), (Some(cluster(1)), v(5, 10)));
    // A lower version, but of another cluster: they do not compare.
    assert_eq!(ledger.answered(at(1004), &attempt, foreign), Ok(()));
    assert_eq!((ledger.cluster_id(), ledger.mark()), (Some(cluster(2)), v(1, 1)));
}

#[test]
fn case_66_superseded_stops_everything_then_deregisters_its_own_incarnation_then_ends() {
    let mut ledger = member();
    let attempt = ledger.compose(at(1000)).unwrap();
    ledger.refused(at(1001), &attempt, Verdict::Superseded, Incarnation(8));
    assert_eq!(ledger.take_actions(), [stop(1, 9), stop(2, 9)]);
    assert_eq!(ledger.push(at(1002), &push(v(5, 20), set(&[]))), Err(PushRefusal::Stopping));
    ended(&mut ledger, 1003, 1, 9);
    assert_eq!(ledger.compose(at(1004)), None);
    ended(&mut ledger, 1005, 2, 9);
    let attempt = ledger.compose(at(1006)).unwrap();
    assert_eq!((attempt.kind, attempt.incarnation), (Kind::Deregister, I));
    assert_eq!(ledger.end(), None);
    ledger.deregistered();
    assert_eq!((ledger.end(), ledger.compose(at(1007))), (Some(End::Superseded), None));
}

#[test]
fn case_66_answers_to_an_incarnation_that_is_no_more_change_nothing() {
    let mut ledger = new();
    call(&mut ledger, 0, v(5, 10), None);
    let old = ledger.compose(at(100)).unwrap();
    ledger.refused(at(101), &old, Verdict::UnknownExecutor, Incarnation(8));
    assert_eq!(ledger.incarnation(), Incarnation(8));
    assert_eq!(ledger.answered(at(102), &old, answer(v(5, 11), Some(set(&[(1, 9)])))), Err(Ignored::Outdated));
    ledger.refused(at(103), &old, Verdict::Superseded, Incarnation(9));
    assert_eq!((ledger.take_actions(), ledger.compose(at(104)).unwrap().kind), (vec![], Kind::Register));
    // Nor when the new one is registered and awaits an answer of the same kind.
    call(&mut ledger, 105, v(5, 12), None);
    assert_eq!(ledger.answered(at(106), &old, answer(v(5, 13), Some(set(&[(1, 9)])))), Err(Ignored::Outdated));
    ledger.refused(at(107), &old, Verdict::Superseded, Incarnation(9));
    assert_eq!((ledger.take_actions(), ledger.compose(at(108)).unwrap().kind), (vec![], Kind::Renew));
}

#[test]
fn a_higher_epoch_of_a_held_shard_starts_only_after_the_old_one_ended() {
    let mut ledger = member();
    ledger.push(at(10), &push(v(5, 11), set(&[(1, 12), (2, 9)]))).unwrap();
    assert_eq!(ledger.take_actions(), [stop(1, 9)]);
    assert_eq!(*ledger.held(), set(&[(1, 9), (2, 9)]));
    ended(&mut ledger, 11, 1, 12);
    assert_eq!(ledger.take_actions(), [], "an end of another epoch is not this one's");
    ended(&mut ledger, 12, 1, 9);
    assert_eq!(ledger.take_actions(), [start(1, 12)]);
}

#[test]
fn a_lower_epoch_of_a_held_shard_stops_nothing_and_the_claim_says_so() {
    let mut ledger = member();
    ledger.push(at(10), &push(v(6, 1), set(&[(1, 5), (2, 9)]))).unwrap();
    assert_eq!((ledger.take_actions(), ledger.mark()), (vec![], v(6, 1)));
    assert_eq!(*ledger.held(), set(&[(1, 9), (2, 9)]));
    // Nor while it stops for another reason.
    ledger.push(at(11), &push(v(6, 2), set(&[(2, 9)]))).unwrap();
    assert_eq!(ledger.take_actions(), [stop(1, 9)]);
    ledger.push(at(12), &push(v(6, 3), set(&[(1, 5), (2, 9)]))).unwrap();
    ended(&mut ledger, 13, 1, 9);
    assert_eq!(ledger.take_actions(), [start(1, 9)]);
}

#[test]
fn an_answer_without_a_set_means_the_claim_as_it_was_sent() {
    let mut ledger = member();
    let attempt = ledger.compose(at(1000)).unwrap();
    ledger.push(at(1001), &push(v(5, 11), set(&[(1, 9), (2, 9), (3, 11)]))).unwrap();
    ledger.take_actions();
    // Taken at a later state, in which shard 3 is already being released.
    ledger.answered(at(1002), &attempt, answer(v(5, 12), None)).unwrap();
    assert_eq!(ledger.take_actions(), [stop(3, 11), Action::Leased(at(1000 + L))]);
}

#[test]
fn an_answer_that_says_nothing_about_the_set_renews_nothing() {
    let mut ledger = member();
    call(&mut ledger, 100, v(5, 10), None);
    let attempt = ledger.compose(at(1000)).unwrap();
    assert!(!attempt.in_full);
    let unsure = Answer { claim_wanted: true, ..answer(v(6, 1), None) };
    assert_eq!(ledger.answered(at(1001), &attempt, unsure.clone()), Err(Ignored::ClaimWanted));
    assert_eq!((ledger.lease(), ledger.has_news()), (Some(at(100 + L)), true));
    let attempt = ledger.compose(at(1002)).unwrap();
    assert!(attempt.in_full);
    assert_eq!(ledger.answered(at(1003), &attempt, unsure), Ok(()));
    assert!(!ledger.has_news(), "a manager that asks again for what it just got is not asked in a busy loop");
}

#[test]
fn a_shard_whose_work_ended_unasked_is_not_held_and_is_run_again_later_and_later() {
    let mut ledger = member();
    let mut now = 10;
    for rest in [100, 200, 400] {
        ended(&mut ledger, now, 1, 9);
        assert_eq!((ledger.take_actions(), &*ledger.held()), (vec![], &set(&[(2, 9)])));
        assert!(ledger.has_news());
        ledger.look(at(now + rest - 1));
        assert_eq!(ledger.take_actions(), []);
        now += rest;
        ledger.look(at(now));
        assert_eq!(ledger.take_actions(), [start(1, 9)]);
    }
}

#[test]
fn a_shard_that_rests_is_not_run_again_once_it_is_assigned_no_more() {
    let mut ledger = member();
    ended(&mut ledger, 10, 1, 9);
    ledger.push(at(20), &push(v(5, 11), set(&[(2, 9)]))).unwrap();
    ledger.look(at(1000));
    assert_eq!((ledger.take_actions(), ledger.next_look()), (vec![], Some(at(L))));
}

#[test]
fn leaving_is_said_until_heard_and_is_done_when_nothing_is_left() {
    let mut ledger = member();
    call(&mut ledger, 10, v(5, 10), None);
    ledger.leave(at(20));
    assert!(ledger.has_news() && !ledger.has_left());
    assert!(ledger.compose(at(21)).unwrap().leaving);
    call(&mut ledger, 22, v(5, 10), None);
    assert!(!ledger.has_news() && !ledger.has_left());
    ledger.push(at(30), &push(v(5, 12), set(&[]))).unwrap();
    ended(&mut ledger, 31, 1, 9);
    assert!(!ledger.has_left());
    ended(&mut ledger, 32, 2, 9);
    assert!(ledger.has_left());
    ledger.stop(at(33));
    assert_eq!(ledger.compose(at(34)).unwrap().kind, Kind::Deregister);
}

#[test]
fn an_epoch_that_the_storage_has_seen_is_told_until_an_answer_came() {
    let mut ledger = member();
    call(&mut ledger, 10, v(5, 10), None);
    ledger.storage_has_seen(ShardId(1), Epoch(30));
    ledger.storage_has_seen(ShardId(1), Epoch(20));
    assert!(ledger.has_news());
    let attempt = ledger.compose(at(20)).unwrap();
    assert_eq!(attempt.storage_epochs, set(&[(1, 30)]));
    ledger.storage_has_seen(ShardId(1), Epoch(31));
    ledger.answered(at(21), &attempt, answer(v(5, 10), None)).unwrap();
    assert_eq!(ledger.compose(at(22)).unwrap().storage_epochs, set(&[(1, 31)]), "what came later is still to be told");
}

#[test]
fn the_digest_stays_that_of_what_is_held() {
    let mut ledger = member();
    ledger.push(at(10), &push(v(5, 12), set(&[(2, 11), (3, 11)]))).unwrap();
    for (shard, epoch) in [(1, 9), (2, 9)] {
        assert_eq!(ledger.held().digest(), ledger.shards.digest());
        ended(&mut ledger, 11, shard, epoch);
    }
    assert_eq!((ledger.shards.digest(), &*ledger.held()), (set(&[(2, 11), (3, 11)]).digest(), &set(&[(2, 11), (3, 11)])));
}

#[test]
fn a_registration_whose_answer_was_lost_until_its_lease_ended_is_made_anew() {
    let mut ledger = new();
    let attempt = ledger.compose(at(0)).unwrap();
    ledger.refused(at(9000), &attempt, Verdict::UnknownExecutor, Incarnation(8));
    let attempt = ledger.compose(at(9000)).unwrap();
    assert_eq!((attempt.kind, attempt.incarnation), (Kind::Register, Incarnation(8)));
}

#[test]
fn a_stop_before_the_registration_was_answered_settles_its_outcome_first() {
    let mut ledger = new();
    ledger.stop(at(0));
    assert_eq!((ledger.end(), ledger.compose(at(0))), (Some(End::Stopped), None), "nobody knows of it");

    let mut ledger = new();
    let first = ledger.compose(at(0)).unwrap();
    ledger.stop(at(1));
    assert_eq!(ledger.end(), None, "it is under way");
    ledger.unanswered(at(2), &first, false);
    assert_eq!(ledger.end(), Some(End::Stopped), "it never left");

    let mut ledger = new();
    let first = ledger.compose(at(0)).unwrap();
    ledger.unanswered(at(1), &first, true);
    let second = ledger.compose(at(2)).unwrap();
    ledger.stop(at(3));
    ledger.unanswered(at(4), &second, false);
    let third = ledger.compose(at(5)).unwrap();
    assert_eq!((third.kind, third.incarnation), (Kind::Register, I), "the first may have arrived");
    assert_eq!(ledger.answered(at(6), &third, answer(v(5, 1), Some(set(&[(1, 9)])))), Err(Ignored::Outdated));
    assert_eq!((ledger.take_actions(), ledger.lease()), (vec![], None), "it takes nothing any more");
    let farewell = ledger.compose(at(7)).unwrap();
    assert_eq!((farewell.kind, farewell.incarnation, farewell.cluster_id), (Kind::Deregister, I, Some(cluster(1))));
    ledger.deregistered();
    assert_eq!(ledger.end(), Some(End::Stopped));
}

/// It was registered, and would have deregistered without a cluster to name: its shards would have waited for the end of its lease.
#[test]
fn an_answer_to_a_registration_that_comes_too_late_leaves_open_where_it_is_known() {
    let mut ledger = new();
    let attempt = ledger.compose(at(0)).unwrap();
    assert_eq!(ledger.answered(at(L), &attempt, answer(v(5, 1), Some(set(&[(1, 9)])))), Err(Ignored::Late));
    ledger.stop(at(L + 1));
    let again = ledger.compose(at(L + 2)).unwrap();
    assert_eq!((again.kind, again.incarnation), (Kind::Register, I), "the answer says where it is to be deregistered");
    assert_eq!(ledger.answered(at(L + 3), &again, answer(v(5, 2), None)), Err(Ignored::Outdated));
    let farewell = ledger.compose(at(L + 4)).unwrap();
    assert_eq!((farewell.kind, farewell.cluster_id), (Kind::Deregister, Some(cluster(1))));
}
