//! What operators demand besides wishes: drafted in turn with all other calls.

mod moves;
mod removal;

use crate::assignment::event::{Demand, RequestId};
use crate::types::BootInstant;

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
