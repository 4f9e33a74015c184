use proptest::prelude::*;

use super::*;
use crate::assignment::record::{Standing, Wish};
use crate::types::Epoch;

fn meta(number_of_shards: u32) -> Meta {
    Meta {
        cluster_id: ClusterId(uuid::Uuid::from_u128(7)),
        number_of_shards,
        term: Term(100),
        token: Token(1),
        attempt: 1,
        lease_ttl_ms: 30_000,
        inventory: Inventory::default(),
        seal: Seal::Open,
        pause: None,
    }
}

fn id(text: &str) -> ExecutorId {
    text.parse().expect("a good id")
}

fn executor(incarnation: u64) -> ExecutorRecord {
    ExecutorRecord {
        id: id("a"),
        incarnation: Incarnation(incarnation),
        endpoint: "http://127.0.0.1:1".to_owned(),
        weight: 1,
        wish: Wish::None,
        leaving: false,
        standing: Standing::Present,
    }
}

fn grant(state: &mut State, shard: u32, slot: u32) {
    state.set_shard(ShardId(shard), state.shard(ShardId(shard)).grant(Slot(slot), Term(100)));
}

fn numbers<T>(pages: &[(u32, T)]) -> Vec<u32> {
    pages.iter().map(|&(page, _)| page).collect()
}

#[test]
fn a_new_state_has_every_shard_once_and_writes_no_page() {
    for shards in [1, 1023, 1024, 1025, 4096] {
        let state = State::new(meta(shards));
        assert_eq!(state.shards().map(|(shard, _)| shard.0).collect::<Vec<_>>(), (0..shards).collect::<Vec<_>>());
        let changes = state.changes_since(None);
        assert_eq!((changes.executors.len(), changes.shards.len(), changes.retirees.len()), (0, 0, 0));
    }
}

#[test]
fn a_draft_leaves_the_state_in_force_alone() {
    let before = State::new(meta(3000));
    let mut draft = before.clone();
    grant(&mut draft, 2000, 0);
    draft.set_executor(Slot(0), Some(executor(1)));
    draft.retire(&id("z"), Incarnation(9), End::Over);
    assert_eq!(before, State::new(meta(3000)));
    assert!(draft.shares_shard_page(&before, 0) && !draft.shares_shard_page(&before, 1) && draft.shares_shard_page(&before, 2));
    assert!(!draft.shares_shard_page(&before, 3), "there is no such page");
}

#[test]
fn only_pages_that_changed_are_written() {
    let before = State::new(meta(3000));
    let mut after = before.clone();
    grant(&mut after, 1024, 0);
    grant(&mut after, 2999, 0);
    after.set_executor(Slot(17), Some(executor(1)));
    after.retire(&id("a"), Incarnation(9), End::Over);
    let changes = after.changes_since(Some(&before));
    assert_eq!(numbers(&changes.shards), [1, 2]);
    assert_eq!(numbers(&changes.executors), [0, 1], "pages before one that is there are there too");
    assert_eq!(numbers(&changes.retirees), [State::retiree_page_of(&id("a"))]);
    assert_eq!(after.changes_since(None), changes);

    let again = after.clone();
    let changes = again.changes_since(Some(&after));
    assert_eq!((changes.executors.len(), changes.shards.len(), changes.retirees.len()), (0, 0, 0));
}

#[test]
fn setting_what_is_there_writes_nothing() {
    let mut before = State::new(meta(3000));
    grant(&mut before, 5, 0);
    before.set_executor(Slot(0), Some(executor(1)));
    before.retire(&id("z"), Incarnation(9), End::Over);
    let mut after = before.clone();
    after.set_shard(ShardId(5), before.shard(ShardId(5)));
    after.set_shard(ShardId(2000), ShardRecord::default());
    after.set_executor(Slot(0), Some(executor(1)));
    after.set_executor(Slot(99), None);
    after.retire(&id("z"), Incarnation(9), End::Over);
    let changes = after.changes_since(Some(&before));
    assert_eq!((changes.executors.len(), changes.shards.len(), changes.retirees.len()), (0, 0, 0));
    assert_eq!(after, before);
}

#[test]
fn changed_shards_come_with_both_records() {
    let mut before = State::new(meta(3000));
    grant(&mut before, 5, 0);
    let mut after = before.clone();
    after.set_shard(ShardId(5), after.shard(ShardId(5)).release());
    grant(&mut after, 2999, 1);
    let changed: Vec<_> = after.changed_shards(&before).collect();
    let record = |state: &State, shard| state.shard(ShardId(shard));
    assert_eq!(
        changed,
        [(ShardId(5), record(&before, 5), record(&after, 5)), (ShardId(2999), ShardRecord::default(), record(&after, 2999)),]
    );
}

#[test]
fn slots_come_in_pages_and_a_deleted_record_leaves_its_slot_empty() {
    let mut state = State::new(meta(1));
    assert_eq!(state.slots(), 0);
    for slot in 0..17 {
        state.set_executor(Slot(slot), Some(executor(u64::from(slot) + 1)));
    }
    assert_eq!(state.slots(), 32);
    state.set_executor(Slot(3), None);
    assert_eq!((state.slots(), state.executor(Slot(3)), state.executors().count()), (32, None, 16));
    assert_eq!(state.executor(Slot(u32::MAX)), None);
}

#[test]
fn a_full_bucket_forgets_the_oldest() {
    let mut state = State::new(meta(1));
    let a = id("a");
    for incarnation in 1..=RETIREES_PER_PAGE as u64 {
        state.retire(&a, Incarnation(incarnation), End::Over);
    }
    state.retire(&a, Incarnation(7), End::Over);
    assert!(state.retirement(&a, Incarnation(1)).is_some(), "one that is known takes no room");
    state.retire(&a, Incarnation(9999), End::Over);
    let end = |id, incarnation| state.retirement(id, Incarnation(incarnation));
    assert_eq!([end(&a, 1), end(&a, 2), end(&a, 9999)], [None, Some(End::Over), Some(End::Over)]);
    assert_eq!(end(&id("b"), 2), None, "of that executor only");
}

/// Stored: another hash would forget who was retired. FNV-1a's published value for "a" is 0xaf63dc4c8601ec8c.
#[test]
fn the_bucket_of_an_id_is_for_ever() {
    assert_eq!(hash_of(&id("a")), 0xaf63_dc4c_8601_ec8c);
    assert_eq!(State::retiree_page_of(&id("a")), 12);
}

/// As a store would keep them.
struct Pages {
    executors: Vec<ExecutorPage>,
    shards: Vec<ShardPage>,
    retirees: Vec<RetireePage>,
}

impl Pages {
    fn new() -> Pages {
        let shards = [1024, 1024, 952].map(|len| vec![ShardRecord::default(); len]);
        Pages {
            executors: vec![vec![None; EXECUTORS_PER_PAGE]],
            shards: shards.into(),
            retirees: vec![Vec::new(); RETIREE_PAGES],
        }
    }

    fn state(self) -> Result<State, Invalid> {
        State::from_pages(meta(3000), self.executors, self.shards, self.retirees)
    }
}

#[test]
fn pages_that_do_not_fit_together_are_refused() {
    let changed = |change: fn(&mut Pages)| {
        let mut pages = Pages::new();
        change(&mut pages);
        pages.state().err()
    };
    assert_eq!(changed(|_| ()), None);
    let count = |found| Some(Invalid::ShardCount { found, number_of_shards: 3000 });
    assert_eq!(changed(|pages| pages.shards.clear()), count(0));
    assert_eq!(changed(|pages| pages.shards[2].truncate(951)), count(2999));
    let length = |kind, page, found, expected| Some(Invalid::PageLength { kind, page, found, expected });
    assert_eq!(changed(|pages| pages.shards.swap(1, 2)), length("shard", 1, 952, 1024));
    assert_eq!(changed(|pages| pages.shards.insert(0, Vec::new())), length("shard", 0, 0, 1024));
    assert_eq!(changed(|pages| pages.executors[0].truncate(15)), length("executor", 0, 15, 16));
    assert_eq!(changed(|pages| pages.retirees.truncate(63)), Some(Invalid::RetireePages { found: 63 }));
    let owned = |pages: &mut Pages| pages.shards[1][1] = ShardRecord::default().grant(Slot(3), Term(1));
    assert_eq!(changed(owned), Some(Invalid::Owner { shard: ShardId(1025), slot: Slot(3) }));
}

proptest! {
    /// What commits write is all that it takes to load the state again.
    #[test]
    fn commits_add_up_to_the_state(commits in prop::collection::vec(prop::collection::vec((0..4u8, 0..3000u32, 0..40u32), 0..12), 0..8)) {
        let mut state = State::new(meta(3000));
        let mut pages = Pages::new();
        pages.executors.clear();
        let mut before = None;
        for commit in commits {
            for (what, shard, slot) in commit {
                match what {
                    0 => {
                        let record = ExecutorRecord { id: id(&format!("e{}", shard % 5)), ..executor(u64::from(shard)) };
                        state.set_executor(Slot(slot), Some(record));
                    }
                    1 if state.executor(Slot(slot)).is_some() => {
                        let record = state.shard(ShardId(shard)).free();
                        state.set_shard(ShardId(shard), record.grant(Slot(slot), Term(1)).raise(Epoch(u64::from(shard))));
                    }
                    2 => state.retire(&id(&format!("e{slot}")), Incarnation(u64::from(shard)), End::Over),
                    _ => state.set_shard(ShardId(shard), state.shard(ShardId(shard)).free()),
                }
            }
            let changes = state.changes_since(before.as_ref());
            for (page, records) in changes.executors {
                pages.executors.resize(pages.executors.len().max(page as usize + 1), vec![None; EXECUTORS_PER_PAGE]);
                pages.executors[page as usize] = records.to_vec();
            }
            for (page, records) in changes.shards {
                prop_assert!(changes.meta.inventory.has_shards(page as usize));
                pages.shards[page as usize] = records.to_vec();
            }
            for (page, records) in changes.retirees {
                prop_assert!(changes.meta.inventory.has_retirees(page as usize));
                pages.retirees[page as usize] = records.to_vec();
            }
            before = Some(state.clone());
        }
        for id in (0..5).map(|number| id(&format!("e{number}"))) {
            let found: Vec<_> = state.incarnations(&id).collect();
            let all: Vec<_> = state.executors().filter(|(_, record)| record.id == id).collect();
            prop_assert_eq!(found, all);
        }
        prop_assert_eq!(state.meta.inventory.executors as usize, pages.executors.len());
        let loaded = State::from_pages(state.meta.clone(), pages.executors, pages.shards, pages.retirees);
        prop_assert_eq!(loaded, Ok(state));
    }
}
