//! What the engine is told.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::assignment::lease::margin;
use crate::assignment::record::Wish;
use crate::holdings::Holdings;
use crate::types::{ClusterId, ExecutorId, Incarnation, Revision, ShardId, Slot, Token, Version};

/// Names a call that waits for a [`Reply`](crate::assignment::command::Reply); given by the coordinator, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Something that happened. Only [`Event::Turn`] makes the engine plan and commit.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An executor wants to be known.
    Register(RequestId, Registration),
    /// An executor renews its lease.
    Renew(RequestId, Renewal),
    /// An executor has stopped everything and is gone.
    Deregister(RequestId, Departure),
    /// An operator wants something of an executor id.
    Wish(RequestId, ExecutorId, Wish),
    /// An operator wants something else. Answered once it is durable.
    Demand(RequestId, Demand),
    /// An operator asks something. Answered at once; nothing changes.
    Ask(RequestId, Question),
    /// A reader of this cluster has seen this version (L10). Answered with [`Answer::Current`](crate::assignment::command::Answer).
    Heard(RequestId, Version),
    /// A caller wants to know how things are. Answered at once.
    Inspect(RequestId),
    /// A command was answered.
    Applied {
        /// Whose link reports.
        slot: Slot,
        /// The incarnation that the link is for.
        incarnation: Incarnation,
        /// The executor's mark after the command (L2).
        mark: Version,
        /// Everything that it still holds.
        held: Holdings,
    },
    /// A health probe came back.
    Probed {
        /// Whose.
        slot: Slot,
        /// The incarnation that the probe is for.
        incarnation: Incarnation,
        /// What it said.
        healthy: bool,
    },
    /// Executors can reach this leader from now on: their leases begin (L8).
    PortOpened,
    /// The commit in flight is durable.
    Committed {
        /// The revision that it made.
        revision: Revision,
    },
    /// The commit in flight certainly did not land and never will (L5); the leadership is still held.
    CommitFailed,
    /// A batch of events ends: end what is over, plan, and commit if there is something to commit. Comes after every batch, and
    /// no later than [`Engine::next_turn`](crate::assignment::Engine::next_turn) says; if later, see L9.
    Turn,
}

/// See `RegisterRequest` in proto/; every field is valid by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Who.
    pub id: ExecutorId,
    /// Which process.
    pub incarnation: Incarnation,
    /// Where it serves, as `http://host:port`.
    pub endpoint: String,
    /// 1 ..= [`MAX_WEIGHT`](crate::types::MAX_WEIGHT).
    pub weight: u32,
    /// The cluster that it belonged to before (L12), and its mark there.
    pub before: Option<(ClusterId, Version)>,
}

/// See `RenewLeaseRequest` in proto/; every field is valid by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Who.
    pub id: ExecutorId,
    /// Which process.
    pub incarnation: Incarnation,
    /// The cluster that it thinks it talks to.
    pub cluster_id: ClusterId,
    /// Highest version that it accepted (L2).
    pub mark: Version,
    /// What it holds.
    pub claim: Claim,
    /// It wants to leave.
    pub leaving: bool,
    /// Epochs at which its storage refused it (L11).
    pub storage_epochs: Holdings,
}

/// What operators want, besides a [`Wish`]. Every field is valid by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Demand {
    /// The executor leaves the cluster, and its id is barred. See [`Wish::Remove`].
    Remove {
        /// Who.
        id: ExecutorId,
        /// The operator's word that its process is gone (P3): its shards are free at once.
        dead: bool,
    },
    /// A removal ends, whether it is under way or over.
    Admit(ExecutorId),
    /// Shards are to move to an executor. Refused as a whole where the balance would be broken.
    Move {
        /// Each once, ascending, below the cluster's number of shards.
        shards: Vec<ShardId>,
        /// Where to.
        to: ExecutorId,
    },
    /// Nothing moves for balance for a while; takes the place of such a pause that is in force.
    Pause {
        /// From when it is drafted; within [`PAUSE_LENGTHS`].
        length: Duration,
        /// Who asks, for people; may be empty.
        by: String,
        /// Why, for people; may be empty.
        reason: String,
    },
    /// Such a pause ends now.
    Resume,
}

/// How long rebalancing may be paused at once.
pub const PAUSE_LENGTHS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 3600);

/// What operators ask. Every field is valid by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// What would move, if.
    Plan(WhatIf),
    /// How a shard is. Below the cluster's number of shards.
    Explain(ShardId),
}

/// A change that is thought of. An id stands in one of the lists only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhatIf {
    /// Executors that are not known, with their weights.
    pub join: Vec<(ExecutorId, u32)>,
    /// Executors that would be gone.
    pub leave: Vec<ExecutorId>,
    /// Executors that would be drained.
    pub drain: Vec<ExecutorId>,
}

/// What an executor says that it holds (L11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// In full.
    Full(Holdings),
    /// By [digest](crate::holdings::digest_of).
    Digest(u64),
}

/// See `DeregisterRequest` in proto/.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Who.
    pub id: ExecutorId,
    /// Which process.
    pub incarnation: Incarnation,
    /// The cluster that it thinks it talks to.
    pub cluster_id: ClusterId,
}

/// What the engine is configured with.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The executor lease L.
    pub lease_ttl: Duration,
    /// How long joins are gathered before shards move to the newcomers.
    pub settle_time: Duration,
    /// How long after executors left that had shards running shards are not moved for balance: others may be about to take their
    /// place, or to leave too. Not for more than [`MOST_CALM_TIMES`] times as long in a row.
    pub calm_time: Duration,
    /// 0 ..= 1; see [`planner`](crate::assignment::planner).
    pub rebalance_threshold: f64,
    /// The deployment guarantees that no two processes share an executor id: a new incarnation is proof that the old is gone (L13).
    pub exclusive_ids: bool,
    /// The longest time between two [`Event::Turn`]s.
    pub turn_interval: Duration,
    /// Added to the first leases of a leadership, where the store's way of electing makes it necessary (L8).
    pub takeover_grace: Duration,
    /// The most pages that one commit may write, `meta` not counted.
    pub max_pages_per_commit: usize,
}

/// After so many calm times in a row shards are moved for balance once, though executors go on leaving.
pub const MOST_CALM_TIMES: u32 = 10;

impl Settings {
    /// See [`margin`].
    pub fn margin(&self) -> Duration {
        margin(self.lease_ttl)
    }
}

/// What a new leadership brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// Identifies the leadership in `meta` (L5).
    pub token: Token,
    /// The wall clock, in Unix milliseconds: a lower bound for the new term.
    pub unix_ms: u64,
    /// For a store that is still empty.
    pub new_cluster: ClusterId,
    /// As configured; equals the stored number where there is one.
    pub number_of_shards: u32,
}
