//! The words of the field as types: identities, the numbers that order things, and instants.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use uuid::Uuid;

/// A shard: `0 .. number_of_shards`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u32);

/// The most shards that a cluster can have.
pub const MAX_SHARDS: u32 = 4_194_304;

/// The ownership generation of one shard: the executor's fencing token towards its own storage.
///
/// Grows with every change of owner or incarnation and is never reused (P4). 0 means that the shard was never granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// The number of a leadership. Kept in the stored state; a leader's first commit raises it (see [`Term::next`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

/// The largest weight of an executor; the least is 1.
pub const MAX_WEIGHT: u32 = 1000;

/// The highest term, epoch or revision that is stored or sent.
pub const MAX_NUMBER: u64 = 1 << 62;

/// The highest term or epoch that an executor may raise ours to. One above it comes from a broken or hostile peer and is refused: from
/// here there is room for more than 10^18 steps up to [`MAX_NUMBER`] (L10, L11).
pub const MAX_SHOWN: u64 = 1 << 61;

/// The highest term that a reader may raise ours to. Lower than what executors may show: whatever came of what readers showed, those who
/// work under it can show it to a leader that does not know it any more.
pub const MAX_SHOWN_BY_READERS: u64 = 1 << 60;

impl Term {
    /// The term of a new leadership: above the recorded one, and at least the wall clock in Unix milliseconds, so that terms
    /// go on growing after a store was wiped or restored.
    pub fn next(self, unix_ms: u64) -> Term {
        Term((self.0 + 1).max(unix_ms))
    }
}

impl Epoch {
    /// The epoch of the next grant: `max(recorded + 1, term)`.
    pub fn next(self, term: Term) -> Epoch {
        Epoch((self.0 + 1).max(term.0))
    }
}

/// Version of the stored state, given by the store; every commit names the one that it replaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// Orders everything that the manager says: by term, then by revision. The default, (0, 0), lies before everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The leadership that said it.
    pub term: Term,
    /// The state that it was said of.
    pub revision: Revision,
}

/// Drawn at random when a cluster's state is first written; tells one cluster's messages from another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub Uuid);

/// Drawn at random by a process when it starts, and anew for every new registration. Never 0. It has no order: the newer
/// incarnation is the one that registered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// A new one, at random.
    pub fn draw() -> Incarnation {
        Incarnation(rand::random_range(1..=u64::MAX))
    }
}

/// Where the manager keeps one incarnation of one executor in its tables. Reused after the record was deleted, which is only
/// done once no shard names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// A random number per leadership: tells two leaderships apart even where a restored store drew their number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u128);

impl Token {
    /// A new one, at random.
    pub fn draw() -> Token {
        Token(rand::random())
    }
}

/// An instant of CLOCK_BOOTTIME, which goes on while the machine is suspended; all deadlines compare it (L7).
/// Only `clock` reads it; it means nothing on another machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(pub Duration);

impl BootInstant {
    /// This instant and `duration` more.
    pub fn after(self, duration: Duration) -> BootInstant {
        BootInstant(self.0.saturating_add(duration))
    }

    /// How long from `earlier` to this instant; zero where `earlier` is the later one.
    pub fn since(self, earlier: BootInstant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The stable name of an executor, e.g. its pod's: 1 to 253 characters out of `A-Z a-z 0-9 . _ -`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutorId(String);

/// A name that is no executor id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("executor id {value:?} is refused: it takes 1 to 253 characters out of A-Z a-z 0-9 . _ -")]
pub struct InvalidExecutorId {
    /// What was given, cut to 300 characters.
    pub value: String,
}

impl ExecutorId {
    /// The longest id, in bytes.
    pub const MAX_LEN: usize = 253;

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ExecutorId {
    type Err = InvalidExecutorId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if text.is_empty() || text.len() > Self::MAX_LEN || !text.chars().all(allowed) {
            return Err(InvalidExecutorId { value: text.chars().take(300).collect() });
        }
        Ok(ExecutorId(text.to_owned()))
    }
}

macro_rules! display_inner {
    ($($name:ty),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )*};
}
display_inner!(ShardId, Epoch, Term, Revision, ClusterId, Incarnation, Slot, ExecutorId);

impl FromStr for ClusterId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::from_str(text).map(ClusterId)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.term, self.revision)
    }
}
