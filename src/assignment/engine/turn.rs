//! What a turn drafts, in this order: what ended, what was asked, what is free, and who gets it.

use std::sync::Arc;
use std::time::Duration;

use crate::assignment::command::{Cause, Command, Notice};
use crate::assignment::event::MOST_CALM_TIMES;
use crate::assignment::planner::{self, Member, NOBODY, Role};
use crate::assignment::record::{End, ExecutorRecord, ShardState, Standing, Wish};
use crate::assignment::state::State;
use crate::types::{BootInstant, ExecutorId, ShardId, Slot};

use super::contact::Contact;
use super::draft::{Draft, Outbox, Page};
use super::{Deferred, Departures, Destination, Engine, InFlight, Phase, pause};

/// How long, in leases, an executor is suspect at the most that again and again does not start, or not keep up, what it is given.
const MOST_LEASES_SUSPECT: u32 = 64;

/// See [`Engine::members`].
pub(super) struct Members {
    pub members: Vec<Member>,
    /// What operators should know about how they were told apart.
    pub note: Option<String>,
}

impl Engine {
    pub(super) fn turn(&mut self, now: BootInstant, commands: &mut Vec<Command>) {
        self.draft(now, commands);
        // A commit in flight and a port that is not open yet are waited for; their events bring a turn of their own. Past its belief there
        // is nothing that a leader may do.
        let waits = self.in_flight.is_some() || self.phase == Phase::Closed || !self.believes(now);
        let latest = now.after(self.settings.turn_interval);
        let wanted = if self.attention || !self.queue.is_empty() { now } else { self.alarm };
        let soonest = wanted.max(self.retry.0).max(now);
        self.due = if waits { latest } else { latest.min(soonest) };
    }

    fn draft(&mut self, now: BootInstant, commands: &mut Vec<Command>) {
        if self.in_flight.is_some() || now < self.retry.0 || !self.believes(now) {
            return;
        }
        match self.phase {
            Phase::Starting => return self.first_commit(now, commands),
            Phase::Closed => return,
            Phase::Open => {}
        }
        let waits = !self.queue.is_empty() || !self.shown_epochs.is_empty();
        if !waits && !self.attention && now < self.alarm {
            return;
        }

        let state = Arc::clone(&self.state);
        let mut draft = Draft::new(&state, self.settings.max_pages_per_commit);
        self.draft_shown_epochs(&mut draft);
        self.draft_ended_leases(now, &mut draft);
        self.draft_calls(now, &mut draft, commands);
        self.draft_leaving(&mut draft);
        self.draft_free_shards(now, &mut draft);
        self.draft_end_of_pause(now, &mut draft);
        self.draft_plan(now, &mut draft);
        draft.outbox.notes.departures = self.departures;
        self.draft_ended_removals(&mut draft);
        self.draft_deletions(&mut draft);
        self.draft_lease_length(now, &mut draft);

        self.attention = draft.is_full();
        self.set_alarm(now);
        let changed = draft.is_changed();
        let (mut next, outbox) = draft.finish();
        if changed {
            next.meta.attempt = self.next_attempt();
            let changes = next.changes_since(self.revision.map(|_| &*state));
            self.in_flight = Some(InFlight { next, outbox });
            self.notes.asked = Some(now);
            commands.push(Command::Commit { expected: self.revision, changes });
        } else {
            debug_assert!(outbox.notices.is_empty(), "nothing happened that waits for a commit");
            self.notes = outbox.notes;
            self.answer_due(now, outbox.due, commands);
            for (request, renewal) in outbox.renewals {
                self.renew(now, request, renewal, commands);
            }
        }
    }

    /// Numbers every commit that is tried, never one like another: with the token it names one of them (L5).
    fn next_attempt(&mut self) -> u64 {
        self.attempts += 1;
        self.attempts
    }

    /// A leader's first commit: raises the term, and says who it is.
    fn first_commit(&mut self, now: BootInstant, commands: &mut Vec<Command>) {
        let mut next = State::clone(&self.state);
        let lease_ttl_ms = self.settings.lease_ttl.as_millis() as u64;
        next.meta.term = next.meta.term.next(self.takeover.unix_ms);
        next.meta.token = self.takeover.token;
        next.meta.attempt = self.next_attempt();
        next.meta.lease_ttl_ms = next.meta.lease_ttl_ms.max(lease_ttl_ms);
        let mut outbox = Outbox::default();
        outbox.notices.extend(pause::take_over(&mut next.meta, self.takeover.unix_ms));
        let changes = next.changes_since(self.revision.map(|_| &*self.state));
        self.in_flight = Some(InFlight { next, outbox });
        self.notes.asked = Some(now);
        commands.push(Command::Commit { expected: self.revision, changes });
    }

    /// The earliest deadline that is still to come; those that are over were just dealt with.
    fn set_alarm(&mut self, now: BootInstant) {
        let contacts = self.contacts.values().filter_map(|contact| contact.next_deadline());
        let calm = self.departures.map(|it| it.calm_until);
        let own = [self.settle_until, calm, self.held_until, self.longer_leases_end, self.pause_ends()].into_iter().flatten();
        let alarm = contacts.chain(own).filter(|&deadline| deadline > now).min();
        self.alarm = alarm.unwrap_or(BootInstant(Duration::MAX));
    }

    /// **L1, expiry first.** Whose lease is over is gone, and from here on not renewed.
    fn draft_ended_leases(&mut self, now: BootInstant, draft: &mut Draft) {
        for (&slot, contact) in &mut self.contacts {
            let Some(record) = draft.next().executor(slot).filter(|record| record.standing != Standing::Gone).cloned() else {
                continue;
            };
            let over = contact.lease.is_some_and(|lease| !lease.is_ending() && now >= lease.ends());
            if !over || !draft.reserve([Page::of_slot(slot), Page::of_retiree(&record.id)]) {
                continue;
            }
            if contact.lease.as_mut().is_some_and(|lease| lease.begin_ending(now)) {
                let (id, incarnation, shards) = (record.id.clone(), record.incarnation, contact.shards());
                draft.retire(&id, incarnation, End::Over);
                draft.set_executor(slot, Some(ExecutorRecord { standing: Standing::Gone, leaving: false, ..record }));
                draft.outbox.notices.push(Notice::Lapsed { id, incarnation, shards });
                // Nobody serves them from here on, whenever the store takes that in.
                contact.lease_is_over = true;
                for shard in contact.desired() {
                    self.unserved.set(shard, Some(Cause::Crash));
                }
            }
        }
    }

    fn draft_leaving(&mut self, draft: &mut Draft) {
        for (&slot, _) in self.contacts.iter().filter(|(_, contact)| contact.leaving) {
            if let Some(record) =
                draft.next().executor(slot).filter(|record| !record.leaving && record.standing == Standing::Present)
            {
                let record = ExecutorRecord { leaving: true, ..record.clone() };
                draft.set_executor(slot, Some(record));
            }
        }
    }

    /// **L6, per shard; P3.** Takes shards from owners that are gone, that confirmed, or whose time for stopping or starting is over.
    fn draft_free_shards(&mut self, now: BootInstant, draft: &mut Draft) {
        let slots: Vec<Slot> = self.contacts.keys().copied().collect();
        for slot in slots {
            let Some(record) = draft.next().executor(slot) else { continue };
            let (id, standing) = (record.id.clone(), record.standing);
            if standing == Standing::Gone {
                self.free_all(draft, slot, &id);
                continue;
            }
            self.free_released(now, draft, slot, &id);
            if standing == Standing::Superseded {
                self.release_all(draft, slot, &id);
            } else {
                self.release_unstarted(now, draft, slot, &id);
            }
        }
    }

    /// Where the shards of an incarnation go that another one took the place of, unless that happens all the time.
    fn succession(&self, draft: &Draft, id: &ExecutorId) -> Option<Destination> {
        let successor = draft.next().present(id).filter(|_| !self.is_unstable(id));
        successor.map(|(slot, _)| Destination { slot, succession: true })
    }

    /// The shards of an incarnation whose process is gone are free.
    fn free_all(&mut self, draft: &mut Draft, slot: Slot, id: &ExecutorId) {
        let succession = self.succession(draft, id);
        let fallback = if succession.is_some() { Cause::Superseded } else { Cause::Crash };
        let cause = self.ended.get(&slot).copied().unwrap_or(fallback);
        let Some(contact) = self.contacts.get(&slot) else { return };
        for shard in contact.owned() {
            let known = contact.releasing.contains_key(&shard);
            // What an operator moves in this very draft goes where it was to go.
            let moved = !known && !draft.is_held(shard);
            if !draft.free_shard(shard, (!known && !moved).then_some(cause)) {
                return;
            }
            self.destinations.extend(succession.filter(|_| !moved).map(|destination| (shard, destination)));
        }
    }

    /// The shards that its owner stopped, or had the time of a lease to stop, are free.
    fn free_released(&mut self, now: BootInstant, draft: &mut Draft, slot: Slot, id: &ExecutorId) {
        let Some(contact) = self.contacts.get(&slot) else { return };
        let mut shards = Vec::new();
        for (&shard, release) in &contact.releasing {
            let timed_out = !release.confirmed && release.free_at.is_some_and(|free_at| free_at <= now);
            let freed = (release.confirmed || timed_out) && draft.free_shard(shard, None);
            shards.extend((freed && timed_out).then_some(shard));
        }
        if !shards.is_empty() {
            draft.outbox.notices.push(Notice::ReleaseTimedOut { shards, id: id.clone() });
        }
    }

    /// A superseded incarnation is to stop everything, for its successor.
    fn release_all(&mut self, draft: &mut Draft, slot: Slot, id: &ExecutorId) {
        let succession = self.succession(draft, id);
        let Some(contact) = self.contacts.get(&slot) else { return };
        // An operator may move some in this very draft.
        let held: Vec<ShardId> = contact.desired().filter(|&shard| draft.is_held(shard)).collect();
        for shard in held {
            if !draft.release_shard(shard, Cause::Superseded) {
                return;
            }
            self.destinations.extend(succession.map(|destination| (shard, destination)));
        }
    }

    /// The shards that its owner had the time of a lease to start and keep, and did not, are asked back. Each time in a row it is trusted
    /// less; but not for a shard that another one failed just before: that says more about the shard.
    fn release_unstarted(&mut self, now: BootInstant, draft: &mut Draft, slot: Slot, id: &ExecutorId) {
        let lease = self.longest_lease();
        let Some(contact) = self.contacts.get_mut(&slot) else { return };
        contact.sluggish_until = contact.sluggish_until.filter(|until| *until > now);
        for shard in contact.on_trial.take_over(now) {
            contact.failures = 0;
            self.avoid.remove(&shard);
        }
        let mut shards = contact.unadmitted.over(now);
        shards.retain(|&shard| draft.is_held(shard) && draft.release_shard(shard, Cause::NotAdmitted));
        if shards.is_empty() {
            return;
        }
        let is_its_own = |shard: &ShardId| self.avoid.get(shard).is_none_or(|other| *other == slot);
        let suspect_for = shards.iter().any(is_its_own).then(|| {
            contact.failures = contact.failures.saturating_add(1);
            lease * 2u32.saturating_pow(contact.failures).min(MOST_LEASES_SUSPECT)
        });
        contact.sluggish_until = contact.sluggish_until.max(suspect_for.map(|length| now.after(length)));
        for &shard in &shards {
            self.avoid.insert(shard, slot);
            self.destinations.remove(&shard);
        }
        draft.outbox.notices.push(Notice::NotAdmitted { shards, id: id.clone(), suspect_for });
    }

    /// Asks the planner, and drafts what its plan makes possible now: free shards are granted, running ones are asked back.
    fn draft_plan(&mut self, now: BootInstant, draft: &mut Draft) {
        self.deferred.clear();
        self.held_until = self.held_until.filter(|&until| now < until);
        if self.held_until.is_some() {
            return;
        }
        self.settle_until = self.settle_until.filter(|&until| now < until);
        if self.settle_until.is_none() {
            self.contacts.values_mut().for_each(|contact| contact.established = true);
        }

        let Members { members, .. } = self.members(draft.next());
        let (homes, landing) = self.homes(draft.next(), &members);
        let settling = self.settle_until.is_some() || !draft.outbox.joined.is_empty();
        let takes = |member: &&Member| member.role == Role::Takes;
        let established = members.iter().filter(takes).any(|it| self.contacts.get(&it.slot).is_some_and(|it| it.established));
        let unheard = self.unheard(&members);
        let paused = draft.next().meta.pause.is_some();

        let waits = settling || unheard > 0 || paused;
        let still = self.await_calm(now, draft.next(), waits) || waits;
        let threshold = self.settings.rebalance_threshold;
        let input = planner::Input { members: &members, homes: &homes, threshold, avoid: &self.avoid, still };
        let (plan, report) = planner::plan(&input);
        draft.outbox.notes.lines = report.lines();
        if still {
            // What would move for balance, for whoever asks why it does not.
            let (wanted, _) = planner::plan(&planner::Input { still: false, ..input });
            let runs = |shard: ShardId| members.get(homes[shard.0 as usize] as usize).is_some_and(|it| it.role == Role::Takes);
            let held = |shard: ShardId| draft.is_held(shard);
            let waiting = wanted.moves.iter().filter(|it| runs(it.shard) && held(it.shard));
            self.deferred.extend(waiting.map(|it| Deferred { shard: it.shard, to: members[it.to as usize].slot }));
        }

        let moved = |shard: &ShardId| plan.moves.binary_search_by_key(shard, |it| it.shard).is_ok();
        let landing = landing.into_iter().filter(|(shard, _)| !moved(shard));
        let moves = plan.moves.iter().map(|it| (it.shard, it.to));
        for (shard, to) in moves.chain(landing) {
            let to = members[to as usize].slot;
            let record = draft.next().shard(shard);
            match record.state {
                ShardState::Unassigned => {
                    let succession = self.destinations.get(&shard).is_some_and(|it| it.succession && it.slot == to);
                    let cause = draft.outbox.causes.get(&shard).copied().or(self.unserved.get(shard));
                    let cause = cause.unwrap_or(Cause::Startup);
                    let fresh = matches!(cause, Cause::Startup | Cause::LeaderChange | Cause::Restored);
                    if settling && !succession && (fresh || !established) {
                        self.deferred.push(Deferred { shard, to });
                        continue;
                    }
                    if !draft.grant_shard(shard, to) {
                        break;
                    }
                    if !fresh && !succession {
                        *draft.outbox.moved.entry(cause).or_default() += 1;
                    }
                }
                ShardState::Held(_) => {
                    let home = homes[shard.0 as usize];
                    let Some(home) = members.get(home as usize) else { continue };
                    let cause = if home.role == Role::Leaves { Cause::Drain } else { Cause::Rebalance };
                    if settling {
                        self.deferred.push(Deferred { shard, to });
                        continue;
                    }
                    if !draft.release_shard(shard, cause) {
                        break;
                    }
                    self.destinations.insert(shard, Destination { slot: to, succession: false });
                }
                ShardState::Releasing(_) => {
                    self.destinations.insert(shard, Destination { slot: to, succession: false });
                }
            }
        }
        self.deferred.sort_unstable_by_key(|it| it.shard);
    }

    /// How many members this leader has not heard yet.
    pub(super) fn unheard(&self, members: &[Member]) -> usize {
        members.iter().filter(|it| self.contacts.get(&it.slot).is_some_and(|it| !it.heard)).count()
    }

    /// Whether balance waits, since executors that had shards left a short while ago or are leaving. Where executors are replaced one
    /// after the other, what the next one gives up fills the one that came last; moving running shards there in between would move them
    /// twice. It waits for so many calm times at the most: then it is balanced once, whoever goes on leaving, and as soon as nothing else
    /// makes it wait.
    fn await_calm(&mut self, now: BootInstant, next: &State, waits_anyway: bool) -> bool {
        let calm = self.settings.calm_time;
        let departs = |(&slot, contact): (&Slot, &Contact)| {
            let stays = |record: &ExecutorRecord| {
                record.standing == Standing::Present && !record.leaving && !matches!(record.wish, Wish::Drain | Wish::Remove)
            };
            // Nothing moves where another incarnation takes its place.
            let leaves = |record: &ExecutorRecord| {
                !stays(record) && (record.standing == Standing::Present || next.present(&record.id).is_none())
            };
            contact.shards() > 0 && next.executor(slot).is_some_and(leaves)
        };
        if let Some(departures) = self.departures
            && !waits_anyway
            && now >= self.calm_ends(departures)
        {
            self.departures = None;
            return false;
        }
        if self.contacts.iter().any(departs) {
            let since = self.departures.map_or(now, |it| it.since);
            self.departures = Some(Departures { since, calm_until: now.after(calm) });
        }
        self.departures.is_some()
    }

    /// Until when balance waits for them at the most.
    pub(super) fn calm_ends(&self, Departures { since, calm_until }: Departures) -> BootInstant {
        calm_until.min(since.after(self.settings.calm_time * MOST_CALM_TIMES))
    }

    /// The registered incarnations, as the planner sees them.
    pub(super) fn members(&self, state: &State) -> Members {
        let suspect =
            |slot: Slot| self.contacts.get(&slot).is_some_and(|contact| !contact.healthy || contact.sluggish_until.is_some());
        let heard = |slot: Slot| self.contacts.get(&slot).is_none_or(|contact| contact.heard);
        let present: Vec<(Slot, &ExecutorRecord)> =
            state.executors().filter(|(_, record)| record.standing == Standing::Present).collect();
        let open: Vec<Slot> = present
            .iter()
            .filter(|(slot, record)| record.wish == Wish::None && !record.leaving && heard(*slot))
            .map(|(slot, _)| *slot)
            .collect();
        let suspects = open.iter().filter(|slot| suspect(**slot)).count();
        // A probe that fails everywhere says more about the prober than about the probed.
        let ignored = suspects * 2 > open.len();
        let role = |slot: Slot, record: &ExecutorRecord| match record.wish {
            Wish::Drain | Wish::Remove => Role::Leaves,
            _ if record.leaving => Role::Leaves,
            Wish::Cordon => Role::Keeps,
            Wish::None if !heard(slot) || (suspect(slot) && !ignored) => Role::Keeps,
            Wish::None => Role::Takes,
        };
        let members = present.iter().map(|&(slot, record)| Member {
            slot,
            id: record.id.clone(),
            weight: record.weight,
            role: role(slot, record),
        });
        let note = (ignored && suspects > 0)
            .then(|| format!("{suspects} of {} executors are suspect: more than half, so suspicion is ignored", open.len()));
        Members { members: members.collect(), note }
    }

    /// Where each shard is, or is on its way to, as an index into `members`; and the free ones among the latter.
    pub(super) fn homes(&self, state: &State, members: &[Member]) -> (Vec<u32>, Vec<(ShardId, u32)>) {
        let mut index = vec![NOBODY; state.slots() as usize];
        for (at, member) in members.iter().enumerate() {
            index[member.slot.0 as usize] = at as u32;
        }
        let at = |slot: Slot| index.get(slot.0 as usize).copied().unwrap_or(NOBODY);
        let successor = |id: &ExecutorId| members.iter().position(|member| member.id == *id).map_or(NOBODY, |at| at as u32);
        let destination = |shard: ShardId| {
            let Some(destination) = self.destinations.get(&shard) else { return NOBODY };
            let home = match (at(destination.slot), state.executor(destination.slot)) {
                (NOBODY, Some(record)) => successor(&record.id),
                (home, _) => home,
            };
            let member = members.get(home as usize);
            let takes = member.is_some_and(|member| member.role == Role::Takes);
            // It may have become unstable since the shard was to go there.
            let succeeds = destination.succession && member.is_some_and(|member| !self.is_unstable(&member.id));
            if takes || succeeds { home } else { NOBODY }
        };
        let mut landing = Vec::new();
        let homes = state.shards().map(|(shard, record)| match record.state {
            ShardState::Held(slot) => at(slot),
            ShardState::Releasing(_) => destination(shard),
            ShardState::Unassigned => {
                let home = destination(shard);
                if home != NOBODY {
                    landing.push((shard, home));
                }
                home
            }
        });
        let homes = homes.collect();
        (homes, landing)
    }

    /// Records that nobody needs any more: gone, without a shard, and without an operator's wish.
    fn draft_deletions(&mut self, draft: &mut Draft) {
        for (&slot, contact) in &self.contacts {
            let gone = |record: &&ExecutorRecord| record.standing == Standing::Gone && record.wish == Wish::None;
            let Some(_) = draft.next().executor(slot).filter(gone) else { continue };
            if contact.owned().all(|shard| draft.next().shard(shard).owner() != Some(slot)) {
                draft.set_executor(slot, None);
            }
        }
    }

    /// **L8, new leader.** Once the longer leases of an earlier leader are over, ours are the longest.
    fn draft_lease_length(&mut self, now: BootInstant, draft: &mut Draft) {
        if self.longer_leases_end.is_some_and(|end| end <= now) {
            let lease_ttl_ms = self.settings.lease_ttl.as_millis() as u64;
            if draft.next().meta.lease_ttl_ms > lease_ttl_ms {
                draft.change_meta(|meta| meta.lease_ttl_ms = lease_ttl_ms);
            }
        }
    }
}
