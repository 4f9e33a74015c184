//! What goes into and comes out of the [`Ledger`](super::Ledger).

use std::sync::Arc;
use std::time::Duration;

use crate::holdings::Holdings;
use crate::types::{BootInstant, ClusterId, Epoch, ExecutorId, Incarnation, ShardId, Version};

/// What the session has to do, in the order in which it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The lease on the shard is over: cancel it and drop its future, then report it with [`Ledger::ended`](super::Ledger::ended).
    Fence(ShardId, Epoch),
    /// The lease runs until then.
    Leased(BootInstant),
    /// Cancel the shard, and report with [`Ledger::ended`](super::Ledger::ended) when its future returned.
    Stop(ShardId, Epoch),
    /// Run the shard.
    Start(ShardId, Epoch),
}

/// One call to the manager, as it was when it was composed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// When: the lease that it earns counts from here (L7).
    pub sent: BootInstant,
    /// Which call.
    pub kind: Kind,
    /// The incarnation that speaks.
    pub incarnation: Incarnation,
    /// The cluster that it belongs to, or belonged to before.
    pub cluster_id: Option<ClusterId>,
    /// Highest version accepted there (L2).
    pub mark: Version,
    /// Everything held. Empty for [`Kind::Register`].
    pub claim: Arc<Holdings>,
    /// Whether the claim goes out in full; else its digest is enough.
    pub in_full: bool,
    /// Whether the executor wants to leave.
    pub leaving: bool,
    /// Epochs at which its storage refused it (L11).
    pub storage_epochs: Holdings,
}

/// See [`Attempt::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Become known.
    Register,
    /// Renew the lease.
    Renew,
    /// Say that everything is stopped, for good.
    Deregister,
}

/// A manager's answer to [`Kind::Register`] or [`Kind::Renew`]; every field is valid by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The cluster that answers.
    pub cluster_id: ClusterId,
    /// The state that it was taken from.
    pub version: Version,
    /// Of the cluster.
    pub number_of_shards: u32,
    /// From the attempt's sending.
    pub lease_ttl: Duration,
    /// The assignment, where the claim differs from it.
    pub assignment: Option<Holdings>,
    /// The digest told the manager nothing.
    pub claim_wanted: bool,
}

/// Why an answer was not accepted: it changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// It is older than what is known already (L3).
    #[error("the answer's version {version} is below the mark {mark}")]
    Stale {
        /// The answer's.
        version: Version,
        /// The highest accepted before.
        mark: Version,
    },
    /// The lease that it grants is over already (L7).
    #[error("the answer came after the lease that it grants had run out")]
    Late,
    /// It answers an incarnation that is no more, or an executor that is on its way out.
    #[error("the answer is to a call that no longer matters")]
    Outdated,
    /// It comes from another cluster (L12).
    #[error("the answer comes from cluster {named}, this executor belongs to another")]
    Foreign {
        /// The cluster that answered.
        named: ClusterId,
    },
    /// It tells neither that the claim is right nor what would be, so it leaves no shard in place (L6).
    #[error("the manager wants a claim in full")]
    ClaimWanted,
}

/// A manager's command, the whole assignment; every field is valid by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// The cluster that says so.
    pub cluster_id: ClusterId,
    /// The state that it was taken from.
    pub version: Version,
    /// Whom the sender means.
    pub executor_id: String,
    /// Whom the sender means; any number, since it may be for anybody.
    pub incarnation: u64,
    /// All of it.
    pub assignment: Holdings,
}

/// Why a command bounces (P5): it changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushRefusal {
    /// It is for another process.
    #[error("the command is for executor {named}, incarnation {named_incarnation}; this is {id}, incarnation {incarnation}")]
    WrongIncarnation {
        /// As the command says.
        named: String,
        /// As the command says.
        named_incarnation: u64,
        /// This executor.
        id: ExecutorId,
        /// This incarnation.
        incarnation: Incarnation,
    },
    /// It is from another cluster. Never a reason to register anew (L12).
    #[error("the command names cluster {named}, this executor belongs to cluster {actual}")]
    WrongCluster {
        /// As the command says.
        named: ClusterId,
        /// The one that it belongs to.
        actual: ClusterId,
    },
    /// It is older than what is known already.
    #[error("the command's version {version} is below the mark {mark}")]
    StaleTerm {
        /// The command's.
        version: Version,
        /// The highest accepted before.
        mark: Version,
    },
    /// The incarnation has no live lease (L3).
    #[error("this executor has no live lease: it takes commands again after its next renewal")]
    LeaseOver,
    /// The incarnation is not registered yet.
    #[error("this executor is not registered yet")]
    NotReady,
    /// The executor is on its way out.
    #[error("this executor is stopping")]
    Stopping,
    /// It names a shard that the cluster does not have.
    #[error("shard {shard} does not exist: there are {number_of_shards}, counted from 0")]
    NoSuchShard {
        /// The shard named.
        shard: ShardId,
        /// How many there are.
        number_of_shards: u32,
    },
}

/// What a refusal means for the incarnation; refusals that only mean "try again" do not come here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is not known: stop everything, then register as a new one.
    UnknownExecutor,
    /// The call reached another cluster: stop everything, then register there as a new one (L12).
    WrongCluster,
    /// An operator removed it: stop everything, then try to register, again and again, until it is admitted.
    Removed,
    /// It was replaced: stop everything, deregister, end for good (L13).
    Superseded,
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to.
    Stopped,
    /// A newer incarnation took its place.
    Superseded,
}
