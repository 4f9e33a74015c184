//! The rules of the lease protocol, as data: each can be taken out of the model, and then a promise must break within its scope, while
//! the same scope keeps all promises with the rule in.
//!
//! They are taken out around the real engine and the real ledger, so nothing of the product is built differently. Of L1, L3 and L6,
//! what is taken out is the half that can be reached from outside: the refusal of a renewal, the answer below the mark, the lease that a
//! stopping shard keeps, and that this is the one from before the answer that says so. The other halves stand in the unit tests of
//! `engine` and `ledger`.

use crate::scopes::Bounds;
use crate::world::Scene;

/// A rule that can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// L1: whose lease is being ended is not renewed.
    ExpiryFirst,
    /// L2: only who has seen the release confirms it.
    Marks,
    /// L3: an answer below the mark renews nothing.
    AnswersBelowTheMark,
    /// L4: nothing is renewed past the belief deadline.
    Belief,
    /// L5: an unknown outcome is not a failure.
    UnknownOutcomes,
    /// L6: a shard that is being stopped keeps the lease that it had.
    ReleaseKeepsItsLease,
    /// L6: an answer that lacks a shard leaves it the lease from before. It takes a lease that is longer than the margin twice: the
    /// call has to be sent that long after the release, and in time.
    AnswersWithdrawFirst,
    /// L7: an executor counts from sending.
    CountsFromSending,
    /// P1: the store compares the fence.
    Fence,
    /// P2: nothing is told before the commit is durable.
    DurableFirst,
}

/// A rule, what breaks without it (how the failure begins), and where that is looked for.
pub struct Row {
    pub guard: Guard,
    pub rule: &'static str,
    pub promise: &'static str,
    pub scene: Scene,
    pub bounds: Bounds,
}

const fn row(guard: Guard, rule: &'static str, promise: &'static str, scene: Scene, bounds: Bounds) -> Row {
    Row { guard, rule, promise, scene, bounds }
}

const LEAST: Bounds = Bounds::LEAST;

pub const TABLE: [Row; 10] = [
    row(Guard::ExpiryFirst, "L1", "P3", Scene::Held, Bounds { ticks: 2, ..LEAST }),
    row(Guard::Marks, "L2", "P3", Scene::Granting, Bounds { wishes: 1, calls: 2, ..LEAST }),
    row(Guard::AnswersBelowTheMark, "L3", "P3", Scene::Held, Bounds { wishes: 1, ..LEAST }),
    row(Guard::Belief, "L4", "P3", Scene::TakenOver, Bounds { ticks: 2, ..LEAST }),
    row(Guard::UnknownOutcomes, "L5", "L5", Scene::Held, Bounds { wishes: 1, doubts: 1, ..LEAST }),
    row(Guard::ReleaseKeepsItsLease, "L6", "P3", Scene::Releasing, Bounds { ticks: 2, hangs: true, ..LEAST }),
    row(
        Guard::AnswersWithdrawFirst,
        "L6",
        "P3",
        Scene::Releasing,
        Bounds { lease: 3, ticks: 4, commands: 0, hangs: true, ..LEAST },
    ),
    row(Guard::CountsFromSending, "L7", "P3", Scene::Held, Bounds { ticks: 2, ..LEAST }),
    row(Guard::Fence, "P1", "P1", Scene::Held, Bounds { ticks: 1, wishes: 1, elections: 1, calls: 0, ..LEAST }),
    row(Guard::DurableFirst, "P2", "P2", Scene::Held, Bounds { wishes: 1, ..LEAST }),
];
