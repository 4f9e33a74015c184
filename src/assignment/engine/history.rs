//! What happened to each shard last, as far as this leadership saw it: for [`explain`](super::explain), and nothing is decided by it.
//!
//! Eight bytes a shard, of which a cluster may have millions. Nothing of it is stored: a new leader begins with none.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::assignment::command::Cause;
use crate::types::{BootInstant, ExecutorId, ShardId};

/// So many ids are remembered. A leadership that sees more says of later ones that somebody owned the shard.
const MOST_NAMES: usize = SOMEBODY as usize;

/// In place of a name: nobody.
const NOBODY: u16 = u16::MAX;
/// In place of a name: somebody, whose name is not kept.
const SOMEBODY: u16 = u16::MAX - 1;
/// In place of a time: nothing happened yet.
const NEVER: u32 = u32::MAX;

/// See the module.
#[derive(Clone)]
pub struct History {
    began: BootInstant,
    entries: Vec<Entry>,
    names: Vec<ExecutorId>,
    known: BTreeMap<ExecutorId, u16>,
}

/// One shard's.
#[derive(Clone, Copy)]
struct Entry {
    /// In seconds since this leadership began: the grant in force, or where nobody owns the shard, when that came about.
    at: u32,
    /// Who owned it before.
    previous: u16,
    /// Why that one does not own it any more.
    cause: Option<Cause>,
}

const _: () = assert!(size_of::<Entry>() == 8);

/// A name that is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name(u16);

/// What is remembered of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory<'a> {
    /// To the second: the grant in force, or where nobody owns it, when that came about.
    pub at: BootInstant,
    /// Who owned it before.
    pub previous: Previous<'a>,
    /// Why it changed hands.
    pub cause: Cause,
}

/// See [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous<'a> {
    /// No owner was seen before.
    Nobody,
    /// There was one, whose name is not kept.
    Somebody,
    /// This one.
    Known(&'a ExecutorId),
}

/// Nothing of what it holds: nothing is decided by it, so it does not tell one engine from another.
impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").finish_non_exhaustive()
    }
}

impl History {
    pub fn new(number_of_shards: u32, began: BootInstant) -> History {
        let entry = Entry { at: NEVER, previous: NOBODY, cause: None };
        History { began, entries: vec![entry; number_of_shards as usize], names: Vec::new(), known: BTreeMap::new() }
    }

    /// When this leadership began.
    pub fn began(&self) -> BootInstant {
        self.began
    }

    /// For [`History::freed`].
    pub fn name(&mut self, id: &ExecutorId) -> Name {
        if let Some(&name) = self.known.get(id) {
            return Name(name);
        }
        if self.names.len() >= MOST_NAMES {
            return Name(SOMEBODY);
        }
        let name = self.names.len() as u16;
        self.names.push(id.clone());
        self.known.insert(id.clone(), name);
        Name(name)
    }

    /// Its owner does not own it any more.
    pub fn freed(&mut self, now: BootInstant, shard: ShardId, previous: Name, cause: Cause) {
        let at = self.seconds(now);
        self.entries[shard.0 as usize] = Entry { at, previous: previous.0, cause: Some(cause) };
    }

    /// It has a new owner. Why it was free is remembered already, where this leadership saw it.
    pub fn granted(&mut self, now: BootInstant, shard: ShardId, cause: Cause) {
        let at = self.seconds(now);
        let entry = &mut self.entries[shard.0 as usize];
        *entry = Entry { at, cause: entry.cause.or(Some(cause)), ..*entry };
    }

    /// `None` where this leadership saw nothing happen to it.
    pub fn get(&self, shard: ShardId) -> Option<Memory<'_>> {
        let Entry { at, previous, cause } = self.entries[shard.0 as usize];
        let cause = cause.filter(|_| at != NEVER)?;
        let previous = match previous {
            NOBODY => Previous::Nobody,
            name => self.names.get(usize::from(name)).map_or(Previous::Somebody, Previous::Known),
        };
        Some(Memory { at: self.began.after(Duration::from_secs(u64::from(at))), previous, cause })
    }

    fn seconds(&self, now: BootInstant) -> u32 {
        // 136 years.
        u32::try_from(now.since(self.began).as_secs()).unwrap_or(NEVER - 1).min(NEVER - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_what_is_not_kept_is_still_somebody() {
        let began = BootInstant(Duration::from_secs(100));
        let mut history = History::new(2, began);
        assert_eq!(history.get(ShardId(0)), None);
        let names: Vec<Name> = (0..MOST_NAMES + 1).map(|at| history.name(&format!("e{at}").parse().unwrap())).collect();
        assert_eq!(history.name(&"e7".parse().unwrap()), names[7], "once each");
        let now = began.after(Duration::from_millis(2900));
        history.freed(now, ShardId(0), names[7], Cause::Crash);
        history.freed(now, ShardId(1), names[MOST_NAMES], Cause::Drain);
        history.granted(now, ShardId(1), Cause::Startup);
        let at = began.after(Duration::from_secs(2));
        let e7 = "e7".parse().unwrap();
        assert_eq!(history.get(ShardId(0)), Some(Memory { at, previous: Previous::Known(&e7), cause: Cause::Crash }));
        assert_eq!(history.get(ShardId(1)), Some(Memory { at, previous: Previous::Somebody, cause: Cause::Drain }));
    }
}
