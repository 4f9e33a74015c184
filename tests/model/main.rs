//! Every run of one shard, two managers and two executors within bounds, with the real engine and the real ledger: whatever order
//! messages come in, whichever are lost, whatever stops. See docs/testing.md and docs/decisions/model.md.
//!
//! `MODEL_DEEP=1` looks at the large scopes too (`make model`), `MODEL_SCOPE` at that one alone, `MODEL_GUARD` takes out that rule alone.
//!
//! | file | what |
//! | --- | --- |
//! | `scopes` | what is looked at with every rule in |
//! | `guards` | the rules, to be taken out |
//! | `search` | breadth first through all worlds |
//! | `world` | all there is at one moment, what may happen next, and what must hold |
//! | `manager`, `executor`, `store` | the parts: what each does is a function of what it is, the time and what happens to it |
//! | `message` | what is said, and the time |
//! | `shared` | parts that many worlds have in common |

mod executor;
mod guards;
mod manager;
mod message;
mod scopes;
mod search;
mod shared;
mod store;
#[path = "../support/words.rs"]
mod words;
mod world;

use std::collections::BTreeSet;
use std::time::Instant;

use shard_manager::types::ShardId;

use guards::Row;
use scopes::Scope;
use search::{Report, search};

/// The one shard.
pub const SHARD: ShardId = ShardId(0);

/// More worlds than that are too many for the memory of a small machine.
const MOST: usize = 8_000_000;

fn chosen(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}

fn lines(report: &Report) -> String {
    report
        .found
        .iter()
        .flat_map(|found| found.what.iter().chain(&found.trace))
        .fold(String::new(), |text, line| text + "\n" + line)
}

#[test]
fn the_promises_hold_in_every_world_within_bounds() {
    let (only, deep) = (chosen("MODEL_SCOPE"), chosen("MODEL_DEEP").is_some());
    let mut reached = BTreeSet::new();
    for Scope { name, scene, bounds, is_deep } in scopes::ALL {
        if only.as_ref().map_or(is_deep && !deep, |only| only != name) {
            continue;
        }
        let start = Instant::now();
        let report = search(scene, bounds, None, MOST);
        let (worlds, steps, depth) = (report.worlds, report.steps, report.depth);
        println!("{name}: {worlds} worlds, {steps} steps, {depth} deep, {:.1?}", start.elapsed());
        assert!(report.found.is_none(), "{name}: {}", lines(&report));
        reached.extend(report.reached.into_keys());
    }
    reached.iter().for_each(|what| println!("reached: {what}"));
    // Else nothing was shown.
    let missed: Vec<&str> = REACHES.into_iter().filter(|what| !reached.contains(what)).collect();
    assert!(only.is_some() || missed.is_empty(), "never happened: {missed:?}");
}

/// What must happen somewhere.
const REACHES: [&str; 20] = [
    "a call was refused past the belief deadline",
    "a command without a lease bounced",
    "a commit failed",
    "a commit in doubt was settled",
    "a commit landed that nobody waited for any more",
    "a commit that had landed was recognised",
    "a late answer was ignored",
    "a leader gave up by its own deadline",
    "a leader stalled",
    "a leadership began",
    "a lease ended",
    "a renewal was refused while its lease was being ended",
    "a stale answer was ignored",
    "a stale command bounced",
    "an executor fenced itself",
    "an executor joined",
    "an operator wished something",
    "the fence refused a stale leader's commit",
    "the shard moved",
    "the shard was not stopped in time",
];

/// Takes out each rule in turn: then a promise breaks, and with the rule in nothing does.
#[test]
fn every_rule_is_missed() {
    let only = chosen("MODEL_GUARD");
    let mut unmissed = Vec::new();
    for Row { guard, rule, promise, scene, bounds } in guards::TABLE {
        if only.as_ref().is_some_and(|only| *only != format!("{guard:?}")) {
            continue;
        }
        let without = search(scene, bounds, Some(guard), MOST);
        println!("without {rule} ({guard:?}), after {} worlds:{}", without.worlds, lines(&without));
        if !without.found.as_ref().is_some_and(|found| found.what.iter().any(|what| what.starts_with(&format!("{promise}: ")))) {
            unmissed.push(format!("{rule} ({guard:?}) was to break {promise}"));
        }
        let with = search(scene, bounds, None, MOST);
        println!("with it: {} worlds, {} deep\n", with.worlds, with.depth);
        assert!(with.found.is_none(), "with {guard:?}: {}", lines(&with));
    }
    assert!(unmissed.is_empty(), "{unmissed:?}");
}
