//! A seeded simulation of whole clusters: real engines, real executor ledgers, and around them a store, processes, clocks and links
//! that fail in every way that they may. See docs/testing.md.
//!
//! `SIM_SEEDS` says how many seeds are run, `SIM_SEED` which one alone, `SIM_GUARD` which guard alone is taken out.
//!
//! | file | what |
//! | --- | --- |
//! | `world` | all there is, the links in it, and what is looked at after every step |
//! | `faults` | what goes wrong, and how it ends |
//! | `context` | what all parts work with: messages, and the promises about what is said |
//! | `replica`, `leadership` | a manager's process around a real engine |
//! | `executor` | an executor's process around a real ledger |
//! | `store` | the stored state and who leads |
//! | `guards` | what holds each promise up, to be taken out |
//! | `random` | chance and clocks |

mod context;
mod executor;
mod faults;
mod guards;
mod leadership;
mod random;
mod replica;
mod store;
mod world;

use std::time::Duration;

use context::Reached;
use guards::{Guard, Row};
use world::{Outcome, World};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Runs a seed; on failure runs it again to tell what happened.
fn run(seed: u64, guard: Option<Guard>) -> Result<Outcome, String> {
    World::new(seed, guard, false).run().map_err(|first| {
        let failure = World::new(seed, guard, true).run().err().expect("a seed always does the same");
        assert_eq!(first.what, failure.what, "a seed always does the same");
        format!("seed {seed}: {}\n{}\nrun it again with SIM_SEED={seed}", failure.what, failure.trace.join("\n"))
    })
}

#[test]
fn the_promises_hold_whatever_fails() {
    let seeds: Vec<u64> = match number("SIM_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("SIM_SEEDS").unwrap_or(300)).collect(),
    };
    let (mut held, mut fair, mut reached) = (Duration::ZERO, Duration::ZERO, Reached::new());
    let many = seeds.len() >= 300;
    for seed in seeds {
        let outcome = run(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
        held = outcome.held_after.max(held);
        fair = outcome.fair_after.max(fair);
        outcome.reached.into_iter().for_each(|(what, times)| *reached.entry(what).or_default() += times);
    }
    reached.iter().for_each(|(what, times)| println!("{times:>8} times {what}"));
    println!("after the last fault every shard was held within {held:.1?}, and fairly within {fair:.1?}");
    // Else the storms are too mild to prove anything.
    let missed: Vec<&str> = REACHES.into_iter().filter(|what| !reached.contains_key(what)).collect();
    assert!(!many || missed.is_empty(), "never happened: {missed:?}");
}

/// What must happen somewhere in many seeds.
const REACHES: [&str; 22] = [
    "a command for another incarnation bounced",
    "a command without a lease bounced",
    "a commit in doubt was settled",
    "a late answer was ignored",
    "a leader crashed between two steps",
    "a leader gave up by its own deadline",
    "a leader stalled",
    "a lease ended",
    "a process had to register anew",
    "a process took the place of one that might live",
    "a process took the place of one that was proven gone",
    "a process was superseded",
    "a replica won",
    "a stale answer was ignored",
    "a stale command bounced",
    "an executor fenced itself",
    "an executor joined",
    "an executor left",
    "an operator wished something",
    "shards moved",
    "shards were not started in time",
    "shards were not stopped in time",
];

/// Takes out each guard in turn.
#[test]
fn every_guard_is_missed() {
    let mut unmissed = Vec::new();
    let only = std::env::var("SIM_GUARD").ok();
    for Row { guard, promise, within } in guards::TABLE {
        if only.as_ref().is_some_and(|only| *only != format!("{guard:?}")) {
            continue;
        }
        let red = (0..within).find_map(|seed| Some((seed, run(seed, Some(guard)).err()?)));
        match red {
            Some((seed, failure)) => {
                let what = failure.lines().next().unwrap_or_default().to_owned();
                println!("without {guard:?}: {what} (after {} seeds, at most {within})", seed + 1);
                if !what.contains(&format!(": {promise}: ")) {
                    unmissed.push(format!("{guard:?} was to break {promise}: {what}"));
                }
            }
            None => unmissed.push(format!("{guard:?}: {within} seeds are green without it")),
        }
    }
    assert!(unmissed.is_empty(), "{}", unmissed.join("\n"));
}
