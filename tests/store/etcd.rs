//! etcd: the suite on a real server, and what a network and other users of the server can do.

use std::sync::Arc;
use std::time::Duration;

use shard_manager::assignment::record::{End, ExecutorRecord, MAX_ENDPOINT_LEN, Retiree, ShardRecord, ShardState};
use shard_manager::assignment::state::{EXECUTORS_PER_PAGE, Inventory, RETIREE_PAGES, RETIREES_PER_PAGE, SHARDS_PER_PAGE, State};
use shard_manager::backend::Fence;
use shard_manager::backend::etcd::{Invalid, Members, Settings};
use shard_manager::store::codec::{self, Key, Kind};
use shard_manager::store::etcd::EtcdStore;
use shard_manager::store::{Error, Loaded, Store};
use shard_manager::types::{Epoch, ExecutorId, Incarnation, MAX_SHARDS, MAX_WEIGHT, Revision, ShardId, Slot, Token};

use crate::conformance::{Harness, conformance};
use crate::sample::{self, whole};
use crate::support::etcd::{Etcd, eventually};
use crate::support::proxy::{Direction, Proxy};

const PREFIX: &str = "/test/";
const LEADER: &str = "/test/leader/1";

fn settings(endpoints: Vec<String>, request_timeout: Duration) -> Settings {
    Settings { endpoints, ca_file: None, identity_files: None, credentials: None, request_timeout }
}

fn store(endpoints: Vec<String>, request_timeout: Duration) -> EtcdStore {
    let members = Arc::new(Members::new(&settings(endpoints, request_timeout)).unwrap());
    EtcdStore::new(members, PREFIX, 128, 1_572_864).unwrap()
}

impl Harness for Etcd {
    async fn open(&self) -> impl Store + 'static {
        store(self.endpoints(), Duration::from_secs(10))
    }

    async fn lead(&self) -> Fence {
        let mut client = self.client().await;
        client.delete(LEADER, None).await.unwrap();
        let put = client.put(LEADER, "test", None).await.unwrap();
        Fence::Etcd { key: LEADER.to_owned(), creation_revision: put.header().unwrap().revision(), token: Token::draw() }
    }

    async fn record(&self, key: Key) -> Option<Vec<u8>> {
        let answer = self.client().await.get(format!("{PREFIX}state/{key}"), None).await.unwrap();
        answer.kvs().first().map(|record| record.value().to_vec())
    }

    async fn tamper(&self, key: Key, bytes: Option<Vec<u8>>) {
        let (mut client, name) = (self.client().await, format!("{PREFIX}state/{key}"));
        match bytes {
            Some(bytes) => client.put(name, bytes, None).await.map(|_| ()),
            None => client.delete(name, None).await.map(|_| ()),
        }
        .unwrap();
    }
}

conformance!(conforms, Etcd::single().await);

/// An etcd with a proxy before it, a store behind that, and a first state in it.
async fn behind_proxy(request_timeout: Duration) -> (Etcd, Proxy, EtcdStore, Fence, Revision) {
    let etcd = Etcd::single().await;
    let proxy = Proxy::to(etcd.members[0].client).await;
    let store = store(vec![proxy.endpoint()], request_timeout);
    let fence = etcd.lead().await;
    let revision = store.commit(&fence, None, &whole(&sample::state(3000, fence.token()))).await.unwrap();
    (etcd, proxy, store, fence, revision)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unrelated_write_does_not_move_the_revision() {
    let (etcd, _proxy, store, fence, first) = behind_proxy(Duration::from_secs(2)).await;
    for prefix in ["/other", "/test/leader/9", "/test/states", "/test/state"] {
        etcd.client().await.put(prefix, "x", None).await.unwrap();
    }
    let state = store.load().await.unwrap().unwrap();
    assert_eq!(state.revision, first);
    let next = sample::next(&state.state);
    let second = store.commit(&fence, Some(first), &next.changes_since(Some(&state.state))).await.unwrap();
    assert_eq!(second.0, u64::try_from(etcd.revision().await).unwrap(), "of the write's own answer");
    assert_eq!(store.load().await.unwrap().unwrap(), Loaded { revision: second, state: next });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_key_that_was_deleted_and_made_anew_is_refused() {
    let (etcd, _proxy, store, stale, revision) = behind_proxy(Duration::from_secs(2)).await;
    let state = store.load().await.unwrap().unwrap().state;
    let mut client = etcd.client().await;
    client.delete(LEADER, None).await.unwrap();
    let outcome = store.commit(&stale, Some(revision), &whole(&sample::next(&state))).await;
    assert!(matches!(outcome, Err(Error::LeadershipLost)), "{outcome:?}");
    client.put(LEADER, "test", None).await.unwrap();
    let outcome = store.commit(&stale, Some(revision), &whole(&sample::next(&state))).await;
    assert!(matches!(outcome, Err(Error::LeadershipLost)), "{outcome:?}");
    assert_eq!(store.load().await.unwrap().unwrap(), Loaded { revision, state });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_black_holed_is_found_when_sent_again() {
    let (_etcd, proxy, store, fence, first) = behind_proxy(Duration::from_millis(400)).await;
    let state = store.load().await.unwrap().unwrap().state;
    let next = sample::next(&state);
    let changes = next.changes_since(Some(&state));
    proxy.hold(Direction::Answers);
    let outcome = store.commit(&fence, Some(first), &changes).await;
    assert!(matches!(outcome, Err(Error::OutcomeUnknown { .. })), "{outcome:?}");
    proxy.restore();
    let second = store.commit(&fence, Some(first), &changes).await.unwrap();
    assert_eq!(store.load().await.unwrap().unwrap(), Loaded { revision: second, state: next });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_connection_is_killed_after_the_send_lands_once() {
    let (etcd, proxy, store, fence, first) = behind_proxy(Duration::from_secs(5)).await;
    let state = store.load().await.unwrap().unwrap().state;
    let next = sample::next(&state);
    let changes = next.changes_since(Some(&state));
    proxy.hold(Direction::Answers);
    let committing = store.commit(&fence, Some(first), &changes);
    let killing = async {
        eventually("the commit", async || (etcd.revision().await > first.0 as i64).then_some(())).await;
        proxy.restore();
        proxy.drop_all();
    };
    // Nobody had to ask again: the store itself did, over a new connection.
    let (second, ()) = tokio::join!(committing, killing);
    let second = second.unwrap();
    assert_eq!(second.0, u64::try_from(etcd.revision().await).unwrap(), "it was written once");
    assert_eq!(store.load().await.unwrap().unwrap(), Loaded { revision: second, state: next });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_after_which_another_leads_is_a_lost_leadership() {
    let (etcd, proxy, store, fence, first) = behind_proxy(Duration::from_millis(400)).await;
    let state = store.load().await.unwrap().unwrap().state;
    let changes = sample::next(&state).changes_since(Some(&state));
    proxy.hold(Direction::Answers);
    assert!(matches!(store.commit(&fence, Some(first), &changes).await, Err(Error::OutcomeUnknown { .. })));
    etcd.lead().await;
    proxy.restore();
    assert!(matches!(store.commit(&fence, Some(first), &changes).await, Err(Error::LeadershipLost)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_was_never_sent_is_known_not_to_have_landed() {
    let store = store(vec![format!("http://{}", crate::support::free_address())], Duration::from_millis(300));
    let fence = Fence::Etcd { key: LEADER.to_owned(), creation_revision: 1, token: Token::draw() };
    let outcome = store.commit(&fence, None, &whole(&sample::state(10, fence.token()))).await;
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    assert!(matches!(store.load().await, Err(Error::Unavailable { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_a_firewall_forgot_costs_one_request() {
    let (_etcd, proxy, store, ..) = behind_proxy(Duration::from_millis(500)).await;
    proxy.forget_connections();
    assert!(matches!(store.load().await, Err(Error::Unavailable { .. })));
    store.load().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_write_nothing_and_two_clusters_share_one_etcd() {
    let (etcd, _proxy, store, ..) = behind_proxy(Duration::from_secs(2)).await;
    let before = etcd.revision().await;
    for _ in 0..20 {
        store.load().await.unwrap();
    }
    assert_eq!(etcd.revision().await, before);
    let members = Arc::new(Members::new(&settings(etcd.endpoints(), Duration::from_secs(2))).unwrap());
    let other = EtcdStore::new(members, "/test/state/other/", 128, 1_572_864).unwrap();
    assert_eq!(other.load().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_of_several_answers_sees_one_revision() {
    let etcd = Etcd::single().await;
    let proxy = Proxy::to(etcd.members[0].client).await;
    let (writer, fence) = (etcd.open().await, etcd.lead().await);
    let reader = store(vec![proxy.endpoint()], Duration::from_secs(5));
    // As many pages as take three answers. Then the first shard and the last one are granted anew in turn.
    let pages = 70;
    let mut state = State::new(sample::meta(pages * SHARDS_PER_PAGE as u32, fence.token()));
    state.set_executor(Slot(0), Some(sample::executor(0)));
    let mut revision = None;
    let mut commit = async |state: &mut State, range: std::ops::Range<u32>| {
        let before = state.clone();
        state.meta.attempt += 1;
        for page in range {
            let shard = ShardId(page * SHARDS_PER_PAGE as u32);
            state.set_shard(shard, state.shard(shard).free().grant(Slot(0), state.meta.term));
        }
        let before = revision.map(|_| &before);
        revision = Some(writer.commit(&fence, revision, &state.changes_since(before)).await.unwrap());
    };
    for range in [0..20, 20..40, 40..60, 60..pages] {
        commit(&mut state, range).await;
    }
    proxy.delay_answers(Duration::from_millis(20));
    let (first, last) = (ShardId(0), ShardId((pages - 1) * SHARDS_PER_PAGE as u32));
    let writing = async {
        loop {
            commit(&mut state, 0..1).await;
            commit(&mut state, pages - 1..pages).await;
        }
    };
    let reading = async {
        for _ in 0..15 {
            let read = reader.load().await.unwrap().unwrap().state;
            let (first, last) = (read.shard(first).epoch.0, read.shard(last).epoch.0);
            assert!(first == last || first == last + 1, "the first page is at {first}, the last one at {last}");
        }
    };
    tokio::select! {
        () = writing => {}
        () = reading => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_goes_on_although_its_revision_is_compacted_under_it() {
    let (etcd, proxy, store, _, revision) = behind_proxy(Duration::from_secs(5)).await;
    let filler = vec![ShardRecord::default(); SHARDS_PER_PAGE];
    // More pages than one answer has; `meta` does not know them, so the end is an error, but not one of etcd's.
    for page in 1..=40 {
        let page_bytes = codec::encode_shards(page, &filler, 100 * SHARDS_PER_PAGE as u32).unwrap();
        etcd.tamper(Key::new(Kind::Shards, page), Some(page_bytes)).await;
    }
    proxy.delay_answers(Duration::from_millis(100));
    let compacting = async {
        for _ in 0..3 {
            let mut client = etcd.client().await;
            let now = client.put("/other", "x", None).await.unwrap().header().unwrap().revision();
            client.compact(now, None).await.ok();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (outcome, ()) = tokio::join!(store.load(), compacting);
    let Err(Error::Corrupt { record, .. }) = outcome else { panic!("{outcome:?} at {revision}") };
    assert!(record.starts_with("shards/"), "{record}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_no_record_is_refused() {
    let (etcd, _proxy, store, ..) = behind_proxy(Duration::from_secs(2)).await;
    for name in ["meta/0", "shards", "shards/01", "shards/+1", "shards/4294967296", "pages/1", "", "meta/"] {
        let name = format!("{PREFIX}state/{name}");
        etcd.client().await.put(name.clone(), "x", None).await.unwrap();
        let Err(Error::Corrupt { record, .. }) = store.load().await else { panic!("{name}") };
        assert_eq!(record, name);
        etcd.client().await.delete(name, None).await.unwrap();
    }
    store.load().await.unwrap();
}

/// The limits that are published are worth something only if the longest pages that there can be go through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_of_the_longest_pages_as_the_limits_allow_fit() {
    let etcd = Etcd::single().await;
    let (store, fence) = (etcd.open().await, etcd.lead().await);
    let mut state = sample::state(MAX_SHARDS, fence.token());
    state.meta.inventory = Inventory { executors: 1, shards: vec![u64::MAX; 64], retirees: u64::MAX };
    let retirees = |bucket: u32| {
        let retiree = |at: u64| Retiree {
            id_hash: u64::MAX - (u64::MAX % RETIREE_PAGES as u64) - at * RETIREE_PAGES as u64 - RETIREE_PAGES as u64
                + u64::from(bucket),
            incarnation: Incarnation(u64::MAX),
            end: End::Superseded,
        };
        (bucket, Arc::new((0..RETIREES_PER_PAGE as u64).map(retiree).collect::<Vec<_>>()))
    };
    let pages = store.limits().pages;
    assert!((20..=127).contains(&pages), "{pages}");
    let mut changes = whole(&sample::state(10, fence.token()));
    changes.meta = state.meta.clone();
    (changes.executors, changes.shards) = (Vec::new(), Vec::new());
    changes.retirees = (0..pages as u32).map(retirees).collect();
    store.commit(&fence, None, &changes).await.unwrap();

    let longest = codec::encode(&changes).unwrap();
    let lengths = |kind| longest.iter().filter(move |(key, _)| key.kind == kind).map(|(_, bytes)| bytes.len());
    assert!(lengths(Kind::Retirees).all(|length| length <= codec::MAX_PAGE_LEN));
    assert!(lengths(Kind::Meta).all(|length| length <= codec::MAX_META_LEN));
    let id: ExecutorId = "x".repeat(ExecutorId::MAX_LEN).parse().unwrap();
    let (incarnation, endpoint, weight) = (Incarnation(u64::MAX), "y".repeat(MAX_ENDPOINT_LEN), MAX_WEIGHT);
    let executor = ExecutorRecord { id, incarnation, endpoint, weight, ..sample::executor(2) };
    let executors = codec::encode_executors(u32::MAX, &vec![Some(executor); EXECUTORS_PER_PAGE]).unwrap();
    let shard = ShardRecord { epoch: Epoch(1 << 62), state: ShardState::Releasing(Slot(u32::MAX)) };
    let shards = codec::encode_shards(0, &vec![shard; SHARDS_PER_PAGE], MAX_SHARDS).unwrap();
    assert!(executors.len().max(shards.len()) <= codec::MAX_PAGE_LEN);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_five_operations_gets_no_more() {
    let etcd = Etcd::start(1, "http", &["--max-txn-ops=5".to_owned()]).await;
    let members = Arc::new(Members::new(&settings(etcd.endpoints(), Duration::from_secs(2))).unwrap());
    let (store, fence) = (EtcdStore::new(members, PREFIX, 5, 1_572_864).unwrap(), etcd.lead().await);
    assert_eq!(store.limits().pages, 4);
    let mut state = sample::state(3000, fence.token());
    let mut all = whole(&state);
    let meta = all.meta.clone();
    (all.executors, all.shards, all.retirees) =
        (all.executors[..1].to_vec(), all.shards[..1].to_vec(), all.retirees[..2].to_vec());
    let revision = store.commit(&fence, None, &all).await.unwrap();
    // The identical one, and another one: what is refused has operations too.
    assert_eq!(store.commit(&fence, None, &all).await.unwrap(), revision);
    state.meta = meta;
    let other = sample::next(&state).changes_since(Some(&state));
    assert!(matches!(store.commit(&fence, None, &other).await, Err(Error::ConcurrentModification { .. })));
}

#[test]
fn limits_that_leave_no_room_are_refused() {
    let members = Arc::new(Members::new(&settings(vec!["http://127.0.0.1:1".to_owned()], Duration::from_secs(1))).unwrap());
    for (operations, bytes, says) in [(4, 1_572_864, "max_operations = 4"), (128, 250_000, "max_bytes = 250000")] {
        let refused = EtcdStore::new(Arc::clone(&members), PREFIX, operations, bytes).unwrap_err();
        assert!(matches!(refused, Invalid::Value { .. }) && refused.to_string().contains(says), "{refused}");
    }
}
