//! A cluster that is tortured for as long as one likes, by a seed: replicas, executors with work that is worth fencing, a caller and an
//! operator, all of them real processes and real sockets. Everything that was asked, acknowledged, granted, started, stopped, written
//! and refused goes into a history, which a checker reads afterwards.
//!
//! `make torture MINUTES=60 SEED=1 STORE=etcd`; without anything said it is one minute beside a SQLite file.
#![allow(clippy::unwrap_used)]

mod checker;
mod child;
mod client;
mod executor;
mod ground;
mod history;
mod link;
mod nemesis;
mod operator;
mod parties;
mod plan;
mod process;
mod report;
mod scene;
mod settings;
mod storage;
mod stored;
#[path = "../support/mod.rs"]
mod support;
mod watch;

use settings::Settings;

/// What the checker makes of a history.
fn check(history: &std::path::Path) -> report::Verdict {
    let report = checker::check(history);
    report::Verdict { violations: report.violations.len(), not_measured: report.not_measured.len(), text: report.to_string() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run() {
    let settings = Settings::from_environment();
    let report = scene::play(&settings).await;
    println!("{report}");
    assert!(report.is_passed(), "the run is {}; its history is kept: {}", report.outcome(), report.history.display());
    report.clean_up();
}
