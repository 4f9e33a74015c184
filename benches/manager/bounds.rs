//! How long shards are without an owner, for each way that `docs/guarantees.md` has a bound for and no other part measures.
//!
//! What is measured are waits of seconds in clusters that do little, so several of them run at once, each on a thread of its own.

mod executors;
mod managers;

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::cluster::ms;
use crate::guarantees::{GRACE, LEASE, LONGER_LEASE, RESTART_LEASE, SETTLE, STOPPING, TTL, row_of};
use crate::page::{Figure, Summary};
use crate::support::postgres::Postgres;

/// How many clusters there are at once.
const AT_ONCE: usize = 6;
/// Of each kind, at the most.
const RUNS: usize = 12;

/// What happens to a cluster, each in the order of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    RestartInPlace,
    RestartElsewhere,
    RestartExclusive,
    OverAndOver,
    Moves,
    NotStopped,
    NotStarted,
    Empty,
    ManagerRestarts,
    ManagerAway,
    DiedMeanwhile,
    DiedMeanwhilePostgres,
    DiedMeanwhileHung,
    DiedBeforeShorter,
    Wiped,
}

const CASES: [Case; 15] = [
    Case::RestartInPlace,
    Case::RestartElsewhere,
    Case::RestartExclusive,
    Case::OverAndOver,
    Case::Moves,
    Case::NotStopped,
    Case::NotStarted,
    Case::Empty,
    Case::ManagerRestarts,
    Case::ManagerAway,
    Case::DiedMeanwhile,
    Case::DiedMeanwhilePostgres,
    Case::DiedMeanwhileHung,
    Case::DiedBeforeShorter,
    Case::Wiped,
];

/// A figure for each row.
pub async fn all(runs: usize) -> Vec<Figure> {
    let (runs, postgres) = (runs.min(RUNS), Postgres::start().await);
    let url = postgres.url();
    let times = tokio::task::spawn_blocking(move || measure(runs, &url)).await.unwrap();
    CASES.into_iter().zip(times).map(|(case, times)| figure(case, times)).collect()
}

/// The times of each case, in milliseconds.
fn measure(runs: usize, postgres: &str) -> [Vec<f64>; CASES.len()] {
    // Not all of one kind at once: they would start and commit in step.
    let queue: VecDeque<(usize, usize)> = (0..runs).flat_map(|run| (0..CASES.len()).map(move |case| (run, case))).collect();
    let (queue, times) = (Mutex::new(queue), Mutex::new([const { Vec::new() }; CASES.len()]));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((run, at)) = next() {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    let time = runtime.block_on(one(CASES[at], run, postgres));
                    eprintln!("  {:?}: {:.1} ms", CASES[at], ms(time));
                    times.lock().unwrap_or_else(PoisonError::into_inner)[at].push(ms(time));
                }
            });
        }
    });
    times.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// One run, in a cluster of its own.
async fn one(case: Case, run: usize, postgres: &str) -> Duration {
    match case {
        Case::RestartInPlace => executors::restart_in_place().await,
        Case::RestartElsewhere => executors::restart_elsewhere(&[]).await,
        Case::RestartExclusive => executors::restart_elsewhere(&["executors.exclusive_ids=true".to_owned()]).await,
        Case::OverAndOver => executors::over_and_over().await,
        Case::Moves => executors::moves().await,
        Case::NotStopped => executors::not_stopped().await,
        Case::NotStarted => executors::not_started().await,
        Case::Empty => executors::empty().await,
        Case::ManagerRestarts => managers::restarts().await,
        Case::ManagerAway => managers::away().await,
        Case::DiedMeanwhile => managers::died_meanwhile(&[], &[]).await,
        Case::DiedMeanwhilePostgres => managers::died_meanwhile(&managers::on_postgres(postgres, run), &[]).await,
        Case::DiedMeanwhileHung => managers::died_beside_a_hung_leader().await,
        Case::DiedBeforeShorter => {
            // What comes last counts.
            let longer = format!("executors.lease_ttl={LONGER_LEASE}ms");
            managers::died_meanwhile(&[longer], &[format!("executors.lease_ttl={LEASE}ms")]).await
        }
        Case::Wiped => managers::wiped().await,
    }
}

fn figure(case: Case, times: Vec<f64>) -> Figure {
    let (name, how) = describe(case);
    let row = row_of(name);
    let max = Summary::of(times.clone()).max;
    let how = format!(
        "{how} L is {} s, S is {SETTLE} ms. {AT_ONCE} clusters at once, each of one manager on SQLite unless said otherwise and executors of the \
         client library in one thread, which do nothing with their shards.",
        LEASE / 1000.0
    );
    let figure = Figure::new(name, how).times(times);
    if row.ms > 0.0 {
        return figure.reach(format!("max, over the bound: {} ms", row.ms.round()), 1.0, max / row.ms);
    }
    figure.reach("max: 0 ms", 0.0, max)
}

/// The name of its figure, and what is done.
fn describe(case: Case) -> (&'static str, String) {
    match case {
        Case::RestartInPlace => (
            "without an owner: restart in place",
            "One of two executors dies, and the next of its id is started at once at the same IP address and port. From its death until the last of its \
             shards is worked on."
                .to_owned(),
        ),
        Case::RestartElsewhere => (
            "without an owner: restart elsewhere",
            "One of two executors dies just after it renewed its lease, and the next of its id is started at once at another port. From its death until \
             the last of its shards is worked on."
                .to_owned(),
        ),
        Case::RestartExclusive => (
            "without an owner: restart elsewhere, exclusive ids",
            "The same with `executors.exclusive_ids = true`.".to_owned(),
        ),
        Case::OverAndOver => (
            "without an owner: restarts over and over",
            "One of two executors dies just after it renewed its lease and is started at once at another port, three times, each time as soon as it works \
             again; from the fourth time on every half a second. From its fourth death until the other one works on everything."
                .to_owned(),
        ),
        Case::Moves => (
            "without an owner: shards move",
            format!(
                "A third executor joins two, so that shards move to it; then one of the first is drained. Each takes {STOPPING} ms to stop. The longest that \
                 a shard was without work, its stopping time included."
            ),
        ),
        Case::NotStopped => (
            "without an owner: the old owner does not stop",
            "One of two executors is drained, and its work never ends by itself: the client library drops it when the shard's lease is over. From when \
             its work was told to stop until the other's began."
                .to_owned(),
        ),
        Case::NotStarted => (
            "without an owner: the new owner does not start",
            "A second executor joins one that has everything, and returns from all work at once. From when the first was told to stop a shard until it works \
             on it again; the bound is that of the move and of what comes then."
                .to_owned(),
        ),
        Case::Empty => (
            "without an owner: an empty cluster",
            "Three executors come to a new cluster. From when the first heard that it is registered until every shard is worked on.".to_owned(),
        ),
        Case::ManagerRestarts => (
            "without an owner: the manager restarts",
            format!(
                "The manager of three executors is killed and started anew at once. The longest that a shard was without work, until each executor has renewed \
                 its lease. L is {} s here: of one of 2 s there is not much left for a restart.",
                RESTART_LEASE / 1000.0
            ),
        ),
        Case::ManagerAway => (
            "without an owner: the manager was away",
            "The manager of three executors is killed, and started anew when all leases have run out and all work has ended. From its open port until every \
             shard is worked on."
                .to_owned(),
        ),
        Case::DiedMeanwhile => (
            "without an owner: died while the manager was away",
            "One of three executors dies just after it renewed its lease, and the manager, which is then started anew. From its open port until every \
             shard is worked on."
                .to_owned(),
        ),
        Case::DiedMeanwhilePostgres => (
            "without an owner: died while PostgreSQL's leader was away",
            format!("The same with the state in PostgreSQL, each cluster in a schema of its own of one server. `leadership.lease_ttl` is {} s.", TTL / 1000.0),
        ),
        Case::DiedMeanwhileHung => (
            "without an owner: died while the leader hung",
            format!(
                "One of three executors dies just after it renewed its lease, and the leader is stopped by SIGSTOP, with a standby that may not kill it. From the \
                 standby's open port until every shard is worked on. `leadership.host.grace` is {} s.",
                GRACE / 1000.0
            ),
        ),
        Case::DiedBeforeShorter => (
            "without an owner: died before L was made shorter",
            format!(
                "As while the manager was away, but the manager that was killed had an L of {} s, and the next one has one of {} s.",
                LONGER_LEASE / 1000.0,
                LEASE / 1000.0
            ),
        ),
        Case::Wiped => (
            "without an owner: the store was wiped",
            "The manager of three executors is killed, its database deleted, and a manager started in its place. From when the first executor is registered \
             anew until every shard is worked on again, none of which stayed where it was."
                .to_owned(),
        ),
    }
}
