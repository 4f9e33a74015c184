//! What follows from a commit, and from the open port. The only place where anything durable is told (P2).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::assignment::command::{Assignment, Cause, Command, Notice, Peer, Refusal};
use crate::assignment::lease::Lease;
use crate::assignment::record::{ExecutorRecord, ShardRecord, ShardState, Standing};
use crate::assignment::state::State;
use crate::types::{BootInstant, Incarnation, Revision, ShardId, Slot};

use super::contact::{Contact, Release};
use super::draft::Outbox;
use super::{Engine, InFlight, Phase, RETRY};

impl Engine {
    /// The draft is durable: puts it in force, and tells everybody.
    pub(super) fn committed(&mut self, now: BootInstant, revision: Revision, commands: &mut Vec<Command>) {
        let Some(InFlight { next, outbox }) = self.in_flight.take() else { return };
        let before = std::mem::replace(&mut self.state, Arc::new(next));
        self.revision = Some(revision);
        self.retry = (now, RETRY.0);
        self.failing_since = None;
        self.attention = true;
        let after = Arc::clone(&self.state);
        self.shown_epochs.retain(|&shard, shown| shown.epoch > after.shard(shard).epoch);
        commands.push(Command::Publish(self.snapshot()));
        if self.phase == Phase::Starting {
            self.phase = Phase::Closed;
            self.first_term = self.state.meta.term;
            self.take_stock();
            commands.extend(outbox.notices.into_iter().map(Command::Notice));
            return;
        }

        let mut to_tell = self.update_contacts(now, &before, &outbox, commands);
        to_tell.extend(self.update_shards(now, &before, &outbox));
        let Outbox { due, renewals, notices, moved, joined, notes, .. } = outbox;
        self.notes = notes;
        if !joined.is_empty() {
            let until = now.after(self.settings.settle_time);
            self.settle_until.get_or_insert(until);
        }
        if self.longer_leases_end.is_some_and(|end| end <= now) {
            self.longer_leases_end = None;
        }
        self.answer_due(now, due, commands);
        for (request, renewal) in renewals {
            self.renew(now, request, renewal, commands);
        }
        for slot in to_tell {
            self.send(slot, commands);
        }
        let moved = moved.into_iter().map(|(cause, shards)| Notice::Moved { cause, shards });
        commands.extend(notices.into_iter().chain(moved).map(Command::Notice));
    }

    /// The draft certainly did not land: memory is as before, and whoever waited for it hears so.
    pub(super) fn commit_failed(&mut self, now: BootInstant, commands: &mut Vec<Command>) {
        let Some(InFlight { outbox, .. }) = self.in_flight.take() else { return };
        let (_, wait) = self.retry;
        self.retry = (now.after(wait), (wait * 2).min(RETRY.1));
        self.attention = true;
        let over = now.after(self.longest_lease());
        for (&slot, contact) in &mut self.contacts {
            let gone = self.state.executor(slot).is_none_or(|record| record.standing == Standing::Gone);
            if let Some(lease) = contact.lease.as_mut().filter(|lease| !gone && lease.is_ending()) {
                lease.end_failed();
                // Should it speak after all, it says which of its shards it still has.
                let desired: Vec<ShardId> = contact.desired().collect();
                desired.into_iter().for_each(|shard| contact.awaits(shard, over));
            }
        }
        let asked = self.notes.asked.take().unwrap_or(now);
        self.failing_since.get_or_insert(asked);
        let waited = outbox.due.iter().map(|(request, _)| *request);
        let waited = waited.chain(outbox.renewals.iter().map(|(request, _)| *request));
        commands.extend(waited.map(|request| Command::Reply(request, Err(Refusal::StoreUnavailable))));
    }

    /// **L8, new leader.** From here on executors can renew; nobody's lease ends earlier than one full lease from now.
    pub(super) fn port_opened(&mut self, now: BootInstant, commands: &mut Vec<Command>) {
        if self.phase != Phase::Closed {
            return;
        }
        self.phase = Phase::Open;
        self.attention = true;
        self.settle_until = Some(now.after(self.settings.settle_time));
        let lease = self.first_lease(now);
        if self.state.meta.lease_ttl_ms > self.settings.lease_ttl.as_millis() as u64 {
            self.longer_leases_end = Some(lease.ends());
        }
        for contact in self.contacts.values_mut() {
            contact.lease = Some(lease);
            contact.releasing.values_mut().for_each(|release| release.free_at = Some(lease.ends()));
        }
        let slots: Vec<Slot> = self.contacts.keys().copied().collect();
        for slot in slots {
            // Nothing is sent before it was heard: what it says may prove that this state is an old one.
            self.connect(slot, commands);
        }
    }

    /// Builds the memory of a new leadership from the state it took over.
    fn take_stock(&mut self) {
        let state = Arc::clone(&self.state);
        for (slot, record) in state.executors() {
            self.contacts.insert(slot, Contact::new(record.incarnation, None, false));
            self.index_present(slot, record);
        }
        let cause = |record: &ShardRecord| if record.epoch.0 == 0 { Cause::Startup } else { Cause::LeaderChange };
        for (shard, record) in state.shards() {
            match record.state {
                ShardState::Unassigned => self.unserved.set(shard, Some(cause(&record))),
                ShardState::Releasing(slot) => {
                    self.unserved.set(shard, Some(Cause::LeaderChange));
                    let release = Release { since: self.version(), free_at: None, confirmed: false };
                    self.contacts.get_mut(&slot).map(|contact| contact.releasing.insert(shard, release));
                }
                ShardState::Held(slot) => {
                    if let Some(contact) = self.contacts.get_mut(&slot) {
                        contact.gained(shard, record.epoch);
                    }
                }
            }
        }
    }

    fn index_present(&mut self, slot: Slot, record: &ExecutorRecord) {
        if record.standing == Standing::Present {
            self.present.insert(record.id.clone(), slot);
        }
    }

    /// Contacts follow the executor records; the slots that changed hands are connected anew.
    fn update_contacts(
        &mut self,
        now: BootInstant,
        before: &State,
        outbox: &Outbox,
        commands: &mut Vec<Command>,
    ) -> BTreeSet<Slot> {
        let after = Arc::clone(&self.state);
        let mut moved = BTreeSet::new();
        let changed: Vec<Slot> = (0..before.slots().max(after.slots()))
            .map(Slot)
            .filter(|&slot| before.executor(slot) != after.executor(slot))
            .collect();
        for &slot in &changed {
            if let Some(old) = before.executor(slot).filter(|old| self.present.get(&old.id) == Some(&slot)) {
                self.present.remove(&old.id);
            }
        }
        for &slot in &changed {
            let (old, new) = (before.executor(slot), after.executor(slot));
            if let Some(new) = new {
                self.index_present(slot, new);
            }
            let (was, is) = (old.and_then(address), new.and_then(address));
            if was != is && was.is_some() {
                commands.push(Command::Disconnect(slot));
            }
            if old.map(|it| it.incarnation) != new.map(|it| it.incarnation) {
                self.contacts.remove(&slot);
                if old.is_some() {
                    self.avoid.retain(|_, avoided| *avoided != slot);
                    self.destinations.retain(|_, destination| destination.slot != slot);
                    self.ended.remove(&slot);
                }
                if let Some(new) = new {
                    let lease = Lease::until(self.lease_end(now));
                    let joined = outbox.joined.contains(&slot);
                    let mut contact = Contact::new(new.incarnation, Some(lease), joined);
                    contact.sluggish_until = self.is_unstable(&new.id).then(|| now.after(self.longest_lease()));
                    self.contacts.insert(slot, contact);
                }
            }
            if was != is && is.is_some() {
                self.connect(slot, commands);
                moved.extend(was.map(|_| slot));
            }
        }
        moved
    }

    /// What contacts should hold and release follows the shard records. Returns whose assignment changed.
    fn update_shards(&mut self, now: BootInstant, before: &State, outbox: &Outbox) -> BTreeSet<Slot> {
        let after = Arc::clone(&self.state);
        let version = self.version();
        let over = now.after(self.longest_lease());
        let mut changed = BTreeSet::new();
        let mut names = BTreeMap::new();
        for (shard, old, new) in after.changed_shards(before) {
            if let Some(contact) = old.owner().and_then(|slot| self.contacts.get_mut(&slot)) {
                contact.lost(shard, old.epoch);
                contact.releasing.remove(&shard);
            }
            if let ShardState::Held(slot) = old.state {
                changed.insert(slot);
            }
            let cause = self.note_cause(shard, new, outbox);
            let owner = old.owner().and_then(|slot| before.executor(slot).map(|record| (slot, record)));
            if let Some((slot, record)) = owner.filter(|_| new.owner() != old.owner() || new.epoch != old.epoch) {
                let name = *names.entry(slot).or_insert_with(|| self.history.name(&record.id));
                let replaced = self.present.get(&record.id).is_some_and(|present| *present != slot);
                // The lease of a process that was replaced did not end by itself.
                let cause = if cause == Cause::Crash && replaced { Cause::Superseded } else { cause };
                self.history.freed(now, shard, name, cause);
            }
            if matches!(new.state, ShardState::Held(_)) {
                self.history.granted(now, shard, cause);
            }
            match new.state {
                ShardState::Unassigned => {}
                ShardState::Held(slot) => {
                    self.destinations.remove(&shard);
                    changed.insert(slot);
                    if let Some(contact) = self.contacts.get_mut(&slot) {
                        contact.gained(shard, new.epoch);
                        contact.awaits(shard, over);
                    }
                }
                ShardState::Releasing(slot) => {
                    // L6: answers given before this moment may have renewed it, later ones do not.
                    let release = Release { since: version, free_at: Some(over), confirmed: false };
                    self.contacts.get_mut(&slot).map(|contact| contact.releasing.insert(shard, release));
                }
            }
        }
        changed
    }

    /// Keeps why a shard is not served; a grant alone changes nothing about that, its admission does.
    fn note_cause(&mut self, shard: ShardId, new: ShardRecord, outbox: &Outbox) -> Cause {
        let known = outbox.causes.get(&shard).copied().or(self.unserved.get(shard));
        let fallback = if matches!(new.state, ShardState::Held(_)) { Cause::Startup } else { Cause::Crash };
        let cause = known.unwrap_or(fallback);
        self.unserved.set(shard, Some(cause));
        cause
    }

    fn connect(&self, slot: Slot, commands: &mut Vec<Command>) {
        let Some(record) = self.state.executor(slot).filter(|record| record.standing != Standing::Gone) else { return };
        commands.push(Command::Connect(Peer {
            slot,
            id: record.id.clone(),
            incarnation: record.incarnation,
            endpoint: record.endpoint.clone(),
        }));
    }

    /// Sends an incarnation its whole assignment. What it holds is unknown from here on, until it says.
    fn send(&mut self, slot: Slot, commands: &mut Vec<Command>) {
        let version = self.version();
        let Some(record) = self.state.executor(slot).filter(|record| record.standing != Standing::Gone) else { return };
        let Some(contact) = self.contacts.get_mut(&slot) else { return };
        contact.forget_claim();
        let (incarnation, cluster_id) = (record.incarnation, self.state.meta.cluster_id);
        let holdings = Arc::new(contact.assignment(&self.state));
        commands.push(Command::Send(Assignment { slot, incarnation, cluster_id, version, holdings }));
    }
}

/// Where a record's process can be reached; one that is gone cannot.
fn address(record: &ExecutorRecord) -> Option<(Incarnation, &str)> {
    (record.standing != Standing::Gone).then_some((record.incarnation, record.endpoint.as_str()))
}
