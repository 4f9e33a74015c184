//! What this executor holds and until when: the executor's half of the lease protocol, without clock, randomness or I/O.
//!
//! Every entry point first looks at the clock: a lease that is over is over before anything else is taken in, however late the
//! process wakes up. What has to be done comes out as [`Action`]s, in order: fences first, stops before starts.
//!
//! Rules (L2, L3, L6, L7 and L12 stand where they act):
//!
//! - A shard is *held* from its `Start` until [`Ledger::ended`], so while it starts, stops and is being fenced.
//! - Its next epoch starts only after the one before ended.
//! - After its lease ran out an incarnation goes on renewing; an accepted answer gives it its set again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::holdings::Holdings;
use crate::types::{BootInstant, ClusterId, Epoch, ExecutorId, Incarnation, ShardId, Version};

pub use message::{Action, Answer, Attempt, End, Ignored, Kind, Push, PushRefusal, Verdict};

use shards::{Footing, Shards};

mod message;
mod shards;
#[cfg(test)]
mod tests;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not known to the manager, holds nothing.
    Joining,
    /// Known. Its lease may be over.
    Member,
    /// Stops everything, then joins as this incarnation.
    Rejoining(Incarnation),
    /// Stops everything, then deregisters.
    Ending(End),
    Ended(End),
}

/// What became of the registrations of an incarnation so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Registration {
    /// None has arrived anywhere.
    #[default]
    None,
    /// The first is under way.
    UnderWay,
    /// One may have arrived, and was not answered.
    InDoubt,
    /// The outcome is known.
    Settled,
}

/// See the module. As with the manager's engine, what looks the same in `Debug` acts the same.
#[derive(Clone, Debug)]
pub struct Ledger {
    id: ExecutorId,
    incarnation: Incarnation,
    phase: Phase,
    cluster_id: Option<ClusterId>,
    mark: Version,
    number_of_shards: u32,
    lease: Option<BootInstant>,
    /// What a manager may know of this incarnation before it answered its registration.
    registration: Registration,
    leaving: bool,
    /// An accepted answer was to an attempt that said so.
    leaving_heard: bool,
    shards: Shards,
    /// The digest of the last full claim that was answered.
    announced: Option<u64>,
    storage_epochs: BTreeMap<ShardId, Epoch>,
    actions: Vec<Action>,
}

impl Ledger {
    /// A process that was just started.
    pub fn new(id: ExecutorId, incarnation: Incarnation) -> Ledger {
        Ledger {
            id,
            incarnation,
            phase: Phase::Joining,
            cluster_id: None,
            mark: Version::default(),
            number_of_shards: crate::types::MAX_SHARDS,
            lease: None,
            registration: Registration::None,
            leaving: false,
            leaving_heard: false,
            shards: Shards::default(),
            announced: None,
            storage_epochs: BTreeMap::new(),
            actions: Vec::new(),
        }
    }

    /// Ends what is over by now. Every other entry point does this first.
    pub fn look(&mut self, now: BootInstant) {
        if self.lease.is_some_and(|until| until <= now) {
            self.lease = None;
            self.actions.extend(self.shards.fence_all());
        }
        self.actions.extend(self.shards.look(self.footing(now)));
        self.advance();
    }

    /// When [`Ledger::look`] has something to end or to start, at the latest.
    pub fn next_look(&self) -> Option<BootInstant> {
        [self.lease, self.shards.next_look()].into_iter().flatten().min()
    }

    /// What has to be done, in order, since this was last called.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The call to make next; `None` while there is none to make: everything has to stop first, or all is over.
    ///
    /// A registration whose outcome is not known is repeated even on the way out: if it arrived, there is an incarnation that would be
    /// granted shards for the time of a lease. The answer says which cluster it has to be deregistered from.
    pub fn compose(&mut self, now: BootInstant) -> Option<Attempt> {
        self.look(now);
        let kind = match self.phase {
            Phase::Joining => Kind::Register,
            Phase::Member => Kind::Renew,
            Phase::Ending(_) if self.shards.held() > 0 => return None,
            Phase::Ending(_) if matches!(self.registration, Registration::UnderWay | Registration::InDoubt) => Kind::Register,
            Phase::Ending(_) => Kind::Deregister,
            Phase::Rejoining(_) | Phase::Ended(_) => return None,
        };
        if kind == Kind::Register && self.registration == Registration::None {
            self.registration = Registration::UnderWay;
        }
        Some(Attempt {
            sent: now,
            kind,
            incarnation: self.incarnation,
            cluster_id: self.cluster_id,
            mark: self.mark,
            claim: self.held(),
            in_full: self.announced != Some(self.shards.digest()),
            leaving: self.leaving,
            storage_epochs: Holdings::from_pairs(self.storage_epochs.iter().map(|(&shard, &epoch)| (shard, epoch))),
        })
    }

    /// Whether there is a call to make, sooner or later, as things stand.
    pub fn may_call(&self) -> bool {
        match self.phase {
            Phase::Joining | Phase::Member => true,
            Phase::Ending(_) => self.shards.held() == 0,
            Phase::Rejoining(_) | Phase::Ended(_) => false,
        }
    }

    /// Whether the manager should hear from this executor at once.
    pub fn has_news(&self) -> bool {
        match self.phase {
            Phase::Member => {
                self.announced != Some(self.shards.digest())
                    || !self.storage_epochs.is_empty()
                    || self.leaving != self.leaving_heard
            }
            _ => self.may_call(),
        }
    }

    /// Takes in the answer to an attempt. Lease, mark and set change together or not at all.
    pub fn answered(&mut self, now: BootInstant, attempt: &Attempt, answer: Answer) -> Result<(), Ignored> {
        self.look(now);
        if attempt.kind == Kind::Register && attempt.incarnation == self.incarnation {
            match self.phase {
                Phase::Ending(_) => {
                    self.registration = Registration::Settled;
                    self.cluster_id = Some(answer.cluster_id); // Where it has to be deregistered; it takes nothing any more.
                }
                Phase::Joining => self.registration = Registration::InDoubt, // Known there, but not a member of it yet.
                Phase::Member | Phase::Rejoining(_) | Phase::Ended(_) => {}
            }
        }
        let is_awaited = match self.phase {
            Phase::Joining => attempt.kind == Kind::Register,
            Phase::Member => attempt.kind == Kind::Renew,
            Phase::Rejoining(_) | Phase::Ending(_) | Phase::Ended(_) => false,
        };
        if !is_awaited || attempt.incarnation != self.incarnation {
            return Err(Ignored::Outdated);
        }
        let is_foreign = self.cluster_id != Some(answer.cluster_id);
        if is_foreign && attempt.kind == Kind::Renew {
            return Err(Ignored::Foreign { named: answer.cluster_id });
        }
        // Marks of different clusters do not compare.
        if !is_foreign && answer.version < self.mark {
            return Err(Ignored::Stale { version: answer.version, mark: self.mark });
        }
        let until = attempt.sent.after(answer.lease_ttl); // L7
        if until <= now {
            return Err(Ignored::Late);
        }
        if attempt.kind == Kind::Renew {
            if answer.claim_wanted && !attempt.in_full {
                self.announced = None;
                if answer.assignment.is_none() {
                    return Err(Ignored::ClaimWanted);
                }
            } else if attempt.in_full {
                self.announced = Some(attempt.claim.digest());
            }
            self.leaving_heard |= attempt.leaving;
            self.storage_epochs.retain(|&shard, &mut epoch| attempt.storage_epochs.epoch(shard) != Some(epoch));
        }
        self.phase = Phase::Member;
        self.registration = Registration::Settled;
        self.cluster_id = Some(answer.cluster_id);
        self.mark = answer.version; // L3: with or without a set
        self.number_of_shards = answer.number_of_shards;
        // Without a set, the claim as it was sent is the assignment at that version, whatever happened since.
        let set = answer.assignment.as_ref().unwrap_or(&attempt.claim);
        self.withdraw(now, set); // L6: under the lease from before
        self.lease = Some(until);
        self.actions.push(Action::Leased(until));
        self.provide(now, set);
        Ok(())
    }

    /// Takes in a refusal of an attempt. `next` is the incarnation to register as, should it come to that.
    pub fn refused(&mut self, now: BootInstant, attempt: &Attempt, verdict: Verdict, next: Incarnation) {
        self.look(now);
        if attempt.incarnation != self.incarnation {
            return;
        }
        if attempt.kind == Kind::Register {
            self.registration = Registration::None; // Whatever became of it, it is over.
        }
        match (self.phase, verdict) {
            (Phase::Joining | Phase::Member, Verdict::Superseded) => self.stop_all(now, Phase::Ending(End::Superseded)),
            (Phase::Member, _) if self.leaving => self.stop_all(now, Phase::Ending(End::Stopped)),
            (Phase::Member, _) => self.stop_all(now, Phase::Rejoining(next)),
            // The registration had landed, its answer was lost, and its lease ended meanwhile: that incarnation is over.
            (Phase::Joining, Verdict::UnknownExecutor) => self.stop_all(now, Phase::Rejoining(next)),
            _ => {}
        }
    }

    /// Takes in that an attempt was not answered; whether it `may_have_arrived` all the same.
    pub fn unanswered(&mut self, now: BootInstant, attempt: &Attempt, may_have_arrived: bool) {
        self.look(now);
        if attempt.kind == Kind::Register && attempt.incarnation == self.incarnation {
            self.registration = match self.registration {
                Registration::UnderWay if !may_have_arrived => Registration::None,
                Registration::UnderWay => Registration::InDoubt,
                known => known,
            };
            self.advance();
        }
    }

    /// Takes in a command. It never extends a lease (L3). The same version again is harmless.
    pub fn push(&mut self, now: BootInstant, push: &Push) -> Result<(), PushRefusal> {
        self.look(now);
        if push.executor_id != self.id.as_str() || push.incarnation != self.incarnation.0 {
            return Err(PushRefusal::WrongIncarnation {
                named: push.executor_id.chars().take(ExecutorId::MAX_LEN).collect(),
                named_incarnation: push.incarnation,
                id: self.id.clone(),
                incarnation: self.incarnation,
            });
        }
        match self.phase {
            Phase::Member => {}
            Phase::Joining | Phase::Rejoining(_) => return Err(PushRefusal::NotReady),
            Phase::Ending(_) | Phase::Ended(_) => return Err(PushRefusal::Stopping),
        }
        if let Some(actual) = self.cluster_id
            && actual != push.cluster_id
        {
            return Err(PushRefusal::WrongCluster { named: push.cluster_id, actual });
        }
        if push.version < self.mark {
            return Err(PushRefusal::StaleTerm { version: push.version, mark: self.mark });
        }
        if self.lease.is_none() {
            return Err(PushRefusal::LeaseOver);
        }
        if let Some((shard, _)) = push.assignment.iter().last()
            && shard.0 >= self.number_of_shards
        {
            return Err(PushRefusal::NoSuchShard { shard, number_of_shards: self.number_of_shards });
        }
        self.mark = push.version;
        self.withdraw(now, &push.assignment);
        self.provide(now, &push.assignment);
        Ok(())
    }

    /// The future of a shard returned or was dropped: nothing of it is running any more.
    pub fn ended(&mut self, now: BootInstant, shard: ShardId, epoch: Epoch) {
        self.look(now);
        self.actions.extend(self.shards.ended(self.footing(now), shard, epoch));
        self.advance();
    }

    /// Asks the manager to take everything away; cannot be taken back.
    pub fn leave(&mut self, now: BootInstant) {
        self.look(now);
        self.leaving = true;
        if matches!(self.phase, Phase::Joining | Phase::Rejoining(_)) {
            self.stop(now);
        }
    }

    /// Whether it has nothing any more, and either the manager knows that it leaves or the lease ran out meanwhile.
    pub fn has_left(&self) -> bool {
        self.leaving && self.shards.is_empty() && (self.leaving_heard || self.lease.is_none())
    }

    /// Stops everything, to end.
    pub fn stop(&mut self, now: BootInstant) {
        self.look(now);
        if !matches!(self.phase, Phase::Ending(_) | Phase::Ended(_)) {
            self.stop_all(now, Phase::Ending(End::Stopped));
        }
    }

    /// Whether it is on its way out, for good.
    pub fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending(_))
    }

    /// The manager knows that everything is stopped, or cannot be told.
    pub fn deregistered(&mut self) {
        if let Phase::Ending(end) = self.phase {
            self.phase = Phase::Ended(end);
        }
    }

    /// How it ended, once it has.
    pub fn end(&self) -> Option<End> {
        match self.phase {
            Phase::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Tells the manager an epoch that the storage has seen (L11); the highest of each shard counts.
    pub fn storage_has_seen(&mut self, shard: ShardId, epoch: Epoch) {
        let seen = self.storage_epochs.entry(shard).or_default();
        *seen = epoch.max(*seen);
    }

    /// Everything held, starting, stopping and fenced shards included.
    pub fn held(&mut self) -> Arc<Holdings> {
        self.shards.claim()
    }

    /// Whether nothing is stopping.
    pub fn is_settled(&self) -> bool {
        self.shards.ending() == 0
    }

    /// Highest version accepted (L2).
    pub fn mark(&self) -> Version {
        self.mark
    }

    /// Which process this is to the manager, at present.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The cluster that it belongs to, or belonged to before.
    pub fn cluster_id(&self) -> Option<ClusterId> {
        self.cluster_id
    }

    /// Until when it may work; `None` without a live lease.
    pub fn lease(&self) -> Option<BootInstant> {
        self.lease
    }

    /// How many shards the cluster has, as far as known; else the most that there can be.
    pub fn number_of_shards(&self) -> u32 {
        self.number_of_shards
    }

    /// Stops what the set lacks.
    fn withdraw(&mut self, now: BootInstant, set: &Holdings) {
        self.actions.extend(self.shards.withdraw(self.footing(now), set));
    }

    /// Starts what the set adds.
    fn provide(&mut self, now: BootInstant, set: &Holdings) {
        self.actions.extend(self.shards.provide(self.footing(now), set));
    }

    fn footing(&self, now: BootInstant) -> Footing {
        Footing { now, lease: self.lease, starts: self.phase == Phase::Member && self.lease.is_some() }
    }

    fn stop_all(&mut self, now: BootInstant, phase: Phase) {
        self.phase = phase;
        self.withdraw(now, &Holdings::default());
        self.advance();
    }

    /// Holds nothing any more: where an incarnation was lost the next one begins, and one that nobody knows of has ended.
    fn advance(&mut self) {
        match self.phase {
            Phase::Rejoining(next) if self.shards.held() == 0 => {
                self.phase = Phase::Joining;
                self.incarnation = next;
                self.registration = Registration::None;
                self.lease = None;
                self.announced = None;
            }
            Phase::Ending(end) if self.shards.held() == 0 && self.registration == Registration::None => {
                self.phase = Phase::Ended(end)
            }
            _ => {}
        }
    }
}
