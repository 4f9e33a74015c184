//! Where the state lives and where leadership is won: the one place that knows the kinds of stores.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use super::Error;
use crate::assignment::Engine;
use crate::backend::etcd::{Members, Settings};
use crate::backend::postgres;
use crate::backend::sqlite::Database;
use crate::config::{Config, StoreKind};
use crate::election::etcd::{EtcdElection, Options};
use crate::election::host::HostElection;
use crate::election::postgres::PostgresElection;
use crate::election::{self, Election, Patience, Pulse};
use crate::metrics::Metrics;
use crate::store::Store;
use crate::store::etcd::EtcdStore;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::SqliteStore;

/// How often a standby says who leads.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(30);

/// A store, and the election whose fences it checks.
pub(super) struct Places {
    pub(super) store: Arc<dyn Store>,
    pub(super) election: Arc<dyn Election>,
    /// Beaten by the coordinator of a leadership won here.
    pub(super) pulse: Pulse,
}

/// Closes what the store and the election share, after the leadership was given up.
pub(super) type Close = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Opens what is configured, for a process with that much `patience` where another one leads. Another kind of store is another arm.
///
/// # Errors
/// Where the store cannot be opened, or its settings cannot work.
pub(super) async fn open(
    config: &Config,
    identity: &str,
    metrics: &Arc<Metrics>,
    patience: Patience,
) -> Result<(Places, Close), Error> {
    let persistence = &config.persistence;
    let refused = |error: &dyn std::error::Error| Error::Configuration(with_causes(error));
    let pulse = Pulse::new();
    let (places, close): (Places, Close) = match persistence.kind {
        StoreKind::Sqlite => {
            let opened = Database::open(&persistence.sqlite.path, persistence.request_timeout).await;
            let database = opened.map_err(|error| Error::Store { doing: "opening the database", source: error.into() })?;
            let (host, counted) = (&config.leadership.host, Arc::clone(metrics));
            let options = election::host::Options {
                tick: host.tick,
                grace: host.grace,
                kill_hung: host.kill_hung,
                patience,
                holder: identity.to_owned(),
                pulse: pulse.clone(),
                announce_every: ANNOUNCE_EVERY,
                on_failure: Arc::new(move || counted.campaign_failed()),
            };
            let store = Arc::new(SqliteStore::new(Arc::clone(&database)));
            let places = Places { store, election: Arc::new(HostElection::new(Arc::clone(&database), options)), pulse };
            (places, Box::pin(async move { database.close().await }))
        }
        StoreKind::Etcd => {
            let etcd = &persistence.etcd;
            let settings = Settings::from_config(etcd, persistence.request_timeout).map_err(|error| refused(&error))?;
            // Each has connections of its own, so that no commit holds up a renewal.
            let members = || Members::new(&settings).map(Arc::new).map_err(|error| refused(&error));
            let store = EtcdStore::new(members()?, &etcd.prefix, etcd.max_operations, etcd.max_bytes);
            let counted = Arc::clone(metrics);
            let options = Options {
                prefix: etcd.prefix.clone(),
                ttl: config.leadership.lease_ttl,
                holder: identity.to_owned(),
                pulse: pulse.clone(),
                announce_every: ANNOUNCE_EVERY,
                on_failure: Arc::new(move || counted.campaign_failed()),
            };
            let election = EtcdElection::new(members()?, options).map_err(|error| refused(&error))?;
            info!(endpoints = etcd.endpoints.join(","), prefix = etcd.prefix, "the state is in etcd");
            let store = Arc::new(store.map_err(|error| refused(&error))?);
            (Places { store, election: Arc::new(election), pulse }, Box::pin(async {}))
        }
        StoreKind::Postgres => {
            let settings = postgres::Settings::from_config(&persistence.postgres, persistence.request_timeout);
            // Nothing is pooled: one server gives each the connections that it needs, so that no commit holds up a renewal.
            let server = postgres::Server::new(settings.map_err(|error| refused(&error))?);
            let counted = Arc::clone(metrics);
            let options = election::postgres::Options {
                ttl: config.leadership.lease_ttl,
                holder: identity.to_owned(),
                pulse: pulse.clone(),
                patience,
                announce_every: ANNOUNCE_EVERY,
                on_failure: Arc::new(move || counted.campaign_failed()),
            };
            let election = PostgresElection::new(Arc::clone(&server), options).map_err(|error| refused(&error))?;
            info!(schema = server.schema(), "the state is in PostgreSQL");
            let store = Arc::new(PostgresStore::new(server));
            let closing = Arc::clone(&store);
            (Places { store, election: Arc::new(election), pulse }, Box::pin(async move { closing.close().await }))
        }
    };
    let (pages, least) = (places.store.limits().pages, Engine::LEAST_PAGES_PER_COMMIT);
    if pages < least {
        let why = format!(
            "persistence.etcd.max_operations and persistence.etcd.max_bytes leave room for {pages} pages in one transaction; it takes at least {least}"
        );
        return Err(Error::Configuration(why));
    }
    Ok((places, close))
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
