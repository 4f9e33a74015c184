//! shard-manager decides which executor process owns which shard of a sharded stateful system.
//!
//! `docs/architecture.md` has the picture. Imports point down this list only (a test enforces it):
//!
//! | module | what it is for |
//! | --- | --- |
//! | `fuzzing` | what fuzz targets do with their bytes; for tests and cargo-fuzz alone |
//! | `cli` | the command line: `serve`, the commands that talk to a running manager, a small real executor |
//! | `transfer` | a state leaves its store, and another store takes it in |
//! | `run` | composition: start, serve, and stop in order |
//! | `api` | gRPC and HTTP |
//! | `coordinator` | the one task that owns the engine |
//! | `executors` | one link and one probe per executor |
//! | `election` | who may write |
//! | `store` | where the state lives |
//! | `backend` | what the store and the election of one kind share |
//! | `published` | a revision as readers see it |
//! | `metrics` | counts and gauges, in the core's words |
//! | [`assignment`] | **the pure core**: no clock, no randomness, no I/O, no async |
//! | [`client`] | the library for executors and callers |
//! | `config`, [`rpc`], [`clock`], [`holdings`], [`types`] | the floor |
//!
//! The promises that code, tests and documents cite by number stand in `docs/guarantees.md`:
//!
//! | | promise |
//! | --- | --- |
//! | P1 | every state write is conditional on the leadership and on the revision that it replaces |
//! | P2 | nothing is told to anyone before it is durable |
//! | P3 | a shard changes owner only after a confirmed release, the end of a lease, or proof that the process is gone |
//! | P4 | epochs only grow |
//! | P5 | stale commands bounce |
//! | P6 | no shard stays without an owner longer than a stated bound |
//! | P7 | readers never go back |
//! | P8 | exit codes, gauges, readiness and logs say what is really so |
//! | P9 | bad bytes are an error, never a crash and never overwritten |
//! | P10 | a stalled leader blames itself first |

pub mod clock;
pub mod holdings;
pub mod rpc;
pub mod types;

#[cfg(feature = "client")]
pub mod client;

#[cfg(feature = "server")]
pub mod api;
#[cfg(feature = "server")]
pub mod assignment;
#[cfg(feature = "server")]
pub mod backend;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod coordinator;
#[cfg(feature = "server")]
pub mod election;
#[cfg(feature = "server")]
pub mod executors;
#[cfg(all(feature = "server", any(test, shard_manager_fuzzing)))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "server")]
pub mod metrics;
#[cfg(feature = "server")]
pub mod published;
#[cfg(feature = "server")]
pub mod run;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod transfer;
