//! The library for executors, and for those who call them.
//!
//! A caller starts a [`Router`], which knows the owner of each shard and goes on knowing it while shards move.
//!
//! An executor implements [`ShardHost`] and starts an [`ExecutorSession`]; the session registers, renews the lease, takes commands,
//! starts and stops the work on shards, and fences itself when its lease runs out by its own clock. See docs/guarantees.md.

pub use error::{Error, StartError};
pub use hash::shard_for;
pub use host::{ShardGrant, ShardHost};
pub use managers::InvalidAddress;
pub use observer::{Happening, ObserverError, SessionEvent, SessionObserver};
pub use refusal::NotOwner;
pub use router::{NoRoute, Router};
pub use session::{Builder, ExecutorSession};
pub use table::{Owner, Route, Table};

pub use crate::types::MAX_WEIGHT;

#[cfg(feature = "server")]
pub(crate) use call::may_have_arrived;

mod actor;
#[doc(hidden)]
pub mod cache;
mod call;
mod control;
mod error;
mod hash;
mod host;
#[doc(hidden)]
pub mod ledger;
mod lookout;
mod managers;
#[doc(hidden)]
pub mod meaning;
mod observer;
#[doc(hidden)]
pub mod pace;
mod refusal;
mod router;
mod server;
mod session;
mod table;
mod tally;
pub(crate) mod wire;
mod workers;
