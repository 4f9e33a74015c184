//! **L12.** Who comes from another cluster to a leader, and what that leader must not do for a while then.

use std::collections::BTreeMap;
use std::time::Duration;

use shard_manager::assignment::command::Snapshot;
use shard_manager::assignment::record::ShardState;
use shard_manager::types::{BootInstant, ClusterId};

use crate::context::Caller;

#[derive(Default)]
pub struct Newcomers {
    /// When the first one came from each cluster.
    came: BTreeMap<ClusterId, BootInstant>,
    /// From then on for as long as a lease.
    nothing_since: Option<BootInstant>,
}

impl Newcomers {
    /// Somebody registers. Whom the state has already, a leader before took in: what that held back ended with it.
    pub fn came(&mut self, now: BootInstant, caller: &Caller, newest: &Snapshot) {
        let (Some(before), Some((id, incarnation))) = (caller.before, &caller.who) else { return };
        if newest.state.incarnation(id, *incarnation).is_none() {
            self.came.entry(before).or_insert(now);
        }
    }

    /// One of them was taken in: others of its cluster may still work under the leases that they had when it came.
    pub fn taken_in(&mut self, caller: &Caller, own: ClusterId) {
        let came = caller.before.filter(|before| *before != own).and_then(|before| self.came.get(&before));
        if let Some(came) = came {
            self.nothing_since = self.nothing_since.max(Some(*came));
        }
    }

    /// Nothing is granted for as long as a lease lasts.
    pub fn check(&self, now: BootInstant, lease: Duration, before: &Snapshot, after: &Snapshot) -> Result<(), String> {
        let mut pairs = before.state.shards().zip(after.state.shards());
        let is_grant = |was: ShardState, is: ShardState| was == ShardState::Unassigned && matches!(is, ShardState::Held(_));
        match pairs.find(|((_, was), (_, is))| is_grant(was.state, is.state)) {
            Some(((shard, _), _)) if self.nothing_since.is_some_and(|since| now < since.after(lease)) => {
                let left = self.nothing_since.map(|since| since.after(lease).since(now)).unwrap_or_default();
                Err(format!("L12: shard {shard} is granted {left:?} before the leases of another cluster are over"))
            }
            _ => Ok(()),
        }
    }
}
