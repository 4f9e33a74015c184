//! How one shard is: who owns it since when, why there, and what it waits for. Looked up in what the engine knows anyway; the words
//! stand in `sentences`.

use std::collections::BTreeMap;

use crate::assignment::command::{Cause, ExecutorState, Explanation};
use crate::assignment::planner::Role;
use crate::assignment::record::{ExecutorRecord, ShardRecord, ShardState, Standing};
use crate::types::{BootInstant, ExecutorId, ShardId, Slot};

use super::contact::Contact;
use super::turn::Members;
use super::{Deferred, Engine, Phase, sentences};

impl Engine {
    /// See the module.
    pub(super) fn explanation(&self, now: BootInstant, shard: ShardId) -> Explanation {
        let record = self.state.shard(shard);
        let granted = record.owner().and(self.history.get(shard)).map(|memory| self.wall.unix_ms(memory.at));
        let mut waits_for = match record.state {
            ShardState::Unassigned => self.unassigned_waits_for(now, shard, record),
            ShardState::Held(slot) => self.held_waits_for(now, shard, record, slot),
            ShardState::Releasing(slot) => self.releasing_waits_for(now, shard, record, slot),
        };
        if !waits_for.is_empty() {
            let store = self.store_note(now);
            let belief = (!self.believes(now)).then(|| sentences::NOT_SURE_TO_LEAD.to_owned());
            waits_for.splice(0..0, store.into_iter().chain(belief));
        }
        Explanation {
            snapshot: self.snapshot(),
            shard,
            since_unix_ms: granted,
            history: self.history_of(now, shard, record),
            waits_for,
            destination: self.destination_of(shard, record),
        }
    }

    fn history_of(&self, now: BootInstant, shard: ShardId, record: ShardRecord) -> Vec<String> {
        let (age, term) = (now.since(self.history.began()), self.state.meta.term);
        let memory = self.history.get(shard);
        let Some(owner) = record.owner().and_then(|slot| self.id_of(slot)) else {
            return vec![match memory {
                Some(memory) => sentences::owned_until(memory.previous, memory.cause, now.since(memory.at)),
                None if record.epoch.0 == 0 => sentences::NEVER_OWNED.to_owned(),
                None => sentences::unowned_from_the_beginning(record.epoch, age, term),
            }];
        };
        let mut history = vec![match memory {
            Some(memory) => sentences::granted(owner, record.epoch, now.since(memory.at), memory.previous, memory.cause),
            None => sentences::owned_from_the_beginning(owner, record.epoch, age, term),
        }];
        if matches!(record.state, ShardState::Releasing(_)) {
            history.push(sentences::asked_back(owner, self.unserved.get(shard).unwrap_or(Cause::Crash)));
        }
        history
    }

    /// Where it is to go, as far as that is settled.
    fn destination_of(&self, shard: ShardId, record: ShardRecord) -> Option<ExecutorId> {
        let coming = self.in_flight.as_ref().map(|it| it.next.shard(shard).state);
        let granted = match coming {
            Some(ShardState::Held(slot)) if record.owner() != Some(slot) => Some(slot),
            _ => None,
        };
        let planned = || self.destinations.get(&shard).map(|destination| destination.slot);
        let slot = granted.or_else(|| self.deferred(shard).map(|it| it.to)).or_else(planned)?;
        self.id_of(slot).cloned()
    }

    fn unassigned_waits_for(&self, now: BootInstant, shard: ShardId, record: ShardRecord) -> Vec<String> {
        if self.phase != Phase::Open {
            return vec![sentences::NOT_OPEN.to_owned()];
        }
        if let Some(commit) = self.commit_for(shard, record) {
            return vec![commit];
        }
        let held_back = self.held_until.filter(|until| *until > now).map(|until| self.nothing_is_granted(until.since(now)));
        let mut waits: Vec<String> = held_back.into_iter().chain(self.nobody_takes()).collect();
        if waits.is_empty() {
            let settling = self.settle_until.filter(|until| *until > now && self.deferred(shard).is_some());
            waits.push(
                settling.map_or_else(|| sentences::NEXT_PASS.to_owned(), |until| sentences::joins_are_gathered(until.since(now))),
            );
        }
        waits
    }

    fn held_waits_for(&self, now: BootInstant, shard: ShardId, record: ShardRecord, slot: Slot) -> Vec<String> {
        let Some(executor) = self.state.executor(slot) else { return Vec::new() };
        let id = &executor.id;
        if let Some(commit) = self.commit_for(shard, record) {
            return vec![commit];
        }
        match (executor.standing, self.contacts.get(&slot)) {
            (Standing::Gone, _) => vec![sentences::gone(id)],
            (Standing::Superseded, _) => vec![sentences::superseded(id)],
            (Standing::Present, Some(contact)) if contact.lease_is_over => vec![sentences::lease_is_over(id)],
            (Standing::Present, contact) => {
                let mut waits: Vec<String> = contact.and_then(|contact| self.silence(now, id, contact)).into_iter().collect();
                let start_by = contact.and_then(|contact| contact.unadmitted.get(shard));
                waits.extend(start_by.map(|until| sentences::to_start(id, until.since(now))));
                waits.extend(self.pinned(now, shard, slot, id));
                waits
            }
        }
    }

    fn releasing_waits_for(&self, now: BootInstant, shard: ShardId, record: ShardRecord, slot: Slot) -> Vec<String> {
        let Some(executor) = self.state.executor(slot) else { return Vec::new() };
        let id = &executor.id;
        if let Some(commit) = self.commit_for(shard, record) {
            return vec![commit];
        }
        let release = self.contacts.get(&slot).and_then(|contact| contact.releasing.get(&shard));
        let first = match (executor.standing, release) {
            (Standing::Gone, _) | (_, None) => sentences::gone(id),
            (_, Some(release)) if release.confirmed => sentences::stopped(id),
            (_, Some(release)) => match release.free_at {
                Some(free_at) => sentences::to_stop(id, free_at.since(now)),
                None => sentences::NOT_OPEN.to_owned(),
            },
        };
        [first].into_iter().chain(self.nobody_takes()).collect()
    }

    /// The commit in flight changes it.
    fn commit_for(&self, shard: ShardId, record: ShardRecord) -> Option<String> {
        let next = self.in_flight.as_ref().map(|it| it.next.shard(shard)).filter(|next| *next != record)?;
        Some(match next.state {
            ShardState::Held(slot) => {
                let flight = self.in_flight.as_ref()?;
                sentences::commit_that_grants(flight.next.executor(slot)?.id.as_str())
            }
            ShardState::Releasing(_) => sentences::COMMIT_THAT_ASKS_BACK.to_owned(),
            ShardState::Unassigned => sentences::COMMIT_THAT_FREES.to_owned(),
        })
    }

    /// An executor renews at a third of its lease: one that let half of it pass is late.
    fn silence(&self, now: BootInstant, id: &ExecutorId, contact: &Contact) -> Option<String> {
        let ends = contact.lease?.ends();
        let left = ends.since(now);
        if !contact.heard {
            return Some(sentences::not_heard_yet(id, left));
        }
        let silent = self.lease_end(now).since(ends);
        (silent > self.settings.lease_ttl / 2).then(|| sentences::not_heard(id, silent, left))
    }

    /// Why it stays where the planner would not leave it.
    fn pinned(&self, now: BootInstant, shard: ShardId, slot: Slot, owner: &ExecutorId) -> Option<String> {
        let Members { members, .. } = self.members(&self.state);
        let leaves = members.iter().any(|member| member.slot == slot && member.role == Role::Leaves);
        if leaves && let Some(nobody) = self.nobody_takes() {
            return Some(sentences::stays(owner, &nobody));
        }
        let to = self.id_of(self.deferred(shard)?.to)?;
        let settling =
            self.settle_until.filter(|until| *until > now).map(|until| sentences::joins_are_gathered(until.since(now)));
        let paused = || self.pause_note(now).filter(|_| !leaves);
        let unheard = || Some(self.unheard(&members)).filter(|unheard| *unheard > 0 && !leaves).map(sentences::unheard);
        let calm = || self.calm_left(now).filter(|_| !leaves).map(sentences::calm);
        let why = settling.or_else(paused).or_else(unheard).or_else(calm)?;
        Some(sentences::pinned(to.as_str(), !leaves, &why))
    }

    /// Says so where no executor can take shards, and how they are.
    fn nobody_takes(&self) -> Option<String> {
        let Members { members, .. } = self.members(&self.state);
        if members.iter().any(|member| member.role == Role::Takes) {
            return None;
        }
        let mut counts: BTreeMap<&'static str, u32> = BTreeMap::new();
        for (slot, record) in self.state.executors().filter(|(_, record)| record.standing == Standing::Present) {
            *counts.entry(self.how(slot, record)).or_default() += 1;
        }
        Some(sentences::nobody_takes(&counts.into_iter().collect::<Vec<_>>()))
    }

    fn how(&self, slot: Slot, record: &ExecutorRecord) -> &'static str {
        match self.executor_state(slot, record) {
            ExecutorState::Active if self.contacts.get(&slot).is_some_and(|contact| !contact.heard) => {
                "not heard by this leader yet"
            }
            state => state.as_str(),
        }
    }

    /// Until when grants are held back (L12), and why.
    pub(super) fn nothing_is_granted(&self, left: std::time::Duration) -> String {
        sentences::nothing_is_granted(left, self.restored)
    }

    /// What the last pass of the planner wanted of it, and was not done.
    fn deferred(&self, shard: ShardId) -> Option<&Deferred> {
        self.deferred.binary_search_by_key(&shard, |it| it.shard).ok().map(|at| &self.deferred[at])
    }

    fn id_of(&self, slot: Slot) -> Option<&ExecutorId> {
        self.state.executor(slot).map(|record| &record.id)
    }
}
