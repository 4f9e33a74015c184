//! What operators demand, besides a wish for an executor.

use crate::assignment::command::Refusal;
use crate::assignment::event::Demand;
use crate::types::BootInstant;

use super::Engine;
use super::calls::Drafted;
use super::draft::Draft;

impl Engine {
    pub(super) fn draft_demand(&mut self, now: BootInstant, draft: &mut Draft, demand: &Demand) -> Drafted {
        match demand {
            Demand::Pause { length, by, reason } => self.draft_pause(now, draft, *length, by, reason),
            Demand::Resume => self.draft_resume(draft),
            _ => Drafted::Refused(Refusal::NotNow(format!("{demand:?} is not built yet"))),
        }
    }
}
