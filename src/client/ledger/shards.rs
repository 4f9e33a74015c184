//! What each shard does and should do, and what the executor holds by that: kept up in one place, [`Shards::turn`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::message::Action;
use crate::holdings::{Holdings, digest_of};
use crate::types::{BootInstant, Epoch, ShardId};

/// The first pause before a shard whose future ended by itself is run again; doubled each time.
const FIRST_REST: Duration = Duration::from_millis(100);
/// The longest such pause; a future that ran for longer than this has proven itself.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// On what a shard takes its next step: as things are at that moment. So it is taken anew after each change of the lease; what is withdrawn
/// stops under the one from before (L6).
#[derive(Clone, Copy)]
pub(super) struct Footing {
    pub now: BootInstant,
    /// The end of the lease, which is the deadline of what is to stop.
    pub lease: Option<BootInstant>,
    /// Whether anything may start.
    pub starts: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Run {
    #[default]
    Idle,
    /// Ended by itself; not held, and not run again before this.
    Resting {
        until: BootInstant,
    },
    Running {
        epoch: Epoch,
        since: BootInstant,
    },
    /// Cancelled. It keeps the deadline that it had when it was removed (L6).
    Stopping {
        epoch: Epoch,
        deadline: BootInstant,
    },
    /// Cancelled and being dropped.
    Fenced {
        epoch: Epoch,
    },
}

impl Run {
    fn held(self) -> Option<Epoch> {
        match self {
            Run::Idle | Run::Resting { .. } => None,
            Run::Running { epoch, .. } | Run::Stopping { epoch, .. } | Run::Fenced { epoch } => Some(epoch),
        }
    }

    fn alarm(self) -> Option<BootInstant> {
        match self {
            Run::Resting { until } => Some(until),
            Run::Stopping { deadline, .. } => Some(deadline),
            Run::Idle | Run::Running { .. } | Run::Fenced { .. } => None,
        }
    }

    fn is_ending(self) -> bool {
        matches!(self, Run::Stopping { .. } | Run::Fenced { .. })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    wanted: Option<Epoch>,
    run: Run,
    /// How often in a row it ended by itself.
    failures: u32,
}

/// See the module. What comes back has to be done, in this order.
#[derive(Clone, Debug, Default)]
pub(super) struct Shards {
    entries: BTreeMap<ShardId, Entry>,
    /// Of the entries that have one.
    alarms: BTreeSet<(BootInstant, ShardId)>,
    held: usize,
    ending: usize,
    digest: u64,
    /// What is held as a set, made when asked for.
    claim: Option<Arc<Holdings>>,
}

impl Shards {
    /// How many are held.
    pub fn held(&self) -> usize {
        self.held
    }

    /// How many are held that stop or are being fenced.
    pub fn ending(&self) -> usize {
        self.ending
    }

    /// Of what is held.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Whether none is held, wanted or about to be run again.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What is held.
    pub fn claim(&mut self) -> Arc<Holdings> {
        let entries = &self.entries;
        let make = || Holdings::from_pairs(entries.iter().filter_map(|(&shard, entry)| Some((shard, entry.run.held()?))));
        Arc::clone(self.claim.get_or_insert_with(|| Arc::new(make())))
    }

    /// When [`Shards::look`] has something to end or to start, at the latest.
    pub fn next_look(&self) -> Option<BootInstant> {
        self.alarms.first().map(|&(at, _)| at)
    }

    /// Fences what had its time to stop, and runs what has rested.
    pub fn look(&mut self, footing: Footing) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(&(at, shard)) = self.alarms.first()
            && at <= footing.now
        {
            actions.extend(match self.run_of(shard) {
                Run::Stopping { .. } => self.fence(shard),
                _ => {
                    self.turn(shard, Run::Idle);
                    self.settle(footing, shard)
                }
            });
        }
        actions
    }

    /// The lease is over.
    pub fn fence_all(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        for shard in self.known() {
            self.want(shard, None);
            actions.extend(self.fence(shard));
        }
        actions
    }

    /// Stops what the set lacks.
    pub fn withdraw(&mut self, footing: Footing, set: &Holdings) -> Vec<Action> {
        let mut actions = Vec::new();
        for shard in self.known() {
            self.want(shard, set.epoch(shard));
            if self.run_of(shard) != Run::Idle {
                actions.extend(self.settle(footing, shard));
            }
        }
        actions
    }

    /// Starts what the set adds.
    pub fn provide(&mut self, footing: Footing, set: &Holdings) -> Vec<Action> {
        let mut actions = Vec::new();
        for (shard, epoch) in set.iter() {
            self.want(shard, Some(epoch));
            actions.extend(self.settle(footing, shard));
        }
        actions
    }

    /// The future of a shard returned or was dropped; nothing happens where another epoch of it is held.
    pub fn ended(&mut self, footing: Footing, shard: ShardId, epoch: Epoch) -> Option<Action> {
        let run = self.run_of(shard);
        if run.held() != Some(epoch) {
            return None;
        }
        let rest = match run {
            Run::Running { since, .. } => self.rest_after(footing.now.since(since), shard),
            _ => None,
        };
        self.turn(shard, rest.map_or(Run::Idle, |rest| Run::Resting { until: footing.now.after(rest) }));
        self.settle(footing, shard)
    }

    fn known(&self) -> Vec<ShardId> {
        self.entries.keys().copied().collect()
    }

    fn want(&mut self, shard: ShardId, epoch: Option<Epoch>) {
        let entry = self.entries.entry(shard).or_default();
        // Below what it holds, the manager's record is behind: the claim raises it (L11).
        let epoch = epoch.max(entry.run.held().filter(|_| epoch.is_some()));
        if entry.wanted != epoch {
            entry.wanted = epoch;
            entry.failures = 0;
        }
    }

    fn run_of(&self, shard: ShardId) -> Run {
        self.entries.get(&shard).map_or(Run::Idle, |entry| entry.run)
    }

    /// Takes the next step from what a shard does to what it should do.
    fn settle(&mut self, Footing { now, lease, starts }: Footing, shard: ShardId) -> Option<Action> {
        let entry = self.entries.get(&shard)?;
        match (entry.run, entry.wanted) {
            (Run::Running { epoch, .. }, wanted) if wanted != Some(epoch) => {
                self.turn(shard, Run::Stopping { epoch, deadline: lease.unwrap_or(now) }); // L6
                Some(Action::Stop(shard, epoch))
            }
            (Run::Idle, Some(epoch)) if starts => {
                self.turn(shard, Run::Running { epoch, since: now });
                Some(Action::Start(shard, epoch))
            }
            (Run::Idle | Run::Resting { .. }, None) => {
                self.forget(shard);
                None
            }
            _ => None,
        }
    }

    fn fence(&mut self, shard: ShardId) -> Option<Action> {
        match self.run_of(shard) {
            Run::Running { epoch, .. } | Run::Stopping { epoch, .. } => {
                self.turn(shard, Run::Fenced { epoch });
                Some(Action::Fence(shard, epoch))
            }
            Run::Idle | Run::Resting { .. } => {
                self.forget(shard);
                None
            }
            Run::Fenced { .. } => None,
        }
    }

    fn forget(&mut self, shard: ShardId) {
        self.turn(shard, Run::Idle);
        self.entries.remove(&shard);
    }

    /// The pause after a shard ended by itself having run for `ran`.
    fn rest_after(&mut self, ran: Duration, shard: ShardId) -> Option<Duration> {
        let entry = self.entries.get_mut(&shard)?;
        entry.failures = if ran > LONGEST_REST { 0 } else { entry.failures };
        let rest = FIRST_REST.saturating_mul(1 << entry.failures.min(16)).min(LONGEST_REST);
        entry.failures += 1;
        Some(rest)
    }

    /// The one place where a shard changes what it does; keeps the sums.
    fn turn(&mut self, shard: ShardId, run: Run) {
        let entry = self.entries.entry(shard).or_default();
        let before = std::mem::replace(&mut entry.run, run);
        if let Some(at) = before.alarm() {
            self.alarms.remove(&(at, shard));
        }
        if let Some(at) = run.alarm() {
            self.alarms.insert((at, shard));
        }
        self.ending -= usize::from(before.is_ending());
        self.ending += usize::from(run.is_ending());
        if before.held() == run.held() {
            return;
        }
        self.claim = None;
        if let Some(epoch) = before.held() {
            self.held -= 1;
            self.digest = self.digest.wrapping_sub(digest_of(shard, epoch));
        }
        if let Some(epoch) = run.held() {
            self.held += 1;
            self.digest = self.digest.wrapping_add(digest_of(shard, epoch));
        }
    }
}
