//! Managers go away and come back, with their store or without it.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Given;
use crate::guarantees::{GRACE, LEASE, LONGER_LEASE, RESTART_LEASE, TTL};
use crate::trial::{Trial, Work};

const IDS: [&str; 3] = ["a", "b", "c"];

/// See the page. How long shards were without work, as from all that follows.
pub async fn restarts() -> Duration {
    let mut trial = three(&[format!("executors.lease_ttl={RESTART_LEASE}ms")]).await;
    let killed = Instant::now();
    trial.kill_manager();
    trial.start_manager(&[]).await;
    for id in IDS {
        trial.renewed(id).await;
    }
    trial.covered().await;
    trial.log.longest_gap(killed)
}

pub async fn away() -> Duration {
    let mut trial = three(&[]).await;
    trial.kill_manager();
    trial.idle().await;
    let opened = trial.start_manager(&[]).await;
    trial.covered().await;
    trial.log.last_start(opened)
}

/// An executor dies, and the manager at once; its successor has these keys set besides.
pub async fn died_meanwhile(sets: &[String], then: &[String]) -> Duration {
    let mut trial = three(sets).await;
    trial.renewed("c").await;
    trial.kill("c");
    trial.uncovered().await;
    trial.kill_manager();
    let opened = trial.start_manager(then).await;
    trial.covered().await;
    trial.log.last_start(opened)
}

/// The same with the state in PostgreSQL, in a schema of its own.
pub async fn died_meanwhile_on_postgres(given: &Given) -> Duration {
    let sets = [
        "persistence.type=postgres".to_owned(),
        format!("persistence.postgres.url={}", given.url),
        format!("persistence.postgres.schema=run_{}", given.run),
        format!("leadership.lease_ttl={}s", TTL / 1000.0),
    ];
    died_meanwhile(&sets, &[]).await
}

/// Leases of an earlier manager count for as long as that gave them.
pub async fn died_before_a_shorter_lease() -> Duration {
    // What comes last counts.
    let lease = |ms: f64| [format!("executors.lease_ttl={ms}ms")];
    died_meanwhile(&lease(LONGER_LEASE), &lease(LEASE)).await
}

pub async fn died_beside_a_hung_leader() -> Duration {
    let sets = [format!("leadership.host.grace={GRACE}ms"), "leadership.host.kill_hung=false".to_owned()];
    let mut trial = Trial::start(&sets).await;
    // Before the executors, so that they know it.
    trial.start_standby().await;
    join_three(&mut trial).await;
    trial.renewed("c").await;
    trial.kill("c");
    trial.uncovered().await;
    trial.manager().signal(Signal::STOP);
    let opened = trial.opened(1).await;
    trial.covered().await;
    trial.log.last_start(opened)
}

pub async fn wiped() -> Duration {
    let mut trial = three(&[]).await;
    trial.kill_manager();
    for entry in std::fs::read_dir(trial.directory.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "log") {
            std::fs::remove_file(path).unwrap();
        }
    }
    trial.start_manager(&[]).await;
    trial.uncovered().await;
    trial.covered().await;
    let first = trial.log.joined()[IDS.len()];
    trial.log.last_start(first)
}

/// Three executors that share everything.
async fn three(sets: &[String]) -> Trial {
    let mut trial = Trial::start(sets).await;
    join_three(&mut trial).await;
    trial
}

async fn join_three(trial: &mut Trial) {
    for id in IDS {
        trial.join(id, Work::Willing).await;
    }
    trial.shared_by(&IDS).await;
}
