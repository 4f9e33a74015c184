//! Why a manager ended, and what its process should end with.

use std::net::SocketAddr;

use crate::{coordinator, election, store};

/// Why a manager ended without being asked to. Being asked to is no error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A mode that this deployment refuses.
    #[error("the configuration is refused: {0}")]
    Configuration(String),
    /// The shard count cannot be changed.
    #[error(
        "number_of_shards is {configured}, but the stored state has {stored}: the number is fixed when the state is first written"
    )]
    ShardCount {
        /// As configured.
        configured: u32,
        /// As stored.
        stored: u32,
    },
    /// The store failed, or what is stored is not readable.
    #[error("the store failed while {doing}")]
    Store {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: store::Error,
    },
    /// The campaign failed.
    #[error("the campaign failed")]
    Campaign(#[source] election::Error),
    /// Another process leads.
    #[error("another process leads")]
    HeldElsewhere(#[source] election::Error),
    /// The leadership was lost.
    #[error("the leadership was lost")]
    LeadershipLost(#[source] store::BoxError),
    /// A port cannot be had.
    #[error("cannot listen on {address} for {what}")]
    Listen {
        /// `gRPC` or `HTTP`.
        what: &'static str,
        /// As configured.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// A task failed.
    #[error("the {name} failed")]
    Task {
        /// Which.
        name: &'static str,
        /// Why.
        source: store::BoxError,
    },
    /// Every task ended although nobody had asked.
    #[error("all tasks ended although nobody had asked them to")]
    AllEnded,
}

impl Error {
    /// What the process ends with: 2 configuration, 3 store, 4 leadership lost, 5 held elsewhere, 6 a task failed or a port that
    /// cannot be had (it may be free again in a moment, so this is not a mistake of configuration).
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Configuration(_) | Error::ShardCount { .. } => 2,
            Error::Store { .. } | Error::Campaign(_) => 3,
            Error::LeadershipLost(_) => 4,
            Error::HeldElsewhere(_) => 5,
            Error::Listen { .. } | Error::Task { .. } | Error::AllEnded => 6,
        }
    }
}

impl From<coordinator::Error> for Error {
    fn from(error: coordinator::Error) -> Error {
        match error {
            coordinator::Error::LeadershipLost | coordinator::Error::Expired => Error::LeadershipLost(error.into()),
            coordinator::Error::Store(source) => Error::Store { doing: "committing", source },
            coordinator::Error::StoreGone(source) => Error::Store { doing: "committing, over and over", source },
            coordinator::Error::Executors(source) => Error::Task { name: "executor link", source: source.into() },
        }
    }
}
