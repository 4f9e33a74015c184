//! What the manager is configured with: typed, layered, and checked before anything starts.
//!
//! Four layers, each overriding the one before: the defaults in [`keys`], one TOML file, `SHARD_MANAGER__SECTION__KEY` environment
//! variables, and `--set section.key=value`. [`Config::load`] refuses what it does not know, and every value that breaks a rule;
//! [`Provenance`] says where each value in force came from. `docs/configuration.md` is the same truth for readers.

pub mod keys;
mod layers;
mod problem;
mod provenance;
mod rules;
mod secret;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use layers::{Sources, environment};
pub use problem::{Error, Problem};
pub use provenance::{Origin, Provenance, Setting};
pub use secret::Secret;

/// Everything that can be configured. Public fields, so that an embedding process can build or change one; whoever does calls
/// [`Config::check`], which [`Config::load`] has done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// How many shards the cluster has: 1 to 4,194,304, by default 1024. Fixed when the cluster's state is first written.
    pub number_of_shards: u32,
    /// How far from its fair share an executor may rest, as a fraction of that share: 0 to 1, by default 0.1.
    pub rebalance_threshold: f64,
    /// Where gRPC is served.
    pub grpc: Grpc,
    /// Where HTTP is served.
    pub http: Http,
    /// Where the state lives.
    pub persistence: Persistence,
    /// How long a leadership is good for, and what follows its loss.
    pub leadership: Leadership,
    /// How executors are kept in step.
    pub executors: Executors,
    /// What is logged, and how.
    pub log: Log,
}

/// See [`Config::grpc`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grpc {
    /// Address and port of the gRPC server, by default 127.0.0.1:9092. Port 0 takes a free one. Open on a leader only.
    pub listen: SocketAddr,
}

/// See [`Config::http`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Http {
    /// Address and port of the HTTP server, by default 127.0.0.1:8081. Port 0 takes a free one; else it differs from gRPC's.
    pub listen: SocketAddr,
}

/// See [`Config::persistence`]. Sections of stores that are not chosen are read and checked too, but not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Persistence {
    /// Which store, by default SQLite; the key is `persistence.type`.
    #[serde(rename = "type")]
    pub kind: StoreKind,
    /// For [`StoreKind::Sqlite`].
    pub sqlite: Sqlite,
    /// For [`StoreKind::Postgres`].
    pub postgres: Postgres,
    /// For [`StoreKind::Etcd`].
    pub etcd: Etcd,
    /// How long one request to the store may take: above zero, at most half of `leadership.lease_ttl`, by default
    /// min(2s, `leadership.lease_ttl` / 2).
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
}

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// A database file on this host.
    Sqlite,
    /// A PostgreSQL server.
    Postgres,
    /// An etcd cluster.
    Etcd,
}

impl StoreKind {
    /// As `persistence.type` has it.
    pub fn as_str(self) -> &'static str {
        match self {
            StoreKind::Sqlite => "sqlite",
            StoreKind::Postgres => "postgres",
            StoreKind::Etcd => "etcd",
        }
    }
}

/// See [`Persistence::sqlite`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sqlite {
    /// The database file, by default `shard-manager.db` in the working directory. Created where it is missing; its directory is not.
    pub path: PathBuf,
}

/// See [`Persistence::postgres`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Postgres {
    /// `postgres://user:password@host:port/database`. No default; needed by [`StoreKind::Postgres`].
    #[serde(default)]
    pub url: Option<Secret>,
    /// The schema that holds this cluster's tables, by default `shard_manager`: 1 to 63 of `a` to `z`, `0` to `9` and `_`, the first no
    /// digit. Created where it is missing. Several clusters share one database by schemas of their own.
    pub schema: String,
    /// The user's password, in place of one in the URL. No default.
    #[serde(default)]
    pub password: Option<Secret>,
    /// A file with the user's password. No default.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// Who signed the server's certificate, as a PEM file. No default; with it the connection is encrypted, and the server's name checked.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The certificate that this process shows, as a PEM file; with `key_file`. No default.
    #[serde(default)]
    pub cert_file: Option<PathBuf>,
    /// The key of that certificate, as a PEM file. No default.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
}

/// See [`Persistence::etcd`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Etcd {
    /// The members, as `http://host:port` or `https://host:port`. None by default; [`StoreKind::Etcd`] needs at least one.
    pub endpoints: Vec<String>,
    /// What every key begins with: begins and ends with `/`, at most 1,024 bytes, by default `/shard-manager/`.
    pub prefix: String,
    /// Who signed the members' certificates, as a PEM file. No default; needed by `https://`.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The certificate that this process shows, as a PEM file; with `key_file`. No default.
    #[serde(default)]
    pub cert_file: Option<PathBuf>,
    /// The key of that certificate, as a PEM file. No default.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The user; with one of the next two. No default.
    #[serde(default)]
    pub username: Option<String>,
    /// The user's password. No default.
    #[serde(default)]
    pub password: Option<Secret>,
    /// A file with the user's password. No default.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// The most operations that the members take in one transaction (their `--max-txn-ops`): at least 5, by default 128.
    pub max_operations: u32,
    /// The most bytes that the members take in one request (their `--max-request-bytes`): at least 294,912, by default 1,572,864.
    pub max_bytes: u32,
}

/// See [`Config::leadership`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leadership {
    /// How long a leadership lasts without renewal: whole seconds, 2s to 24h, by default 10s. Of SQLite's nothing is renewed; there as
    /// everywhere a leader bears for so long, and a request or two more, with a store that takes no commit.
    #[serde(with = "humantime_serde")]
    pub lease_ttl: Duration,
    /// What a leader does that lost its leadership, by default [`OnLoss::Exit`].
    pub on_loss: OnLoss,
    /// How processes beside one SQLite file settle who leads.
    pub host: HostLeadership,
}

/// See [`Leadership::host`]. On other stores these are read and checked, but not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLeadership {
    /// How often a leader beats and a standby looks: 10ms to 10s, by default 100ms.
    #[serde(with = "humantime_serde")]
    pub tick: Duration,
    /// How long a leader's heartbeat may stand still before a standby takes over: at least 5 ticks, at most 24h, by default 3s.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// Whether a standby kills a leader whose heartbeat stood still for the grace, before it takes over: such a leader may hold the
    /// database's write lock. By default true. A manager within another process kills nobody, whatever this says.
    pub kill_hung: bool,
}

/// What a leader does that lost its leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLoss {
    /// The process ends with exit code 4, and whatever supervises it starts it anew.
    Exit,
    /// The process goes back to waiting as a standby.
    Standby,
}

/// See [`Config::executors`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executors {
    /// The executor lease L: how long an executor may work without hearing from the manager. 1s to 24h, by default 30s.
    #[serde(with = "humantime_serde")]
    pub lease_ttl: Duration,
    /// How long one command to an executor may take before it is tried again: above zero, below L, by default min(5s, L / 3).
    #[serde(with = "humantime_serde")]
    pub command_timeout: Duration,
    /// How long joins are gathered before shards move to the newcomers: 0s to below L, by default 500ms.
    #[serde(with = "humantime_serde")]
    pub settle_time: Duration,
    /// How long after executors left that had shards running shards are not moved for balance: 0s to 24h, by default 1m.
    #[serde(with = "humantime_serde")]
    pub calm_time: Duration,
    /// Whether the deployment guarantees that no two processes ever run under one executor id, so that a new incarnation proves
    /// the old one gone. By default false.
    pub exclusive_ids: bool,
    /// How often an executor's health is probed: above zero, at most 24h, by default 5s.
    #[serde(with = "humantime_serde")]
    pub probe_interval: Duration,
    /// How long a probe may take: above zero, at most `executors.probe_interval`, by default 2s.
    #[serde(with = "humantime_serde")]
    pub probe_timeout: Duration,
}

/// See [`Config::log`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// How a line looks, by default [`LogFormat::Text`].
    pub format: LogFormat,
    /// What is logged, by default `info`: a level, or directives such as `info,shard_manager::store=debug`.
    pub filter: String,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Etcd {
    /// The longest prefix, in bytes.
    pub const MAX_PREFIX_LEN: usize = 1024;
    /// The least of `max_operations`: `meta` and the four pages that belong together.
    pub const LEAST_OPERATIONS: u32 = 5;
    /// The least of `max_bytes`: the same at their longest, below the longest prefix.
    pub const LEAST_BYTES: u32 = 288 * 1024;
}

impl Config {
    /// Reads and checks all layers. The error lists every unknown key; where there is none, the first value of a wrong type; where
    /// there is none, every broken rule.
    pub fn load(sources: &Sources) -> Result<(Config, Provenance), Error> {
        layers::load(sources)
    }

    /// Checks every rule. Needed only for a configuration that did not come from [`Config::load`].
    pub fn check(&self) -> Result<(), Error> {
        let problems: Vec<Problem> = rules::broken(self).into_iter().map(Problem::Rule).collect();
        if problems.is_empty() { Ok(()) } else { Err(Error { problems }) }
    }

    /// What is allowed, but probably not meant.
    pub fn warnings(&self) -> Vec<String> {
        rules::warnings(self)
    }
}
