//! The place that is never wrong: the stored state, and who leads. What reaches it and what comes back is the links' affair.
//!
//! Records go through the real codec. Every state that it ever held stays known, as the measure of what may be told: those too that
//! were lost when it was wiped or put back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shard_manager::assignment::check::{check, check_step};
use shard_manager::assignment::record::ShardState;
use shard_manager::assignment::state::{Changes, Meta};
use shard_manager::assignment::{State, command::Snapshot};
use shard_manager::store::codec::{self, Key};
use shard_manager::types::{Epoch, Revision, ShardId, Token, Version};

use crate::context::Who;
use crate::guards::Guard;
use crate::random::{Instant, SECOND};

/// How long a leadership lasts without a renewal.
pub const LEADERSHIP: Instant = 2 * SECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    LeadershipLost,
    ConcurrentModification,
    Unavailable,
}

#[derive(Default)]
pub struct Store {
    /// The fence: the number of the newest leadership.
    leader: u64,
    expires: Instant,
    current: Option<(Revision, Arc<State>)>,
    records: BTreeMap<Key, Vec<u8>>,
    /// What led to the state in force: what there may be a backup of.
    line: BTreeMap<Revision, Arc<State>>,
    /// Everything that was ever durable. A revision that was drawn again after a restore names several states.
    history: BTreeMap<Revision, Vec<Arc<State>>>,
    /// How often it was wiped or put back.
    pub restores: u32,
    /// Terms begin at a clock that is right: then no epoch is ever granted twice, whatever was lost.
    pub clocks_are_right: bool,
    /// The highest grant of each shard, in any line.
    granted: BTreeMap<ShardId, (Epoch, Who)>,
    /// Commits that their leader goes on without.
    failed: BTreeSet<(Token, u64)>,
    /// Requests that arrived, and whether they were turned away.
    arrived: BTreeMap<u64, bool>,
    /// It takes nothing until then.
    pub out_until: Instant,
}

impl Store {
    /// Takes the leadership, if nobody has it.
    pub fn campaign(&mut self, now: Instant) -> Option<u64> {
        (now >= self.out_until && now >= self.expires).then(|| {
            self.leader += 1;
            self.expires = now + LEADERSHIP;
            self.leader
        })
    }

    /// Renews the leadership; `false` where it is over.
    pub fn keep(&mut self, now: Instant, number: u64) -> bool {
        let kept = now >= self.out_until && now < self.expires && number == self.leader;
        if kept {
            self.expires = now + LEADERSHIP;
        }
        kept
    }

    /// Whoever asks has to ask again where it is out.
    pub fn load(&self, now: Instant) -> Option<Option<(Revision, State)>> {
        let load = || {
            let state =
                codec::decode(self.records.iter().map(|(key, bytes)| (*key, bytes))).expect("what was written can be read");
            self.current.as_ref().map(|(revision, _)| *revision).zip(state)
        };
        (now >= self.out_until).then(load)
    }

    /// Whether this copy of a request is one that it has to answer. A link may repeat a request, but only one of its copies can be
    /// turned away: where a real store says "not available", no other copy lands later or did before.
    pub fn answers(&mut self, now: Instant, request: u64) -> bool {
        let out = now < self.out_until;
        match self.arrived.get(&request) {
            None => {
                self.arrived.insert(request, out);
                true
            }
            Some(turned_away) => !turned_away && !out,
        }
    }

    /// **P1.** As a real store: fence and revision first, and an identical commit that landed before is recognised (L5). What lands is
    /// measured against the rules of states and steps, whatever let it in.
    pub fn commit(
        &mut self,
        now: Instant,
        guard: Option<Guard>,
        number: u64,
        expected: Option<Revision>,
        changes: &Changes,
    ) -> Result<Result<Revision, Refusal>, String> {
        if now < self.out_until {
            return Ok(Err(Refusal::Unavailable));
        }
        if number != self.leader && guard != Some(Guard::Fence) {
            return Ok(Err(Refusal::LeadershipLost));
        }
        let revision = self.current.as_ref().map(|(revision, _)| *revision);
        if revision != expected && guard != Some(Guard::Revision) {
            let landed = self.current.as_ref().map(|(_, state)| name(&state.meta));
            let same = landed == Some(name(&changes.meta));
            return Ok(revision.filter(|_| same).ok_or(Refusal::ConcurrentModification));
        }
        if number != self.leader {
            return Err(format!("P1: leadership {number} wrote while {} was the current one", self.leader));
        }
        if revision != expected {
            return Err(format!("P1: a write that replaces {expected:?} was taken at {revision:?}"));
        }
        if self.failed.contains(&name(&changes.meta)) {
            return Err(format!("L5: attempt {} of leadership {number} landed after it was called failed", changes.meta.attempt));
        }
        self.records.extend(codec::encode(changes).map_err(|refused| format!("P9: {refused:?}"))?);
        let state = codec::decode(self.records.iter().map(|(key, bytes)| (*key, bytes)));
        let state = Arc::new(state.map_err(|refused| format!("P9: {refused:?}"))?.ok_or("P9: no meta")?);
        let mut violations = check(&state);
        let before = self.current.take();
        if let Some((_, before)) = &before {
            violations.extend(check_step(before, &state));
        }
        if let Some(violation) = violations.first() {
            return Err(format!("check: {violation}"));
        }
        self.note_grants(before.as_ref().map(|(_, before)| &**before), &state)?;
        let revision = Revision(revision.map_or(1, |revision| revision.0 + 1));
        self.current = Some((revision, Arc::clone(&state)));
        self.line.insert(revision, Arc::clone(&state));
        self.history.entry(revision).or_default().push(state);
        Ok(Ok(revision))
    }

    /// **P4.** No epoch is granted twice: not over a store that lost what it had either, where the clocks are right.
    fn note_grants(&mut self, before: Option<&State>, state: &State) -> Result<(), String> {
        for (shard, record) in state.shards() {
            let ShardState::Held(slot) = record.state else { continue };
            let was = before.map(|before| before.shard(shard)).unwrap_or_default();
            let Some(owner) = state.executor(slot).filter(|_| was.epoch != record.epoch) else { continue };
            let owner = (owner.id.clone(), owner.incarnation);
            let newest = self.granted.entry(shard).or_insert_with(|| (record.epoch, owner.clone()));
            let is_new = record.epoch > newest.0 || record.epoch == newest.0 && owner == newest.1;
            if !is_new && (self.restores == 0 || self.clocks_are_right) {
                return Err(format!("P4: shard {shard} is granted to {owner:?} at {} after {newest:?}", record.epoch));
            }
            if record.epoch > newest.0 {
                *newest = (record.epoch, owner);
            }
        }
        Ok(())
    }

    /// The revisions that there are backups of.
    pub fn backups(&self) -> Vec<Revision> {
        self.line.keys().copied().collect()
    }

    /// It loses everything, or what it had after a revision. Its word on who leads is lost with it, or is kept: as where a replica takes
    /// over that lags behind.
    pub fn restore(&mut self, to: Option<Revision>, leader_stays: bool) {
        self.restores += 1;
        self.line.retain(|revision, _| Some(*revision) <= to);
        self.current = to.and_then(|to| Some((to, Arc::clone(self.line.get(&to)?))));
        let whole = self.current.as_ref().map(|(_, state)| codec::encode(&state.changes_since(None)).expect("it was stored"));
        self.records = whole.into_iter().flatten().collect();
        if !leader_stays {
            // A real number may be drawn again, but not the token beside it.
            self.leader += 1;
            self.expires = 0;
        }
    }

    /// **L5.** What was called failed neither landed nor ever does.
    pub fn called_failed(&mut self, meta: &Meta) -> Result<(), String> {
        self.failed.insert(name(meta));
        let landed = self.history.values().flatten().any(|state| name(&state.meta) == name(meta));
        if landed { Err(format!("L5: attempt {} was called failed, and had landed", meta.attempt)) } else { Ok(()) }
    }

    /// The durable states that a version names: one, unless a restored store drew it again.
    pub fn durable(&self, version: Version) -> impl Iterator<Item = &Arc<State>> {
        let states = self.history.get(&version.revision).into_iter().flatten();
        states.filter(move |state| state.meta.term == version.term)
    }

    /// The durable states that one of this version may have been made from.
    pub fn before(&self, version: Version) -> impl Iterator<Item = &Arc<State>> {
        version.revision.0.checked_sub(1).and_then(|it| self.history.get(&Revision(it))).into_iter().flatten()
    }

    /// **P2.** Whether what was told of a version is what is durable.
    pub fn bears_out(&self, version: Version, told: &str, is_so: impl Fn(&State) -> bool) -> Result<(), String> {
        match self.durable(version).next() {
            None => Err(format!("P2: {version} was told, and no such state is durable")),
            Some(_) if self.durable(version).any(|state| is_so(state)) => Ok(()),
            Some(_) => Err(format!("P2: {told} of {version} is not what is stored")),
        }
    }

    /// The state in force.
    pub fn current(&self) -> Option<Snapshot> {
        let (revision, state) = self.current.as_ref()?;
        Some(Snapshot { version: Version { term: state.meta.term, revision: *revision }, state: Arc::clone(state) })
    }
}

fn name(meta: &Meta) -> (Token, u64) {
    (meta.token, meta.attempt)
}
