//! What the manager computes: plans and tables.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use shard_manager::assignment::command::Snapshot;
use shard_manager::assignment::planner::{Input, Member, NOBODY, Role, plan};
use shard_manager::published::Published;
use shard_manager::rpc::ready;
use shard_manager::types::{Revision, Slot, Term, Token, Version};

use crate::cluster::ms;
use crate::commits::state;
use crate::page::{Figure, Summary};

/// Milliseconds of this thread's own time: what others do on its core meanwhile is not in it.
fn time<T>(work: impl FnMut() -> T) -> f64 {
    time_each(1, work)
}

/// Of one of so many in a row: to read that clock takes about as long as the shortest of them.
fn time_each<T>(in_a_row: u32, mut work: impl FnMut() -> T) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
    };
    let begun = now();
    for _ in 0..in_a_row {
        black_box(work());
    }
    ms(now() - begun) / f64::from(in_a_row)
}

/// Plans and tables, small and large.
pub fn all() -> Vec<Figure> {
    let mut figures = vec![small_plan()];
    figures.extend(large_plans());
    figures.push(encoding(1_000_000, 1000, 20));
    figures.push(answering());
    figures
}

/// What happened before a plan is made.
#[derive(Clone, Copy)]
enum Change {
    Joins,
    Leaves,
}

/// An even cluster with so many executors, the last of which just came or just went. Times of plans, of floors, and the moves.
fn planning(change: Change, shards: u32, executors: u32, runs: usize, in_a_row: u32) -> (Vec<f64>, Vec<f64>, usize) {
    let member = |at: u32| Member { slot: Slot(at), id: format!("executor-{at}").parse().unwrap(), weight: 1, role: Role::Takes };
    let (members, homes): (Vec<Member>, Vec<u32>) = match change {
        Change::Joins => ((0..executors).map(member).collect(), (0..shards).map(|shard| shard % (executors - 1)).collect()),
        Change::Leaves => {
            let home = |at| if at < executors - 1 { at } else { NOBODY };
            ((0..executors - 1).map(member).collect(), (0..shards).map(|shard| home(shard % executors)).collect())
        }
    };
    let avoid = BTreeMap::new();
    let input = Input { members: &members, homes: &homes, threshold: 0.1, avoid: &avoid, still: false };
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        times.push(time_each(in_a_row, || plan(black_box(&input))));
        floors.push(time_each(in_a_row, || {
            let (copy, mut tally) = (black_box(&homes).clone(), vec![0u32; members.len() + 1]);
            for &home in &copy {
                tally[(home as usize).min(members.len())] += 1;
            }
            (copy, tally)
        }));
    }
    let moves = plan(&input).0.moves.len();
    (times, floors, moves)
}

const FLOOR: &str = "copying the shards' homes and counting them by executor";

fn small_plan() -> Figure {
    const IN_A_ROW: u32 = 16;
    let (times, floors, moves) = planning(Change::Leaves, 1024, 16, 1000, IN_A_ROW);
    let p99 = Summary::of(times.clone()).p99;
    let how = format!(
        "`planner::plan` for 1,024 shards and 16 executors, one of which is gone: {moves} shards find a new home. A run is {IN_A_ROW} of them in a row, of which one takes so long. By the clock of the one thread that does it."
    );
    let figure = Figure::new("a plan, 1,024 / 16", how).times(times).floor(FLOOR, floors);
    figure.reach("p99: 25 microseconds", 0.025, p99)
}

fn large_plans() -> Vec<Figure> {
    const RUNS: usize = 40;
    const SHARDS: u32 = 1_000_000;
    const TIMES: u32 = 16;
    let each = [(Change::Joins, "joins", "has just come"), (Change::Leaves, "leaves", "is gone")];
    let figure = |(change, name, what): (Change, &str, &str)| {
        let (times, floors, moves) = planning(change, SHARDS, 1000, RUNS, 1);
        let (few, ..) = planning(change, SHARDS / TIMES, 1000, RUNS, 1);
        let (own, few) = (Summary::of(times.clone()), Summary::of(few));
        let how = format!(
            "`planner::plan` for {} shards and 1,000 executors, one of which {what}: {moves} shards find a new home. By the clock of the one thread that does it. The second bound \
             compares with a plan for {} shards and as many executors.",
            thousands(SHARDS),
            thousands(SHARDS / TIMES)
        );
        Figure::new(&format!("a plan, 1,000,000 / 1,000, one {name}"), how)
            .times(times)
            .floor(FLOOR, floors)
            .reach("p99: 50 ms", 50.0, own.p99)
            .reach("median, in medians for a sixteenth of the shards", 20.0, own.median / few.median)
    };
    each.map(figure).into()
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
        times.push(time(|| edition.table()));
        let bytes = edition.table();
        floors.push(time(|| black_box(&bytes).to_vec()));
        length = bytes.len();
    }
    let how = format!(
        "The routing table of {} shards at {} executors, made from the state and encoded: {:.1} MB. By the clock of the one thread that does it.",
        thousands(shards),
        thousands(executors),
        length as f64 / 1e6
    );
    let p99 = Summary::of(times.clone()).p99;
    let figure = Figure::new("a whole table, 1,000,000 shards", how).times(times).floor("copying as many bytes", floors);
    figure.reach("p99: 60 ms", 60.0, p99)
}

/// What one more reader costs once a table is encoded: the same, however long it is.
fn answering() -> Figure {
    /// One alone is shorter than a look at the clock.
    const ANSWERS: usize = 100_000;
    let version = Version { term: Term(1_700_000_000_000), revision: Revision(9) };
    let answers = |shards| {
        let published = Published::default();
        published.publish(Snapshot { version, state: Arc::new(state(shards, 1000, Token(1))) });
        published.current().unwrap().table();
        let answer = || {
            for _ in 0..ANSWERS {
                black_box(ready::Message::new(published.current().unwrap().table()));
            }
        };
        (0..20).map(|_| time(answer)).collect::<Vec<f64>>()
    };
    let (times, floors) = (answers(1_000_000), answers(1024));
    let ratio = Summary::of(times.clone()).median / Summary::of(floors.clone()).median;
    let how = format!(
        "What `GetRoutingTable` answers with, for 1,000,000 shards, once somebody had the table encoded: looked up {} times. The bytes are shared; \
         what HTTP/2 and the kernel copy of them on their way out is not in it.",
        thousands(ANSWERS as u32)
    );
    let figure = Figure::new("answering with a whole table", how).times(times).floor("the same for 1,024 shards", floors);
    figure.reach("median, in medians for 1,024 shards: no copy per shard", 1.5, ratio)
}

fn thousands(number: u32) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}
