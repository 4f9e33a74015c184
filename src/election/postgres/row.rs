//! The leader row: every statement about it, and a claim on it that is given back whatever happens.
//!
//! All time in here is the database's, read with `clock_timestamp()` where a statement has got to, not where it began or queued; this
//! process gives durations alone. So its own clocks may say what they like.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{PgConnection, Row};
use tokio::time::timeout;
use tracing::warn;

use crate::backend;
use crate::backend::postgres::{Server, is_certain};
use crate::clock;
use crate::types::{BootInstant, Token};

/// The row as somebody saw it who has no part in it.
pub(super) struct Seen {
    /// Who leads, or led, by its own description.
    pub(super) holder: String,
    /// Whether it ran out, or was given up.
    pub(super) is_over: bool,
    /// How long it lasts if it is not renewed; `None` where it never ends.
    pub(super) left: Option<Duration>,
}

/// Looks without locking anything. `None`: nobody has ever led here.
pub(super) async fn look(connection: &mut PgConnection) -> Result<Option<Seen>, sqlx::Error> {
    let look = "SELECT holder, expires_at <= clock_timestamp() AS is_over, CASE WHEN isfinite(expires_at) \
         THEN ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint END AS left_ms FROM leader";
    let Some(row) = sqlx::query(look).fetch_optional(connection).await? else { return Ok(None) };
    let holder: String = row.try_get("holder")?;
    let left: Option<i64> = row.try_get("left_ms")?;
    let left = left.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
    Ok(Some(Seen { holder: holder.chars().take(500).collect(), is_over: row.try_get("is_over")?, left }))
}

/// Renews the leadership that number and token name, where it is not over yet; `false`: it is over, another one has the row, or the
/// row is gone.
///
/// Conflicts neither with a commit, which holds the row FOR KEY SHARE, nor with a takeover that waits for one. Who is kept waiting all
/// the same gets the row first and then looks at the clock.
pub(super) async fn renew(connection: &mut PgConnection, number: i64, token: Token, ttl: Duration) -> Result<bool, sqlx::Error> {
    let renew = "WITH own AS MATERIALIZED (SELECT one FROM leader WHERE number = $1 AND token = $2 FOR NO KEY UPDATE) \
         UPDATE leader SET expires_at = clock_timestamp() + $3 * interval '1 millisecond' \
         FROM own WHERE leader.one = own.one AND leader.expires_at > clock_timestamp()";
    let renewed = sqlx::query(renew).bind(number).bind(bytes(token)).bind(millis(ttl)).execute(connection).await?;
    Ok(renewed.rows_affected() > 0)
}

/// A leadership that a claim got.
pub(super) struct Taken {
    pub(super) number: i64,
    /// When the request was sent that got it.
    pub(super) sent: BootInstant,
    /// For how long the leader before may still believe in its own: it did not give it up.
    pub(super) grace: Duration,
}

/// What may have got, or may yet get, the leader row. Dropped without [`Claim::release`], it is given back in the background.
pub(super) struct Claim {
    server: Arc<Server>,
    token: Token,
    /// The one that it is made on: what gives it back on the same one comes after it.
    pub(super) connection: Option<PgConnection>,
    /// Whether the row may carry the token, now or later.
    may_hold: bool,
}

impl Claim {
    /// One that has asked for nothing yet, by a token that nobody else has.
    pub(super) fn draw(server: Arc<Server>) -> Claim {
        Claim { server, token: Token::draw(), connection: None, may_hold: false }
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Its connection, made where there is none.
    pub(super) async fn connection(&mut self) -> Result<&mut PgConnection, backend::Error> {
        connected(&self.server, &mut self.connection).await
    }

    /// Takes the row where it is over; `None`: it is not. One statement, so that nobody who is paused holds the row.
    pub(super) async fn take(&mut self, holder: &str, ttl: Duration) -> Result<Option<Taken>, backend::Error> {
        // FOR UPDATE first: it waits for a commit that goes on, and then looks at the row as it is by then. What was given up has no
        // finite end.
        let take = "WITH before AS MATERIALIZED \
             (SELECT one, ttl_ms, isfinite(expires_at) AS ran_out FROM leader WHERE expires_at <= clock_timestamp() FOR UPDATE) \
             UPDATE leader SET number = leader.number + 1, token = $1, holder = $2, ttl_ms = $3, \
             expires_at = clock_timestamp() + $3 * interval '1 millisecond' FROM before WHERE leader.one = before.one \
             RETURNING leader.number, CASE WHEN before.ran_out THEN before.ttl_ms ELSE 0 END AS grace_ms";
        self.ask(take, holder, ttl).await
    }

    /// Makes the row where nobody has ever led; `None`: somebody else was faster. A row that was there and was deleted may leave a leader
    /// that does not know it yet, of a TTL that nobody knows; ours is as good a guess as any.
    pub(super) async fn make(&mut self, holder: &str, ttl: Duration) -> Result<Option<Taken>, backend::Error> {
        let make = "INSERT INTO leader (one, number, token, holder, ttl_ms, expires_at) \
             VALUES (1, 1, $1, $2, $3, clock_timestamp() + $3 * interval '1 millisecond') \
             ON CONFLICT (one) DO NOTHING RETURNING number, ttl_ms AS grace_ms";
        self.ask(make, holder, ttl).await
    }

    async fn ask(&mut self, statement: &'static str, holder: &str, ttl: Duration) -> Result<Option<Taken>, backend::Error> {
        let (server, token) = (Arc::clone(&self.server), bytes(self.token));
        let failed = |error| server.failure("taking the leader row", error);
        let connection = connected(&server, &mut self.connection).await?;
        self.may_hold = true;
        let sent = clock::now();
        let answer = sqlx::query(statement).bind(token).bind(holder).bind(millis(ttl)).fetch_optional(connection).await;
        match answer {
            Ok(Some(row)) => {
                let number = row.try_get("number").map_err(failed)?;
                let grace: i64 = row.try_get("grace_ms").map_err(failed)?;
                Ok(Some(Taken { number, sent, grace: Duration::from_millis(grace.unsigned_abs()) }))
            }
            Ok(None) => {
                self.may_hold = false;
                Ok(None)
            }
            Err(error) => {
                self.may_hold = !is_certain(&error);
                Err(failed(error))
            }
        }
    }

    /// Gives the row back and wakes those who wait for it, within that time. A row that was lost already, or was never got, counts as
    /// given back. A request for it that is still under way on a connection that broke may get it later; it then runs out by itself.
    pub(super) async fn release(mut self, within: Duration) -> Result<(), backend::Error> {
        let released =
            if self.may_hold { release(&self.server, self.token, self.connection.take(), within).await } else { Ok(()) };
        // Not before: a future that is dropped half-way leaves it to `drop`.
        self.may_hold = false;
        released
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.may_hold {
            return;
        }
        // Without a runtime the process ends, and the row runs out.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (server, token, connection) = (Arc::clone(&self.server), self.token, self.connection.take());
        runtime.spawn(async move {
            if let Err(error) = release(&server, token, connection, server.request_timeout()).await {
                let error = &error as &dyn std::error::Error;
                warn!(error, "a leadership that was left behind was not given up; it runs out by itself");
            }
        });
    }
}

async fn release(
    server: &Server,
    token: Token,
    connection: Option<PgConnection>,
    within: Duration,
) -> Result<(), backend::Error> {
    let what = "giving the leadership up";
    let attempt = async |mut connection: PgConnection| {
        // By the token alone: the number may not be known.
        let release = "WITH released AS (UPDATE leader SET expires_at = '-infinity' WHERE token = $1 RETURNING one) \
             SELECT pg_notify($2, '') FROM released";
        let release = sqlx::query(release).bind(bytes(token)).bind(server.schema()).execute(&mut connection);
        release.await.map(drop).map_err(|error| server.failure(what, error))
    };
    if let Some(connection) = connection
        && let Ok(Ok(())) = timeout(within / 2, attempt(connection)).await
    {
        return Ok(());
    }
    let anew = async { attempt(server.connect("releasing").await?).await };
    let late = |_| Err(backend::Error::Unavailable { what, source: format!("no answer within {within:?}").into() });
    timeout(within, anew).await.unwrap_or_else(late)
}

async fn connected<'a>(
    server: &Server,
    connection: &'a mut Option<PgConnection>,
) -> Result<&'a mut PgConnection, backend::Error> {
    let connected = match connection.take() {
        Some(connected) => connected,
        None => server.connect("leading").await?,
    };
    Ok(connection.insert(connected))
}

fn bytes(token: Token) -> Vec<u8> {
    token.0.to_be_bytes().to_vec()
}

fn millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)
}
