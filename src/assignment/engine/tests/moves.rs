//! Shards that an operator moves.

use std::time::Duration;

use proptest::prelude::*;

use super::rig::*;
use crate::assignment::command::{Answer, Cause, Command, Notice, Refusal};
use crate::assignment::event::{Claim, Demand, Event, Renewal, Settings};
use crate::assignment::record::Wish;
use crate::types::{Incarnation, ShardId};

fn move_shards(rig: &mut Rig, shards: impl IntoIterator<Item = u32>, to: &str) -> Vec<Command> {
    let request = rig.request();
    let shards = shards.into_iter().map(ShardId).collect();
    rig.step(Event::Demand(request, Demand::Move { shards, to: id(to) }))
}

fn refusal(commands: &[Command]) -> String {
    match &replies(commands)[..] {
        [Err(Refusal::NotNow(why))] => why.clone(),
        other => panic!("{other:?}"),
    }
}

/// Where a move is refused, and nothing changes.
fn refused(rig: &mut Rig, shards: impl IntoIterator<Item = u32>, to: &str) -> String {
    let before = rig.owners();
    assert_eq!(move_shards(rig, shards, to), []);
    let why = refusal(&rig.turn());
    assert_eq!(rig.owners(), before);
    why
}

/// Executors of 20 shards each, which rest with 18 to 22.
fn cluster_of(names: &[&'static str]) -> Rig {
    let mut rig = Rig::new(names.len() as u32 * 20);
    for (name, incarnation) in names.iter().zip([11, 21, 31, 41]) {
        rig.join(name, incarnation);
    }
    rig.pass(SETTLE * 2);
    assert!(names.iter().all(|name| rig.count(name) == 20));
    rig
}

fn of(rig: &Rig, name: &str) -> Vec<u32> {
    let owners = rig.owners();
    (0..).zip(&owners).filter(|(_, owner)| owner.starts_with(name)).map(|(shard, _)| shard).collect()
}

#[test]
fn a_move_is_answered_once_the_release_is_durable_and_goes_where_it_should() {
    let mut rig = cluster_of(&["a", "b"]);
    let (ours, theirs) = (of(&rig, "a"), of(&rig, "b"));
    rig.executors.get_mut("a").expect("a").deaf = true;
    // One that is there already counts as done.
    assert_eq!(move_shards(&mut rig, [ours[0], ours[1], theirs[0]], "b"), []);
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    let commands = rig.commit();
    assert_eq!(kinds(&commands), ["publish", "reply", "send"], "a is told to stop both");
    assert_eq!(replies(&commands), [Ok(Answer::Moving(rig.version(), 2))]);
    assert_eq!(rig.owners()[ours[0] as usize], format!("~a={TERM}"));
    assert_eq!(rig.turn(), []);
    assert_eq!(rig.engine.statistics().unserved[&Cause::Operator], 2);

    // Asked for again: they are on their way.
    move_shards(&mut rig, [ours[0], ours[1]], "b");
    assert_eq!(replies(&rig.turn()), [Ok(Answer::Moving(rig.version(), 0))]);

    let a = rig.executors.get_mut("a").expect("a");
    a.deaf = false;
    let kept: Vec<(u32, u64)> = ours[2..].iter().map(|&shard| (shard, TERM)).collect();
    (a.held, a.mark) = (held(&kept), version(TERM, rig.revision));
    rig.renew_as("a").expect("renewed");
    let commands = rig.settle();
    assert_eq!(notices(&commands), [Notice::Moved { cause: Cause::Operator, shards: 2 }]);
    assert_eq!((rig.count("a"), rig.count("b")), (18, 22));
    assert!(ours[..2].iter().all(|&shard| rig.owners()[shard as usize] == format!("b={}", TERM + 1)));

    let revision = rig.revision;
    rig.pass(LEASE * 2);
    assert_eq!(rig.revision, revision, "and nobody takes them away again");
}

#[test]
fn a_move_out_of_the_bounds_is_refused_as_a_whole_with_the_numbers() {
    let mut rig = cluster_of(&["a", "b", "c"]);
    let (a, b) = (of(&rig, "a"), of(&rig, "b"));
    let why = refused(&mut rig, a[..3].iter().copied(), "c");
    assert!(why.contains("executor c would have 23 shards, and rests with 22 at the most"), "{why}");
    move_shards(&mut rig, a[..2].iter().copied(), "c");
    rig.settle();
    let why = refused(&mut rig, [a[2]], "b");
    assert!(why.contains("executor a would have 17 shards, and rests with 18 at the least"), "{why}");
    move_shards(&mut rig, [b[0]], "a");
    rig.settle();
    assert_eq!((rig.count("a"), rig.count("b"), rig.count("c")), (19, 19, 22));
}

#[test]
fn who_takes_no_shards_is_no_destination_and_the_refusal_says_why() {
    let mut rig = cluster_of(&["a", "b", "c"]);
    let a = of(&rig, "a");
    move_shards(&mut rig, [a[0]], "x");
    assert_eq!(replies(&rig.turn()), [Err(Refusal::UnknownExecutor { id: id("x") })]);
    let cases = [
        (Wish::Cordon, "executor b takes no shards: it is cordoned"),
        (Wish::Drain, "executor b takes no shards: it is being drained"),
    ];
    for (wish, expected) in cases {
        rig.wish("b", wish);
        rig.turn();
        rig.commit();
        assert_eq!(refused(&mut rig, [a[0]], "b"), expected);
    }
    rig.wish("b", Wish::None);
    rig.settle();
    rig.pass(SETTLE * 2);

    let slot = rig.executors["c"].slot.expect("connected");
    rig.step(Event::Probed { slot, incarnation: Incarnation(31), healthy: false });
    let a = of(&rig, "a");
    assert!(refused(&mut rig, [a[0]], "c").contains("it is suspect, since it fails its health probe"));
    let request = rig.request();
    rig.step(Event::Demand(request, Demand::Remove { id: id("c"), dead: false }));
    rig.settle();
    let a = of(&rig, "a");
    assert_eq!(refused(&mut rig, [a[0]], "c"), "executor c was removed: `shard-manager admit c` takes that back");
}

#[test]
fn a_shard_that_is_on_its_way_to_somebody_else_has_to_arrive_first() {
    let mut rig = cluster_of(&["a", "b", "c"]);
    let a = of(&rig, "a");
    rig.executors.get_mut("a").expect("a").deaf = true;
    move_shards(&mut rig, [a[0]], "b");
    rig.settle();
    let why = refused(&mut rig, [a[0], a[1]], "c");
    assert_eq!(why, format!("shard {} is on its way to b already: wait until it is there, and ask again", a[0]));
}

#[test]
fn a_move_whose_target_dies_ends_where_the_planner_thinks_best() {
    let mut rig = cluster_of(&["a", "b", "c"]);
    let a = of(&rig, "a");
    rig.executors.get_mut("a").expect("a").deaf = true;
    move_shards(&mut rig, [a[0], a[1]], "b");
    rig.settle();
    rig.deregister("b", 21);
    rig.settle();
    let now = rig.executors.get_mut("a").expect("a");
    now.deaf = false;
    now.mark = version(TERM, rig.revision);
    let kept: Vec<(u32, u64)> = a[2..].iter().map(|&shard| (shard, TERM)).collect();
    rig.executors.get_mut("a").expect("a").held = held(&kept);
    rig.pass(LEASE * 2);
    assert_eq!(rig.count("a") + rig.count("c"), 60);
    assert!(rig.owners().iter().all(|owner| owner.starts_with(['a', 'c'])));
}

#[test]
fn who_did_not_start_a_shard_is_no_destination_for_a_while() {
    let mut rig = cluster_of(&["a", "b", "c"]);
    let a = of(&rig, "a");
    rig.executors.get_mut("b").expect("b").deaf = true;
    move_shards(&mut rig, [a[0]], "b");
    // It renews, and starts nothing.
    let until = rig.now.after(LEASE + MARGIN * 2);
    while rig.now < until {
        let b = rig.executors["b"].clone();
        let (claim, mark) = (Claim::Full(b.held.clone()), version(TERM, rig.revision));
        rig.renew(Renewal { claim, mark, ..rig.renewal(&b) });
        rig.pass(Duration::from_secs(1));
    }
    rig.executors.get_mut("b").expect("b").deaf = false;
    assert!(!rig.owners()[a[0] as usize].starts_with('b'));
    let why = refused(&mut rig, [a[1]], "b");
    assert!(why.contains("it is suspect, since it did not start and keep what it was given"), "{why}");
    rig.pass(LEASE * 5);
    move_shards(&mut rig, [a[1]], "b");
    rig.settle();
    assert!(rig.owners()[a[1] as usize].starts_with('b'), "it is trusted again");
}

#[test]
fn a_large_move_is_cut_into_commits_and_answered_after_the_last() {
    let small = Settings { max_pages_per_commit: 4, rebalance_threshold: 1.0, ..settings() };
    let mut rig = Rig::with(small, 16 * 1024);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE * 6);
    let a = of(&rig, "a");
    assert_eq!(a.len(), 8 * 1024);
    move_shards(&mut rig, a.iter().copied(), "b");
    let (mut commits, mut answers) = (0, Vec::new());
    for _ in 0..100 {
        let mut commands = rig.turn();
        let committing = kinds(&commands).contains(&"commit");
        if committing {
            commits += 1;
            commands.extend(rig.commit());
        }
        answers.extend(replies(&commands));
        if !answers.is_empty() {
            break;
        }
        assert!(committing, "it stopped before it was answered");
    }
    assert!(commits >= 2, "{commits}");
    assert_eq!(answers, [Ok(Answer::Moving(rig.version(), 8 * 1024))], "all of them, counted once");
    rig.pass(SETTLE);
    // The commands that were sent before went unread.
    rig.pass(LEASE * 2);
    assert_eq!((rig.count("a"), rig.count("b")), (0, 16 * 1024));
}

#[test]
fn a_move_that_is_cut_short_says_so() {
    let small = Settings { max_pages_per_commit: 4, rebalance_threshold: 1.0, ..settings() };
    let mut rig = Rig::with(small, 16 * 1024);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.join("c", 31);
    rig.pass(SETTLE * 6);
    let a = of(&rig, "a");
    move_shards(&mut rig, a.iter().copied(), "b");
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    let slot = rig.executors["b"].slot.expect("connected");
    rig.step(Event::Probed { slot, incarnation: Incarnation(21), healthy: false });
    assert_eq!(replies(&rig.commit()), []);
    let why = refusal(&rig.turn());
    assert!(
        why.contains("the move was cut short, shards that are on their way already go on: executor b takes no shards"),
        "{why}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// Whatever was accepted: once it is done, nothing moves until something else changes.
    #[test]
    fn after_a_move_that_was_accepted_the_planner_moves_nothing(
        shards in prop::collection::btree_set(0..40u32, 1..6),
        threshold in prop_oneof![Just(0.0), Just(0.1), Just(0.3), Just(1.0)],
        cordon in any::<bool>(),
    ) {
        let mut rig = Rig::with(Settings { rebalance_threshold: threshold, ..settings() }, 40);
        for (name, incarnation) in [("a", 11), ("b", 21), ("c", 31)] {
            rig.join(name, incarnation);
        }
        rig.pass(SETTLE * 2);
        if cordon {
            rig.wish("a", Wish::Cordon);
            rig.pass(SETTLE * 2);
        }
        move_shards(&mut rig, shards.iter().copied(), "c");
        let commands = rig.settle();
        let answer = replies(&commands);
        if let [Ok(Answer::Moving(_, count))] = &answer[..] {
            let moved: u32 = notices(&commands)
                .iter()
                .map(|it| match it {
                    Notice::Moved { cause, shards } => {
                        assert_eq!(*cause, Cause::Operator);
                        *shards
                    }
                    other => panic!("{other:?}"),
                })
                .sum();
            prop_assert_eq!(moved, *count);
            prop_assert!(shards.iter().all(|&shard| rig.owners()[shard as usize].starts_with('c')));
        } else {
            prop_assert!(matches!(&answer[..], [Err(Refusal::NotNow(_))]), "{:?}", answer);
        }
        let revision = rig.revision;
        rig.pass(LEASE * 2);
        prop_assert_eq!(rig.revision, revision);
    }
}

/// One shard of `a` is to move to `b`, and in the same turn a new process of `a` registers at this endpoint.
fn moved_while_its_owner_is_replaced(endpoint: &str) -> (Rig, u32) {
    let mut rig = cluster_of(&["a", "b"]);
    let shard = of(&rig, "a")[0];
    rig.executors.get_mut("a").expect("a").deaf = true;
    let registration = rig.registration("a", 12, endpoint);
    move_shards(&mut rig, [shard], "b");
    rig.register(registration);
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    let commands = rig.commit();
    assert_eq!(replies(&commands)[0], Ok(Answer::Moving(rig.version(), 1)));
    (rig, shard)
}

#[test]
fn a_move_in_the_turn_in_which_a_new_process_takes_its_owners_place_ends_nobody() {
    let (mut rig, shard) = moved_while_its_owner_is_replaced("http://elsewhere:1");
    assert!(rig.owners().iter().filter(|owner| owner.starts_with("~a=")).count() == 20, "the old process stops all of them");
    let old = Renewal { claim: Claim::Full(held(&[])), mark: rig.version(), ..rig.renewal(&rig.executors["a"]) };
    rig.renew(old);
    rig.settle();
    assert_eq!(rig.owners()[shard as usize], format!("b={}", TERM + 1), "where the operator wants it");
    assert_eq!((rig.count("a"), rig.count("b")), (19, 21));
}

#[test]
fn a_move_in_the_turn_in_which_its_owner_is_restarted_in_place_is_done() {
    let mut rig = Rig::new(40);
    for (name, incarnation) in [("a", 11), ("b", 21)] {
        rig.join_at(name, incarnation, &format!("http://10.0.0.1:{incarnation}"));
    }
    rig.pass(SETTLE * 2);
    let shard = of(&rig, "a")[0];
    let registration = rig.registration("a", 12, "http://10.0.0.1:11");
    move_shards(&mut rig, [shard], "b");
    rig.register(registration);
    rig.settle();
    assert!(rig.owners()[shard as usize].starts_with("b="), "{}", rig.owners()[shard as usize]);
}

#[test]
fn a_move_in_the_turn_in_which_the_time_to_start_the_shard_is_over_ends_nobody() {
    let mut rig = cluster_of(&["a", "b"]);
    let ours = of(&rig, "a");
    rig.pass(LEASE + MARGIN);
    rig.executors.get_mut("a").expect("a").deaf = true;
    let rest: Vec<(u32, u64)> = ours[1..].iter().map(|&shard| (shard, TERM)).collect();
    let renewal = Renewal { claim: Claim::Full(held(&rest)), ..rig.renewal(&rig.executors["a"]) };
    let over = rig.now.after(LEASE + LEASE / 100 + Duration::from_millis(100));
    while rig.now < over {
        rig.renew(renewal.clone());
        rig.renew_as("b").expect("renewed");
        rig.settle();
        rig.now = rig.now.after(TICK);
    }
    move_shards(&mut rig, [ours[0]], "b");
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    rig.commit();
    assert_eq!(rig.owners()[ours[0] as usize], format!("~a={TERM}"));
}
