//! Waiting for what a manager goes on doing after it has answered.

use std::time::Duration;

use humantime_serde::re::humantime::{format_duration, parse_duration};
use tokio::time::Instant;

use super::Error;
use super::manager::{self, Managers};
use super::output;
use crate::rpc::GetStatusRequest;

/// How often it is looked.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How long nothing may change before the manager is asked why, and how often it is asked again.
const SILENCE: Duration = Duration::from_secs(5);

/// Whether, and how long.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct WaitArguments {
    /// Wait until it is done, and say on standard error how far it is
    #[arg(long)]
    pub(super) wait: bool,
    /// How long to wait, such as 90s or 5m; what was asked for goes on afterwards
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration, requires = "wait")]
    pub(super) timeout: Duration,
}

impl WaitArguments {
    /// The answer to a change that is waited for. Where there is none but the change may take effect, it is waited for all the same.
    pub(super) fn acknowledged<T>(self, answer: Result<T, manager::Error>) -> Result<Option<T>, manager::Error> {
        match answer {
            Err(error @ manager::Error::Unsettled { .. }) => {
                output::say(&format!("still waiting: {error}"));
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }
}

/// What a look shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen<T> {
    /// It is over.
    Over(T),
    /// How far it is.
    Goes(String),
}

/// What is waited for.
pub(super) struct Waiting<'a> {
    pub(super) managers: &'a Managers,
    pub(super) timeout: Duration,
    /// As in "executor a was not drained".
    pub(super) undone: String,
    /// What goes on when nobody waits any more, and what ends it.
    pub(super) goes_on: String,
}

impl Waiting<'_> {
    /// Looks again and again, and says what changes, or why nothing does. A manager that goes away and comes back is waited for.
    ///
    /// # Errors
    /// Where the time is over or somebody interrupts, with what was seen last; and where the manager refuses to be asked.
    pub(super) async fn until<T>(&self, look: impl AsyncFnMut() -> Result<Seen<T>, Error>) -> Result<T, Error> {
        let mut seen = String::new();
        let looking = self.keep_looking(look, &mut seen);
        let interrupted = tokio::select! {
            result = looking => return result,
            // Where signals cannot be had, an interrupt ends the process as it always does.
            Ok(()) = tokio::signal::ctrl_c() => true,
            () = tokio::time::sleep(self.timeout) => false,
        };
        let last = if seen.is_empty() { "nothing was seen of it so far" } else { seen.as_str() };
        let (undone, goes_on) = (&self.undone, &self.goes_on);
        Err(if interrupted {
            Error::Interrupted(format!("interrupted, {undone} yet: {last}; {goes_on}"))
        } else {
            let waited = format_duration(self.timeout);
            Error::TimedOut(format!("{undone} within {waited}: {last}; {goes_on}"))
        })
    }

    async fn keep_looking<T>(
        &self,
        mut look: impl AsyncFnMut() -> Result<Seen<T>, Error>,
        seen: &mut String,
    ) -> Result<T, Error> {
        let (mut said, mut noted) = (String::new(), Vec::new());
        let mut ask_why_at = Instant::now() + SILENCE;
        loop {
            let progress = match look().await {
                Ok(Seen::Over(outcome)) => return Ok(outcome),
                Ok(Seen::Goes(progress)) => {
                    seen.clone_from(&progress);
                    progress
                }
                Err(Error::Manager(error)) if error.is_passing() => format!("still waiting: {error}"),
                Err(error) => return Err(error),
            };
            if progress != said {
                output::say(&progress);
                said = progress;
                ask_why_at = Instant::now() + SILENCE;
            } else if Instant::now() >= ask_why_at {
                // Where it does not answer just now, the next look says so.
                if let Ok(notes) = self.notes().await
                    && without_numbers(&notes) != noted
                {
                    notes.iter().for_each(|note| output::say(&format!("the manager says: {note}")));
                    noted = without_numbers(&notes);
                }
                ask_why_at = Instant::now() + SILENCE;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Why the manager does not do more.
    async fn notes(&self) -> Result<Vec<String>, manager::Error> {
        let question = async |channel| manager::admin(channel).get_status(GetStatusRequest {}).await;
        Ok(self.managers.once().ask(question).await?.notes)
    }
}

/// Notes as they are whatever the time: how long something lasts still is no news.
fn without_numbers(notes: &[String]) -> Vec<String> {
    notes.iter().map(|note| note.replace(|c: char| c.is_ascii_digit() || c == '.', "")).collect()
}
