//! What a session tells those who watch it.

use crate::types::{BootInstant, ClusterId, Epoch, ExecutorId, Incarnation, ShardId, Version};

/// Watches a session, in step with it.
///
/// Called by the session's own task, one event after the other, so it must be quick and must not block for long: renewals wait for
/// it. Events come in the order in which they are true: `Began` before
/// the manager is called, `Started` before work on the shard begins, `Stopped` and `Fenced` after it
/// ended and before the manager is told.
pub trait SessionObserver: Send + 'static {
    /// Takes note of an event. An error ends the session: every shard is fenced, and the session's end carries the error.
    fn observe(&mut self, event: &SessionEvent) -> Result<(), ObserverError>;
}

/// Why an observer cannot go on.
pub type ObserverError = Box<dyn std::error::Error + Send + Sync>;

/// Something that happened in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEvent {
    /// When, by [`crate::clock::now`].
    pub at: BootInstant,
    /// To whom.
    pub executor_id: ExecutorId,
    /// To which process, as the manager knows it; changes when the session registers anew.
    pub incarnation: Incarnation,
    /// What.
    pub what: Happening,
}

/// See [`SessionEvent::what`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happening {
    /// This incarnation begins: no manager has heard of it yet, and no shard of an earlier incarnation is worked on any more by this
    /// process.
    Began,
    /// The first lease of this incarnation was granted; `Leased` follows.
    Joined {
        /// By this cluster.
        cluster_id: ClusterId,
        /// The executor is known there at this version, and later ones.
        version: Version,
    },
    /// A lease was granted or renewed.
    Leased {
        /// It ends then.
        until: BootInstant,
    },
    /// Work on a shard is about to begin.
    Started(ShardId, Epoch),
    /// Work on a shard has ended: it was told to, or it ended by itself.
    Stopped(ShardId, Epoch),
    /// The lease on a shard ran out, and nothing of its future is left.
    Fenced(ShardId, Epoch),
    /// A newer incarnation took this executor's place; the session ends.
    Superseded,
}

/// Watches nothing.
pub(super) struct Nobody;

impl SessionObserver for Nobody {
    fn observe(&mut self, _event: &SessionEvent) -> Result<(), ObserverError> {
        Ok(())
    }
}
