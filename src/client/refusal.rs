//! `NOT_OWNER`: how an executor refuses a caller that came to the wrong one, and what the caller learns from that.

use std::sync::Arc;

use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::table::{Owner, Route};
use crate::rpc::{ERROR_DOMAIN, reason, refusal};
use crate::types::{Epoch, Incarnation, MAX_NUMBER, ShardId};

/// An executor does not own the shard that it was asked for. As a [`Status`] it is a `FAILED_PRECONDITION` with the reason
/// `NOT_OWNER`; its metadata names the shard and, as far as the executor knows, the owner:
/// `executor_id`, `incarnation`, `endpoint`, `epoch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotOwner {
    /// The shard that was asked for.
    pub shard: ShardId,
    /// Who owns it, as far as known.
    pub current: Option<Route>,
}

impl NotOwner {
    /// Reads it from a status; `None` where that says something else, or names no shard. An owner that is not named in full, or by
    /// values that break a rule, counts as not known.
    pub fn of(status: &Status) -> Option<NotOwner> {
        let info = status.get_details_error_info()?;
        if info.domain != ERROR_DOMAIN || info.reason != reason::NOT_OWNER {
            return None;
        }
        let field = |name: &str| info.metadata.get(name);
        let shard = ShardId(field("shard")?.parse().ok()?);
        let current = || {
            let epoch: u64 = field("epoch")?.parse().ok()?;
            let owner = Owner {
                id: field("executor_id")?.parse().ok()?,
                incarnation: Incarnation(field("incarnation")?.parse().ok()?),
                endpoint: field("endpoint").filter(|endpoint| !endpoint.is_empty())?.clone(),
            };
            (1..=MAX_NUMBER).contains(&epoch).then(|| Route { shard, epoch: Epoch(epoch), owner: Arc::new(owner) })
        };
        Some(NotOwner { shard, current: current() })
    }
}

impl From<NotOwner> for Status {
    fn from(refused: NotOwner) -> Status {
        let NotOwner { shard, current } = refused;
        let mut metadata = vec![("shard", shard.to_string())];
        let message = match current {
            None => format!("this executor does not own shard {shard}"),
            Some(Route { epoch, owner, .. }) => {
                let message = format!("this executor does not own shard {shard}: {} does, at epoch {epoch}", owner.id);
                metadata.extend([
                    ("executor_id", owner.id.to_string()),
                    ("incarnation", owner.incarnation.to_string()),
                    ("endpoint", owner.endpoint.clone()),
                    ("epoch", epoch.to_string()),
                ]);
                message
            }
        };
        refusal(Code::FailedPrecondition, reason::NOT_OWNER, message, &metadata)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rpc::reason_of;

    fn route() -> Route {
        let owner = Owner { id: "a".parse().unwrap(), incarnation: Incarnation(5), endpoint: "http://h:1".to_owned() };
        Route { shard: ShardId(7), epoch: Epoch(90), owner: Arc::new(owner) }
    }

    #[test]
    fn a_refusal_carries_the_owner_and_its_epoch_to_the_caller() {
        for current in [Some(route()), None] {
            let refused = NotOwner { shard: ShardId(7), current };
            let status = Status::from(refused.clone());
            assert_eq!((status.code(), reason_of(&status).as_deref()), (Code::FailedPrecondition, Some("NOT_OWNER")));
            assert_eq!(NotOwner::of(&status), Some(refused));
        }
        let row = "| `NOT_OWNER` | `FAILED_PRECONDITION` |";
        assert!(include_str!("../../docs/protocol.md").contains(row), "docs/protocol.md has no row that begins with {row}");
    }

    #[test]
    fn other_refusals_and_owners_that_are_none_are_told_apart() {
        assert_eq!(NotOwner::of(&Status::unavailable("gone")), None);
        assert_eq!(NotOwner::of(&refusal(Code::NotFound, reason::UNKNOWN_EXECUTOR, "", &[("shard", "7".to_owned())])), None);
        let metadata = |epoch: &str, id: &str| {
            let values =
                [("shard", "7"), ("executor_id", id), ("incarnation", "5"), ("endpoint", "http://h:1"), ("epoch", epoch)];
            let values = values.map(|(name, value)| (name, value.to_owned()));
            NotOwner::of(&refusal(Code::FailedPrecondition, reason::NOT_OWNER, "", &values)).unwrap().current
        };
        assert_eq!(metadata("90", "a"), Some(route()));
        for (epoch, id) in [("0", "a"), ("18446744073709551615", "a"), ("x", "a"), ("90", "a b")] {
            assert_eq!(metadata(epoch, id), None, "{epoch} {id}");
        }
    }
}
