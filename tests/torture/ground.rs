//! What keeps the replicas' state, and what is done to it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::DeleteOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, SqliteConnection};

use crate::settings::Store;
use crate::support::etcd::Etcd;
use crate::support::postgres::Postgres;

const PREFIX: &str = "/torture/";
const SCHEMA: &str = "torture";
/// How long one attempt to break it may take.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Servers of its own, where it takes some.
pub enum Ground {
    /// Three members.
    Etcd(Etcd),
    Postgres(Postgres),
    /// One file.
    Sqlite {
        path: PathBuf,
        lock: Option<SqliteConnection>,
    },
}

impl Ground {
    pub async fn make(store: Store, directory: &Path) -> Ground {
        match store {
            Store::Etcd => Ground::Etcd(Etcd::three().await),
            Store::Postgres => Ground::Postgres(Postgres::start().await),
            Store::Sqlite => Ground::Sqlite { path: directory.join("shard-manager.db"), lock: None },
        }
    }

    /// What is reached over the network.
    pub fn servers(&self) -> Vec<SocketAddr> {
        match self {
            Ground::Etcd(etcd) => etcd.members.iter().map(|member| member.client).collect(),
            Ground::Postgres(postgres) => vec![postgres.address],
            Ground::Sqlite { .. } => Vec::new(),
        }
    }

    /// For a replica that reaches the servers at these addresses.
    pub fn settings(&self, servers: &[SocketAddr]) -> Vec<String> {
        match self {
            Ground::Etcd(_) => {
                let endpoints: Vec<String> = servers.iter().map(|address| format!("http://{address}")).collect();
                vec![
                    "persistence.type=etcd".to_owned(),
                    format!("persistence.etcd.endpoints={}", endpoints.join(",")),
                    format!("persistence.etcd.prefix={PREFIX}"),
                ]
            }
            Ground::Postgres(postgres) => vec![
                "persistence.type=postgres".to_owned(),
                format!("persistence.postgres.url={}", postgres.url_at(servers[0])),
                format!("persistence.postgres.schema={SCHEMA}"),
            ],
            Ground::Sqlite { path, .. } => vec![format!("persistence.sqlite.path={}", path.display())],
        }
    }

    /// Loses everything, under running replicas where it is on servers. `false`: not now, or not surely.
    pub async fn wipe(&mut self) -> bool {
        match self {
            Ground::Etcd(etcd) => {
                for at in 0..etcd.members.len() {
                    let wiping = async {
                        let options = DeleteOptions::new().with_prefix();
                        etcd.client_of(at).await.delete(PREFIX, Some(options)).await.is_ok()
                    };
                    if tokio::time::timeout(ATTEMPT, wiping).await == Ok(true) {
                        return true;
                    }
                }
                false
            }
            Ground::Postgres(postgres) => {
                let wiping = async {
                    let mut client = postgres.url().parse::<PgConnectOptions>().unwrap().connect().await?;
                    sqlx::raw_sql(AssertSqlSafe(format!("DROP SCHEMA {SCHEMA} CASCADE"))).execute(&mut client).await
                };
                matches!(tokio::time::timeout(ATTEMPT, wiping).await, Ok(Ok(_)))
            }
            Ground::Sqlite { path, .. } => {
                for suffix in ["", "-wal", "-shm", ".leader"] {
                    let mut name = path.as_os_str().to_owned();
                    name.push(suffix);
                    match std::fs::remove_file(&name) {
                        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{name:?}: {error}"),
                        _ => {}
                    }
                }
                true
            }
        }
    }

    /// Stops doing anything: so many of its servers stand still, or somebody else has the write lock. `false`: not now.
    pub async fn pause(&mut self, members: &[usize]) -> bool {
        match self {
            Ground::Etcd(etcd) => members.iter().for_each(|&at| etcd.members[at].stop()),
            Ground::Postgres(postgres) => postgres.pause(),
            Ground::Sqlite { path, lock } => {
                let options = SqliteConnectOptions::new().filename(path).busy_timeout(Duration::from_millis(200));
                let Ok(mut connection) = options.disable_statement_logging().connect().await else { return false };
                if sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut connection).await.is_err() {
                    return false;
                }
                *lock = Some(connection);
            }
        }
        true
    }

    /// Goes on.
    pub async fn resume(&mut self, members: &[usize]) {
        match self {
            Ground::Etcd(etcd) => members.iter().for_each(|&at| etcd.members[at].go_on()),
            Ground::Postgres(postgres) => postgres.go_on(),
            Ground::Sqlite { lock, .. } => {
                if let Some(connection) = lock.take() {
                    // Closed, it gives the lock up.
                    connection.close().await.ok();
                }
            }
        }
    }

    /// SIGKILL of one member.
    pub fn kill_member(&mut self, at: usize) {
        if let Ground::Etcd(etcd) = self {
            etcd.members[at].kill();
        }
    }

    /// Starts it again.
    pub fn start_member(&mut self, at: usize) {
        if let Ground::Etcd(etcd) = self {
            etcd.run(at);
        }
    }

    /// SIGKILL of PostgreSQL, and a start.
    pub async fn restart(&mut self) {
        if let Ground::Postgres(postgres) = self {
            postgres.kill();
            postgres.start_again().await;
        }
    }
}
