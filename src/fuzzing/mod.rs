//! What the fuzz targets do with their bytes: each throws them at what reads bytes that nobody has to trust, and asserts what must hold
//! whatever they are. `fuzz/` gives these functions to cargo-fuzz; the tests here give them the seeds in `fuzz/seeds/` and what once
//! failed, in `fuzz/regressions/`. docs/testing.md says which target covers what.
//!
//! Compiled for tests and under cargo-fuzz alone. It stands within the crate because it calls what is no part of the public API.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::assignment::event::Settings;

mod answers;
mod cell;
mod client;
mod codec;
mod config;
mod document;
mod input;
mod journal;
mod manager;
mod scratch;
#[cfg(test)]
mod seeds;
#[cfg(test)]
mod tests;

/// One target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As the binaries, the directories of seeds and the page name it.
    pub name: &'static str,
    /// Panics where something does not hold.
    pub run: fn(&[u8]),
    /// The most that it may have allocated at any moment, in bytes: so much, and so much for each byte of its input.
    pub memory: (usize, usize),
}

impl Target {
    /// The most that it may have allocated at any moment while it reads an input of `length` bytes.
    pub fn memory_limit(&self, length: usize) -> usize {
        self.memory.0 + self.memory.1 * length
    }
}

const MIB: usize = 1 << 20;

/// Records of the store.
pub const CODEC: Target = Target { name: "codec", run: codec::run, memory: (8 * MIB, 64) };
/// The document of `export` and `import`.
pub const DOCUMENT: Target = Target { name: "document", run: document::run, memory: (8 * MIB, 1000) };
/// Journals of executors.
pub const JOURNAL: Target = Target { name: "journal", run: journal::run, memory: (4 * MIB, 1000) };
/// The file of a leader cell.
pub const CELL: Target = Target { name: "cell", run: cell::run, memory: (4 * MIB, 64) };
/// Layers of the configuration.
pub const CONFIG: Target = Target { name: "config", run: config::run, memory: (16 * MIB, 1000) };
/// What managers say to executors and callers, and executors to managers.
pub const CLIENT: Target = Target { name: "client", run: client::run, memory: (8 * MIB, 400) };
/// Every call of a manager, through its services into a real engine.
pub const MANAGER: Target = Target { name: "manager", run: manager::run, memory: (64 * MIB, 4000) };
/// What managers answer the commands that ask them.
pub const ANSWERS: Target = Target { name: "answers", run: answers::run, memory: (8 * MIB, 4000) };

/// All of them.
pub const TARGETS: [Target; 8] = [CODEC, DOCUMENT, JOURNAL, CELL, CONFIG, CLIENT, MANAGER, ANSWERS];

/// Of the engines that targets lead with.
fn settings() -> Settings {
    Settings {
        lease_ttl: Duration::from_secs(10),
        settle_time: Duration::from_millis(500),
        calm_time: Duration::from_secs(2),
        rebalance_threshold: 0.1,
        exclusive_ids: false,
        turn_interval: Duration::from_secs(1),
        takeover_grace: Duration::ZERO,
        max_pages_per_commit: 5,
    }
}
