//! The storage that all executors share, and the fence in it: for each shard, the highest epoch that anybody came with.

use std::path::Path;
use std::time::Duration;

use shard_manager::types::{Epoch, ShardId};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteSynchronous};

/// How long to wait for other writes, of this process and of others.
const PATIENCE: Duration = Duration::from_secs(30);

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS fence (shard INTEGER PRIMARY KEY, epoch INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS counters (
        key TEXT PRIMARY KEY, shard INTEGER NOT NULL, epoch INTEGER NOT NULL, value INTEGER NOT NULL
    );
";

/// The storage.
pub struct Storage {
    pool: SqlitePool,
}

/// Why the storage did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody came with a higher epoch, so this one owns the shard no longer. Nothing was changed.
    #[error("the storage has seen epoch {seen}, a higher one")]
    Fenced { seen: Epoch },
    /// It failed. A write may have taken effect.
    #[error("the storage failed")]
    Failed(#[from] sqlx::Error),
}

impl Storage {
    /// Opens the file at `path`, and makes it where it is missing.
    pub async fn open(path: &Path) -> Result<Storage, Error> {
        // What was written survives every process, but not a power failure: this file is for trying things out. Thousands of fences
        // would take their time otherwise.
        let options = SqliteConnectOptions::new().filename(path).create_if_missing(true).busy_timeout(PATIENCE);
        let options = options.synchronous(SqliteSynchronous::Off);
        // SQLite writes one after the other; a queue in here is fairer than its own.
        let pool = SqlitePoolOptions::new().max_connections(1).acquire_timeout(PATIENCE);
        let pool = pool.connect_with(options.disable_statement_logging()).await?;
        sqlx::raw_sql(SCHEMA).execute(&pool).await?;
        Ok(Storage { pool })
    }

    /// From now on, whoever comes with a lower epoch of this shard is refused. It only ever goes up, so a call that comes late does no
    /// harm. The same epoch again is fine: a lease that ran out and came back brings the shard back at the epoch that it had.
    pub async fn raise_fence(&self, shard: ShardId, epoch: Epoch) -> Result<(), Error> {
        let raise = "
            INSERT INTO fence (shard, epoch) VALUES (?1, ?2)
            ON CONFLICT (shard) DO UPDATE SET epoch = excluded.epoch WHERE excluded.epoch >= fence.epoch";
        let raised = sqlx::query(raise).bind(shard.0).bind(number(epoch)).execute(&self.pool).await?;
        if raised.rows_affected() == 1 { Ok(()) } else { Err(self.fenced(shard).await) }
    }

    /// Adds one to a key's counter; the new value. The epoch is looked at in the very transaction that writes: between a look before
    /// it and the write, this process may be stopped for any time.
    pub async fn increment(&self, key: &str, shard: ShardId, epoch: Epoch) -> Result<i64, Error> {
        let increment = "
            INSERT INTO counters (key, shard, epoch, value)
            SELECT ?1, ?2, ?3, 1 FROM fence WHERE shard = ?2 AND epoch = ?3
            ON CONFLICT (key) DO UPDATE SET value = value + 1, epoch = excluded.epoch
            RETURNING value";
        let written =
            sqlx::query_scalar(increment).bind(key).bind(shard.0).bind(number(epoch)).fetch_optional(&self.pool).await?;
        match written {
            Some(value) => Ok(value),
            None => Err(self.fenced(shard).await),
        }
    }

    /// A key's counter. Fenced as well: who lost the shard must not answer with what it was before.
    pub async fn read(&self, key: &str, shard: ShardId, epoch: Epoch) -> Result<i64, Error> {
        let read = "SELECT coalesce((SELECT value FROM counters WHERE key = ?1), 0) FROM fence WHERE shard = ?2 AND epoch = ?3";
        let found = sqlx::query_scalar(read).bind(key).bind(shard.0).bind(number(epoch)).fetch_optional(&self.pool).await?;
        match found {
            Some(value) => Ok(value),
            None => Err(self.fenced(shard).await),
        }
    }

    /// The refusal, with what the manager wants to know of it.
    async fn fenced(&self, shard: ShardId) -> Error {
        let seen = sqlx::query_scalar("SELECT epoch FROM fence WHERE shard = ?").bind(shard.0).fetch_one(&self.pool).await;
        seen.map_or_else(Error::Failed, |seen: i64| Error::Fenced { seen: Epoch(seen.unsigned_abs()) })
    }
}

/// As SQL has it. Epochs end at 2^62.
fn number(epoch: Epoch) -> i64 {
    i64::try_from(epoch.0).unwrap_or(i64::MAX)
}
