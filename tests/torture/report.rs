//! What came of a run, for people.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::plan::Kind;
use crate::settings::{self, Settings, Store};

/// What the checker says of a history.
#[derive(Debug)]
pub struct Verdict {
    /// How many promises were broken.
    pub violations: usize,
    /// How many of its checks had nothing to look at.
    pub not_measured: usize,
    /// All that it has to say, violations with the lines around them.
    pub text: String,
}

/// See the module.
pub struct Report {
    pub history: PathBuf,
    seed: u64,
    store: Store,
    length: Duration,
    kinds: BTreeMap<Kind, usize>,
    missed: usize,
    lines: BTreeMap<String, usize>,
    gaps: Vec<String>,
    elections: usize,
    rest: Option<Duration>,
    odd_ends: Vec<String>,
    verdict: Verdict,
    is_temporary: bool,
}

impl Report {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        settings: &Settings,
        history: PathBuf,
        all: &[Value],
        counts: &BTreeMap<Kind, usize>,
        missed: usize,
        rest: Option<Duration>,
        odd_ends: BTreeMap<String, usize>,
        verdict: Verdict,
    ) -> Report {
        // What a leader itself finds wrong with its state.
        let found = all.iter().filter(|line| line["violations"].as_array().is_some_and(|all| !all.is_empty()));
        let times = |(end, times): (String, usize)| if times == 1 { end } else { format!("{times} times: {end}") };
        let mut odd_ends: Vec<String> = odd_ends.into_iter().map(times).collect();
        odd_ends.extend(found.map(|line| format!("the state at {} was not sound: {}", line["at_ns"], line["violations"])));
        let Settings { seed, store, length, .. } = *settings;
        let mut lines = BTreeMap::new();
        for line in all {
            // The client's asks and the operator's are counted apart.
            let by = match line["by"].as_str() {
                Some("operator") => "operator's ",
                _ => "",
            };
            *lines.entry(format!("{by}{}", line["event"].as_str().unwrap_or_default())).or_default() += 1;
        }
        let gap = |line: &Value| {
            let length = line["to_ns"].as_u64().unwrap_or(0).saturating_sub(line["from_ns"].as_u64().unwrap_or(0));
            format!("{}: {:.1?}, {}", line["party"], Duration::from_nanos(length), line["why"])
        };
        let gaps = all.iter().filter(|line| line["event"] == "gap").map(gap).collect();
        let mut terms: Vec<u64> = all
            .iter()
            .filter(|line| line["event"] == "scrape" && line["is_leader"] == 1)
            .filter_map(|line| line["term"].as_u64())
            .collect();
        terms.sort_unstable();
        terms.dedup();
        let mut kinds: BTreeMap<Kind, usize> = settings.kinds.iter().map(|kind| (*kind, 0)).collect();
        kinds.extend(counts);
        let (elections, is_temporary) = (terms.len(), settings.directory.is_none());
        Report { history, seed, store, length, kinds, missed, lines, gaps, elections, rest, odd_ends, verdict, is_temporary }
    }

    fn not_measured(&self) -> Vec<Kind> {
        self.kinds.iter().filter(|(_, count)| **count == 0).map(|(kind, _)| *kind).collect()
    }

    /// Whether it is all right and all was seen.
    pub fn is_passed(&self) -> bool {
        self.outcome() == "passed"
    }

    /// In a word or two.
    pub fn outcome(&self) -> &'static str {
        // Whether the rest came in time is for the checker to say, which knows the gaps.
        if self.verdict.violations > 0 || !self.odd_ends.is_empty() || self.rest.is_none() {
            "violated"
        } else if !self.not_measured().is_empty() || self.verdict.not_measured > 0 {
            "not measured"
        } else {
            "passed"
        }
    }

    /// Nobody needs the history of a run that passed, unless a directory was given.
    pub fn clean_up(&self) {
        if self.is_temporary
            && let Some(directory) = self.history.parent()
        {
            std::fs::remove_dir_all(directory).ok();
        }
    }

    fn count(&self, event: &str) -> usize {
        self.lines.get(event).copied().unwrap_or(0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "torture: {}", self.outcome())?;
        writeln!(f, "seed {}, {:?}, {:?}", self.seed, self.store, self.length)?;
        writeln!(f, "\nfaults ({} more could not be: their target was not there, or nobody took them)", self.missed)?;
        for (kind, count) in &self.kinds {
            let not_measured = if *count == 0 { "  NOT MEASURED" } else { "" };
            writeln!(f, "  {:>5}  {}{not_measured}", count, kind.name())?;
        }
        let count = |event| self.count(event);
        writeln!(f, "\nhistory")?;
        let asks = [count("ask"), count("acknowledged"), count("unknown"), count("refused_ask")];
        writeln!(f, "  writes asked {}, acknowledged {}, unknown {}, refused {}", asks[0], asks[1], asks[2], asks[3])?;
        writeln!(f, "  storage: accepted {}, refused {}", count("written"), count("refused"))?;
        let asks = [
            count("operator's ask"),
            count("operator's acknowledged"),
            count("operator's unknown"),
            count("operator's refused_ask"),
        ];
        writeln!(f, "  operator asked {}, acknowledged {}, unknown {}, refused {}", asks[0], asks[1], asks[2], asks[3])?;
        writeln!(f, "  registrations {}, leases {}", count("registered"), count("lease"))?;
        writeln!(f, "  shards started {}, stopped {}, fenced {}", count("start"), count("stop"), count("fenced"))?;
        writeln!(f, "  leaderships {}, processes that ended {}", self.elections, count("exited"))?;
        match self.rest {
            Some(rest) => {
                writeln!(f, "  every shard owned {rest:.1?} after all was healed, bound {:?}", settings::bound(self.store))?
            }
            None => writeln!(f, "  NOT every shard owned after all was healed, bound {:?}", settings::bound(self.store))?,
        }
        for (title, all) in [("gaps", &self.gaps), ("what should not be", &self.odd_ends)] {
            writeln!(f, "  {title}: {}", if all.is_empty() { "none" } else { "" })?;
            all.iter().try_for_each(|one| writeln!(f, "    {one}"))?;
        }
        if !self.verdict.text.is_empty() {
            writeln!(f, "\n{}", self.verdict.text)?;
        }
        write!(f, "\nhistory: {}", self.history.display())
    }
}
