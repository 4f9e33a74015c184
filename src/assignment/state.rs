//! What the store keeps: one `meta` record and pages of executor, shard and retiree records.
//!
//! Pages are shared and copied on write. So a clone is cheap, a draft of the next state can be made beside the one in force (P2),
//! and what a commit has to write is simply the pages that are no longer the same allocation.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::assignment::record::{End, ExecutorRecord, Retiree, ShardRecord, Standing, Wish};
use crate::types::{ClusterId, ExecutorId, Incarnation, ShardId, Slot, Term, Token};

/// Shards per page: 13 bytes each in the store.
pub const SHARDS_PER_PAGE: usize = 1024;
/// Executor records per page: below 800 bytes each in the store.
pub const EXECUTORS_PER_PAGE: usize = 16;
/// Buckets of retired incarnations, by hash of the executor id.
pub const RETIREE_PAGES: usize = 64;
/// Retired incarnations that a bucket remembers; the oldest is forgotten first.
pub const RETIREES_PER_PAGE: usize = 4096;

/// The small record that every commit writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Drawn when the state was first written.
    pub cluster_id: ClusterId,
    /// Fixed when the state was first written.
    pub number_of_shards: u32,
    /// Of the leadership that wrote this.
    pub term: Term,
    /// Of the leadership that wrote this.
    pub token: Token,
    /// Number of the commit attempt within the leadership, never reused: with the token it names one commit (L5).
    pub attempt: u64,
    /// The largest executor lease that somebody may still hold, in milliseconds (L8).
    pub lease_ttl_ms: u64,
    /// Which pages the store has.
    pub inventory: Inventory,
    /// Whether anybody may lead on this state.
    pub seal: Seal,
    /// An operator's pause of rebalancing; boxed, since there hardly ever is one.
    pub pause: Option<Box<Pause>>,
}

/// An operator's word that nothing moves for balance until a certain time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Until then, in milliseconds since 1970 by the wall clock of the leader that wrote it.
    pub until_unix_ms: u64,
    /// Who asked for it; at most [`MAX_PAUSE_TEXT_LEN`] bytes, and may be empty.
    pub by: String,
    /// Why; at most [`MAX_PAUSE_TEXT_LEN`] bytes, and may be empty.
    pub reason: String,
}

/// The longest text of a pause, in bytes.
pub const MAX_PAUSE_TEXT_LEN: usize = 256;

impl Pause {
    /// Texts are cut to what a record takes, and to one line.
    pub fn new(until_unix_ms: u64, by: &str, reason: &str) -> Pause {
        let line = |text: &str| {
            let text = text.replace(char::is_control, " ");
            text[..text.floor_char_boundary(MAX_PAUSE_TEXT_LEN)].to_owned()
        };
        Pause { until_unix_ms, by: line(by), reason: line(reason) }
    }
}

/// Whether a state may be led on. The engine takes over, and writes, open ones only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seal {
    /// It may.
    #[default]
    Open,
    /// It was exported, to be led on from another store: nobody may lead on this one any more.
    Sealed {
        /// When, in milliseconds since 1970 by the wall clock of who did it.
        unix_ms: u64,
        /// Who did it; at most [`MAX_SEAL_TEXT_LEN`] bytes.
        by: String,
        /// Where it went; at most [`MAX_SEAL_TEXT_LEN`] bytes.
        note: String,
    },
    /// It is a part of what is being imported: nobody may lead before all of it is there.
    Importing {
        /// The checksum of the document that it comes from.
        document: u32,
    },
}

/// The longest text of a seal, in bytes.
pub const MAX_SEAL_TEXT_LEN: usize = 256;

/// Which pages the store has, so that a page that was lost is told from one that was never written (P9). A page that was never
/// written holds nothing but defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Executor pages `0 .. executors` exist.
    pub executors: u32,
    /// Shard pages that exist, as a bit set: page `p` is bit `p % 64` of word `p / 64`. Words at the end may be missing: all zero.
    pub shards: Vec<u64>,
    /// Retiree pages that exist, as a bit set.
    pub retirees: u64,
}

impl Inventory {
    /// Whether a shard page exists.
    pub fn has_shards(&self, page: usize) -> bool {
        self.shards.get(page / 64).is_some_and(|word| word & (1 << (page % 64)) != 0)
    }

    /// Takes a shard page in.
    pub(crate) fn add_shards(&mut self, page: usize) {
        if self.shards.len() <= page / 64 {
            self.shards.resize(page / 64 + 1, 0);
        }
        self.shards[page / 64] |= 1 << (page % 64);
    }

    /// Whether a retiree page exists.
    pub fn has_retirees(&self, page: usize) -> bool {
        self.retirees & (1 << page) != 0
    }
}

/// A page of executor records, by slot.
pub type ExecutorPage = Vec<Option<ExecutorRecord>>;
/// A page of shard records.
pub type ShardPage = Vec<ShardRecord>;
/// A bucket of retired incarnations, oldest first.
pub type RetireePage = Vec<Retiree>;

/// The whole stored state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// See [`Meta`].
    pub meta: Meta,
    executors: Vec<Arc<ExecutorPage>>,
    /// The slots of an id, by its hash, so that 10,000 registrations do not read 10,000 records each.
    slots_by_id: Arc<BTreeSet<(u64, Slot)>>,
    shards: Vec<Arc<ShardPage>>,
    retirees: Vec<Arc<RetireePage>>,
}

/// Pages that do not make a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A shard names an owner whose record is not there.
    #[error("shard {shard} is owned by slot {slot}, which has no executor record")]
    Owner {
        /// The shard.
        shard: ShardId,
        /// The slot that it names.
        slot: Slot,
    },
    /// A page that is not as long as its place demands: then what comes after it stood at the wrong number.
    #[error("page {page} of {kind} records has {found} where there must be {expected}")]
    PageLength {
        /// `shard` or `executor`.
        kind: &'static str,
        /// Which page.
        page: usize,
        /// Records found.
        found: usize,
        /// Records that belong there.
        expected: usize,
    },
    /// Not one bucket of retired incarnations for each hash.
    #[error("there are {found} pages of retirees where there must be {}", RETIREE_PAGES)]
    RetireePages {
        /// Pages found.
        found: usize,
    },
    /// The pages of shards do not add up to the shard count.
    #[error("there are {found} shard records where number_of_shards is {number_of_shards}")]
    ShardCount {
        /// Records found.
        found: usize,
        /// As `meta` says.
        number_of_shards: u32,
    },
}

/// What a commit writes: `meta` and the pages that changed, each whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Always written.
    pub meta: Meta,
    /// By page number.
    pub executors: Vec<(u32, Arc<ExecutorPage>)>,
    /// By page number.
    pub shards: Vec<(u32, Arc<ShardPage>)>,
    /// By page number.
    pub retirees: Vec<(u32, Arc<RetireePage>)>,
}

impl State {
    /// A cluster's first state: no executor, every shard unassigned at epoch 0.
    pub fn new(meta: Meta) -> State {
        let shards = meta.number_of_shards as usize;
        let page = Arc::new(vec![ShardRecord::default(); SHARDS_PER_PAGE]);
        let mut pages = vec![page; shards / SHARDS_PER_PAGE];
        if !shards.is_multiple_of(SHARDS_PER_PAGE) {
            pages.push(Arc::new(vec![ShardRecord::default(); shards % SHARDS_PER_PAGE]));
        }
        State {
            meta,
            executors: Vec::new(),
            slots_by_id: Arc::default(),
            shards: pages,
            retirees: vec![Arc::default(); RETIREE_PAGES],
        }
    }

    /// From pages as the store read them. Checks what ties pages together; what each record may contain is the codec's to check.
    pub fn from_pages(
        meta: Meta,
        executors: Vec<ExecutorPage>,
        shards: Vec<ShardPage>,
        retirees: Vec<RetireePage>,
    ) -> Result<State, Invalid> {
        let found = shards.iter().map(Vec::len).sum();
        if found != meta.number_of_shards as usize {
            return Err(Invalid::ShardCount { found, number_of_shards: meta.number_of_shards });
        }
        let full = |kind, page, found, expected| {
            if found == expected { Ok(()) } else { Err(Invalid::PageLength { kind, page, found, expected }) }
        };
        for (page, records) in shards.iter().enumerate() {
            let left = (meta.number_of_shards as usize).saturating_sub(page * SHARDS_PER_PAGE);
            full("shard", page, records.len(), left.min(SHARDS_PER_PAGE))?;
        }
        for (page, records) in executors.iter().enumerate() {
            full("executor", page, records.len(), EXECUTORS_PER_PAGE)?;
        }
        if retirees.len() != RETIREE_PAGES {
            return Err(Invalid::RetireePages { found: retirees.len() });
        }
        let mut state = State {
            meta,
            executors: executors.into_iter().map(Arc::new).collect(),
            slots_by_id: Arc::default(),
            shards: shards.into_iter().map(Arc::new).collect(),
            retirees: retirees.into_iter().map(Arc::new).collect(),
        };
        let slots_by_id = state.executors().map(|(slot, record)| (hash_of(&record.id), slot)).collect();
        state.slots_by_id = Arc::new(slots_by_id);
        for (shard, record) in state.shards() {
            if let Some(slot) = record.owner()
                && state.executor(slot).is_none()
            {
                return Err(Invalid::Owner { shard, slot });
            }
        }
        Ok(state)
    }

    /// The record of a shard.
    ///
    /// # Panics
    /// Where there is no such shard.
    pub fn shard(&self, shard: ShardId) -> ShardRecord {
        let at = shard.0 as usize;
        self.shards[at / SHARDS_PER_PAGE][at % SHARDS_PER_PAGE]
    }

    /// Every shard, ascending.
    pub fn shards(&self) -> impl Iterator<Item = (ShardId, ShardRecord)> + Clone + '_ {
        self.shards.iter().flat_map(|page| page.iter()).zip(0..).map(|(record, shard)| (ShardId(shard), *record))
    }

    /// Replaces the record of a shard; writes nothing where it is the same.
    pub fn set_shard(&mut self, shard: ShardId, record: ShardRecord) {
        if self.shard(shard) != record {
            let at = shard.0 as usize;
            Arc::make_mut(&mut self.shards[at / SHARDS_PER_PAGE])[at % SHARDS_PER_PAGE] = record;
            self.meta.inventory.add_shards(at / SHARDS_PER_PAGE);
        }
    }

    /// The record in a slot.
    pub fn executor(&self, slot: Slot) -> Option<&ExecutorRecord> {
        let at = slot.0 as usize;
        self.executors.get(at / EXECUTORS_PER_PAGE)?.get(at % EXECUTORS_PER_PAGE)?.as_ref()
    }

    /// Every executor record, by slot.
    pub fn executors(&self) -> impl Iterator<Item = (Slot, &ExecutorRecord)> + '_ {
        let slots = self.executors.iter().flat_map(|page| page.iter()).zip(0..);
        slots.filter_map(|(record, slot)| Some((Slot(slot), record.as_ref()?)))
    }

    /// Replaces or, with `None`, deletes the record in a slot; writes nothing where it is the same.
    pub fn set_executor(&mut self, slot: Slot, record: Option<ExecutorRecord>) {
        let before = self.executor(slot);
        if before == record.as_ref() {
            return;
        }
        let hash = |record: &ExecutorRecord| hash_of(&record.id);
        let (old, new) = (before.map(hash), record.as_ref().map(hash));
        if old != new {
            let slots = Arc::make_mut(&mut self.slots_by_id);
            old.map(|hash| slots.remove(&(hash, slot)));
            new.map(|hash| slots.insert((hash, slot)));
        }
        let at = slot.0 as usize;
        while self.executors.len() <= at / EXECUTORS_PER_PAGE {
            self.executors.push(Arc::new(vec![None; EXECUTORS_PER_PAGE]));
        }
        self.meta.inventory.executors = self.executors.len() as u32;
        Arc::make_mut(&mut self.executors[at / EXECUTORS_PER_PAGE])[at % EXECUTORS_PER_PAGE] = record;
    }

    /// How many slots the pages have, empty ones included.
    pub fn slots(&self) -> u32 {
        (self.executors.len() * EXECUTORS_PER_PAGE) as u32
    }

    /// Every record under an id, by slot: of its registered incarnation, and of those before that are not over.
    pub fn incarnations<'a>(&'a self, id: &'a ExecutorId) -> impl Iterator<Item = (Slot, &'a ExecutorRecord)> {
        let hash = hash_of(id);
        let slots = self.slots_by_id.range((hash, Slot(0))..=(hash, Slot(u32::MAX))).map(|(_, slot)| *slot);
        slots.filter_map(|slot| Some((slot, self.executor(slot)?))).filter(|(_, record)| record.id == *id)
    }

    /// The registered incarnation of an id.
    pub fn present(&self, id: &ExecutorId) -> Option<(Slot, &ExecutorRecord)> {
        // The borrow of the id ends here.
        let slot = self.incarnations(id).find(|(_, record)| record.standing == Standing::Present)?.0;
        Some((slot, self.executor(slot)?))
    }

    /// Whether an operator removed this id: nobody may register under it. Not while the removal is under way.
    pub fn is_barred(&self, id: &ExecutorId) -> bool {
        self.incarnations(id).any(|(_, record)| record.wish == Wish::Remove) && self.present(id).is_none()
    }

    /// The record of one incarnation, whatever its standing.
    pub fn incarnation(&self, id: &ExecutorId, incarnation: Incarnation) -> Option<(Slot, &ExecutorRecord)> {
        let slot = self.incarnations(id).find(|(_, record)| record.incarnation == incarnation)?.0;
        Some((slot, self.executor(slot)?))
    }

    /// Remembers that this incarnation may never register again, and how it ended; what is remembered already stands. Of a bucket
    /// that is full the oldest entry is forgotten.
    pub fn retire(&mut self, id: &ExecutorId, incarnation: Incarnation, end: End) {
        if self.retirement(id, incarnation).is_some() {
            return;
        }
        let id_hash = hash_of(id);
        let page = Arc::make_mut(&mut self.retirees[retiree_page(id_hash)]);
        if page.len() >= RETIREES_PER_PAGE {
            page.remove(0);
        }
        page.push(Retiree { id_hash, incarnation, end });
        self.meta.inventory.retirees |= 1 << retiree_page(id_hash);
    }

    /// How this incarnation ended, if it did: then it may never register again.
    pub fn retirement(&self, id: &ExecutorId, incarnation: Incarnation) -> Option<End> {
        let id_hash = hash_of(id);
        let page = &self.retirees[retiree_page(id_hash)];
        page.iter().find(|it| it.id_hash == id_hash && it.incarnation == incarnation).map(|it| it.end)
    }

    /// The bucket that remembers retired incarnations of an id.
    pub fn retiree_page_of(id: &ExecutorId) -> u32 {
        retiree_page(hash_of(id)) as u32
    }

    /// How many pages of executors there are.
    pub(super) fn executor_pages(&self) -> usize {
        self.executors.len()
    }

    /// The pages of shards.
    pub(super) fn shard_pages(&self) -> &[Arc<ShardPage>] {
        &self.shards
    }

    /// The pages of retirees.
    pub(super) fn retiree_pages(&self) -> &[Arc<RetireePage>] {
        &self.retirees
    }

    fn shares_shard_page(&self, other: &State, page: usize) -> bool {
        matches!((self.shards.get(page), other.shards.get(page)), (Some(a), Some(b)) if Arc::ptr_eq(a, b))
    }

    /// Whether two states share every page: then they differ in `meta` at the most.
    pub fn shares_all_pages(&self, other: &State) -> bool {
        fn all<T>(a: &[Arc<T>], b: &[Arc<T>]) -> bool {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
        }
        all(&self.executors, &other.executors) && all(&self.shards, &other.shards) && all(&self.retirees, &other.retirees)
    }

    /// The shards whose record differs from that in `before`, ascending, with both records. Looks only at pages that changed.
    pub fn changed_shards<'a>(&'a self, before: &'a State) -> impl Iterator<Item = (ShardId, ShardRecord, ShardRecord)> + 'a {
        let pages = (0..self.shards.len()).filter(|&page| !self.shares_shard_page(before, page));
        pages
            .flat_map(|page| (page * SHARDS_PER_PAGE..).take(self.shards[page].len()))
            .map(|shard| ShardId(shard as u32))
            .map(|shard| (shard, before.shard(shard), self.shard(shard)))
            .filter(|(_, before, after)| before != after)
    }

    /// What a commit that turns `before` into this state has to write; with `None`, everything that an empty store lacks.
    ///
    /// A page is found changed by its allocation, so one that was changed and changed back is written once for nothing.
    pub fn changes_since(&self, before: Option<&State>) -> Changes {
        fn dirty<T>(now: &[Arc<T>], before: Option<&[Arc<T>]>, exists: impl Fn(usize) -> bool) -> Vec<(u32, Arc<T>)> {
            let same = |at: usize| before.and_then(|pages| pages.get(at)).is_some_and(|page| Arc::ptr_eq(page, &now[at]));
            let changed = (0..now.len()).filter(|&at| exists(at) && !same(at));
            changed.map(|at| (at as u32, Arc::clone(&now[at]))).collect()
        }
        let inventory = &self.meta.inventory;
        Changes {
            meta: self.meta.clone(),
            executors: dirty(&self.executors, before.map(|state| &state.executors[..]), |_| true),
            shards: dirty(&self.shards, before.map(|state| &state.shards[..]), |page| inventory.has_shards(page)),
            retirees: dirty(&self.retirees, before.map(|state| &state.retirees[..]), |page| inventory.has_retirees(page)),
        }
    }
}

fn retiree_page(hash: u64) -> usize {
    (hash % RETIREE_PAGES as u64) as usize
}

/// FNV-1a, 64 bits: stable across builds, since it is stored.
fn hash_of(id: &ExecutorId) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    id.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, fold)
}

#[cfg(test)]
mod tests;
