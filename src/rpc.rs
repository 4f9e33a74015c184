//! The generated messages and services of `proto/`, and what they need to meet our types.

#[allow(missing_docs, clippy::unwrap_used)]
mod generated {
    tonic::include_proto!("shardmanager.v1");
}

pub use generated::*;

#[cfg(feature = "server")]
pub mod ready;

use std::collections::HashMap;

use tonic_types::{ErrorDetails, StatusExt};

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

/// The reasons of refusals, as peers read them in the `ErrorInfo` detail; docs/protocol.md says what each one asks of the caller.
pub mod reason {
    /// The message's (term, revision) is below what its receiver already accepted.
    pub const STALE_TERM: &str = "STALE_TERM";
    /// This incarnation was replaced by a newer one: its process must stop for good.
    pub const SUPERSEDED: &str = "SUPERSEDED";
    /// There is no such executor: it must stop everything and register as a new incarnation.
    pub const UNKNOWN_EXECUTOR: &str = "UNKNOWN_EXECUTOR";
    /// The message names another cluster than its receiver belongs to.
    pub const WRONG_CLUSTER: &str = "WRONG_CLUSTER";
    /// The message is addressed to another process than the one that it reached.
    pub const WRONG_INCARNATION: &str = "WRONG_INCARNATION";
    /// The executor does not own the shard; the metadata names who does, as far as known.
    pub const NOT_OWNER: &str = "NOT_OWNER";
    /// The receiver is still starting: try again.
    pub const NOT_READY: &str = "NOT_READY";
    /// The receiver is going away: try again, elsewhere too.
    pub const STOPPING: &str = "STOPPING";
    /// The receiver is no longer sure to lead: try again, elsewhere too.
    pub const LEADERSHIP_LOST: &str = "LEADERSHIP_LOST";
    /// The state could not be written and nothing was changed: try again.
    pub const STORE_UNAVAILABLE: &str = "STORE_UNAVAILABLE";
    /// The watcher did not keep up and was dropped: watch again.
    pub const SLOW_WATCHER: &str = "SLOW_WATCHER";
    /// An operator removed this executor: it may register again once it is admitted.
    pub const REMOVED: &str = "REMOVED";
    /// What is asked for does not fit the assignment as it is now; the message says why, and what would do.
    pub const NOT_NOW: &str = "NOT_NOW";
    /// A value breaks a rule; trying again does not help.
    pub const INVALID_ARGUMENT: &str = "INVALID_ARGUMENT";
    /// The caller's lease ran out and is being ended: try again, and be told to register then (L1).
    pub const LEASE_ENDING: &str = "LEASE_ENDING";
    /// The executor has no live lease, so it takes no command (L3).
    pub const LEASE_OVER: &str = "LEASE_OVER";
}

/// The domain of every `ErrorInfo` of ours.
pub const ERROR_DOMAIN: &str = "shard-manager";

/// Metadata of a refusal after which what was asked may still take effect; without it, nothing was changed.
pub const UNSETTLED: (&str, &str) = ("outcome", "unknown");

/// Whether a refusal of ours says that what was asked may still take effect.
pub fn is_unsettled(status: &tonic::Status) -> bool {
    let (name, value) = UNSETTLED;
    status.get_details_error_info().is_some_and(|info| info.metadata.get(name).is_some_and(|it| it == value))
}

/// A refusal: a status of `code` with an `ErrorInfo` detail that carries `reason` (one of [`reason`]) and `metadata`.
pub fn refusal(code: tonic::Code, reason: &str, message: impl Into<String>, metadata: &[(&str, String)]) -> tonic::Status {
    let metadata: HashMap<String, String> = metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    tonic::Status::with_error_details(code, message, ErrorDetails::with_error_info(reason, ERROR_DOMAIN, metadata))
}

/// What a status says, and what it came from: "tcp connect error: Connection refused". What was said already is left out.
pub fn with_causes(status: &tonic::Status) -> String {
    let error: &dyn std::error::Error = status;
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(status.message().to_owned(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// The reason of a refusal of ours; `None` for any other status.
pub fn reason_of(status: &tonic::Status) -> Option<String> {
    let info = status.get_details_error_info()?;
    (info.domain == ERROR_DOMAIN).then_some(info.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_carries_its_reason_and_other_statuses_have_none() {
        let status = refusal(tonic::Code::FailedPrecondition, reason::STALE_TERM, "too old", &[("mark", "3/7".to_owned())]);
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert_eq!(reason_of(&status).as_deref(), Some("STALE_TERM"));
        assert_eq!(status.get_details_error_info().and_then(|info| info.metadata.get("mark").cloned()).as_deref(), Some("3/7"));
        assert_eq!(reason_of(&tonic::Status::unavailable("gone")), None);
        let foreign = ErrorDetails::with_error_info(reason::SUPERSEDED, "elsewhere", HashMap::<String, String>::new());
        assert_eq!(reason_of(&tonic::Status::with_error_details(tonic::Code::Aborted, "", foreign)), None);
    }
}
