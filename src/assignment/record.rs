//! The durable records and their transitions. A transition consumes the record and returns the next one.

use crate::types::{Epoch, ExecutorId, Incarnation, Slot, Term};

/// Who owns a shard, and at which epoch.
///
/// ```text
/// Unassigned ──grant──► Held ──release──► Releasing ──free──► Unassigned
///                        └──────────────────free────────────────┘
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardRecord {
    /// Of the current grant, else of the last one.
    pub epoch: Epoch,
    /// Who has it.
    pub state: ShardState,
}

/// See [`ShardRecord`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShardState {
    /// Nobody owns it.
    #[default]
    Unassigned,
    /// Granted, and to be kept.
    Held(Slot),
    /// Still owned, but its owner was told to stop it.
    Releasing(Slot),
}

impl ShardRecord {
    /// The owner: also of a shard that is being released.
    pub fn owner(&self) -> Option<Slot> {
        match self.state {
            ShardState::Unassigned => None,
            ShardState::Held(slot) | ShardState::Releasing(slot) => Some(slot),
        }
    }

    /// A grant, to a new owner or to a new incarnation of the old one. The epoch grows (P4).
    ///
    /// # Panics
    /// Where the shard still belongs to somebody: the caller frees it first, and says why it may (P3).
    #[must_use]
    pub fn grant(self, slot: Slot, term: Term) -> ShardRecord {
        assert_eq!(self.state, ShardState::Unassigned, "a shard is freed before it is granted");
        ShardRecord { epoch: self.epoch.next(term), state: ShardState::Held(slot) }
    }

    /// The owner is to stop it.
    ///
    /// # Panics
    /// Where the shard is not held.
    #[must_use]
    pub fn release(self) -> ShardRecord {
        let ShardState::Held(slot) = self.state else { panic!("only a held shard can be released") };
        ShardRecord { state: ShardState::Releasing(slot), ..self }
    }

    /// Nobody owns it any more: its owner confirmed, or the lease is over, or the process is proven gone (P3).
    #[must_use]
    pub fn free(self) -> ShardRecord {
        ShardRecord { state: ShardState::Unassigned, ..self }
    }

    /// Somebody showed an epoch above the recorded one (L11): what is recorded grows, the owner stays.
    #[must_use]
    pub fn raise(self, epoch: Epoch) -> ShardRecord {
        ShardRecord { epoch: self.epoch.max(epoch), ..self }
    }
}

/// One incarnation of one executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorRecord {
    /// The stable name.
    pub id: ExecutorId,
    /// The process that registered last under that name, or one before it whose shards are not all free yet.
    pub incarnation: Incarnation,
    /// Where it serves `ShardExecutor`, as `http://host:port`.
    pub endpoint: String,
    /// 1 ..= [`MAX_WEIGHT`](crate::types::MAX_WEIGHT).
    pub weight: u32,
    /// What an operator wants of this id; carried over to the next incarnation.
    pub wish: Wish,
    /// The incarnation asked to leave: it is drained.
    pub leaving: bool,
    /// Whether the process still counts.
    pub standing: Standing,
}

/// The longest endpoint, in bytes.
pub const MAX_ENDPOINT_LEN: usize = 512;

/// What an operator wants of an executor id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// Nothing in particular.
    #[default]
    None,
    /// No new shards.
    Cordon,
    /// No new shards, and those that it has leave as long as somebody can take them.
    Drain,
    /// As with a drain; once it has no shard left it is gone, and nobody registers under its id until the wish is taken back.
    Remove,
}

/// Whether the process behind a record still counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Registered; its lease is kept in memory.
    #[default]
    Present,
    /// A newer incarnation registered under the id. It gets nothing any more; its shards go to the newer one as they become free.
    Superseded,
    /// Its lease ended or it deregistered; every shard that still names it is free to be taken away. The record stays until none
    /// does, and for as long as an operator's wish hangs on the id.
    Gone,
}

/// An incarnation that may never register again (L13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retiree {
    /// Of the executor id; see [`State::retire`](crate::assignment::State::retire).
    pub id_hash: u64,
    /// Which process.
    pub incarnation: Incarnation,
    /// How it ended.
    pub end: End,
}

/// How an incarnation ended; decides what it is told when it speaks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its lease ended, or it deregistered: the process may come back as a new incarnation.
    Over,
    /// A newer incarnation took its place: the process must stop for good.
    Superseded,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(epoch: u64, state: ShardState) -> ShardRecord {
        ShardRecord { epoch: Epoch(epoch), state }
    }

    const SLOT: Slot = Slot(3);

    #[test]
    fn a_grant_is_above_the_last_epoch_and_not_below_the_term() {
        let granted = |epoch, term| record(epoch, ShardState::Unassigned).grant(SLOT, Term(term));
        assert_eq!(granted(0, 100), record(100, ShardState::Held(SLOT)));
        assert_eq!(granted(100, 100), record(101, ShardState::Held(SLOT)));
        assert_eq!(granted(200, 100), record(201, ShardState::Held(SLOT)));
    }

    #[test]
    fn a_shard_keeps_its_epoch_on_its_way_out() {
        let held = record(7, ShardState::Held(SLOT));
        assert_eq!(held.release(), record(7, ShardState::Releasing(SLOT)));
        assert_eq!(held.release().free(), record(7, ShardState::Unassigned));
        assert_eq!(held.free(), record(7, ShardState::Unassigned));
        assert_eq!([held, held.release(), held.free()].map(|record| record.owner()), [Some(SLOT), Some(SLOT), None]);
    }

    #[test]
    fn raising_lowers_nothing_and_leaves_the_owner() {
        for state in [ShardState::Unassigned, ShardState::Held(SLOT), ShardState::Releasing(SLOT)] {
            assert_eq!(record(7, state).raise(Epoch(9)), record(9, state));
            assert_eq!(record(7, state).raise(Epoch(5)), record(7, state));
        }
    }

    #[test]
    #[should_panic(expected = "freed before it is granted")]
    fn a_held_shard_is_not_granted() {
        let _ = record(7, ShardState::Held(SLOT)).grant(Slot(4), Term(1));
    }

    #[test]
    #[should_panic(expected = "freed before it is granted")]
    fn a_shard_that_is_being_released_is_not_granted() {
        let _ = record(7, ShardState::Releasing(SLOT)).grant(SLOT, Term(1));
    }

    #[test]
    #[should_panic(expected = "only a held shard")]
    fn a_release_is_not_repeated() {
        let _ = record(7, ShardState::Releasing(SLOT)).release();
    }

    #[test]
    #[should_panic(expected = "only a held shard")]
    fn what_nobody_owns_is_not_released() {
        let _ = record(7, ShardState::Unassigned).release();
    }
}
