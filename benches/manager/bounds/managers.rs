//! Managers go away and come back, with their store or without it.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::guarantees::{GRACE, RESTART_LEASE, TTL};
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

/// Where the state of that run is in PostgreSQL.
pub fn on_postgres(url: &str, run: usize) -> [String; 4] {
    [
        "persistence.type=postgres".to_owned(),
        format!("persistence.postgres.url={url}"),
        format!("persistence.postgres.schema=run_{run}"),
        format!("leadership.lease_ttl={}s", TTL / 1000.0),
    ]
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
