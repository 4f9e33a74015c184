//! How many shards each member gives and gets.

use std::cmp::Ordering;

use super::{Input, Role, Tally};
use crate::types::MAX_WEIGHT;

/// What one member that takes shards has and should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// An index into [`Input::members`].
    pub member: u32,
    /// 1 ..= [`MAX_WEIGHT`].
    pub weight: u32,
    /// The fair share, rounded down.
    pub floor: u32,
    /// The fair share, rounded up.
    pub ceil: u32,
    /// It rests with no fewer.
    pub lower: u32,
    /// It rests with no more.
    pub upper: u32,
    /// Shards that have their home here.
    pub has: u32,
    /// Shards that should.
    pub target: u32,
}

/// One share for each member that takes shards, ascending by id, with its target still what it has.
pub(super) fn shares(input: &Input, tally: &Tally) -> Vec<Share> {
    let mut takers: Vec<u32> =
        (0..).zip(input.members).filter(|(_, member)| member.role == Role::Takes).map(|(at, _)| at).collect();
    takers.sort_unstable_by_key(|&at| {
        let member = &input.members[at as usize];
        (&member.id, member.slot)
    });
    let weight = |at: u32| input.members[at as usize].weight.clamp(1, MAX_WEIGHT);
    let total: u64 = takers.iter().map(|&at| u64::from(weight(at))).sum();
    let shards = u64::from(input.homes.len() as u32 - tally.at(input.members, Role::Keeps));
    let share = |&at: &u32| {
        let parts = shards * u64::from(weight(at));
        let (floor, ceil) = ((parts / total) as u32, parts.div_ceil(total) as u32);
        let slack = slack(parts, total, input.threshold);
        let has = tally.shards[at as usize];
        Share { member: at, weight: weight(at), floor, ceil, lower: floor - slack, upper: ceil + slack, has, target: has }
    };
    takers.iter().map(share).collect()
}

/// `floor(parts / total · threshold)`. The threshold is meant in decimals, which binary fractions miss: 0.3 of 10 shards is 3,
/// though the nearest `f64` lies below 0.3.
fn slack(parts: u64, total: u64, threshold: f64) -> u32 {
    const SCALE: u64 = 1_000_000_000;
    let billionths = (threshold.clamp(0.0, 1.0) * SCALE as f64).round() as u64;
    (u128::from(parts) * u128::from(billionths) / (u128::from(total) * u128::from(SCALE))) as u32
}

/// After shards were given other homes.
pub(super) fn recount(shares: &mut [Share], tally: &Tally) {
    for share in shares {
        share.has = tally.shards[share.member as usize];
        share.target = share.has;
    }
}

/// Sets targets within the bounds that add up to every shard that is here, and `free` more.
pub(super) fn balance(shares: &mut [Share], free: u32) {
    let mut pool = free;
    for share in shares.iter_mut() {
        pool += share.target.saturating_sub(share.upper);
        share.target = share.target.min(share.upper);
    }
    pool = fill(shares, pool, |share| share.lower);
    if pool > 0 {
        // Somebody is below its fair share as long as there is something to give, and is never raised past it, rounded up.
        fill(shares, pool, |_| u32::MAX);
    } else {
        // Somebody is above its fair share as long as somebody is below, and is never lowered past it, rounded down.
        let missing = shares.iter().map(|share| share.lower.saturating_sub(share.target)).sum();
        let left = drain(shares, missing);
        fill(shares, missing - left, |share| share.lower);
    }
}

/// Shards per weight are compared in steps of 1 / [`STEPS`] first: no member gets more than one shard within one step.
const STEPS: u64 = 1024;
const _: () = assert!(MAX_WEIGHT as u64 <= STEPS);

/// A level that nobody reaches, whoever gets `amount` shards more: levels count steps.
fn top(shares: &[Share], amount: u32) -> u64 {
    let most = shares.iter().map(|share| share.target).max().unwrap_or(0);
    (u64::from(most) + u64::from(amount) + 1) * STEPS
}

/// Gives `amount` shards one by one to the member that has the fewest for its weight and is below its limit; of equals, to the
/// first. Returns what nobody could take.
pub(super) fn fill(shares: &mut [Share], amount: u32, limit: impl Fn(&Share) -> u32) -> u32 {
    if amount == 0 {
        return 0;
    }
    let raised = |share: &Share, level: u64| {
        let level = (level * u64::from(share.weight)).div_ceil(STEPS);
        share.target.max(limit(share).min(level as u32))
    };
    let taken = |level| shares.iter().map(|share| u64::from(raised(share, level) - share.target)).sum::<u64>();
    let top = top(shares, amount);
    let level = last_level(top, |level| taken(level) <= u64::from(amount));
    let mut left = amount - taken(level) as u32;
    for share in shares.iter_mut() {
        share.target = raised(share, level);
    }
    if left > 0 && level < top {
        let mut next: Vec<usize> = (0..shares.len()).filter(|&at| raised(&shares[at], level + 1) > shares[at].target).collect();
        next.sort_by(|&a, &b| by_fullness(&shares[a], &shares[b]));
        for at in next.into_iter().take(left as usize) {
            shares[at].target += 1;
            left -= 1;
        }
    }
    left
}

/// Takes `amount` shards one by one from the member that has the most for its weight and is above its lower bound; of equals, from
/// the first. Returns what nobody could give.
fn drain(shares: &mut [Share], amount: u32) -> u32 {
    if amount == 0 {
        return 0;
    }
    let top = top(shares, 0);
    let lowered = |share: &Share, depth: u64| {
        let level = (top - depth) * u64::from(share.weight) / STEPS;
        u64::from(share.target).min(level.max(u64::from(share.lower))) as u32
    };
    let given = |depth| shares.iter().map(|share| u64::from(share.target - lowered(share, depth))).sum::<u64>();
    let depth = last_level(top, |depth| given(depth) <= u64::from(amount));
    let mut left = amount - given(depth) as u32;
    for share in shares.iter_mut() {
        share.target = lowered(share, depth);
    }
    if left > 0 && depth < top {
        let mut next: Vec<usize> = (0..shares.len()).filter(|&at| lowered(&shares[at], depth + 1) < shares[at].target).collect();
        next.sort_by(|&a, &b| by_fullness(&shares[b], &shares[a]));
        for at in next.into_iter().take(left as usize) {
            shares[at].target -= 1;
            left -= 1;
        }
    }
    left
}

/// The last of `0 ..= top` for which `holds`, which holds for 0 and, once it does not, no more.
fn last_level(top: u64, holds: impl Fn(u64) -> bool) -> u64 {
    // Often there is enough for everybody.
    if holds(top) {
        return top;
    }
    let (mut yes, mut no) = (0, top);
    while no - yes > 1 {
        let middle = yes + (no - yes) / 2;
        if holds(middle) { yes = middle } else { no = middle }
    }
    yes
}

/// Shards per weight, as fractions.
fn by_fullness(a: &Share, b: &Share) -> Ordering {
    let cross = |a: &Share, b: &Share| u64::from(a.target) * u64::from(b.weight);
    cross(a, b).cmp(&cross(b, a))
}
