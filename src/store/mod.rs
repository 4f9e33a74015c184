//! Where the state lives: two verbs with typed outcomes.

pub mod codec;
pub mod etcd;
pub mod memory;
pub mod postgres;
mod sql;
pub mod sqlite;

use async_trait::async_trait;

use crate::assignment::state::{Changes, State};
pub use crate::backend::BoxError;
use crate::backend::{self, Fence};
use crate::types::Revision;

/// A store of one cluster's state.
#[async_trait]
pub trait Store: Send + Sync {
    /// Reads one revision of everything and decodes all of it. Takes no fence: anyone may read.
    async fn load(&self) -> Result<Option<Loaded>, Error>;

    /// Writes `changes` in one transaction that holds only if `fence` is still the leadership's and the state is at `expected`
    /// (`None`: there is none). The revision in the answer is this write's own, above every one before it.
    ///
    /// Sending the identical commit again is harmless, and is how [`Error::OutcomeUnknown`] is settled: one that has landed is
    /// recognised by the token and attempt in its `meta`, under the fence, and answered with the revision it made (L5).
    async fn commit(&self, fence: &Fence, expected: Option<Revision>, changes: &Changes) -> Result<Revision, Error>;

    /// How much one commit may write.
    fn limits(&self) -> Limits;
}

/// What [`Store::load`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The revision that was read.
    pub revision: Revision,
    /// All of it.
    pub state: State,
}

/// How much one commit may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pages, `meta` not counted.
    pub pages: usize,
}

/// Why a store did not do it. Callers match on the variant, never on text.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The fence does not hold: another process leads, or did since. Nothing was changed.
    #[error("the leadership behind this write is no longer the current one; nothing was written")]
    LeadershipLost,
    /// The state is at another revision than expected, and not by this very commit. Nothing was changed.
    #[error("{}; nothing was written", moved(*.expected, *.actual))]
    ConcurrentModification {
        /// What the write expected.
        expected: Option<Revision>,
        /// What is there.
        actual: Option<Revision>,
    },
    /// The store did not take the request, for certain. Nothing was changed.
    #[error("the store is unavailable: {what}")]
    Unavailable {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: BoxError,
    },
    /// The write may have landed, now or later.
    #[error("the outcome of a write is unknown: {what}")]
    OutcomeUnknown {
        /// What was tried.
        what: &'static str,
        /// What was seen.
        source: BoxError,
    },
    /// What was to be written could not have been read back: nothing was written.
    #[error("the record {record} is not written, it could not be read back: {reason}")]
    Unfit {
        /// Which record, as the store names it.
        record: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What is stored is not readable: it is left as it is.
    #[error("the stored record {record} is refused: {reason}; it was left as it is")]
    Corrupt {
        /// Which record, as the store names it.
        record: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store as a whole is not readable: it is left as it is.
    #[error("{what} is refused: {reason}; it was left as it is")]
    Unreadable {
        /// What is not readable, with its article: "the database file /x/y.db".
        what: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// What it means that the state is not at the expected revision.
fn moved(expected: Option<Revision>, actual: Option<Revision>) -> String {
    match (expected, actual) {
        (Some(expected), Some(actual)) if actual < expected => format!(
            "the store went back: this write replaces revision {}, the stored state is at revision {}. It was restored, or failed over to a \
             replica that had not received everything",
            expected.0, actual.0
        ),
        (Some(expected), Some(actual)) => {
            format!("the stored state is at revision {}, this write replaces revision {}", actual.0, expected.0)
        }
        (Some(expected), None) => format!("the stored state is gone, this write replaces revision {}", expected.0),
        (None, Some(actual)) => format!("the stored state is at revision {}, this write is the first one", actual.0),
        (None, None) => "the stored state is gone, this write is the first one".to_owned(),
    }
}

impl From<backend::Error> for Error {
    fn from(error: backend::Error) -> Error {
        match error {
            backend::Error::Unavailable { what, source } => Error::Unavailable { what, source },
            backend::Error::Corrupt { record: what, reason } => Error::Unreadable { what, reason },
        }
    }
}

impl From<codec::Refused> for Error {
    fn from(refused: codec::Refused) -> Error {
        Error::Corrupt { record: refused.record, reason: refused.reason.to_string() }
    }
}

/// A record that could not be read back is not written: that is a bug, and the state in the store is as it was.
fn unfit(refused: codec::Refused) -> Error {
    Error::Unfit { record: refused.record, reason: refused.reason.to_string() }
}
