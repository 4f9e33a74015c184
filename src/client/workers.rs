//! The futures of the shards: one task each.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Of this shard.
    pub shard: ShardId,
    /// At this epoch.
    pub epoch: Epoch,
    /// It was to be dropped, whether or not it returned just before.
    pub is_fenced: bool,
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
            let (id, result) = match self.tasks.join_next_with_id().await {
                Some(Ok((id, ()))) => (id, Ok(())),
                Some(Err(error)) => (error.id(), Err(error)),
                None => std::future::pending().await,
            };
            if let Some(shard) = self.by_task.remove(&id)
                && let Some(worker) = self.by_shard.remove(&shard)
            {
                self.fenced -= usize::from(worker.is_fenced);
                tell(shard, &worker, result);
                return Ended { shard, epoch: worker.epoch, is_fenced: worker.is_fenced };
            }
        }
    }
}

fn tell(shard: ShardId, worker: &Worker, result: Result<(), JoinError>) {
    let epoch = worker.epoch;
    match result {
        Err(error) if error.is_panic() => {
            tracing::error!(%shard, %epoch, %error, "the work on a shard panicked; it counts as not held");
        }
        Ok(()) if !worker.token.is_cancelled() => {
            tracing::warn!(%shard, %epoch, "the work on a shard ended unasked; it counts as not held");
        }
        _ => {}
    }
}
