//! Moves that somebody demands: whether the balance bears them.

use super::{Input, Tally, bounds, plan};
use crate::types::ShardId;

/// Why shards cannot move to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The member would rest above its upper bound.
    Above {
        /// With so many shards.
        shards: u32,
        /// So many at the most; 0 where it takes none.
        upper: u32,
    },
    /// Another member would rest below its lower bound.
    Below {
        /// Which.
        member: u32,
        /// With so many shards.
        shards: u32,
        /// So many at the least.
        lower: u32,
    },
    /// See [`Input::avoid`].
    Avoided {
        /// The first such shard.
        shard: ShardId,
    },
    /// The bounds are broken, and mending that would move one of the shards on, be it one that is there already.
    Unsettled {
        /// The first such shard.
        shard: ShardId,
        /// Its next home.
        to: u32,
    },
}

/// Which of `shards`, which are in ascending order, change their home where all of them have it at the member `to`, if that may be: then a plan made from the outcome
/// leaves them there; and it moves nothing at all where a plan made before would move nothing and [`Input::avoid`] stands in nobody's
/// way.
///
/// # Panics
/// Where there is no such shard.
pub fn relocate(input: &Input, shards: &[ShardId], to: u32) -> Result<Vec<ShardId>, Obstacle> {
    debug_assert!(shards.is_sorted());
    let home = |shard: ShardId| input.homes[shard.0 as usize];
    let moving: Vec<ShardId> = shards.iter().copied().filter(|&shard| home(shard) != to).collect();
    let slot = input.members.get(to as usize).map(|member| member.slot);
    if let Some(&shard) = moving.iter().find(|shard| slot.is_some() && input.avoid.get(shard) == slot.as_ref()) {
        return Err(Obstacle::Avoided { shard });
    }
    let mut homes = input.homes.to_vec();
    moving.iter().for_each(|shard| homes[shard.0 as usize] = to);
    let after = Input { homes: &homes, ..*input };
    check_bounds(input, &after, to, !moving.is_empty())?;
    let (plan, _) = plan(&after);
    let mut moves = plan.moves.iter().filter(|step| shards.binary_search(&step.shard).is_ok());
    match moves.next() {
        Some(step) => Err(Obstacle::Unsettled { shard: step.shard, to: step.to }),
        None => Ok(moving),
    }
}

/// Who gets or gives something must be within its bounds afterwards; so must all others that were before, since shards that leave a
/// member that keeps its own count for everybody.
fn check_bounds(before: &Input, after: &Input, to: u32, moves: bool) -> Result<(), Obstacle> {
    if !moves {
        return Ok(());
    }
    let (old_bounds, new_bounds) = (bounds(before), bounds(after));
    let (old, new) = (Tally::of(before.members, before.homes), Tally::of(after.members, after.homes));
    let Some(upper) = new_bounds.get(to as usize).copied().flatten().map(|bounds| bounds.upper) else {
        return Err(Obstacle::Above { shards: new.shards.get(to as usize).copied().unwrap_or(0), upper: 0 });
    };
    let shards = new.shards[to as usize];
    if shards > upper {
        return Err(Obstacle::Above { shards, upper });
    }
    for (member, bounds) in (0..).zip(&new_bounds) {
        let Some(lower) = bounds.map(|bounds| bounds.lower) else { continue };
        let (had, has) = (old.shards[member as usize], new.shards[member as usize]);
        let rested = old_bounds[member as usize].is_some_and(|bounds| had >= bounds.lower);
        if has < lower && (has < had || rested) {
            return Err(Obstacle::Below { member, shards: has, lower });
        }
    }
    Ok(())
}
