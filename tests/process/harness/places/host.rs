//! Beside one SQLite file: a leader cell in shared memory, and processes that watch each other. Who waits stands nowhere.

use std::path::PathBuf;
use std::time::Duration;

use shard_manager::backend::sqlite::Database;
use shard_manager::election::host::cell::LeaderCell;
use shard_manager::types::Token;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, SqliteConnection};
use tempfile::TempDir;

use super::Place;
use crate::harness::{PATIENCE, Store};

/// A directory with the database file.
pub struct OnOneHost {
    directory: TempDir,
}

impl OnOneHost {
    /// The database file.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("shard-manager.db")
    }

    /// As any process of the host can open it.
    pub fn cell(&self) -> LeaderCell {
        LeaderCell::open(&self.directory.path().join("shard-manager.db.leader")).unwrap()
    }

    /// A connection that knows nothing of us, and waits for locks for that long.
    pub async fn client(&self, patience: Duration) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path());
        options.busy_timeout(patience).connect().await.unwrap()
    }

    async fn number(&self, sql: &str) -> u64 {
        let number: i64 = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut self.client(PATIENCE).await).await.unwrap();
        number.try_into().unwrap()
    }
}

impl Place for OnOneHost {
    /// Who waits sees it die.
    const CRASH: Duration = Duration::ZERO;
    /// The grace.
    const HANG: Duration = Duration::from_secs(1);
    const SETTINGS: &'static [&'static str] = &["leadership.host.grace=1s"];
    const LET_SLEEP: &'static [&'static str] = &["leadership.host.kill_hung=false"];
    const LOOK_RARELY: &'static [&'static str] = &["leadership.host.tick=10s", "leadership.host.grace=60s"];

    async fn make() -> OnOneHost {
        OnOneHost { directory: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> Store {
        Store::Sqlite(self.path())
    }

    async fn queue(&self) -> Vec<String> {
        let leader = self.cell().current_leader();
        leader.iter().map(|it| format!("{it}, by term {}", it.claim.term())).collect()
    }

    /// The database fences by a number of its own, and does not know yet that another one leads.
    async fn depose(&self) {
        let cell = self.cell();
        cell.step_down(cell.current_leader().unwrap().claim).unwrap();
    }

    /// Past the cell, which says that the old one leads.
    async fn overtake(&self) {
        let database = Database::open(&self.path(), Duration::from_secs(10)).await.unwrap();
        database.draw_leadership(Token::draw(), "somebody else").await.unwrap();
        database.close().await;
    }

    async fn written(&self) -> u64 {
        self.number("SELECT number FROM revision").await
    }

    async fn activity(&self) -> u64 {
        self.written().await + self.number("SELECT number FROM leader").await + self.cell().election_term()
    }

    async fn spoil(&self) -> String {
        let spoil = "UPDATE record SET body = X'00' WHERE kind = 'shards' AND page = 0";
        sqlx::query(spoil).execute(&mut self.client(PATIENCE).await).await.unwrap();
        "shards/0".to_owned()
    }
}
