//! What operators ask: answered at once, from the state in force. Nothing changes by it, and nothing is remembered of it.

use crate::assignment::command::{Answer, Refusal, Reply};
use crate::assignment::event::Question;
use crate::types::BootInstant;

use super::{Engine, Phase};

impl Engine {
    pub(super) fn answer(&self, now: BootInstant, question: Question) -> Reply {
        match question {
            Question::Plan(_) if self.phase != Phase::Open => Err(Refusal::NotReady),
            Question::Plan(what_if) => self.forecast(now, &what_if).map(Answer::Forecast),
            // Also of a leader that is not sure to lead: then that is the answer.
            Question::Explain(shard) => Ok(Answer::Explanation(self.explanation(now, shard))),
        }
    }
}
