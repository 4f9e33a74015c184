//! Schedules that only chance brings about: counted, so that it is seen that they do come about.

use shard_manager::assignment::command::{Cause, Command, Notice, Refusal, Reply, Snapshot};
use shard_manager::assignment::event::{Claim, Renewal};
use shard_manager::assignment::record::{ShardState, Wish};
use shard_manager::types::ShardId;

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

/// A leader notices something.
pub fn noticed(notice: &Notice) -> &'static str {
    match notice {
        Notice::Joined { replaces: None, .. } => "an executor joined",
        Notice::Joined { replaces: Some((_, true)), .. } => "a process took the place of one that was proven gone",
        Notice::Joined { replaces: Some((_, false)), .. } => "a process took the place of one that might live",
        Notice::Lapsed { .. } => "a lease ended",
        Notice::Left { .. } => "an executor left",
        Notice::Wished { wish: Wish::None, .. } => "a wish was taken back",
        Notice::Wished { wish: Wish::Cordon, .. } => "an executor was cordoned",
        Notice::Wished { wish: Wish::Drain, .. } => "an executor was drained",
        Notice::Wished { wish: Wish::Remove, .. } => "an executor was asked to leave for good",
        Notice::Removed { dead: true, .. } => "an executor was called dead",
        Notice::Removed { dead: false, .. } => "an executor was removed",
        Notice::Admitted { .. } => "an executor was admitted again",
        Notice::Paused { found: false, .. } => "rebalancing was paused",
        Notice::Paused { found: true, .. } => "a pause outlived its leader",
        Notice::Resumed { asked: true } => "rebalancing was resumed",
        Notice::Resumed { asked: false } => "a pause was over",
        Notice::Moved { cause: Cause::Operator, .. } => "shards moved by hand",
        Notice::Moved { .. } => "shards moved",
        Notice::NotAdmitted { .. } => "shards were not started in time",
        Notice::ReleaseTimedOut { .. } => "shards were not stopped in time",
        Notice::Stalled { .. } => "a leader stalled",
        Notice::TermRaised { .. } => "a higher term was shown",
        Notice::EpochsRaised(_) => "higher epochs were shown",
        Notice::StoreRestored { .. } => "an executor proved that the store was put back",
        Notice::ForeignCluster { .. } => "an executor came from another cluster",
    }
}

/// Shards that are asked back since their owners did not start them.
pub fn unstarted(commands: &[Command]) -> Vec<ShardId> {
    let shards = commands.iter().filter_map(|command| match command {
        Command::Notice(Notice::NotAdmitted { shards, .. }) => Some(shards),
        _ => None,
    });
    shards.flatten().copied().collect()
}

/// Whether an executor just proved that the state is an old one.
pub fn is_doubtful(commands: &[Command]) -> bool {
    commands.iter().any(|command| matches!(command, Command::Notice(Notice::StoreRestored { .. })))
}
