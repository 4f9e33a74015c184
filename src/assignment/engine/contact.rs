//! What this leadership knows of one incarnation. Nothing of it is stored: a new leader hears it all again.

use std::collections::{BTreeMap, BTreeSet};

use crate::assignment::event::Claim;
use crate::assignment::lease::{Lease, Stall, postponed};
use crate::assignment::state::State;
use crate::holdings::{Holdings, digest_of};
use crate::types::{BootInstant, Epoch, Incarnation, ShardId, Version};

use super::deadlines::Deadlines;

/// See the module.
#[derive(Clone, Debug)]
pub struct Contact {
    pub incarnation: Incarnation,
    /// `None` until the port is open: nobody can renew before that (L8).
    pub lease: Option<Lease>,
    /// Its lease ran out, and the end of it could not be committed so far: nobody is known to serve its shards.
    pub lease_is_over: bool,
    /// It spoke to this leadership.
    pub heard: bool,
    /// By its health probe.
    pub healthy: bool,
    /// It did not start and keep what it was given: gets nothing new until then (L6).
    pub sluggish_until: Option<BootInstant>,
    /// How often in a row it did not start what it was given, or not for as long as it had time to.
    pub failures: u32,
    /// It said that it wants to leave.
    pub leaving: bool,
    /// It is here for longer than the settle time.
    pub established: bool,
    /// What it said last that it holds; `None` is *unknown*, as it is from the moment a command is sent.
    known: Option<Holdings>,
    /// What it should hold, by the state in force, and the digest of that.
    desired: BTreeSet<ShardId>,
    digest: u64,
    /// What it should stop.
    pub releasing: BTreeMap<ShardId, Release>,
    /// What it was granted and has not been seen to hold, and until when it has time (L6).
    pub unadmitted: Deadlines,
    /// What it has been seen to hold before its time was over, and until when that was. If it stops again meanwhile, its time goes on:
    /// else one whose work ends over and over would keep its shards for ever.
    pub on_trial: Deadlines,
}

/// A shard that its owner was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The version that says so: only who has accepted it can confirm (L2).
    pub since: Version,
    /// From then on no lease of its owner covers it, confirmed or not (L6). `None` until the port is open.
    pub free_at: Option<BootInstant>,
    /// Its owner has stopped it.
    pub confirmed: bool,
}

/// What a claim told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The claim is exactly what the executor should hold.
    pub agrees: bool,
    /// It was a digest that stands for nothing known.
    pub claim_wanted: bool,
    /// A release was confirmed by it.
    pub confirmed: bool,
    /// Shards that are now seen to be held.
    pub admitted: Vec<ShardId>,
    /// Shards that were seen to be held before, and are not now.
    pub missing: Vec<ShardId>,
}

impl Contact {
    pub fn new(incarnation: Incarnation, lease: Option<Lease>, joined: bool) -> Contact {
        Contact {
            incarnation,
            lease,
            lease_is_over: false,
            heard: joined,
            healthy: true,
            sluggish_until: None,
            failures: 0,
            leaving: false,
            established: !joined,
            known: None,
            desired: BTreeSet::new(),
            digest: 0,
            releasing: BTreeMap::new(),
            unadmitted: Deadlines::default(),
            on_trial: Deadlines::default(),
        }
    }

    /// How many shards name it as owner.
    pub fn shards(&self) -> u32 {
        (self.desired.len() + self.releasing.len()) as u32
    }

    /// Every shard that names it as owner.
    pub fn owned(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.desired.iter().chain(self.releasing.keys()).copied()
    }

    /// What it should hold, ascending.
    pub fn desired(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.desired.iter().copied()
    }

    /// What it should hold, with the epochs of `state`, from which this contact's bookkeeping comes.
    pub fn assignment(&self, state: &State) -> Holdings {
        Holdings::from_pairs(self.desired.iter().map(|&shard| (shard, state.shard(shard).epoch)))
    }

    /// A command is about to be sent: what it holds is unknown until it answers.
    pub fn forget_claim(&mut self) {
        self.known = None;
    }

    /// A shard was granted to it.
    pub fn gained(&mut self, shard: ShardId, epoch: Epoch) {
        if self.desired.insert(shard) {
            self.digest = self.digest.wrapping_add(digest_of(shard, epoch));
        }
    }

    /// A shard is not among what it should hold any more.
    pub fn lost(&mut self, shard: ShardId, epoch: Epoch) {
        if self.desired.remove(&shard) {
            self.digest = self.digest.wrapping_sub(digest_of(shard, epoch));
        }
        self.unadmitted.remove(shard);
        self.on_trial.remove(shard);
    }

    /// **L2, marks; L11, claims.** Takes in what it says that it holds. A release is confirmed only by a message whose mark is at or
    /// above it: one from before tells nothing about it.
    pub fn hear(&mut self, mark: Version, claim: Claim, state: &State) -> Told {
        self.heard = true;
        self.lease_is_over = false;
        let mut told = Told::default();
        match claim {
            Claim::Digest(digest) if digest == self.digest => {
                told.agrees = true;
                told.admitted = self.unadmitted.shards();
                self.on_trial.append(&mut self.unadmitted);
                told.confirmed = self.confirm(mark, |_| true);
            }
            Claim::Digest(digest) => match self.known.take().filter(|known| known.digest() == digest) {
                Some(known) => self.compare(mark, known, state, &mut told),
                None => told.claim_wanted = true,
            },
            Claim::Full(held) => self.compare(mark, held, state, &mut told),
        }
        told
    }

    fn compare(&mut self, mark: Version, held: Holdings, state: &State, told: &mut Told) {
        told.agrees = held.digest() == self.digest;
        told.confirmed = self.confirm(mark, |shard| held.epoch(shard).is_none());
        for &shard in &self.desired {
            let admitted = held.epoch(shard) == Some(state.shard(shard).epoch);
            match (admitted, self.unadmitted.get(shard).is_some()) {
                (true, true) => told.admitted.push(shard),
                (false, false) => told.missing.push(shard),
                _ => {}
            }
        }
        for &shard in &told.admitted {
            if let Some(until) = self.unadmitted.get(shard) {
                self.on_trial.insert(shard, until);
            }
            self.unadmitted.remove(shard);
        }
        // What it should hold is known without a copy; should that change, it is sent, and what it holds is unknown then anyway.
        self.known = (!told.agrees).then_some(held);
    }

    /// It has until then to be seen to hold a shard.
    pub fn awaits(&mut self, shard: ShardId, until: BootInstant) {
        self.on_trial.remove(shard);
        self.unadmitted.insert(shard, until);
    }

    /// What it held before and does not hold now, it has to start again: in what is left of its time, or else until `over`.
    pub fn misses(&mut self, now: BootInstant, shard: ShardId, over: BootInstant) {
        let left = self.on_trial.get(shard).filter(|until| *until > now);
        self.awaits(shard, left.unwrap_or(over));
    }

    fn confirm(&mut self, mark: Version, stopped: impl Fn(ShardId) -> bool) -> bool {
        let mut any = false;
        for (&shard, release) in &mut self.releasing {
            if !release.confirmed && mark >= release.since && stopped(shard) {
                release.confirmed = true;
                any = true;
            }
        }
        any
    }

    /// What it should hold and does not, by a claim in full.
    pub fn lacks<'a>(&'a self, held: &'a Holdings, state: &'a State) -> impl Iterator<Item = ShardId> + 'a {
        self.desired.iter().copied().filter(|&shard| held.epoch(shard) != Some(state.shard(shard).epoch))
    }

    /// Whether a digest is that of what it should hold, or of what it said last.
    pub fn knows(&self, digest: u64) -> bool {
        digest == self.digest || self.known.as_ref().is_some_and(|known| known.digest() == digest)
    }

    /// The earliest instant at which something about it is over.
    pub fn next_deadline(&self) -> Option<BootInstant> {
        let lease = self.lease.as_ref().filter(|lease| !lease.is_ending()).map(Lease::ends);
        let releases = self.releasing.values().filter_map(|release| release.free_at).min();
        [lease, releases, self.unadmitted.first(), self.on_trial.first(), self.sluggish_until].into_iter().flatten().min()
    }

    /// See [`postponed`].
    pub fn postpone(&mut self, stall: &Stall) {
        if let Some(lease) = &mut self.lease {
            lease.postpone(stall);
        }
        for free_at in self.releasing.values_mut().filter_map(|release| release.free_at.as_mut()) {
            *free_at = postponed(*free_at, stall);
        }
        self.unadmitted.postpone(stall);
        self.on_trial.postpone(stall);
    }
}
