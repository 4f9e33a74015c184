//! What a user of the library brings: the work of one shard.

use std::future::Future;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::control::Control;
use crate::types::{ClusterId, Epoch, ShardId};

/// Works on shards while they are this executor's.
///
/// The session calls [`run`](ShardHost::run) once for every grant: for each shard and epoch that the manager assigns, and again when
/// a shard comes back after its lease ran out. Two futures of one shard never overlap: a new one begins after the old one returned
/// or was dropped.
pub trait ShardHost: Send + Sync + 'static {
    /// Works on one shard, from now until [`ShardGrant::cancelled`], and returns when nothing of it is running any more: the return is
    /// what the manager takes as proof that the next owner may begin.
    ///
    /// - **Cancel-safe.** If the executor's lease on the shard ends before the future returned, the session fires the token and then
    ///   drops the future at whatever `.await` it stands.
    /// - Work that it spawned elsewhere is not dropped with it. It must watch the token, and only the epoch in the storage fences it.
    /// - **Not blocking.** A future that blocks its thread cannot be dropped, and may starve the session, which then cannot renew.
    /// - A future that returns or panics before it was cancelled gives the shard up: the manager is told that it is not held, and the
    ///   session runs it again after a pause that grows from 100 ms to 10 s, for as long as the shard is still assigned. A shard that is
    ///   not running when a lease and a margin have passed since its grant, or since it was first missed later on, is asked back, and goes
    ///   to another executor where there is one.
    fn run(&self, grant: ShardGrant) -> impl Future<Output = ()> + Send;
}

/// One shard, granted at one epoch. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ShardGrant {
    /// The cluster that granted it.
    pub cluster_id: ClusterId,
    /// Which shard.
    pub shard: ShardId,
    /// The fencing token to give to the storage with every write.
    pub epoch: Epoch,
    pub(super) token: CancellationToken,
    pub(super) controls: mpsc::UnboundedSender<Control>,
}

impl ShardGrant {
    /// Completes when the shard must be given up: it was released, the lease ran out, or the session ends.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// Whether the shard must be given up.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Tells the manager that the storage refused this grant's epoch because it has seen the higher `seen`, which happens after the
    /// manager's own state was lost or restored. The manager then grants the shard at a higher epoch (L11). An epoch outside
    /// 1 ..= [`MAX_NUMBER`](crate::types::MAX_NUMBER) is ignored.
    pub fn report_storage_epoch(&self, seen: Epoch) {
        // A session that is over has nobody to tell.
        let _ = self.controls.send(Control::StorageEpoch(self.shard, seen));
    }

    /// A token that is cancelled together with the grant, for code that wants one. Cancelling it does not give the shard up.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.token.child_token()
    }
}
