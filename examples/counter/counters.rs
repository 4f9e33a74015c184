//! The work on shards: what the session starts and stops, and what requests are let into in between.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use shard_manager::client::{ShardGrant, ShardHost};
use shard_manager::types::ShardId;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::storage::{self, Storage};

/// Every counter of the shards that this process owns. Clones are the same.
#[derive(Clone)]
pub struct Counters {
    storage: Arc<Storage>,
    open: Arc<Mutex<HashMap<ShardId, Shard>>>,
}

/// A shard that is open to requests.
#[derive(Clone)]
struct Shard {
    grant: ShardGrant,
    /// Counts the requests inside.
    requests: TaskTracker,
    /// The storage has refused the grant's epoch.
    refused: CancellationToken,
}

/// A request that was let into a shard, until it is dropped.
pub struct Request {
    counters: Counters,
    shard: Shard,
    _inside: TaskTrackerToken,
}

impl Counters {
    /// No shard is open yet.
    pub fn new(storage: Storage) -> Counters {
        Counters { storage: Arc::new(storage), open: Arc::default() }
    }

    /// Lets a request into a shard; `None` where that is not open, and so not this process's.
    pub fn enter(&self, shard: ShardId) -> Option<Request> {
        // Counted before the lock is given back: who closes the shard after that waits for this request.
        let shard = self.open(|open| open.get(&shard).cloned().map(|shard| (shard.requests.token(), shard)));
        shard.map(|(_inside, shard)| Request { counters: self.clone(), shard, _inside })
    }

    fn open<T>(&self, look: impl FnOnce(&mut HashMap<ShardId, Shard>) -> T) -> T {
        look(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ShardHost for Counters {
    async fn run(&self, grant: ShardGrant) {
        // The fence first: once it is up, whoever owned the shard before can write no more, even if it does not know yet. Nobody is let
        // in before that.
        match self.storage.raise_fence(grant.shard, grant.epoch).await {
            Ok(()) => {}
            // The manager's state was lost or restored, and it gives out epochs that were there before. Told, it takes a higher one.
            Err(storage::Error::Fenced { seen }) => return grant.report_storage_epoch(seen),
            // To return is to give the shard up. The session calls again, after a pause.
            Err(error) => return tracing::warn!(shard = %grant.shard, %error, "the fence could not be raised; trying again"),
        }

        let shard = Shard { grant, requests: TaskTracker::new(), refused: CancellationToken::new() };
        let opening = Opening::of(self, shard.clone());
        tokio::select! {
            () = shard.grant.cancelled() => {}
            () = shard.refused.cancelled() => {}
        }

        // Nobody comes in any more, and who is inside finishes: the next owner may begin as soon as this returns.
        drop(opening);
        shard.requests.close();
        shard.requests.wait().await;
    }
}

/// Keeps a shard open. Dropped, it closes the shard: also where the lease ran out and the session dropped the whole of `run`.
struct Opening<'a>(&'a Counters, ShardId);

impl Opening<'_> {
    fn of(counters: &Counters, shard: Shard) -> Opening<'_> {
        let id = shard.grant.shard;
        counters.open(|open| open.insert(id, shard));
        Opening(counters, id)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.open(|open| open.remove(&self.1));
    }
}

impl Request {
    /// Adds one to the counter of a key of this shard; the new value.
    pub async fn increment(&self, key: &str) -> Result<i64, storage::Error> {
        let ShardGrant { shard, epoch, .. } = self.shard.grant;
        tracing::debug!(%shard, %epoch, key, "writing");
        self.heed(self.counters.storage.increment(key, shard, epoch).await)
    }

    /// The counter of a key of this shard.
    pub async fn read(&self, key: &str) -> Result<i64, storage::Error> {
        let ShardGrant { shard, epoch, .. } = self.shard.grant;
        self.heed(self.counters.storage.read(key, shard, epoch).await)
    }

    /// A refusal is proof that somebody else owns the shard, or did: it is given up, and the manager hears why.
    fn heed<T>(&self, result: Result<T, storage::Error>) -> Result<T, storage::Error> {
        if let Err(storage::Error::Fenced { seen }) = &result {
            let ShardGrant { shard, epoch, .. } = &self.shard.grant;
            tracing::warn!(%shard, %epoch, %seen, "the storage refused a stale epoch; the shard is given up");
            self.shard.grant.report_storage_epoch(*seen);
            self.shard.refused.cancel();
        }
        result
    }
}
