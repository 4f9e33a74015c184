//! The guards of the promises, as data: each can be taken out, and then the simulation must go red.
//!
//! They are taken out in the model around the real engine and the real ledger, so nothing of the product is built differently. What
//! can only be taken out inside of them stands in their own unit tests:
//!
//! - **P2** inside the engine: that a draft is not in force before its commit is (`engine::settle`).
//! - **P4**, that a grant's epoch is above the recorded one: `ShardRecord::grant`. Here the step checker would see it.
//! - **L1** where the end of a lease is claimed, **L6** where the time of a release begins: `engine::turn`, `engine::settle`. Here
//!   their effects are taken out: the renewal that is refused, the lease that a stopping shard keeps.
//! - **L5**, attempts that are never reused: the second line behind a commit whose outcome is always settled first; alone it is
//!   never missed.

/// What holds a promise up. Taken out in the model around the real engine and the real ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// P1: the store compares the fence.
    Fence,
    /// P1: the store compares the revision.
    Revision,
    /// P2: nothing is told before the commit is durable.
    DurableFirst,
    /// P3: the outcome of a command proves nothing until it is known.
    OutcomesProveNothing,
    /// P3, L1: whose lease is being ended is not renewed.
    ExpiryFirst,
    /// P3, L2: only who has seen the release confirms it.
    Marks,
    /// L3: an answer below the mark renews nothing.
    AnswersBelowTheMark,
    /// P3, L4: nothing is renewed past the belief deadline.
    Belief,
    /// L5: an unknown outcome is not a failure.
    UnknownOutcomes,
    /// P3, L6: a shard that is being stopped keeps the lease that it had.
    ReleaseKeepsItsLease,
    /// P4, L7: the executor counts from sending.
    CountsFromSending,
    /// L8: a new leader waits for the leases of the one before.
    NewLeaderWaits,
    /// P3, L13: a new incarnation waits for the old one.
    IncarnationsWait,
    /// P3: an executor ends its work when its lease is over.
    SelfFence,
    /// P5: commands below the mark bounce.
    CommandsBelowTheMark,
    /// P6: a commit that failed is planned anew.
    FailedCommits,
    /// P7: a reader drops what is older than what it has.
    Reader,
    /// P10, L9: a late turn blames itself.
    Stalls,
}

/// A guard, what goes red without it (how the failure begins), and within how many seeds.
pub struct Row {
    pub guard: Guard,
    pub promise: &'static str,
    pub within: u64,
}

const fn row(guard: Guard, promise: &'static str, within: u64) -> Row {
    Row { guard, promise, within }
}

pub const TABLE: [Row; 18] = [
    row(Guard::Fence, "P1", 1000),
    row(Guard::Revision, "P1", 100),
    row(Guard::DurableFirst, "P2", 100),
    row(Guard::OutcomesProveNothing, "P3", 100),
    row(Guard::ExpiryFirst, "P3", 100),
    row(Guard::Marks, "P3", 100),
    row(Guard::AnswersBelowTheMark, "L3", 100),
    row(Guard::Belief, "P3", 1000),
    row(Guard::UnknownOutcomes, "L5", 100),
    row(Guard::ReleaseKeepsItsLease, "P3", 100),
    row(Guard::CountsFromSending, "P4", 1000),
    row(Guard::NewLeaderWaits, "L8", 100),
    row(Guard::IncarnationsWait, "P3", 100),
    row(Guard::SelfFence, "P3", 100),
    row(Guard::CommandsBelowTheMark, "P5", 100),
    row(Guard::FailedCommits, "P6", 100),
    row(Guard::Reader, "P7", 100),
    row(Guard::Stalls, "P10", 1000),
];
