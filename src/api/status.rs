//! The only place where refusals and failures become gRPC statuses. docs/protocol.md lists them all.

use std::time::Duration;

use tonic::{Code, Status};

use crate::api::Invalid;
use crate::assignment::command::Refusal;
use crate::coordinator::Failure;
use crate::rpc::{self, reason, refusal};

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Status {
        refusal(Code::InvalidArgument, reason::INVALID_ARGUMENT, invalid.to_string(), &[("field", invalid.field.to_owned())])
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Status {
        match failure {
            Failure::Refused(refusal) => refusal.into(),
            Failure::Stopping => stopping(),
            Failure::Cut => unsettled(reason::STOPPING, &failure),
            Failure::TooSlow(_) => unsettled(reason::STORE_UNAVAILABLE, &failure),
        }
    }
}

impl From<Refusal> for Status {
    fn from(refused: Refusal) -> Status {
        let message = refused.to_string();
        match refused {
            Refusal::Superseded { id, incarnation } => {
                let metadata = [("executor_id", id.to_string()), ("incarnation", incarnation.to_string())];
                refusal(Code::FailedPrecondition, reason::SUPERSEDED, message, &metadata)
            }
            Refusal::UnknownExecutor { id } => {
                refusal(Code::NotFound, reason::UNKNOWN_EXECUTOR, message, &[("executor_id", id.to_string())])
            }
            Refusal::WrongCluster { named, actual } => {
                let metadata = [("cluster_id", actual.to_string()), ("named", named.to_string())];
                refusal(Code::FailedPrecondition, reason::WRONG_CLUSTER, message, &metadata)
            }
            Refusal::LeaseEnding { id } => {
                refusal(Code::Aborted, reason::LEASE_ENDING, message, &[("executor_id", id.to_string())])
            }
            Refusal::Removed { id } => {
                refusal(Code::FailedPrecondition, reason::REMOVED, message, &[("executor_id", id.to_string())])
            }
            Refusal::NotNow(_) => refusal(Code::FailedPrecondition, reason::NOT_NOW, message, &[]),
            Refusal::NotReady => refusal(Code::Unavailable, reason::NOT_READY, message, &[]),
            Refusal::InvalidArgument(_) => refusal(Code::InvalidArgument, reason::INVALID_ARGUMENT, message, &[]),
            Refusal::StoreUnavailable => refusal(Code::Unavailable, reason::STORE_UNAVAILABLE, message, &[]),
            Refusal::LeadershipLost => refusal(Code::Unavailable, reason::LEADERSHIP_LOST, message, &[]),
        }
    }
}

/// Nobody knows what became of it.
fn unsettled(reason: &str, failure: &Failure) -> Status {
    let (name, value) = rpc::UNSETTLED;
    refusal(Code::Unavailable, reason, failure.to_string(), &[(name, value.to_owned())])
}

/// This manager takes in nothing new.
pub(super) fn stopping() -> Status {
    refusal(Code::Unavailable, reason::STOPPING, Failure::Stopping.to_string(), &[])
}

/// The first state of this leadership is not durable yet.
pub(super) fn not_ready() -> Status {
    Refusal::NotReady.into()
}

/// A watcher left what it was told where it was, for this long.
pub(super) fn slow_watcher(patience: Duration) -> Status {
    let message =
        format!("this watcher has not taken what it was told for {patience:?}: watch again, from the version that you have");
    refusal(Code::ResourceExhausted, reason::SLOW_WATCHER, message, &[])
}

/// The coordinator answered with another kind of answer than the call has: a mistake of ours.
pub(super) fn unexpected() -> Status {
    Status::internal("the engine answered with something that this call does not know")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::reason_of;
    use crate::types::{ClusterId, ExecutorId, Incarnation};

    /// Every refusal, with the code and reason that docs/protocol.md states; the table there is held against this list.
    #[test]
    fn every_refusal_has_its_code_and_reason_as_documented() {
        let id: ExecutorId = "a".parse().unwrap();
        let cluster = ClusterId(uuid::Uuid::from_u128(1));
        let cases: Vec<(Status, Code, &str, &str)> = vec![
            (
                Refusal::Superseded { id: id.clone(), incarnation: Incarnation(3) }.into(),
                Code::FailedPrecondition,
                "FAILED_PRECONDITION",
                "SUPERSEDED",
            ),
            (Refusal::UnknownExecutor { id: id.clone() }.into(), Code::NotFound, "NOT_FOUND", "UNKNOWN_EXECUTOR"),
            (
                Refusal::WrongCluster { named: cluster, actual: cluster }.into(),
                Code::FailedPrecondition,
                "FAILED_PRECONDITION",
                "WRONG_CLUSTER",
            ),
            (Refusal::Removed { id: id.clone() }.into(), Code::FailedPrecondition, "FAILED_PRECONDITION", "REMOVED"),
            (Refusal::NotNow("x".to_owned()).into(), Code::FailedPrecondition, "FAILED_PRECONDITION", "NOT_NOW"),
            (Refusal::LeaseEnding { id }.into(), Code::Aborted, "ABORTED", "LEASE_ENDING"),
            (Refusal::NotReady.into(), Code::Unavailable, "UNAVAILABLE", "NOT_READY"),
            (Refusal::InvalidArgument("x".to_owned()).into(), Code::InvalidArgument, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
            (Refusal::StoreUnavailable.into(), Code::Unavailable, "UNAVAILABLE", "STORE_UNAVAILABLE"),
            (Refusal::LeadershipLost.into(), Code::Unavailable, "UNAVAILABLE", "LEADERSHIP_LOST"),
            (Failure::Stopping.into(), Code::Unavailable, "UNAVAILABLE", "STOPPING"),
            (Failure::Cut.into(), Code::Unavailable, "UNAVAILABLE", "STOPPING"),
            (Failure::TooSlow(Duration::from_secs(1)).into(), Code::Unavailable, "UNAVAILABLE", "STORE_UNAVAILABLE"),
            (slow_watcher(Duration::from_secs(1)), Code::ResourceExhausted, "RESOURCE_EXHAUSTED", "SLOW_WATCHER"),
            (
                Invalid { field: "weight", problem: "x".to_owned() }.into(),
                Code::InvalidArgument,
                "INVALID_ARGUMENT",
                "INVALID_ARGUMENT",
            ),
        ];
        for (failure, unsettled) in
            [(Failure::Stopping, false), (Failure::Cut, true), (Failure::TooSlow(Duration::from_secs(1)), true)]
        {
            assert_eq!(rpc::is_unsettled(&failure.clone().into()), unsettled, "{failure}");
        }
        let document = include_str!("../../docs/protocol.md");
        for (status, code, code_name, reason) in cases {
            assert_eq!((status.code(), reason_of(&status).as_deref()), (code, Some(reason)));
            let row = format!("| `{reason}` | `{code_name}` |");
            assert!(document.contains(&row), "docs/protocol.md has no row that begins with {row}");
        }
    }
}
