//! The stored state and who leads. Records go through the real codec.

use std::collections::BTreeMap;

use shard_manager::assignment::State;
use shard_manager::assignment::check::{check, check_step};
use shard_manager::assignment::state::Changes;
use shard_manager::store::codec::{self, Key};
use shard_manager::types::Revision;

use crate::guards::Guard;
use crate::message::{Clock, LEADERSHIP, Message, Outputs, StoreRefusal};
use crate::shared::{Shared, print_of};

#[derive(Clone, Debug, Default)]
pub struct Store {
    /// The fence: the number of the newest leadership.
    pub leader: u64,
    /// The tick at which its leadership ends.
    pub expires: u32,
    pub revision: Option<Revision>,
    /// The print of the state.
    pub print: u64,
    records: BTreeMap<Key, Vec<u8>>,
}

/// What a store is asked.
#[derive(Clone, Debug, Hash)]
pub enum Input {
    /// Takes the leadership for who campaigned.
    Elect,
    /// Renews the leadership in force.
    Keep,
    Commit(Shared<Message>),
    /// Turns a commit away, for certain.
    TurnAway(Shared<Message>),
}

impl Store {
    pub fn load(&self) -> Option<(Revision, State)> {
        let state = codec::decode(self.records.iter().map(|(key, bytes)| (*key, bytes))).expect("what was written can be read");
        self.revision.zip(state)
    }

    pub fn take(&self, clock: Clock, input: &Input, guard: Option<Guard>) -> (Store, Outputs) {
        let (mut store, mut out) = (self.clone(), Outputs::default());
        match input {
            Input::Elect => (store.leader, store.expires) = (self.leader + 1, clock.tick + LEADERSHIP),
            Input::Keep => store.expires = clock.tick + LEADERSHIP,
            Input::Commit(message) | Input::TurnAway(message) => {
                let Message::Commit { from, leadership, expected, changes } = &**message else { return (store, out) };
                let result = match input {
                    Input::TurnAway(_) => Err(StoreRefusal::Unavailable),
                    _ => store.commit(guard, *leadership, *expected, changes, &mut out),
                };
                let attempt = changes.meta.attempt;
                out.send(Message::Stored { to: *from, leadership: *leadership, attempt, result });
            }
        }
        (store, out)
    }

    /// **P1.** As a real store: fence and revision first, and an identical commit that landed before is recognised (L5).
    fn commit(
        &mut self,
        guard: Option<Guard>,
        leadership: u64,
        expected: Option<Revision>,
        changes: &Changes,
        out: &mut Outputs,
    ) -> Result<(Revision, u64), StoreRefusal> {
        if leadership != self.leader && guard != Some(Guard::Fence) {
            out.reached("the fence refused a stale leader's commit");
            return Err(StoreRefusal::LeadershipLost);
        }
        let before = self.load();
        if self.revision != expected {
            let meta = before.map(|(_, state)| state.meta);
            let same = meta.is_some_and(|meta| (meta.token, meta.attempt) == (changes.meta.token, changes.meta.attempt));
            let revision = self.revision.filter(|_| same).ok_or(StoreRefusal::ConcurrentModification)?;
            out.reached("a commit that had landed was recognised");
            return Ok((revision, self.print));
        }
        out.expect(leadership == self.leader, || format!("P1: leadership {leadership} wrote while {} led", self.leader));
        self.records.extend(codec::encode(changes).expect("what the engine drafts can be written"));
        let revision = Revision(self.revision.map_or(1, |revision| revision.0 + 1));
        self.revision = Some(revision);
        let (_, state) = self.load().expect("something was written");
        let violations = check(&state).into_iter();
        let steps = before.map(|(_, before)| check_step(&before, &state)).unwrap_or_default();
        if let Some(violation) = violations.chain(steps).next() {
            out.expect(false, || format!("P4: the stored state: {violation}"));
        }
        self.print = print_of(&state);
        Ok((revision, self.print))
    }
}
