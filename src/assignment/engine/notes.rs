//! Why not more is done, for people: worded when somebody asks, out of what is in force (P2). Nothing is decided by it.

use std::fmt;
use std::time::Duration;

use crate::types::BootInstant;

use super::{Departures, Engine, Phase, sentences};

/// A commit that takes longer is worth a word.
const SLOW: Duration = Duration::from_secs(1);

/// What the last draft left behind for people. It is made beside the draft, and counts once that is in force.
#[derive(Clone, Default)]
pub struct Notes {
    /// What the planner did, and why not more.
    pub lines: Vec<String>,
    /// Executors left that had shards.
    pub departures: Option<Departures>,
    /// When the commit in flight was asked for.
    pub asked: Option<BootInstant>,
}

/// Nothing of what it holds: nothing is decided by it, so it does not tell one engine from another.
impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notes").finish_non_exhaustive()
    }
}

impl Engine {
    /// All of it, what matters most first.
    pub(super) fn notes(&self, now: BootInstant) -> Vec<String> {
        let waiting = self.queue.len() + self.in_flight.as_ref().map_or(0, |it| it.outbox.due.len() + it.outbox.renewals.len());
        let store = self.store_note(now).map(|note| format!("{note}; calls that wait: {waiting}"));
        let mut notes: Vec<String> = store.into_iter().chain(self.pause_note(now)).collect();
        if self.phase != Phase::Open {
            return notes;
        }
        if let Some(until) = self.held_until.filter(|until| *until > now) {
            notes.push(self.nothing_is_granted(until.since(now)));
            return notes;
        }
        let told_apart = self.members(&self.state);
        notes.extend(told_apart.note);
        notes.extend(self.settle_until.filter(|until| *until > now).map(|until| sentences::joins_are_gathered(until.since(now))));
        notes.extend(Some(self.unheard(&told_apart.members)).filter(|unheard| *unheard > 0).map(sentences::unheard));
        notes.extend(self.calm_left(now).map(sentences::calm));
        notes.extend(self.notes.lines.iter().cloned());
        notes
    }

    /// Says so where the store has taken nothing for a while: its commits fail, or nobody knows what became of the one in flight.
    pub(super) fn store_note(&self, now: BootInstant) -> Option<String> {
        let asked = self.notes.asked.filter(|asked| self.in_flight.is_some() && now.since(*asked) >= SLOW);
        let since = self.failing_since.into_iter().chain(asked).min()?;
        Some(sentences::store_takes_nothing(now.since(since)))
    }

    /// How much longer balance waits because executors left, if it does.
    pub(super) fn calm_left(&self, now: BootInstant) -> Option<Duration> {
        let left = self.calm_ends(self.notes.departures?).since(now);
        (!left.is_zero()).then_some(left)
    }
}
