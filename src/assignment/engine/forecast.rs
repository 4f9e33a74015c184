//! What would move, if: the planner, asked about a state that is thought of.

use std::collections::{BTreeMap, BTreeSet};

use crate::assignment::command::{Forecast, ForecastMove, Kinds, Prospect, Refusal};
use crate::assignment::event::WhatIf;
use crate::assignment::planner::{self, Member, Role};
use crate::assignment::record::{ExecutorRecord, Standing, Wish};
use crate::assignment::state::State;
use crate::types::{BootInstant, ExecutorId, Incarnation, Slot};

use super::demands::not_here;
use super::turn::Members;
use super::{Engine, sentences};

impl Engine {
    /// The plan that the state in force would have with these changes, as if joins had settled. Nothing is done, and nothing is
    /// remembered of it.
    pub(super) fn forecast(&self, now: BootInstant, what_if: &WhatIf) -> Result<Forecast, Refusal> {
        let now_members = self.members(&self.state).members;
        let now_homes = self.homes(&self.state, &now_members).0;

        let then = self.changed(what_if)?;
        let Members { members, note } = self.members(&then);
        let homes = self.homes(&then, &members).0;
        let threshold = self.settings.rebalance_threshold;
        let input = planner::Input { members: &members, homes: &homes, threshold, avoid: &self.avoid, still: false };
        let (plan, report) = planner::plan(&input);

        let mut prospects = Prospects::of(&now_members, &members);
        for (member, bounds) in members.iter().zip(planner::bounds(&input)) {
            prospects.of_id(&member.id).bounds = bounds.map(|bounds| (bounds.lower, bounds.upper));
        }
        let before: Vec<Option<u32>> = places(&prospects, &now_members);
        let after: Vec<Option<u32>> = places(&prospects, &members);
        let place = |places: &[Option<u32>], home: u32| places.get(home as usize).copied().flatten();

        let mut kinds = Kinds::default();
        let mut moves = Vec::with_capacity(plan.moves.len());
        for step in &plan.moves {
            let shard = step.shard.0 as usize;
            let Some(to) = place(&after, step.to) else { continue };
            let from = place(&before, now_homes[shard]);
            match (from, members.get(homes[shard] as usize)) {
                (None, _) => kinds.placed += 1,
                (Some(_), None | Some(Member { role: Role::Leaves, .. })) => kinds.evacuated += 1,
                (Some(_), Some(_)) => kinds.balance += 1,
            }
            moves.push(ForecastMove { shard: step.shard, from, to });
        }

        let mut next_homes = homes;
        for step in &plan.moves {
            next_homes[step.shard.0 as usize] = step.to;
        }
        for (&home_before, &home_after) in now_homes.iter().zip(&next_homes) {
            if let Some(at) = place(&before, home_before) {
                prospects.list[at as usize].before += 1;
            }
            if let Some(at) = place(&after, home_after) {
                prospects.list[at as usize].after += 1;
            }
        }

        let mut notes: Vec<String> = note.into_iter().chain(report.reasons.iter().map(ToString::to_string)).collect();
        notes.extend(self.why_not_now(now, kinds));
        let unplaced = report.unplaced;
        Ok(Forecast { version: self.version(), executors: prospects.list, moves, kinds, unplaced, notes })
    }

    /// The state in force with other members.
    fn changed(&self, what_if: &WhatIf) -> Result<State, Refusal> {
        let WhatIf { join, leave, drain } = what_if;
        let present = |id: &ExecutorId| match self.present.get(id).and_then(|&slot| Some((slot, self.state.executor(slot)?))) {
            Some((slot, record)) if record.standing == Standing::Present => Ok((slot, record.clone())),
            _ => Err(not_here(&self.state, id)),
        };
        let mut then = State::clone(&self.state);
        for id in leave {
            let (slot, record) = present(id)?;
            then.set_executor(slot, Some(ExecutorRecord { standing: Standing::Gone, ..record }));
        }
        for id in drain {
            let (slot, record) = present(id)?;
            let wish = if record.wish == Wish::Remove { Wish::Remove } else { Wish::Drain };
            then.set_executor(slot, Some(ExecutorRecord { wish, ..record }));
        }
        let known: BTreeSet<&ExecutorId> = self.state.executors().map(|(_, record)| &record.id).collect();
        // Behind every slot that there is: nothing is known of them, as of who joins.
        let slots = self.state.slots();
        for ((id, weight), slot) in join.iter().zip(slots..) {
            if known.contains(id) && present(id).is_err() {
                return Err(not_here(&self.state, id));
            }
            if known.contains(id) {
                return Err(Refusal::NotNow(format!(
                    "executor {id} is known already: it cannot join, but it may leave or be drained"
                )));
            }
            let record = ExecutorRecord {
                id: id.clone(),
                incarnation: Incarnation(1),
                endpoint: String::new(),
                weight: *weight,
                wish: Wish::None,
                leaving: false,
                standing: Standing::Present,
            };
            then.set_executor(Slot(slot), Some(record));
        }
        Ok(then)
    }

    /// Why such a plan would not be followed at this moment.
    fn why_not_now(&self, now: BootInstant, kinds: Kinds) -> Vec<String> {
        let mut notes: Vec<String> = self.store_note(now).into_iter().collect();
        notes.extend((!self.believes(now)).then(|| sentences::NOT_SURE_TO_LEAD.to_owned()));
        notes.extend(self.held_until.filter(|until| *until > now).map(|until| self.nothing_is_granted(until.since(now))));
        if let Some(until) = self.settle_until.filter(|until| *until > now) {
            notes.push(sentences::joins_are_gathered(until.since(now)));
        }
        if kinds.balance > 0 {
            notes.extend(self.pause_note(now).map(|note| format!("{note}; moves for balance wait until then")));
            notes.extend(self.calm_left(now).map(sentences::calm));
        }
        notes
    }
}

/// Everybody who counts now or would then, by id.
struct Prospects {
    list: Vec<Prospect>,
    places: BTreeMap<ExecutorId, u32>,
}

impl Prospects {
    fn of(now: &[Member], then: &[Member]) -> Prospects {
        let ids: BTreeSet<&ExecutorId> = now.iter().chain(then).map(|member| &member.id).collect();
        let prospect = |id: &&ExecutorId| Prospect { id: (*id).clone(), before: 0, after: 0, bounds: None };
        let places = ids.iter().zip(0..).map(|(id, place)| ((*id).clone(), place)).collect();
        Prospects { list: ids.iter().map(prospect).collect(), places }
    }

    fn of_id(&mut self, id: &ExecutorId) -> &mut Prospect {
        // Every member is in the list.
        &mut self.list[self.places[id] as usize]
    }
}

/// Where in the list each of the members stands.
fn places(prospects: &Prospects, members: &[Member]) -> Vec<Option<u32>> {
    members.iter().map(|member| prospects.places.get(&member.id).copied()).collect()
}
