//! What is said between the parts, and the time in which it is.

use std::fmt;
use std::time::Duration;

use shard_manager::assignment::command::{Answer, Reply};
use shard_manager::assignment::event::{Claim, Registration, Renewal};
use shard_manager::assignment::state::Changes;
use shard_manager::client::ledger::{Push, PushRefusal};
use shard_manager::holdings::Holdings;
use shard_manager::types::{BootInstant, Epoch, Incarnation, Revision, Version};

use crate::shared::Shared;

/// How long a leadership lasts without a renewal, in ticks.
pub const LEADERSHIP: u32 = 2;

/// The model's clock. Its tick is as long as the real margin, so a manager waits exactly one tick longer than an executor works, and the
/// real arithmetic is looked at where it matters: at the instants at which something ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Clock {
    /// Ticks in a lease.
    pub lease: u8,
    /// Ticks so far.
    pub tick: u32,
}

impl Clock {
    /// The margin of a lease of so many ticks is one tick: it is 100 ms and a hundredth of the lease.
    pub fn length_of_tick(self) -> Duration {
        Duration::from_millis(10_000) / (100 - u32::from(self.lease))
    }

    /// The executor lease L.
    pub fn lease(self) -> Duration {
        self.length_of_tick() * u32::from(self.lease)
    }

    pub fn now(self) -> BootInstant {
        self.at(self.tick)
    }

    pub fn at(self, tick: u32) -> BootInstant {
        BootInstant(self.length_of_tick() * tick)
    }
}

/// One message under way. Executors and managers are named by their index.
#[derive(Clone, Debug)]
pub enum Message {
    /// An executor asks a manager.
    Call { from: usize, to: usize, number: u64, body: Call },
    /// A manager's answer. The executor takes it only while that call is the one that it waits for.
    Answer { to: usize, number: u64, reply: Reply },
    /// A manager commands.
    Push { from: usize, leadership: u64, to: usize, push: Push },
    /// How that was taken; the link waits for the answer to its newest command only.
    Pushed { to: usize, leadership: u64, from: usize, version: Version, answer: Result<(Version, Holdings), PushRefusal> },
    /// A manager wants something written.
    Commit { from: usize, leadership: u64, expected: Option<Revision>, changes: Changes },
    /// What became of it; where it landed, also the print of what the store holds since.
    Stored { to: usize, leadership: u64, attempt: u64, result: Result<(Revision, u64), StoreRefusal> },
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Call { from, to, body: Call::Register(it), .. } => {
                write!(f, "e{from} to m{to}: registers as incarnation {}", it.incarnation)
            }
            Message::Call { from, to, body: Call::Renew(it), .. } => {
                write!(f, "e{from} to m{to}: renews, mark {}, claims ", it.mark)?;
                match &it.claim {
                    Claim::Full(held) => write!(f, "{}", Held(held)),
                    Claim::Digest(0) => write!(f, "nothing, by digest"),
                    Claim::Digest(digest) => write!(f, "digest {digest:x}"),
                }
            }
            Message::Answer { to, reply: Ok(Answer::Lease(it)), .. } => {
                write!(f, "to e{to}: a lease at {}, ", it.version)?;
                match &it.assignment {
                    Some(held) => write!(f, "assigned {}", Held(held)),
                    None => write!(f, "the claim is right"),
                }
            }
            Message::Answer { to, reply: Err(refusal), .. } => write!(f, "to e{to}: refused: {refusal}"),
            Message::Push { from, to, push, .. } => {
                write!(f, "m{from} to e{to}: the command of {}, {}", push.version, Held(&push.assignment))
            }
            Message::Pushed { from, to, version, answer: Ok((mark, held)), .. } => {
                write!(f, "e{from} to m{to}: took the command of {version}, mark {mark}, holds {}", Held(held))
            }
            Message::Commit { from, leadership, changes, .. } => {
                write!(f, "m{from} to the store: attempt {} of leadership {leadership}", changes.meta.attempt)?;
                let mut shards = changes.shards.iter().flat_map(|(_, page)| page.iter());
                shards.try_for_each(|record| write!(f, ", the shard becomes {:?} at epoch {}", record.state, record.epoch))
            }
            Message::Stored { to, attempt, result: Ok((revision, _)), .. } => {
                write!(f, "the store to m{to}: attempt {attempt} landed as revision {revision}")
            }
            other => write!(f, "{other:?}"),
        }
    }
}

/// Of the one shard.
struct Held<'a>(&'a Holdings);

impl fmt::Display for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.epoch(crate::SHARD) {
            Some(epoch) => write!(f, "the shard at epoch {epoch}"),
            None => write!(f, "nothing"),
        }
    }
}

#[derive(Clone, Debug)]
pub enum Call {
    Register(Registration),
    Renew(Renewal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreRefusal {
    LeadershipLost,
    ConcurrentModification,
    Unavailable,
}

/// What comes out of a part.
#[derive(Clone, Debug)]
pub enum Output {
    Send(Shared<Message>),
    /// An executor began to work on the shard.
    Started(Epoch, Incarnation),
    /// A promise, and how it was broken.
    Broken(String),
    /// Something worth counting.
    Reached(&'static str),
}

/// What comes out of a part, in order.
#[derive(Debug, Default)]
pub struct Outputs(pub Vec<Output>);

impl Outputs {
    pub fn send(&mut self, message: Message) {
        self.0.push(Output::Send(Shared::new(message)));
    }

    pub fn reached(&mut self, what: &'static str) {
        self.0.push(Output::Reached(what));
    }

    /// A promise.
    pub fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.0.push(Output::Broken(what()));
        }
    }
}
