//! What is promised, as it is looked at.

use std::time::Duration;

use crate::executor::{LEADERSHIP, Process};
use crate::world::{Checked, World};
use crate::{CALM, LEASE, MARGIN, SETTLE, TICK};
use crate::{Fate, Way};
use shard_manager::assignment::command::ExecutorState;
use shard_manager::assignment::record::{ShardRecord, ShardState, Wish};
use shard_manager::holdings::Holdings;
use shard_manager::types::{Incarnation, ShardId, Version};

impl World {
    /// **P2, P5.** What an incarnation is told is durable, and never older than what this leader told it before or than what it knows.
    pub fn told(&mut self, number: u64, incarnation: Incarnation, version: Version, set: Option<&Holdings>) -> Checked {
        let state = self.store.history.get(&version).ok_or_else(|| format!("P2: {version} is told and not durable"))?;
        let slot = state.executors().find(|(_, it)| it.incarnation == incarnation).map(|(slot, _)| slot);
        let holds = |state: ShardState| slot.is_some_and(|slot| state == ShardState::Held(slot));
        let durable = Holdings::from_pairs(state.shards().filter(|(_, it)| holds(it.state)).map(|(shard, it)| (shard, it.epoch)));
        if let Some(set) = set.filter(|set| **set != durable) {
            return Err(format!("P2: {incarnation} is told {set:?} of {version}, and durable is {durable:?}"));
        }
        let newest = self.newest();
        let leader = self.leaders.iter_mut().find(|leader| leader.number == number).expect("it tells");
        let before = leader.told.entry(incarnation).or_default();
        if version < *before {
            return Err(format!("P5: {incarnation} is told {version} after {before}"));
        }
        *before = version;
        let knows = self.processes.values().find(|it| it.ledger.incarnation() == incarnation).map(|it| it.ledger.mark());
        if let Some(mark) = knows.filter(|mark| number == newest && version < *mark) {
            return Err(format!("P5: the newest leader tells {incarnation} {version}, which knows {mark}"));
        }
        Ok(())
    }

    /// **P4.** Nobody starts a shard at an epoch that somebody else had, or below one.
    pub fn look_at_starts(&mut self) -> Checked {
        for process in self.processes.values_mut() {
            let incarnation = process.ledger.incarnation();
            for (shard, epoch) in process.started.drain(..) {
                let before = self.started.insert(shard, (epoch, incarnation));
                if let Some((highest, by)) =
                    before.filter(|&(highest, by)| epoch < highest || (epoch == highest && by != incarnation))
                {
                    return Err(format!("P4: {incarnation} starts shard {shard} at {epoch}, which {by} had at {highest}"));
                }
            }
        }
        Ok(())
    }

    /// **P3.** Nobody works under a live lease on a shard that is not its own by what is durable.
    pub fn check_owners(&self) -> Checked {
        let Some((version, state)) = self.store.current() else { return Ok(()) };
        for (shard, record) in state.shards() {
            let owner = record.owner().and_then(|slot| state.executor(slot)).map(|it| it.incarnation);
            let mut others = self.processes.values().filter(|it| Some(it.ledger.incarnation()) != owner);
            if let Some(other) = others.find(|it| it.lives_on(shard, self.now)) {
                let (id, incarnation) = (Process::name(other.seat.0), other.ledger.incarnation());
                return Err(format!(
                    "P3: at {version} shard {shard} is {record:?}, and {id} ({incarnation}) has a live lease on it"
                ));
            }
        }
        Ok(())
    }

    /// Whether somebody runs each shard and was seen to.
    pub fn is_served(&self) -> bool {
        let Some((_, state)) = self.store.current() else { return false };
        let runs = |(shard, record): (ShardId, ShardRecord)| {
            let ShardState::Held(slot) = record.state else { return false };
            let owner = state.executor(slot).map(|it| it.incarnation);
            let process = self.processes.values().find(|it| Some(it.ledger.incarnation()) == owner);
            process.is_some_and(|it| {
                it.lives_on(shard, self.now) && it.workers.get(&shard).is_some_and(|worker| worker.epoch == record.epoch)
            })
        };
        let unserved: u32 = self.leaders.last().map_or(u32::MAX, |it| it.engine.statistics().unserved.values().sum());
        unserved == 0 && state.shards().all(runs)
    }

    pub fn suspects(&self) -> u32 {
        self.leaders.last().map_or(0, |it| it.engine.statistics().executors[&ExecutorState::Suspect])
    }

    /// **P6.** Nothing fails any more but what L6 is for, shards that are not stopped; and one more executor comes.
    pub fn come_to_rest(&mut self) -> Checked {
        self.fate = Fate::Lands;
        self.settle()?;
        self.pump()?;
        let newest = self.newest();
        if self.leaders.last().is_none_or(|leader| leader.cut_off) {
            self.lead(Duration::ZERO, LEASE);
        }
        self.leaders.retain(|leader| leader.number >= newest);
        self.under_way.clear();
        for process in self.processes.values_mut() {
            (process.calls, process.commands) = (Way::Prompt, Way::Prompt);
        }
        self.join((3, 0));
        (0..3).for_each(|at| self.wish(at, Wish::None));
        (0..8).for_each(|at| self.probe(at, true));
        self.go_on()?;

        // A new leader's first leases, or what was left of any: the lease, its margin and what an old leader may still believe. Then joins
        // are gathered, a commit that had failed is tried again, and what was granted is seen at the renewal after next.
        let bound = LEADERSHIP + LEASE + MARGIN + SETTLE + Duration::from_secs(1) + LEASE * 2 / 3;
        let begin = self.now;
        while !self.is_served() {
            if self.now.since(begin) > bound {
                return Err(format!(
                    "P6: {:?} after everything was well",
                    self.store.current().expect("there is one").1.shards().collect::<Vec<_>>()
                ));
            }
            self.pass(TICK)?;
        }
        self.pass(CALM + LEASE * 2)?;
        let (commits, suspects) = (self.commits, self.suspects());
        self.pass(LEASE / 2)?;
        // Trust in who did not start what it was given comes back later still.
        if !self.is_served() || (suspects == 0 && self.commits != commits) {
            return Err(format!(
                "P6: served is {}, and {} more commits, though nothing happens",
                self.is_served(),
                self.commits - commits
            ));
        }
        Ok(())
    }
}
