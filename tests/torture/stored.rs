//! What the store holds, read past every replica: by whom it is fenced, and at which version it is.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use serde_json::json;
use shard_manager::backend::etcd::{self, Members};
use shard_manager::backend::postgres::{self, Server};
use shard_manager::backend::sqlite::Database;
use shard_manager::config::{Config, Sources};
use shard_manager::store::etcd::EtcdStore;
use shard_manager::store::postgres::PostgresStore;
use shard_manager::store::sqlite::SqliteStore;
use shard_manager::store::{Loaded, Store as _};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::history::Part;

/// How often it is read, and how long one look may take.
const READ: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(1);

/// The newest fence that was seen; 0 where nobody leads.
#[derive(Clone, Default)]
pub struct Fences(Arc<AtomicU64>);

impl Fences {
    pub fn current(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How the store is read.
pub enum Reader {
    Etcd {
        client: Box<Client>,
        store: EtcdStore,
        prefix: String,
    },
    Postgres {
        url: String,
        schema: String,
        store: PostgresStore,
        session: Mutex<Option<PgConnection>>,
    },
    /// Opened anew for each look: the file may be another one by then.
    Sqlite {
        path: PathBuf,
    },
}

impl Reader {
    /// With the settings of a replica that reaches the store without detours.
    pub async fn new(settings: Vec<String>) -> Reader {
        let sources = Sources { sets: settings, ..Sources::default() };
        let persistence = Config::load(&sources).unwrap().0.persistence;
        if let Some(url) = persistence.postgres.url.clone() {
            let schema = persistence.postgres.schema.clone();
            let server = Server::new(postgres::Settings::from_config(&persistence.postgres, PATIENCE).unwrap());
            let (url, store) = (url.reveal().to_owned(), PostgresStore::new(server));
            return Reader::Postgres { url, schema, store, session: Mutex::default() };
        }
        let keys = &persistence.etcd;
        if keys.endpoints.is_empty() {
            return Reader::Sqlite { path: persistence.sqlite.path };
        }
        let members = Members::new(&etcd::Settings::from_config(keys, PATIENCE).unwrap()).unwrap();
        let store = EtcdStore::new(Arc::new(members), &keys.prefix, keys.max_operations, keys.max_bytes).unwrap();
        let client = Box::new(Client::connect(&keys.endpoints, None).await.unwrap());
        Reader::Etcd { client, store, prefix: format!("{}leader/", keys.prefix) }
    }

    async fn fence(&self) -> Option<u64> {
        let number: i64 = match self {
            Reader::Etcd { client, prefix, .. } => {
                let keys = client.kv_client().get(prefix.as_str(), Some(GetOptions::new().with_prefix())).await.ok()?;
                keys.kvs().iter().map(etcd_client::KeyValue::create_revision).min().unwrap_or(0)
            }
            Reader::Postgres { url, schema, session, .. } => {
                // One that fails, or is left in the middle of a look, is not used again.
                let mut place = session.lock().await;
                let mut client = match place.take() {
                    Some(client) => client,
                    None => url.parse::<PgConnectOptions>().ok()?.connect().await.ok()?,
                };
                let number = format!("SELECT number FROM {schema}.leader");
                let number = sqlx::query_scalar(AssertSqlSafe(number)).fetch_optional(&mut client).await.ok()?.unwrap_or(0);
                *place = Some(client);
                number
            }
            Reader::Sqlite { path } => {
                let mut client = SqliteConnectOptions::new().filename(path).connect().await.ok()?;
                sqlx::query_scalar("SELECT number FROM leader").fetch_optional(&mut client).await.ok()?.unwrap_or(0)
            }
        };
        u64::try_from(number).ok()
    }

    async fn load(&self) -> Option<Loaded> {
        match self {
            Reader::Etcd { store, .. } => store.load().await.ok()?,
            Reader::Postgres { store, .. } => store.load().await.ok()?,
            Reader::Sqlite { path } => {
                let database = Database::open_existing(path, PATIENCE).await.ok()?;
                let loaded = SqliteStore::new(Arc::clone(&database)).load().await;
                database.close().await;
                loaded.ok()?
            }
        }
    }

    /// Reads for ever. What changed in the middle of a look is not noted. `quiet` is held by whoever replaces the file.
    pub async fn follow(self, part: Part, fences: Fences, quiet: Arc<Mutex<()>>) {
        let mut last = None;
        loop {
            // A file that is opened anew costs more.
            tokio::time::sleep(if matches!(self, Reader::Sqlite { .. }) { READ * 3 } else { READ }).await;
            let _quiet = quiet.lock().await;
            let look = async {
                let before = self.fence().await?;
                let loaded = self.load().await?;
                (self.fence().await? == before).then_some((before, loaded))
            };
            let Ok(Some((fence, loaded))) = timeout(PATIENCE, look).await else { continue };
            fences.0.store(fence, Ordering::Relaxed);
            let meta = &loaded.state.meta;
            let seen = (fence, meta.term.0, loaded.revision.0, meta.cluster_id.to_string());
            if last.as_ref() != Some(&seen) {
                let (fence, term, revision, cluster_id) = &seen;
                let fields = json!({"fence": fence, "term": term, "revision": revision, "cluster_id": cluster_id});
                part.note("program", "stored", fields);
                last = Some(seen);
            }
        }
    }
}
