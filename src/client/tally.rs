//! Lines in the log about shards: one for many, never one for each.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::types::{BootInstant, ExecutorId, ShardId};

/// How many shards a line names.
const NAMED: usize = 5;
/// For how long shards with the same fate are gathered for one line.
const GATHERING: Duration = Duration::from_secs(1);

/// Shards for one line: how many, and the first few.
#[derive(Debug, Default)]
pub struct Tally(BTreeSet<ShardId>);

impl Tally {
    /// Adds a shard, unless it is there already.
    pub fn add(&mut self, shard: ShardId) {
        self.0.insert(shard);
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What was added; it begins anew.
    pub fn take(&mut self) -> Option<Tally> {
        let taken = std::mem::take(self);
        (!taken.is_empty()).then_some(taken)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<String> = self.0.iter().take(NAMED).map(ShardId::to_string).collect();
        let (count, named) = (self.0.len(), named.join(", "));
        match count {
            1 => write!(f, "shard {named}"),
            _ if count <= NAMED => write!(f, "{count} shards ({named})"),
            _ => write!(f, "{count} shards ({named}, …)"),
        }
    }
}

/// What the work on shards does unasked, gathered for a second at a time.
#[derive(Debug, Default)]
pub struct Mishaps {
    returned: Tally,
    panicked: Tally,
    /// The first of the panics.
    panic: String,
    refused_epochs: Tally,
    due: Option<BootInstant>,
}

impl Mishaps {
    /// The work on a shard ended unasked; `panic` says how, if it was one.
    pub fn ended(&mut self, now: BootInstant, shard: ShardId, panic: Option<String>) {
        match panic {
            None => self.returned.add(shard),
            Some(panic) => {
                if self.panicked.is_empty() {
                    self.panic = panic;
                }
                self.panicked.add(shard);
            }
        }
        self.gather(now);
    }

    /// An epoch that was reported for the storage cannot be one.
    pub fn epoch_refused(&mut self, now: BootInstant, shard: ShardId) {
        self.refused_epochs.add(shard);
        self.gather(now);
    }

    fn gather(&mut self, now: BootInstant) {
        self.due.get_or_insert(now.after(GATHERING));
    }

    /// When there is something to tell.
    pub fn due(&self) -> Option<BootInstant> {
        self.due
    }

    /// Tells what is due.
    pub fn tell_in_time(&mut self, now: BootInstant, executor: &ExecutorId) {
        if self.due.is_some_and(|due| due <= now) {
            self.tell(executor);
        }
    }

    /// Tells everything that was gathered.
    pub fn tell(&mut self, executor: &ExecutorId) {
        self.due = None;
        if let Some(shards) = self.panicked.take() {
            tracing::error!(%executor, panic = self.panic, "the work on {shards} panicked; it counts as not held, and is begun again");
        }
        if let Some(shards) = self.returned.take() {
            tracing::warn!(%executor, "the work on {shards} ended unasked; it counts as not held, and is begun again");
        }
        if let Some(shards) = self.refused_epochs.take() {
            tracing::warn!(%executor, "epochs reported for the storage of {shards} are ignored: no such shard, or out of range");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(shards: u32) -> Tally {
        let mut tally = Tally::default();
        (0..shards).for_each(|shard| tally.add(ShardId(shard)));
        tally
    }

    #[test]
    fn a_tally_names_the_first_few() {
        assert_eq!(tally(1).to_string(), "shard 0");
        assert_eq!(tally(5).to_string(), "5 shards (0, 1, 2, 3, 4)");
        assert_eq!(tally(1024).to_string(), "1024 shards (0, 1, 2, 3, 4, …)");
        assert!(tally(0).take().is_none() && tally(0).is_empty());
    }

    #[test]
    fn mishaps_are_told_a_second_after_the_first_and_then_forgotten() {
        let at = |ms| BootInstant(Duration::from_millis(ms));
        let mut mishaps = Mishaps::default();
        assert_eq!(mishaps.due(), None);
        mishaps.ended(at(10), ShardId(1), None);
        mishaps.epoch_refused(at(500), ShardId(1));
        assert_eq!(mishaps.due(), Some(at(1010)));
        let Ok(executor) = "e".parse() else { panic!("an id") };
        mishaps.tell_in_time(at(1009), &executor);
        assert!(!mishaps.returned.is_empty());
        mishaps.tell_in_time(at(1010), &executor);
        assert!(mishaps.returned.is_empty() && mishaps.refused_epochs.is_empty() && mishaps.due().is_none());
    }
}
