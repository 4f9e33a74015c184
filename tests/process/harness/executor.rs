//! An executor's process.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use shard_manager::cli::journal::{Entry, Line, check};

use super::Child;

/// A process of `shard-manager executor` with its journal.
pub struct Executor {
    pub child: Child,
    pub id: String,
    pub journal: PathBuf,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Executor {
    /// Starts one and waits until it listens; that it is registered is another matter.
    pub async fn start(id: &str, manager: &str, journal: &Path, arguments: &[&str]) -> Executor {
        let journal_text = journal.display().to_string();
        let mut all = vec!["executor", "--id", id, "--journal", &journal_text];
        if !arguments.contains(&"--manager") {
            all.extend(["--manager", manager]);
        }
        all.extend(arguments);
        let all: Vec<String> = all.into_iter().map(str::to_owned).collect();
        let mut child = Child::spawn(&format!("executor {id}"), &all);
        let address = child.announced(" listens on ").await.parse().unwrap();
        Executor { child, id: id.to_owned(), journal: journal.to_owned(), address }
    }

    /// SIGKILL, and the death is noted in the journal, as a stop of everything that it held. A journal does not know that its process was
    /// killed, and shows its lease running on, until a successor goes on with the same file; this is for successors with a file of their
    /// own, for which the manager need not wait either where they prove that it is gone (L13).
    pub fn bury(&mut self) {
        self.child.kill();
        let (at_ns, executor, incarnation) = (super::boot_ns(), self.id.clone(), self.incarnation());
        let mut journal = std::fs::OpenOptions::new().append(true).open(&self.journal).unwrap();
        // Its last line may have been cut off.
        journal.write_all(b"\n").unwrap();
        for (shard, epoch) in self.holds() {
            let line = Line { at_ns, entry: Entry::Stop { shard, epoch }, executor: executor.clone(), incarnation };
            journal.write_all(format!("{}\n", serde_json::to_string(&line).unwrap()).as_bytes()).unwrap();
        }
    }

    /// What it has written down so far.
    pub fn lines(&self) -> Vec<Line> {
        check::read(&[&self.journal]).unwrap().concat()
    }

    /// Starts, stops and fences after an instant, in order.
    pub fn changes_since(&self, at_ns: u64) -> Vec<Line> {
        let is_change = |line: &Line| line.at_ns > at_ns && line.is_about_a_shard();
        self.lines().into_iter().filter(is_change).collect()
    }

    /// The shards that it works on, with their epochs, by its journal.
    pub fn holds(&self) -> std::collections::BTreeMap<u32, u64> {
        let mut holds = std::collections::BTreeMap::new();
        for line in self.lines() {
            match line.entry {
                Entry::Start { shard, epoch } => drop(holds.insert(shard, epoch)),
                Entry::Stop { shard, .. } | Entry::Fenced { shard, .. } => drop(holds.remove(&shard)),
                Entry::Begin | Entry::Lease { .. } => {}
            }
        }
        holds
    }

    /// Until when its newest lease runs, in nanoseconds of CLOCK_BOOTTIME; 0 where it never had one.
    pub fn lease_until(&self) -> u64 {
        let until = |line: &Line| match line.entry {
            Entry::Lease { until_ns } => Some(until_ns),
            _ => None,
        };
        self.lines().iter().filter_map(until).max().unwrap_or(0)
    }

    /// The incarnation that wrote last; 0 where none has.
    pub fn incarnation(&self) -> u64 {
        self.lines().last().map_or(0, |line| line.incarnation)
    }
}
