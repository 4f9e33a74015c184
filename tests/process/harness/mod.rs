//! Processes, proxies and the questions that scenarios ask of them.

mod child;
mod cluster;
mod executor;
mod fake;
mod manager;
mod places;
mod replicas;

use std::time::{Duration, Instant};

pub use child::{Child, run};
pub use cluster::{Cluster, Table};
pub use executor::Executor;
pub use fake::Fake;
pub use manager::{Manager, Store};
pub use places::{Networked, OnEtcd, OnOneHost, OnPostgres, Place};
pub(crate) use places::{on_every_network, on_every_store, on_store};
pub use replicas::{Replicas, TTL};

pub use crate::support::free_address;
pub use crate::support::proxy::{Direction, Proxy};

/// How often conditions are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// For whatever has no bound of its own.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Polls until `look` has something, and fails the test once `within` is over.
pub async fn poll_until<T>(what: &str, within: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A stated observation window: `holds` must be true at every look until it is over.
pub async fn stays(what: &str, window: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + window;
    while Instant::now() < deadline {
        assert!(holds().await, "not for the whole of {window:?}: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A stated observation window in which nothing is looked at; what happened is read from the journals afterwards.
pub async fn window(length: Duration) {
    tokio::time::sleep(length).await;
}

/// Nanoseconds of CLOCK_BOOTTIME, as journals carry them.
pub fn boot_ns() -> u64 {
    u64::try_from(shard_manager::clock::now().0.as_nanos()).unwrap()
}
