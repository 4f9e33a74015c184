//! Who should own what. Deterministic, idempotent, with the fewest moves; says why it did not do more.
//!
//! Let N' be the number of shards whose home is no [`Role::Keeps`] member, w the weight of a [`Role::Takes`] member and W the sum of
//! those weights. The member's fair share is f = N'·w/W, and it rests with no fewer than `floor(f) - floor(f·t)` and no more than
//! `ceil(f) + floor(f·t)` shards. Between these bounds nothing moves: a running shard changes its home only where one is broken.
//!
//! A pass has two halves. `share` thinks in numbers only: how many shards each member gives and gets. `seat` then picks the
//! shards. So the cost is linear in shards, with a few comparisons per shard, and n log n in members, however much has to move.
//!
//! Shards without a home and shards that leave anyway move at no price, so they go first to where they save moves: below the lower
//! bounds, then to the relatively emptiest. What then still has to move is the larger of what lies above the upper bounds and what
//! is missing below the lower ones; one move mends at most one of each, so no plan does with fewer.
//!
//! With [`Input::still`] there are no bounds: what is free is placed, and nothing else.
//!
//! [`Input::avoid`] goes before the bounds. Where it stands in the way of a seat, the pass is repeated on what it made, until a pass
//! changes nothing; since every pass but the first mends bounds and breaks none, that ends, and a plan of a plan is empty.

mod relocate;
mod report;
mod seat;
mod share;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use relocate::{Obstacle, relocate};
pub use report::{Reason, Report};

use crate::types::{ExecutorId, ShardId, Slot};

/// In [`Input::homes`]: the shard has no home.
pub const NOBODY: u32 = u32::MAX;

/// An executor as the planner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where the manager keeps it.
    pub slot: Slot,
    /// Breaks ties, so that plans do not depend on the order of slots.
    pub id: ExecutorId,
    /// 1 ..= [`MAX_WEIGHT`](crate::types::MAX_WEIGHT); what lies outside counts as the nearer end.
    pub weight: u32,
    /// What may happen to it.
    pub role: Role,
}

/// What may happen to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes its fair share.
    Takes,
    /// Keeps what it has, and gets nothing: cordoned, suspect, or not heard by this leader yet.
    Keeps,
    /// Gives up everything, as long as somebody can take it.
    Leaves,
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// In any order, each slot once. Of two that take shards under one id, the lower slot goes first.
    pub members: &'a [Member],
    /// For each shard an index into `members`: its owner, or where it is on its way to; or [`NOBODY`]. An index without a member
    /// counts as [`NOBODY`].
    pub homes: &'a [u32],
    /// t: how far from its fair share a member may rest, 0 ..= 1, with nine digits after the point. What lies outside counts as the
    /// nearer end.
    pub threshold: f64,
    /// Shards that must not go to a certain slot, unless nobody else can take them: that executor did not start them. One that
    /// has its home there already may stay.
    pub avoid: &'a BTreeMap<ShardId, Slot>,
    /// Running shards stay where they are, whatever the bounds say: only those without a home, and those that leave, get one. Each goes
    /// to the relatively emptiest.
    pub still: bool,
}

/// What should change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Ascending by shard.
    pub moves: Vec<Move>,
}

/// One shard gets a new home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which.
    pub shard: ShardId,
    /// Its new home: an index into [`Input::members`].
    pub to: u32,
}

/// Between how many shards a member rests: nothing moves to or from it for balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// No fewer.
    pub lower: u32,
    /// No more.
    pub upper: u32,
}

/// The bounds of each of [`Input::members`], in their order; `None` where it takes no shards. They depend on how many shards are on
/// [`Role::Keeps`] members, and on nothing else about [`Input::homes`].
pub fn bounds(input: &Input) -> Vec<Option<Bounds>> {
    let tally = Tally::of(input.members, input.homes);
    let mut bounds = vec![None; input.members.len()];
    for share in share::shares(input, &tally) {
        bounds[share.member as usize] = Some(Bounds { lower: share.lower, upper: share.upper });
    }
    bounds
}

/// Makes a plan.
///
/// Its moves name only members that take shards. It depends neither on the order of [`Input::members`] nor on their slots, and a
/// plan made from its outcome moves nothing. Unless running shards stay, the bounds hold after it wherever [`Input::avoid`] does not
/// stand in the way; where it does, fewer moves might do.
pub fn plan(input: &Input) -> (Plan, Report) {
    let mut homes = input.homes.to_vec();
    let mut tally = Tally::of(input.members, &homes);
    let mut shares = share::shares(input, &tally);
    // No fewer than the moves: a shard may get a better seat in a later pass.
    let mut seated = 0;
    if !shares.is_empty() {
        let avoided = seat::Avoided::of(input, &shares);
        loop {
            let free = tally.free(input.members);
            if input.still {
                share::fill(&mut shares, free, |_| u32::MAX);
            } else {
                share::balance(&mut shares, free);
            }
            let outcome = seat::seat(input.members, &mut homes, &mut tally, &mut shares, &avoided);
            share::recount(&mut shares, &tally);
            seated += outcome.seated as usize;
            if !outcome.stuck || outcome.seated == 0 {
                break;
            }
        }
    }
    let changed = input.homes.iter().zip(&homes).zip(0..).filter(|((before, after), _)| before != after);
    let mut moves = Vec::with_capacity(seated);
    moves.extend(changed.map(|((_, &to), shard)| Move { shard: ShardId(shard), to }));
    let plan = Plan { moves };
    let report = report::report(input, &plan, &shares, &tally);
    (plan, report)
}

/// How many shards have their home where.
struct Tally {
    /// By member; behind them all those without a home.
    shards: Vec<u32>,
}

impl Tally {
    fn of(members: &[Member], homes: &[u32]) -> Tally {
        let mut shards = vec![0; members.len() + 1];
        for &home in homes {
            shards[place(members, home)] += 1;
        }
        Tally { shards }
    }

    /// A shard gets a new home.
    fn rehome(&mut self, members: &[Member], home: &mut u32, to: u32) {
        self.shards[place(members, *home)] -= 1;
        self.shards[place(members, to)] += 1;
        *home = to;
    }

    /// Shards whose home is a member of this role.
    fn at(&self, members: &[Member], role: Role) -> u32 {
        members.iter().zip(&self.shards).filter(|(member, _)| member.role == role).map(|(_, shards)| shards).sum()
    }

    /// Shards without a home.
    fn nowhere(&self) -> u32 {
        self.shards[self.shards.len() - 1]
    }

    /// Shards that need a home, or another one, whatever the bounds say.
    fn free(&self, members: &[Member]) -> u32 {
        self.nowhere() + self.at(members, Role::Leaves)
    }
}

/// Where in lists by member a home stands: homes without a member come behind them all.
fn place(members: &[Member], home: u32) -> usize {
    members.len().min(home as usize)
}
