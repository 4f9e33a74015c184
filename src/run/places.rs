//! Where the state lives and where leadership is won: the one place that knows the kinds of stores.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use super::Error;
use crate::backend::etcd::{self, Members};
use crate::backend::postgres::{self, Server};
use crate::backend::sqlite::Database;
use crate::backend::with_causes;
use crate::config::{Config, StoreKind};
use crate::election::etcd::EtcdElection;
use crate::election::host::{self, HostElection};
use crate::election::postgres::PostgresElection;
use crate::election::{self, Candidacy, Election, Patience, Pulse};
use crate::metrics::Metrics;
use crate::store::Store;
use crate::store::etcd::EtcdStore;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::SqliteStore;

/// How often a standby says who leads.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(30);

/// A store, and the election whose fences it checks.
pub(crate) struct Places {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) election: Arc<dyn Election>,
    /// Beaten by the coordinator of a leadership won here.
    pub(crate) pulse: Pulse,
}

/// What is done where there is no database at the configured place yet. Servers have no such place: there something is made by the first
/// write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is made.
    Made,
    /// It is an error, and nothing is made.
    Refused,
}

/// Closes what the store and the election share, after the leadership was given up.
pub(crate) type Close = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Opens what is configured, for a process with that much `patience` where another one leads. Another kind of store is another arm.
///
/// # Errors
/// Where the store cannot be opened, or its settings cannot work.
pub(crate) async fn open(
    config: &Config,
    identity: &str,
    metrics: &Arc<Metrics>,
    patience: Patience,
    missing: Missing,
) -> Result<(Places, Close), Error> {
    let opening = Opening { config, identity, metrics, patience, missing, pulse: Pulse::new() };
    match config.persistence.kind {
        StoreKind::Sqlite => opening.sqlite().await,
        StoreKind::Postgres => opening.postgres(),
        StoreKind::Etcd => opening.etcd(),
    }
}

/// What every kind of store is opened with.
struct Opening<'a> {
    config: &'a Config,
    identity: &'a str,
    metrics: &'a Arc<Metrics>,
    patience: Patience,
    missing: Missing,
    pulse: Pulse,
}

impl Opening<'_> {
    async fn sqlite(self) -> Result<(Places, Close), Error> {
        let (persistence, host) = (&self.config.persistence, &self.config.leadership.host);
        let (path, timeout) = (&persistence.sqlite.path, persistence.request_timeout);
        let opened = match self.missing {
            Missing::Made => Database::open(path, timeout).await,
            Missing::Refused => Database::open_existing(path, timeout).await,
        };
        let database = opened.map_err(|error| Error::Store { doing: "opening the database", source: error.into() })?;
        let options =
            host::Options { tick: host.tick, grace: host.grace, kill_hung: host.kill_hung, candidacy: self.candidacy() };
        let store = Arc::new(SqliteStore::new(Arc::clone(&database)));
        let election = Arc::new(HostElection::new(Arc::clone(&database), options));
        Ok((self.places(store, election), Box::pin(async move { database.close().await })))
    }

    /// Connects to nothing yet: the database may come later than this process.
    fn postgres(self) -> Result<(Places, Close), Error> {
        let (persistence, ttl) = (&self.config.persistence, self.config.leadership.lease_ttl);
        let settings = postgres::Settings::from_config(&persistence.postgres, persistence.request_timeout).map_err(refused)?;
        let server = Server::new(settings);
        let options = election::postgres::Options { ttl, candidacy: self.candidacy() };
        let election = PostgresElection::new(Arc::clone(&server), options).map_err(refused)?;
        info!(schema = server.schema(), "the state is in PostgreSQL");
        let store = Arc::new(PostgresStore::new(server));
        let closing = Arc::clone(&store);
        Ok((self.places(store, Arc::new(election)), Box::pin(async move { closing.close().await })))
    }

    /// Connects to nothing yet, likewise.
    fn etcd(self) -> Result<(Places, Close), Error> {
        let etcd = &self.config.persistence.etcd;
        let settings = etcd::Settings::from_config(etcd, self.config.persistence.request_timeout).map_err(refused)?;
        // Each has connections of its own, so that no commit holds up a renewal.
        let members = || Members::new(&settings).map(Arc::new).map_err(refused);
        let store = EtcdStore::new(members()?, &etcd.prefix, etcd.max_operations, etcd.max_bytes).map_err(refused)?;
        let options = election::etcd::Options {
            prefix: etcd.prefix.clone(),
            ttl: self.config.leadership.lease_ttl,
            candidacy: self.candidacy(),
        };
        let election = EtcdElection::new(members()?, options).map_err(refused)?;
        info!(endpoints = etcd.endpoints.join(","), prefix = etcd.prefix, "the state is in etcd");
        Ok((self.places(Arc::new(store), Arc::new(election)), Box::pin(async {})))
    }

    fn places(self, store: Arc<dyn Store>, election: Arc<dyn Election>) -> Places {
        Places { store, election, pulse: self.pulse }
    }

    fn candidacy(&self) -> Candidacy {
        let metrics = Arc::clone(self.metrics);
        Candidacy {
            holder: self.identity.to_owned(),
            pulse: self.pulse.clone(),
            patience: self.patience,
            announce_every: ANNOUNCE_EVERY,
            on_failure: Arc::new(move || metrics.campaign_failed()),
        }
    }
}

/// Settings that can never work.
fn refused(error: impl std::error::Error) -> Error {
    Error::Configuration(with_causes(&error))
}
