//! Who should own what. Deterministic, idempotent, with the fewest moves; says why it did not do more.

use std::collections::BTreeMap;

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
    /// 1 ..= 1000.
    pub weight: u32,
    /// What may happen to it.
    pub role: Role,
}

/// What may happen to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes its fair share.
    Takes,
    /// Keeps what it has, and gets nothing: cordoned, or suspect.
    Keeps,
    /// Gives up everything, as long as somebody can take it.
    Leaves,
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// In any order, each slot once.
    pub members: &'a [Member],
    /// For each shard an index into `members`: its owner, or where it is on its way to; or [`NOBODY`].
    pub homes: &'a [u32],
    /// t: how far from its fair share a member may rest, 0 ..= 1.
    pub threshold: f64,
    /// Shards that must not go to a certain slot, unless nobody else can take them: that executor did not start them.
    pub avoid: &'a BTreeMap<ShardId, Slot>,
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

/// What a plan does, and why it does not do more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Shards without a home that get one.
    pub placed: u32,
    /// Shards that change their home.
    pub moved: u32,
}

impl Report {
    /// For people, a line for each thing worth knowing; empty where all is at rest.
    pub fn lines(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Makes a plan.
pub fn plan(_input: &Input) -> (Plan, Report) {
    (Plan::default(), Report::default())
}
