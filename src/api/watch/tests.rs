//! Over real sockets, with editions that the test publishes.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tonic::codegen::tokio_stream::StreamExt;

use super::*;
use crate::api::nursery::Nursery;
use crate::api::serve::{self, Protocol};
use crate::assignment::command::Snapshot;
use crate::assignment::record::{ShardRecord, ShardState};
use crate::assignment::state::State;
use crate::coordinator::{Calls, Handle};
use crate::metrics::Metrics;
use crate::published::Published;
use crate::published::tests::snapshot;
use crate::rpc::shard_manager_client::ShardManagerClient;
use crate::rpc::watch_routing_table_response::Change;
use crate::rpc::{self, reason, reason_of};
use crate::types::{Epoch, Revision, ShardId, Slot, Term};

const SOON: Duration = Duration::from_secs(5);

/// A leader without a coordinator: nobody calls it here.
struct Leader {
    leading: Leading,
    address: SocketAddr,
    stopping: CancellationToken,
    state: State,
    version: Version,
    _calls: Calls,
}

impl Leader {
    async fn start(shards: u32) -> Leader {
        let (stopping, nursery) = (CancellationToken::new(), Nursery::default());
        let (handle, calls) = Handle::new(stopping.clone(), SOON);
        let leading = Leading {
            handle,
            published: Arc::new(Published::default()),
            metrics: Arc::new(Metrics::new().unwrap()),
            number_of_shards: shards,
            identity: "me".to_owned(),
            nursery: nursery.clone(),
            step_down: CancellationToken::new(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (routes, _) = crate::api::routes(&leading, crate::api::reflection().unwrap());
        tokio::spawn(serve::run(listener, routes.into_axum_router(), Protocol::Grpc, stopping.clone(), nursery, |_| ()));
        let Snapshot { version, state } = snapshot(shards, 4, 1);
        let leader = Leader { leading, address, stopping, state: State::clone(&state), version, _calls: calls };
        leader.publish();
        leader
    }

    fn publish(&self) {
        self.leading.published.publish(Snapshot { version: self.version, state: Arc::new(self.state.clone()) });
    }

    /// Grants a shard, at an epoch that says which revision it was.
    fn grant(&mut self, shard: u32) {
        self.version.revision.0 += 1;
        let record = ShardRecord { epoch: Epoch(self.version.revision.0), state: ShardState::Held(Slot(3)) };
        self.state.set_shard(ShardId(shard), record);
        self.publish();
    }

    fn key(&self) -> Option<(ClusterId, Version)> {
        Some((self.state.meta.cluster_id, self.version))
    }

    async fn watch(&self, known: Option<(ClusterId, Version)>) -> Streaming<rpc::WatchRoutingTableResponse> {
        let mut client = ShardManagerClient::connect(format!("http://{}", self.address)).await.unwrap();
        client = client.max_decoding_message_size(rpc::MAX_MESSAGE_BYTES);
        let request = rpc::WatchRoutingTableRequest {
            cluster_id: known.map(|(cluster, _)| cluster.to_string()).unwrap_or_default(),
            known: known.map(|(_, version)| version.into()),
        };
        client.watch_routing_table(request).await.unwrap().into_inner()
    }

    async fn has_watchers(&self, number: u32) {
        let line = format!("shard_manager_watchers {number}");
        let look = async {
            while !self.leading.metrics.encode().unwrap().lines().any(|have| have == line) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, look).await.unwrap_or_else(|_| panic!("there are not {number} watchers"));
    }
}

async fn next(changes: &mut Streaming<rpc::WatchRoutingTableResponse>) -> Change {
    timeout(SOON, changes.message()).await.expect("it is told").unwrap().expect("it goes on").change.unwrap()
}

fn full(change: Change) -> rpc::RoutingTable {
    match change {
        Change::Full(table) => table,
        Change::Delta(delta) => panic!("{delta:?}"),
    }
}

fn delta(change: Change) -> rpc::RoutingTableDelta {
    match change {
        Change::Delta(delta) => delta,
        Change::Full(table) => panic!("{table:?}"),
    }
}

/// Case 54.
#[tokio::test]
async fn a_watcher_gets_everything_first_and_then_what_changes() {
    let mut leader = Leader::start(8).await;
    let mut changes = leader.watch(None).await;
    let table = full(next(&mut changes).await);
    assert_eq!((table.number_of_shards, table.version.unwrap().revision), (8, 1));
    leader.has_watchers(1).await;
    for (shard, revision) in [(4, 2), (5, 3)] {
        leader.grant(shard);
        let step = delta(next(&mut changes).await);
        assert_eq!((step.from_revision, step.version.unwrap().revision), (revision - 1, revision));
        assert_eq!((step.shards, step.epochs, step.owner), (vec![shard], vec![revision], vec![0]));
        assert_eq!(step.owners[0].executor_id, "a");
    }
    leader.version = Version { term: Term(5), revision: Revision(9) };
    leader.publish();
    let table = full(next(&mut changes).await);
    assert_eq!(table.version, Some(rpc::Version { term: 5, revision: 9 }), "a new term begins with the whole table");
    drop(changes);
    leader.has_watchers(0).await;
}

/// Case 54: it resumes from what it has, or is given the whole again.
#[tokio::test]
async fn a_watcher_resumes_from_what_it_has() {
    let mut leader = Leader::start(8).await;
    let known = leader.key();
    leader.grant(4);
    leader.grant(5);
    let step = delta(next(&mut leader.watch(known).await).await);
    assert_eq!((step.from_revision, step.version.unwrap().revision, step.shards), (1, 3, vec![4, 5]));
    let nothing = delta(next(&mut leader.watch(leader.key()).await).await);
    assert_eq!((nothing.from_revision, nothing.version.unwrap().revision, nothing.shards.len()), (3, 3, 0));
    let stranger = Some((ClusterId(uuid::Uuid::from_u128(8)), leader.version));
    assert_eq!(full(next(&mut leader.watch(stranger).await).await).version.unwrap().revision, 3);
    let unheard = Some((leader.state.meta.cluster_id, Version { revision: Revision(0), ..leader.version }));
    assert_eq!(full(next(&mut leader.watch(unheard).await).await).version.unwrap().revision, 3);
}

#[tokio::test]
async fn a_watcher_is_told_now_and_then_that_nothing_changed() {
    let leader = Leader::start(8).await;
    let times = Times { beat: Duration::from_millis(20), ..Times::default() };
    let mut changes = begin(&leader.leading, leader.key(), times);
    for _ in 0..3 {
        let told = timeout(SOON, changes.next()).await.expect("it is told").unwrap().unwrap();
        let told = <rpc::WatchRoutingTableResponse as prost::Message>::decode(&*prost::Message::encode_to_vec(&told)).unwrap();
        assert_eq!(delta(told.change.unwrap()).shards, [0; 0]);
    }
}

/// What happens while it takes its time is one step to the newest.
#[tokio::test]
async fn a_watcher_that_takes_its_time_is_told_the_newest_and_no_more() {
    let mut leader = Leader::start(8).await;
    let mut changes = begin(&leader.leading, None, Times::default());
    let mut has = 0;
    let mut messages = 0;
    for _ in 0..50 {
        leader.grant(4);
        tokio::task::yield_now().await;
    }
    while has < leader.version.revision.0 {
        let told = timeout(SOON, changes.next()).await.expect("it is told").unwrap().unwrap();
        let told = <rpc::WatchRoutingTableResponse as prost::Message>::decode(&*prost::Message::encode_to_vec(&told)).unwrap();
        has = match told.change.unwrap() {
            Change::Full(table) => table.version.unwrap().revision,
            Change::Delta(delta) => delta.version.unwrap().revision,
        };
        messages += 1;
    }
    assert!(messages <= 2, "{messages} messages for 50 changes that were not taken one by one");
}

/// The first step of a handoff was told to a thousand watchers before the second could be made.
#[tokio::test]
async fn where_there_are_many_watchers_a_change_waits_for_the_next_one() {
    let mut leader = Leader::start(8).await;
    // One counts as many here.
    let times = Times { gathering: Duration::from_secs(2), longest_gathering: Duration::from_secs(1), ..Times::default() };
    let mut changes = begin(&leader.leading, leader.key(), times);
    let mut next = async || {
        let told = timeout(SOON, changes.next()).await.expect("it is told").unwrap().unwrap();
        let told = <rpc::WatchRoutingTableResponse as prost::Message>::decode(&*prost::Message::encode_to_vec(&told)).unwrap();
        delta(told.change.unwrap()).shards
    };
    assert_eq!(next().await, [0; 0]);
    for shard in [4, 5] {
        // Enough for it to have room again, and to tell what it has where it does not wait.
        tokio::time::sleep(Duration::from_millis(50)).await;
        leader.grant(shard);
    }
    assert_eq!(next().await, [4, 5]);
}

/// Case 54: a slow watcher is dropped, and told so when it wakes.
#[tokio::test]
async fn a_watcher_that_takes_nothing_is_ended() {
    let mut leader = Leader::start(8).await;
    let times = Times { patience: Duration::from_millis(100), ..Times::default() };
    let changes = begin(&leader.leading, None, times);
    leader.has_watchers(1).await;
    leader.grant(4);
    leader.has_watchers(0).await;
    let told: Vec<_> = timeout(SOON, changes.collect()).await.expect("it ends");
    assert_eq!(told.len(), 2, "the one message that waited, and the last word");
    assert!(told[0].is_ok());
    assert_eq!(reason_of(told[1].as_ref().unwrap_err()).as_deref(), Some(reason::SLOW_WATCHER));
}

#[tokio::test]
async fn a_stop_ends_every_watcher_with_a_word() {
    let leader = Leader::start(8).await;
    let mut changes = leader.watch(None).await;
    full(next(&mut changes).await);
    leader.stopping.cancel();
    let ended = timeout(SOON, changes.message()).await.expect("it ends").unwrap_err();
    assert_eq!(reason_of(&ended).as_deref(), Some(reason::STOPPING));
    drop(changes);
    timeout(SOON, leader.leading.nursery.idle()).await.expect("nothing is left");
    leader.has_watchers(0).await;
}
