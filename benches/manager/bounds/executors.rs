//! Executors die, come, stop late, start never.

use std::time::{Duration, Instant};

use crate::guarantees::{LEASE, SETTLE, STOPPING};
use crate::trial::{Trial, Work};

/// See the page. How long shards were without work, as from all that follows.
pub async fn restart_in_place() -> Duration {
    let mut trial = two(&[]).await;
    trial.renewed("a").await;
    let killed = Instant::now();
    let listened = trial.kill("a");
    trial.uncovered().await;
    trial.join_at("a", Work::Willing, listened).await;
    trial.covered().await;
    trial.log.longest_gap(killed)
}

pub async fn restart_elsewhere(sets: &[String]) -> Duration {
    let mut trial = two(sets).await;
    trial.renewed("a").await;
    let killed = Instant::now();
    trial.kill("a");
    trial.uncovered().await;
    trial.join("a", Work::Willing).await;
    trial.covered().await;
    trial.log.longest_gap(killed)
}

pub async fn restart_elsewhere_exclusive() -> Duration {
    restart_elsewhere(&["executors.exclusive_ids=true".to_owned()]).await
}

pub async fn over_and_over() -> Duration {
    let mut trial = two(&[]).await;
    for _ in 0..3 {
        trial.renewed("a").await;
        trial.kill("a");
        trial.uncovered().await;
        trial.join("a", Work::Willing).await;
        trial.shared_by(&["a", "b"]).await;
    }
    trial.renewed("a").await;
    let killed = Instant::now();
    loop {
        trial.kill("a");
        trial.join("a", Work::Willing).await;
        // No process of it lives for long enough to be trusted.
        let lives = Duration::from_secs_f64(LEASE / 4000.0);
        if tokio::time::timeout(lives, trial.all_at("b")).await.is_ok() {
            return trial.log.longest_gap(killed);
        }
    }
}

pub async fn moves() -> Duration {
    let work = Work::Slow(Duration::from_secs_f64(STOPPING / 1000.0));
    let mut trial = Trial::start(&[]).await;
    for id in ["a", "b"] {
        trial.join(id, work).await;
    }
    trial.shared_by(&["a", "b"]).await;
    let begun = Instant::now();
    trial.join("c", work).await;
    trial.shared_by(&["a", "b", "c"]).await;
    trial.drain("a").await;
    trial.left("a").await;
    trial.log.longest_gap(begun)
}

pub async fn not_stopped() -> Duration {
    let mut trial = Trial::start(&[]).await;
    trial.join("a", Work::Stubborn).await;
    trial.join("b", Work::Willing).await;
    trial.shared_by(&["a", "b"]).await;
    let asked = Instant::now();
    trial.drain("a").await;
    trial.all_at("b").await;
    trial.log.longest_gap(asked)
}

pub async fn not_started() -> Duration {
    let mut trial = Trial::start(&[]).await;
    trial.join("a", Work::Willing).await;
    trial.all_at("a").await;
    let joined = Instant::now();
    trial.join("b", Work::Refusing).await;
    trial.uncovered().await;
    trial.all_at("a").await;
    trial.log.longest_gap(joined)
}

pub async fn empty() -> Duration {
    let mut trial = Trial::start(&[]).await;
    // A leader gathers from its open port on: who comes in that time waits for less.
    tokio::time::sleep(Duration::from_secs_f64(2.0 * SETTLE / 1000.0)).await;
    let ids = ["a", "b", "c"];
    for id in ids {
        trial.join(id, Work::Willing).await;
    }
    trial.shared_by(&ids).await;
    let first = trial.log.joined()[0];
    trial.log.last_start(first)
}

/// Two executors that share everything.
async fn two(sets: &[String]) -> Trial {
    let mut trial = Trial::start(sets).await;
    for id in ["a", "b"] {
        trial.join(id, Work::Willing).await;
    }
    trial.shared_by(&["a", "b"]).await;
    trial
}
