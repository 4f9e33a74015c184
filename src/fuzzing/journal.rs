//! Journals of executors, as `journal check` reads them: several, with a zero byte between two.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::input::Input;
use crate::cli::journal::check::{self, Journal, ReadError, Rules, Violation};

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (shards, most_unowned) = (input.byte(), input.long());
    let rules = Rules {
        number_of_shards: (shards > 0).then_some(u32::from(shards)),
        at_most_unowned: (most_unowned > 0).then(|| Duration::from_nanos(most_unowned)),
    };
    let mut journals = Vec::new();
    for text in input.rest().split(|byte| *byte == 0) {
        match check::parse(Path::new("journal"), text) {
            Ok(journal) => journals.push(journal),
            Err(ReadError::Line { line, source, .. }) => {
                let lines = text.split(|byte| *byte == b'\n').count();
                assert!((1..=lines).contains(&line), "line {line} of {lines} is refused");
                assert!(!source.is_eof(), "what was cut off is left out");
                return;
            }
            Err(error) => panic!("nothing else can be wrong with text: {error}"),
        }
    }
    let report = check::check(&journals, rules);
    for (shard, summary) in &report.shards {
        assert!(summary.longest_unowned_ns <= summary.total_unowned_ns, "shard {shard}: {summary:?}");
    }
    for violation in &report.violations {
        match violation {
            Violation::Overlap { first, second, .. } => {
                assert_ne!((&first.executor, first.incarnation), (&second.executor, second.incarnation));
                assert!(first.from_ns <= second.from_ns && second.from_ns < first.until_ns, "{violation:?}");
            }
            Violation::Unowned { from_ns, until_ns, .. } => assert!(until_ns - from_ns > most_unowned),
            Violation::NeverOwned { shard } => assert!(!report.shards.contains_key(shard)),
            Violation::EpochDidNotGrow { highest, interval, .. } => assert!(interval.epoch <= *highest),
            Violation::NoLease { .. } | Violation::StartedTwice { .. } | Violation::EndsNothing { .. } => {}
        }
    }
    assert!(!report.to_string().is_empty());
    serde_json::to_string(&report).expect("a report is JSON");
    // The order of the journals does not matter, where each process writes to one of them.
    let processes =
        |journal: &Journal| journal.iter().map(|line| (line.executor.clone(), line.incarnation)).collect::<BTreeSet<_>>();
    let each: Vec<_> = journals.iter().map(processes).collect();
    if each.iter().map(BTreeSet::len).sum::<usize>() == each.iter().flatten().collect::<BTreeSet<_>>().len() {
        let count = report.violations.len();
        journals.reverse();
        assert_eq!(check::check(&journals, rules).violations.len(), count, "{journals:?}");
    }
}
