//! The stored state, page by page, and who may write it.

use std::collections::BTreeMap;

use shard_manager::assignment::state::{
    Changes, EXECUTORS_PER_PAGE, ExecutorPage, Meta, RETIREE_PAGES, RetireePage, SHARDS_PER_PAGE, ShardPage,
};
use shard_manager::assignment::{State, check};
use shard_manager::types::{Revision, Version};

/// The place that is never wrong.
pub struct Store {
    /// The fence: the number of the newest leadership.
    pub leader: u64,
    pub number_of_shards: u32,
    revision: Option<Revision>,
    meta: Option<Meta>,
    executors: Vec<ExecutorPage>,
    shards: Vec<ShardPage>,
    retirees: Vec<RetireePage>,
    /// Every state that it ever held.
    pub history: BTreeMap<Version, State>,
}

impl Store {
    /// Empty, and nobody leads.
    pub fn new(number_of_shards: u32) -> Store {
        Store {
            leader: 0,
            number_of_shards,
            revision: None,
            meta: None,
            executors: Vec::new(),
            shards: page_sizes(number_of_shards).map(|size| vec![Default::default(); size]).collect(),
            retirees: vec![RetireePage::default(); RETIREE_PAGES],
            history: BTreeMap::new(),
        }
    }

    /// **P1.** `None` where the writer does not lead any more.
    pub fn commit(&mut self, number: u64, expected: Option<Revision>, changes: &Changes) -> Result<Option<Revision>, String> {
        if number != self.leader {
            return Ok(None);
        }
        if expected != self.revision {
            return Err(format!("P1: the current leader replaces {expected:?}, and there is {:?}", self.revision));
        }
        self.meta = Some(changes.meta.clone());
        for (page, records) in &changes.executors {
            let pages = self.executors.len().max(*page as usize + 1);
            self.executors.resize(pages, vec![None; EXECUTORS_PER_PAGE]);
            self.executors[*page as usize] = ExecutorPage::clone(records);
        }
        changes.shards.iter().for_each(|(page, records)| self.shards[*page as usize] = ShardPage::clone(records));
        changes.retirees.iter().for_each(|(page, records)| self.retirees[*page as usize] = RetireePage::clone(records));
        let before = self.current().map(|(_, state)| state.clone());
        let revision = Revision(self.revision.map_or(1, |revision| revision.0 + 1));
        self.revision = Some(revision);
        let state = self.load().expect("it was written").1;
        let mut violations = check::check(&state);
        violations.extend(before.iter().flat_map(|before| check::check_step(before, &state)));
        self.history.insert(Version { term: state.meta.term, revision }, state);
        match violations.first() {
            Some(violation) => Err(format!("check: {violation}")),
            None => Ok(Some(revision)),
        }
    }

    pub fn load(&self) -> Option<(Revision, State)> {
        let pages = (self.executors.clone(), self.shards.clone(), self.retirees.clone());
        let state = State::from_pages(self.meta.clone()?, pages.0, pages.1, pages.2).expect("pages that make a state");
        Some((self.revision?, state))
    }

    pub fn current(&self) -> Option<(&Version, &State)> {
        self.history.last_key_value()
    }
}

fn page_sizes(number_of_shards: u32) -> impl Iterator<Item = usize> {
    let shards = number_of_shards as usize;
    (0..shards).step_by(SHARDS_PER_PAGE).map(move |first| SHARDS_PER_PAGE.min(shards - first))
}
