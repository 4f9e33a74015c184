//! P3 and P4: who worked on a shard, until when under a live lease, and at which epoch.
//!
//! An incarnation works on a shard from `start` to `stop`, `fenced` or `ended`. It is *covered* from there for as long as its leases follow
//! each other without a gap; a shard that it was told to stop (`stopping`) keeps the lease of that moment. Two that are covered at one
//! instant break P3. One that goes on uncovered does not, where it stood still: then the storage decides. One that was awake should have
//! ended its work.

use std::collections::{BTreeMap, HashMap};

use super::circumstances::Circumstances;
use super::history::{Event, History, Incarnation};
use super::{Promise, Report, seconds};

/// A lease that was noted so shortly before `stopping` may have come in the same answer as the order to stop.
const SAME_ANSWER: u64 = 100_000_000;

/// One time of work.
#[derive(Clone, Debug)]
pub struct Work {
    pub who: Incarnation,
    pub epoch: u64,
    pub from: u64,
    /// `None` where it goes on at the end of the history.
    pub until: Option<u64>,
    pub covered_until: u64,
    /// Where the start stands, and what ended it.
    pub lines: Vec<usize>,
}

/// By shard, in the order of their starts.
pub type Shards = BTreeMap<u32, Vec<Work>>;

#[derive(Default)]
struct Process {
    /// (noted at, until).
    leases: Vec<(u64, u64)>,
    ended: Option<(usize, u64)>,
}

impl Process {
    /// Until when leases cover work that began at `from`, of those that were noted by `latest`.
    fn covered_until(&self, from: u64, latest: Option<u64>) -> u64 {
        let mut until = self.leases.iter().take_while(|(at, _)| *at <= from).last().map_or(0, |lease| lease.1).max(from);
        for &(at, end) in self.leases.iter().filter(|(at, _)| *at > from && latest.is_none_or(|latest| *at <= latest)) {
            if at > until {
                break;
            }
            until = end.max(at);
        }
        until
    }
}

pub fn check(history: &History, circumstances: &Circumstances, report: &mut Report) -> Shards {
    let shards = works(history, report);
    for (&shard, works) in &shards {
        overlaps(shard, works, circumstances, report);
        epochs(shard, works, circumstances, report);
        self_fences(shard, works, history, circumstances, report);
    }
    states(history, &shards, circumstances, report);
    if shards.is_empty() {
        report.not_measured.push("P3, P4: no executor started a shard".to_owned());
    }
    shards
}

fn works(history: &History, report: &mut Report) -> Shards {
    let mut processes: HashMap<&Incarnation, Process> = HashMap::new();
    for (line, at, event) in history.events() {
        match event {
            Event::Lease { who, until_ns } => processes.entry(who).or_default().leases.push((at, *until_ns)),
            Event::Ended { who } => processes.entry(who).or_default().ended = Some((line, at)),
            Event::Start { who, .. } => {
                processes.entry(who).or_default();
            }
            _ => {}
        }
    }
    type Open = (u64, u64, usize, Option<u64>);
    let mut shards = Shards::new();
    let mut open: HashMap<(u32, &Incarnation), Open> = HashMap::new();
    let mut sees_stopping = false;
    let close = |shards: &mut Shards, shard: u32, who: &Incarnation, work: Open, end: Option<(usize, u64)>| {
        let (epoch, from, line, stopping) = work;
        let process = &processes[who];
        let until = end.map(|(_, at)| at);
        let latest = stopping.map(|at| at.saturating_sub(SAME_ANSWER));
        let covered = process.covered_until(from, latest).min(until.unwrap_or(u64::MAX));
        let lines = [Some(line), end.map(|(line, _)| line)].into_iter().flatten().collect();
        let work = Work { who: who.clone(), epoch, from, until, covered_until: covered, lines };
        shards.entry(shard).or_default().push(work);
    };
    for (line, at, event) in history.events() {
        match event {
            Event::Start { who, shard, epoch } => {
                if let Some(work) = open.insert((*shard, who), (*epoch, at, line, None)) {
                    let what = format!("shard {shard}: {who} starts at epoch {epoch} what it has not ended at epoch {}", work.0);
                    report.violated(Promise::OneOwner, [work.2, line], Some(*shard), what);
                }
            }
            Event::Stopping { who, shard, .. } => {
                sees_stopping = true;
                if let Some(work) = open.get_mut(&(*shard, who)) {
                    work.3.get_or_insert(at);
                }
            }
            Event::Stop { who, shard, .. } => {
                if let Some(work) = open.remove(&(*shard, who)) {
                    close(&mut shards, *shard, who, work, Some((line, at)));
                }
            }
            _ => {}
        }
    }
    for ((shard, who), work) in open {
        close(&mut shards, shard, who, work, processes[who].ended.filter(|(_, at)| *at >= work.1));
    }
    if !sees_stopping && !shards.is_empty() {
        report.notes.push("no `stopping` lines: a shard that was asked back counts as covered by later leases too".to_owned());
    }
    for works in shards.values_mut() {
        works.sort_by_key(|work| (work.from, work.lines[0]));
    }
    shards
}

/// Two incarnations, both covered.
fn overlaps(shard: u32, works: &[Work], circumstances: &Circumstances, report: &mut Report) {
    for (index, second) in works.iter().enumerate() {
        for first in works[..index].iter().filter(|first| first.who != second.who) {
            let (from, until) = (second.from, first.covered_until.min(second.covered_until));
            if from >= until {
                continue;
            }
            if circumstances.is_wiped(from) && first.epoch != second.epoch {
                report.count("shards with two owners over a wiped store, told apart by their epochs", 1);
                continue;
            }
            let what = format!(
                "shard {shard} has two owners under live leases for {}: {} at epoch {} and {} at epoch {}, from {from}",
                seconds(until - from),
                first.who,
                first.epoch,
                second.who,
                second.epoch,
            );
            report.violated(Promise::OneOwner, first.lines.iter().chain(&second.lines).copied(), Some(shard), what);
        }
    }
}

/// Each start by another incarnation has a higher epoch than every start before.
fn epochs(shard: u32, works: &[Work], circumstances: &Circumstances, report: &mut Report) {
    let mut highest: Option<&Work> = None;
    for work in works {
        let Some(before) = highest else {
            highest = Some(work);
            continue;
        };
        let grows = work.epoch > before.epoch || (work.epoch == before.epoch && work.who == before.who);
        if grows {
            highest = Some(work);
            continue;
        }
        let is_uncovered = work.covered_until <= work.from;
        // Whoever stood still between the decision and the start starts what is no longer its own; it has no lease, and a lower epoch.
        if work.epoch < before.epoch && (is_uncovered || circumstances.is_wiped(work.from)) {
            report.count("starts below an epoch that was there before, without a lease", 1);
            continue;
        }
        let (who, epoch) = (&work.who, work.epoch);
        let what = format!("shard {shard} is started by {who} at epoch {epoch}, which {} had at {}", before.who, before.epoch);
        report.violated(Promise::EpochsOnlyGrow, [before.lines[0], work.lines[0]], Some(shard), what);
    }
}

/// Who is awake ends its work when its lease is over. A machine may be late by the better part of a lease.
fn self_fences(shard: u32, works: &[Work], history: &History, circumstances: &Circumstances, report: &mut Report) {
    let patience = (history.run.lease_ttl_ns / 3 * 2).max(1_000_000_000);
    for work in works {
        let until = work.until.unwrap_or(history.end_ns()).max(work.covered_until);
        let awake = circumstances.awake(&work.who.executor, (work.covered_until, until), patience);
        if awake > patience {
            let what = format!(
                "shard {shard}: {} goes on at epoch {} for {} after its lease was over at {}, {} of it awake",
                work.who,
                work.epoch,
                seconds(until - work.covered_until),
                work.covered_until,
                seconds(awake),
            );
            report.violated(Promise::OneOwner, work.lines.iter().copied(), Some(shard), what);
        }
    }
}

/// A leader's table that names somebody else at a higher epoch, while the owner of before is still covered.
fn states(history: &History, shards: &Shards, circumstances: &Circumstances, report: &mut Report) {
    for (line, at, event) in history.events() {
        let Event::State { owners, .. } = event else { continue };
        if circumstances.is_wiped(at) {
            continue;
        }
        for (shard, owner, epoch) in owners {
            let (Some(owner), Some(works)) = (owner, shards.get(shard)) else { continue };
            let is_covered = |work: &&Work| work.from < at && at < work.covered_until && work.until.is_none_or(|end| end > at);
            for work in works.iter().filter(is_covered).filter(|work| work.epoch < *epoch && work.who.executor != *owner) {
                let what = format!(
                    "shard {shard} belongs to {owner} at epoch {epoch} by the leader's table at {at}, while {} works on it at epoch {} \
                     under a lease until {}",
                    work.who, work.epoch, work.covered_until
                );
                report.violated(Promise::OneOwner, work.lines.iter().copied().chain([line]), Some(*shard), what);
            }
        }
    }
}

impl std::fmt::Display for Incarnation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.executor, self.number)
    }
}
