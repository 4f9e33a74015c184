//! Schedules that only chance brings about: counted, so that it is seen that they do come about.

use shard_manager::assignment::command::{Refusal, Reply, Snapshot};
use shard_manager::assignment::event::{Claim, Renewal};
use shard_manager::assignment::record::ShardState;

use crate::context::{Call, Context};

/// A call comes to a leader whose newest state is `newest`.
pub fn came(call: &Call, newest: &Snapshot, context: &mut Context) {
    let state = &newest.state;
    match call {
        Call::Register(it) if state.retirement(&it.id, it.incarnation).is_some() => {
            context.reached("a registration came after its process was over");
        }
        Call::Register(it) if state.incarnation(&it.id, it.incarnation).is_some() => {
            context.reached("a registration came again");
        }
        Call::Deregister(it) if state.incarnation(&it.id, it.incarnation).is_none() => {
            context.reached("a departure came late");
        }
        Call::Renew(Renewal { id, incarnation, mark, claim: Claim::Full(held), .. }) => {
            let slot = state.incarnation(id, *incarnation).map(|(slot, _)| slot);
            let own = slot.map(ShardState::Releasing);
            for (shard, _) in state.shards().filter(|(_, record)| Some(record.state) == own) {
                match held.epoch(shard) {
                    Some(_) => context.reached("a renewal claimed what was being released"),
                    None if *mark < newest.version => context.reached("a renewal from before lacked what was being released"),
                    None => {}
                }
            }
        }
        _ => {}
    }
}

/// A reply goes out.
pub fn answered(reply: &Reply, context: &mut Context) {
    match reply {
        Err(Refusal::LeaseEnding { .. }) => context.reached("a renewal came while its lease was being ended"),
        Err(Refusal::StoreUnavailable) => context.reached("a call was refused since its commit failed"),
        _ => {}
    }
}
