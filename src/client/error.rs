//! Why a session did not begin, and why one ended.

use std::net::SocketAddr;

use super::managers::InvalidAddress;
use super::observer::ObserverError;
use crate::types::{ExecutorId, MAX_WEIGHT};

/// Why a session did not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No manager's address was given.
    #[error("no manager is given: at least one address is needed")]
    NoManager,
    /// A manager's address is none.
    #[error("a manager's {0}")]
    Manager(#[source] InvalidAddress),
    /// The advertised address is none.
    #[error("the advertised {0}")]
    Advertise(#[source] InvalidAddress),
    /// Nobody could reach this executor at the address that it would advertise.
    #[error("{listen} is no address that a manager could reach: with it, an address to advertise must be given")]
    Unreachable {
        /// As bound.
        listen: SocketAddr,
    },
    /// The weight is out of range.
    #[error("weight {weight} is refused: it must be 1 to {MAX_WEIGHT}")]
    Weight {
        /// As given.
        weight: u32,
    },
    /// The port could not be opened.
    #[error("cannot listen on {listen}")]
    Bind {
        /// As given.
        listen: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// Why a session ended unasked. Every shard has stopped by then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A newer process with the same executor id took over (L13). Starting again makes the newer one the older.
    #[error("executor {id} was superseded: a newer process has registered under this id")]
    Superseded {
        /// This executor.
        id: ExecutorId,
    },
    /// The manager refused the registration, and would again.
    #[error("the manager refuses this executor: {message}")]
    Rejected {
        /// As the manager says.
        message: String,
    },
    /// The observer could not go on.
    #[error("the session's observer failed")]
    Observer(#[source] ObserverError),
    /// The port for the manager's commands is gone.
    #[error("the server for the manager's commands ended")]
    Server(#[source] Option<tonic::transport::Error>),
    /// The session's own task panicked or was ended from outside.
    #[error("the session's task ended")]
    Task(#[source] tokio::task::JoinError),
}
