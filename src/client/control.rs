//! What is asked of a running session.

use std::time::Duration;

use crate::types::{Epoch, ShardId};

/// What the session's handle and its grants ask of the task.
#[derive(Debug)]
pub enum Control {
    /// Leave, within this time.
    Leave(Duration),
    /// Stop now.
    Stop,
    /// Stop now, and give nothing up: another process of this id follows.
    Restart,
    /// The storage has seen this epoch.
    StorageEpoch(ShardId, Epoch),
}
