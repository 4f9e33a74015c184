//! The stores: what a record is, what every store promises, what SQLite, etcd and PostgreSQL add, and who leads a
//! database file.
//!
//! `conformance` is one suite for all stores. A new store joins with a harness and one line.

#![allow(clippy::unwrap_used)]

mod child;
mod codec;
mod conformance;
mod crash;
mod etcd;
mod host;
mod memory;
mod postgres;
mod postgres_faults;
mod postgres_server;
mod sample;
mod sqlite;
mod standby;
#[path = "../support/mod.rs"]
mod support;
