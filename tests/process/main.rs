//! The real binary over real sockets, broken for real: killed, frozen, cut off, lied to. What must hold is read from outside: from the
//! journals that executors write, from what the manager answers, and from exit codes.
//!
//! Times are stated in terms of the executor lease L. Bounds leave room for a machine that does other things meanwhile; where a
//! scenario states a bound of the product itself, it says so.
#![allow(clippy::unwrap_used)]

mod by_hand;
mod counter;
mod cuts;
mod damage;
mod drains;
mod harness;
mod identity;
mod leases;
mod lifecycle;
mod load;
mod managers;
mod membership;
mod moves;
mod observe;
mod pauses;
mod questions;
mod removal;
mod replicas;
mod requests;
mod router;
mod slow;
mod story;
#[path = "../support/mod.rs"]
mod support;
mod torture;
mod trouble;
