//! The state in force as readers see it. Reading it takes no turn of the coordinator.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use prost::Message;
use prost::bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use tokio::sync::watch;

use crate::assignment::command::Snapshot;
use crate::assignment::record::{ExecutorRecord, ShardRecord, ShardState};
use crate::assignment::state::State;
use crate::rpc;
use crate::types::{ClusterId, Revision, ShardId, Slot, Version};

pub use reading::Reading;

mod reading;

/// Where the coordinator puts each durable state, and readers find the newest.
pub struct Published {
    current: watch::Sender<Option<Arc<Edition>>>,
}

/// One durable state, and what readers get of it. Everything is encoded once, when the first reader asks, and shared by all who ask
/// after it.
pub struct Edition {
    /// The state.
    pub snapshot: Snapshot,
    table: OnceLock<Bytes>,
    history: History,
    deltas: Mutex<HashMap<Revision, Bytes>>,
}

impl Default for Published {
    fn default() -> Self {
        Published { current: watch::Sender::new(None) }
    }
}

impl Published {
    /// Replaces what readers see. Only the coordinator calls this, and only with what is durable (P2); versions ascend (P7).
    pub fn publish(&self, snapshot: Snapshot) {
        let history = self.current().map_or_else(History::default, |before| before.history.and(&before, &snapshot));
        self.current.send_replace(Some(Arc::new(Edition::new(snapshot, history))));
    }

    /// The newest state; `None` before this leadership's first commit.
    pub fn current(&self) -> Option<Arc<Edition>> {
        self.current.borrow().clone()
    }

    /// For whoever waits for newer ones. Sees the newest, and not each one before it.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Edition>>> {
        self.current.subscribe()
    }

    /// How many wait for newer ones.
    pub fn watchers(&self) -> usize {
        self.current.receiver_count()
    }

    /// Waits until there is a state. Cancel-safe.
    pub async fn first(&self) -> Arc<Edition> {
        let mut editions = self.current.subscribe();
        loop {
            if let Some(edition) = editions.borrow_and_update().clone() {
                return edition;
            }
            if editions.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Edition {
    fn new(snapshot: Snapshot, history: History) -> Edition {
        Edition { snapshot, table: OnceLock::new(), history, deltas: Mutex::default() }
    }

    /// The encoded [`rpc::RoutingTable`] of this state.
    pub fn table(&self) -> Bytes {
        self.table.get_or_init(|| encoded_table(&self.snapshot).into()).clone()
    }

    /// **L10.** What a reader has seen of this cluster that lies above this edition: the leader has to catch up before it answers.
    pub fn is_behind(&self, known: Option<(ClusterId, Version)>) -> Option<Version> {
        let Snapshot { version, state } = &self.snapshot;
        known.filter(|(cluster_id, seen)| *cluster_id == state.meta.cluster_id && seen > version).map(|(_, seen)| seen)
    }

    /// The encoded [`rpc::RoutingTableDelta`] from the state that was published at `from` to this one; empty where that is this one.
    /// `None` where it is not known what changed since: `from` is of another cluster or term, too old, or was never published.
    pub fn delta(&self, cluster_id: ClusterId, from: Version) -> Option<Bytes> {
        let version = self.snapshot.version;
        if cluster_id != self.snapshot.state.meta.cluster_id || from.term != version.term {
            return None;
        }
        let changed = if from == version { BTreeSet::new() } else { self.history.since(from.revision)? };
        let mut deltas = self.deltas.lock().unwrap_or_else(PoisonError::into_inner);
        let delta = || delta_of(&self.snapshot, from.revision, changed).encode_to_vec().into();
        Some(deltas.entry(from.revision).or_insert_with(delta).clone())
    }
}

/// What changed with each of the last publications of one term, oldest first. It knows which shards, and not how they were: a reader
/// that comes from any of them gets those as they are now.
#[derive(Default)]
struct History(Vec<Step>);

#[derive(Clone)]
struct Step {
    from: Revision,
    changed: Arc<[ShardId]>,
}

impl History {
    /// Steps that are remembered. A reader that lags behind further than that gets the whole table.
    const STEPS: usize = 64;
    /// Of shards that all steps name together, a table of this many is no smaller than the difference.
    const LEAST_SHARDS: usize = 1024;

    /// This history, and the step from `before`, whose it is, to `after`.
    fn and(&self, before: &Edition, after: &Snapshot) -> History {
        if before.snapshot.version.term != after.version.term {
            return History::default();
        }
        let step = Step { from: before.snapshot.version.revision, changed: changed(&before.snapshot.state, &after.state).into() };
        let limit = Self::LEAST_SHARDS.max(after.state.meta.number_of_shards as usize / 8);
        let mut room = limit;
        let newest = self.0.iter().rev().take(Self::STEPS - 1);
        let mut steps: Vec<Step> = std::iter::once(&step)
            .chain(newest)
            .take_while(|step| {
                let fits = step.changed.len() <= room;
                room = room.saturating_sub(step.changed.len());
                fits
            })
            .cloned()
            .collect();
        steps.reverse();
        History(steps)
    }

    fn since(&self, from: Revision) -> Option<BTreeSet<ShardId>> {
        let first = self.0.iter().position(|step| step.from == from)?;
        Some(self.0[first..].iter().flat_map(|step| step.changed.iter().copied()).collect())
    }
}

/// The shards of which readers are told something else now, ascending.
fn changed(before: &State, after: &State) -> Vec<ShardId> {
    // A slot that was empty or is so now has no shard whose record is the same.
    let other_face = |slot| match (before.executor(slot), after.executor(slot)) {
        (Some(before), Some(after)) => owner(before) != owner(after),
        _ => false,
    };
    let faces: HashSet<Slot> = (0..after.slots()).map(Slot).filter(|slot| other_face(*slot)).collect();
    let mut changed: Vec<ShardId> = after.changed_shards(before).map(|(shard, ..)| shard).collect();
    if !faces.is_empty() {
        let shown = |record: ShardRecord| record.owner().is_some_and(|slot| faces.contains(&slot));
        changed.extend(after.shards().filter(|(_, record)| shown(*record)).map(|(shard, _)| shard));
        changed.sort_unstable();
        changed.dedup();
    }
    changed
}

/// An executor as readers see it.
fn owner(record: &ExecutorRecord) -> rpc::Owner {
    rpc::Owner { executor_id: record.id.to_string(), incarnation: record.incarnation.0, endpoint: record.endpoint.clone() }
}

/// The owners that a message names, each once.
struct Owners<'a> {
    state: &'a State,
    owners: Vec<rpc::Owner>,
    /// By slot; [`rpc::NOBODY`] where it has none yet.
    index_of: Vec<u32>,
}

impl<'a> Owners<'a> {
    fn of(state: &'a State) -> Owners<'a> {
        Owners { state, owners: Vec::new(), index_of: vec![rpc::NOBODY; state.slots() as usize] }
    }

    fn index(&mut self, record: ShardRecord) -> u32 {
        let Some(slot) = record.owner() else { return rpc::NOBODY };
        // The state has a record of every owner: it is checked when it is read, and kept.
        let Some(index) = self.index_of.get_mut(slot.0 as usize) else { return rpc::NOBODY };
        if *index == rpc::NOBODY
            && let Some(executor) = self.state.executor(slot)
        {
            *index = u32::try_from(self.owners.len()).unwrap_or(rpc::NOBODY);
            self.owners.push(owner(executor));
        }
        *index
    }

    /// The same, of an owner that was named before.
    fn index_of(&self, record: ShardRecord) -> u32 {
        record.owner().and_then(|slot| self.index_of.get(slot.0 as usize)).copied().unwrap_or(rpc::NOBODY)
    }
}

/// The encoded [`rpc::RoutingTable`]. What there is one of for each shard is written as it stands in the state, without a list in between:
/// these few fields are nearly all of a large table.
fn encoded_table(snapshot: &Snapshot) -> Vec<u8> {
    let state = &snapshot.state;
    let mut owners = Owners::of(state);
    for (slot, _) in state.executors() {
        // Those without a shard are named too.
        owners.index(ShardRecord { state: ShardState::Held(slot), ..ShardRecord::default() });
    }
    let rest = rpc::RoutingTable {
        cluster_id: state.meta.cluster_id.to_string(),
        version: Some(snapshot.version.into()),
        number_of_shards: state.meta.number_of_shards,
        owners: std::mem::take(&mut owners.owners),
        ..rpc::RoutingTable::default()
    };
    let releasing = state.shards().filter(|(_, record)| matches!(record.state, ShardState::Releasing(_)));
    let mut bytes = rest.encode_to_vec();
    packed(OWNER, state.shards().map(|(_, record)| u64::from(owners.index_of(record))), &mut bytes);
    packed(EPOCHS, state.shards().map(|(_, record)| record.epoch.0), &mut bytes);
    packed(RELEASING, releasing.map(|(shard, _)| u64::from(shard.0)), &mut bytes);
    bytes
}

/// The fields of `RoutingTable` that are long.
const OWNER: u32 = 5;
const EPOCHS: u32 = 6;
const RELEASING: u32 = 7;

/// Appends a repeated field of numbers as protobuf packs them; nothing where there are none.
fn packed(field: u32, numbers: impl Iterator<Item = u64> + Clone, bytes: &mut Vec<u8>) {
    let length: usize = numbers.clone().map(encoded_len_varint).sum();
    if length == 0 {
        return;
    }
    encode_key(field, WireType::LengthDelimited, bytes);
    encode_varint(length as u64, bytes);
    let mut at = bytes.len();
    bytes.resize(at + length, 0);
    // Not a loop: over pages of shards this is several times as fast.
    numbers.for_each(|mut number| {
        while number >= 0x80 {
            bytes[at] = number as u8 | 0x80;
            number >>= 7;
            at += 1;
        }
        bytes[at] = number as u8;
        at += 1;
    });
}

fn delta_of(snapshot: &Snapshot, from: Revision, changed: BTreeSet<ShardId>) -> rpc::RoutingTableDelta {
    let state = &snapshot.state;
    let mut owners = Owners::of(state);
    let mut delta = rpc::RoutingTableDelta {
        from_revision: from.0,
        version: Some(snapshot.version.into()),
        ..rpc::RoutingTableDelta::default()
    };
    for shard in changed {
        let record = state.shard(shard);
        delta.shards.push(shard.0);
        delta.owner.push(owners.index(record));
        delta.epochs.push(record.epoch.0);
        if matches!(record.state, ShardState::Releasing(_)) {
            delta.releasing.push(shard.0);
        }
    }
    delta.owners = owners.owners;
    delta
}

#[cfg(test)]
pub(crate) mod tests;
