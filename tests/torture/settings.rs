//! What a run is told, the times that everybody in it goes by, and the bound that follows from them.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::Kind;

/// The executors' lease.
pub const LEASE: Duration = Duration::from_secs(3);
/// Of the leadership: the shortest that there is.
pub const TTL: Duration = Duration::from_secs(2);
/// How long a leader beside a SQLite file may stand still.
pub const GRACE: Duration = Duration::from_secs(1);
pub const SETTLE: Duration = Duration::from_millis(100);
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
pub const SHARDS: u32 = 48;
pub const REPLICAS: usize = 3;
/// Executors that are there all the time.
pub const SEATS: usize = 6;

/// What an executor's next call may have to wait for: a call that nobody answers (2 s) and the longest pause after it (1 s).
const CALL: Duration = Duration::from_secs(3);

/// Where replicas keep their state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    Etcd,
    Postgres,
    Sqlite,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub seed: u64,
    pub store: Store,
    /// How long things are broken; what it takes to start and to come to rest comes on top.
    pub length: Duration,
    /// What is broken.
    pub kinds: Vec<Kind>,
    /// Where everything is written. Without one it is a temporary directory, which is kept where the run is not passed.
    pub directory: Option<PathBuf>,
}

impl Settings {
    /// `TORTURE_SEED`, `TORTURE_STORE`, `TORTURE_MINUTES` and `TORTURE_DIRECTORY`; one minute beside a SQLite file without them.
    /// `TORTURE_KINDS` names the only kinds of faults that there are to be, separated by commas.
    pub fn from_environment() -> Settings {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let number = |name: &str, default: f64| {
            variable(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
        };
        let store = match variable("TORTURE_STORE").as_deref() {
            None | Some("sqlite") => Store::Sqlite,
            Some("etcd") => Store::Etcd,
            Some("postgres") => Store::Postgres,
            Some(other) => panic!("TORTURE_STORE={other} is refused: it must be etcd, postgres or sqlite"),
        };
        let seed = variable("TORTURE_SEED").map_or(1, |value| value.parse().unwrap_or_else(|_| panic!("{value:?} is no seed")));
        let length = Duration::from_secs_f64(60.0 * number("TORTURE_MINUTES", 1.0));
        let only = variable("TORTURE_KINDS");
        let named = |text: &str| text.split(',').map(|name| Kind::named(name, store)).collect();
        let kinds = only.map_or_else(|| Kind::of(store, length), |text| named(&text));
        Settings { seed, store, length, kinds, directory: variable("TORTURE_DIRECTORY").map(PathBuf::from) }
    }
}

/// m of docs/guarantees.md.
pub fn margin() -> Duration {
    Duration::from_millis(100) + LEASE / 100
}

/// How long a shard may be without an owner after everything was healed. docs/guarantees.md: an executor died while no manager led (a
/// leadership runs out, its successor bears with the leader before, a whole lease follows); whoever is left has to call; newcomers are
/// gathered. Two leases more are for a machine that does other things too.
pub fn bound(store: Store) -> Duration {
    let takeover = match store {
        Store::Etcd => TTL,
        Store::Postgres => TTL + TTL,
        Store::Sqlite => GRACE + GRACE,
    };
    takeover + LEASE + margin() + CALL + SETTLE + 2 * LEASE
}

/// For how long after the store was wiped only epochs protect: whoever led before notices it within its leadership, and what it
/// granted until then is over a lease later.
pub fn aftermath() -> Duration {
    TTL + LEASE + margin()
}

/// Of every replica; what the store takes comes on top.
pub fn of_replicas(store: Store) -> Vec<String> {
    let mut settings = vec![
        format!("number_of_shards={SHARDS}"),
        format!("leadership.lease_ttl={}s", TTL.as_secs()),
        format!("executors.lease_ttl={}s", LEASE.as_secs()),
        format!("executors.command_timeout={}ms", COMMAND_TIMEOUT.as_millis()),
        format!("executors.settle_time={}ms", SETTLE.as_millis()),
        "executors.calm_time=200ms".to_owned(),
        // Wide enough for moves by hand.
        "rebalance_threshold=0.5".to_owned(),
        "executors.probe_interval=500ms".to_owned(),
        "executors.probe_timeout=200ms".to_owned(),
    ];
    if store == Store::Sqlite {
        settings.push(format!("leadership.host.grace={}s", GRACE.as_secs()));
    }
    settings
}
