//! Where executors write what they work on. It is nobody's but theirs; it keeps the highest epoch that it saw of each shard, and
//! refuses what is lower. Over a store that lost what it had, nothing else protects (P3).

use std::collections::BTreeMap;

use shard_manager::types::{Epoch, ShardId};

use crate::context::Who;
use crate::guards::Guard;

#[derive(Default)]
pub struct Storage {
    seen: BTreeMap<ShardId, (Epoch, Who)>,
}

impl Storage {
    /// Takes a write, or says which epoch it has seen (`Some`). `apart`: two processes never have one epoch.
    pub fn write(
        &mut self,
        guard: Option<Guard>,
        shard: ShardId,
        epoch: Epoch,
        writer: Who,
        apart: bool,
    ) -> Result<Option<Epoch>, String> {
        let Some((seen, before)) = self.seen.get(&shard) else {
            self.seen.insert(shard, (epoch, writer));
            return Ok(None);
        };
        if epoch < *seen && guard != Some(Guard::StorageEpochs) {
            return Ok(Some(*seen));
        }
        if epoch < *seen {
            return Err(format!("P3: the storage took a write to shard {shard} at {epoch} after one at {seen}"));
        }
        if epoch == *seen && *before != writer && apart {
            return Err(format!("P4: {before:?} and {writer:?} both write to shard {shard} at {epoch}"));
        }
        self.seen.insert(shard, (epoch, writer));
        Ok(None)
    }
}
