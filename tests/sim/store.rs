//! The place that is never wrong: the stored state, and who leads. What reaches it and what comes back is the links' affair.
//!
//! Records go through the real codec. Every state that it ever held stays known, as the measure of what may be told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shard_manager::assignment::check::{check, check_step};
use shard_manager::assignment::state::{Changes, Meta};
use shard_manager::assignment::{State, command::Snapshot};
use shard_manager::store::codec::{self, Key};
use shard_manager::types::{Revision, Token, Version};

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
    revision: Option<Revision>,
    records: BTreeMap<Key, Vec<u8>>,
    history: BTreeMap<Revision, Arc<State>>,
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
            self.revision.zip(state)
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
        if self.revision != expected && guard != Some(Guard::Revision) {
            let name = |state: &Arc<State>| (state.meta.token, state.meta.attempt);
            let landed = self.revision.and_then(|revision| self.history.get(&revision));
            let same = landed.map(name) == Some((changes.meta.token, changes.meta.attempt));
            return Ok(self.revision.filter(|_| same).ok_or(Refusal::ConcurrentModification));
        }
        if number != self.leader {
            return Err(format!("P1: leadership {number} wrote while {} was the current one", self.leader));
        }
        if self.revision != expected {
            return Err(format!("P1: a write that replaces {expected:?} was taken at {:?}", self.revision));
        }
        if self.failed.contains(&(changes.meta.token, changes.meta.attempt)) {
            return Err(format!("L5: attempt {} of leadership {number} landed after it was called failed", changes.meta.attempt));
        }
        self.records.extend(codec::encode(changes).map_err(|refused| format!("P9: {refused:?}"))?);
        let state = codec::decode(self.records.iter().map(|(key, bytes)| (*key, bytes)));
        let state = Arc::new(state.map_err(|refused| format!("P9: {refused:?}"))?.ok_or("P9: no meta")?);
        let mut violations = check(&state);
        if let Some(before) = self.revision.and_then(|revision| self.history.get(&revision)) {
            violations.extend(check_step(before, &state));
        }
        if let Some(violation) = violations.first() {
            return Err(format!("check: {violation}"));
        }
        let revision = Revision(self.revision.map_or(1, |revision| revision.0 + 1));
        self.revision = Some(revision);
        self.history.insert(revision, state);
        Ok(Ok(revision))
    }

    /// **L5.** What was called failed neither landed nor ever does.
    pub fn called_failed(&mut self, meta: &Meta) -> Result<(), String> {
        self.failed.insert((meta.token, meta.attempt));
        let landed = self.history.values().any(|state| (state.meta.token, state.meta.attempt) == (meta.token, meta.attempt));
        if landed { Err(format!("L5: attempt {} was called failed, and had landed", meta.attempt)) } else { Ok(()) }
    }

    /// **P2.** The durable state that a version names.
    pub fn durable(&self, version: Version) -> Result<&Arc<State>, String> {
        let state = self.history.get(&version.revision).filter(|state| state.meta.term == version.term);
        state.ok_or_else(|| format!("P2: {version} was told, and no such state is durable"))
    }

    /// The state in force.
    pub fn current(&self) -> Option<Snapshot> {
        let revision = self.revision?;
        let state = self.history.get(&revision)?;
        Some(Snapshot { version: Version { term: state.meta.term, revision }, state: Arc::clone(state) })
    }
}
