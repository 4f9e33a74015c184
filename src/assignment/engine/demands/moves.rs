//! Shards that an operator moves.

use crate::assignment::command::{Cause, Refusal};
use crate::assignment::event::RequestId;
use crate::assignment::planner::{self, Member, NOBODY, Obstacle, Role};
use crate::assignment::record::{ExecutorRecord, ShardState, Standing, Wish};
use crate::assignment::state::State;
use crate::types::{BootInstant, ExecutorId, ShardId, Slot};

use super::super::calls::Drafted;
use super::super::draft::{Draft, Due};
use super::super::turn::Members;
use super::super::{Destination, Engine};

/// Where shards go, and which of them are not there yet.
struct Way {
    to: Slot,
    moving: Vec<ShardId>,
}

impl Engine {
    /// Asks the shards' owners to stop them, and remembers where they are to go: the rest is as with any other move. All of them, or
    /// none; where they do not fit into one draft, the same call goes on in the next one, which finds those that are on their way.
    pub(super) fn draft_move(
        &mut self,
        now: BootInstant,
        draft: &mut Draft,
        request: RequestId,
        shards: &[ShardId],
        to: &ExecutorId,
    ) -> Drafted {
        let begun = self.begun_move.take().filter(|(begun, _)| *begun == request).map(|(_, shards)| shards);
        let Way { to, moving } = match self.way(now, draft.next(), shards, to) {
            Ok(way) => way,
            Err(Refusal::NotNow(why)) if begun.is_some() => {
                let what = format!("the move was cut short, shards that are on their way already go on: {why}");
                return Drafted::Refused(Refusal::NotNow(what));
            }
            Err(refusal) => return Drafted::Refused(refusal),
        };
        let count = begun.unwrap_or(moving.len() as u32);
        for shard in moving {
            let held = draft.is_held(shard);
            if held && !draft.release_shard(shard, Cause::Operator) {
                self.begun_move = Some((request, count));
                return Drafted::Full;
            }
            self.destinations.insert(shard, Destination { slot: to, succession: false });
        }
        Drafted::Due(Due::Moving(count))
    }

    fn way(&self, now: BootInstant, state: &State, shards: &[ShardId], to: &ExecutorId) -> Result<Way, Refusal> {
        if let Some(until) = self.held_until.filter(|&until| now < until) {
            let left = until.since(now);
            return Err(Refusal::NotNow(format!(
                "nothing is granted for another {left:.1?}: executors may still hold shards under the leases of another state"
            )));
        }
        let Members { members, .. } = self.members(state);
        let at = members.iter().position(|member| member.id == *to);
        let Some(at) = at.filter(|&at| members[at].role == Role::Takes) else { return Err(self.takes_nothing(state, to)) };
        let (homes, _) = self.homes(state, &members);
        for &shard in shards {
            self.check_movable(state, &members, shard, homes[shard.0 as usize], at as u32)?;
        }
        let threshold = self.settings.rebalance_threshold;
        let input = planner::Input { members: &members, homes: &homes, threshold, avoid: &self.avoid, still: false };
        let moving =
            planner::relocate(&input, shards, at as u32).map_err(|obstacle| Refusal::NotNow(told(&obstacle, &members, to)))?;
        Ok(Way { to: members[at].slot, moving })
    }

    /// What is on its way to somebody else already has to arrive first.
    fn check_movable(&self, state: &State, members: &[Member], shard: ShardId, home: u32, to: u32) -> Result<(), Refusal> {
        if home == to {
            return Ok(());
        }
        let owner = |slot| state.executor(slot).map_or("nobody", |record| record.id.as_str()).to_owned();
        let why = match (state.shard(shard).state, members.get(home as usize)) {
            (ShardState::Held(_), Some(_)) | (ShardState::Releasing(_) | ShardState::Unassigned, None) => return Ok(()),
            (ShardState::Held(slot), None) => {
                format!("is being taken from {}, whose process does not count any more", owner(slot))
            }
            (_, Some(member)) => format!("is on its way to {} already", member.id),
        };
        Err(Refusal::NotNow(format!("shard {shard} {why}: wait until it is there, and ask again")))
    }

    /// Why an executor takes no shards.
    fn takes_nothing(&self, state: &State, id: &ExecutorId) -> Refusal {
        let Some((slot, record)) = state.present(id) else {
            return super::not_here(state, id);
        };
        let contact = self.contacts.get(&slot);
        let why = match record {
            ExecutorRecord { wish: Wish::Remove, .. } => "it is being removed",
            ExecutorRecord { wish: Wish::Drain, .. } => "it is being drained",
            ExecutorRecord { wish: Wish::Cordon, .. } => "it is cordoned",
            ExecutorRecord { leaving: true, .. } => "it is leaving",
            _ if contact.is_some_and(|contact| !contact.heard) => "this leader has not heard it yet",
            _ if contact.is_some_and(|contact| !contact.healthy) => "it is suspect, since it fails its health probe",
            _ => "it is suspect, since it did not start and keep what it was given, or was restarted over and over",
        };
        debug_assert_eq!(record.standing, Standing::Present);
        Refusal::NotNow(format!("executor {id} takes no shards: {why}"))
    }
}

/// What stands in the way of a move, with the numbers.
fn told(obstacle: &Obstacle, members: &[Member], to: &ExecutorId) -> String {
    let name = |member: u32| members.get(member as usize).map_or("nobody", |member| member.id.as_str());
    match *obstacle {
        Obstacle::Above { shards, upper } => format!(
            "executor {to} would have {shards} shards, and rests with {upper} at the most: the balance would take some away again"
        ),
        Obstacle::Below { member, shards, lower } => format!(
            "executor {} would have {shards} shards, and rests with {lower} at the least: the balance would bring others there",
            name(member)
        ),
        Obstacle::Avoided { shard } => format!(
            "shard {shard} was granted to executor {to} before and not started there in time, so it goes there only if nobody else can \
             take it"
        ),
        Obstacle::Unsettled { shard, to: home } => {
            let home = if home == NOBODY { "elsewhere" } else { name(home) };
            format!(
                "the balance is being restored just now, and shard {shard} would go on to {home} at once: wait until that is done"
            )
        }
    }
}
