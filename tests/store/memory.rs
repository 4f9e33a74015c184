//! The store in memory: the suite, and what makes it go wrong on purpose.

use shard_manager::backend::Fence;
use shard_manager::store::codec::Key;
use shard_manager::store::memory::{Disturbance, MemoryStore};
use shard_manager::store::{Error, Store};

use crate::conformance::{Harness, conformance};
use crate::sample::{self, whole};

impl Harness for MemoryStore {
    async fn open(&self) -> impl Store + 'static {
        self.clone()
    }

    async fn lead(&self) -> Fence {
        MemoryStore::lead(self)
    }

    async fn record(&self, key: Key) -> Option<Vec<u8>> {
        MemoryStore::record(self, key)
    }

    async fn tamper(&self, key: Key, bytes: Option<Vec<u8>>) {
        MemoryStore::tamper(self, key, bytes);
    }
}

conformance!(conforms, MemoryStore::new());

#[tokio::test]
async fn a_disturbance_strikes_once_and_is_settled_by_sending_again() {
    for (disturbance, lands) in [(Disturbance::Refuse, false), (Disturbance::LoseRequest, false), (Disturbance::LoseAnswer, true)]
    {
        let store = MemoryStore::new();
        let fence = store.lead();
        let changes = whole(&sample::state(10, fence.token()));
        store.disturb(disturbance);
        let outcome = store.commit(&fence, None, &changes).await;
        match disturbance {
            Disturbance::Refuse => assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}"),
            _ => assert!(matches!(outcome, Err(Error::OutcomeUnknown { .. })), "{outcome:?}"),
        }
        assert_eq!(store.load().await.unwrap().is_some(), lands);
        let settled = store.commit(&fence, None, &changes).await.unwrap();
        assert_eq!(store.load().await.unwrap().unwrap().revision, settled);
    }
}
