//! Finds what is wrong with a state, or with a step from one state to the next.
//!
//! An empty list proves nothing about executors: it only says that the stored state keeps its own rules. What a large change leaves
//! behind between two commits is not wrong: shards whose owner is [`Standing::Gone`] or [`Standing::Superseded`] are taken away
//! page by page, as the store's limits allow.

use std::collections::BTreeMap;
use std::fmt;

use crate::assignment::record::{ExecutorRecord, MAX_ENDPOINT_LEN, ShardRecord, ShardState, Standing, Wish};
use crate::assignment::state::State;
use crate::types::{ClusterId, Epoch, ExecutorId, Incarnation, MAX_NUMBER, MAX_SHARDS, MAX_WEIGHT, ShardId, Slot, Term};

/// One process of an executor, as violations name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its stable name.
    pub id: ExecutorId,
    /// Which of its processes.
    pub incarnation: Incarnation,
}

impl Process {
    fn of(record: &ExecutorRecord) -> Process {
        Process { id: record.id.clone(), incarnation: record.incarnation }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.id, self.incarnation)
    }
}

/// A rule that is broken, and by what.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// See [`MAX_SHARDS`].
    #[error("the cluster has {number_of_shards} shards: it must be 1 to {MAX_SHARDS}")]
    NumberOfShards {
        /// As `meta` says.
        number_of_shards: u32,
    },
    /// See [`MAX_NUMBER`].
    #[error("term {term} leaves no room to grow: it must be at most {MAX_NUMBER}")]
    TermRange {
        /// As `meta` says.
        term: Term,
    },
    /// A shard is owned by nobody that is known.
    #[error("shard {shard} is owned by slot {slot}, which has no executor record")]
    OwnerMissing {
        /// The shard.
        shard: ShardId,
        /// The slot that it names.
        slot: Slot,
    },
    /// Epoch 0 means that the shard was never granted.
    #[error("shard {shard} is owned by executor {owner} at epoch 0, which stands for never granted")]
    NeverGranted {
        /// The shard.
        shard: ShardId,
        /// Its owner.
        owner: Process,
    },
    /// See [`MAX_NUMBER`].
    #[error("epoch {epoch} of shard {shard} leaves no room to grow: it must be at most {MAX_NUMBER}")]
    EpochRange {
        /// The shard.
        shard: ShardId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// Only one process counts under an id.
    #[error("executor {id} is present as incarnation {first} and as {second}: only one may be")]
    PresentTwice {
        /// The executor.
        id: ExecutorId,
        /// The one in the lower slot.
        first: Incarnation,
        /// The one in the higher slot.
        second: Incarnation,
    },
    /// One process, two records.
    #[error("executor {process} has records in slots {first} and {second}: it must have one")]
    RecordTwice {
        /// The executor.
        process: Process,
        /// The lower slot.
        first: Slot,
        /// The higher slot.
        second: Slot,
    },
    /// A process that was barred counts again (L13).
    #[error("executor {process} is present although this incarnation was retired")]
    RetiredPresent {
        /// The executor.
        process: Process,
    },
    /// An operator removed the id: nobody counts under it.
    #[error("executor {process} is present although the id was removed")]
    RemovedPresent {
        /// The executor.
        process: Process,
    },
    /// Processes never draw 0.
    #[error("executor {id} is recorded with incarnation 0, which no process draws")]
    IncarnationZero {
        /// The executor.
        id: ExecutorId,
    },
    /// See [`MAX_WEIGHT`].
    #[error("executor {process} has weight {weight}: it must be 1 to {MAX_WEIGHT}")]
    Weight {
        /// The executor.
        process: Process,
        /// Its weight.
        weight: u32,
    },
    /// See [`MAX_ENDPOINT_LEN`].
    #[error("executor {process} has an endpoint of {length} bytes: it must be 1 to {MAX_ENDPOINT_LEN}")]
    Endpoint {
        /// The executor.
        process: Process,
        /// Bytes of its endpoint.
        length: usize,
    },
    /// A page has content, or a number, that `meta` does not account for: it would be lost, or missed, at the next load (P9).
    #[error("page {page} of {kind} records and the inventory in meta do not agree")]
    Inventory {
        /// `executor`, `shard` or `retiree`.
        kind: &'static str,
        /// Which page.
        page: usize,
    },
    /// A cluster keeps its id.
    #[error("the cluster id changed from {before} to {after}")]
    ClusterIdChanged {
        /// The old one.
        before: ClusterId,
        /// The new one.
        after: ClusterId,
    },
    /// A cluster keeps its shards.
    #[error("the number of shards changed from {before} to {after}")]
    NumberOfShardsChanged {
        /// The old one.
        before: u32,
        /// The new one.
        after: u32,
    },
    /// Terms only grow.
    #[error("the term went back from {before} to {after}")]
    TermShrank {
        /// The old one.
        before: Term,
        /// The new one.
        after: Term,
    },
    /// Epochs only grow (P4).
    #[error("the epoch of shard {shard} went back from {before} to {after}")]
    EpochShrank {
        /// The shard.
        shard: ShardId,
        /// The old one.
        before: Epoch,
        /// The new one.
        after: Epoch,
    },
    /// Whoever owns a shard anew needs an epoch of its own (P4).
    #[error("shard {shard} was granted to executor {owner} at epoch {epoch}, which was used before")]
    EpochReused {
        /// The shard.
        shard: ShardId,
        /// Its new owner.
        owner: Process,
        /// Its epoch, before and after.
        epoch: Epoch,
    },
    /// A shard leaves a process that counts only by way of a release that was published first (P3, L2).
    #[error("shard {shard} was taken from executor {owner}, which is present, without being released first")]
    TakenUnreleased {
        /// The shard.
        shard: ShardId,
        /// Its owner before.
        owner: Process,
    },
    /// A release was published, and maybe confirmed: only a grant at a higher epoch undoes it.
    #[error("the release of shard {shard} by executor {owner} was taken back at epoch {epoch}")]
    ReleaseTakenBack {
        /// The shard.
        shard: ShardId,
        /// Its owner.
        owner: Process,
        /// Its epoch, before and after.
        epoch: Epoch,
    },
    /// Shards are granted to processes that count, and to no others.
    #[error("shard {shard} was granted to executor {owner}, which is {standing:?}")]
    GrantedToAbsent {
        /// The shard.
        shard: ShardId,
        /// Its new owner.
        owner: Process,
        /// How that one stands.
        standing: Standing,
    },
    /// A process that no longer counts never counts again (L13).
    #[error("executor {process} came back: it was retired, superseded or gone")]
    CameBack {
        /// The executor.
        process: Process,
    },
}

/// What is wrong with a state: meta and pages first, then executors by slot, then shards.
pub fn check(state: &State) -> Vec<Violation> {
    let mut violations = Vec::new();
    let meta = &state.meta;
    if meta.number_of_shards == 0 || meta.number_of_shards > MAX_SHARDS {
        violations.push(Violation::NumberOfShards { number_of_shards: meta.number_of_shards });
    }
    if meta.term.0 > MAX_NUMBER {
        violations.push(Violation::TermRange { term: meta.term });
    }
    check_inventory(state, &mut violations);
    check_executors(state, &mut violations);
    for (shard, record) in state.shards() {
        let owner = record.owner().map(|slot| (slot, state.executor(slot)));
        match owner {
            Some((slot, None)) => violations.push(Violation::OwnerMissing { shard, slot }),
            Some((_, Some(owner))) if record.epoch.0 == 0 => {
                violations.push(Violation::NeverGranted { shard, owner: Process::of(owner) });
            }
            _ => {}
        }
        if record.epoch.0 > MAX_NUMBER {
            violations.push(Violation::EpochRange { shard, epoch: record.epoch });
        }
    }
    violations
}

fn check_inventory(state: &State, violations: &mut Vec<Violation>) {
    let (executors, shards, retirees) = (state.executor_pages(), state.shard_pages(), state.retiree_pages());
    let inventory = &state.meta.inventory;
    let counted = inventory.executors as usize;
    if counted != executors {
        violations.push(Violation::Inventory { kind: "executor", page: counted.min(executors) });
    }
    let written = |page: &[ShardRecord]| page.iter().any(|record| *record != ShardRecord::default());
    let missing = (0..shards.len()).filter(|&page| !inventory.has_shards(page) && written(&shards[page]));
    let invented = (shards.len()..inventory.shards.len() * 64).filter(|&page| inventory.has_shards(page));
    violations.extend(missing.chain(invented).map(|page| Violation::Inventory { kind: "shard", page }));
    let missing = (0..retirees.len()).filter(|&page| !inventory.has_retirees(page) && !retirees[page].is_empty());
    violations.extend(missing.map(|page| Violation::Inventory { kind: "retiree", page }));
}

fn check_executors(state: &State, violations: &mut Vec<Violation>) {
    let mut present: BTreeMap<&ExecutorId, Incarnation> = BTreeMap::new();
    let mut processes: BTreeMap<(&ExecutorId, Incarnation), Slot> = BTreeMap::new();
    for (slot, record) in state.executors() {
        let process = Process::of(record);
        if record.incarnation.0 == 0 {
            violations.push(Violation::IncarnationZero { id: record.id.clone() });
        }
        if !(1..=MAX_WEIGHT).contains(&record.weight) {
            violations.push(Violation::Weight { process: process.clone(), weight: record.weight });
        }
        if !(1..=MAX_ENDPOINT_LEN).contains(&record.endpoint.len()) {
            violations.push(Violation::Endpoint { process: process.clone(), length: record.endpoint.len() });
        }
        if let Some(first) = processes.insert((&record.id, record.incarnation), slot) {
            violations.push(Violation::RecordTwice { process: process.clone(), first, second: slot });
        }
        if record.standing != Standing::Present {
            continue;
        }
        if let Some(first) = present.insert(&record.id, record.incarnation) {
            violations.push(Violation::PresentTwice { id: record.id.clone(), first, second: record.incarnation });
        }
        if state.retirement(&record.id, record.incarnation).is_some() {
            violations.push(Violation::RetiredPresent { process: process.clone() });
        }
        let removed = |other: &ExecutorRecord| other.standing != Standing::Present && other.wish == Wish::Remove;
        if state.executors().any(|(_, other)| other.id == record.id && removed(other)) {
            violations.push(Violation::RemovedPresent { process });
        }
    }
}

/// What is wrong with a step from a state to its direct successor, that is, with what one commit changed. Says nothing about what
/// [`check`] finds in either of them.
pub fn check_step(before: &State, after: &State) -> Vec<Violation> {
    let mut violations = Vec::new();
    let (old, new) = (&before.meta, &after.meta);
    if old.cluster_id != new.cluster_id {
        violations.push(Violation::ClusterIdChanged { before: old.cluster_id, after: new.cluster_id });
    }
    if new.term < old.term {
        violations.push(Violation::TermShrank { before: old.term, after: new.term });
    }
    let gone: BTreeMap<Process, Standing> =
        before.executors().filter(|(_, record)| record.standing != Standing::Present).map(standing).collect();
    let now: BTreeMap<Process, Standing> = after.executors().map(standing).collect();
    for (process, _) in now.iter().filter(|(_, standing)| **standing == Standing::Present) {
        if gone.contains_key(process) || before.retirement(&process.id, process.incarnation).is_some() {
            violations.push(Violation::CameBack { process: process.clone() });
        }
    }
    if old.number_of_shards != new.number_of_shards {
        violations.push(Violation::NumberOfShardsChanged { before: old.number_of_shards, after: new.number_of_shards });
        return violations;
    }
    let mut step = |(shard, old, new): (ShardId, ShardRecord, ShardRecord)| {
        check_shard_step(shard, (old, owner(before, old)), (new, owner(after, new)), &now, &mut violations);
    };
    // A slot that changed hands changes the owner of shards whose own record is the same.
    let changed_hands = |(slot, record)| after.executor(slot).is_some_and(|now| !same_process(record, now));
    if before.executors().any(changed_hands) {
        before.shards().zip(after.shards()).for_each(|((shard, old), (_, new))| step((shard, old, new)));
    } else {
        after.changed_shards(before).for_each(step);
    }
    violations
}

fn check_shard_step(
    shard: ShardId,
    (old, old_owner): (ShardRecord, Option<&ExecutorRecord>),
    (new, new_owner): (ShardRecord, Option<&ExecutorRecord>),
    now: &BTreeMap<Process, Standing>,
    violations: &mut Vec<Violation>,
) {
    if new.epoch < old.epoch {
        violations.push(Violation::EpochShrank { shard, before: old.epoch, after: new.epoch });
    }
    if let Some((old_owner, new_owner)) = old_owner.zip(new_owner)
        && same_process(old_owner, new_owner)
    {
        let taken_back = matches!((old.state, new.state), (ShardState::Releasing(_), ShardState::Held(_)));
        if taken_back && new.epoch == old.epoch {
            violations.push(Violation::ReleaseTakenBack { shard, owner: Process::of(new_owner), epoch: new.epoch });
        }
        return;
    }
    if let Some(owner) = new_owner {
        if new.epoch == old.epoch {
            violations.push(Violation::EpochReused { shard, owner: Process::of(owner), epoch: new.epoch });
        }
        if owner.standing != Standing::Present {
            violations.push(Violation::GrantedToAbsent { shard, owner: Process::of(owner), standing: owner.standing });
        }
    }
    if let (ShardState::Held(_), Some(owner)) = (old.state, old_owner.map(Process::of))
        && now.get(&owner) == Some(&Standing::Present)
    {
        violations.push(Violation::TakenUnreleased { shard, owner });
    }
}

fn standing((_, record): (Slot, &ExecutorRecord)) -> (Process, Standing) {
    (Process::of(record), record.standing)
}

fn owner(state: &State, record: ShardRecord) -> Option<&ExecutorRecord> {
    state.executor(record.owner()?)
}

fn same_process(a: &ExecutorRecord, b: &ExecutorRecord) -> bool {
    a.incarnation == b.incarnation && a.id == b.id
}

#[cfg(test)]
mod tests;
