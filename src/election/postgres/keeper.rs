//! Keeps a leadership, on a connection that nothing else uses.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::BoxError;
use super::row::{self, Taken};
use crate::backend::postgres::Server;
use crate::backend::with_causes;
use crate::clock;
use crate::election::Lost;
use crate::election::tenure::Tenure;
use crate::types::{BootInstant, Token};

/// From an attempt that failed to the next: the first pause. It doubles up to a quarter of the interval.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Why nothing was renewed where nothing failed.
const NOTHING_SENT: &str =
    "the last request was acknowledged, and none was sent since: this process, or its coordinator, did not get to run";

/// Renews one leadership. A renewal is itself the look whether the row is still the own one: it never writes on the word of a read.
pub(super) struct Keeper {
    pub(super) server: Arc<Server>,
    pub(super) taken: Taken,
    pub(super) token: Token,
    pub(super) ttl: Duration,
    pub(super) tenure: Tenure,
}

impl Keeper {
    /// Renews until it cannot, and says so, or until `stop` is cancelled. Returns a connection that works, where it has one.
    pub(super) async fn run(
        self,
        mut connection: Option<PgConnection>,
        stop: CancellationToken,
        lose: oneshot::Sender<Lost>,
    ) -> Option<PgConnection> {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            reason = self.keep(&mut connection) => {
                // First of all, whatever the row says.
                self.tenure.end();
                // Nobody may be listening any more.
                lose.send(reason).ok();
            }
        }
        connection
    }

    async fn keep(&self, connection: &mut Option<PgConnection>) -> Lost {
        let interval = self.tenure.interval();
        let (mut next, mut last) = (self.taken.sent.after(interval), NOTHING_SENT.to_owned());
        let mut pause = RECONNECT_PAUSE;
        loop {
            let renewal = async {
                clock::sleep_until(next).await;
                self.tenure.fresh_pulse().await;
                self.renew(connection).await
            };
            let outcome = tokio::select! {
                biased;
                () = self.tenure.deadline_passed() => return Lost::Expired(last),
                age = self.tenure.pulse_stopped() => {
                    return Lost::Expired(format!("the coordinator has not turned for {age:?}, so the leadership was not renewed"));
                }
                outcome = renewal => outcome,
            };
            match outcome {
                Ok(Some(sent)) => {
                    self.tenure.acknowledged(sent);
                    next = sent.after(interval);
                    NOTHING_SENT.clone_into(&mut last);
                    pause = RECONNECT_PAUSE;
                }
                Ok(None) => {
                    let why = "the leader row is another leadership's, or over by the database's clock, or gone";
                    return Lost::Taken(why.to_owned());
                }
                Err(error) => {
                    warn!(error = &*error as &dyn std::error::Error, "the leadership is not being renewed; connecting again");
                    last = with_causes(&*error);
                    next = clock::now().after(pause);
                    pause = (pause * 2).min(interval / 4);
                }
            }
        }
    }

    /// One renewal, and when it was sent; `None`: there is nothing any more that could be renewed. Takes the connection, and puts it back
    /// only where the answer came: one that an answer may still come on is not used again.
    async fn renew(&self, connection: &mut Option<PgConnection>) -> Result<Option<BootInstant>, BoxError> {
        // So that at least two attempts fit into the time that is left after a renewal was due.
        let within = self.server.request_timeout().min(self.tenure.interval());
        let mut held = connection.take();
        let attempt = async {
            let mut own = match held.take() {
                Some(own) => own,
                None => row::connect(&self.server, self.token).await?,
            };
            let sent = clock::now();
            let owed = self.ttl.max(self.taken.owed());
            let renewed = row::renew(&mut own, (self.taken.number, self.token), self.ttl, owed).await;
            let renewed = renewed.map_err(|error| self.server.failure("renewing the leadership", error))?;
            Ok::<_, BoxError>((own, renewed.then_some(sent)))
        };
        let (own, renewed) = timeout(within, attempt).await.map_err(|_| format!("no answer within {within:?}"))??;
        *connection = Some(own);
        Ok(renewed)
    }
}
