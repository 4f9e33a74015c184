//! A seeded simulation of whole clusters: real engines, real executor ledgers, and around them a store, processes, clocks and links
//! that fail in every way that they may. See docs/testing.md.
//!
//! `SIM_SEEDS` says how many seeds are run, `SIM_SEED` which one alone.

mod executor;
mod guards;
mod random;
mod replica;
mod store;
mod world;

use std::time::Duration;

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
        None => (0..number("SIM_SEEDS").unwrap_or(200)).collect(),
    };
    let (mut held, mut fair, mut commits) = (Duration::ZERO, Duration::ZERO, 0);
    for seed in seeds {
        let outcome = run(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
        held = outcome.held_after.max(held);
        fair = outcome.fair_after.max(fair);
        commits += outcome.commits;
    }
    println!("{commits} commits; after the last fault every shard was held within {held:?}, and fairly within {fair:?}");
}

/// Takes out each guard in turn.
#[test]
fn every_guard_is_missed() {
    let mut unmissed = Vec::new();
    let only = std::env::var("SIM_GUARD").ok();
    for Row { guard, promise, within } in guards::TABLE {
        if only.as_ref().is_some_and(|only| *only != format!("{guard:?}")) {
            continue;
        }
        let red = (0..within.min(number("SIM_SEEDS").unwrap_or(within))).find_map(|seed| Some((seed, run(seed, Some(guard)).err()?)));
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
