//! What calls do: renewals at once to memory, everything else to the next draft.

use crate::assignment::command::{Answer, Cause, Command, LeaseAnswer, Notice, Refusal};
use crate::assignment::event::{Claim, Departure, Registration, Renewal, RequestId, is_plausible};
use crate::assignment::record::{End, ExecutorRecord, Standing, Wish};
use crate::holdings::Holdings;
use crate::types::{BootInstant, ExecutorId, Incarnation, ShardId, Slot, Version};

use super::contact::Told;
use super::draft::{Draft, Due, Page};
use super::{Engine, Shown, Waiting};

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
        if let Err(refusal) = self.may_answer(now) {
            commands.push(Command::Reply(request, Err(refusal)));
        } else if self.shows_news(&renewal) {
            self.queue.push_back(Waiting::Renew(request, renewal));
        } else {
            let reply = self.renewed(now, renewal).map(Answer::Lease);
            commands.push(Command::Reply(request, reply));
        }
    }

    /// Whether something in a renewal has to be recorded before it can be answered: a higher version (L10) or a higher epoch (L11).
    fn shows_news(&mut self, renewal: &Renewal) -> bool {
        if renewal.cluster_id != self.state.meta.cluster_id {
            return false;
        }
        let claimant = self.present.get(&renewal.id).copied();
        let mut news = renewal.mark > self.version() && is_plausible(renewal.mark.term);
        if let Claim::Full(held) = &renewal.claim {
            news |= self.note_epochs(held, claimant);
        }
        news |= self.note_epochs(&renewal.storage_epochs, None);
        news
    }

    /// **L11, claims.** Remembers epochs above the recorded ones; whether there were any.
    fn note_epochs(&mut self, held: &Holdings, by: Option<Slot>) -> bool {
        let mut any = false;
        for (shard, epoch) in held.iter() {
            if epoch > self.state.shard(shard).epoch {
                let shown = self.shown_epochs.entry(shard).or_insert(Shown { epoch, by });
                if epoch > shown.epoch {
                    *shown = Shown { epoch, by };
                }
                any = true;
            }
        }
        any
    }

    fn renewed(&mut self, now: BootInstant, renewal: Renewal) -> Result<LeaseAnswer, Refusal> {
        let Renewal { id, incarnation, cluster_id, mark, claim, leaving, storage_epochs: _ } = renewal;
        self.check_cluster(cluster_id)?;
        let slot = match self.present.get(&id).copied() {
            Some(slot) if self.contact(slot, incarnation).is_some() => slot,
            Some(_) => {
                // L13: refused for ever; but what it says that it stopped, it stopped.
                if let Some((slot, _)) = self.state.incarnation(&id, incarnation) {
                    self.take_in(now, slot, mark, claim);
                }
                return Err(Refusal::Superseded { id, incarnation });
            }
            None if self.state.retirement(&id, incarnation) == Some(End::Superseded) => {
                return Err(Refusal::Superseded { id, incarnation });
            }
            None => return Err(Refusal::UnknownExecutor { id }),
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
        let told = self.take_in(now, slot, mark, claim);
        Ok(self.lease_answer(slot, !told.agrees, told.claim_wanted))
    }

    pub(super) fn check_cluster(&self, named: crate::types::ClusterId) -> Result<(), Refusal> {
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
        // L6: what it held before and does not hold now, it has to start again within the time of a lease.
        contact.unadmitted.extend(told.missing.iter().map(|&shard| (shard, admit_by)));
        if !told.missing.is_empty() {
            self.alarm = self.alarm.min(admit_by);
        }
        for &shard in &told.missing {
            self.unserved.set(shard, Some(Cause::NotAdmitted));
        }
        for &shard in &told.admitted {
            self.unserved.set(shard, None);
            self.avoid.remove(&shard);
        }
        self.attention |= news || told.confirmed;
        told
    }

    /// An executor answered a command.
    pub(super) fn applied(&mut self, now: BootInstant, slot: Slot, incarnation: Incarnation, mark: Version, held: Holdings) {
        if self.contact(slot, incarnation).is_some() {
            self.attention |= self.note_epochs(&held, Some(slot));
            self.take_in(now, slot, mark, Claim::Full(held));
        }
    }

    /// Works off the queue into a draft, in order, until it is full.
    pub(super) fn draft_calls(&mut self, now: BootInstant, draft: &mut Draft, commands: &mut Vec<Command>) {
        while let Some(waiting) = self.queue.pop_front() {
            let (request, drafted) = match &waiting {
                Waiting::Register(request, registration) => (*request, self.draft_registration(now, draft, registration)),
                Waiting::Deregister(request, departure) => (*request, self.draft_departure(draft, departure)),
                Waiting::Wish(request, id, wish) => (*request, draft_wish(draft, id, *wish)),
                Waiting::Heard(request, version) => (*request, self.draft_higher_term(draft, *version)),
                Waiting::Renew(request, renewal) => {
                    self.draft_higher_term(draft, renewal.mark);
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
    fn draft_higher_term(&self, draft: &mut Draft, shown: Version) -> Drafted {
        if !is_plausible(shown.term) {
            return Drafted::Refused(Refusal::InvalidArgument(format!("term {} leaves no room to grow", shown.term)));
        }
        if shown > self.version() && shown.term >= draft.next().meta.term {
            draft.change_meta(|meta| meta.term = crate::types::Term(shown.term.0 + 1));
            draft.outbox.notices.push(Notice::TermRaised { shown });
        }
        Drafted::Due(Due::Current)
    }

    /// **L13, incarnations.** The newer one wins.
    fn draft_registration(&mut self, now: BootInstant, draft: &mut Draft, registration: &Registration) -> Drafted {
        let Registration { id, incarnation, endpoint, weight, before } = registration;
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
            Some(End::Over) => return Drafted::Refused(Refusal::UnknownExecutor { id: id.clone() }),
            None => {}
        }

        let slot = draft.free_slot();
        let away =
            draft.next().executors().find(|(_, it)| it.id == *id && it.standing == Standing::Gone && it.wish != Wish::None);
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
            let gone = self.settings.exclusive_ids || record.endpoint == *endpoint;
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
        draft.outbox.notices.push(Notice::Joined {
            id: id.clone(),
            incarnation: *incarnation,
            endpoint: endpoint.clone(),
            replaces,
        });
        match before {
            Some((cluster_id, mark)) if *cluster_id == self.state.meta.cluster_id => {
                self.draft_higher_term(draft, *mark);
            }
            Some((cluster_id, _)) => self.hold_grants(now, draft, id, *cluster_id),
            None => {}
        }
        Drafted::Due(Due::Lease(slot))
    }

    /// **L12, foreign cluster.** Executors may still hold shards under the leases of the cluster that was here before.
    fn hold_grants(&mut self, now: BootInstant, draft: &mut Draft, id: &ExecutorId, cluster_id: crate::types::ClusterId) {
        let held_back = self.longest_lease();
        let until = now.after(held_back);
        self.held_until = Some(self.held_until.map_or(until, |before| before.max(until)));
        draft.outbox.notices.push(Notice::ForeignCluster { id: id.clone(), cluster_id, held_back });
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
        draft.outbox.ended.insert(slot, Cause::Drain);
        Drafted::Due(Due::Current)
    }

    /// Epochs that somebody showed (L11). What is recorded grows; the owner stays, and if it was not the owner that showed it, the owner
    /// goes on at a higher epoch still.
    pub(super) fn draft_shown_epochs(&mut self, draft: &mut Draft) {
        let shown: Vec<(ShardId, Shown)> = self.shown_epochs.iter().map(|(&shard, &shown)| (shard, shown)).collect();
        for (shard, Shown { epoch, by }) in shown {
            let record = draft.next().shard(shard);
            if epoch <= record.epoch {
                continue;
            }
            let raised = match record.state {
                crate::assignment::record::ShardState::Held(owner) if by != Some(owner) => {
                    record.raise(epoch).free().grant(owner, draft.next().meta.term)
                }
                _ => record.raise(epoch),
            };
            if !draft.set_shard(shard, raised) {
                return;
            }
            draft.outbox.notices.push(Notice::EpochRaised { shard, recorded: record.epoch, shown: epoch });
            draft.outbox.causes.entry(shard).or_insert(Cause::LeaderChange);
        }
    }

    /// Answers what a draft owed, from the state in force.
    pub(super) fn answer_due(&mut self, now: BootInstant, due: Vec<(RequestId, Due)>, commands: &mut Vec<Command>) {
        for (request, due) in due {
            let reply = match due {
                Due::Current => Ok(Answer::Current(self.version())),
                Due::Lease(slot) => self.first_answer(now, slot).map(Answer::Lease),
            };
            commands.push(Command::Reply(request, reply));
        }
    }

    /// The answer to a registration: it starts the lease.
    fn first_answer(&mut self, now: BootInstant, slot: Slot) -> Result<LeaseAnswer, Refusal> {
        self.may_answer(now)?;
        let ends = self.lease_end(now);
        let id = self.state.executor(slot).map(|record| record.id.clone());
        let lease = self.contacts.get_mut(&slot).and_then(|contact| contact.lease.as_mut());
        match (id, lease.is_some_and(|lease| lease.renew(ends))) {
            (Some(_), true) => Ok(self.lease_answer(slot, true, false)),
            (Some(id), false) => Err(Refusal::LeaseEnding { id }),
            (None, _) => Err(Refusal::NotReady),
        }
    }
}

fn draft_wish(draft: &mut Draft, id: &ExecutorId, wish: Wish) -> Drafted {
    let found = draft.next().present(id).or_else(|| {
        let mut away = draft.next().executors().filter(|(_, record)| record.id == *id);
        away.find(|(_, record)| record.wish != Wish::None)
    });
    let Some((slot, record)) = found.map(|(slot, record)| (slot, record.clone())) else {
        return Drafted::Refused(Refusal::UnknownExecutor { id: id.clone() });
    };
    if record.wish == wish {
        return Drafted::Due(Due::Current);
    }
    if !draft.set_executor(slot, Some(ExecutorRecord { wish, ..record })) {
        return Drafted::Full;
    }
    draft.outbox.notices.push(Notice::Wished { id: id.clone(), wish });
    Drafted::Due(Due::Current)
}
