//! What calls do: renewals at once to memory, everything else to the next draft.

use core::net::SocketAddr;
use std::time::Duration;

use crate::assignment::command::{Answer, Cause, Command, LeaseAnswer, Notice, Raised, Refusal};
use crate::assignment::event::{Claim, Departure, Registration, Renewal, RequestId};
use crate::assignment::record::{End, ExecutorRecord, ShardState, Standing, Wish};
use crate::holdings::Holdings;
use crate::types::{
    BootInstant, ClusterId, Epoch, ExecutorId, Incarnation, MAX_NUMBER, MAX_SHOWN, MAX_SHOWN_BY_READERS, ShardId, Slot, Term,
    Version,
};

use super::contact::Told;
use super::draft::{Draft, Due, Page};
use super::{Engine, Flaps, Shown, Waiting};

/// How many foreign clusters are told apart.
const MOST_FOREIGN: usize = 64;

/// What became of a call in a draft.
pub enum Drafted {
    /// Answered once the draft is durable.
    Due(Due),
    /// Nothing was changed for it.
    Refused(Refusal),
    /// It did not fit: it waits for the next draft.
    Full,
}

impl Engine {
    pub(super) fn renew(&mut self, now: BootInstant, request: RequestId, renewal: Renewal, commands: &mut Vec<Command>) {
        match self.may_answer(now).and_then(|()| self.shows_news(&renewal)) {
            Ok(true) => self.enqueue(now, request, Waiting::Renew(request, renewal), commands),
            Ok(false) => {
                let reply = self.renewed(now, renewal).map(Answer::Lease);
                commands.push(Command::Reply(request, reply));
            }
            Err(refusal) => commands.push(Command::Reply(request, Err(refusal))),
        }
    }

    /// Whether something in a renewal has to be recorded before it can be answered: a higher version (L10) or a higher epoch (L11).
    fn shows_news(&mut self, renewal: &Renewal) -> Result<bool, Refusal> {
        if renewal.cluster_id != self.state.meta.cluster_id {
            return Ok(false);
        }
        let mut news = self.is_news(renewal.mark, MAX_SHOWN)? || self.proves_a_restore(renewal.mark) || self.is_in_doubt(renewal);
        // Only the incarnation that owns a shard can raise its epoch without being overtaken by the raise.
        let owner = self.present.get(&renewal.id).copied().filter(|&slot| self.contact(slot, renewal.incarnation).is_some());
        if let Claim::Full(held) = &renewal.claim {
            news |= self.note_epochs(held, owner)?;
        }
        news |= self.note_epochs(&renewal.storage_epochs, None)?;
        Ok(news)
    }

    /// Whether somebody has seen a state that this leader did not find in the store and did not make: then the store was restored to an
    /// older one, and others may hold shards that are free or somebody else's here.
    fn proves_a_restore(&self, shown: Version) -> bool {
        !self.restored && shown > self.loaded && shown.term < self.first_term
    }

    /// Over a restored store, for the time of a lease: whether an executor lacks something that is recorded as its own. Somebody else may
    /// hold that, so it is not given to it again but asked back.
    fn is_in_doubt(&self, renewal: &Renewal) -> bool {
        !self.in_doubt(renewal).is_empty()
    }

    /// What that is.
    fn in_doubt(&self, renewal: &Renewal) -> Vec<ShardId> {
        let contact = self.present.get(&renewal.id).and_then(|slot| self.contacts.get(slot));
        let contact = contact.filter(|contact| contact.incarnation == renewal.incarnation && self.is_doubtful());
        match (contact, &renewal.claim) {
            (Some(contact), Claim::Full(held)) => contact.lacks(held, &self.state).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether this is a restored store under whose earlier future leases may still run.
    fn is_doubtful(&self) -> bool {
        self.restored && self.held_until.is_some()
    }

    /// Asks back from an executor what it does not hold; see [`Engine::is_in_doubt`].
    fn draft_doubt(&mut self, now: BootInstant, draft: &mut Draft, renewal: &Renewal, commands: &mut Vec<Command>) {
        if self.proves_a_restore(renewal.mark) {
            self.restored = true;
            let held_back = self.hold_grants(now);
            let (shown, loaded) = (renewal.mark, self.loaded);
            // Known from here on, whatever becomes of the draft.
            commands.push(Command::Notice(Notice::StoreRestored { shown, loaded, held_back }));
        }
        for shard in self.in_doubt(renewal) {
            let held = draft.is_held(shard);
            if held && !draft.release_shard(shard, Cause::Restored) {
                return;
            }
        }
    }

    /// Whether a version that somebody shows lies above ours (L10). Refused where that leaves no room to go above it.
    fn is_news(&self, shown: Version, max_term: u64) -> Result<bool, Refusal> {
        if shown <= self.version() || (shown.term.0 <= max_term && shown.revision.0 <= MAX_NUMBER) {
            return Ok(shown > self.version());
        }
        let what = format!(
            "version {shown} is refused: a term that is not known here may be {max_term} at the most, a revision {MAX_NUMBER}"
        );
        Err(Refusal::InvalidArgument(what))
    }

    /// **L11, claims.** Remembers epochs above the recorded ones; whether there were any.
    fn note_epochs(&mut self, held: &Holdings, by: Option<Slot>) -> Result<bool, Refusal> {
        let mut any = false;
        for (shard, epoch) in held.iter() {
            if epoch <= self.state.shard(shard).epoch {
                continue;
            }
            if epoch.0 > MAX_SHOWN {
                let what =
                    format!("epoch {epoch} of shard {shard} is refused: one above the recorded may be {MAX_SHOWN} at the most");
                return Err(Refusal::InvalidArgument(what));
            }
            let shown = self.shown_epochs.entry(shard).or_insert(Shown { epoch, by });
            if epoch > shown.epoch {
                *shown = Shown { epoch, by };
            }
            any = true;
        }
        Ok(any)
    }

    fn renewed(&mut self, now: BootInstant, renewal: Renewal) -> Result<LeaseAnswer, Refusal> {
        let Renewal { id, incarnation, cluster_id, mark, claim, leaving, storage_epochs: _ } = renewal;
        self.check_cluster(cluster_id)?;
        let slot = match self.present.get(&id).copied() {
            Some(slot) if self.contact(slot, incarnation).is_some() => slot,
            present => {
                // L13: refused for ever; but what it says that it stopped, it stopped.
                let known = self.state.incarnation(&id, incarnation).map(|(slot, _)| slot);
                if let Some(slot) = known {
                    self.take_in(now, slot, mark, claim);
                }
                return Err(match self.state.retirement(&id, incarnation) {
                    Some(End::Superseded) => Refusal::Superseded { id, incarnation },
                    _ if self.state.is_barred(&id) => Refusal::Removed { id },
                    // It ended, and somebody else is there now.
                    Some(End::Over) if present.is_some() => Refusal::Superseded { id, incarnation },
                    // One that this state never heard of: after a restore it may well be the newest.
                    Some(End::Over) | None => Refusal::UnknownExecutor { id },
                });
            }
        };
        let ends = self.lease_end(now);
        let Some(contact) = self.contacts.get_mut(&slot) else { return Err(Refusal::UnknownExecutor { id }) };
        if !contact.lease.as_mut().is_some_and(|lease| lease.renew(ends)) {
            return Err(Refusal::LeaseEnding { id });
        }
        if leaving && !contact.leaving {
            contact.leaving = true;
            self.attention = true;
        }
        // In doubt, nothing is given to somebody who did not say in full what it holds.
        let unknown = matches!(claim, Claim::Digest(digest) if !self.contacts[&slot].knows(digest));
        let told = self.take_in(now, slot, mark, claim);
        let withheld = unknown && self.is_doubtful();
        Ok(self.lease_answer(slot, !told.agrees && !withheld, told.claim_wanted))
    }

    pub(super) fn check_cluster(&self, named: ClusterId) -> Result<(), Refusal> {
        let actual = self.state.meta.cluster_id;
        if named == actual { Ok(()) } else { Err(Refusal::WrongCluster { named, actual }) }
    }

    /// **L3, answers.** The set and its version come from the one state in force.
    fn lease_answer(&self, slot: Slot, with_assignment: bool, claim_wanted: bool) -> LeaseAnswer {
        let contact = self.contacts.get(&slot).filter(|_| with_assignment);
        LeaseAnswer {
            cluster_id: self.state.meta.cluster_id,
            version: self.version(),
            number_of_shards: self.state.meta.number_of_shards,
            lease_ttl: self.settings.lease_ttl,
            assignment: contact.map(|contact| contact.assignment(&self.state)),
            claim_wanted,
        }
    }

    /// Takes in what an incarnation says that it holds.
    fn take_in(&mut self, now: BootInstant, slot: Slot, mark: Version, claim: Claim) -> Told {
        let admit_by = now.after(self.longest_lease());
        let Some(contact) = self.contacts.get_mut(&slot) else { return Told::default() };
        let news = !contact.heard;
        let told = contact.hear(mark, claim, &self.state);
        for &shard in &told.missing {
            contact.misses(now, shard, admit_by); // L6
            self.unserved.set(shard, Some(Cause::NotAdmitted));
        }
        if let Some(first) = contact.unadmitted.first().filter(|_| !told.missing.is_empty()) {
            self.alarm = self.alarm.min(first);
        }
        for &shard in &told.admitted {
            self.unserved.set(shard, None);
        }
        self.attention |= news || told.confirmed;
        told
    }

    /// An executor answered a command.
    pub(super) fn applied(&mut self, now: BootInstant, slot: Slot, incarnation: Incarnation, mark: Version, held: Holdings) {
        if self.contact(slot, incarnation).is_some() {
            let owner = self.present.values().any(|present| *present == slot).then_some(slot);
            // What is not plausible moves nothing; the executor hears so when it renews.
            self.attention |= self.note_epochs(&held, owner).unwrap_or(false);
            self.take_in(now, slot, mark, Claim::Full(held));
        }
    }

    /// Works off the queue into a draft, in order, until it is full.
    pub(super) fn draft_calls(&mut self, now: BootInstant, draft: &mut Draft, commands: &mut Vec<Command>) {
        while let Some(waiting) = self.queue.pop_front() {
            let (request, drafted) = match &waiting {
                Waiting::Register(request, registration) => {
                    (*request, self.draft_registration(now, draft, registration, commands))
                }
                Waiting::Deregister(request, departure) => (*request, self.draft_departure(draft, departure)),
                Waiting::Wish(request, id, wish) => (*request, draft_wish(draft, id, *wish)),
                Waiting::Demand(request, demand) => (*request, self.draft_demand(now, draft, *request, demand)),
                Waiting::Heard(request, version) => (*request, self.draft_higher_term(draft, *version, MAX_SHOWN_BY_READERS)),
                Waiting::Renew(request, renewal) => {
                    // Plausible, or it would not wait.
                    let _ = self.draft_higher_term(draft, renewal.mark, MAX_SHOWN);
                    self.draft_doubt(now, draft, renewal, commands);
                    draft.outbox.renewals.push((*request, renewal.clone()));
                    continue;
                }
            };
            match drafted {
                Drafted::Due(due) => draft.outbox.due.push((request, due)),
                Drafted::Refused(refusal) => commands.push(Command::Reply(request, Err(refusal))),
                Drafted::Full => {
                    self.queue.push_front(waiting);
                    return;
                }
            }
        }
    }

    /// **L10, higher terms.** Somebody has seen a version above ours, so the store was restored under us or before us: this leadership's
    /// term goes above it. If this leader is itself the stale one, the fence refuses that.
    fn draft_higher_term(&self, draft: &mut Draft, shown: Version, max_term: u64) -> Drafted {
        match self.is_news(shown, max_term) {
            Ok(true) if shown.term >= draft.next().meta.term => {
                draft.change_meta(|meta| meta.term = Term(shown.term.0 + 1));
                draft.outbox.notices.push(Notice::TermRaised { shown });
            }
            Ok(_) => {}
            Err(refusal) => return Drafted::Refused(refusal),
        }
        Drafted::Due(Due::Current)
    }

    /// **L13, incarnations.** The newer one wins.
    fn draft_registration(
        &mut self,
        now: BootInstant,
        draft: &mut Draft,
        registration: &Registration,
        commands: &mut Vec<Command>,
    ) -> Drafted {
        let Registration { id, incarnation, endpoint, weight, before } = registration;
        if let Some((cluster_id, mark)) = before
            && *cluster_id == self.state.meta.cluster_id
            && let Err(refusal) = self.is_news(*mark, MAX_SHOWN)
        {
            // Taken in, it could follow nothing that is said here.
            return Drafted::Refused(refusal);
        }
        let old = draft.next().present(id).map(|(slot, record)| (slot, record.clone()));
        if let Some((slot, record)) = &old
            && record.incarnation == *incarnation
        {
            // The same registration again; the process may have found a better address meanwhile.
            let record = ExecutorRecord { endpoint: endpoint.clone(), weight: *weight, ..record.clone() };
            if draft.next().executor(*slot) != Some(&record) && !draft.set_executor(*slot, Some(record)) {
                return Drafted::Full;
            }
            return Drafted::Due(Due::Lease(*slot));
        }
        match draft.next().retirement(id, *incarnation) {
            Some(End::Superseded) => {
                return Drafted::Refused(Refusal::Superseded { id: id.clone(), incarnation: *incarnation });
            }
            _ if draft.next().is_barred(id) => return Drafted::Refused(Refusal::Removed { id: id.clone() }),
            Some(End::Over) => return Drafted::Refused(Refusal::UnknownExecutor { id: id.clone() }),
            None => {}
        }

        let slot = draft.free_slot();
        let away = draft.next().incarnations(id).find(|(_, it)| it.standing == Standing::Gone && it.wish != Wish::None);
        let away = away.map(|(slot, record)| (slot, record.clone()));
        let slots = [Some(slot), old.as_ref().map(|it| it.0), away.as_ref().map(|it| it.0)];
        let retiree = old.as_ref().map(|_| Page::of_retiree(id));
        if !draft.reserve(slots.into_iter().flatten().map(Page::of_slot).chain(retiree)) {
            return Drafted::Full;
        }
        let wish = old.as_ref().or(away.as_ref()).map_or(Wish::None, |(_, record)| record.wish);
        if let Some((slot, record)) = away {
            draft.set_executor(slot, Some(ExecutorRecord { wish: Wish::None, ..record }));
        }
        let replaces = old.map(|(slot, record)| {
            let gone = self.settings.exclusive_ids || (record.endpoint == *endpoint && is_literal(endpoint));
            let standing = if gone { Standing::Gone } else { Standing::Superseded };
            let replaced = record.incarnation;
            draft.retire(id, replaced, End::Superseded);
            draft.set_executor(slot, Some(ExecutorRecord { standing, wish: Wish::None, ..record }));
            (replaced, gone)
        });
        let record = ExecutorRecord {
            id: id.clone(),
            incarnation: *incarnation,
            endpoint: endpoint.clone(),
            weight: *weight,
            wish,
            leaving: false,
            standing: Standing::Present,
        };
        draft.set_executor(slot, Some(record));
        draft.outbox.joined.insert(slot);
        if replaces.is_some() {
            self.count_flap(now, id);
        }
        draft.outbox.notices.push(Notice::Joined {
            id: id.clone(),
            incarnation: *incarnation,
            endpoint: endpoint.clone(),
            replaces,
        });
        match before {
            Some((cluster_id, mark)) if *cluster_id == self.state.meta.cluster_id => {
                // Plausible: looked at above.
                let _ = self.draft_higher_term(draft, *mark, MAX_SHOWN);
            }
            Some((cluster_id, _)) => self.take_in_foreigner(now, id, *cluster_id, commands),
            None => {}
        }
        Drafted::Due(Due::Lease(slot))
    }

    /// **L12, foreign cluster.** Executors may still hold shards under the leases of the cluster that was here before. It gives none any
    /// more, since this one answers in its place: so it holds grants back once, and not as often as somebody comes from it.
    fn take_in_foreigner(&mut self, now: BootInstant, id: &ExecutorId, cluster_id: ClusterId, commands: &mut Vec<Command>) {
        if self.foreign.len() < MOST_FOREIGN && self.foreign.insert(cluster_id) {
            let held_back = self.hold_grants(now);
            // Known from here on, whatever becomes of the draft.
            commands.push(Command::Notice(Notice::ForeignCluster { id: id.clone(), cluster_id, held_back }));
        }
    }

    /// Grants nothing for the time of a lease.
    fn hold_grants(&mut self, now: BootInstant) -> Duration {
        let held_back = self.longest_lease();
        let until = now.after(held_back);
        self.held_until = Some(self.held_until.map_or(until, |before| before.max(until)));
        held_back
    }

    /// Counts incarnations of an id that follow one another within two leases and margins. One that does so again and again must stay for
    /// a lease and a margin before it gets anything, so that its shards do not wait for it for ever.
    fn count_flap(&mut self, now: BootInstant, id: &ExecutorId) {
        let lease = self.longest_lease();
        self.flaps.retain(|_, flaps| now.since(flaps.last) <= lease * 2);
        let flaps = self.flaps.entry(id.clone()).or_insert(Flaps { in_a_row: 0, last: now });
        *flaps = Flaps { in_a_row: flaps.in_a_row.saturating_add(1), last: now };
    }

    fn draft_departure(&mut self, draft: &mut Draft, departure: &Departure) -> Drafted {
        let Departure { id, incarnation, cluster_id } = departure;
        if let Err(refusal) = self.check_cluster(*cluster_id) {
            return Drafted::Refused(refusal);
        }
        // One that is not there is gone already; it concerns the named incarnation and no other.
        let found = draft.next().incarnation(id, *incarnation).map(|(slot, record)| (slot, record.clone()));
        let Some((slot, record)) = found.filter(|(_, record)| record.standing != Standing::Gone) else {
            return Drafted::Due(Due::Current);
        };
        if !draft.reserve([Page::of_slot(slot), Page::of_retiree(id)]) {
            return Drafted::Full;
        }
        draft.retire(id, *incarnation, End::Over);
        draft.set_executor(slot, Some(ExecutorRecord { standing: Standing::Gone, ..record }));
        let shards = self.contacts.get(&slot).map_or(0, |contact| contact.shards());
        draft.outbox.notices.push(Notice::Left { id: id.clone(), incarnation: *incarnation, shards });
        self.ended.insert(slot, Cause::Drain);
        Drafted::Due(Due::Current)
    }

    /// Epochs that somebody showed (L11). What is recorded grows; the owner stays, and if it was not the owner that showed it, the owner
    /// goes on at a higher epoch still.
    pub(super) fn draft_shown_epochs(&mut self, draft: &mut Draft) {
        let mut raised = Raised { shards: 0, highest: Epoch::default(), above: Epoch::default() };
        for (&shard, &Shown { epoch, by }) in &self.shown_epochs {
            let record = draft.next().shard(shard);
            if epoch <= record.epoch {
                continue;
            }
            let next = match record.state {
                ShardState::Held(owner) if by != Some(owner) => record.raise(epoch).free().grant(owner, draft.next().meta.term),
                _ => record.raise(epoch),
            };
            if !draft.set_shard(shard, next) {
                break;
            }
            draft.outbox.causes.entry(shard).or_insert(Cause::Restored);
            raised.shards += 1;
            if epoch > raised.highest {
                (raised.highest, raised.above) = (epoch, record.epoch);
            }
        }
        if raised.shards > 0 {
            draft.outbox.notices.push(Notice::EpochsRaised(raised));
        }
    }

    /// Answers what a draft owed, from the state in force.
    pub(super) fn answer_due(&mut self, now: BootInstant, due: Vec<(RequestId, Due)>, commands: &mut Vec<Command>) {
        for (request, due) in due {
            let reply = match due {
                Due::Current => Ok(Answer::Current(self.version())),
                Due::Paused(until_unix_ms) => Ok(Answer::Paused(self.version(), until_unix_ms)),
                Due::Moving(shards) => Ok(Answer::Moving(self.version(), shards)),
                Due::Lease(slot) => self.first_answer(now, slot).map(Answer::Lease),
            };
            commands.push(Command::Reply(request, reply));
        }
    }

    /// The answer to a registration: it starts the lease.
    fn first_answer(&mut self, now: BootInstant, slot: Slot) -> Result<LeaseAnswer, Refusal> {
        self.may_answer(now)?;
        let ends = self.lease_end(now);
        let Some(record) = self.state.executor(slot) else { return Err(Refusal::NotReady) };
        let (id, incarnation) = (record.id.clone(), record.incarnation);
        if record.standing != Standing::Present {
            // A newer one came in the same draft; or its removal did.
            let removed = self.state.is_barred(&id);
            return Err(if removed { Refusal::Removed { id } } else { Refusal::Superseded { id, incarnation } });
        }
        let lease = self.contacts.get_mut(&slot).and_then(|contact| contact.lease.as_mut());
        if lease.is_some_and(|lease| lease.renew(ends)) {
            return Ok(self.lease_answer(slot, true, false));
        }
        Err(Refusal::LeaseEnding { id })
    }
}

fn draft_wish(draft: &mut Draft, id: &ExecutorId, wish: Wish) -> Drafted {
    let found = draft.next().present(id).or_else(|| {
        let mut away = draft.next().incarnations(id);
        away.find(|(_, record)| record.wish != Wish::None)
    });
    let Some((slot, record)) = found.map(|(slot, record)| (slot, record.clone())) else {
        return Drafted::Refused(Refusal::UnknownExecutor { id: id.clone() });
    };
    if record.wish == wish {
        return Drafted::Due(Due::Current);
    }
    if record.wish == Wish::Remove {
        let how = if record.standing == Standing::Present { "is being removed" } else { "was removed" };
        return Drafted::Refused(Refusal::NotNow(format!("executor {id} {how}: `shard-manager admit {id}` takes that back")));
    }
    if !draft.set_executor(slot, Some(ExecutorRecord { wish, ..record })) {
        return Drafted::Full;
    }
    draft.outbox.notices.push(Notice::Wished { id: id.clone(), wish });
    Drafted::Due(Due::Current)
}

/// Whether an endpoint is an address and no name: what answers to a name may be somebody else tomorrow, or in another place.
fn is_literal(endpoint: &str) -> bool {
    endpoint.strip_prefix("http://").is_some_and(|address| address.parse::<SocketAddr>().is_ok())
}
