//! What every store promises. To join: implement [`Harness`] and name it in `conformance!`.

use shard_manager::assignment::record::{End, ShardRecord};
use shard_manager::assignment::state::{Changes, SHARDS_PER_PAGE, State};
use shard_manager::backend::Fence;
use shard_manager::store::codec::{self, Key, Kind};
use shard_manager::store::{Error, Loaded, Store};
use shard_manager::types::{Incarnation, MAX_NUMBER, Revision, ShardId, Slot, Term, Token};

use crate::sample::{self, whole};

/// One store that was empty when the harness was made.
#[allow(async_fn_in_trait)]
pub trait Harness {
    /// Another handle to it, with a connection of its own where stores have such.
    async fn open(&self) -> impl Store + 'static;
    /// Wins a new leadership; those before end.
    async fn lead(&self) -> Fence;
    /// The stored bytes of a record.
    async fn record(&self, key: Key) -> Option<Vec<u8>>;
    /// Replaces the stored bytes of a record, or takes it away, behind the store's back.
    async fn tamper(&self, key: Key, bytes: Option<Vec<u8>>);
}

/// Runs the suite on a store: `conformance!(name_of_the_module, expression that makes a harness)`.
macro_rules! conformance {
    ($module:ident, $harness:expr) => {
        mod $module {
            use super::*;
            conformance!(@cases $harness;
                an_empty_store_has_nothing,
                what_was_committed_is_read_back_by_another_handle,
                only_changed_pages_are_written,
                nobody_who_never_led_can_write,
                a_stale_leader_is_refused_at_the_current_revision,
                a_leadership_of_the_same_number_but_another_token_is_refused,
                of_two_writers_at_one_revision_one_wins,
                a_revision_expected_of_an_empty_store_is_refused,
                nothing_expected_of_a_full_store_is_refused,
                the_same_content_twice_makes_two_revisions,
                a_commit_whose_answer_was_lost_is_recognised_when_sent_again,
                a_commit_that_arrives_again_after_the_next_one_is_refused,
                a_commit_sent_again_after_the_leadership_was_lost_is_refused,
                first_commits_of_two_leaders_are_never_taken_for_each_other,
                a_caller_that_goes_away_leaves_a_whole_commit,
                more_than_128_pages_change_in_one_pass,
                a_thousand_and_one_pages_of_shards_over_several_commits,
                bad_bytes_are_named_and_left_as_they_are,
                a_page_that_was_lost_is_missed,
                a_page_that_meta_does_not_know_is_refused,
                a_page_under_another_name_is_refused,
                records_without_meta_are_no_empty_store,
                an_owner_without_a_record_is_refused,
                what_could_not_be_read_back_is_not_written
            );
        }
    };
    (@cases $harness:expr; $($case:ident),*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            $crate::conformance::$case(&$harness).await;
        }
    )*};
}
pub(crate) use conformance;

async fn loaded(store: &impl Store) -> Loaded {
    store.load().await.unwrap().expect("the store has a state")
}

/// A store with a first state in it.
async fn filled(harness: &impl Harness) -> (impl Store + 'static, Fence, Revision, State) {
    let store = harness.open().await;
    let fence = harness.lead().await;
    let state = sample::state(3000, fence.token());
    let revision = store.commit(&fence, None, &whole(&state)).await.unwrap();
    (store, fence, revision, state)
}

#[track_caller]
fn assert_lost(outcome: Result<Revision, Error>) {
    assert!(matches!(outcome, Err(Error::LeadershipLost)), "{outcome:?}");
}

#[track_caller]
fn assert_conflict(outcome: Result<Revision, Error>, expected: Option<Revision>, actual: Option<Revision>) {
    let Err(Error::ConcurrentModification { expected: e, actual: a }) = outcome else { panic!("{outcome:?}") };
    assert_eq!((e, a), (expected, actual));
}

#[track_caller]
fn assert_corrupt(outcome: Result<Option<Loaded>, Error>, name: &str, says: &str) {
    let Err(Error::Corrupt { record, reason }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(record, name);
    assert!(reason.contains(says), "{reason:?} says nothing of {says:?}");
}

pub async fn an_empty_store_has_nothing(harness: &impl Harness) {
    let store = harness.open().await;
    assert_eq!(store.load().await.unwrap(), None);
    harness.lead().await;
    assert_eq!(store.load().await.unwrap(), None);
}

pub async fn what_was_committed_is_read_back_by_another_handle(harness: &impl Harness) {
    let (store, fence, first, state) = filled(harness).await;
    assert_eq!(loaded(&store).await, Loaded { revision: first, state: state.clone() });

    let mut next = sample::next(&state);
    next.set_executor(Slot(5), None);
    for shard in 0..100 {
        let shard = ShardId(shard);
        if next.shard(shard).owner() == Some(Slot(5)) {
            next.set_shard(shard, next.shard(shard).free());
        }
    }
    next.set_executor(Slot(40), Some(sample::executor(40)));
    next.retire(&sample::executor_id(5), Incarnation(7), End::Superseded);
    let second = store.commit(&fence, Some(first), &next.changes_since(Some(&state))).await.unwrap();
    assert!(second > first);
    assert_eq!(loaded(&harness.open().await).await, Loaded { revision: second, state: next });
}

pub async fn only_changed_pages_are_written(harness: &impl Harness) {
    let (store, fence, revision, state) = filled(harness).await;
    let untouched = Key::new(Kind::Executors, 0);
    let before = harness.record(untouched).await.unwrap();
    // Not readable, but nobody reads it here.
    harness.tamper(untouched, Some(b"mark".to_vec())).await;
    store.commit(&fence, Some(revision), &sample::next(&state).changes_since(Some(&state))).await.unwrap();
    assert_eq!(harness.record(untouched).await.unwrap(), b"mark");
    harness.tamper(untouched, Some(before)).await;
    assert_eq!(loaded(&store).await.state, sample::next(&state));
}

pub async fn nobody_who_never_led_can_write(harness: &impl Harness) {
    let store = harness.open().await;
    let fence = Fence::Sql { number: 1, token: Token::draw() };
    assert_lost(store.commit(&fence, None, &whole(&sample::state(10, fence.token()))).await);
    assert_eq!(store.load().await.unwrap(), None);
}

pub async fn a_stale_leader_is_refused_at_the_current_revision(harness: &impl Harness) {
    let (store, stale, revision, state) = filled(harness).await;
    let successor = harness.lead().await;
    assert_lost(store.commit(&stale, Some(revision), &whole(&sample::next(&state))).await);
    assert_eq!(loaded(&store).await, Loaded { revision, state: state.clone() });

    let mut next = sample::next(&state);
    next.meta.token = successor.token();
    let revision = harness.open().await.commit(&successor, Some(revision), &whole(&next)).await.unwrap();
    assert_lost(store.commit(&stale, Some(revision), &whole(&sample::next(&state))).await);
    assert_eq!(loaded(&store).await, Loaded { revision, state: next });
}

pub async fn a_leadership_of_the_same_number_but_another_token_is_refused(harness: &impl Harness) {
    let (store, fence, revision, state) = filled(harness).await;
    let token = Token::draw();
    let other = match fence {
        Fence::Sql { number, .. } => Fence::Sql { number, token },
        // etcd gives no revision twice: what differs here is when the key was made.
        Fence::Etcd { key, creation_revision, .. } => Fence::Etcd { key, creation_revision: creation_revision - 1, token },
    };
    assert_lost(store.commit(&other, Some(revision), &whole(&sample::next(&state))).await);
    assert_eq!(loaded(&store).await, Loaded { revision, state });
}

pub async fn of_two_writers_at_one_revision_one_wins(harness: &impl Harness) {
    let (store, fence, mut revision, mut state) = filled(harness).await;
    let rival = harness.open().await;
    for round in 0..20 {
        let mut mine = sample::next(&state);
        mine.meta.attempt = 10 + 2 * round;
        let mut theirs = mine.clone();
        theirs.meta.attempt += 1;
        theirs.set_shard(ShardId(1), ShardRecord::default());
        let (changes_mine, changes_theirs) = (whole(&mine), whole(&theirs));
        let (mine_out, theirs_out) = tokio::join!(
            store.commit(&fence, Some(revision), &changes_mine),
            rival.commit(&fence, Some(revision), &changes_theirs),
        );
        let (winner, loser, expected) = match (mine_out, theirs_out) {
            (Ok(winner), loser) => (winner, loser, mine),
            (loser, Ok(winner)) => (winner, loser, theirs),
            both => panic!("{both:?}"),
        };
        assert_conflict(loser, Some(revision), Some(winner));
        assert_eq!(loaded(&store).await, Loaded { revision: winner, state: expected.clone() });
        (revision, state) = (winner, expected);
    }
}

pub async fn a_revision_expected_of_an_empty_store_is_refused(harness: &impl Harness) {
    let store = harness.open().await;
    let fence = harness.lead().await;
    let outcome = store.commit(&fence, Some(Revision(1)), &whole(&sample::state(10, fence.token()))).await;
    assert_conflict(outcome, Some(Revision(1)), None);
    assert_eq!(store.load().await.unwrap(), None);
}

pub async fn nothing_expected_of_a_full_store_is_refused(harness: &impl Harness) {
    let (store, fence, revision, state) = filled(harness).await;
    assert_conflict(store.commit(&fence, None, &whole(&sample::next(&state))).await, None, Some(revision));
    assert_eq!(loaded(&store).await, Loaded { revision, state });
}

pub async fn the_same_content_twice_makes_two_revisions(harness: &impl Harness) {
    let (store, fence, first, state) = filled(harness).await;
    let second = store.commit(&fence, Some(first), &whole(&state)).await.unwrap();
    assert!(second > first);
    assert_eq!(loaded(&store).await, Loaded { revision: second, state });
}

pub async fn a_commit_whose_answer_was_lost_is_recognised_when_sent_again(harness: &impl Harness) {
    let (store, fence, first, state) = filled(harness).await;
    let changes = whole(&sample::next(&state));
    let second = store.commit(&fence, Some(first), &changes).await.unwrap();
    for handle in [&store as &dyn Store, &harness.open().await] {
        assert_eq!(handle.commit(&fence, Some(first), &changes).await.unwrap(), second);
    }
    assert_eq!(loaded(&store).await, Loaded { revision: second, state: sample::next(&state) });

    // Also of the first commit of all. Another attempt is another commit, whatever it writes.
    let mut other = changes.clone();
    other.meta.attempt += 1;
    assert_conflict(store.commit(&fence, Some(first), &other).await, Some(first), Some(second));
}

pub async fn a_commit_that_arrives_again_after_the_next_one_is_refused(harness: &impl Harness) {
    let (store, fence, first, state) = filled(harness).await;
    let (late, next) = (sample::next(&state), sample::next(&sample::next(&state)));
    let second = store.commit(&fence, Some(first), &whole(&late)).await.unwrap();
    let third = store.commit(&fence, Some(second), &whole(&next)).await.unwrap();
    assert_conflict(store.commit(&fence, Some(first), &whole(&late)).await, Some(first), Some(third));
    assert_eq!(loaded(&store).await, Loaded { revision: third, state: next });
}

pub async fn a_commit_sent_again_after_the_leadership_was_lost_is_refused(harness: &impl Harness) {
    let (store, fence, first, state) = filled(harness).await;
    let changes = whole(&sample::next(&state));
    store.commit(&fence, Some(first), &changes).await.unwrap();
    harness.lead().await;
    assert_lost(store.commit(&fence, Some(first), &changes).await);
}

pub async fn first_commits_of_two_leaders_are_never_taken_for_each_other(harness: &impl Harness) {
    let (store, _, revision, state) = filled(harness).await;
    let successor = harness.lead().await;
    let mut own = state.clone();
    own.meta.token = successor.token();
    assert_eq!(own.meta.attempt, state.meta.attempt);
    assert_conflict(store.commit(&successor, None, &whole(&own)).await, None, Some(revision));
    assert_eq!(loaded(&store).await, Loaded { revision, state });
}

pub async fn a_caller_that_goes_away_leaves_a_whole_commit(harness: &impl Harness) {
    let (store, fence, mut revision, mut state) = filled(harness).await;
    for _ in 0..20 {
        let next = sample::next(&state);
        let changes = whole(&next);
        // Polled once, then dropped.
        let answer = tokio::time::timeout(std::time::Duration::ZERO, store.commit(&fence, Some(revision), &changes)).await;
        if let Ok(answer) = answer {
            answer.unwrap();
        }
        let landed = sample::eventually("the commit", async || Some(loaded(&store).await).filter(|now| now.revision > revision));
        let landed = landed.await;
        assert_eq!(landed.state, next);
        (revision, state) = (landed.revision, next);
    }
    store.commit(&fence, Some(revision), &whole(&sample::next(&state))).await.unwrap();
}

pub async fn more_than_128_pages_change_in_one_pass(harness: &impl Harness) {
    let store = harness.open().await;
    let fence = harness.lead().await;
    let mut state = State::new(sample::meta(200 * SHARDS_PER_PAGE as u32, fence.token()));
    for slot in 0..200 * 16 {
        state.set_executor(Slot(slot), Some(sample::executor(slot)));
    }
    let revision = commit_in_pieces(&store, &fence, None, &whole(&state)).await;
    assert_eq!(loaded(&store).await, Loaded { revision, state: state.clone() });

    let mut next = state.clone();
    next.meta.attempt += 1000;
    for page in 0..200 {
        let shard = ShardId(page * SHARDS_PER_PAGE as u32);
        next.set_shard(shard, next.shard(shard).grant(Slot(page), next.meta.term));
    }
    let revision = commit_in_pieces(&store, &fence, Some(revision), &next.changes_since(Some(&state))).await;
    assert_eq!(loaded(&store).await, Loaded { revision, state: next });
}

pub async fn a_thousand_and_one_pages_of_shards_over_several_commits(harness: &impl Harness) {
    let store = harness.open().await;
    let fence = harness.lead().await;
    let number_of_shards = 1000 * SHARDS_PER_PAGE as u32 + 1;
    let mut state = State::new(sample::meta(number_of_shards, fence.token()));
    state.set_executor(Slot(0), Some(sample::executor(0)));
    for page in 0..=1000 {
        let shard = ShardId(page * SHARDS_PER_PAGE as u32);
        state.set_shard(shard, state.shard(shard).grant(Slot(0), state.meta.term));
    }
    let changes = whole(&state);
    assert_eq!(changes.shards.len(), 1001);
    let revision = commit_in_pieces(&store, &fence, None, &changes).await;
    assert_eq!(loaded(&store).await, Loaded { revision, state });
}

/// In as many commits as the store's limits ask for. Every piece but the last leaves the store without pages that `meta` names, which
/// an engine would not do; here only the end matters.
async fn commit_in_pieces(store: &impl Store, fence: &Fence, before: Option<Revision>, changes: &Changes) -> Revision {
    let limit = store.limits().pages;
    let mut revision = before;
    let mut meta = changes.meta.clone();
    let mut send = async |executors: &[_], shards: &[_]| {
        meta.attempt += 1;
        let piece = Changes { meta: meta.clone(), executors: executors.to_vec(), shards: shards.to_vec(), retirees: Vec::new() };
        revision = Some(store.commit(fence, revision, &piece).await.unwrap());
    };
    for executors in changes.executors.chunks(limit) {
        send(executors, &[]).await;
    }
    for shards in changes.shards.chunks(limit) {
        send(&[], shards).await;
    }
    let end = Changes { executors: Vec::new(), shards: Vec::new(), ..changes.clone() };
    store.commit(fence, revision, &end).await.unwrap()
}

pub async fn bad_bytes_are_named_and_left_as_they_are(harness: &impl Harness) {
    let (store, _, _, state) = filled(harness).await;
    let executors = Key::new(Kind::Executors, 1);
    let retirees = whole(&state).retirees[0].0;
    for key in [Key::META, executors, Key::new(Kind::Shards, 0), Key::new(Kind::Retirees, retirees)] {
        let sound = harness.record(key).await.unwrap();
        let mut flipped = sound.clone();
        *flipped.last_mut().unwrap() ^= 0x10;
        let mut newer = sound.clone();
        newer[5] = 9;
        let checksum = crc32fast::hash(&[&newer[..16], &newer[20..]].concat());
        newer[16..20].copy_from_slice(&checksum.to_be_bytes());
        let bad = [
            (Vec::new(), "0 bytes"),
            (sound[..sound.len() / 2].to_vec(), "bytes where its header says"),
            ([&sound[..], b"tail"].concat(), "bytes where its header says"),
            (vec![0xff; 100], "does not begin like a record"),
            (flipped, "checksum"),
            (newer, "written by a newer version"),
        ];
        for (bytes, says) in bad {
            harness.tamper(key, Some(bytes.clone())).await;
            assert_corrupt(store.load().await, &key.to_string(), says);
            assert_eq!(harness.record(key).await.unwrap(), bytes);
        }
        harness.tamper(key, Some(sound)).await;
    }
    // The revision may be another one: some stores count the mending too.
    assert_eq!(loaded(&store).await.state, state);
}

pub async fn a_page_that_was_lost_is_missed(harness: &impl Harness) {
    let (store, _, _, state) = filled(harness).await;
    let retirees = whole(&state).retirees[0].0;
    for key in [Key::new(Kind::Executors, 1), Key::new(Kind::Shards, 0), Key::new(Kind::Retirees, retirees)] {
        let sound = harness.record(key).await.unwrap();
        harness.tamper(key, None).await;
        assert_corrupt(store.load().await, &key.to_string(), "missing");
        harness.tamper(key, Some(sound)).await;
    }
    loaded(&store).await;
}

pub async fn a_page_that_meta_does_not_know_is_refused(harness: &impl Harness) {
    let (store, ..) = filled(harness).await;
    let page = vec![ShardRecord::default(); SHARDS_PER_PAGE];
    let unknown = Key::new(Kind::Shards, 1);
    harness.tamper(unknown, Some(codec::encode_shards(1, &page, 3000).unwrap())).await;
    assert_corrupt(store.load().await, "shards/1", "meta does not know");
}

pub async fn a_page_under_another_name_is_refused(harness: &impl Harness) {
    let (store, ..) = filled(harness).await;
    let other = harness.record(Key::new(Kind::Executors, 0)).await;
    harness.tamper(Key::new(Kind::Executors, 1), other).await;
    assert_corrupt(store.load().await, "executors/1", "under the wrong name: its header says kind 2, page 0");
}

pub async fn records_without_meta_are_no_empty_store(harness: &impl Harness) {
    let (store, fence, revision, state) = filled(harness).await;
    harness.tamper(Key::META, None).await;
    assert_corrupt(store.load().await, "meta", "missing");
    // Nor is it mended by a commit that lost its way.
    let outcome = store.commit(&fence, None, &whole(&state)).await;
    assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{outcome:?}, at revision {revision}");
    assert_eq!(harness.record(Key::META).await, None);
}

pub async fn an_owner_without_a_record_is_refused(harness: &impl Harness) {
    let (store, ..) = filled(harness).await;
    let nobody = codec::encode_executors(1, &vec![None; 16]).unwrap();
    harness.tamper(Key::new(Kind::Executors, 1), Some(nobody)).await;
    assert_corrupt(store.load().await, "state", "slot 17, which has no executor record");
}

pub async fn what_could_not_be_read_back_is_not_written(harness: &impl Harness) {
    let (store, fence, revision, state) = filled(harness).await;
    let mut bad = sample::next(&state);
    bad.meta.term = Term(MAX_NUMBER + 1);
    let outcome = store.commit(&fence, Some(revision), &whole(&bad)).await;
    assert!(matches!(outcome, Err(Error::Unfit { .. })), "{outcome:?}");
    assert_eq!(loaded(&store).await, Loaded { revision, state });
}
