//! The promises about who works on what, looked at after every step; and whether a world has come to rest.

use std::collections::BTreeMap;
use std::time::Duration;

use shard_manager::assignment::command::Snapshot;
use shard_manager::assignment::lease;
use shard_manager::assignment::planner::{self, Member, Role};
use shard_manager::assignment::record::{ShardRecord, ShardState, Standing};
use shard_manager::types::{ShardId, Slot};

use crate::context::LONGEST_WAY;
use crate::executor::Process;
use crate::random::{Instant, SECOND, us};
use crate::store::LEADERSHIP;
use crate::world::World;

/// What shards are not, or not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacks {
    /// Worked on by who owns them.
    Held,
    /// Held at epochs that the storage takes.
    Taken,
    /// Known to readers.
    Known,
    /// Taken away from who was removed and stays so.
    Gone,
    /// Spread fairly over everybody else.
    Fair,
}

impl Lacks {
    /// **P6.** The last message of the storm arrives; an election; what it left behind runs out by a new leader's first leases, or what
    /// that granted was not started or stopped and runs out once more. Over a lost store grants are held back as well, for the time of a
    /// lease after those who can tell have come, and what the storage refuses then is granted anew. Balance takes its time.
    pub fn bound(self, longest_lease: Duration, store_was_lost: bool) -> Instant {
        let lease = us(longest_lease + lease::margin(longest_lease));
        let held = LONGEST_WAY + LEADERSHIP + 3 * lease + 2 * SECOND + if store_was_lost { 3 * lease } else { 0 };
        if self == Lacks::Fair { held + 64 * us(longest_lease) } else { held }
    }
}

impl World {
    /// **P3.** No two processes work on one shard under live leases. **P4.** Where leases over a lost store may still run, they are
    /// told apart by their epochs.
    pub fn check_owners(&mut self) {
        let time = self.context.time;
        let mut owners: BTreeMap<ShardId, &Process> = BTreeMap::new();
        for process in self.processes.iter().filter(|process| process.alive) {
            for (shard, worker) in process.workers.iter().filter(|(shard, _)| process.works_on(**shard, time)) {
                let Some(other) = owners.insert(*shard, process) else { continue };
                let same = other.workers.get(shard).is_some_and(|other| other.epoch == worker.epoch);
                let (one, two) = (other.name(), process.name());
                if time >= self.context.lost_leases_end {
                    return self.context.expect(false, || format!("P3: {one} and {two} both work on shard {shard}"));
                }
                let apart = !same || !self.context.versions_tell_apart();
                self.context.reached("two processes worked on one shard over a lost store");
                self.context.expect(apart, || format!("P4: {one} and {two} work on shard {shard} at one epoch"));
            }
        }
    }

    /// What shards still lack; nothing where the planner would leave it at that.
    pub fn lacks(&self) -> Option<Lacks> {
        let Some(newest) = self.context.store.current() else { return Some(Lacks::Held) };
        let Snapshot { state, .. } = &newest;
        let owner = |(shard, record): (ShardId, ShardRecord)| {
            let ShardState::Held(slot) = record.state else { return None };
            let owner = state.executor(slot).map(|owner| (&owner.id, owner.incarnation))?;
            let has = |process: &&Process| process.alive && process.has(shard, record.epoch, owner);
            Some((shard, self.processes.iter().find(has)?))
        };
        let Some(owners) = state.shards().map(owner).collect::<Option<Vec<_>>>() else { return Some(Lacks::Held) };
        if !owners.iter().all(|(shard, process)| process.workers.get(shard).is_some_and(|worker| worker.is_taken)) {
            return Some(Lacks::Taken);
        }
        if !self.readers.iter().all(|reader| reader.knows(&newest, self.context.versions_tell_apart())) {
            return Some(Lacks::Known);
        }
        let lives = |process: &Process| process.alive && !process.workers.is_empty();
        let has = |id| state.present(id).is_some() || self.processes.iter().any(|process| process.id == *id && lives(process));
        if self.gone.iter().any(has) {
            return Some(Lacks::Gone);
        }
        let members = state.executors().filter(|(_, record)| record.standing == Standing::Present);
        let members = members.map(|(slot, record)| Member { slot, id: record.id.clone(), weight: 1, role: Role::Takes });
        let members: Vec<Member> = members.collect();
        let home = |slot: Slot| members.iter().position(|member| member.slot == slot).map_or(planner::NOBODY, |at| at as u32);
        let homes: Vec<u32> = state.shards().map(|(_, record)| record.owner().map_or(planner::NOBODY, home)).collect();
        let input = planner::Input { members: &members, homes: &homes, threshold: 0.1, avoid: &BTreeMap::new(), still: false };
        let is_fair = members.len() + self.gone.len() == self.ids.len() && planner::plan(&input).0.moves.is_empty();
        (!is_fair).then_some(Lacks::Fair)
    }
}
