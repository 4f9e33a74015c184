//! Which shards go where, once it is known how many.

use super::share::{self, Share};
use super::{Input, Member, Role, Tally, place};

/// What a pass did.
pub(super) struct Outcome {
    /// Shards that got another home.
    pub seated: u32,
    /// Some shard avoids the only member that has a seat left.
    pub stuck: bool,
}

/// A shard that must not go to a certain member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avoided {
    shard: u32,
    /// Of the member: an index into the shares.
    share: usize,
}

impl Avoided {
    /// What has to be respected, ascending by shard. Where only one member takes shards, nothing can be.
    pub fn of(input: &Input, shares: &[Share]) -> Vec<Avoided> {
        if shares.len() < 2 || input.avoid.is_empty() {
            return Vec::new();
        }
        let mut slots: Vec<_> = shares.iter().map(|share| input.members[share.member as usize].slot).zip(0..).collect();
        slots.sort_unstable();
        let shards = input.avoid.iter().take_while(|(shard, _)| (shard.0 as usize) < input.homes.len());
        let avoided = shards.filter_map(|(shard, slot)| {
            let at = slots.binary_search_by_key(slot, |&(slot, _)| slot).ok()?;
            Some(Avoided { shard: shard.0, share: slots[at].1 })
        });
        avoided.collect()
    }
}

/// Gives new homes to shards, the lowest first, so that every member has as many as its target says; leaves the targets behind as
/// they happen to be, and the tally right. Shards that avoid somebody come first while there is a choice, and leave a running owner last.
pub(super) fn seat(
    members: &[Member],
    homes: &mut [u32],
    tally: &mut Tally,
    shares: &mut [Share],
    avoided: &[Avoided],
) -> Outcome {
    let mut gives = gives(members, shares);
    let mut seats = Seats::of(shares);

    // One that is at home where it should not be goes anywhere else, as any other.
    let bound = |avoided: &&Avoided| homes[avoided.shard as usize] != shares[avoided.share].member;
    let bound: Vec<Avoided> = avoided.iter().filter(bound).copied().collect();
    let (seated, stuck) = seat_bound(members, homes, shares, &bound, &mut gives, &mut seats);
    let mut outcome = Outcome { seated: seated.len() as u32, stuck: !stuck.is_empty() };
    for (avoided, seat) in seated {
        tally.rehome(members, &mut homes[avoided.shard as usize], shares[seat].member);
    }

    let mut bound = bound.iter().map(|avoided| avoided.shard).peekable();
    for (home, shard) in homes.iter_mut().zip(0..) {
        let give = &mut gives[place(members, *home)];
        // Most shards stay, so that is asked first.
        if *give == 0 {
            continue;
        }
        while bound.next_if(|&bound| bound < shard).is_some() {}
        if bound.peek() == Some(&shard) {
            continue;
        }
        let Some(seat) = seats.take(None) else { break };
        *give -= 1;
        tally.rehome(members, home, shares[seat].member);
        outcome.seated += 1;
    }

    // All of them avoid the same member, and somebody else takes them, whatever its bounds; what is stuck at a running owner stays.
    let homeless: Vec<Avoided> = stuck.into_iter().filter(|avoided| is_free(members, homes[avoided.shard as usize])).collect();
    if let Some(&Avoided { share, .. }) = homeless.first() {
        let not = shares[share].member;
        share::recount(shares, tally);
        share::fill(shares, homeless.len() as u32, |share| if share.member == not { 0 } else { u32::MAX });
        let mut seats = Seats::of(shares);
        for avoided in homeless {
            if let Some(seat) = seats.take(Some(avoided.share)) {
                tally.rehome(members, &mut homes[avoided.shard as usize], shares[seat].member);
                outcome.seated += 1;
            }
        }
    }
    outcome
}

/// How many shards leave each place: all of them where they are free.
fn gives(members: &[Member], shares: &[Share]) -> Vec<u32> {
    let mut gives: Vec<u32> = (0..=members.len() as u32).map(|home| if is_free(members, home) { u32::MAX } else { 0 }).collect();
    for share in shares {
        gives[share.member as usize] = share.has.saturating_sub(share.target);
    }
    gives
}

/// Whether a shard with this home needs another one, whatever the bounds say.
fn is_free(members: &[Member], home: u32) -> bool {
    members.get(home as usize).is_none_or(|member| member.role == Role::Leaves)
}

type Seated = (Avoided, usize);

/// Finds seats for the shards that avoid somebody and have to go, and takes these off `gives`. What finds none is returned apart;
/// then only the member that all of those avoid has seats left.
fn seat_bound(
    members: &[Member],
    homes: &[u32],
    shares: &[Share],
    bound: &[Avoided],
    gives: &mut [u32],
    seats: &mut Seats,
) -> (Vec<Seated>, Vec<Avoided>) {
    let (mut seated, mut stuck): (Vec<Seated>, _) = (Vec::new(), Vec::new());
    if bound.is_empty() {
        return (seated, stuck);
    }
    let home = |avoided: &Avoided| place(members, homes[avoided.shard as usize]);
    let mut unbound = vec![0; gives.len()];
    for share in shares {
        unbound[share.member as usize] = share.has;
    }
    for avoided in bound {
        unbound[home(avoided)] = u32::saturating_sub(unbound[home(avoided)], 1);
    }
    let mut must: Vec<u32> = gives.iter().zip(&unbound).map(|(gives, unbound)| gives.saturating_sub(*unbound)).collect();

    for avoided in bound {
        let must = &mut must[home(avoided)];
        if *must == 0 {
            continue;
        }
        *must -= 1;
        gives[home(avoided)] -= 1;
        match seats.take(Some(avoided.share)) {
            Some(seat) => seated.push((*avoided, seat)),
            None => stuck.push(*avoided),
        }
    }
    (seated, stuck)
}

/// Places that are still to be filled, with the first member on top.
struct Seats {
    left: Vec<Left>,
}

struct Left {
    share: usize,
    seats: u32,
}

impl Seats {
    fn of(shares: &[Share]) -> Seats {
        let left = shares.iter().enumerate().map(|(share, it)| Left { share, seats: it.target.saturating_sub(it.has) });
        Seats { left: left.filter(|left| left.seats > 0).rev().collect() }
    }

    /// A seat at the first member that has one and is not `not`.
    #[inline]
    fn take(&mut self, not: Option<usize>) -> Option<usize> {
        let mut at = self.left.len().checked_sub(1)?;
        if Some(self.left[at].share) == not {
            at = at.checked_sub(1)?;
        }
        let left = &mut self.left[at];
        let share = left.share;
        left.seats -= 1;
        if left.seats == 0 {
            self.left.remove(at);
        }
        Some(share)
    }
}
