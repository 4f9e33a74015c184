//! States to store.

use std::time::{Duration, Instant};

use shard_manager::assignment::record::{End, ExecutorRecord, ShardRecord, ShardState, Standing, Wish};
use shard_manager::assignment::state::{Changes, Inventory, Meta, Seal, State};
use shard_manager::types::{ClusterId, Epoch, ExecutorId, Incarnation, ShardId, Slot, Term, Token};
use uuid::Uuid;

pub fn meta(number_of_shards: u32, token: Token) -> Meta {
    Meta {
        cluster_id: ClusterId(Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff)),
        number_of_shards,
        term: Term(1_700_000_000_000),
        token,
        attempt: 1,
        lease_ttl_ms: 30_000,
        inventory: Inventory::default(),
        seal: Seal::Open,
        pause: None,
    }
}

pub fn executor(at: u32) -> ExecutorRecord {
    ExecutorRecord {
        id: executor_id(at),
        incarnation: Incarnation(u64::MAX - u64::from(at)),
        endpoint: format!("http://10.0.0.{at}:9093"),
        weight: 1 + at * 99 % 1000,
        wish: [Wish::None, Wish::Cordon, Wish::Drain, Wish::Remove][at as usize % 4],
        leaving: at.is_multiple_of(2),
        standing: [Standing::Present, Standing::Superseded, Standing::Gone][at as usize % 3],
    }
}

pub fn executor_id(at: u32) -> ExecutorId {
    format!("executor-{at}.example_A").parse().unwrap()
}

/// A state with something of everything.
pub fn state(number_of_shards: u32, token: Token) -> State {
    let mut state = State::new(meta(number_of_shards, token));
    for slot in [0, 1, 5, 17] {
        state.set_executor(Slot(slot), Some(executor(slot)));
    }
    let owners = [ShardState::Held(Slot(0)), ShardState::Releasing(Slot(17)), ShardState::Unassigned, ShardState::Held(Slot(5))];
    for (shard, owner) in (0..number_of_shards).zip(owners.into_iter().cycle()).take(100) {
        state.set_shard(ShardId(shard), ShardRecord { epoch: Epoch(1_700_000_000_000 + u64::from(shard)), state: owner });
    }
    for at in 0..40 {
        state.retire(&executor_id(at % 7), Incarnation(1 + u64::from(at)), End::Superseded);
    }
    state
}

/// All of a state, as an empty store takes it.
pub fn whole(state: &State) -> Changes {
    state.changes_since(None)
}

/// The next commit of the same leadership, which grants shard 0 anew.
pub fn next(state: &State) -> State {
    let mut next = state.clone();
    next.meta.attempt += 1;
    let record = next.shard(ShardId(0));
    next.set_shard(ShardId(0), record.free().grant(Slot(0), next.meta.term));
    next
}

/// Polls until `condition` holds; fails after ten seconds.
pub async fn eventually<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "{what} did not happen within 10 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
