//! The generated messages and services of `proto/`, and what they need to meet our types.

#[allow(missing_docs, clippy::unwrap_used)]
mod generated {
    tonic::include_proto!("shardmanager.v1");
}

pub use generated::*;

use crate::holdings;
use crate::types;

/// The encoded file descriptors of `proto/`, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The largest message that either side takes, in bytes: a full table of the most shards, with room to spare.
pub const MAX_MESSAGE_BYTES: usize = 128 << 20;

/// In [`RoutingTable::owner`]: nobody owns the shard.
pub const NOBODY: u32 = u32::MAX;

impl From<types::Version> for Version {
    fn from(version: types::Version) -> Self {
        Version { term: version.term.0, revision: version.revision.0 }
    }
}

impl From<Version> for types::Version {
    fn from(version: Version) -> Self {
        types::Version { term: types::Term(version.term), revision: types::Revision(version.revision) }
    }
}

impl From<&holdings::Holdings> for Holdings {
    fn from(holdings: &holdings::Holdings) -> Self {
        let (shards, epochs) = holdings.to_columns();
        Holdings { shards, epochs }
    }
}

impl Holdings {
    /// Checked by every rule of [`holdings::Holdings::from_columns`].
    pub fn check(&self, number_of_shards: u32) -> Result<holdings::Holdings, holdings::Invalid> {
        holdings::Holdings::from_columns(&self.shards, &self.epochs, number_of_shards)
    }
}
