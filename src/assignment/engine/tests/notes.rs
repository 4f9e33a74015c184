//! What is said of how things stand: at once where it is known, of nothing that is not durable, and with the times of the moment.

use super::leadership::successor;
use super::rig::*;
use crate::assignment::command::{Answer, Notice, Refusal};
use crate::assignment::event::{Event, Question, Registration, Renewal, WhatIf};
use crate::assignment::record::Wish;
use crate::holdings::Holdings;
use crate::types::{ClusterId, ShardId};

fn any(notes: &[String], text: &str) -> bool {
    notes.iter().any(|note| note.contains(text))
}

fn ask(rig: &mut Rig, question: Question) -> Answer {
    let request = rig.request();
    match &replies(&rig.step(Event::Ask(request, question)))[..] {
        [Ok(answer)] => answer.clone(),
        other => panic!("{other:?}"),
    }
}

fn history(rig: &mut Rig, shard: u32) -> Vec<String> {
    match ask(rig, Question::Explain(ShardId(shard))) {
        Answer::Explanation(explanation) => explanation.history,
        other => panic!("{other:?}"),
    }
}

/// It was said out of the next commit, and there was none.
#[test]
fn that_the_store_was_restored_is_said_though_nothing_changes_by_it() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    let loaded = rig.version();
    let mut next = successor(&rig, settings(), TERM + 1000);
    next.open();
    next.settle();
    let shown = version(TERM, loaded.revision.0 + 5);
    let renewal = next.renewal(&next.executors["a"].clone());
    assert_eq!(next.renew(Renewal { mark: shown, ..renewal }), []);
    let commands = next.turn();
    assert_eq!(kinds(&commands), ["notice", "reply"]);
    assert_eq!(notices(&commands), [Notice::StoreRestored { shown, loaded, held_back: LEASE + MARGIN }]);

    let restored = ": the store was restored to an older state, and executors may still hold shards by the newer one".to_owned();
    assert_eq!(next.overview().notes, ["nothing is granted for another 10 s".to_owned() + &restored]);
    next.pass(TICK * 40);
    assert_eq!(next.overview().notes, ["nothing is granted for another 6.2 s".to_owned() + &restored]);
}

/// Grants are held back from then on, whatever becomes of the commit: so is it said, and once.
#[test]
fn that_an_executor_came_from_another_cluster_is_said_though_the_commit_fails() {
    let mut rig = Rig::new(2);
    let cluster_id = ClusterId(uuid::Uuid::from_u128(9));
    let registration =
        Registration { before: Some((cluster_id, version(77, 7))), ..rig.registration("a", 11, "http://10.0.0.1:1") };
    rig.register(registration.clone());
    let commands = rig.turn();
    assert_eq!(kinds(&commands), ["notice", "commit"]);
    assert_eq!(notices(&commands), [Notice::ForeignCluster { id: id("a"), cluster_id, held_back: LEASE + MARGIN }]);
    let commands = rig.step(Event::CommitFailed);
    assert_eq!((kinds(&commands), replies(&commands)), (vec!["reply"], vec![Err(Refusal::StoreUnavailable)]));
    rig.register(registration);
    let commands = rig.turn_until_commit();
    assert_eq!(kinds(&commands), ["commit"]);
    assert_eq!(kinds(&rig.commit()), ["publish", "connect", "reply", "notice"]);
}

#[test]
fn p2_notes_are_of_what_is_durable() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    assert_eq!(rig.overview().notes, Vec::<String>::new());
    rig.wish("a", Wish::Drain);
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    assert_eq!(rig.overview().notes, Vec::<String>::new(), "it is not durable yet");
    rig.step(Event::CommitFailed);
    let notes = rig.overview().notes;
    assert!(!any(&notes, "leaving executor") && !any(&notes, "executors left"), "it never was: {notes:?}");
    rig.wish("a", Wish::Drain);
    rig.turn_until_commit();
    rig.commit();
    let notes = rig.overview().notes;
    assert!(any(&notes, "2 shards stay on 1 leaving executor because nobody can take them"), "{notes:?}");
    assert!(any(&notes, "executors left a short while ago: nothing moves for balance for another 20 s"), "{notes:?}");
}

#[test]
fn the_times_in_notes_are_those_of_the_moment() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    for left in ["0.5 s", "0.4 s", "0.3 s"] {
        let notes = rig.overview().notes;
        assert!(any(&notes, &format!("joins are being gathered for another {left}")), "{left}: {notes:?}");
        rig.now = rig.now.after(TICK);
    }
}

/// The store neither takes nor refuses a commit: its outcome is unknown, and it is sent again and again.
#[test]
fn a_store_that_does_not_answer_shows_in_every_way_that_somebody_looks() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.wish("a", Wish::Cordon);
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    assert!(!any(&rig.overview().notes, "the store"), "it takes its time");
    for _ in 0..30 {
        rig.now = rig.now.after(TICK);
        assert_eq!(rig.turn(), []);
    }
    let says = "the store has taken no commit for 3 s: nothing changes until it does; look at the store";
    assert_eq!(rig.overview().notes[0], format!("{says}; calls that wait: 1"));
    let Answer::Forecast(plan) = ask(&mut rig, Question::Plan(WhatIf::default())) else { panic!("a plan") };
    assert_eq!(plan.notes.iter().filter(|note| *note == says).count(), 1, "{:?}", plan.notes);
    let Answer::Explanation(shard) = ask(&mut rig, Question::Explain(ShardId(0))) else { panic!("a shard") };
    assert_eq!(shard.waits_for[0], says);
    // It failed after all: it is said of the time since it was asked.
    rig.step(Event::CommitFailed);
    assert!(rig.overview().notes[0].starts_with(says), "{:?}", rig.overview().notes);
    rig.wish("a", Wish::Cordon);
    rig.turn_until_commit();
    rig.commit();
    assert!(!any(&rig.overview().notes, "the store"));
}

/// One sentence stood for both: what an earlier leader had asked back, and what nobody could tell after a restore.
#[test]
fn a_shard_that_an_earlier_leader_asked_back_is_not_said_to_be_in_doubt() {
    let mut rig = Rig::new(1);
    rig.join("a", 11);
    rig.pass(SETTLE);
    rig.join("b", 21);
    rig.executors.get_mut("a").expect("a").deaf = true;
    rig.wish("a", Wish::Drain);
    rig.now = rig.now.after(SETTLE);
    rig.settle();
    let mut next = successor(&rig, settings(), TERM + 7);
    next.open();
    next.settle();
    assert_eq!(history(&mut next, 0)[1], "a was told to stop it: an earlier leader said so");
    let mut a = next.executors["a"].clone();
    (a.mark, a.held) = (next.version(), Holdings::default());
    next.renew(next.renewal(&a));
    let _ = next.renew_as("b");
    next.pass(SETTLE);
    assert_eq!(
        history(&mut next, 0),
        [format!("granted to b at epoch {}, 0 s ago, after a, which an earlier leader had told to stop it", TERM + 7)]
    );
}
