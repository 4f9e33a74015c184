//! The pure core: cluster state, its transitions, the lease arithmetic and the planner. No I/O, no clock, no randomness, no async;
//! `tests/house/` fails the build where that is broken.
//!
//! ```text
//!            events                                commands
//!   requests ───────►┌────────────────────────────┐──► Commit    one at a time, carries everything that waits
//!   confirmations ──►│ Engine::step(now, event)   │
//!   Committed ──────►│   state   what is durable  │──► Publish   ┐
//!   Turn ───────────►│   draft   what is to be    │──► Send      ├ only ever out of Committed (P2)
//!                    │   contacts what was heard  │──► Reply     ┘ (answers that change nothing come at once)
//!                    └────────────────────────────┘
//! ```
//!
//! [`state`] is what the store keeps; `record` has its parts and their transitions; [`engine`] decides when something happens, the
//! [`planner`] decides who should own what, [`check`] finds what is wrong with a state.

pub mod check;
pub mod command;
pub mod engine;
pub mod event;
pub mod lease;
pub mod planner;
pub mod record;
pub mod state;

pub use command::Command;
pub use engine::Engine;
pub use event::Event;
pub use state::State;
