//! Decides what happens when.

use std::collections::BTreeMap;

use crate::assignment::command::{Cause, Command, ExecutorState};
use crate::assignment::event::{Event, Settings, Takeover};
use crate::assignment::state::State;
use crate::types::{BootInstant, Revision};

/// One leadership's mind. See the module's picture.
pub struct Engine;

/// How things stand, for gauges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Shards that nobody is known to serve, by why: unassigned, being released, or granted and not yet admitted.
    pub unserved: BTreeMap<Cause, u32>,
    /// Executors by state.
    pub executors: BTreeMap<ExecutorState, u32>,
}

impl Engine {
    /// Takes over what the store has (`None`: nothing yet). The first [`Event::Turn`] commits the new term; until that is durable
    /// every call is answered with `NotReady`.
    pub fn new(_settings: Settings, _takeover: Takeover, _loaded: Option<(Revision, State)>, _now: BootInstant) -> Engine {
        Engine
    }

    /// Until when the leadership may be believed in; `None` for as long as the process lives. After that nothing is granted or
    /// renewed (L4). To be set before every batch of events, from a deadline that was read after the events were.
    pub fn believe_until(&mut self, _deadline: Option<BootInstant>) {}

    /// Takes in one event. `now` must have been read after the event arrived, and never go back.
    pub fn step(&mut self, _now: BootInstant, _event: Event) -> Vec<Command> {
        Vec::new()
    }

    /// When the next [`Event::Turn`] is due, at the latest.
    pub fn next_turn(&self) -> BootInstant {
        BootInstant::default()
    }

    /// How things stand.
    pub fn statistics(&self) -> Statistics {
        Statistics::default()
    }
}
