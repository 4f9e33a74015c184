//! How long shards are without an owner, for each way that `docs/guarantees.md` has a bound for and no other part measures.
//!
//! What is measured are waits of seconds in clusters that do little, so several of them run at once, each on a thread of its own.

mod executors;
mod managers;
mod pulse;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use self::pulse::Pulse;
use crate::cluster::ms;
use crate::guarantees::{C, GRACE, LEASE, LONGER_LEASE, RESTART_LEASE, Row, SETTLE, STOPPING, TTL, row_of};
use crate::page::{Figure, Summary};
use crate::support::postgres::Postgres;

/// How many clusters there are at once.
const AT_ONCE: usize = 6;
/// Of each kind, at the most.
const RUNS: usize = 12;

/// Something that happens to a cluster.
struct Case {
    /// Of its figure, which names its row.
    name: &'static str,
    /// What is done.
    how: fn() -> String,
    /// One run, in a cluster of its own.
    run: for<'a> fn(&'a Given) -> Pin<Box<dyn Future<Output = Duration> + 'a>>,
}

/// What a run is given.
struct Given {
    /// Of a PostgreSQL server.
    url: String,
    /// Counted from 0.
    run: usize,
}

/// In the order of the page.
const CASES: [Case; 15] = [
    Case {
        name: "without an owner: restart in place",
        how: || {
            "One of two executors dies, and the next of its id is started at once at the same IP address and port. From its death until the last of its \
             shards is worked on.".to_owned()
        },
        run: |_| Box::pin(executors::restart_in_place()),
    },
    Case {
        name: "without an owner: restart elsewhere",
        how: || {
            "One of two executors dies just after it renewed its lease, and the next of its id is started at once at another port. From its death until \
             the last of its shards is worked on.".to_owned()
        },
        run: |_| Box::pin(executors::restart_elsewhere(&[])),
    },
    Case {
        name: "without an owner: restart elsewhere, exclusive ids",
        how: || "The same with `executors.exclusive_ids = true`.".to_owned(),
        run: |_| Box::pin(executors::restart_elsewhere_exclusive()),
    },
    Case {
        name: "without an owner: restarts over and over",
        how: || {
            "One of two executors dies just after it renewed its lease and is started at once at another port, three times, each time as soon as it works \
             again; from the fourth time on every half a second. From its fourth death until the other one works on everything.".to_owned()
        },
        run: |_| Box::pin(executors::over_and_over()),
    },
    Case {
        name: "without an owner: shards move",
        how: || {
            format!(
                "A third executor joins two, so that shards move to it; then one of the first is drained. Each takes {STOPPING} ms to stop. The longest that \
                 a shard was without work, its stopping time included."
            )
        },
        run: |_| Box::pin(executors::moves()),
    },
    Case {
        name: "without an owner: the old owner does not stop",
        how: || {
            "One of two executors is drained, and its work never ends by itself: the client library drops it when the shard's lease is over. From when \
             its work was told to stop until the other's began.".to_owned()
        },
        run: |_| Box::pin(executors::not_stopped()),
    },
    Case {
        name: "without an owner: the new owner does not start",
        how: || {
            "A second executor joins one that has everything, and returns from all work at once. From when the first was told to stop a shard until it works \
             on it again; the bound is that of the move and of what comes then.".to_owned()
        },
        run: |_| Box::pin(executors::not_started()),
    },
    Case {
        name: "without an owner: an empty cluster",
        how: || {
            "Three executors come to a new cluster. From when the first heard that it is registered until every shard is worked on.".to_owned()
        },
        run: |_| Box::pin(executors::empty()),
    },
    Case {
        name: "without an owner: the manager restarts",
        how: || {
            format!(
                "The manager of three executors is killed and started anew at once. The longest that a shard was without work, until each executor has renewed \
                 its lease. L is {} s here: of one of 2 s there is not much left for a restart.",
                RESTART_LEASE / 1000.0
            )
        },
        run: |_| Box::pin(managers::restarts()),
    },
    Case {
        name: "without an owner: the manager was away",
        how: || {
            "The manager of three executors is killed, and started anew when all leases have run out and all work has ended. From its open port until every \
             shard is worked on.".to_owned()
        },
        run: |_| Box::pin(managers::away()),
    },
    Case {
        name: "without an owner: died while the manager was away",
        how: || {
            "One of three executors dies just after it renewed its lease, and the manager, which is then started anew. From its open port until every \
             shard is worked on.".to_owned()
        },
        run: |_| Box::pin(managers::died_meanwhile(&[], &[])),
    },
    Case {
        name: "without an owner: died while PostgreSQL's leader was away",
        how: || {
            format!(
                "The same with the state in PostgreSQL, each cluster in a schema of its own of one server. `leadership.lease_ttl` is {} s.",
                TTL / 1000.0
            )
        },
        run: |given| Box::pin(managers::died_meanwhile_on_postgres(given)),
    },
    Case {
        name: "without an owner: died while the leader hung",
        how: || {
            format!(
                "One of three executors dies just after it renewed its lease, and the leader is stopped by SIGSTOP, with a standby that may not kill it. From the \
                 standby's open port until every shard is worked on. `leadership.host.grace` is {} s.",
                GRACE / 1000.0
            )
        },
        run: |_| Box::pin(managers::died_beside_a_hung_leader()),
    },
    Case {
        name: "without an owner: died before L was made shorter",
        how: || {
            format!(
                "As while the manager was away, but the manager that was killed had an L of {} s, and the next one has one of {} s.",
                LONGER_LEASE / 1000.0,
                LEASE / 1000.0
            )
        },
        run: |_| Box::pin(managers::died_before_a_shorter_lease()),
    },
    Case {
        name: "without an owner: the store was wiped",
        how: || {
            "The manager of three executors is killed, its database deleted, and a manager started in its place. From when the first executor is registered \
             anew until every shard is worked on again, none of which stayed where it was.".to_owned()
        },
        run: |_| Box::pin(managers::wiped()),
    },
];

/// A figure for each row.
pub async fn all(runs: usize) -> Vec<Figure> {
    let (runs, postgres) = (runs.min(RUNS), Postgres::start().await);
    // Before minutes of waiting.
    let rows = CASES.each_ref().map(|case| row_of(case.name));
    let url = postgres.url();
    let measured = tokio::task::spawn_blocking(move || measure(runs, &url)).await.unwrap();
    CASES.iter().zip(rows).zip(measured).map(|((case, row), measured)| figure(case, row, measured)).collect()
}

/// Of one case.
#[derive(Default)]
struct Measured {
    /// In milliseconds.
    times: Vec<f64>,
    /// Runs that do not count, since the machine stood still meanwhile.
    halted: usize,
}

fn measure(runs: usize, postgres: &str) -> [Measured; CASES.len()] {
    // Not all of one kind at once: they would start and commit in step.
    let queue: VecDeque<(usize, usize)> = (0..runs).flat_map(|run| (0..CASES.len()).map(move |case| (run, case))).collect();
    let (queue, measured, pulse) =
        (Mutex::new(queue), Mutex::new(std::array::from_fn(|_| Measured::default())), Pulse::default());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let again = |run, at| queue.lock().unwrap_or_else(PoisonError::into_inner).push_back((run + runs, at));
    std::thread::scope(|scope| {
        scope.spawn(|| pulse.beat());
        let work = || {
            while let Some((run, at)) = next() {
                let (case, given, begun) = (&CASES[at], Given { url: postgres.to_owned(), run }, Instant::now());
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let time = ms(runtime.block_on((case.run)(&given)));
                let longest = ms(pulse.longest(begun));
                eprintln!("  {}: {time:.1} ms, a write beside it {longest:.1} ms at most", case.name);
                let measured = &mut measured.lock().unwrap_or_else(PoisonError::into_inner)[at];
                // Not for ever.
                if longest > C && measured.halted < runs {
                    measured.halted += 1;
                    again(run, at);
                } else {
                    measured.times.push(time);
                }
            }
        };
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        pulse.end();
        ends.into_iter().for_each(|end| end.unwrap());
    });
    measured.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn figure(case: &Case, row: &Row, Measured { times, halted }: Measured) -> Figure {
    let max = Summary::of(times.clone()).max;
    let how = format!(
        "{} L is {} s, S is {SETTLE} ms. {AT_ONCE} clusters at once, each of one manager on SQLite unless said otherwise and executors of the \
         client library in one thread, which do nothing with their shards.{}",
        (case.how)(),
        LEASE / 1000.0,
        if halted == 0 {
            String::new()
        } else {
            format!(
                " Besides {halted} that do not count: the machine took more than {C} ms for the write of a page meanwhile, which is more than c."
            )
        }
    );
    let figure = Figure::new(case.name, how).times(times);
    if row.ms > 0.0 {
        return figure.reach(format!("max, over the bound: {} ms", row.ms.round()), 1.0, max / row.ms);
    }
    figure.reach("max: 0 ms", 0.0, max)
}
