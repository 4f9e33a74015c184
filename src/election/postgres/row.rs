//! The leader row: every statement about it, and a claim on it that is given back whatever happens.
//!
//! All time in here is the database's, read with `clock_timestamp()` where a statement has got to, not where it began or queued; this
//! process gives durations alone. So its own clocks may say what they like.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::backend;
use crate::backend::postgres::{Server, application_name, is_certain};
use crate::clock;
use crate::types::{BootInstant, Token};

/// The pause before the next look whether a session has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The row as somebody saw it who has no part in it.
pub(super) struct Seen {
    /// All of it; every renewal changes it.
    version: String,
    /// How long one renewal lasts, or longer.
    pub(super) ttl: Duration,
    /// Who leads, or led, by its own description.
    pub(super) holder: String,
    /// Whether it ran out, or was given up.
    pub(super) is_over: bool,
    /// How long it lasts if it is not renewed; `None` where it never ends.
    pub(super) left: Option<Duration>,
}

/// Looks without locking anything. `None`: nobody has ever led here.
pub(super) async fn look(connection: &mut PgConnection) -> Result<Option<Seen>, sqlx::Error> {
    let look = "SELECT leader::text AS version, holder, ttl_ms, expires_at <= clock_timestamp() AS is_over, CASE WHEN isfinite(expires_at) \
         THEN ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint END AS left_ms FROM leader";
    let Some(row) = sqlx::query(look).fetch_optional(connection).await? else { return Ok(None) };
    let holder: String = row.try_get("holder")?;
    let left: Option<i64> = row.try_get("left_ms")?;
    let left = left.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
    let ttl: i64 = row.try_get("ttl_ms")?;
    Ok(Some(Seen {
        version: row.try_get("version")?,
        ttl: Duration::from_millis(ttl.unsigned_abs()),
        holder: holder.chars().take(500).collect(),
        is_over: row.try_get("is_over")?,
        left,
    }))
}

/// How long a row has not been renewed, by the clock of one who looks again and again. The database's own clock may have been set back,
/// or what the row says of its end may be absurd: who does not renew for a whole TTL does not lead.
#[derive(Default)]
pub(super) struct Watch(Option<(String, BootInstant)>);

impl Watch {
    /// For how long this very row has been there, at least.
    pub(super) fn unrenewed_for(&mut self, seen: &Seen) -> Duration {
        let now = clock::now();
        match &self.0 {
            Some((version, since)) if *version == seen.version => now.since(*since),
            _ => {
                self.0 = Some((seen.version.clone(), now));
                Duration::ZERO
            }
        }
    }
}

/// Renews the leadership that number and token name, where it is not over yet; `false`: it is over, another one has the row, or the
/// row is gone. `owed` is what a successor lets leases last longer if this is the last renewal.
///
/// Conflicts neither with a commit, which holds the row FOR KEY SHARE, nor with a takeover that waits for one. Who is kept waiting all
/// the same gets the row first and then looks at the clock.
pub(super) async fn renew(
    connection: &mut PgConnection,
    (number, token): (i64, Token),
    ttl: Duration,
    owed: Duration,
) -> Result<bool, sqlx::Error> {
    let renew = "WITH own AS MATERIALIZED (SELECT one FROM leader WHERE number = $1 AND token = $2 FOR NO KEY UPDATE) \
         UPDATE leader SET ttl_ms = $4, expires_at = clock_timestamp() + $3::bigint * interval '1 millisecond' \
         FROM own WHERE leader.one = own.one AND leader.expires_at > clock_timestamp()";
    let renew = sqlx::query(renew).bind(number).bind(bytes(token)).bind(millis(ttl)).bind(millis(owed));
    Ok(renew.execute(connection).await?.rows_affected() > 0)
}

/// A leadership that a claim got.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    pub(super) number: i64,
    /// When the request was sent that got it.
    pub(super) sent: BootInstant,
    /// For how long the leader before may still believe in its own: it did not give it up.
    pub(super) grace: Duration,
    /// When it was known that it was got: the grace counts from then.
    known: BootInstant,
}

impl Taken {
    /// The grace, for as long as it lasts: whoever follows meanwhile inherits it.
    pub(super) fn owed(&self) -> Duration {
        if clock::now() < self.known.after(self.grace) { self.grace } else { Duration::ZERO }
    }
}

/// What may have got, or may yet get, the leader row. Dropped without [`Claim::release`], it is given back in the background.
pub(super) struct Claim {
    server: Arc<Server>,
    token: Token,
    /// The one that it is made on: what gives it back on the same one comes after it.
    pub(super) connection: Option<PgConnection>,
    /// Whether the row may carry the token, now or later.
    may_hold: bool,
    /// What was got, where the answer came.
    taken: Option<Taken>,
}

impl Claim {
    /// One that has asked for nothing yet, by a token that nobody else has.
    pub(super) fn draw(server: Arc<Server>) -> Claim {
        Claim { server, token: Token::draw(), connection: None, may_hold: false, taken: None }
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Its connection, made where there is none.
    pub(super) async fn connection(&mut self) -> Result<&mut PgConnection, backend::Error> {
        connected(&self.server, &mut self.connection, self.token).await
    }

    /// Takes the row where it is over, or is still the one that was seen by somebody who knows that it is; `None`: it is not. One
    /// statement, so that nobody who is paused holds the row.
    ///
    /// `ttl_ms` is from then on at least the grace that is owed: a successor has nothing but the row to learn it from.
    pub(super) async fn take(
        &mut self,
        holder: &str,
        ttl: Duration,
        whatever_it_says: Option<&Seen>,
    ) -> Result<Option<Taken>, backend::Error> {
        // FOR UPDATE first: it waits for a commit that goes on, and then looks at the row as it is by then. What was given up, and owed
        // nothing, ended at -infinity.
        let take = "WITH before AS MATERIALIZED \
             (SELECT one, CASE WHEN expires_at = '-infinity' THEN 0 ELSE ttl_ms END AS grace_ms FROM leader \
             WHERE expires_at <= clock_timestamp() OR leader::text = $4 FOR UPDATE) \
             UPDATE leader SET number = leader.number + 1, token = $1, holder = $2, ttl_ms = GREATEST($3::bigint, before.grace_ms), \
             expires_at = clock_timestamp() + $3::bigint * interval '1 millisecond' FROM before WHERE leader.one = before.one \
             RETURNING leader.number, before.grace_ms";
        let version = whatever_it_says.map(|seen| seen.version.as_str());
        self.ask(sqlx::query(take).bind(bytes(self.token)).bind(holder).bind(millis(ttl)).bind(version)).await
    }

    /// Makes the row where nobody has ever led; `None`: somebody else was faster. A row that was there and was deleted may leave a leader
    /// that does not know it yet, of a TTL that nobody knows; ours is as good a guess as any.
    pub(super) async fn make(&mut self, holder: &str, ttl: Duration) -> Result<Option<Taken>, backend::Error> {
        let make = "INSERT INTO leader (one, number, token, holder, ttl_ms, expires_at) \
             VALUES (1, 1, $1, $2, $3, clock_timestamp() + $3 * interval '1 millisecond') \
             ON CONFLICT DO NOTHING RETURNING number, ttl_ms AS grace_ms";
        self.ask(sqlx::query(make).bind(bytes(self.token)).bind(holder).bind(millis(ttl))).await
    }

    async fn ask(&mut self, statement: Query<'_, Postgres, PgArguments>) -> Result<Option<Taken>, backend::Error> {
        let server = Arc::clone(&self.server);
        let failed = |error| server.failure("taking the leader row", error);
        let connection = connected(&server, &mut self.connection, self.token).await?;
        self.may_hold = true;
        let sent = clock::now();
        match statement.fetch_optional(connection).await {
            Ok(Some(row)) => {
                let number = row.try_get("number").map_err(failed)?;
                let grace: i64 = row.try_get("grace_ms").map_err(failed)?;
                let taken = Taken { number, sent, grace: Duration::from_millis(grace.unsigned_abs()), known: clock::now() };
                self.taken = Some(taken);
                Ok(self.taken)
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
    /// given back. A request for it that is still under way on another connection is ended first: it might get the row later.
    ///
    /// While the grace of its own takeover lasts, or where it is not known what was got, the row is left as one that ran out: the next
    /// one owes the grace then.
    pub(super) async fn release(mut self, within: Duration) -> Result<(), backend::Error> {
        let (owes, connection) = (self.owes(), self.connection.take());
        let released = if self.may_hold { release(&self.server, self.token, owes, connection, within).await } else { Ok(()) };
        // Not before: a future that is dropped half-way leaves it to `drop`.
        self.may_hold = false;
        released
    }

    fn owes(&self) -> bool {
        self.taken.is_none_or(|taken| !taken.owed().is_zero())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.may_hold {
            return;
        }
        // Without a runtime the process ends, and the row runs out.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (server, token, owes, connection) = (Arc::clone(&self.server), self.token, self.owes(), self.connection.take());
        runtime.spawn(async move {
            if let Err(error) = release(&server, token, owes, connection, server.request_timeout()).await {
                let error = &error as &dyn std::error::Error;
                warn!(error, "a leadership that was left behind was not given up; it runs out by itself");
            }
        });
    }
}

async fn release(
    server: &Server,
    token: Token,
    owes: bool,
    connection: Option<PgConnection>,
    within: Duration,
) -> Result<(), backend::Error> {
    let what = "giving the leadership up";
    let attempt = async |mut connection: PgConnection| {
        // By the token alone: the number may not be known.
        let release = "WITH released AS (UPDATE leader \
             SET expires_at = CASE WHEN $3 THEN clock_timestamp() ELSE '-infinity' END WHERE token = $1 RETURNING one) \
             SELECT pg_notify($2, '') FROM released";
        let release = sqlx::query(release).bind(bytes(token)).bind(server.schema()).bind(owes).execute(&mut connection);
        release.await.map(drop).map_err(|error| server.failure(what, error))
    };
    let release = async {
        if let Some(connection) = connection
            && let Ok(Ok(())) = timeout(within / 2, attempt(connection)).await
        {
            return Ok(());
        }
        let mut connection = server.connect("releasing").await?;
        end_sessions(&mut connection, token).await.map_err(|error| server.failure(what, error))?;
        attempt(connection).await
    };
    let late = |_| Err(backend::Error::Unavailable { what, source: format!("no answer within {within:?}").into() });
    timeout(within, release).await.unwrap_or_else(late)
}

/// Ends every session that was opened for this token, and returns when there is none any more: one whose client is gone may still wait
/// for the row, behind a commit for instance, and then take it.
async fn end_sessions(connection: &mut PgConnection, token: Token) -> Result<(), sqlx::Error> {
    // By its name, not by a process id, which may be somebody else's by now. A role may always end its own sessions.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND usename = current_user";
    let name = application_name(&purpose(token));
    while !sqlx::query(end).bind(&name).fetch_all(&mut *connection).await?.is_empty() {
        sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

/// What a session is for that may hold the row under this token.
fn purpose(token: Token) -> String {
    format!("leading {:032x}", token.0)
}

/// A session by whose name [`Claim::release`] finds it, whatever has become of its client.
pub(super) async fn connect(server: &Server, token: Token) -> Result<PgConnection, backend::Error> {
    server.connect(&purpose(token)).await
}

async fn connected<'a>(
    server: &Server,
    connection: &'a mut Option<PgConnection>,
    token: Token,
) -> Result<&'a mut PgConnection, backend::Error> {
    let connected = match connection.take() {
        Some(connected) => connected,
        None => connect(server, token).await?,
    };
    Ok(connection.insert(connected))
}

fn bytes(token: Token) -> Vec<u8> {
    token.0.to_be_bytes().to_vec()
}

fn millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)
}
