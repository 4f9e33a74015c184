use super::*;
use crate::assignment::record::{End, Wish};
use crate::assignment::state::{Inventory, Meta, Seal};
use crate::types::Token;

const TERM: Term = Term(100);

fn empty() -> State {
    State::new(Meta {
        cluster_id: ClusterId(uuid::Uuid::from_u128(7)),
        number_of_shards: 3000,
        term: TERM,
        token: Token(1),
        attempt: 1,
        lease_ttl_ms: 30_000,
        inventory: Inventory::default(),
        seal: Seal::Open,
        pause: None,
    })
}

fn record(id: &str, incarnation: u64, standing: Standing) -> ExecutorRecord {
    ExecutorRecord {
        id: id.parse().expect("a good id"),
        incarnation: Incarnation(incarnation),
        endpoint: "http://127.0.0.1:1".to_owned(),
        weight: 1,
        wish: Wish::None,
        leaving: false,
        standing,
    }
}

fn process(id: &str, incarnation: u64) -> Process {
    Process::of(&record(id, incarnation, Standing::Present))
}

/// `a` (1) in slot 0 and `b` (2) in slot 1, both present; shard 5 held by a, shard 6 being released by a, shard 2999 held by b.
fn sound() -> State {
    let mut state = empty();
    state.set_executor(Slot(0), Some(record("a", 1, Standing::Present)));
    state.set_executor(Slot(1), Some(record("b", 2, Standing::Present)));
    for (shard, slot) in [(5, 0), (6, 0), (2999, 1)] {
        let shard = ShardId(shard);
        state.set_shard(shard, state.shard(shard).grant(Slot(slot), TERM));
    }
    state.set_shard(ShardId(6), state.shard(ShardId(6)).release());
    state
}

fn with(change: impl FnOnce(&mut State)) -> State {
    let mut state = sound();
    change(&mut state);
    state
}

fn change_executor(state: &mut State, slot: u32, change: impl FnOnce(&mut ExecutorRecord)) {
    let mut record = state.executor(Slot(slot)).expect("is there").clone();
    change(&mut record);
    state.set_executor(Slot(slot), Some(record));
}

fn change_shard(state: &mut State, shard: u32, change: impl FnOnce(ShardRecord) -> ShardRecord) {
    state.set_shard(ShardId(shard), change(state.shard(ShardId(shard))));
}

#[test]
fn a_sound_state_has_no_violations() {
    assert_eq!(check(&empty()), []);
    assert_eq!(check(&sound()), []);
}

#[test]
fn shards_of_an_executor_that_no_longer_counts_wait_for_their_turn() {
    for standing in [Standing::Gone, Standing::Superseded] {
        assert_eq!(check(&with(|state| change_executor(state, 0, |a| a.standing = standing))), []);
    }
}

#[test]
fn nobody_counts_under_an_id_that_was_removed() {
    let removed = |standing| {
        with(|state| {
            let mut record = record("b", 9, standing);
            record.wish = Wish::Remove;
            state.set_executor(Slot(2), Some(record));
        })
    };
    for standing in [Standing::Gone, Standing::Superseded] {
        assert_eq!(check(&removed(standing)), [Violation::RemovedPresent { process: process("b", 2) }]);
    }
    let under_way = with(|state| change_executor(state, 1, |b| b.wish = Wish::Remove));
    assert_eq!(check(&under_way), []);
}

#[test]
fn each_broken_rule_of_a_state_is_found() {
    let number_of_shards = |count| with(|state| state.meta.number_of_shards = count);
    assert_eq!(check(&number_of_shards(0)), [Violation::NumberOfShards { number_of_shards: 0 }]);
    assert_eq!(check(&number_of_shards(MAX_SHARDS + 1)), [Violation::NumberOfShards { number_of_shards: MAX_SHARDS + 1 }]);
    let term = Term(MAX_NUMBER + 1);
    assert_eq!(check(&with(|state| state.meta.term = term)), [Violation::TermRange { term }]);

    let missing = |shard| Violation::OwnerMissing { shard: ShardId(shard), slot: Slot(0) };
    assert_eq!(check(&with(|state| state.set_executor(Slot(0), None))), [missing(5), missing(6)]);
    let held = |epoch| ShardRecord { epoch: Epoch(epoch), state: ShardState::Held(Slot(1)) };
    let never = Violation::NeverGranted { shard: ShardId(7), owner: process("b", 2) };
    assert_eq!(check(&with(|state| change_shard(state, 7, |_| held(0)))), [never]);
    let epoch = Violation::EpochRange { shard: ShardId(7), epoch: Epoch(MAX_NUMBER + 1) };
    assert_eq!(check(&with(|state| change_shard(state, 7, |_| held(MAX_NUMBER + 1)))), [epoch]);
    assert_eq!(check(&with(|state| change_shard(state, 7, |_| held(MAX_NUMBER)))), []);
}

#[test]
fn each_broken_rule_of_executors_is_found() {
    let id: ExecutorId = "a".parse().expect("a good id");
    let twice = with(|state| state.set_executor(Slot(20), Some(record("a", 3, Standing::Present))));
    assert_eq!(check(&twice), [Violation::PresentTwice { id: id.clone(), first: Incarnation(1), second: Incarnation(3) }]);
    let replaced = with(|state| state.set_executor(Slot(20), Some(record("a", 3, Standing::Superseded))));
    assert_eq!(check(&replaced), []);
    let copied = with(|state| state.set_executor(Slot(20), Some(record("a", 1, Standing::Gone))));
    assert_eq!(check(&copied), [Violation::RecordTwice { process: process("a", 1), first: Slot(0), second: Slot(20) }]);
    let retired = with(|state| state.retire(&id, Incarnation(1), End::Superseded));
    assert_eq!(check(&retired), [Violation::RetiredPresent { process: process("a", 1) }]);
    let gone = with(|state| {
        state.retire(&id, Incarnation(1), End::Superseded);
        change_executor(state, 0, |a| a.standing = Standing::Gone);
    });
    assert_eq!(check(&gone), []);

    let changed = |change: fn(&mut ExecutorRecord)| check(&with(|state| change_executor(state, 0, change)));
    assert_eq!(changed(|a| a.incarnation = Incarnation(0)), [Violation::IncarnationZero { id }]);
    let process = || process("a", 1);
    assert_eq!(changed(|a| a.weight = 0), [Violation::Weight { process: process(), weight: 0 }]);
    assert_eq!(changed(|a| a.weight = 1001), [Violation::Weight { process: process(), weight: 1001 }]);
    assert_eq!(changed(|a| a.endpoint.clear()), [Violation::Endpoint { process: process(), length: 0 }]);
    assert_eq!(changed(|a| a.endpoint = "x".repeat(513)), [Violation::Endpoint { process: process(), length: 513 }]);
}

#[test]
fn an_inventory_that_does_not_fit_the_pages_is_found() {
    let changed = |change: fn(&mut Inventory)| check(&with(|state| change(&mut state.meta.inventory)));
    let fault = |kind, page| Violation::Inventory { kind, page };
    assert_eq!(changed(|inventory| inventory.shards.clear()), [fault("shard", 0), fault("shard", 2)]);
    assert_eq!(changed(|inventory| inventory.shards = vec![0b1101]), [fault("shard", 3)]);
    assert_eq!(changed(|inventory| inventory.shards = vec![0b101, 1]), [fault("shard", 64)]);
    assert_eq!(changed(|inventory| inventory.shards = vec![0b111]), [], "a page of defaults may well have been written");
    assert_eq!(changed(|inventory| inventory.executors = 0), [fault("executor", 0)]);
    assert_eq!(changed(|inventory| inventory.executors = 2), [fault("executor", 1)]);
    let id: ExecutorId = "z".parse().expect("a good id");
    let forgotten = with(|state| {
        state.retire(&id, Incarnation(9), End::Superseded);
        state.meta.inventory.retirees = 0;
    });
    assert_eq!(check(&forgotten), [fault("retiree", State::retiree_page_of(&id) as usize)]);
}

/// What a step from the sound state breaks.
fn step(change: impl FnOnce(&mut State)) -> Vec<Violation> {
    check_step(&sound(), &with(change))
}

#[test]
fn a_shards_life_has_no_violations() {
    let next = TERM.next(0);
    assert_eq!(step(|_| ()), []);
    assert_eq!(step(|state| state.meta.term = next), []);
    assert_eq!(step(|state| change_shard(state, 7, |shard| shard.grant(Slot(1), TERM))), []);
    assert_eq!(step(|state| change_shard(state, 5, ShardRecord::release)), []);
    assert_eq!(step(|state| change_shard(state, 6, ShardRecord::free)), []);
    assert_eq!(step(|state| change_shard(state, 6, |shard| shard.free().grant(Slot(1), TERM))), []);
    assert_eq!(step(|state| change_shard(state, 6, |shard| shard.free().grant(Slot(0), TERM))), []);
    assert_eq!(step(|state| change_shard(state, 5, |shard| shard.raise(Epoch(200)))), []);
    // The lease ended, and the shard goes on in the same commit.
    assert_eq!(
        step(|state| {
            change_executor(state, 0, |a| a.standing = Standing::Gone);
            change_shard(state, 5, |shard| shard.free().grant(Slot(1), TERM));
        }),
        []
    );
    // A new incarnation in the slot of the old one.
    assert_eq!(
        step(|state| {
            for shard in [5, 6] {
                change_shard(state, shard, |shard| shard.free().grant(Slot(0), TERM));
            }
            state.set_executor(Slot(0), Some(record("a", 3, Standing::Present)));
        }),
        []
    );
}

#[test]
fn each_broken_rule_of_a_step_is_found() {
    let (id, other) = (ClusterId(uuid::Uuid::from_u128(7)), ClusterId(uuid::Uuid::from_u128(8)));
    let changed = Violation::ClusterIdChanged { before: id, after: other };
    assert_eq!(step(|state| state.meta.cluster_id = other), [changed]);
    assert_eq!(step(|state| state.meta.term = Term(99)), [Violation::TermShrank { before: TERM, after: Term(99) }]);
    assert_eq!(
        step(|state| state.meta.number_of_shards = 4000),
        [Violation::NumberOfShardsChanged { before: 3000, after: 4000 }]
    );

    let (shard, epoch) = (ShardId(5), Epoch(100));
    let lowered = |shard: ShardRecord| ShardRecord { epoch: Epoch(99), ..shard };
    assert_eq!(
        step(|state| change_shard(state, 5, lowered)),
        [Violation::EpochShrank { shard, before: epoch, after: Epoch(99) }]
    );
    assert_eq!(
        step(|state| change_shard(state, 6, |shard| ShardRecord { state: ShardState::Held(Slot(1)), ..shard })),
        [Violation::EpochReused { shard: ShardId(6), owner: process("b", 2), epoch }]
    );
    assert_eq!(
        step(|state| change_shard(state, 6, |shard| ShardRecord { state: ShardState::Held(Slot(0)), ..shard })),
        [Violation::ReleaseTakenBack { shard: ShardId(6), owner: process("a", 1), epoch }]
    );
    let unreleased = [Violation::TakenUnreleased { shard, owner: process("a", 1) }];
    assert_eq!(step(|state| change_shard(state, 5, ShardRecord::free)), unreleased);
    assert_eq!(step(|state| change_shard(state, 5, |shard| shard.free().grant(Slot(1), TERM))), unreleased);
    for standing in [Standing::Gone, Standing::Superseded] {
        let granted = step(|state| {
            change_executor(state, 1, |b| b.standing = standing);
            change_shard(state, 7, |shard| shard.grant(Slot(1), TERM));
        });
        assert_eq!(granted, [Violation::GrantedToAbsent { shard: ShardId(7), owner: process("b", 2), standing }]);
    }
}

#[test]
fn a_slot_that_changes_hands_under_a_shard_is_found() {
    let reused = |shard| Violation::EpochReused { shard: ShardId(shard), owner: process("a", 3), epoch: Epoch(100) };
    let replaced = step(|state| state.set_executor(Slot(0), Some(record("a", 3, Standing::Present))));
    assert_eq!(replaced, [reused(5), reused(6)]);
}

#[test]
fn who_no_longer_counts_does_not_come_back() {
    let back = [Violation::CameBack { process: process("a", 1) }];
    for standing in [Standing::Gone, Standing::Superseded] {
        let before = with(|state| change_executor(state, 0, |a| a.standing = standing));
        assert_eq!(check_step(&before, &sound()), back);
        assert_eq!(check_step(&sound(), &before), []);
    }
    let barred = |state: &mut State| state.retire(&"a".parse().expect("a good id"), Incarnation(1), End::Superseded);
    assert_eq!(check_step(&with(barred), &sound()), back);
}

#[test]
fn violations_name_what_is_broken() {
    let violation = Violation::TakenUnreleased { shard: ShardId(5), owner: process("a", 1) };
    assert_eq!(violation.to_string(), "shard 5 was taken from executor a (1), which is present, without being released first");
}
