//! Leadership on PostgreSQL: one row, which says who leads and until when by the database's clock.
//!
//! ```text
//! look ─ over, or nobody has led ──────────────────────────────── take ─ won: a task renews the row every third of the TTL
//!   └─ held ─ LISTEN ─ look ─ wait: NOTIFY, its end, TTL/3 ─ look ─┘
//! ```
//! A row that is over is taken by whoever comes first, whoever had it. Whoever gives it up says so on a channel of the schema's name, so
//! that a hand-over takes as long as that takes; a wake-up that is lost costs a third of a TTL at most. Whatever ends a campaign after it
//! asked for the row, a future that is dropped included, ends in `row::Claim::release`.
//!
//! What a leader believes does not come from the row: it counts on its own clock from the *send* of the last renewal that was
//! acknowledged. The database counts from later, so it gives the row to nobody else before, unless its clock jumps; for that there is
//! the grace of a takeover (L8), which the row hands on until somebody has led for as long as it lasts. A row that says it lasts, but was
//! not renewed for a whole TTL by the clock of one who waits, is over too.

mod keeper;
mod row;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use self::keeper::Keeper;
use self::row::{Claim, Seen, Taken, Watch};
use super::candidacy::{Attempt, Candidacy, FIRST_PAUSE, KnownLeader, LONGEST_PAUSE, Said};
use super::tenure::Tenure;
use super::{Election, Error, Holder, Leadership, Patience};
use crate::backend::postgres::Server;
use crate::backend::settings::Invalid;
use crate::backend::{self, BoxError, Fence};

/// What giving back takes at most where somebody waits for the end of this process.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long one who stepped down lets others go first. Far more than they need to wake and take the row.
const COURTESY: Duration = Duration::from_millis(300);

/// What was being done, as errors say it.
const LISTENING: &str = "listening for the end of a leadership";
const WAITING: &str = "waiting for the end of a leadership";

/// What an election is run with.
#[derive(Clone)]
pub struct Options {
    /// How long a leadership lasts without renewal: whole seconds, at least 2, and at least twice the time of a request.
    pub ttl: Duration,
    /// Who stands, and how. What it waits for is said no more often than it looks, which is every third of the TTL.
    pub candidacy: Candidacy,
}

/// See the module.
pub struct PostgresElection {
    server: Arc<Server>,
    options: Options,
    leader: KnownLeader,
}

impl PostgresElection {
    /// An election in the schema of `server`. Connects to nothing yet. A campaign has two connections of its own, a leadership one.
    ///
    /// # Errors
    /// Where the TTL is one that cannot be kept.
    pub fn new(server: Arc<Server>, options: Options) -> Result<PostgresElection, Invalid> {
        super::check_ttl(options.ttl, server.request_timeout())?;
        Ok(PostgresElection { server, options, leader: KnownLeader::unknown() })
    }

    /// From the first look to the win.
    async fn compete(&self, claim: &mut Claim) -> Result<Taken, Error> {
        // Where the row is free, nobody has to be listened to.
        let mut listener: Option<PgListener> = None;
        let mut said = Said::default();
        let mut watch = Watch::default();
        let mut pause = Duration::ZERO;
        loop {
            let connection = self.bounded("connecting", claim.connection()).await?;
            let seen = self.bounded("looking who leads", self.look(connection)).await?;
            let unrenewed_for = seen.as_ref().map_or(Duration::ZERO, |seen| watch.unrenewed_for(seen));
            let Some(held) = seen.as_ref().filter(|seen| !seen.is_over && unrenewed_for < seen.ttl) else {
                let (holder, ttl) = (&self.options.candidacy.holder, self.options.ttl);
                let stale = seen.as_ref().filter(|seen| !seen.is_over);
                if let Some(Seen { holder, left, .. }) = stale {
                    warn!(holder, ?left, "the leader row was not renewed for {unrenewed_for:?}: it is over, whatever it says");
                }
                let taken = match &seen {
                    Some(_) => self.bounded("taking the leader row", claim.take(holder, ttl, stale)).await?,
                    None => self.bounded("making the leader row", claim.make(holder, ttl)).await?,
                };
                if let Some(taken) = taken {
                    return Ok(taken);
                }
                // Somebody else was faster, or something keeps a free row from being taken, and that not for a moment only.
                if !pause.is_zero() && self.options.candidacy.patience == Patience::FailAtOnce {
                    return Err(store_error("taking the leader row", "it is free, and again it could not be taken"));
                }
                sleep(pause).await;
                pause = FIRST_PAUSE;
                continue;
            };
            pause = Duration::ZERO;
            if self.options.candidacy.patience == Patience::FailAtOnce {
                let what = format!("the leadership in the schema {} of the database", self.server.schema());
                return Err(Error::HeldElsewhere { what, holder: held.holder.clone() });
            }
            self.announce(held, &mut said);
            match &mut listener {
                Some(listener) => {
                    let unless_renewed = held.ttl.saturating_sub(unrenewed_for);
                    self.wait(listener, held.left.unwrap_or(unless_renewed).min(unless_renewed)).await?;
                }
                // And once more around: what was given up before the channel was open was not heard.
                None => listener = Some(self.bounded(LISTENING, self.listen()).await?),
            }
        }
    }

    async fn look(&self, connection: &mut PgConnection) -> Result<Option<Seen>, backend::Error> {
        row::look(connection).await.map_err(|error| self.server.failure("looking who leads", error))
    }

    async fn listen(&self) -> Result<PgListener, backend::Error> {
        let failed = |error| self.server.failure(LISTENING, error);
        // The one way to be told of notifications. It must not connect anew behind our back: what is said meanwhile is lost.
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(self.server.options("waiting"));
        let mut listener = PgListener::connect_with(&pool).await.map_err(failed)?;
        listener.ignore_pool_close_event(true);
        listener.eager_reconnect(false);
        listener.listen(self.server.schema()).await.map_err(failed)?;
        Ok(listener)
    }

    /// Waits until it is time to look again: somebody gave the leadership up, it is over, or a third of a TTL has passed.
    async fn wait(&self, listener: &mut PgListener, left: Duration) -> Result<(), Error> {
        let longest = self.options.ttl / 3;
        tokio::select! {
            heard = listener.try_recv() => match heard {
                Ok(Some(_)) => Ok(()),
                Ok(None) => Err(store_error(WAITING, "the connection that listens broke")),
                Err(error) => Err(store_error(WAITING, error)),
            },
            () = sleep(left.min(longest)) => {
                // A connection that went deaf looks like one on which nothing was said.
                let ask = async { sqlx::query("SELECT 1").execute(listener).await.map_err(|error| self.server.failure(WAITING, error)) };
                self.bounded(WAITING, ask).await.map(drop)
            }
        }
    }

    /// Says who leads: to who asks as soon as it is seen, in the log where it is news, and every so often.
    fn announce(&self, held: &Seen, said: &mut Said) {
        let is_news = self.leader.seen(Some(held.holder.clone()));
        if said.is_due(is_news, self.options.candidacy.announce_every) {
            info!(leader = held.holder, "waiting for the leadership, as a standby");
        }
    }

    fn leadership(&self, mut claim: Claim, taken: Taken) -> Leadership {
        let (server, token, ttl) = (Arc::clone(&self.server), claim.token(), self.options.ttl);
        let within = RELEASE_TIMEOUT.min(server.request_timeout());
        let tenure = Tenure::new(ttl, taken.sent, self.options.candidacy.pulse.clone());
        let (belief, fence) = (tenure.belief(), Fence::Sql { number: taken.number, token });
        let (stop, (lose, lost)) = (CancellationToken::new(), oneshot::channel());
        let keeper = Keeper { server, taken, token, ttl, tenure };
        let keeping = tokio::spawn(keeper.run(claim.connection.take(), stop.clone(), lose));
        let holder = PostgresHolder { keeping: AbortOnDropHandle::new(keeping), stop, claim, within };
        Leadership::new(fence, belief, lost, Box::new(holder)).with_takeover_grace(taken.grace)
    }

    /// Tables that are not as they were when this process looked at them are for somebody else to look at again.
    async fn bounded<T>(&self, what: &'static str, request: impl Future<Output = Result<T, backend::Error>>) -> Result<T, Error> {
        let within = self.server.request_timeout();
        let answer = timeout(within, request).await.map_err(|_| store_error(what, format!("no answer within {within:?}")))?;
        answer.map_err(|error| match error {
            corrupt @ backend::Error::Corrupt { .. } => Error::Displaced(corrupt.to_string()),
            error @ backend::Error::Unavailable { .. } => store_error(what, error),
        })
    }
}

#[async_trait::async_trait]
impl Attempt for PostgresElection {
    async fn attempt(&self, shutdown: &CancellationToken) -> Result<Leadership, Error> {
        let mut claim = Claim::draw(Arc::clone(&self.server));
        let outcome = tokio::select! {
            biased;
            () = shutdown.cancelled() => Err(Error::Cancelled),
            outcome = self.compete(&mut claim) => outcome,
        };
        match outcome {
            Ok(taken) => Ok(self.leadership(claim, taken)),
            Err(error) => {
                let within = RELEASE_TIMEOUT.min(self.server.request_timeout());
                if let Err(failure) = claim.release(within).await {
                    let failure = &failure as &dyn std::error::Error;
                    warn!(error = failure, "what a campaign may have got was not given up; it blocks others until it runs out");
                }
                Err(error)
            }
        }
    }
}

#[async_trait::async_trait]
impl Election for PostgresElection {
    /// With [`Patience::Wait`] it goes on until it is won or `shutdown` is cancelled: a database that does not answer only means another
    /// attempt.
    async fn campaign(&self, shutdown: &CancellationToken) -> Result<Leadership, Error> {
        // No longer than a wake-up may be late by.
        let longest_pause = LONGEST_PAUSE.min(self.options.ttl / 3);
        self.options.candidacy.campaign(shutdown, &self.leader, longest_pause, self).await
    }

    fn leader(&self) -> Option<watch::Receiver<Option<String>>> {
        Some(self.leader.subscribe())
    }

    fn courtesy(&self) -> Duration {
        COURTESY.min(self.options.ttl / 4)
    }
}

struct PostgresHolder {
    keeping: AbortOnDropHandle<Option<PgConnection>>,
    stop: CancellationToken,
    claim: Claim,
    within: Duration,
}

#[async_trait::async_trait]
impl Holder for PostgresHolder {
    async fn release(self: Box<Self>) -> Result<(), BoxError> {
        let PostgresHolder { keeping, stop, mut claim, within } = *self;
        // At once, unless it panicked: it waits for nothing else any more. Its connection saves connecting.
        stop.cancel();
        claim.connection = keeping.await.ok().flatten();
        Ok(claim.release(within).await?)
    }
}

fn store_error(what: &'static str, source: impl Into<BoxError>) -> Error {
    Error::Store { what, source: source.into() }
}

impl fmt::Debug for PostgresElection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresElection").field("server", &self.server).finish_non_exhaustive()
    }
}
