//! Between the messages of `proto/` and the ledger's. Everything from outside is checked here, by rules that are named when they break.

use std::time::Duration;

use tonic::{Code, Status};

use super::ledger::{Answer, Attempt, Push, PushRefusal};
use crate::holdings;
use crate::rpc::{self, reason};
use crate::types::{ClusterId, ExecutorId, InvalidExecutorId, MAX_NUMBER, MAX_SHARDS, Version};

/// A lease longer than this comes from a broken manager.
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// A message that breaks a rule.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// No UUID.
    #[error("cluster_id {value:?} is no UUID")]
    ClusterId {
        /// As given, cut to 100 characters.
        value: String,
    },
    /// A field that must be there is not.
    #[error("{field} is missing")]
    Missing {
        /// Its name.
        field: &'static str,
    },
    /// A number out of range.
    #[error("{field} {value} is refused: it must be {least} to {most}")]
    Range {
        /// Its name.
        field: &'static str,
        /// As given.
        value: u64,
        /// The least allowed.
        least: u64,
        /// The most allowed.
        most: u64,
    },
    /// A set of shards.
    #[error(transparent)]
    Holdings(#[from] holdings::Invalid),
    /// A list that does not fit the others.
    #[error("{field} has {found} entries where there must be {expected}")]
    Length {
        /// Its name.
        field: &'static str,
        /// Entries in it.
        found: usize,
        /// Entries that belong there.
        expected: usize,
    },
    /// An owner that the message does not name.
    #[error("owner {index} does not exist: there are {owners}, counted from 0")]
    NoSuchOwner {
        /// As given.
        index: u32,
        /// How many it names.
        owners: usize,
    },
    /// No name of an executor.
    #[error(transparent)]
    ExecutorId(#[from] InvalidExecutorId),
    /// A difference to another table than the one at hand.
    #[error("a step from {from} to {to} does not begin at the table at {has}, or leads back")]
    Step {
        /// Where it begins.
        from: Version,
        /// Where it ends.
        to: Version,
        /// The table's.
        has: Version,
    },
}

/// The request of a [`Kind::Register`](super::ledger::Kind::Register).
pub fn register(id: &ExecutorId, endpoint: &str, weight: u32, attempt: &Attempt) -> rpc::RegisterRequest {
    rpc::RegisterRequest {
        executor_id: id.to_string(),
        incarnation: attempt.incarnation.0,
        endpoint: endpoint.to_owned(),
        weight,
        cluster_id: attempt.cluster_id.map(|id| id.to_string()).unwrap_or_default(),
        mark: attempt.cluster_id.map(|_| attempt.mark.into()),
    }
}

/// The request of a [`Kind::Renew`](super::ledger::Kind::Renew).
pub fn renew(id: &ExecutorId, attempt: &Attempt) -> rpc::RenewLeaseRequest {
    let claim = if attempt.in_full {
        rpc::renew_lease_request::Claim::Held(attempt.claim.as_ref().into())
    } else {
        rpc::renew_lease_request::Claim::Digest(attempt.claim.digest())
    };
    rpc::RenewLeaseRequest {
        executor_id: id.to_string(),
        incarnation: attempt.incarnation.0,
        cluster_id: attempt.cluster_id.map(|id| id.to_string()).unwrap_or_default(),
        mark: Some(attempt.mark.into()),
        claim: Some(claim),
        leaving: attempt.leaving,
        storage_epochs: (!attempt.storage_epochs.is_empty()).then(|| (&attempt.storage_epochs).into()),
    }
}

/// The request of a [`Kind::Deregister`](super::ledger::Kind::Deregister).
pub fn deregister(id: &ExecutorId, attempt: &Attempt) -> rpc::DeregisterRequest {
    rpc::DeregisterRequest {
        executor_id: id.to_string(),
        incarnation: attempt.incarnation.0,
        cluster_id: attempt.cluster_id.map(|id| id.to_string()).unwrap_or_default(),
    }
}

/// The answer to a registration or a renewal.
pub fn answer(answer: &rpc::LeaseAnswer) -> Result<Answer, Invalid> {
    let number_of_shards = u64::from(answer.number_of_shards);
    in_range("number_of_shards", number_of_shards, 1, u64::from(MAX_SHARDS))?;
    in_range("lease_ttl_ms", answer.lease_ttl_ms, 1, LONGEST_LEASE.as_millis() as u64)?;
    let assignment = answer.assignment.as_ref().map(|set| set.check(answer.number_of_shards)).transpose()?;
    Ok(Answer {
        cluster_id: cluster_id(&answer.cluster_id)?,
        version: version(answer.version)?,
        number_of_shards: answer.number_of_shards,
        lease_ttl: Duration::from_millis(answer.lease_ttl_ms),
        assignment,
        claim_wanted: answer.claim_wanted,
    })
}

/// A command. Whether the cluster has these shards is the ledger's to know.
pub fn push(request: &rpc::ApplyAssignmentRequest) -> Result<Push, Invalid> {
    let assignment = request.assignment.as_ref().ok_or(Invalid::Missing { field: "assignment" })?;
    Ok(Push {
        cluster_id: cluster_id(&request.cluster_id)?,
        version: version(request.version)?,
        executor_id: request.executor_id.clone(),
        incarnation: request.incarnation,
        assignment: assignment.check(MAX_SHARDS)?,
    })
}

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Status {
        rpc::refusal(Code::InvalidArgument, reason::INVALID_ARGUMENT, invalid.to_string(), &[])
    }
}

impl From<PushRefusal> for Status {
    fn from(refusal: PushRefusal) -> Status {
        let (code, reason, metadata) = match &refusal {
            PushRefusal::WrongIncarnation { id, incarnation, .. } => (
                Code::FailedPrecondition,
                reason::WRONG_INCARNATION,
                vec![("executor_id", id.to_string()), ("incarnation", incarnation.to_string())],
            ),
            PushRefusal::WrongCluster { actual, .. } => {
                (Code::FailedPrecondition, reason::WRONG_CLUSTER, vec![("cluster_id", actual.to_string())])
            }
            PushRefusal::StaleTerm { version, mark } => {
                (Code::FailedPrecondition, reason::STALE_TERM, vec![("version", version.to_string()), ("mark", mark.to_string())])
            }
            PushRefusal::LeaseOver => (Code::FailedPrecondition, reason::LEASE_OVER, vec![]),
            PushRefusal::NotReady => (Code::Unavailable, reason::NOT_READY, vec![]),
            PushRefusal::Stopping => (Code::Unavailable, reason::STOPPING, vec![]),
            PushRefusal::NoSuchShard { .. } => (Code::InvalidArgument, reason::INVALID_ARGUMENT, vec![]),
        };
        rpc::refusal(code, reason, refusal.to_string(), &metadata)
    }
}

pub(super) fn cluster_id(text: &str) -> Result<ClusterId, Invalid> {
    text.parse().map_err(|_| Invalid::ClusterId { value: text.chars().take(100).collect() })
}

pub(super) fn version(version: Option<rpc::Version>) -> Result<Version, Invalid> {
    let version = version.ok_or(Invalid::Missing { field: "version" })?;
    in_range("term", version.term, 1, MAX_NUMBER)?;
    in_range("revision", version.revision, 0, MAX_NUMBER)?;
    Ok(version.into())
}

pub(super) fn in_range(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), Invalid> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(Invalid::Range { field, value, least, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> rpc::LeaseAnswer {
        rpc::LeaseAnswer {
            cluster_id: uuid::Uuid::nil().to_string(),
            version: Some(rpc::Version { term: 1, revision: 2 }),
            number_of_shards: 4,
            lease_ttl_ms: 1000,
            assignment: Some(rpc::Holdings { shards: vec![0, 3], epochs: vec![7, 7] }),
            claim_wanted: false,
        }
    }

    #[test]
    fn an_answer_that_breaks_a_rule_is_refused_with_the_value_and_the_rule() {
        assert!(answer(&good()).is_ok());
        let broken = |change: fn(&mut rpc::LeaseAnswer)| {
            let mut message = good();
            change(&mut message);
            answer(&message).map(|_| ()).map_err(|invalid| invalid.to_string())
        };
        let refusal = |text: &str| Err(text.to_owned());
        assert_eq!(broken(|m| m.cluster_id = "x".into()), refusal("cluster_id \"x\" is no UUID"));
        assert_eq!(broken(|m| m.version = None), refusal("version is missing"));
        assert_eq!(
            broken(|m| m.version = Some(rpc::Version { term: u64::MAX, revision: 1 })),
            refusal("term 18446744073709551615 is refused: it must be 1 to 4611686018427387904")
        );
        assert_eq!(broken(|m| m.lease_ttl_ms = 0), refusal("lease_ttl_ms 0 is refused: it must be 1 to 86400000"));
        assert_eq!(broken(|m| m.number_of_shards = 0), refusal("number_of_shards 0 is refused: it must be 1 to 4194304"));
        assert_eq!(broken(|m| m.number_of_shards = 3), refusal("shard 3 does not exist: there are 3, counted from 0"));
    }
}
