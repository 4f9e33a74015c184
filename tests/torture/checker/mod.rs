//! Reads the history of a torture run and says which promise it breaks.
//!
//! It knows the promises of docs/guarantees.md and the history's lines, and nothing of how the product keeps the one or makes the other:
//! no line of the product is used here, so that no mistake of the product can hide itself. What is not in the history cannot be judged;
//! the report says so, and a run in which something expected never happened is *not measured*, whatever else it shows.
//!
//! | file | what it looks at |
//! | --- | --- |
//! | `history` | lines |
//! | `circumstances` | who was frozen, when the store was wiped, what could not be observed |
//! | `ownership` | P3 and P4: who worked on a shard, under which lease and epoch |
//! | `writes` | the executors' storage, and what callers were told of it |
//! | `asks` | P2: what managers acknowledged |
//! | `versions` | P1, P2, P7: (term, revision) as readers, operators and the store itself see them |
//! | `managers` | P8: how many say that they lead |
//! | `recovery` | P6: every shard has an owner again in time; which faults happened |

mod asks;
mod circumstances;
mod history;
mod managers;
mod ownership;
mod recovery;
#[cfg(test)]
mod tests;
mod versions;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use circumstances::Circumstances;
use history::{Event, History};

/// What docs/guarantees.md promises, as far as a history can break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    Fenced,
    DurableBeforeVisible,
    OneOwner,
    EpochsOnlyGrow,
    NoOrphanForEver,
    ReadersNeverGoBack,
    HonestEnds,
    /// Not the product's alone: what the epochs are for.
    StorageIsSafe,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Promise::Fenced => "P1 Fenced",
            Promise::DurableBeforeVisible => "P2 Durable before visible",
            Promise::OneOwner => "P3 One owner",
            Promise::EpochsOnlyGrow => "P4 Epochs only grow",
            Promise::NoOrphanForEver => "P6 No orphan for ever",
            Promise::ReadersNeverGoBack => "P7 Readers never go back",
            Promise::HonestEnds => "P8 Honest ends",
            Promise::StorageIsSafe => "Storage: what was acknowledged is there, once",
        })
    }
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub promise: Promise,
    pub what: String,
    /// The lines that show it, by their place in the order of time.
    pub lines: Vec<usize>,
    /// Where it concerns one shard, lines about others are left out of what is shown.
    pub shard: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// No promise was broken, but something that should have happened never did.
    NotMeasured,
    Violated,
}

/// What a history shows.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub seed: u64,
    pub store: String,
    pub violations: Vec<Violation>,
    /// What the program could not observe, and what that may hide.
    pub gaps: Vec<String>,
    /// Kinds of faults that never happened, and checks that had nothing to look at.
    pub not_measured: Vec<String>,
    /// Checks that saw less than they could.
    pub notes: Vec<String>,
    pub counts: BTreeMap<String, u64>,
    /// For each violation that is shown, the history around it.
    around: Vec<String>,
}

/// How many violations are told, and for how many the history around them is shown.
const TOLD: usize = 20;
const SHOWN: usize = 3;
/// How many lines before and after one that shows a violation.
const AROUND: usize = 6;

/// Reads a history and checks everything. A file that cannot be read is a run that was not measured.
pub fn check(history: &Path) -> Report {
    match std::fs::read(history) {
        Ok(bytes) => check_text(&String::from_utf8_lossy(&bytes)),
        Err(error) => {
            let not_measured = vec![format!("everything: {} cannot be read: {error}", history.display())];
            Report { not_measured, ..Report::default() }
        }
    }
}

fn check_text(text: &str) -> Report {
    let history = History::parse(text);
    let circumstances = Circumstances::of(&history);
    let mut report = Report { seed: history.run.seed, store: history.run.store.clone(), ..Report::default() };
    report.notes.extend(history.unread.iter().cloned());
    report.gaps.extend(circumstances.told());
    for (_, _, event) in history.events() {
        report.count(name_of(event), 1);
    }
    let shards = ownership::check(&history, &circumstances, &mut report);
    writes::check(&history, &shards, &mut report);
    asks::check(&history, &circumstances, &mut report);
    versions::check(&history, &mut report);
    managers::check(&history, &circumstances, &mut report);
    recovery::check(&history, &circumstances, &shards, &mut report);
    report.around = report.violations.iter().take(SHOWN).map(|violation| around(&history, violation)).collect();
    report
}

fn name_of(event: &Event) -> &'static str {
    match event {
        Event::Start { .. } => "starts",
        Event::Registered { .. } => "registrations",
        Event::Written { .. } => "writes accepted",
        Event::StorageRefused { .. } => "writes refused by the storage",
        Event::Seen { .. } => "tables seen by readers",
        Event::Stored { .. } => "states seen in the store",
        Event::State { .. } => "states told by a leader",
        Event::Scrape { .. } => "scrapes",
        Event::Fault { begins: true, .. } => "faults",
        _ => "other lines",
    }
}

/// The lines that show a violation, marked, and those around them.
fn around(history: &History, violation: &Violation) -> String {
    let concerns = |index: usize| match (violation.shard, &history.lines[index].event) {
        (Some(shard), Event::Start { shard: of, .. } | Event::Stopping { shard: of, .. } | Event::Stop { shard: of, .. }) => {
            *of == shard
        }
        (Some(shard), Event::Written { shard: of, .. } | Event::StorageRefused { shard: of, .. }) => *of == shard,
        (_, Event::Scrape { .. } | Event::Silent { .. }) => violation.promise == Promise::HonestEnds,
        _ => true,
    };
    let mut shown = BTreeSet::new();
    for &line in violation.lines.iter().filter(|line| **line < history.lines.len()) {
        shown.insert(line);
        shown.extend((0..line).rev().filter(|&it| concerns(it)).take(AROUND));
        shown.extend((line + 1..history.lines.len()).filter(|&it| concerns(it)).take(AROUND));
    }
    let mut text = String::new();
    let mut before = None;
    for index in shown {
        if before.is_some_and(|before| before + 1 != index) {
            text.push_str("    ...\n");
        }
        before = Some(index);
        let mark = if violation.lines.contains(&index) { ">" } else { " " };
        let line: String = history.lines[index].text.chars().take(400).collect();
        text.push_str(&format!("  {mark} {line}\n"));
    }
    text
}

impl Report {
    pub fn verdict(&self) -> Verdict {
        if !self.violations.is_empty() {
            Verdict::Violated
        } else if self.not_measured.is_empty() {
            Verdict::Passed
        } else {
            Verdict::NotMeasured
        }
    }

    fn violated(&mut self, promise: Promise, lines: impl IntoIterator<Item = usize>, shard: Option<u32>, what: String) {
        self.violations.push(Violation { promise, what, lines: lines.into_iter().collect(), shard });
    }

    fn count(&mut self, what: &str, times: u64) {
        *self.counts.entry(what.to_owned()).or_default() += times;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} on {}", self.seed, self.store)?;
        for (what, times) in &self.counts {
            writeln!(f, "  {times:>8} {what}")?;
        }
        for (title, items) in [("GAP", &self.gaps), ("NOT MEASURED", &self.not_measured), ("NOTE", &self.notes)] {
            for item in items.iter().take(TOLD) {
                writeln!(f, "{title} {item}")?;
            }
            if items.len() > TOLD {
                writeln!(f, "{title} and {} more", items.len() - TOLD)?;
            }
        }
        for (index, violation) in self.violations.iter().take(TOLD).enumerate() {
            writeln!(f, "VIOLATION of {}: {}", violation.promise, violation.what)?;
            if let Some(around) = self.around.get(index) {
                f.write_str(around)?;
            }
        }
        match self.violations.len() {
            0 => {}
            1..=TOLD => writeln!(f, "{} violations; seed {}", self.violations.len(), self.seed)?,
            more => writeln!(f, "and {} violations more; seed {}", more - TOLD, self.seed)?,
        }
        writeln!(
            f,
            "verdict: {}",
            match self.verdict() {
                Verdict::Passed => "passed",
                Verdict::NotMeasured => "not measured",
                Verdict::Violated => "violated",
            }
        )
    }
}

/// Nanoseconds, for people.
fn seconds(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}
