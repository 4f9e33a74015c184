//! What a manager's refusal of a call means to an executor. No I/O.

use super::ledger::{Kind, Verdict};
use crate::rpc::reason;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It speaks of the incarnation: for [`Ledger::refused`](super::ledger::Ledger::refused).
    Verdict(Verdict),
    /// Who is on the way out is not known there, so there is nothing left to do.
    Gone,
    /// The registration breaks a rule, and will break it again.
    Rejected,
    /// The call came to nothing, and another may not.
    Failed(Failure),
}

/// How a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nobody said anything.
    Unanswered,
    /// A manager that cannot serve now, or serves nobody.
    Elsewhere,
    /// The leader, which may do it later.
    Later,
}

impl Meaning {
    /// Of a refusal for this reason, if it gave one, of a call of this kind, by an executor that `is_ending` or not.
    pub fn of(reason: Option<&str>, kind: Kind, is_ending: bool) -> Meaning {
        match (reason, kind) {
            (
                Some(
                    reason::SUPERSEDED
                    | reason::UNKNOWN_EXECUTOR
                    | reason::WRONG_CLUSTER
                    | reason::INVALID_ARGUMENT
                    | reason::REMOVED,
                ),
                Kind::Register | Kind::Deregister,
            ) if is_ending => Meaning::Gone,
            (Some(reason::SUPERSEDED), _) => Meaning::Verdict(Verdict::Superseded),
            (Some(reason::UNKNOWN_EXECUTOR), _) => Meaning::Verdict(Verdict::UnknownExecutor),
            (Some(reason::REMOVED), _) => Meaning::Verdict(Verdict::Removed),
            (Some(reason::WRONG_CLUSTER), Kind::Renew) => Meaning::Verdict(Verdict::WrongCluster),
            (Some(reason::INVALID_ARGUMENT), Kind::Register) => Meaning::Rejected,
            (Some(reason::LEASE_ENDING | reason::STORE_UNAVAILABLE), _) => Meaning::Failed(Failure::Later),
            (Some(_), _) => Meaning::Failed(Failure::Elsewhere),
            (None, _) => Meaning::Failed(Failure::Unanswered),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_means_something_else_to_who_is_on_the_way_out() {
        let unknown = |kind, is_ending| Meaning::of(Some(reason::UNKNOWN_EXECUTOR), kind, is_ending);
        assert_eq!(unknown(Kind::Deregister, true), Meaning::Gone);
        assert_eq!(unknown(Kind::Register, true), Meaning::Gone);
        assert_eq!(unknown(Kind::Register, false), Meaning::Verdict(Verdict::UnknownExecutor));
        assert_eq!(unknown(Kind::Renew, true), Meaning::Verdict(Verdict::UnknownExecutor));
    }

    #[test]
    fn a_removal_is_heard_from_every_call() {
        let removed = |kind, is_ending| Meaning::of(Some(reason::REMOVED), kind, is_ending);
        assert_eq!(removed(Kind::Renew, false), Meaning::Verdict(Verdict::Removed));
        assert_eq!(removed(Kind::Register, false), Meaning::Verdict(Verdict::Removed));
        assert_eq!(removed(Kind::Register, true), Meaning::Gone);
    }

    #[test]
    fn only_a_renewal_proves_that_another_cluster_is_there() {
        let foreign = |kind| Meaning::of(Some(reason::WRONG_CLUSTER), kind, false);
        assert_eq!(foreign(Kind::Renew), Meaning::Verdict(Verdict::WrongCluster));
        assert_eq!(foreign(Kind::Register), Meaning::Failed(Failure::Elsewhere));
    }

    #[test]
    fn who_may_be_answered_later_or_elsewhere_asks_there() {
        let failed = |reason| Meaning::of(reason, Kind::Renew, false);
        assert_eq!(failed(Some(reason::LEASE_ENDING)), Meaning::Failed(Failure::Later));
        assert_eq!(failed(Some(reason::NOT_READY)), Meaning::Failed(Failure::Elsewhere));
        assert_eq!(failed(None), Meaning::Failed(Failure::Unanswered));
        assert_eq!(Meaning::of(Some(reason::INVALID_ARGUMENT), Kind::Register, false), Meaning::Rejected);
    }
}
