//! What the manager computes: plans and tables.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use prost::Message;
use shard_manager::assignment::command::Snapshot;
use shard_manager::assignment::planner::{Input, Member, NOBODY, Role, plan};
use shard_manager::published::Published;
use shard_manager::types::{Revision, Slot, Term, Token, Version};

use crate::cluster::ms;
use crate::commits::state;
use crate::page::Figure;

fn time<T>(work: impl FnOnce() -> T) -> f64 {
    let begun = Instant::now();
    black_box(work());
    ms(begun.elapsed())
}

/// Plans and tables, small and large.
pub fn all() -> Vec<Figure> {
    vec![planning(1024, 16, 1000), planning(1_000_000, 1000, 20), encoding(1_000_000, 1000, 20)]
}

/// One of so many executors is gone: its shards are without a home.
fn planning(shards: u32, executors: u32, runs: usize) -> Figure {
    let member = |at: u32| Member { slot: Slot(at), id: format!("executor-{at}").parse().unwrap(), weight: 1, role: Role::Takes };
    let left: Vec<Member> = (0..executors - 1).map(member).collect();
    let homes: Vec<u32> =
        (0..shards).map(|shard| shard % executors).map(|at| if at < executors - 1 { at } else { NOBODY }).collect();
    let avoid = BTreeMap::new();
    let input = Input { members: &left, homes: &homes, threshold: 0.1, avoid: &avoid, still: false };
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        times.push(time(|| plan(black_box(&input))));
        floors.push(time(|| {
            let (copy, mut tally) = (black_box(&homes).clone(), vec![0u32; left.len() + 1]);
            for &home in &copy {
                tally[(home as usize).min(left.len())] += 1;
            }
            (copy, tally)
        }));
    }
    let moves = plan(&input).0.moves.len();
    let how = format!(
        "`planner::plan` for {} shards and {} executors, one of which is gone: {moves} shards find a new home.",
        thousands(shards),
        thousands(executors)
    );
    let name = format!("a plan, {} / {}", thousands(shards), thousands(executors));
    Figure::new(&name, how).times(times).floor("copying the shards' homes and counting them by executor", floors)
}

/// From a state in memory to the bytes of the routing table.
fn encoding(shards: u32, executors: u32, runs: usize) -> Figure {
    let version = Version { term: Term(1_700_000_000_000), revision: Revision(9) };
    let snapshot = Snapshot { version, state: Arc::new(state(shards, executors, Token(1))) };
    let published = Published::default();
    let (mut times, mut floors, mut length) = (Vec::new(), Vec::new(), 0);
    for _ in 0..runs {
        published.publish(snapshot.clone());
        let edition = published.current().unwrap();
        let begun = Instant::now();
        let bytes = edition.table().encode_to_vec();
        times.push(ms(begun.elapsed()));
        floors.push(time(|| black_box(&bytes).clone()));
        length = bytes.len();
    }
    let how = format!(
        "The routing table of {} shards at {} executors, made from the state and encoded: {:.1} MB.",
        thousands(shards),
        thousands(executors),
        length as f64 / 1e6
    );
    Figure::new("a whole table, 1,000,000 shards", how).times(times).floor("copying as many bytes", floors)
}

fn thousands(number: u32) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}
