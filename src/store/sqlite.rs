//! The state in one SQLite file.
//!
//! A commit is one `BEGIN IMMEDIATE` transaction: fence, revision, records, revision + 1, `COMMIT`. Whatever does not end in a
//! successful `COMMIT` ends with its connection, which SQLite rolls back as it closes it; the next commit gets a fresh one.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::codec::{self, Key};
use super::{Error, Limits, Loaded, Store, sql};
use crate::assignment::state::Changes;
use crate::backend::Fence;
use crate::backend::sqlite::{Database, is_busy};
use crate::types::{Revision, Token};

/// 256 pages are 3.4 MB: the write lock is held for some ten milliseconds, and one commit covers 262,144 shards.
const LIMITS: Limits = Limits { pages: 256 };

/// See the module.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    database: Arc<Database>,
}

impl SqliteStore {
    /// The store in an open database.
    pub fn new(database: Arc<Database>) -> SqliteStore {
        SqliteStore { database }
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn load(&self) -> Result<Option<Loaded>, Error> {
        // One statement, so one snapshot.
        let everything = "SELECT 'revision' AS kind, number AS page, x'' AS body FROM revision \
             UNION ALL SELECT kind, page, body FROM record";
        let mut connection = self.database.reader().await?;
        let unreadable = |error| Error::from(self.database.failure("reading the state", error));
        let rows = sqlx::query(everything).fetch_all(&mut *connection).await.map_err(unreadable)?;
        let row = |row: &SqliteRow| Ok((row.try_get("kind")?, row.try_get("page")?, row.try_get("body")?));
        sql::assemble(rows.iter().map(|it| row(it).map_err(unreadable)))
    }

    async fn commit(&self, fence: &Fence, expected: Option<Revision>, changes: &Changes) -> Result<Revision, Error> {
        let attempt = Attempt {
            database: Arc::clone(&self.database),
            fence: fence.clone(),
            expected,
            name: (changes.meta.token, changes.meta.attempt),
            records: codec::encode(changes).map_err(super::unfit)?,
        };
        // In a task of its own: a caller that goes away does not cut a transaction in half.
        let run = tokio::time::timeout(self.database.request_timeout(), tokio::spawn(attempt.run())).await;
        let unknown = |source| Error::OutcomeUnknown { what: "committing", source };
        match run {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(ended)) => Err(unknown(ended.into())),
            Err(_) => Err(unknown(format!("no answer within {:?}", self.database.request_timeout()).into())),
        }
    }

    fn limits(&self) -> Limits {
        LIMITS
    }
}

/// One commit under way.
struct Attempt {
    database: Arc<Database>,
    fence: Fence,
    expected: Option<Revision>,
    /// Token and attempt of its `meta`: what it is recognised by, once it landed.
    name: (Token, u64),
    records: Vec<(Key, Vec<u8>)>,
}

impl Attempt {
    async fn run(self) -> Result<Revision, Error> {
        if let Some(reason) = self.database.displaced() {
            return Err(Error::Unavailable { what: "committing", source: reason.into() });
        }
        let mut connection = self.database.writer().await?;
        let outcome = self.transaction(&mut connection).await;
        if outcome.is_err() {
            // Closed is rolled back. A connection that cannot be closed has lost its thread, and was rolled back with that.
            connection.close().await.ok();
        }
        outcome
    }

    async fn transaction(&self, connection: &mut SqliteConnection) -> Result<Revision, Error> {
        let unchanged = |what| move |error| Error::from(self.database.failure(what, error));
        let begun = sqlx::query("BEGIN IMMEDIATE").execute(&mut *connection).await;
        begun.map_err(unchanged("taking the write lock"))?;

        let guard = "SELECT leader.number, leader.token, revision.number FROM leader LEFT JOIN revision ON true";
        let guard: Option<(i64, Vec<u8>, Option<i64>)> =
            sqlx::query_as(guard).fetch_optional(&mut *connection).await.map_err(unchanged("reading fence and revision"))?;
        let Some((number, token, revision)) = guard else { return Err(Error::LeadershipLost) };
        if !sql::holds(&self.fence, number, &token) {
            return Err(Error::LeadershipLost);
        }
        let actual = revision.map(sql::revision_from).transpose()?;
        let revision = if actual == self.expected {
            self.write(connection).await.map_err(unchanged("writing"))?
        } else {
            // Perhaps it is this very commit that has moved the revision, and its answer was lost.
            match actual {
                Some(landed) if self.is_stored(connection).await? => return self.end(connection).await.map(|()| landed),
                _ => return Err(Error::ConcurrentModification { expected: self.expected, actual }),
            }
        };
        let revision = sql::revision_from(revision)?;
        self.end(connection).await?;
        Ok(revision)
    }

    /// Whether the stored `meta` is the one that this commit writes.
    async fn is_stored(&self, connection: &mut SqliteConnection) -> Result<bool, Error> {
        let meta = sqlx::query_scalar("SELECT body FROM record WHERE kind = 'meta' AND page = 0").fetch_optional(connection);
        let meta: Option<Vec<u8>> = meta.await.map_err(|error| self.database.failure("reading meta", error))?;
        let meta = codec::decode_meta(&meta.ok_or_else(|| sql::missing("meta"))?)?;
        Ok((meta.token, meta.attempt) == self.name)
    }

    /// Writes all records by one statement, from one blob and a list of where each begins and how long it is.
    async fn write(&self, connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
        let mut bodies = Vec::new();
        let mut places = Vec::with_capacity(self.records.len());
        for (key, body) in &self.records {
            places.push((key.kind.name(), key.page, bodies.len() + 1, body.len()));
            bodies.extend_from_slice(body);
        }
        let places = serde_json::to_string(&places).map_err(|error| sqlx::Error::Encode(error.into()))?;
        let records = "INSERT INTO record (kind, page, body) \
             SELECT value ->> 0, value ->> 1, substr(?, value ->> 2, value ->> 3) FROM json_each(?) WHERE true \
             ON CONFLICT (kind, page) DO UPDATE SET body = excluded.body";
        sqlx::query(records).bind(bodies).bind(places).execute(&mut *connection).await?;
        let revision = "INSERT INTO revision (one, number) VALUES (1, 1) \
             ON CONFLICT (one) DO UPDATE SET number = number + 1 RETURNING number";
        sqlx::query_scalar(revision).fetch_one(connection).await
    }

    async fn end(&self, connection: &mut SqliteConnection) -> Result<(), Error> {
        let what = "committing";
        match sqlx::query("COMMIT").execute(connection).await {
            Ok(_) => Ok(()),
            // The transaction is still open, and ends with its connection.
            Err(error) if is_busy(&error) => Err(self.database.failure(what, error).into()),
            // Even a failed write or sync may have left a whole transaction in the log, which the next process to recover it
            // would then find. Sending it again settles it.
            Err(error) => Err(Error::OutcomeUnknown { what, source: error.into() }),
        }
    }
}
