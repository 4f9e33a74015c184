//! The state in PostgreSQL: one row for the revision, one per record.
//!
//! A commit is one statement, which is its own transaction, so one round trip once it is prepared. It has three parts, each of
//! which works on what the one before returned:
//!
//! 1. `fence` takes the leader row FOR KEY SHARE, if it has the number and the token of the leadership;
//! 2. `raised` raises the revision, if that row was there and the revision is the expected one;
//! 3. `written` writes all records, if the revision was raised.
//!
//! It answers with the new revision, or with no row, and then nothing was written. Why that is enough at READ COMMITTED:
//!
//! - *A takeover between the snapshot and the lock is seen.* The statement's snapshot may show an older leader row, but a lock is taken
//!   on the newest version only: PostgreSQL waits for whoever changes it, follows the row to its newest version, and looks again
//!   whether number and token are those asked for. Where they are not, `fence` is empty.
//! - *A takeover after the lock waits.* It changes the number, a column under a unique index, which conflicts with FOR KEY SHARE (as
//!   FOR UPDATE does), and the lock lasts until the transaction is over. So whenever a commit becomes visible, its leadership is the
//!   current one. A renewal changes neither key and conflicts with nothing here.
//! - *The lock comes first.* `fence` is a condition without reference to the revision row, evaluated once before that row is touched;
//!   and were it evaluated later, the row would still only be changed for a row of `fence`, which is locked by then.
//! - *Of two writers at one revision one wins.* The second waits for the first one's row lock. If the first commits, the condition on the
//!   number is evaluated again on the newest version of the row, and no longer holds; if it is undone, the row is what it was.
//! - *Of two first writers one wins.* There is no row to lock, so the primary key decides: the second waits for the first one's insert,
//!   and then does nothing, or inserts where the first was undone.
//! - *A late copy fails.* One that was stopped on its way finds, whenever it goes on, the revision raised or the number changed.
//!   Records are only reached by whoever raised the revision, so there is no other order of locks, and no deadlock.
//! - *The parts see one snapshot*, and none the other's tables; what one hands to the next is what it returned. So it does not matter that
//!   the records' own snapshot may be older: a row that was changed since is updated in its newest version.
//!
//! Where no row comes back, a second statement reads fence, revision and `meta` in one snapshot and says why.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::{Connection, Row};
use tokio::time::{Instant, timeout, timeout_at};

use super::codec::{self, Key};
use super::{Error, Limits, Loaded, Store, sql};
use crate::assignment::state::Changes;
use crate::backend::Fence;
use crate::backend::postgres::{Server, is_certain, said};
use crate::types::{Revision, Token};

/// 256 pages are 3.4 MB in one message and some thirty milliseconds of one row lock; one commit covers 262,144 shards.
const LIMITS: Limits = Limits { pages: 256 };

/// What was being done, as errors say it.
const COMMITTING: &str = "committing";
const READING: &str = "reading the state";
const LOOKING: &str = "looking why a commit was refused";

/// See the module. `$1` to `$5`: number, token, kinds, pages, bodies.
macro_rules! commit {
    ($raised:literal) => {
        concat!(
            "WITH fence AS MATERIALIZED (SELECT FROM leader WHERE one = 1 AND number = $1 AND token = $2 FOR KEY SHARE), ",
            "raised AS (",
            $raised,
            " RETURNING number), ",
            "written AS (INSERT INTO record (kind, page, body) \
             SELECT its.kind, its.page, its.body FROM raised, unnest($3::text[], $4::bigint[], $5::bytea[]) AS its (kind, page, body) \
             ON CONFLICT (kind, page) DO UPDATE SET body = excluded.body) \
             SELECT number FROM raised"
        )
    };
}

/// `$6`: the revision that is replaced.
const COMMIT: &str =
    commit!("UPDATE revision SET number = number + 1 WHERE one = 1 AND number = $6 AND EXISTS (SELECT FROM fence)");

/// Records without a revision are a damaged state, not an empty one.
const FIRST_COMMIT: &str = commit!(
    "INSERT INTO revision (one, number) SELECT 1, 1 FROM fence WHERE NOT EXISTS (SELECT FROM record) ON CONFLICT DO NOTHING"
);

/// One row, whatever there is.
const LOOK: &str = "SELECT leader.number AS leader, leader.token, revision.number AS revision, record.body AS meta \
     FROM (SELECT) AS always LEFT JOIN leader ON true LEFT JOIN revision ON true \
     LEFT JOIN record ON record.kind = 'meta' AND record.page = 0";

/// See the module.
#[derive(Debug)]
pub struct PostgresStore {
    server: Arc<Server>,
    idle: Arc<Idle>,
}

/// The connection that the last request succeeded on, with its statements prepared.
#[derive(Debug, Default)]
struct Idle(Mutex<Option<(PgConnection, Instant)>>);

impl Idle {
    fn take(&self) -> Option<PgConnection> {
        self.held().take().map(|(connection, _)| connection)
    }

    /// One that was idle for longer than a request takes is asked first: what is sent on one that died meanwhile has no known outcome.
    async fn take_alive(&self, request_timeout: Duration) -> Option<PgConnection> {
        let (mut connection, since) = self.held().take()?;
        if since.elapsed() < request_timeout {
            return Some(connection);
        }
        timeout(request_timeout / 4, connection.ping()).await.ok()?.ok().map(|()| connection)
    }

    /// The one that was there ends.
    fn put(&self, connection: PgConnection) {
        *self.held() = Some((connection, Instant::now()));
    }

    fn held(&self) -> MutexGuard<'_, Option<(PgConnection, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PostgresStore {
    /// The store in a server's schema. Connects when it is used.
    pub fn new(server: Arc<Server>) -> PostgresStore {
        PostgresStore { server, idle: Arc::default() }
    }

    /// Says good-bye to the server, for the request time-out at most. The store can be used again, and then connects anew.
    pub async fn close(&self) {
        if let Some(connection) = self.idle.take() {
            // It ends with this process at the latest.
            timeout(self.server.request_timeout(), connection.close()).await.ok();
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn load(&self) -> Result<Option<Loaded>, Error> {
        // A new connection: one that was idle since a standby looked the last time may be dead, and one that has just won must not wait.
        // But where the server has none to spare, the one in hand is better than none.
        let mut connection = match self.server.connect("store").await {
            Ok(connection) => connection,
            Err(error) => self.idle.take().ok_or(error)?,
        };
        // A standby may have waited for longer than the tables stayed as they were.
        self.server.check(&mut connection).await?;
        let deadline = Instant::now() + self.server.request_timeout();
        // One statement, so one snapshot.
        let everything = "SELECT 'revision' AS kind, number AS page, ''::bytea AS body FROM revision \
             UNION ALL SELECT kind, page, body FROM record";
        let read = timeout_at(deadline, sqlx::query(everything).fetch_all(&mut connection)).await;
        let late = |_| Error::Unavailable { what: READING, source: "no answer within the request time-out".into() };
        let unreadable = |error| Error::from(self.server.failure(READING, error));
        let rows = read.map_err(late)?.map_err(unreadable)?;
        let row = |row: &PgRow| Ok((row.try_get("kind")?, row.try_get("page")?, row.try_get("body")?));
        let loaded = sql::assemble(rows.iter().map(|it| row(it).map_err(unreadable)))?;
        self.idle.put(connection);
        Ok(loaded)
    }

    async fn commit(&self, fence: &Fence, expected: Option<Revision>, changes: &Changes) -> Result<Revision, Error> {
        let attempt = Attempt {
            server: Arc::clone(&self.server),
            idle: Arc::clone(&self.idle),
            fence: fence.clone(),
            expected,
            name: (changes.meta.token, changes.meta.attempt),
            records: codec::encode(changes).map_err(super::unfit)?,
        };
        // In a task of its own: a caller that goes away does not take back what may already be on its way.
        match tokio::spawn(attempt.run()).await {
            Ok(outcome) => outcome,
            Err(ended) => Err(Error::OutcomeUnknown { what: COMMITTING, source: ended.into() }),
        }
    }

    fn limits(&self) -> Limits {
        LIMITS
    }
}

/// One commit under way.
struct Attempt {
    server: Arc<Server>,
    idle: Arc<Idle>,
    fence: Fence,
    expected: Option<Revision>,
    /// Token and attempt of its `meta`: what it is recognised by, once it landed.
    name: (Token, u64),
    records: Vec<(Key, Vec<u8>)>,
}

impl Attempt {
    async fn run(mut self) -> Result<Revision, Error> {
        let Fence::Sql { number, token } = self.fence else { return Err(Error::LeadershipLost) };
        let deadline = Instant::now() + self.server.request_timeout();
        let mut connection = match self.idle.take_alive(self.server.request_timeout()).await {
            Some(connection) => connection,
            None => self.server.connect("store").await?,
        };
        // Whatever fails below ends its connection, and with it what the server has not finished.
        let statement = self.statement(number, token);
        let unknown = |source| Error::OutcomeUnknown { what: COMMITTING, source };
        // The answer is whole only when the server has committed: the row alone comes before that.
        let answer = match timeout_at(deadline, statement.fetch_optional(&mut connection)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if is_certain(&error) => return Err(self.server.failure(COMMITTING, error).into()),
            Ok(Err(error)) => return Err(unknown(said(&error).into())),
            Err(_) => return Err(unknown(format!("no answer within {:?}", self.server.request_timeout()).into())),
        };
        let outcome = match answer {
            Some(number) => sql::revision_from(number),
            None => {
                let seen = match timeout_at(deadline, sqlx::query(LOOK).fetch_one(&mut connection)).await {
                    Ok(seen) => seen.map_err(|error| self.server.failure(LOOKING, error))?,
                    Err(_) => return Err(unavailable("no answer within the request time-out")),
                };
                self.refused(&seen)
            }
        };
        self.idle.put(connection);
        outcome
    }

    fn statement(&mut self, number: i64, token: Token) -> sqlx::query::QueryScalar<'static, sqlx::Postgres, i64, PgArguments> {
        let (mut kinds, mut pages, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
        for (key, body) in std::mem::take(&mut self.records) {
            kinds.push(key.kind.name());
            pages.push(i64::from(key.page));
            bodies.push(body);
        }
        let statement = sqlx::query_scalar(if self.expected.is_some() { COMMIT } else { FIRST_COMMIT });
        let statement = statement.bind(number).bind(token.0.to_be_bytes().to_vec()).bind(kinds).bind(pages).bind(bodies);
        match self.expected {
            // Nothing is stored at a revision beyond what the column holds.
            Some(expected) => statement.bind(i64::try_from(expected.0).unwrap_or(i64::MAX)),
            None => statement,
        }
    }

    /// Why nothing was written, or where this very commit landed before.
    fn refused(&self, seen: &PgRow) -> Result<Revision, Error> {
        let failed = |error| Error::from(self.server.failure(LOOKING, error));
        let leader: Option<i64> = seen.try_get("leader").map_err(failed)?;
        let token: Option<Vec<u8>> = seen.try_get("token").map_err(failed)?;
        let (Some(leader), Some(token)) = (leader, token) else { return Err(Error::LeadershipLost) };
        if !sql::holds(&self.fence, leader, &token) {
            return Err(Error::LeadershipLost);
        }
        let actual: Option<i64> = seen.try_get("revision").map_err(failed)?;
        let actual = actual.map(sql::revision_from).transpose()?;
        let meta: Option<Vec<u8>> = seen.try_get("meta").map_err(failed)?;
        let moved = Error::ConcurrentModification { expected: self.expected, actual };
        match (actual, meta) {
            (None, None) if self.expected.is_some() => Err(moved),
            (None, _) => Err(sql::missing(sql::REVISION)),
            (Some(_), None) => Err(sql::missing("meta")),
            // Somebody put back what was there before.
            (Some(_), Some(_)) if actual == self.expected => Err(unavailable("the state is at the expected revision again")),
            (Some(landed), Some(meta)) => {
                let meta = codec::decode_meta(&meta)?;
                if (meta.token, meta.attempt) == self.name { Ok(landed) } else { Err(moved) }
            }
        }
    }
}

fn unavailable(why: &'static str) -> Error {
    Error::Unavailable { what: LOOKING, source: why.into() }
}
