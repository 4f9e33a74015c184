//! Until when shards have time. What one commit grants has one deadline, so very many shards share few of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::assignment::lease::{Stall, postponed};
use crate::types::{BootInstant, ShardId};

/// Shards, each once, with their deadlines.
#[derive(Clone, Debug, Default)]
pub struct Deadlines(BTreeMap<BootInstant, BTreeSet<ShardId>>);

impl Deadlines {
    /// In place of the deadline that a shard had, if it had one.
    pub fn insert(&mut self, shard: ShardId, deadline: BootInstant) {
        self.remove(shard);
        self.0.entry(deadline).or_default().insert(shard);
    }

    pub fn remove(&mut self, shard: ShardId) {
        // None is left behind empty: see `first`.
        self.0.retain(|_, shards| !shards.remove(&shard) || !shards.is_empty());
    }

    pub fn get(&self, shard: ShardId) -> Option<BootInstant> {
        self.0.iter().find(|(_, shards)| shards.contains(&shard)).map(|(deadline, _)| *deadline)
    }

    /// How many shards have one.
    pub fn len(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// The earliest.
    pub fn first(&self) -> Option<BootInstant> {
        self.0.keys().next().copied()
    }

    /// Shards whose deadline is over, ascending.
    pub fn over(&self, now: BootInstant) -> Vec<ShardId> {
        ascending(self.0.range(..=now).flat_map(|(_, shards)| shards.iter().copied()))
    }

    /// Every shard, ascending.
    pub fn shards(&self) -> Vec<ShardId> {
        ascending(self.0.values().flatten().copied())
    }

    /// Takes over all of another's, none of which has one here; none is left there.
    pub fn append(&mut self, other: &mut Deadlines) {
        debug_assert!(other.shards().iter().all(|shard| self.get(*shard).is_none()));
        for (deadline, mut shards) in std::mem::take(&mut other.0) {
            self.0.entry(deadline).or_default().append(&mut shards);
        }
    }

    /// Forgets what is over, and says what it was, ascending.
    pub fn take_over(&mut self, now: BootInstant) -> Vec<ShardId> {
        let over = self.over(now);
        self.0.retain(|deadline, _| *deadline > now);
        over
    }

    /// See [`postponed`].
    pub fn postpone(&mut self, stall: &Stall) {
        for (deadline, mut shards) in std::mem::take(&mut self.0) {
            self.0.entry(postponed(deadline, stall)).or_default().append(&mut shards);
        }
    }
}

fn ascending(shards: impl Iterator<Item = ShardId>) -> Vec<ShardId> {
    let mut shards: Vec<ShardId> = shards.collect();
    shards.sort_unstable();
    shards
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> BootInstant {
        BootInstant(Duration::from_millis(ms))
    }

    #[test]
    fn a_shard_has_one_deadline_and_those_that_are_over_come_in_order() {
        let mut deadlines = Deadlines::default();
        for (shard, until) in [(5, 20), (3, 30), (4, 20), (5, 30), (4, 10)] {
            deadlines.insert(ShardId(shard), at(until));
        }
        assert_eq!((deadlines.first(), deadlines.get(ShardId(5)), deadlines.get(ShardId(6))), (Some(at(10)), Some(at(30)), None));
        assert_eq!(deadlines.over(at(9)), []);
        assert_eq!(deadlines.over(at(30)), [3, 4, 5].map(ShardId));
        deadlines.remove(ShardId(4));
        assert_eq!(deadlines.first(), Some(at(30)), "nothing is due at 10 any more");
        deadlines.postpone(&Stall { now: at(100), delay: Duration::from_millis(90), grace: Duration::from_millis(1) });
        assert_eq!(deadlines.first(), Some(at(120)));
        let mut others = Deadlines::default();
        others.insert(ShardId(4), at(200));
        others.append(&mut deadlines);
        assert_eq!((others.shards(), deadlines.first()), ([3, 4, 5].map(ShardId).to_vec(), None));
        assert_eq!((others.take_over(at(119)), others.take_over(at(120))), (Vec::new(), [3, 5].map(ShardId).to_vec()));
        assert_eq!(others.shards(), [ShardId(4)]);
    }
}
