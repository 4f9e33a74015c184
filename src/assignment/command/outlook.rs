//! The answers to operators' questions: what would be, and why things are as they are.

use super::Snapshot;
use crate::types::{ExecutorId, ShardId, Version};

/// What would move, if. See `PlanChangeResponse` in proto/.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The state that it was made from.
    pub version: Version,
    /// Everybody who counts, by id; those who would join included.
    pub executors: Vec<Prospect>,
    /// Ascending by shard.
    pub moves: Vec<ForecastMove>,
    /// How many of the moves are of each kind.
    pub kinds: Kinds,
    /// How many shards nobody would own.
    pub unplaced: u32,
    /// Why not more would be done: a line each.
    pub notes: Vec<String>,
}

/// Why shards would move: each counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Nobody owns them.
    pub placed: u32,
    /// Their owner is drained, leaves, or would be gone.
    pub evacuated: u32,
    /// For balance alone.
    pub balance: u32,
}

/// See [`Forecast`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prospect {
    /// Who.
    pub id: ExecutorId,
    /// What it has, or is on its way to it.
    pub before: u32,
    /// What it would come to.
    pub after: u32,
    /// Between these nothing would move for balance; `None` where it would take no shards.
    pub bounds: Option<(u32, u32)>,
}

/// See [`Forecast`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForecastMove {
    /// Which.
    pub shard: ShardId,
    /// An index into [`Forecast::executors`]; `None` where nobody owns the shard.
    pub from: Option<u32>,
    /// An index into [`Forecast::executors`].
    pub to: u32,
}

/// How a shard is, and why. See `ExplainShardResponse` in proto/.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The state that it was made from.
    pub snapshot: Snapshot,
    /// Which.
    pub shard: ShardId,
    /// When this leader made the grant that is in force, in Unix milliseconds, to the second; `None` where nobody owns the shard, or
    /// where it was granted before its time.
    pub since_unix_ms: Option<u64>,
    /// Sentences, oldest first.
    pub history: Vec<String>,
    /// What has to happen before it is served where it should be; empty where it is.
    pub waits_for: Vec<String>,
    /// Where it is to go.
    pub destination: Option<ExecutorId>,
}
