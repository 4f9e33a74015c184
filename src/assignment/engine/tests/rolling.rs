//! Cases 46 to 49: what it costs when executors come and go, counted in grants of a shard that somebody had before.

use std::time::Duration;

use super::rig::*;
use crate::assignment::command::Command;
use crate::assignment::event::{MOST_CALM_TIMES, Registration};
use crate::assignment::record::{ShardState, Wish};
use crate::types::{ExecutorId, Incarnation};

const SHARDS: u32 = 600;
/// From one step of a roll to the next.
const STEP: Duration = Duration::from_secs(2);

/// How an executor goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// It gives its shards away, then deregisters: SIGTERM to one that is built on the library and calls `leave()`.
    Leaves,
    /// An operator drains it, then it deregisters.
    IsDrained,
    /// It stops its shards and deregisters.
    Stops,
    /// It says nothing any more.
    Dies,
}

/// When its replacement comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    First,
    Last,
}

/// A cluster, and who had each shard in turn.
struct Roll {
    rig: Rig,
    owners: Vec<Vec<(ExecutorId, Incarnation)>>,
}

impl Roll {
    /// So many executors that share all shards evenly.
    fn of(executors: usize) -> Roll {
        let mut roll = Roll { rig: Rig::new(SHARDS), owners: vec![Vec::new(); SHARDS as usize] };
        for at in 0..executors {
            roll.join(at, 1, "10.0.0.1");
        }
        roll.pass(STEP);
        assert_eq!(roll.moves(), 0.0);
        roll
    }

    fn name(at: usize) -> &'static str {
        format!("e{at:02}").leak()
    }

    fn look(&mut self, commands: &[Command]) {
        for command in commands {
            let Command::Publish(snapshot) = command else { continue };
            for (shard, record) in snapshot.state.shards() {
                let ShardState::Held(slot) = record.state else { continue };
                let owner = snapshot.state.executor(slot).map(|it| (it.id.clone(), it.incarnation)).expect("it is there");
                let owners = &mut self.owners[shard.0 as usize];
                if owners.last() != Some(&owner) {
                    owners.push(owner);
                }
            }
        }
    }

    fn join(&mut self, at: usize, incarnation: u64, host: &str) {
        let commands = self.rig.join_at(Roll::name(at), incarnation * 1000 + at as u64, &format!("http://{host}:{}", 7000 + at));
        self.look(&commands);
    }

    fn pass(&mut self, time: Duration) {
        let commands = self.rig.pass(time);
        self.look(&commands);
    }

    fn exit(&mut self, at: usize, how: Exit) {
        let name = Roll::name(at);
        match how {
            Exit::Leaves => self.rig.executors.get_mut(name).expect("it is there").leaving = true,
            Exit::IsDrained => drop(self.rig.wish(name, Wish::Drain)),
            Exit::Stops | Exit::Dies => {}
        }
        if matches!(how, Exit::Leaves | Exit::IsDrained) {
            self.pass(STEP);
            assert_eq!(self.rig.count(name), 0, "it gives everything away");
        }
        let executor = self.rig.executors.remove(name).expect("it is there");
        if how != Exit::Dies {
            self.rig.deregister(name, executor.incarnation.0);
        }
        let commands = self.rig.settle();
        self.look(&commands);
    }

    /// Waits until all is done, and looks that everybody has a fair share.
    fn rest(&mut self, executors: std::ops::Range<usize>) {
        self.pass(LEASE + CALM * 2);
        let fair = f64::from(SHARDS) / executors.len() as f64;
        for at in executors {
            let has = self.rig.count(Roll::name(at)) as f64;
            assert!((fair * 0.9 - 1.0..=fair * 1.1 + 1.0).contains(&has), "e{at:02} rests at {has}");
        }
        let commands = self.rig.pass(CALM * 2);
        assert!(!kinds(&commands).contains(&"commit"), "it is at rest");
    }

    /// Grants to another process, for each shard.
    fn moves(&self) -> f64 {
        let moves: usize = self.owners.iter().map(|owners| owners.len().saturating_sub(1)).sum();
        moves as f64 / f64::from(SHARDS)
    }

    /// Grants to another id, for each shard.
    fn changes_of_id(&self) -> f64 {
        let changes = |owners: &Vec<(ExecutorId, Incarnation)>| owners.windows(2).filter(|pair| pair[0].0 != pair[1].0).count();
        self.owners.iter().map(changes).sum::<usize>() as f64 / f64::from(SHARDS)
    }

    /// Shards that came back to a process that they had left.
    fn returns(&self) -> usize {
        let came_back = |owners: &&Vec<(ExecutorId, Incarnation)>| (0..owners.len()).any(|at| owners[..at].contains(&owners[at]));
        self.owners.iter().filter(came_back).count()
    }
}

/// Replaces each of so many executors by one of a new name; what that cost.
fn replace(executors: usize, exit: Exit, order: Order) -> Roll {
    let mut roll = Roll::of(executors);
    for at in 0..executors {
        if order == Order::First {
            roll.join(executors + at, 1, "10.0.0.1");
            roll.pass(STEP);
        }
        roll.exit(at, exit);
        roll.pass(STEP);
        if order == Order::Last {
            roll.join(executors + at, 1, "10.0.0.1");
            roll.pass(STEP);
        }
    }
    roll.rest(executors..2 * executors);
    roll
}

const SIZES: [usize; 4] = [3, 5, 10, 20];

/// All ways where that is cheap; else the two that differ most.
fn exits(executors: usize) -> Vec<Exit> {
    match executors {
        ..=5 => vec![Exit::Leaves, Exit::IsDrained, Exit::Stops, Exit::Dies],
        _ => vec![Exit::Leaves, Exit::Dies],
    }
}

/// The most that a roll may cost whose replacements come last, or under the same id. The first one's shards go to some that are replaced
/// later, so they move twice; and the last replacement comes when everybody else has been replaced, so its share, less the threshold,
/// moves once more. No order of moves does with fewer.
fn most_where_replacements_come_last(executors: usize) -> f64 {
    1.0 + (1.0 + 0.9) / executors as f64 + 0.02
}

#[test]
fn executors_are_replaced_one_after_the_other_by_new_ones_that_join_first() {
    for executors in SIZES {
        for exit in exits(executors) {
            let roll = replace(executors, exit, Order::First);
            println!("{executors} executors, each {exit:?} after its replacement joined: {:.2} moves per shard", roll.moves());
            assert!(roll.moves() <= 1.2, "{executors}, {exit:?}: {}", roll.moves());
            assert_eq!(roll.returns(), 0);
        }
    }
}

#[test]
fn executors_are_replaced_one_after_the_other_by_new_ones_that_join_last() {
    for executors in SIZES {
        for exit in exits(executors) {
            let roll = replace(executors, exit, Order::Last);
            println!("{executors} executors, each {exit:?} before its replacement joins: {:.2} moves per shard", roll.moves());
            let most = most_where_replacements_come_last(executors).min(if executors >= 10 { 1.2 } else { 2.0 });
            assert!(roll.moves() <= most, "{executors}, {exit:?}: {} of {most}", roll.moves());
            assert_eq!(roll.returns(), 0);
        }
    }
}

/// Pods of a StatefulSet with new addresses.
#[test]
fn executors_restart_one_after_the_other_elsewhere_under_their_ids() {
    for executors in SIZES {
        for exit in exits(executors).into_iter().filter(|exit| *exit != Exit::IsDrained) {
            let mut roll = Roll::of(executors);
            for at in 0..executors {
                roll.exit(at, exit);
                roll.pass(STEP);
                roll.join(at, 2, "10.0.0.2");
                roll.pass(if exit == Exit::Dies { LEASE } else { STEP });
            }
            roll.rest(0..executors);
            println!("{executors} executors, each {exit:?} and restarts elsewhere: {:.2} moves per shard", roll.moves());
            let most = if exit == Exit::Dies { 1.0 } else { most_where_replacements_come_last(executors) };
            assert!(roll.moves() <= most, "{executors}, {exit:?}: {} of {most}", roll.moves());
            if exit == Exit::Dies {
                assert_eq!(roll.changes_of_id(), 0.0, "the same id goes on with the same shards");
            }
        }
    }
}

#[test]
fn executors_restart_one_after_the_other_in_place() {
    for executors in SIZES {
        let mut roll = Roll::of(executors);
        for at in 0..executors {
            roll.exit(at, Exit::Dies);
            roll.pass(STEP);
            roll.join(at, 2, "10.0.0.1");
            roll.pass(STEP);
        }
        roll.rest(0..executors);
        assert_eq!((roll.moves(), roll.changes_of_id()), (1.0, 0.0), "each shard goes on where it was, once");
    }
}

/// Each comes to three that have everything, and is gone again two seconds later.
#[test]
fn ten_executors_come_and_go_within_seconds() {
    for exit in [Exit::Leaves, Exit::Stops] {
        let mut roll = Roll::of(3);
        let began = roll.rig.now;
        for at in 3..13 {
            roll.join(at, 1, "10.0.0.1");
            roll.pass(STEP);
            roll.exit(at, exit);
        }
        let once = roll.rig.now.since(began).as_secs() / CALM.as_secs() + 1;
        assert!(roll.moves() > 0.3, "the first one got its share: {}", roll.moves());
        assert!(roll.moves() <= 0.46 * once as f64, "once in a calm time, and not ten times: {}, {once}", roll.moves());
        roll.rest(0..3);
    }
}

/// One that crashes again and again, or is scaled up and down, does not take its share along each time: A, B, A, B.
#[test]
fn an_executor_that_comes_and_goes_over_and_over_moves_its_share_once_in_a_calm_time() {
    for exit in [Exit::Leaves, Exit::Stops] {
        let mut roll = Roll::of(3);
        let began = roll.rig.now;
        for time in 0..12 {
            roll.join(9, 1 + time, &format!("10.0.1.{time}"));
            roll.pass(STEP);
            roll.exit(9, exit);
        }
        let once = roll.rig.now.since(began).as_secs() / CALM.as_secs() + 1;
        assert!(roll.moves() <= 0.46 * once as f64, "{exit:?}: {}, {once}", roll.moves());
        roll.rest(0..3);
    }
}

/// A replacement that came while somebody's shards were still there to be had gets them all, and nobody else's.
#[test]
fn nothing_moves_for_balance_while_somebody_leaves() {
    let mut roll = Roll::of(4);
    roll.rig.wish(Roll::name(0), Wish::Drain);
    roll.join(4, 1, "10.0.0.1");
    roll.pass(STEP);
    assert_eq!((roll.rig.count("e00"), roll.rig.count("e04")), (0, 150));
    assert_eq!(roll.moves(), 0.25);
}

/// It is as much of a departure as any other.
#[test]
fn somebody_leaves_while_joins_are_gathered() {
    let mut roll = Roll::of(4);
    roll.join(4, 1, "10.0.0.1");
    roll.exit(0, Exit::Stops);
    roll.pass(STEP);
    roll.join(5, 1, "10.0.0.1");
    roll.pass(STEP);
    assert_eq!((roll.rig.count("e04"), roll.rig.count("e05")), (150, 0));
    assert_eq!(roll.moves(), 0.25);
    let notes = roll.rig.overview().notes;
    assert!(
        notes.iter().any(|note| note.starts_with("executors left a short while ago: nothing moves for balance")),
        "{notes:?}"
    );
    roll.pass(CALM);
    assert!(roll.rig.count("e05") >= 108, "and then it gets its share");
}

/// Balance waits for the calm, but not for ever: a large one that comes while small ones leave without end gets its share.
#[test]
fn executors_leave_without_end_while_another_waits_for_its_share() {
    let mut rig = Rig::new(SHARDS);
    let join = |rig: &mut Rig, name: &'static str, incarnation, weight| {
        rig.join(name, incarnation);
        let heavy = Registration { weight, ..rig.registration(name, incarnation, &format!("http://{name}-{incarnation}:1")) };
        rig.register(heavy);
        rig.settle();
    };
    join(&mut rig, "large", 1, 100);
    let small: Vec<&'static str> = (0..60).map(Roll::name).collect();
    for (name, at) in small.iter().zip(10..) {
        join(&mut rig, name, at, 1);
    }
    rig.pass(STEP);
    let leave = |rig: &mut Rig, at: usize| {
        rig.executors.remove(small[at]);
        rig.deregister(small[at], 10 + at as u64);
        rig.settle();
    };
    leave(&mut rig, 0);
    join(&mut rig, "waits", 2, 100);
    let began = rig.now;
    for at in 1..small.len() {
        let waited = rig.now.since(began);
        let has = rig.count("waits");
        if waited > CALM * (MOST_CALM_TIMES + 1) {
            assert!(has >= 240, "it has {has} after {waited:?}");
            return;
        }
        leave(&mut rig, at);
        rig.pass(CALM / 5);
        if waited < CALM * (MOST_CALM_TIMES - 1) {
            assert!(has < 200, "it has {has} after {waited:?}: that cannot all have been free");
        }
    }
    panic!("there is nobody left to leave");
}
