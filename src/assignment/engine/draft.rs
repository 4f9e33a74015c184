//! The next state, being made beside the one in force (P2), and what is to be said once it is durable.

use std::collections::{BTreeMap, BTreeSet};

use crate::assignment::command::{Cause, Notice};
use crate::assignment::event::{Renewal, RequestId};
use crate::assignment::record::{End, ExecutorRecord, ShardRecord, ShardState};
use crate::assignment::state::{EXECUTORS_PER_PAGE, SHARDS_PER_PAGE, State};
use crate::types::{ExecutorId, Incarnation, ShardId, Slot};

use super::notes::Notes;

/// See the module. A store takes only so many pages in one commit: a change that does not fit is refused here and comes with the next
/// commit, since everything that is still to be done is found again by looking at the state. Each commit is consistent by itself.
pub struct Draft<'a> {
    base: &'a State,
    next: State,
    pages: BTreeSet<Page>,
    max_pages: usize,
    full: bool,
    /// No slot below is free, nor will be before the next commit.
    lowest_free: Slot,
    changed_meta: bool,
    /// What to do once it is durable.
    pub outbox: Outbox,
}

/// What waits for a draft to be durable.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    /// Calls that are answered then, and how.
    pub due: Vec<(RequestId, Due)>,
    /// Renewals that are looked at again then.
    pub renewals: Vec<(RequestId, Renewal)>,
    pub notices: Vec<Notice>,
    /// Why shards are on their way.
    pub causes: BTreeMap<ShardId, Cause>,
    /// How many shards were granted, by why they were free.
    pub moved: BTreeMap<Cause, u32>,
    /// Incarnations that joined.
    pub joined: BTreeSet<Slot>,
    /// For people.
    pub notes: Notes,
}

/// The answer to a call, to be made from the state that it is true of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A lease for the incarnation in this slot.
    Lease(Slot),
    /// It is so.
    Current,
    /// It is so, until this time in milliseconds since 1970.
    Paused(u64),
    /// It is so, and this many shards have to move.
    Moving(u32),
}

/// A page, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Page {
    Executors(u32),
    Shards(u32),
    Retirees(u32),
}

impl Page {
    pub fn of_slot(slot: Slot) -> Page {
        Page::Executors(slot.0 / EXECUTORS_PER_PAGE as u32)
    }

    pub fn of_shard(shard: ShardId) -> Page {
        Page::Shards(shard.0 / SHARDS_PER_PAGE as u32)
    }

    pub fn of_retiree(id: &ExecutorId) -> Page {
        Page::Retirees(State::retiree_page_of(id))
    }
}

impl<'a> Draft<'a> {
    pub fn new(base: &'a State, max_pages: usize) -> Draft<'a> {
        Draft {
            base,
            next: base.clone(),
            pages: BTreeSet::new(),
            max_pages,
            full: false,
            lowest_free: Slot(0),
            changed_meta: false,
            outbox: Outbox::default(),
        }
    }

    pub fn next(&self) -> &State {
        &self.next
    }

    /// Something did not fit.
    pub fn is_full(&self) -> bool {
        self.full
    }

    pub fn is_changed(&self) -> bool {
        self.changed_meta || !self.next.shares_all_pages(self.base)
    }

    /// The finished state, and what waits for it.
    pub fn finish(self) -> (State, Outbox) {
        (self.next, self.outbox)
    }

    /// Reserves room for changes that belong together; `false` where they do not all fit any more.
    pub fn reserve(&mut self, pages: impl IntoIterator<Item = Page>) -> bool {
        let new: BTreeSet<Page> = pages.into_iter().filter(|page| !self.pages.contains(page)).collect();
        let fits = self.pages.len() + new.len() <= self.max_pages;
        if fits {
            self.pages.extend(new);
        } else {
            self.full = true;
        }
        fits
    }

    pub fn change_meta(&mut self, change: impl FnOnce(&mut crate::assignment::state::Meta)) {
        change(&mut self.next.meta);
        self.changed_meta = true;
    }

    /// `false` where it does not fit any more.
    pub fn set_shard(&mut self, shard: ShardId, record: ShardRecord) -> bool {
        let fits = self.reserve([Page::of_shard(shard)]);
        if fits {
            self.next.set_shard(shard, record);
        }
        fits
    }

    /// `false` where it does not fit any more.
    pub fn set_executor(&mut self, slot: Slot, record: Option<ExecutorRecord>) -> bool {
        let fits = self.reserve([Page::of_slot(slot)]);
        if fits {
            self.next.set_executor(slot, record);
        }
        fits
    }

    /// `false` where it does not fit any more.
    pub fn retire(&mut self, id: &ExecutorId, incarnation: Incarnation, end: End) -> bool {
        let fits = self.reserve([Page::of_retiree(id)]);
        if fits {
            self.next.retire(id, incarnation, end);
        }
        fits
    }

    /// The lowest slot that is free now and was free before: a slot changes hands only between two commits.
    pub fn free_slot(&mut self) -> Slot {
        let free = |slot: &Slot| self.next.executor(*slot).is_none() && self.base.executor(*slot).is_none();
        let slots = self.next.slots();
        self.lowest_free = (self.lowest_free.0..slots).map(Slot).find(free).unwrap_or(Slot(slots));
        self.lowest_free
    }

    /// Takes a shard from whoever has it.
    pub fn free_shard(&mut self, shard: ShardId, cause: Option<Cause>) -> bool {
        let fits = self.set_shard(shard, self.next.shard(shard).free());
        if fits && let Some(cause) = cause {
            self.outbox.causes.insert(shard, cause);
        }
        fits
    }

    /// Whether a shard is held: nothing of this draft has released it so far.
    pub fn is_held(&self, shard: ShardId) -> bool {
        matches!(self.next.shard(shard).state, ShardState::Held(_))
    }

    /// Asks the owner of a held shard to stop it.
    pub fn release_shard(&mut self, shard: ShardId, cause: Cause) -> bool {
        let fits = self.set_shard(shard, self.next.shard(shard).release());
        if fits {
            self.outbox.causes.insert(shard, cause);
        }
        fits
    }

    /// Gives a free shard an owner.
    pub fn grant_shard(&mut self, shard: ShardId, slot: Slot) -> bool {
        self.set_shard(shard, self.next.shard(shard).grant(slot, self.next.meta.term))
    }
}
