//! Why shards are not served: one byte a shard, and counts.

use std::collections::BTreeMap;

use crate::assignment::command::Cause;
use crate::types::ShardId;

/// For each shard, why nobody is known to serve it; `None` where somebody is.
#[derive(Clone, Debug)]
pub struct Unserved {
    causes: Vec<Option<Cause>>,
    counts: BTreeMap<Cause, u32>,
}

impl Unserved {
    pub fn new(number_of_shards: u32) -> Unserved {
        Unserved { causes: vec![None; number_of_shards as usize], counts: Cause::ALL.map(|cause| (cause, 0)).into() }
    }

    pub fn get(&self, shard: ShardId) -> Option<Cause> {
        self.causes[shard.0 as usize]
    }

    pub fn set(&mut self, shard: ShardId, cause: Option<Cause>) {
        let before = std::mem::replace(&mut self.causes[shard.0 as usize], cause);
        if let Some(before) = before {
            *self.counts.entry(before).or_default() -= 1;
        }
        if let Some(cause) = cause {
            *self.counts.entry(cause).or_default() += 1;
        }
    }

    pub fn counts(&self) -> &BTreeMap<Cause, u32> {
        &self.counts
    }
}
