//! The futures of the shards: one task each.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::task::{AbortHandle, Id, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::host::{ShardGrant, ShardHost};
use crate::types::{Epoch, ShardId};

/// Runs, cancels and drops the futures of shards. Dropped itself, it cancels and drops them all.
pub struct Workers<H> {
    host: Arc<H>,
    tasks: JoinSet<()>,
    by_shard: HashMap<ShardId, Worker>,
    by_task: HashMap<Id, ShardId>,
    fenced: usize,
    /// Parent of every shard's token.
    all: CancellationToken,
    _cancel_all: DropGuard,
}

struct Worker {
    epoch: Epoch,
    token: CancellationToken,
    task: AbortHandle,
    is_fenced: bool,
}

/// A future that is no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Of this shard.
    pub shard: ShardId,
    /// At this epoch.
    pub epoch: Epoch,
    /// It was to be dropped, whether or not it returned just before.
    pub is_fenced: bool,
    /// Nobody had asked it to end.
    pub is_unasked: bool,
    /// It panicked, and this is how.
    pub panic: Option<String>,
}

impl<H: ShardHost> Workers<H> {
    /// None yet.
    pub fn new(host: H) -> Workers<H> {
        let all = CancellationToken::new();
        let _cancel_all = all.clone().drop_guard();
        Workers {
            host: Arc::new(host),
            tasks: JoinSet::new(),
            by_shard: HashMap::new(),
            by_task: HashMap::new(),
            fenced: 0,
            all,
            _cancel_all,
        }
    }

    /// A token for a new grant.
    pub fn token(&self) -> CancellationToken {
        self.all.child_token()
    }

    /// Runs a shard. The one before, if any, has ended: the ledger sees to that.
    pub fn start(&mut self, grant: ShardGrant) {
        let (shard, epoch, token) = (grant.shard, grant.epoch, grant.token.clone());
        let host = Arc::clone(&self.host);
        let task = self.tasks.spawn(async move { host.run(grant).await });
        self.by_task.insert(task.id(), shard);
        let before = self.by_shard.insert(shard, Worker { epoch, token, task, is_fenced: false });
        debug_assert!(before.is_none(), "shard {shard} is still running at an older epoch");
    }

    /// Asks a shard to stop.
    pub fn stop(&self, shard: ShardId) {
        if let Some(worker) = self.by_shard.get(&shard) {
            worker.token.cancel();
        }
    }

    /// Asks a shard to stop, and drops its future.
    pub fn fence(&mut self, shard: ShardId) {
        if let Some(worker) = self.by_shard.get_mut(&shard) {
            worker.token.cancel();
            worker.task.abort();
            self.fenced += usize::from(!worker.is_fenced);
            worker.is_fenced = true;
        }
    }

    /// Asks every shard to stop, and drops their futures.
    pub fn fence_all(&mut self) {
        let shards: Vec<ShardId> = self.by_shard.keys().copied().collect();
        shards.into_iter().for_each(|shard| self.fence(shard));
    }

    /// Whether a fenced future is not dropped yet.
    pub fn is_fencing(&self) -> bool {
        self.fenced > 0
    }

    /// The next future that ended; waits for ever where there is none. Cancel-safe.
    pub async fn ended(&mut self) -> Ended {
        loop {
            let (id, panic) = match self.tasks.join_next_with_id().await {
                Some(Ok((id, ()))) => (id, None),
                Some(Err(error)) => (error.id(), error.is_panic().then(|| error.to_string())),
                None => std::future::pending().await,
            };
            if let Some(shard) = self.by_task.remove(&id)
                && let Some(worker) = self.by_shard.remove(&shard)
            {
                self.fenced -= usize::from(worker.is_fenced);
                let Worker { epoch, token, is_fenced, .. } = worker;
                return Ended { shard, epoch, is_fenced, is_unasked: !token.is_cancelled(), panic };
            }
        }
    }
}
