//! What may happen, one step at a time.

use std::fmt;

use crate::message::Message;
use crate::shared::Shared;

/// One thing that may happen.
#[derive(Clone, Debug)]
pub enum Action {
    Tick,
    Turn(usize),
    Keep(usize),
    GiveUp(usize),
    Elect(usize),
    NotAnswered(usize),
    Wish {
        manager: usize,
        executor: usize,
        drain: bool,
    },
    PauseManager(usize),
    WakeManager(usize),
    Call {
        executor: usize,
        to: usize,
    },
    Stopped(usize),
    PauseExecutor(usize),
    WakeExecutor(usize),
    /// A message arrives; `again`: and will once more.
    Arrives {
        message: Shared<Message>,
        again: bool,
    },
    TurnedAway(Shared<Message>),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Tick => write!(f, "a tick passes"),
            Action::Turn(at) => write!(f, "m{at} turns"),
            Action::Keep(at) => write!(f, "m{at} renews its leadership"),
            Action::GiveUp(at) => write!(f, "m{at} gives up by its own deadline"),
            Action::Elect(at) => write!(f, "m{at} is elected"),
            Action::NotAnswered(at) => write!(f, "m{at} waits no more for the answer to its commit"),
            Action::Wish { executor, drain: true, .. } => write!(f, "an operator drains e{executor}"),
            Action::Wish { executor, .. } => write!(f, "an operator lets e{executor} be"),
            Action::PauseManager(at) => write!(f, "m{at} is stopped"),
            Action::WakeManager(at) => write!(f, "m{at} goes on"),
            Action::Call { executor, to } => write!(f, "e{executor} calls m{to}"),
            Action::Stopped(at) => write!(f, "e{at} has stopped the shard"),
            Action::PauseExecutor(at) => write!(f, "e{at} is stopped"),
            Action::WakeExecutor(at) => write!(f, "e{at} goes on"),
            Action::Arrives { message, again: false } => write!(f, "{}", **message),
            Action::Arrives { message, again: true } => write!(f, "{}; and will once more", **message),
            Action::TurnedAway(message) => write!(f, "turned away by the store: {}", **message),
        }
    }
}
