//! What operators ask: answered at once, from the state in force.

use crate::assignment::command::{Refusal, Reply};
use crate::assignment::event::Question;
use crate::types::BootInstant;

use super::Engine;

impl Engine {
    pub(super) fn answer(&self, _now: BootInstant, question: Question) -> Reply {
        Err(Refusal::NotNow(format!("{question:?} is not built yet")))
    }
}
