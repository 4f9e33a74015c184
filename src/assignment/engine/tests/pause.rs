//! Rebalancing, paused and resumed: what waits, what does not, and how a pause ends.

use std::time::Duration;

use super::leadership::successor;
use super::rig::*;
use crate::assignment::command::{Answer, Cause, Command, Notice, Refusal};
use crate::assignment::event::{Demand, Event};
use crate::assignment::record::Wish;
use crate::assignment::state::Pause;

const HOUR: Duration = Duration::from_secs(3600);
const HOUR_MS: u64 = 3_600_000;
const WEEK_MS: u64 = 7 * 24 * HOUR_MS;

fn demand(rig: &mut Rig, demand: Demand) -> Vec<Command> {
    let request = rig.request();
    rig.step(Event::Demand(request, demand))
}

/// Asks for a pause, and lets it become durable.
fn pause(rig: &mut Rig, length: Duration) -> Vec<Command> {
    let (by, reason) = ("me@host".to_owned(), "a game is on".to_owned());
    assert_eq!(demand(rig, Demand::Pause { length, by, reason }), []);
    rig.settle()
}

fn until(rig: &Rig) -> Option<u64> {
    rig.state().meta.pause.as_ref().map(|pause| pause.until_unix_ms)
}

/// Shards that moved, by why.
fn moved(commands: &[Command]) -> Vec<(Cause, u32)> {
    let moved = |notice: Notice| match notice {
        Notice::Moved { cause, shards } => Some((cause, shards)),
        _ => None,
    };
    notices(commands).into_iter().filter_map(moved).collect()
}

/// Two executors with 15 shards each.
fn two() -> Rig {
    let mut rig = Rig::new(30);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE);
    rig
}

#[test]
fn p2_a_pause_is_answered_only_out_of_its_commit() {
    let mut rig = two();
    let (by, reason) = ("me".to_owned(), "why".to_owned());
    assert_eq!(demand(&mut rig, Demand::Pause { length: HOUR, by: by.clone(), reason: reason.clone() }), []);
    let commands = rig.turn();
    let [Command::Commit { changes, .. }] = &commands[..] else { panic!("{commands:?}") };
    let expected = Pause { until_unix_ms: TERM + 500 + HOUR_MS, by, reason };
    assert_eq!(changes.meta.pause.as_deref(), Some(&expected));
    assert!(changes.shards.is_empty() && changes.executors.is_empty());
    let commands = rig.commit();
    let [Command::Publish(_), Command::Reply(_, reply), Command::Notice(notice)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(*reply, Ok(Answer::Paused(rig.version(), expected.until_unix_ms)));
    assert_eq!(*notice, Notice::Paused { pause: expected, found: false });
    assert_eq!(rig.turn(), []);
}

#[test]
fn a_pause_whose_commit_failed_is_none() {
    let mut rig = two();
    demand(&mut rig, Demand::Pause { length: HOUR, by: String::new(), reason: String::new() });
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    assert_eq!(replies(&rig.step(Event::CommitFailed)), [Err(Refusal::StoreUnavailable)]);
    assert_eq!(until(&rig), None);
    rig.join("c", 31);
    rig.pass(SETTLE * 2);
    assert_eq!(rig.count("c"), 9);
}

#[test]
fn while_rebalancing_is_paused_nothing_moves_for_balance_and_everything_else_does() {
    let mut rig = two();
    pause(&mut rig, HOUR);
    rig.join("c", 31);
    let commands = rig.pass(SETTLE * 4);
    assert_eq!((rig.count("c"), moved(&commands)), (0, vec![]), "not when joins have settled, and not later");

    rig.wish("b", Wish::Drain);
    let commands = rig.pass(TICK);
    assert_eq!((rig.count("a"), rig.count("b"), rig.count("c")), (15, 0, 15), "a drain goes on");
    assert_eq!(moved(&commands), [(Cause::Drain, 15)]);

    rig.executors.get_mut("c").expect("c").deaf = true;
    let commands = rig.pass(LEASE + MARGIN * 2);
    assert_eq!((rig.count("a"), moved(&commands)), (30, vec![(Cause::Crash, 15)]), "what nobody owns is placed");

    rig.wish("b", Wish::None);
    rig.join("d", 41);
    let commands = rig.pass(CALM);
    assert_eq!((rig.count("a"), moved(&commands)), (30, vec![]));

    demand(&mut rig, Demand::Resume);
    let commands = rig.pass(TICK);
    assert_eq!((rig.count("a"), rig.count("b"), rig.count("d")), (11, 10, 9), "{:?}", rig.owners());
    assert_eq!(moved(&commands), [(Cause::Rebalance, 19)]);
    assert!(notices(&commands).contains(&Notice::Resumed { asked: true }));
    assert_eq!(until(&rig), None);
}

#[test]
fn shards_that_are_not_started_are_asked_back_also_during_a_pause() {
    let mut rig = Rig::new(2);
    pause(&mut rig, HOUR);
    rig.join("a", 11);
    rig.pass(SETTLE);
    assert_eq!(rig.count("a"), 2, "the first owners are no move");
    rig.join("b", 21);
    rig.executors.get_mut("a").expect("a").deaf = true;
    rig.pass(LEASE + MARGIN * 2);
    assert_eq!(rig.count("b"), 2);
}

#[test]
fn a_pause_ends_by_itself_to_the_moment_and_that_very_turn_rebalances() {
    let mut rig = two();
    let begin = rig.now;
    pause(&mut rig, Duration::from_secs(5));
    rig.join("c", 31);
    rig.pass(SETTLE * 2);
    assert_eq!(
        rig.overview().notes[0],
        "rebalancing is paused until Thu 00:00:06 UTC (another 4 s): asked by me@host: a game is on"
    );
    assert_eq!(until(&rig), Some(TERM + 5500));
    let commands = rig.turn_until_commit();
    assert_eq!(rig.now, begin.after(Duration::from_secs(5)));
    let [Command::Commit { changes, .. }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(changes.meta.pause, None, "and is taken out of the store");
    assert!(!changes.shards.is_empty());
    assert!(notices(&rig.commit()).contains(&Notice::Resumed { asked: false }));
    assert!(rig.overview().notes.iter().all(|note| !note.contains("paused")));
    assert_eq!(until(&rig), None);
}

#[test]
fn the_last_word_counts_and_resuming_what_is_not_paused_changes_nothing() {
    let mut rig = two();
    let revision = rig.revision;
    demand(&mut rig, Demand::Resume);
    let commands = rig.turn();
    assert_eq!(replies(&commands), [Ok(Answer::Current(rig.version()))]);
    assert_eq!((kinds(&commands), rig.revision), (vec!["reply"], revision));

    pause(&mut rig, HOUR);
    let commands = pause(&mut rig, Duration::from_secs(60));
    assert_eq!(replies(&commands), [Ok(Answer::Paused(rig.version(), TERM + 500 + 60_000))], "also where it is shorter");
    // Both in one draft: each is answered with its own end, and what came last is in force.
    let (by, reason) = (String::new(), String::new());
    demand(&mut rig, Demand::Pause { length: HOUR, by, reason });
    demand(&mut rig, Demand::Resume);
    let commands = rig.settle();
    let answers = [Ok(Answer::Paused(rig.version(), TERM + 500 + HOUR_MS)), Ok(Answer::Current(rig.version()))];
    assert_eq!((replies(&commands), until(&rig)), (answers.to_vec(), None));
}

#[test]
fn a_pause_survives_a_change_of_leader() {
    let mut rig = two();
    pause(&mut rig, HOUR);
    let end = TERM + 500 + HOUR_MS;
    let mut next = successor(&rig, settings(), TERM + 60_000);
    assert_eq!(kinds(&next.turn()), ["commit"]);
    let commands = next.commit();
    let pause = rig.state().meta.pause.as_deref().cloned().expect("paused");
    assert_eq!(notices(&commands), [Notice::Paused { pause, found: true }]);
    assert_eq!(until(&next), Some(end));
    next.step(Event::PortOpened);
    next.join("c", 31);
    next.pass(LEASE);
    assert_eq!((next.count("a"), next.count("b"), next.count("c")), (15, 15, 0));

    // By a leader that came when only two seconds of it were left.
    let mut last = successor(&rig, settings(), end - 2000);
    last.open();
    last.join("c", 31);
    last.pass(Duration::from_millis(1900));
    assert_eq!(last.count("c"), 0);
    last.pass(TICK * 2);
    assert_eq!((last.count("c"), until(&last)), (9, None));

    // And by one that came after its end.
    let mut late = successor(&rig, settings(), end + 1);
    late.open();
    let commands = late.settle();
    assert!(notices(&commands).contains(&Notice::Resumed { asked: false }), "{commands:?}");
    late.join("c", 31);
    late.pass(SETTLE * 3);
    assert_eq!(late.count("c"), 9);
}

/// Its clock, or that of the leader before, is wrong by months: nobody is paused for months.
#[test]
fn an_end_that_nobody_can_have_asked_for_counts_as_the_longest_pause() {
    let mut rig = two();
    pause(&mut rig, HOUR);
    let mut far = successor(&rig, settings(), TERM);
    let mut state = rig.state().clone();
    if let Some(pause) = &mut state.meta.pause {
        pause.until_unix_ms = TERM + 5 * WEEK_MS;
    }
    far = Rig::starting(settings(), takeover(30, TERM + 1), Some((crate::types::Revision(far.revision), state)));
    far.open();
    assert_eq!(until(&far), Some(TERM + 1 + WEEK_MS));
    // Behind by ten minutes only: it lasts that much longer.
    let behind = successor(&rig, settings(), TERM.saturating_sub(600_000));
    let left = HOUR_MS + TERM + 500;
    let mut behind = behind;
    behind.open();
    assert_eq!(until(&behind), Some(left));
}
