//! The state in force as readers see it. Reading it takes no turn of the coordinator.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

use crate::assignment::command::Snapshot;
use crate::assignment::record::ShardState;
use crate::rpc;

/// Where the coordinator puts each durable state, and readers find the newest.
pub struct Published {
    current: watch::Sender<Option<Arc<Edition>>>,
}

/// One durable state and the routing table made from it.
pub struct Edition {
    /// The state.
    pub snapshot: Snapshot,
    table: OnceLock<Arc<rpc::RoutingTable>>,
}

impl Default for Published {
    fn default() -> Self {
        Published { current: watch::Sender::new(None) }
    }
}

impl Published {
    /// Replaces what readers see. Only the coordinator calls this, and only with what is durable (P2); versions ascend (P7).
    pub fn publish(&self, snapshot: Snapshot) {
        self.current.send_replace(Some(Arc::new(Edition { snapshot, table: OnceLock::new() })));
    }

    /// The newest state; `None` before this leadership's first commit.
    pub fn current(&self) -> Option<Arc<Edition>> {
        self.current.borrow().clone()
    }

    /// Waits until there is a state. Cancel-safe.
    pub async fn first(&self) -> Arc<Edition> {
        let mut editions = self.current.subscribe();
        loop {
            if let Some(edition) = editions.borrow_and_update().clone() {
                return edition;
            }
            if editions.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Edition {
    /// The routing table of this state; made when the first reader asks, and shared by all who ask after it.
    pub fn table(&self) -> Arc<rpc::RoutingTable> {
        Arc::clone(self.table.get_or_init(|| Arc::new(table_of(&self.snapshot))))
    }
}

fn table_of(snapshot: &Snapshot) -> rpc::RoutingTable {
    let state = &snapshot.state;
    let mut owners = Vec::new();
    let mut index_of = HashMap::new();
    for (slot, record) in state.executors() {
        index_of.insert(slot, u32::try_from(owners.len()).unwrap_or(rpc::NOBODY));
        owners.push(rpc::Owner {
            executor_id: record.id.to_string(),
            incarnation: record.incarnation.0,
            endpoint: record.endpoint.clone(),
        });
    }
    let shards = state.meta.number_of_shards as usize;
    let mut table = rpc::RoutingTable {
        cluster_id: state.meta.cluster_id.to_string(),
        version: Some(snapshot.version.into()),
        number_of_shards: state.meta.number_of_shards,
        owners,
        owner: Vec::with_capacity(shards),
        epochs: Vec::with_capacity(shards),
        releasing: Vec::new(),
    };
    for (shard, record) in state.shards() {
        table.owner.push(record.owner().and_then(|slot| index_of.get(&slot).copied()).unwrap_or(rpc::NOBODY));
        table.epochs.push(record.epoch.0);
        if matches!(record.state, ShardState::Releasing(_)) {
            table.releasing.push(shard.0);
        }
    }
    table
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::assignment::record::{ExecutorRecord, ShardRecord, Standing, Wish};
    use crate::assignment::state::{Inventory, Meta, Seal, State};
    use crate::types::{ClusterId, Epoch, Incarnation, Revision, ShardId, Slot, Term, Token, Version};

    /// A state of `shards` shards with one executor, `a`, that holds shard 0 and releases shard 1.
    pub(crate) fn snapshot(shards: u32, term: u64, revision: u64) -> Snapshot {
        let mut state = State::new(Meta {
            cluster_id: ClusterId(uuid::Uuid::from_u128(7)),
            number_of_shards: shards,
            term: Term(term),
            token: Token(1),
            attempt: 1,
            lease_ttl_ms: 30_000,
            inventory: Inventory::default(),
            seal: Seal::Open,
        });
        let record = ExecutorRecord {
            id: "a".parse().unwrap(),
            incarnation: Incarnation(5),
            endpoint: "http://127.0.0.1:1".to_owned(),
            weight: 1,
            wish: Wish::None,
            leaving: false,
            standing: Standing::Present,
        };
        state.set_executor(Slot(3), Some(record));
        state.set_shard(ShardId(0), ShardRecord { epoch: Epoch(9), state: ShardState::Held(Slot(3)) });
        state.set_shard(ShardId(1), ShardRecord { epoch: Epoch(8), state: ShardState::Releasing(Slot(3)) });
        Snapshot { version: Version { term: Term(term), revision: Revision(revision) }, state: Arc::new(state) }
    }

    #[test]
    fn a_table_says_who_owns_what() {
        let published = Published::default();
        assert!(published.current().is_none());
        published.publish(snapshot(3, 4, 6));
        let table = published.current().unwrap().table();
        assert_eq!(table.version, Some(rpc::Version { term: 4, revision: 6 }));
        assert_eq!(table.owner, [0, 0, rpc::NOBODY]);
        assert_eq!(table.epochs, [9, 8, 0]);
        assert_eq!(table.releasing, [1]);
        assert_eq!(table.owners.len(), 1);
        assert_eq!(table.owners[0].executor_id, "a");
    }

    #[test]
    fn a_table_is_made_once_for_all_readers() {
        let published = Published::default();
        published.publish(snapshot(3, 4, 6));
        let first = published.current().unwrap().table();
        assert!(Arc::ptr_eq(&first, &published.current().unwrap().table()));
    }

    #[tokio::test]
    async fn who_waits_for_the_first_state_gets_it() {
        let published = Arc::new(Published::default());
        let waiting = tokio::spawn({
            let published = Arc::clone(&published);
            async move { published.first().await.snapshot.version }
        });
        published.publish(snapshot(3, 4, 6));
        assert_eq!(waiting.await.unwrap().revision, Revision(6));
    }
}
