//! The guards of the promises, as data: each can be taken out, and then the simulation must go red.
//!
//! They are taken out in the model around the real engine and the real ledger, so nothing of the product is built differently. What
//! can only be taken out inside of them stands in their own unit tests:
//!
//! - **P2** inside the engine: that a draft is not in force before its commit is (`engine::settle`).
//! - **P4**, that a grant's epoch is above the recorded one: `ShardRecord::grant`. Here the step checker would see it.
//! - **L1** where the end of a lease is claimed, **L6** where the time of a release begins: `engine::turn`, `engine::settle`. Here
//!   their effects are taken out: the renewal that is refused, the lease that a stopping shard keeps.
//! - **L12** where an executor refuses a command of another cluster: the second line behind its incarnation, which it changes with the
//!   cluster; alone it is never missed.
//! - **L12** where a leader refuses a renewal of another cluster: the second line behind the incarnation too, which is not known there.
//! - **L5**, attempts that are never reused: the second line behind a commit whose outcome is always settled first; alone it is
//!   never missed.

use shard_manager::assignment::command::Snapshot;
use shard_manager::assignment::event::Claim;
use shard_manager::holdings::Holdings;
use shard_manager::types::{Epoch, ShardId};

use crate::context::Call;

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
    /// P4, P3, L7: the executor counts from sending. What it takes for its lease may outlast the next owner's start.
    CountsFromSending,
    /// P4: a leader's term, and so its grants, begin at the wall clock, whatever the store has lost.
    TermsFromTheClock,
    /// L8: a new leader waits for the leases of the one before.
    NewLeaderWaits,
    /// L8: the larger L that is stored in `meta` is waited for.
    LongerLeases,
    /// P3, L13: a new incarnation waits for the old one.
    IncarnationsWait,
    /// P3: an executor ends its work when its lease is over.
    SelfFence,
    /// P5: commands below the mark bounce.
    CommandsBelowTheMark,
    /// P6: a commit that failed is planned anew.
    FailedCommits,
    /// P7: a reader shows what it has, so that a leader that is behind catches up first (L10), and drops what is older all the same.
    /// Either of the two holds alone.
    Reader,
    /// P10, L9: a late turn blames itself.
    Stalls,
    /// P3: over a store that lost what it had, and when a process wakes up late, the executors' storage compares epochs.
    StorageEpochs,
    /// L11: whom its storage refuses tells the manager.
    StorageRefusals,
    /// L11: who holds a shard at a higher epoch than recorded tells the manager.
    ClaimedEpochs,
    /// L10: an executor that has seen a higher version shows it.
    HigherTerms,
    /// L10: so does a reader.
    HigherTermsOfReaders,
    /// L12: who comes from another cluster says so.
    ForeignClusters,
    /// L12: a reader does not return to a cluster that it left, unless that proves that it is led.
    LeftClusters,
}

impl Guard {
    /// Takes away from a call what a guard rests on, before a leader whose newest state is `newest` gets it.
    pub fn take_out_of(self, call: &mut Call, newest: Option<&Snapshot>) {
        let Some(newest) = newest else { return };
        match (self, call) {
            (Guard::Marks, Call::Renew(renewal)) => renewal.mark = renewal.mark.max(newest.version),
            (Guard::HigherTerms, Call::Renew(renewal)) => renewal.mark = renewal.mark.min(newest.version),
            (Guard::HigherTerms | Guard::ForeignClusters, Call::Register(registration)) => {
                let is_own = |cluster_id| cluster_id == newest.state.meta.cluster_id;
                registration.before.take_if(|(cluster_id, _)| is_own(*cluster_id) == (self == Guard::HigherTerms));
            }
            (Guard::ClaimedEpochs, Call::Renew(renewal)) => {
                if let Claim::Full(held) = &mut renewal.claim {
                    *held = self.take_out_of_held(held, newest);
                }
            }
            _ => {}
        }
    }

    /// The same of what an executor says that it holds.
    pub fn take_out_of_held(self, held: &Holdings, newest: &Snapshot) -> Holdings {
        let recorded = |shard: ShardId| newest.state.shard(shard).epoch;
        let held = held.iter().filter(|(shard, _)| self != Guard::ClaimedEpochs || recorded(*shard).0 > 0);
        let lowered = |(shard, epoch): (ShardId, Epoch)| (shard, epoch.min(recorded(shard)));
        Holdings::from_pairs(held.map(|pair| if self == Guard::ClaimedEpochs { lowered(pair) } else { pair }))
    }
}

/// A guard, what goes red without it (how the failure begins), and within how many seeds. It saves time to begin where it was found
/// last; the others come after.
pub struct Row {
    pub guard: Guard,
    pub promise: &'static str,
    pub within: u64,
    pub first: u64,
}

const fn row(guard: Guard, promise: &'static str, within: u64) -> Row {
    Row { guard, promise, within, first: 0 }
}

impl Row {
    const fn from(self, first: u64) -> Row {
        Row { first, ..self }
    }
}

pub const TABLE: [Row; 27] = [
    row(Guard::Fence, "P1", 1000),
    row(Guard::Revision, "P1", 100),
    row(Guard::DurableFirst, "P2", 100),
    row(Guard::OutcomesProveNothing, "P3", 100),
    row(Guard::ExpiryFirst, "P3", 1000).from(486),
    row(Guard::Marks, "P3", 1000).from(293),
    row(Guard::AnswersBelowTheMark, "L3", 100),
    row(Guard::Belief, "P3", 1000).from(176),
    row(Guard::UnknownOutcomes, "L5", 100),
    row(Guard::ReleaseKeepsItsLease, "P3", 100),
    row(Guard::CountsFromSending, "P4", 1000).from(293),
    row(Guard::TermsFromTheClock, "P4", 100),
    row(Guard::NewLeaderWaits, "L8", 100),
    row(Guard::LongerLeases, "L8", 100),
    row(Guard::IncarnationsWait, "P3", 100),
    row(Guard::SelfFence, "P3", 100),
    row(Guard::CommandsBelowTheMark, "P5", 100),
    row(Guard::FailedCommits, "P6", 100),
    row(Guard::Reader, "P7", 1000),
    row(Guard::Stalls, "P10", 1000),
    row(Guard::StorageEpochs, "P3", 100),
    row(Guard::StorageRefusals, "P6", 1000),
    row(Guard::ClaimedEpochs, "L11", 1000),
    row(Guard::HigherTerms, "P6", 2000).from(1926),
    row(Guard::HigherTermsOfReaders, "P6", 1000).from(782),
    row(Guard::ForeignClusters, "L12", 100),
    row(Guard::LeftClusters, "L12", 1000).from(65),
];
