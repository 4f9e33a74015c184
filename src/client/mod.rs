//! The library for executors.
//!
//! An executor implements [`ShardHost`] and starts an [`ExecutorSession`]; the session registers, renews the lease, takes commands,
//! starts and stops the work on shards, and fences itself when its lease runs out by its own clock. See docs/guarantees.md.

pub use error::{Error, StartError};
pub use host::{ShardGrant, ShardHost};
pub use managers::InvalidAddress;
pub use observer::{Happening, ObserverError, SessionEvent, SessionObserver};
pub use session::{Builder, ExecutorSession};

pub use crate::types::MAX_WEIGHT;

mod actor;
mod call;
mod control;
mod error;
mod host;
#[doc(hidden)]
pub mod ledger;
mod lookout;
mod managers;
mod observer;
#[doc(hidden)]
pub mod pace;
mod server;
mod session;
mod tally;
mod wire;
mod workers;
