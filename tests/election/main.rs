//! Leadership on real etcd servers, over networks that fail. Each test is named after what goes wrong.

#![allow(clippy::unwrap_used)]

mod keeping;
mod members;
mod postgres_grace;
mod postgres_keeping;
mod postgres_queue;
mod postgres_rig;
mod postgres_server;
mod queue;
mod rig;
mod security;
#[path = "../support/mod.rs"]
mod support;
