//! What the engine wants done.

mod outlook;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::assignment::event::RequestId;
use crate::assignment::state::{Changes, Pause, State};
use crate::holdings::Holdings;
use crate::types::{ClusterId, Epoch, ExecutorId, Incarnation, Revision, ShardId, Slot, Version};

pub use outlook::{Explanation, Forecast, ForecastMove, Kinds, Prospect};

/// Something to do, in the order in which it comes.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Make this durable. One at a time: no other comes before `Committed` or `CommitFailed`.
    Commit {
        /// The revision that it replaces; `None` where the store is empty.
        expected: Option<Revision>,
        /// What to write.
        changes: Changes,
    },
    /// This state is durable and in force: readers may see it.
    Publish(Snapshot),
    /// This incarnation counts from now on: make contact with it, and watch its health.
    Connect(Peer),
    /// Drive this executor towards this assignment; replaces what was sent before.
    Send(Assignment),
    /// The executor in this slot is no more: end its link.
    Disconnect(Slot),
    /// Answer a call. A call whose caller is gone is answered all the same.
    Reply(RequestId, Reply),
    /// For the log and the counters.
    Notice(Notice),
}

/// A durable state as readers see it. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Its place in the order of everything said.
    pub version: Version,
    /// Its content.
    pub state: Arc<State>,
}

/// One incarnation, and where to find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where the manager keeps it.
    pub slot: Slot,
    /// Who.
    pub id: ExecutorId,
    /// Which process.
    pub incarnation: Incarnation,
    /// Where it serves, as `http://host:port`.
    pub endpoint: String,
}

/// What one incarnation should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Where the manager keeps whom it is for.
    pub slot: Slot,
    /// Whom it is for.
    pub incarnation: Incarnation,
    /// The cluster that says so.
    pub cluster_id: ClusterId,
    /// The state that it was taken from.
    pub version: Version,
    /// All of it.
    pub holdings: Arc<Holdings>,
}

/// The answer to a call.
pub type Reply = Result<Answer, Refusal>;

/// See [`Reply`].
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A lease was granted or renewed.
    Lease(LeaseAnswer),
    /// It is so, since this version.
    Current(Version),
    /// How things are.
    Overview(Overview),
    /// It is so, since this version, and this many shards have to move.
    Moving(Version, u32),
    /// It is so, since this version; ends at this time, in Unix milliseconds.
    Paused(Version, u64),
    /// What would move.
    Forecast(Forecast),
    /// How a shard is.
    Explanation(Explanation),
}

/// See `LeaseAnswer` in proto/.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseAnswer {
    /// The cluster that answers.
    pub cluster_id: ClusterId,
    /// The state that the answer was taken from.
    pub version: Version,
    /// Of the cluster.
    pub number_of_shards: u32,
    /// Counted by the executor from sending the request.
    pub lease_ttl: Duration,
    /// The right assignment, where the claim differs from it.
    pub assignment: Option<Holdings>,
    /// The digest told nothing: claim in full.
    pub claim_wanted: bool,
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// This incarnation was replaced by a newer one: its process must stop for good.
    #[error("incarnation {incarnation} of executor {id} was superseded by a newer process under this id; it must stop for good")]
    Superseded {
        /// Who.
        id: ExecutorId,
        /// Which process.
        incarnation: Incarnation,
    },
    /// There is no such executor, or it is known under another incarnation.
    #[error("executor {id} is not registered")]
    UnknownExecutor {
        /// Who.
        id: ExecutorId,
    },
    /// The caller talks to another cluster.
    #[error("the request names cluster {named}, this is cluster {actual}")]
    WrongCluster {
        /// As the caller says.
        named: ClusterId,
        /// The one that it reached.
        actual: ClusterId,
    },
    /// The lease is being ended; the caller asks again and will then be told to register (L1).
    #[error("the lease of executor {id} ran out and is being ended")]
    LeaseEnding {
        /// Who.
        id: ExecutorId,
    },
    /// The first commit of this leadership is not durable yet.
    #[error("this leader is still starting")]
    NotReady,
    /// An operator removed this executor, and has not admitted it again.
    #[error("executor {id} was removed by an operator; it may come back once it is admitted again")]
    Removed {
        /// Who.
        id: ExecutorId,
    },
    /// What an operator asked for would break a rule of the assignment as it is now; says which, and what would do.
    #[error("{0}")]
    NotNow(String),
    /// A value breaks a rule.
    #[error("{0}")]
    InvalidArgument(String),
    /// The state could not be written; nothing was changed.
    #[error("the state store did not take the change; nothing was changed")]
    StoreUnavailable,
    /// The leadership's belief deadline has passed (L4).
    #[error("this process is no longer sure to lead")]
    LeadershipLost,
}

/// How things are, for operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Overview {
    /// The state in force.
    pub snapshot: Snapshot,
    /// One line for each incarnation in the state.
    pub executors: Vec<ExecutorOverview>,
    /// What the last pass did, and why not more: a line each.
    pub notes: Vec<String>,
    /// The lease that executors are given.
    pub lease_ttl: Duration,
}

/// See [`Overview`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorOverview {
    /// Where the manager keeps it.
    pub slot: Slot,
    /// Who.
    pub id: ExecutorId,
    /// Which process.
    pub incarnation: Incarnation,
    /// Where it serves.
    pub endpoint: String,
    /// How it is.
    pub state: ExecutorState,
    /// Its share.
    pub weight: u32,
    /// Shards that name it as owner, those being released included.
    pub shards: u32,
    /// Of these, those that it was told to stop.
    pub stopping: u32,
    /// Of these, those that were granted to it and that it has not been seen to hold so far.
    pub starting: u32,
    /// By the manager's clock, without the margin.
    pub lease_remaining: Duration,
}

/// How an executor is, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExecutorState {
    /// Takes shards.
    Active,
    /// Fails its health probe, did not start and keep what it was given, or was restarted over and over: gets no new shards.
    Suspect,
    /// An operator lets it get no new shards.
    Cordoned,
    /// Its shards are leaving.
    Draining,
    /// It was drained and has none left.
    Drained,
    /// An operator removes it: its shards are leaving.
    Removing,
    /// An operator removed it; its id is barred.
    Removed,
    /// Its lease will not be renewed, and its shards are not all free yet; or it is away and an operator's wish hangs on its id.
    Lapsed,
}

impl ExecutorState {
    /// All of them, in the order of the documentation.
    pub const ALL: [ExecutorState; 8] = [
        ExecutorState::Active,
        ExecutorState::Suspect,
        ExecutorState::Cordoned,
        ExecutorState::Draining,
        ExecutorState::Drained,
        ExecutorState::Removing,
        ExecutorState::Removed,
        ExecutorState::Lapsed,
    ];

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            ExecutorState::Active => "active",
            ExecutorState::Suspect => "suspect",
            ExecutorState::Cordoned => "cordoned",
            ExecutorState::Draining => "draining",
            ExecutorState::Drained => "drained",
            ExecutorState::Removing => "removing",
            ExecutorState::Removed => "removed",
            ExecutorState::Lapsed => "lapsed",
        }
    }
}

impl fmt::Display for ExecutorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a shard changed its owner, or has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// It never had an owner.
    Startup,
    /// When this leadership began it had no owner, or its owner had been told to stop it.
    LeaderChange,
    /// Its owner's lease ended, or its process is proven gone.
    Crash,
    /// Its owner is drained, left, or deregistered.
    Drain,
    /// It moved for balance.
    Rebalance,
    /// Its owner did not start and keep it in time (L6).
    NotAdmitted,
    /// Another incarnation of its owner took its place.
    Superseded,
    /// An operator moved it.
    Operator,
    /// The store was wiped or restored: it could not be told whether its owner had it, or an epoch above the recorded one was seen.
    Restored,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 9] = [
        Cause::Startup,
        Cause::LeaderChange,
        Cause::Crash,
        Cause::Drain,
        Cause::Rebalance,
        Cause::NotAdmitted,
        Cause::Superseded,
        Cause::Operator,
        Cause::Restored,
    ];

    /// As metrics and logs call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Startup => "start-up",
            Cause::LeaderChange => "leader-change",
            Cause::Crash => "crash",
            Cause::Drain => "drain",
            Cause::Rebalance => "rebalance",
            Cause::NotAdmitted => "not-admitted",
            Cause::Superseded => "superseded",
            Cause::Operator => "operator",
            Cause::Restored => "restored",
        }
    }
}

/// See [`Notice::EpochsRaised`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// How many shards.
    pub shards: u32,
    /// The highest epoch shown.
    pub highest: Epoch,
    /// What was recorded where that one was shown.
    pub above: Epoch,
}

/// Something that a person or a counter wants to know. Durable when it is said; but for what is true without any commit, such as that
/// somebody has seen another state, which is said at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A new executor, or a new incarnation of one.
    Joined {
        /// Who.
        id: ExecutorId,
        /// Which process.
        incarnation: Incarnation,
        /// Where it serves.
        endpoint: String,
        /// The incarnation that it replaces, and whether that one is proven gone.
        replaces: Option<(Incarnation, bool)>,
    },
    /// A lease ended.
    Lapsed {
        /// Who.
        id: ExecutorId,
        /// Which process.
        incarnation: Incarnation,
        /// How many shards it owned.
        shards: u32,
    },
    /// An executor deregistered.
    Left {
        /// Who.
        id: ExecutorId,
        /// Which process.
        incarnation: Incarnation,
        /// How many shards it still owned.
        shards: u32,
    },
    /// An operator's wish took effect.
    Wished {
        /// Whose.
        id: ExecutorId,
        /// What.
        wish: crate::assignment::record::Wish,
    },
    /// From now on nothing moves for balance, until the pause ends.
    Paused {
        /// Until when, who asked, and why.
        pause: Pause,
        /// It was in force when this leadership began.
        found: bool,
    },
    /// Shards move for balance again.
    Resumed {
        /// An operator ended the pause; otherwise it was over.
        asked: bool,
    },
    /// An executor that an operator removes is no more, and its id is barred.
    Removed {
        /// Who.
        id: ExecutorId,
        /// Which process.
        incarnation: Incarnation,
        /// How many shards it still owned: they are free.
        shards: u32,
        /// It was the operator's word that its process is gone (P3).
        dead: bool,
    },
    /// An operator took a removal back.
    Admitted {
        /// Whose.
        id: ExecutorId,
    },
    /// Shards were granted to another owner than before.
    Moved {
        /// Why.
        cause: Cause,
        /// How many.
        shards: u32,
    },
    /// Shards were taken from an owner that did not start and keep them in time (L6).
    NotAdmitted {
        /// Which.
        shards: Vec<ShardId>,
        /// From whom.
        id: ExecutorId,
        /// For how long it gets no new ones; `None` where others failed all of these shards just before.
        suspect_for: Option<Duration>,
    },
    /// Shards were declared free although their owner never confirmed: their release was out for longer than the lease (L6).
    ReleaseTimedOut {
        /// Which.
        shards: Vec<ShardId>,
        /// From whom.
        id: ExecutorId,
    },
    /// Somebody showed epochs above the recorded ones (L11): the store was wiped or restored.
    EpochsRaised(Raised),
    /// Somebody showed a higher version than this leadership's (L10); the term was raised above it.
    TermRaised {
        /// The one shown.
        shown: Version,
    },
    /// The process was stopped or starved: every deadline was moved by this (L9).
    Stalled {
        /// How late the turn came.
        delay: Duration,
    },
    /// An executor has seen a newer state than the store had: it was restored. No grants until the leases of that state must be over.
    StoreRestored {
        /// What the executor has seen.
        shown: Version,
        /// What the store had.
        loaded: Version,
        /// For how long grants are held back.
        held_back: Duration,
    },
    /// An executor came from another cluster: no grants until its old lease must be over (L12).
    ForeignCluster {
        /// Who.
        id: ExecutorId,
        /// The cluster that it came from.
        cluster_id: ClusterId,
        /// For how long grants are held back.
        held_back: Duration,
    },
}
