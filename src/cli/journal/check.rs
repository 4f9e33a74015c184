//! The checker: reads journals and finds what must never be.
//!
//! An ownership interval of a shard goes from its `start` to its `stop` or `fenced`, or, where neither came in time, to the end of the
//! last lease that its incarnation is known to have had from then on, or to the moment from which it is known to be gone.
//!
//! A process that was killed leaves no line about that, but its successor does: each process writes to a file of its own, and one that is
//! started again after it may go on with the same file. So the first line of an executor's next incarnation in a file says that every
//! earlier incarnation of that executor in that file holds nothing any more: the process is gone, or has stopped everything before it
//! registered anew. Our own executors write that line before the manager hears of the incarnation. An incarnation that writes to the file once more disproves that: then two processes share the file, and nothing is
//! concluded for it. Across files nothing is concluded: there a new process says nothing about an old one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::{Entry, Line};

/// A journal that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line that is none of a journal's, and not the last.
    #[error("{} line {line} is no line of a journal: {source}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
}

/// The lines of one file, in the order in which they were written.
pub type Journal = Vec<Line>;

/// Reads journals, one for each path. A line that was cut off, as a killed process leaves it, is left out: at the end of a file, or
/// before a line that a later process appended.
pub fn read(paths: &[impl AsRef<Path>]) -> Result<Vec<Journal>, ReadError> {
    let read = |path: &Path| {
        let text = std::fs::read(path).map_err(|source| ReadError::File { path: path.to_owned(), source })?;
        parse(path, &text)
    };
    paths.iter().map(|path| read(path.as_ref())).collect()
}

pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Journal, ReadError> {
    let mut lines = Vec::new();
    for (index, bytes) in text.split(|&byte| byte == b'\n').enumerate().filter(|(_, bytes)| !bytes.is_empty()) {
        match serde_json::from_slice(bytes) {
            Ok(line) => lines.push(line),
            Err(source) if source.is_eof() => {} // Cut off.
            Err(source) => return Err(ReadError::Line { path: path.to_owned(), line: index + 1, source }),
        }
    }
    Ok(lines)
}

/// What to hold the journals to, beyond what must never be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Every shard below this must have had an owner.
    pub number_of_shards: Option<u32>,
    /// No shard may be without an owner for longer, between its first start and the last line of all journals.
    pub at_most_unowned: Option<Duration>,
}

/// One time of ownership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interval {
    /// Who.
    pub executor: String,
    /// Which process.
    pub incarnation: u64,
    /// With this fencing token.
    pub epoch: u64,
    /// Nanoseconds of CLOCK_BOOTTIME.
    pub from_ns: u64,
    /// Nanoseconds of CLOCK_BOOTTIME.
    pub until_ns: u64,
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Violation {
    /// Two incarnations owned a shard at one time, both under a live lease.
    Overlap {
        /// Which shard.
        shard: u32,
        /// The one that began first.
        first: Interval,
        /// The one that began before that ended.
        second: Interval,
    },
    /// A shard went to another incarnation at an epoch that is not above all before, or to the first at 0 (P4).
    EpochDidNotGrow {
        /// Which shard.
        shard: u32,
        /// The highest epoch before.
        highest: u64,
        /// The ownership at an epoch that is no higher.
        interval: Interval,
    },
    /// Work on a shard began without a lease.
    NoLease {
        /// Which shard.
        shard: u32,
        /// Who.
        executor: String,
        /// Which process.
        incarnation: u64,
        /// When, in nanoseconds of CLOCK_BOOTTIME.
        at_ns: u64,
    },
    /// One incarnation began to work on a shard that it still worked on.
    StartedTwice {
        /// Which shard.
        shard: u32,
        /// Who.
        executor: String,
        /// Which process.
        incarnation: u64,
        /// When, in nanoseconds of CLOCK_BOOTTIME.
        at_ns: u64,
    },
    /// Work on a shard ended that had not begun, or had begun at another epoch: a line is missing.
    EndsNothing {
        /// Which shard.
        shard: u32,
        /// At this epoch.
        epoch: u64,
        /// Who.
        executor: String,
        /// Which process.
        incarnation: u64,
        /// When, in nanoseconds of CLOCK_BOOTTIME.
        at_ns: u64,
    },
    /// A shard had no owner for longer than allowed.
    Unowned {
        /// Which shard.
        shard: u32,
        /// Nanoseconds of CLOCK_BOOTTIME.
        from_ns: u64,
        /// Nanoseconds of CLOCK_BOOTTIME.
        until_ns: u64,
    },
    /// A shard never had an owner.
    NeverOwned {
        /// Which shard.
        shard: u32,
    },
}

/// What one shard went through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShardSummary {
    /// How often it went from one executor to another. Its first grant is no move, and neither is a new incarnation of its owner.
    pub moves: u32,
    /// Its longest time without an owner after its first start, in nanoseconds.
    pub longest_unowned_ns: u64,
    /// All its time without an owner after its first start, in nanoseconds.
    pub total_unowned_ns: u64,
}

/// What the journals show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What must not be, by shard.
    pub violations: Vec<Violation>,
    /// By shard.
    pub shards: BTreeMap<u32, ShardSummary>,
    /// How many incarnations took part.
    pub incarnations: usize,
    /// Work that ended after its lease. That breaks no promise: a process that is stopped cannot end anything, and its storage refuses
    /// what it does when it wakes.
    pub late: Late,
}

/// Work on shards that ended after the last lease under which it was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Late {
    /// How often.
    pub times: u64,
    /// By how much at most, in nanoseconds.
    pub longest_ns: u64,
}

impl Report {
    /// Moves of all shards.
    pub fn moves(&self) -> u64 {
        self.shards.values().map(|shard| u64::from(shard.moves)).sum()
    }

    /// The longest time that a shard was without an owner after its first start.
    pub fn longest_unowned(&self) -> Duration {
        Duration::from_nanos(self.shards.values().map(|shard| shard.longest_unowned_ns).max().unwrap_or(0))
    }

    /// Shard-time without an owner, over all shards.
    pub fn total_unowned(&self) -> Duration {
        Duration::from_nanos(self.shards.values().fold(0, |sum, shard| sum.saturating_add(shard.total_unowned_ns)))
    }
}

/// Checks everything. The order of the journals does not matter.
pub fn check(journals: &[Journal], rules: Rules) -> Report {
    let Ownership { intervals, mut violations, late } = Ownership::read(journals);
    let lines = || journals.iter().flatten();
    let last_ns = lines().map(|line| line.at_ns).max().unwrap_or(0);
    let mut shards = BTreeMap::new();
    for (&shard, intervals) in &intervals {
        violations.extend(overlaps(shard, intervals));
        violations.extend(stuck_epochs(shard, intervals));
        let gaps = gaps(intervals, last_ns);
        if let Some(most) = rules.at_most_unowned {
            let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
            let long = gaps.iter().filter(|(from, until)| until - from > most);
            violations.extend(long.map(|&(from_ns, until_ns)| Violation::Unowned { shard, from_ns, until_ns }));
        }
        let moves = intervals.windows(2).filter(|pair| pair[0].executor != pair[1].executor).count();
        let lengths = || gaps.iter().map(|(from, until)| until - from);
        let summary = ShardSummary {
            moves: u32::try_from(moves).unwrap_or(u32::MAX),
            longest_unowned_ns: lengths().max().unwrap_or(0),
            total_unowned_ns: lengths().sum(),
        };
        shards.insert(shard, summary);
    }
    let all = 0..rules.number_of_shards.unwrap_or(0);
    violations.extend(all.filter(|shard| !intervals.contains_key(shard)).map(|shard| Violation::NeverOwned { shard }));
    let incarnations: BTreeSet<ProcessId<'_>> = lines().map(process_of).collect();
    Report { violations, shards, incarnations: incarnations.len(), late }
}

/// Which process: the incarnation alone does not tell, where executors do not draw theirs as they should.
type ProcessId<'a> = (&'a str, u64);

fn process_of(line: &Line) -> ProcessId<'_> {
    (&line.executor, line.incarnation)
}

impl Interval {
    fn is_of_the_same_process_as(&self, other: &Interval) -> bool {
        (&self.executor, self.incarnation) == (&other.executor, other.incarnation)
    }
}

#[derive(Default)]
struct Process {
    /// (at, until), in the order written.
    leases: Vec<(u64, u64)>,
    open: HashMap<u32, (u64, u64)>,
    /// When its successor's first line in the same file came.
    gone_ns: Option<u64>,
}

impl Process {
    /// The end of the last lease that was in force at `from_ns` or was granted later, before `to_ns`. A lease that ran out and was
    /// followed by another is no live lease in between, but whoever renewed in time has one chain of them: its last end.
    fn lease_end(&self, from_ns: u64) -> Option<u64> {
        let mut end = None;
        for &(at, until) in &self.leases {
            match end {
                // Granted after the one before ran out: another chain, which begins too late.
                Some(end) if end > from_ns && at > end => break,
                _ => end = Some(until),
            }
        }
        end.filter(|&end| end > from_ns)
    }
}

fn processes(journals: &[Journal]) -> BTreeMap<ProcessId<'_>, Process> {
    let mut processes: BTreeMap<ProcessId<'_>, Process> = BTreeMap::new();
    for journal in journals {
        let mut incarnations: HashMap<&str, BTreeSet<u64>> = HashMap::new();
        for line in journal {
            let earlier = incarnations.entry(&line.executor).or_default();
            if !earlier.contains(&line.incarnation) {
                for incarnation in &*earlier {
                    let Some(process) = processes.get_mut(&(line.executor.as_str(), *incarnation)) else { continue };
                    process.gone_ns.get_or_insert(line.at_ns);
                }
                earlier.insert(line.incarnation);
            }
            let process = processes.entry(process_of(line)).or_default();
            process.gone_ns = None; // Whoever writes is not gone.
            if let Entry::Lease { until_ns } = line.entry {
                process.leases.push((line.at_ns, until_ns));
            }
        }
    }
    processes
}

/// Who owned what when, as journals have it, and what is wrong with them already.
#[derive(Default)]
struct Ownership {
    /// By shard, in the order of their beginnings.
    intervals: BTreeMap<u32, Vec<Interval>>,
    violations: Vec<Violation>,
    late: Late,
}

impl Ownership {
    fn read(journals: &[Journal]) -> Ownership {
        let mut processes = processes(journals);
        let mut found = Ownership::default();
        for line in journals.iter().flatten() {
            let Some(process) = processes.get_mut(&process_of(line)) else { continue };
            found.take_in(line, process);
        }
        // A process that was killed, or still runs, owns its shards until its last lease ends, or its successor shows that it is gone.
        for (&(executor, incarnation), process) in &processes {
            for (&shard, &(epoch, from_ns)) in &process.open {
                let until_ns =
                    process.lease_end(from_ns).unwrap_or(from_ns).min(process.gone_ns.unwrap_or(u64::MAX)).max(from_ns);
                found.add(shard, Interval { executor: executor.to_owned(), incarnation, epoch, from_ns, until_ns });
            }
        }
        for intervals in found.intervals.values_mut() {
            intervals.sort_by_key(|interval| (interval.from_ns, interval.until_ns));
        }
        found
    }

    fn take_in(&mut self, line: &Line, process: &mut Process) {
        let (executor, incarnation, at_ns) = (line.executor.clone(), line.incarnation, line.at_ns);
        match line.entry {
            Entry::Begin | Entry::Lease { .. } => {}
            Entry::Start { shard, epoch } => {
                if process.lease_end(at_ns).is_none() {
                    self.violations.push(Violation::NoLease { shard, executor: executor.clone(), incarnation, at_ns });
                }
                if process.open.insert(shard, (epoch, at_ns)).is_some() {
                    self.violations.push(Violation::StartedTwice { shard, executor, incarnation, at_ns });
                }
            }
            Entry::Stop { shard, epoch } | Entry::Fenced { shard, epoch } => {
                let begun = process.open.remove(&shard);
                if begun.is_none_or(|(begun, _)| begun != epoch) {
                    let executor = executor.clone();
                    self.violations.push(Violation::EndsNothing { shard, epoch, executor, incarnation, at_ns });
                }
                if let Some((epoch, from_ns)) = begun {
                    let lease_end = process.lease_end(from_ns).unwrap_or(from_ns);
                    self.late.count(at_ns.saturating_sub(lease_end));
                    self.add(shard, Interval { executor, incarnation, epoch, from_ns, until_ns: lease_end.min(at_ns) });
                }
            }
        }
    }

    fn add(&mut self, shard: u32, interval: Interval) {
        self.intervals.entry(shard).or_default().push(interval);
    }
}

impl Late {
    fn count(&mut self, by_ns: u64) {
        self.times += u64::from(by_ns > 0);
        self.longest_ns = self.longest_ns.max(by_ns);
    }
}

fn overlaps(shard: u32, intervals: &[Interval]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut latest: Option<&Interval> = None;
    for interval in intervals {
        if let Some(first) = latest
            && !first.is_of_the_same_process_as(interval)
            && interval.from_ns < first.until_ns
        {
            found.push(Violation::Overlap { shard, first: first.clone(), second: interval.clone() });
        }
        if latest.is_none_or(|latest| latest.until_ns <= interval.until_ns) {
            latest = Some(interval);
        }
    }
    found
}

fn stuck_epochs(shard: u32, intervals: &[Interval]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut before: Option<&Interval> = None;
    for interval in intervals {
        let highest = before.map_or(0, |before| before.epoch);
        let is_same = before.is_some_and(|before| before.is_of_the_same_process_as(interval));
        if interval.epoch < highest || (interval.epoch == highest && !is_same) {
            found.push(Violation::EpochDidNotGrow { shard, highest, interval: interval.clone() });
        } else {
            before = Some(interval);
        }
    }
    found
}

fn gaps(intervals: &[Interval], last_ns: u64) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let Some(first) = intervals.first() else { return found };
    let mut owned_until = first.until_ns;
    for interval in &intervals[1..] {
        if interval.from_ns > owned_until {
            found.push((owned_until, interval.from_ns));
        }
        owned_until = owned_until.max(interval.until_ns);
    }
    if last_ns > owned_until {
        found.push((owned_until, last_ns));
    }
    found
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        writeln!(
            f,
            "{} shards, {} incarnations, {} moves; without an owner: {:.3} s at most, {:.3} shard-seconds in all",
            self.shards.len(),
            self.incarnations,
            self.moves(),
            self.longest_unowned().as_secs_f64(),
            self.total_unowned().as_secs_f64(),
        )?;
        if self.late.times > 0 {
            let longest = Duration::from_nanos(self.late.longest_ns);
            writeln!(f, "note: work ended after its lease {} times, by {longest:.1?} at most", self.late.times)?;
        }
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "VIOLATION {violation}")?;
        }
        match self.violations.len() {
            0 => writeln!(f, "no violation"),
            1..=SHOWN => Ok(()),
            more => writeln!(f, "and {} violations more", more - SHOWN),
        }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Interval { executor, incarnation, epoch, from_ns, until_ns } = self;
        write!(f, "{executor} (incarnation {incarnation}, epoch {epoch}) from {from_ns} until {until_ns}")
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Overlap { shard, first, second } => {
                let overlap = Duration::from_nanos(first.until_ns.min(second.until_ns).saturating_sub(second.from_ns));
                write!(f, "shard {shard}: owned twice for {overlap:?}: by {first}, and by {second}")
            }
            Violation::EpochDidNotGrow { shard, highest, interval } => {
                write!(f, "shard {shard}: an epoch that is not above {highest}, granted before: {interval}")
            }
            Violation::NoLease { shard, executor, incarnation, at_ns } => {
                write!(f, "shard {shard}: started without a live lease by {executor} (incarnation {incarnation}) at {at_ns}")
            }
            Violation::StartedTwice { shard, executor, incarnation, at_ns } => {
                write!(f, "shard {shard}: started again before it ended by {executor} (incarnation {incarnation}) at {at_ns}")
            }
            Violation::EndsNothing { shard, epoch, executor, incarnation, at_ns } => {
                let who = format!("{executor} (incarnation {incarnation})");
                write!(f, "shard {shard}: ended at epoch {epoch}, at which it had not begun, by {who} at {at_ns}")
            }
            Violation::Unowned { shard, from_ns, until_ns } => {
                let length = Duration::from_nanos(until_ns - from_ns);
                write!(f, "shard {shard}: no owner for {length:?}, from {from_ns} until {until_ns}")
            }
            Violation::NeverOwned { shard } => write!(f, "shard {shard}: never had an owner"),
        }
    }
}

#[cfg(test)]
mod tests;
