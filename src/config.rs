//! Stub.
#![allow(missing_docs)]
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
#[derive(Clone, Debug)]
pub struct Config {
    pub number_of_shards: u32,
    pub rebalance_threshold: f64,
    pub grpc: Listen,
    pub http: Listen,
    pub persistence: Persistence,
    pub leadership: Leadership,
    pub executors: Executors,
}
#[derive(Clone, Debug)]
pub struct Listen {
    pub listen: SocketAddr,
}
#[derive(Clone, Debug)]
pub struct Persistence {
    pub kind: PersistenceKind,
    pub sqlite: Sqlite,
    pub request_timeout: Duration,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistenceKind {
    Sqlite,
}
#[derive(Clone, Debug)]
pub struct Sqlite {
    pub path: PathBuf,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    Exit,
    Standby,
}
#[derive(Clone, Debug)]
pub struct Leadership {
    pub lease_ttl: Duration,
    pub on_loss: OnLoss,
}
#[derive(Clone, Debug)]
pub struct Executors {
    pub lease_ttl: Duration,
    pub command_timeout: Duration,
    pub settle_time: Duration,
    pub exclusive_ids: bool,
    pub probe_interval: Duration,
    pub probe_timeout: Duration,
}
