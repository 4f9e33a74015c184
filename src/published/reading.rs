//! What one watcher has of the routing table, and so what it is told next.

use super::Edition;
use crate::rpc::ready::Message;
use crate::types::{ClusterId, Version};

/// The fields of `WatchRoutingTableResponse`.
const FULL: u32 = 1;
const DELTA: u32 = 2;

/// See the module.
#[derive(Clone, Debug)]
pub struct Reading(Option<(ClusterId, Version)>);

impl Reading {
    /// Of a watcher that comes with this table, if any.
    pub fn from(known: Option<(ClusterId, Version)>) -> Reading {
        Reading(known)
    }

    /// Whether it was told, or came with, something else than this edition.
    pub fn lacks(&self, edition: &Edition) -> bool {
        self.0.is_none_or(|(_, version)| version != edition.snapshot.version)
    }

    /// A `WatchRoutingTableResponse` that leads it to this edition: a step where it is known what changed since, else the whole table.
    pub fn step_to(&mut self, edition: &Edition) -> Message {
        let delta = self.0.and_then(|(cluster_id, version)| edition.delta(cluster_id, version));
        self.0 = Some((edition.snapshot.state.meta.cluster_id, edition.snapshot.version));
        match delta {
            Some(delta) => Message::within(DELTA, delta),
            None => Message::within(FULL, edition.table()),
        }
    }
}
