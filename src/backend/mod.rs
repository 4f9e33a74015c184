//! What the store and the election of one kind share.

pub mod etcd;
pub mod postgres;
pub mod settings;
pub mod sqlite;

use crate::types::Token;

/// What makes a leadership the precondition of a write, inside the store's own transaction (P1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The leader row still carries this number and this token. The token tells leaderships apart where a restored database drew a
    /// number twice.
    Sql {
        /// Drawn from the database; grows with each leadership.
        number: i64,
        /// Drawn at random.
        token: Token,
    },
    /// The election's key was not made anew since: it still has the revision at which this leadership's campaign created it.
    Etcd {
        /// The key of the won campaign.
        key: String,
        /// As etcd counts; it gives none twice.
        creation_revision: i64,
        /// Drawn at random.
        token: Token,
    },
}

impl Fence {
    /// The token of the leadership, as `meta` carries it.
    pub fn token(&self) -> Token {
        match self {
            Fence::Sql { token, .. } | Fence::Etcd { token, .. } => *token,
        }
    }
}

/// A cause of any type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error and what it came from, down to the first cause, for texts that cannot carry a source.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Why a backend did not do it. The store's own errors include these.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It did not take the request, for certain. Nothing was changed.
    #[error("the store is unavailable: {what}")]
    Unavailable {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: BoxError,
    },
    /// What is there is not readable: it is left as it is.
    #[error("{record} is refused: {reason}; it was left as it is")]
    Corrupt {
        /// What is not readable, with its article: "the database file /x/y.db".
        record: String,
        /// What is wrong with it.
        reason: String,
    },
}
