//! Editions, tables and the steps between them.

use super::*;
use crate::assignment::record::{ExecutorRecord, ShardRecord, Standing, Wish};
use crate::assignment::state::{Inventory, Meta, Seal};
use crate::types::{Epoch, Incarnation, Term, Token};

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
        pause: None,
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

fn table(edition: &Edition) -> rpc::RoutingTable {
    rpc::RoutingTable::decode(edition.table()).unwrap()
}

#[test]
fn a_table_is_encoded_as_its_message_would_be() {
    let mut state = State::clone(&snapshot(3_000, 4, 6).state);
    for shard in 2..2_000 {
        let owned = [ShardState::Held(Slot(3)), ShardState::Releasing(Slot(3)), ShardState::Unassigned];
        let record = ShardRecord { epoch: Epoch(1 << (shard % 62)), state: owned[shard as usize % 3] };
        state.set_shard(ShardId(shard), record);
    }
    let version = Version { term: Term(4), revision: Revision(7) };
    let edition = Edition::new(Snapshot { version, state: Arc::new(state) }, History::default());
    assert_eq!(table(&edition).encode_to_vec(), edition.table());
    assert_eq!(table(&edition).releasing.len(), 1 + 666);
}

#[test]
fn a_table_says_who_owns_what() {
    let published = Published::default();
    assert!(published.current().is_none());
    published.publish(snapshot(3, 4, 6));
    let table = table(&published.current().unwrap());
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
    assert_eq!(first.as_ptr(), published.current().unwrap().table().as_ptr());
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

mod steps {
    use proptest::prelude::*;

    use super::*;
    use crate::client::Table;

    fn step(edition: &Edition, from: Version) -> Option<rpc::RoutingTableDelta> {
        let cluster_id = edition.snapshot.state.meta.cluster_id;
        edition.delta(cluster_id, from).map(|delta| rpc::RoutingTableDelta::decode(delta).unwrap())
    }

    fn publish(published: &Published, state: &State, term: u64, revision: u64) -> Arc<Edition> {
        let version = Version { term: Term(term), revision: Revision(revision) };
        published.publish(Snapshot { version, state: Arc::new(state.clone()) });
        published.current().unwrap()
    }

    fn read(edition: &Edition) -> Table {
        Table::read(&table(edition)).unwrap()
    }

    /// What happens to a state.
    #[derive(Clone, Debug)]
    enum Change {
        Shard(u32, u64, ShardState),
        Endpoint(u32, u16),
        Gone(u32),
    }

    const SHARDS: u32 = 2_500;

    fn change() -> impl Strategy<Value = Change> {
        let shard = 0..SHARDS;
        let state = prop_oneof![
            Just(ShardState::Unassigned),
            (0..20u32).prop_map(|slot| ShardState::Held(Slot(slot))),
            (0..20u32).prop_map(|slot| ShardState::Releasing(Slot(slot))),
        ];
        prop_oneof![
            20 => (shard, 1..9u64, state).prop_map(|(shard, epoch, state)| Change::Shard(shard, epoch, state)),
            1 => (0..20u32, 1..9u16).prop_map(|(slot, port)| Change::Endpoint(slot, port)),
            1 => (0..20u32).prop_map(Change::Gone),
        ]
    }

    fn record(slot: u32, port: u16) -> ExecutorRecord {
        ExecutorRecord {
            id: format!("e{slot}").parse().unwrap(),
            incarnation: Incarnation(u64::from(slot) + 1),
            endpoint: format!("http://127.0.0.1:{port}"),
            weight: 1,
            wish: Wish::None,
            leaving: false,
            standing: Standing::Present,
        }
    }

    fn apply(state: &mut State, change: Change) {
        match change {
            Change::Shard(shard, epoch, to) => {
                let record = ShardRecord { epoch: Epoch(epoch), state: to };
                if record.owner().is_none_or(|slot| state.executor(slot).is_some()) {
                    state.set_shard(ShardId(shard), record);
                }
            }
            Change::Endpoint(slot, port) => state.set_executor(Slot(slot), Some(record(slot, port))),
            Change::Gone(slot) => {
                if state.shards().all(|(_, record)| record.owner() != Some(Slot(slot))) {
                    state.set_executor(Slot(slot), None);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A full table and any way of steps from it make the full table at the end of the way.
        #[test]
        fn a_full_table_and_steps_make_the_newest_table(
            turns in proptest::collection::vec((proptest::collection::vec(change(), 0..40), any::<bool>()), 1..30)
        ) {
            let published = Published::default();
            let mut state = State::clone(&snapshot(SHARDS, 4, 1).state);
            (0..20).for_each(|slot| state.set_executor(Slot(slot), Some(record(slot, 1))));
            let first = read(&publish(&published, &state, 4, 1));
            // One that is told each step it sees, and one that has nothing but the first table.
            let mut reader = first.clone();
            for (revision, (changes, is_told)) in (2..).zip(turns) {
                changes.into_iter().for_each(|change| apply(&mut state, change));
                let edition = publish(&published, &state, 4, revision);
                let newest = read(&edition);
                if is_told {
                    reader.apply(&step(&edition, reader.version()).expect("the way is known")).unwrap();
                    prop_assert_eq!(&reader, &newest);
                }
                let mut late = first.clone();
                late.apply(&step(&edition, first.version()).expect("the way is known")).unwrap();
                prop_assert_eq!(&late, &newest);
            }
        }
    }

    #[test]
    fn a_step_names_what_changed_and_is_made_once() {
        let published = Published::default();
        let mut state = State::clone(&snapshot(3, 4, 6).state);
        let first = publish(&published, &state, 4, 6).snapshot.version;
        state.set_shard(ShardId(2), ShardRecord { epoch: Epoch(10), state: ShardState::Held(Slot(3)) });
        publish(&published, &state, 4, 7);
        state.set_shard(ShardId(0), ShardRecord { epoch: Epoch(9), state: ShardState::Unassigned });
        let newest = publish(&published, &state, 4, 8);
        let delta = step(&newest, first).unwrap();
        assert_eq!((delta.from_revision, delta.version), (6, Some(rpc::Version { term: 4, revision: 8 })));
        assert_eq!((delta.shards, delta.owner, delta.epochs), (vec![0, 2], vec![rpc::NOBODY, 0], vec![9, 10]));
        assert_eq!(step(&newest, newest.snapshot.version).unwrap().shards, [0; 0]);
        let cluster_id = newest.snapshot.state.meta.cluster_id;
        let twice = [newest.delta(cluster_id, first).unwrap(), newest.delta(cluster_id, first).unwrap()];
        assert_eq!(twice[0].as_ptr(), twice[1].as_ptr());
    }

    #[test]
    fn who_comes_from_elsewhere_gets_the_whole_table() {
        let published = Published::default();
        let state = State::clone(&snapshot(3, 4, 6).state);
        let first = publish(&published, &state, 4, 6).snapshot.version;
        let newest = publish(&published, &state, 4, 9);
        let cluster_id = state.meta.cluster_id;
        assert!(newest.delta(cluster_id, first).is_some());
        assert!(newest.delta(ClusterId(uuid::Uuid::from_u128(8)), first).is_none(), "another cluster");
        for (term, revision) in [(3, 6), (4, 7), (4, 10), (5, 6)] {
            let from = Version { term: Term(term), revision: Revision(revision) };
            assert!(newest.delta(cluster_id, from).is_none(), "{from} was never published");
        }
        let newest = publish(&published, &state, 5, 10);
        assert!(newest.delta(cluster_id, first).is_none(), "a new term begins with the whole table");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let published = Published::default();
        let mut state = State::clone(&snapshot(4_000, 4, 1).state);
        publish(&published, &state, 4, 1);
        for revision in 2..100 {
            state.set_shard(ShardId(0), ShardRecord { epoch: Epoch(revision), state: ShardState::Unassigned });
            publish(&published, &state, 4, revision);
        }
        let newest = published.current().unwrap();
        assert_eq!(newest.history.0.len(), History::STEPS);
        // As many as make a step no smaller than a table.
        (0..1_100)
            .for_each(|shard| state.set_shard(ShardId(shard), ShardRecord { epoch: Epoch(200), state: ShardState::Unassigned }));
        let newest = publish(&published, &state, 4, 100);
        assert!(newest.history.0.is_empty());
    }
}
