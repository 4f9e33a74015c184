//! Taking over, and being late.

use std::time::Duration;

use super::rig::*;
use crate::assignment::command::{Answer, Command, Notice, Refusal};
use crate::assignment::event::{Claim, Event, Registration, Renewal, Settings};
use crate::holdings::Holdings;
use crate::types::{MAX_SHOWN, MAX_SHOWN_BY_READERS, Revision, Term, Version};

/// The same store under a new leader, an hour later; executors live on with what they hold.
pub(super) fn successor(rig: &Rig, settings: Settings, unix_ms: u64) -> Rig {
    let mut next = Rig::starting(
        settings,
        takeover(rig.state().meta.number_of_shards, unix_ms),
        Some((Revision(rig.revision), rig.state().clone())),
    );
    next.executors = rig.executors.clone();
    next
}

#[test]
fn the_first_commit_raises_the_term_and_nothing_is_answered_before_it() {
    let mut rig = Rig::starting(settings(), takeover(3000, TERM), None);
    let commands = rig.register(rig.registration("a", 11, "http://10.0.0.1:1"));
    assert_eq!(replies(&commands), [Err(Refusal::NotReady)]);
    let commands = rig.turn();
    let [Command::Commit { expected: None, changes }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!((changes.meta.term, changes.meta.attempt, changes.meta.lease_ttl_ms), (Term(TERM), 1, 10_000));
    assert!(changes.shards.is_empty(), "pages that hold nothing but defaults are not written");
    assert_eq!(kinds(&rig.commit()), ["publish"]);
    assert_eq!(rig.turn(), [], "the port is closed: nothing to do");
    assert_eq!(rig.engine.next_turn(), rig.now.after(TICK), "and nothing to hurry for");
    assert_eq!(rig.step(Event::PortOpened), []);
    assert_eq!(rig.turn(), []);
}

#[test]
fn a_new_leader_moves_nothing_just_because_it_is_new() {
    let mut rig = Rig::new(30);
    for (name, incarnation) in [("a", 11), ("b", 21), ("c", 31)] {
        rig.join(name, incarnation);
    }
    rig.pass(SETTLE);
    let owners = rig.owners();
    let mut next = successor(&rig, settings(), TERM + 500);
    let commands = next.open();
    assert_eq!(kinds(&commands), ["connect"; 3], "it tells nobody anything before it has heard them");
    let revision = next.revision;
    next.pass(LEASE * 3);
    assert_eq!(next.owners(), owners, "same owners at the same epochs");
    assert_eq!(next.revision, revision, "and not a write");
    assert_eq!(next.state().meta.term, Term(TERM + 500));
}

#[test]
fn terms_grow_also_where_the_wall_clock_went_back() {
    let mut rig = Rig::new(1);
    rig.join("a", 11);
    let mut next = successor(&rig, settings(), 5);
    next.open();
    assert_eq!(next.state().meta.term, Term(TERM + 1));
}

#[test]
fn l8_nobodys_lease_ends_earlier_than_a_full_lease_after_the_port_opened() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    let mut next = successor(&rig, settings(), TERM + 1);
    next.executors.get_mut("a").expect("a").deaf = true;
    assert_eq!(kinds(&next.turn()), ["commit"]);
    next.commit();
    for _ in 0..300 {
        next.now = next.now.after(TICK);
        assert_eq!(next.turn(), [], "before the port is open nobody can renew, so nobody is late");
    }
    next.step(Event::PortOpened);
    next.pass(LEASE + MARGIN - TICK);
    assert_eq!(next.count("a"), 2);
    next.pass(TICK * 2);
    assert_eq!(next.count("a"), 0);
}

#[test]
fn l8_a_shorter_lease_waits_until_the_longer_one_has_run_out() {
    let minute = Settings { lease_ttl: Duration::from_secs(60), ..settings() };
    let mut rig = Rig::with(minute, 2);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE);
    let quarter = Settings { lease_ttl: Duration::from_secs(15), ..settings() };
    let mut next = successor(&rig, quarter.clone(), TERM + 1);
    next.open();
    next.executors.get_mut("a").expect("a").deaf = true;
    assert_eq!(next.state().meta.lease_ttl_ms, 60_000);
    next.pass(Duration::from_secs(60));
    assert_eq!(next.count("a"), 1, "it may count on what the old leader gave it");
    next.pass(Duration::from_secs(2));
    assert_eq!((next.count("a"), next.count("b")), (0, 2));
    assert_eq!(next.state().meta.lease_ttl_ms, 15_000, "from here on ours is the longest");
    // And the leader after it need not wait for a minute.
    let mut third = successor(&next, quarter, TERM + 2);
    third.open();
    third.executors.get_mut("b").expect("b").deaf = true;
    third.pass(Duration::from_secs(16));
    assert_eq!(third.count("b"), 0);
}

#[test]
fn l4_past_its_belief_a_leader_answers_and_takes_nothing() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE);
    rig.engine.believe_until(rig.now.after(TICK));
    let renewal = rig.renewal(&rig.executors["a"].clone());
    assert!(matches!(&replies(&rig.renew(renewal.clone()))[..], [Ok(Answer::Lease(_))]));
    rig.now = rig.now.after(TICK);
    assert_eq!(replies(&rig.renew(renewal)), [Err(Refusal::LeadershipLost)]);
    rig.now = rig.now.after(LEASE * 2);
    assert_eq!(kinds(&rig.turn()).iter().filter(|kind| **kind == "commit").count(), 0);
}

#[test]
fn a_leader_past_its_belief_that_has_something_to_do_does_not_take_turn_after_turn() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.engine.believe_until(rig.now.after(TICK));
    rig.now = rig.now.after(TICK);
    let it = rig.executors["a"].clone();
    rig.step(Event::Probed { slot: it.slot.expect("connected"), incarnation: it.incarnation, healthy: false });
    assert_eq!(kinds(&rig.turn()), Vec::<&str>::new());
    assert_eq!(rig.engine.next_turn(), rig.now.after(TICK));
}

#[test]
fn l9_p10_a_leader_that_was_stopped_declares_nobody_dead_for_what_it_did_not_read() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE);
    rig.now = rig.now.after(LEASE * 3);
    let commands = rig.turn();
    assert!(matches!(&notices(&commands)[..], [Notice::Stalled { delay }] if *delay > LEASE * 2), "{commands:?}");
    assert_eq!(kinds(&commands), ["notice"]);
    assert!(rig.overview().executors.iter().all(|it| it.lease_remaining > LEASE / 2));
    assert!(rig.renew_as("a").is_ok());
    rig.executors.get_mut("b").expect("b").deaf = true;
    rig.pass(LEASE + MARGIN);
    assert_eq!((rig.count("a"), rig.count("b")), (2, 0), "who is really dead is found out all the same");
}

#[test]
fn l10_whoever_has_seen_a_higher_version_is_answered_only_under_a_term_above_it() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    let a = rig.executors["a"].clone();
    let shown = version(TERM + 40, 3);
    assert_eq!(rig.renew(Renewal { mark: shown, ..rig.renewal(&a) }), []);
    let commands = rig.settle();
    let [Ok(Answer::Lease(answer))] = &replies(&commands)[..] else { panic!("{commands:?}") };
    assert!(answer.version > shown, "{:?}", answer.version);
    assert!(notices(&commands).contains(&Notice::TermRaised { shown }));
    assert_eq!(rig.state().meta.term, Term(TERM + 41));
    // What this very leadership had said under its earlier term proves nothing.
    let commands = rig.renew(rig.renewal(&a));
    assert!(matches!(&replies(&commands)[..], [Ok(Answer::Lease(_))]), "{commands:?}");
    assert_eq!(rig.settle(), []);

    let request = rig.request();
    rig.step(Event::Heard(request, version(TERM + 90, 1)));
    let commands = rig.settle();
    assert!(matches!(&replies(&commands)[..], [Ok(Answer::Current(Version { term: Term(term), .. }))] if *term == TERM + 91));
    let request = rig.request();
    for term in [(1 << 60) + 1, 1 << 61, 1 << 62, u64::MAX] {
        rig.step(Event::Heard(request, version(term, 1)));
        assert!(matches!(&replies(&rig.settle())[..], [Err(Refusal::InvalidArgument(_))]), "that leaves no room to grow");
    }
    let request = rig.request();
    rig.step(Event::Heard(request, version(TERM, 1)));
    assert!(matches!(&replies(&rig.settle())[..], [Ok(Answer::Current(_))]), "an older one changes nothing");
}

/// One reader raised the term as far as it can; then the store was put back to before.
#[test]
fn l10_what_came_of_the_highest_term_that_a_reader_may_show_can_be_shown_by_executors() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    let before = rig.state().clone();
    let request = rig.request();
    rig.step(Event::Heard(request, version(MAX_SHOWN_BY_READERS, 1)));
    assert!(matches!(&replies(&rig.settle())[..], [Ok(Answer::Current(_))]));
    rig.renew_as("a").expect("a lease");
    let mark = rig.executors["a"].mark;
    assert_eq!(mark.term, Term(MAX_SHOWN_BY_READERS + 1));
    let mut next = Rig::starting(settings(), takeover(2, TERM + 7), Some((Revision(rig.revision), before)));
    next.executors = rig.executors.clone();
    next.open();
    next.settle();
    assert_eq!(next.renew(next.renewal(&next.executors["a"])), [], "the term goes above its mark first");
    let commands = next.settle();
    assert!(matches!(&replies(&commands)[..], [Ok(Answer::Lease(answer))] if answer.version > mark), "{commands:?}");
}

/// It would follow nothing that it is told, and be granted shards again and again.
#[test]
fn l10_whoever_registers_with_a_mark_that_leaves_no_room_is_refused_as_if_it_renewed() {
    let mut rig = Rig::new(2);
    let before = Some((rig.state().meta.cluster_id, version(MAX_SHOWN + 1, 1)));
    let registration = Registration { before, ..rig.registration("a", 11, "http://10.0.0.1:1") };
    rig.register(registration);
    let commands = rig.settle();
    assert!(matches!(&replies(&commands)[..], [Err(Refusal::InvalidArgument(_))]), "{commands:?}");
    assert_eq!(rig.state().executors().count(), 0);
}

#[test]
fn a_handoff_that_a_leader_began_is_ended_by_the_next_one() {
    let mut rig = Rig::new(1);
    rig.join("a", 11);
    rig.pass(SETTLE);
    rig.join("b", 21);
    rig.executors.get_mut("a").expect("a").deaf = true;
    rig.wish("a", crate::assignment::record::Wish::Drain);
    rig.now = rig.now.after(SETTLE);
    rig.settle();
    assert_eq!(rig.owners(), [format!("~a={TERM}")]);
    let mut next = successor(&rig, settings(), TERM + 7);
    next.open();
    next.settle();
    assert_eq!(next.owners(), [format!("~a={TERM}")]);
    // What a says under the old leader's word does not confirm under the new one's: its release is a new one.
    let old_mark = rig.version();
    let mut a = next.executors["a"].clone();
    (a.mark, a.held) = (old_mark, Holdings::default());
    next.renew(next.renewal(&a));
    next.settle();
    assert_eq!(next.owners(), [format!("~a={TERM}")]);
    a.mark = next.version();
    next.renew(next.renewal(&a));
    let _ = next.renew_as("b");
    next.pass(SETTLE);
    assert_eq!(next.owners(), [format!("b={}", TERM + 7)]);
}

#[test]
fn nothing_new_goes_to_an_executor_that_this_leader_has_not_heard() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.join("b", 21);
    // Nothing granted yet when the leader goes.
    let mut next = successor(&rig, settings(), TERM + 7);
    next.executors.get_mut("a").expect("a").deaf = true;
    next.open();
    next.pass(SETTLE * 4);
    assert_eq!((next.count("a"), next.count("b")), (0, 2));
}

#[test]
fn no_two_commits_of_a_leadership_have_the_same_number() {
    let mut rig = Rig::new(2);
    let mut attempts = Vec::new();
    for round in 0..4 {
        rig.register(rig.registration("a", 11 + round, "http://10.0.0.1:1"));
        rig.now = rig.now.max(rig.engine.next_turn());
        let commands = rig.turn();
        let [Command::Commit { changes, .. }] = &commands[..] else { panic!("{commands:?}") };
        attempts.push(changes.meta.attempt);
        if round % 2 == 0 {
            rig.step(Event::CommitFailed);
        } else {
            rig.commit();
        }
    }
    assert_eq!(attempts, [2, 3, 4, 5]);
}

#[test]
fn before_the_port_is_open_nobody_is_told_that_a_lease_is_over() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    let mut next = successor(&rig, settings(), TERM + 1);
    next.turn();
    next.commit();
    let renewal = next.renewal(&next.executors["a"].clone());
    assert_eq!(replies(&next.renew(renewal)), [Err(Refusal::NotReady)]);
}

/// A backup knows an older incarnation of an executor that lives on: it must not be taken for the superseded one.
#[test]
fn over_a_restored_store_a_live_executor_registers_anew_instead_of_ending() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    let backup = successor(&rig, settings(), TERM + 1);
    rig.join_at("a", 12, "http://10.0.0.1:1");
    rig.pass(SETTLE);
    let mut restored = backup;
    restored.executors = rig.executors.clone();
    restored.open();
    let a = restored.executors["a"].clone();
    restored.renew(restored.renewal(&a));
    let refusal = Refusal::UnknownExecutor { id: id("a") };
    let commands = restored.settle();
    let heard = replies(&commands);
    assert!(heard.contains(&Err(refusal)), "{heard:?}");
}

/// Only the owner can raise its epoch and stay at it: a superseded process that shows a higher one is gone above.
#[test]
fn the_claim_of_a_superseded_incarnation_does_not_count_as_its_successors() {
    let mut rig = Rig::new(1);
    rig.join_at("a", 11, "http://10.0.0.1:1");
    rig.pass(SETTLE);
    let old = rig.executors["a"].clone();
    rig.join_at("a", 12, "http://10.0.0.1:1");
    let renewal = Renewal { claim: Claim::Full(held(&[(0, 5000)])), ..rig.renewal(&old) };
    rig.renew(renewal);
    rig.settle();
    assert_eq!(rig.owners(), ["a=5001"]);
}

/// Case 29: a backup is put in place of the store under running executors. What a newer owner holds, which the backup knows nothing of, is
/// given to nobody before its lease must be over, and then at a higher epoch.
#[test]
fn a_store_that_was_restored_gives_nobody_what_somebody_else_may_hold() {
    let mut rig = Rig::new(6);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE);
    let backup = successor(&rig, settings(), TERM + 1000);
    let before = rig.owners();
    rig.join("c", 31);
    rig.pass(SETTLE * 2);
    assert_eq!((rig.count("a"), rig.count("b"), rig.count("c")), (2, 2, 2));
    let kept: Vec<bool> = before.iter().zip(rig.owners()).map(|(before, now)| *before == now).collect();

    let mut restored = backup;
    restored.executors = rig.executors.clone();
    restored.executors.remove("c");
    restored.open();
    let answer = restored.renew(restored.renewal(&restored.executors["a"].clone()));
    assert_eq!(answer, [], "not before it is settled what may be answered");
    let commands = restored.settle();
    assert!(notices(&commands).iter().any(|it| matches!(it, Notice::StoreRestored { .. })), "{commands:?}");
    let [Ok(Answer::Lease(answer))] = &replies(&commands)[..] else { panic!("{commands:?}") };
    let held = restored.executors["a"].held.clone();
    assert!(answer.assignment.is_none() && held.len() == 2, "it goes on with what it has, and gets nothing");
    // By digest alone nothing is given either.
    let b = restored.executors["b"].clone();
    let digest = Claim::Digest(b.held.digest());
    let commands = restored.renew(Renewal { claim: digest, ..restored.renewal(&b) });
    let [Ok(Answer::Lease(answer))] = &replies(&commands)[..] else { panic!("{commands:?}") };
    assert!(answer.assignment.is_none() && answer.claim_wanted, "{answer:?}");
    assert_eq!(restored.renew(restored.renewal(&b)), [], "what it lacks is asked back before it is answered");
    restored.settle();
    restored.pass(LEASE);
    for (shard, kept) in kept.iter().enumerate() {
        assert_eq!(restored.owners()[shard] == before[shard], *kept, "shard {shard}: {:?}", restored.owners());
        assert_eq!(restored.owners()[shard] == "-", !kept);
    }
    restored.pass(MARGIN + SETTLE);
    for (shard, kept) in kept.iter().enumerate() {
        let owner = &restored.owners()[shard];
        assert!(*kept || owner.ends_with(&format!("={}", TERM + 1000)), "shard {shard}: {owner}");
    }
}
