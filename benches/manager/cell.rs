//! The leader cell, against bare operations on the same memory.

use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::time::Instant;

use shard_manager::election::host::cell::{Claimed, LeaderCell};

use crate::cluster::ms;
use crate::page::{Figure, Summary};

/// Operations in one run: one alone is shorter than a look at the clock.
const OPERATIONS: usize = 1_000_000;
const RUNS: usize = 50;
/// Of one operation against one, in floors.
const REACH: Option<f64> = Some(1.2);

/// Milliseconds of so many operations.
fn time(mut operation: impl FnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..OPERATIONS {
        operation();
    }
    ms(begun.elapsed())
}

/// A claim by the holder, a beat, a tick; nobody else has the file mapped.
pub fn all() -> Vec<Figure> {
    let directory = tempfile::tempdir().unwrap();
    let cell = LeaderCell::create(&directory.path().join("cell")).unwrap();
    let own = std::process::id();
    let Ok(Claimed::Won(claim, _)) = cell.try_claim(own, 3) else { panic!("a new cell is free") };
    let spare = cell.spare();
    vec![
        compare(
            "a claim by the holder",
            "`LeaderCell::try_claim` by the process that holds it",
            "as many compare-and-swaps that succeed, on a word of the same page",
            REACH,
            || _ = black_box(cell.try_claim(black_box(own), 3)),
            || _ = black_box(spare.compare_exchange(black_box(0), 0, Ordering::AcqRel, Ordering::Acquire)),
        ),
        compare(
            "a beat",
            "`LeaderCell::beat` by the holder, while nobody ticks, so that there is nothing to write",
            "as many sequentially consistent stores to a word of the same page",
            REACH,
            || _ = black_box(cell.beat(black_box(claim))),
            || spare.store(black_box(0), Ordering::SeqCst),
        ),
        compare(
            "a tick and a beat",
            "`LeaderCell::tick` and then `LeaderCell::beat`, which then has a new tick to write",
            "as many additions to a word of the same page, each followed by a sequentially consistent store to it",
            None,
            || _ = black_box((cell.tick(), cell.beat(black_box(claim)))),
            || {
                black_box(spare.fetch_add(black_box(1), Ordering::AcqRel));
                spare.store(black_box(0), Ordering::SeqCst);
            },
        ),
        compare(
            "a tick",
            "`LeaderCell::tick`",
            "as many additions to a word of the same page, each of which returns what was there",
            REACH,
            || _ = black_box(cell.tick()),
            || _ = black_box(spare.fetch_add(black_box(1), Ordering::AcqRel)),
        ),
    ]
}

fn compare(name: &str, what: &str, floor: &str, at_most: Option<f64>, mut own: impl FnMut(), mut bare: impl FnMut()) -> Figure {
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        times.push(time(&mut own));
        floors.push(time(&mut bare));
    }
    let ratio = Summary::of(times.clone()).median / Summary::of(floors.clone()).median;
    let how = format!("{what}, a million times: a millisecond here is a nanosecond each.");
    let figure = Figure::new(name, how).times(times).floor(floor, floors);
    match at_most {
        Some(at_most) => figure.reach("median, in floors", at_most, ratio),
        None => figure,
    }
}
