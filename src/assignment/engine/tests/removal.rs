//! Executors that an operator removes, and takes back.

use std::time::Duration;

use super::rig::*;
use crate::assignment::command::{Answer, Cause, Command, ExecutorState, LeaseAnswer, Notice, Refusal};
use crate::assignment::event::{Demand, Event, Settings};
use crate::assignment::record::{End, Standing, Wish};
use crate::types::{Incarnation, Revision, Slot};

fn demand(rig: &mut Rig, demand: Demand) -> Vec<Command> {
    let request = rig.request();
    rig.step(Event::Demand(request, demand))
}

fn remove(rig: &mut Rig, name: &str, dead: bool) -> Vec<Command> {
    demand(rig, Demand::Remove { id: id(name), dead })
}

fn admit(rig: &mut Rig, name: &str) -> Vec<Command> {
    demand(rig, Demand::Admit(id(name)))
}

fn state_of(rig: &mut Rig, name: &str) -> Vec<ExecutorState> {
    rig.overview().executors.iter().filter(|it| it.id.as_str() == name).map(|it| it.state).collect()
}

fn removed(name: &str, incarnation: u64, shards: u32, dead: bool) -> Notice {
    Notice::Removed { id: id(name), incarnation: Incarnation(incarnation), shards, dead }
}

/// Two executors with two shards each.
fn two() -> Rig {
    let mut rig = Rig::new(4);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE * 2);
    assert_eq!((rig.count("a"), rig.count("b")), (2, 2));
    rig
}

fn refusal(commands: &[Command]) -> String {
    match &replies(commands)[..] {
        [Err(Refusal::NotNow(why))] => why.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_is_removed_is_drained_then_ended_and_its_id_is_barred() {
    let mut rig = two();
    assert_eq!(remove(&mut rig, "b", false), []);
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    let commands = rig.commit();
    assert_eq!(kinds(&commands), ["publish", "reply", "send", "notice"], "told to stop both, at once");
    let version = rig.version();
    assert_eq!(replies(&commands), [Ok(Answer::Current(version))]);
    assert_eq!(notices(&commands), [Notice::Wished { id: id("b"), wish: Wish::Remove }]);
    assert_eq!(state_of(&mut rig, "b"), [ExecutorState::Removing]);
    assert_eq!(rig.renew_as("b").map(|_| ()), Ok(()), "it lives as long as it has something");

    let commands = rig.pass(Duration::from_secs(2));
    let moved = Notice::Moved { cause: Cause::Drain, shards: 2 };
    assert_eq!(notices(&commands), [removed("b", 21, 0, false), moved]);
    assert_eq!((rig.count("a"), rig.count("b")), (4, 0));
    assert_eq!(state_of(&mut rig, "b"), [ExecutorState::Removed], "it stays to be seen");
    let (_, record) = rig.state().executors().find(|(_, record)| record.id == id("b")).expect("stays");
    assert_eq!((record.standing, record.wish), (Standing::Gone, Wish::Remove));
    assert_eq!(rig.state().retirement(&id("b"), Incarnation(21)), Some(End::Over));

    assert_eq!(rig.renew_as("b"), Err(Refusal::Removed { id: id("b") }));
    for incarnation in [21, 22] {
        rig.register(rig.registration("b", incarnation, "http://b:1"));
        assert_eq!(replies(&rig.turn()), [Err(Refusal::Removed { id: id("b") })], "incarnation {incarnation}");
    }
    let revision = rig.revision;
    rig.pass(LEASE * 3);
    assert_eq!((rig.revision, rig.count("a")), (revision, 4), "and nothing more happens");
}

#[test]
fn an_executor_without_shards_is_removed_in_one_commit() {
    let mut rig = two();
    rig.wish("b", Wish::Drain);
    rig.pass(SETTLE);
    assert_eq!(state_of(&mut rig, "b"), [ExecutorState::Drained]);
    remove(&mut rig, "b", false);
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    // L1: its lease is being ended.
    assert_eq!(rig.renew_as("b"), Err(Refusal::LeaseEnding { id: id("b") }));
    assert_eq!(kinds(&rig.commit()), ["publish", "disconnect", "reply", "notice", "notice"]);
    assert_eq!(rig.renew_as("b"), Err(Refusal::Removed { id: id("b") }));
}

#[test]
fn a_removal_whose_commit_fails_has_not_happened() {
    let mut rig = two();
    rig.executors.get_mut("b").expect("b").deaf = true;
    rig.pass(LEASE / 2 + TICK);
    remove(&mut rig, "b", true);
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    assert_eq!(rig.renew_as("b"), Err(Refusal::LeaseEnding { id: id("b") }), "L1: not renewed meanwhile");
    assert_eq!(replies(&rig.step(Event::CommitFailed)), [Err(Refusal::StoreUnavailable)]);
    assert_eq!(rig.renew_as("b").map(|_| ()), Ok(()));
    rig.executors.get_mut("b").expect("b").deaf = false;
    rig.pass(Duration::from_secs(2));
    assert_eq!((rig.count("b"), state_of(&mut rig, "b")), (2, vec![ExecutorState::Active]));
}

#[test]
fn a_removal_waits_while_nobody_can_take_the_shards_and_they_stay_served() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    remove(&mut rig, "a", false);
    rig.pass(LEASE * 3);
    assert_eq!((rig.count("a"), state_of(&mut rig, "a")), (2, vec![ExecutorState::Removing]));
    let notes = rig.overview().notes;
    assert!(
        notes.iter().any(|note| note.contains("2 shards stay on 1 leaving executor because nobody can take them")),
        "{notes:?}"
    );

    // Its process is restarted meanwhile: it goes on with them.
    rig.join_at("a", 12, "http://a-11:1");
    rig.pass(LEASE);
    assert_eq!((rig.count("a"), state_of(&mut rig, "a")), (2, vec![ExecutorState::Removing]));

    rig.join("b", 21);
    rig.pass(SETTLE * 2);
    assert_eq!((rig.count("b"), state_of(&mut rig, "a")), (2, vec![ExecutorState::Removed]));
}

#[test]
fn who_dies_while_it_is_being_removed_is_gone_and_barred() {
    let mut rig = two();
    rig.executors.get_mut("b").expect("b").deaf = true;
    remove(&mut rig, "b", false);
    rig.pass(LEASE * 2);
    assert_eq!((rig.count("a"), state_of(&mut rig, "b")), (4, vec![ExecutorState::Removed]));
    assert_eq!(rig.renew_as("b"), Err(Refusal::Removed { id: id("b") }));
}

#[test]
fn who_deregisters_while_it_is_being_removed_is_barred_too() {
    let mut rig = two();
    rig.executors.get_mut("b").expect("b").deaf = true;
    remove(&mut rig, "b", false);
    rig.settle();
    rig.deregister("b", 21);
    rig.settle();
    assert_eq!((rig.count("a"), state_of(&mut rig, "b")), (4, vec![ExecutorState::Removed]));
}

#[test]
fn p3_who_is_said_to_be_dead_loses_its_shards_in_one_commit() {
    let mut rig = two();
    rig.executors.get_mut("b").expect("b").deaf = true;
    let heard = rig.now;
    rig.pass(Duration::from_secs(1));
    remove(&mut rig, "b", true);
    let why = refusal(&rig.turn());
    assert!(why.contains("executor b was heard") && why.contains("so it is not dead") && why.contains("5.0s"), "{why}");
    assert_eq!(rig.count("b"), 2, "and nothing has changed");

    rig.pass(heard.after(LEASE / 2).since(rig.now));
    let before = rig.owners();
    remove(&mut rig, "b", true);
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    let commands = rig.commit();
    assert_eq!(kinds(&commands), ["publish", "disconnect", "reply", "send", "notice", "notice"]);
    assert_eq!(notices(&commands), [removed("b", 21, 2, true), Notice::Moved { cause: Cause::Crash, shards: 2 }]);
    let expected: Vec<String> =
        before.iter().map(|owner| if owner.starts_with('b') { format!("a={}", TERM + 1) } else { owner.clone() }).collect();
    assert_eq!(rig.owners(), expected, "long before its lease ends");
    assert_eq!(state_of(&mut rig, "b"), [ExecutorState::Removed]);
    assert_eq!(rig.renew_as("b"), Err(Refusal::Removed { id: id("b") }), "should it live after all");
}

#[test]
fn p10_nobody_is_dead_whom_this_leader_had_no_time_to_hear() {
    let rig = two();
    let loaded = Some((Revision(rig.revision), rig.state().clone()));
    let mut next = Rig::starting(settings(), takeover(4, TERM + 500), loaded);
    next.executors = rig.executors.clone();
    next.executors.values_mut().for_each(|executor| executor.deaf = true);
    next.open();
    next.pass(Duration::from_secs(1));
    remove(&mut next, "b", true);
    let why = refusal(&next.turn());
    assert!(why.contains("executor b had only 1.0s to speak to this leader"), "{why}");

    // Five seconds, of which this process slept through four.
    next.now = next.now.after(Duration::from_secs(4));
    remove(&mut next, "b", true);
    assert_eq!(notices(&next.step(Event::Turn)), []);
    next.settle();
    assert_eq!(next.count("b"), 2, "what b said meanwhile was not read");
    next.pass(LEASE / 2);
    remove(&mut next, "b", true);
    next.settle();
    assert_eq!(next.count("b"), 0);
}

#[test]
fn a_process_that_registers_in_the_same_breath_is_not_dead() {
    let mut rig = two();
    rig.register(rig.registration("c", 31, "http://c:1"));
    remove(&mut rig, "c", true);
    let why = refusal(&rig.turn());
    assert!(why.contains("executor c has joined just now, so it is not dead"), "{why}");
}

#[test]
fn a_removal_is_taken_back_while_it_is_under_way() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    remove(&mut rig, "a", false);
    rig.pass(SETTLE);
    admit(&mut rig, "a");
    let commands = rig.settle();
    assert_eq!(notices(&commands), [Notice::Admitted { id: id("a") }]);
    assert_eq!((rig.count("a"), state_of(&mut rig, "a")), (2, vec![ExecutorState::Active]));
}

#[test]
fn a_removal_that_is_over_is_taken_back_and_the_id_registers_again() {
    let mut rig = two();
    remove(&mut rig, "b", false);
    rig.settle();
    admit(&mut rig, "b");
    let commands = rig.settle();
    assert_eq!(kinds(&commands), ["commit", "publish", "reply", "notice"]);
    assert_eq!(state_of(&mut rig, "b"), [], "nobody needs the record");
    assert_eq!(rig.renew_as("b"), Err(Refusal::UnknownExecutor { id: id("b") }), "it registers as another incarnation");
    rig.join("b", 22);
    rig.pass(CALM);
    assert_eq!((rig.count("b"), state_of(&mut rig, "b")), (2, vec![ExecutorState::Active]));
}

#[test]
fn only_admitting_takes_a_removal_back() {
    let mut rig = two();
    remove(&mut rig, "b", false);
    rig.settle();
    for wish in [Wish::None, Wish::Cordon, Wish::Drain] {
        rig.wish("b", wish);
        let why = refusal(&rig.turn());
        assert_eq!(why, "executor b was removed: `shard-manager admit b` takes that back", "{wish:?}");
    }
    rig.executors.get_mut("a").expect("a").deaf = true;
    remove(&mut rig, "a", false);
    rig.wish("a", Wish::None);
    let commands = rig.turn();
    let said = replies(&commands);
    assert!(matches!(&said[..], [Err(Refusal::NotNow(why))] if why.contains("executor a is being removed")), "{said:?}");
}

#[test]
fn what_is_not_there_is_not_removed_and_what_is_not_removed_not_admitted() {
    let mut rig = two();
    remove(&mut rig, "x", false);
    admit(&mut rig, "x");
    admit(&mut rig, "a");
    let unknown = || Err(Refusal::UnknownExecutor { id: id("x") });
    let not_removed = "executor a is not removed, so there is nothing to take back".to_owned();
    assert_eq!(replies(&rig.turn()), [unknown(), unknown(), Err(Refusal::NotNow(not_removed))]);

    remove(&mut rig, "b", false);
    rig.settle();
    let revision = rig.revision;
    remove(&mut rig, "b", false);
    remove(&mut rig, "b", true);
    let version = rig.version();
    assert_eq!(replies(&rig.turn()), [Ok(Answer::Current(version)), Ok(Answer::Current(version))], "it is so already");
    assert_eq!(rig.revision, revision);
}

#[test]
fn an_id_that_is_away_is_barred_at_once() {
    let mut rig = two();
    rig.wish("b", Wish::Cordon);
    rig.settle();
    rig.executors.get_mut("b").expect("b").deaf = true;
    rig.pass(LEASE * 2);
    assert_eq!(state_of(&mut rig, "b"), [ExecutorState::Lapsed]);
    remove(&mut rig, "b", false);
    assert_eq!(notices(&rig.settle()), [removed("b", 21, 0, false)]);
    assert_eq!(state_of(&mut rig, "b"), [ExecutorState::Removed]);
    rig.register(rig.registration("b", 22, "http://b:1"));
    assert_eq!(replies(&rig.turn()), [Err(Refusal::Removed { id: id("b") })]);
}

#[test]
fn a_removal_survives_a_change_of_leader() {
    let mut rig = two();
    remove(&mut rig, "b", false);
    rig.settle();
    let loaded = Some((Revision(rig.revision), rig.state().clone()));
    let mut next = Rig::starting(settings(), takeover(4, TERM + 500), loaded);
    next.executors = rig.executors.clone();
    next.open();
    assert_eq!(next.renew_as("b"), Err(Refusal::Removed { id: id("b") }));
    next.pass(LEASE * 3);
    assert_eq!(state_of(&mut next, "b"), [ExecutorState::Removed]);
    assert!(next.overview().executors.iter().all(|it| it.id != id("b") || it.lease_remaining.is_zero()));
}

#[test]
fn a_death_of_many_shards_is_cut_into_commits() {
    let small = Settings { max_pages_per_commit: 4, ..settings() };
    let mut rig = Rig::with(small, 12 * 1024);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE * 4);
    assert_eq!(rig.count("b"), 6 * 1024);
    rig.executors.get_mut("b").expect("b").deaf = true;
    rig.pass(LEASE / 2 + TICK);
    remove(&mut rig, "b", true);
    rig.settle();
    assert_eq!((rig.count("a"), rig.count("b")), (12 * 1024, 0));
}

#[test]
fn the_lease_of_who_is_removed_is_not_extended_by_asking() {
    let mut rig = two();
    remove(&mut rig, "b", false);
    rig.settle();
    let answer: Result<LeaseAnswer, Refusal> = rig.renew_as("b");
    assert!(answer.is_err());
    assert!(rig.state().executor(Slot(1)).is_some_and(|record| record.standing == Standing::Gone));
}
