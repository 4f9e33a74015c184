//! What operators demand besides wishes: drafted in turn with all other calls.

mod moves;
mod removal;

use crate::assignment::command::Refusal;
use crate::assignment::event::{Demand, RequestId};
use crate::assignment::state::State;
use crate::types::{BootInstant, ExecutorId};

use super::Engine;
use super::calls::Drafted;
use super::draft::Draft;

impl Engine {
    pub(super) fn draft_demand(&mut self, now: BootInstant, draft: &mut Draft, request: RequestId, demand: &Demand) -> Drafted {
        match demand {
            Demand::Remove { id, dead } => self.draft_removal(now, draft, id, *dead),
            Demand::Admit(id) => removal::draft_admission(draft, id),
            Demand::Move { shards, to } => self.draft_move(now, draft, request, shards, to),
            Demand::Pause { length, by, reason } => self.draft_pause(now, draft, *length, by, reason),
            Demand::Resume => self.draft_resume(draft),
        }
    }
}

/// Why nothing can be done to an executor that is not present.
pub(super) fn not_here(state: &State, id: &ExecutorId) -> Refusal {
    match state.incarnations(id).next() {
        None => Refusal::UnknownExecutor { id: id.clone() },
        Some(_) if state.is_barred(id) => {
            Refusal::NotNow(format!("executor {id} was removed: `shard-manager admit {id}` takes that back"))
        }
        Some(_) => Refusal::NotNow(format!("executor {id} is away: it takes shards once it has registered")),
    }
}
