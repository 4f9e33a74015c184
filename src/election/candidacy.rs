//! What stands for election, and how it bears with waiting and with failures, wherever the leadership is kept.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Error, Leadership, Patience, Pulse};

/// The pause after a first attempt that failed.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest; each is twice the one before. An attempt that took longer than this begins with the first pause again.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What every election is run with.
#[derive(Clone)]
pub struct Candidacy {
    /// Describes this process to people who ask who leads: host, pid, address. One line, without NUL.
    pub holder: String,
    /// Says whether the coordinator turns.
    pub pulse: Pulse,
    /// What a campaign does where another process leads, or the store does not answer.
    pub patience: Patience,
    /// How often somebody who waits says in its log for what, even where that has not changed: 30 s but in tests.
    pub announce_every: Duration,
    /// Called for each attempt that failed, before it is tried again.
    pub on_failure: Arc<dyn Fn() + Send + Sync>,
}

/// One attempt at a leadership.
#[async_trait::async_trait]
pub(super) trait Attempt: Sync {
    /// Waits for its turn. Whatever ends it without a win, `shutdown` included, leaves nothing behind that others would wait for.
    async fn attempt(&self, shutdown: &CancellationToken) -> Result<Leadership, Error>;
}

impl Candidacy {
    /// Attempts it until that succeeds, `shutdown` is cancelled, or it fails in a way that no other attempt would mend; with pauses that
    /// grow to `longest_pause`. Who has no patience attempts it once. What was known of the leader is forgotten after a failure: it may be
    /// gone by now.
    pub(super) async fn campaign(
        &self,
        shutdown: &CancellationToken,
        leader: &KnownLeader,
        longest_pause: Duration,
        election: &impl Attempt,
    ) -> Result<Leadership, Error> {
        self.pulse.rest();
        let mut pause = FIRST_PAUSE;
        loop {
            let begun = Instant::now();
            let error = match election.attempt(shutdown).await {
                Err(error @ Error::Store { .. }) if self.patience == Patience::Wait => error,
                end => return end,
            };
            (self.on_failure)();
            leader.forget();
            if begun.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            warn!(error = &error as &dyn std::error::Error, "an attempt to become leader failed; the next one is in {pause:?}");
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Err(Error::Cancelled),
                () = sleep(pause) => pause = (pause * 2).min(longest_pause),
            }
        }
    }
}

/// Who leads, by its own description, as far as somebody who waits has seen.
pub(super) struct KnownLeader(watch::Sender<Option<String>>);

impl KnownLeader {
    /// Nobody was seen.
    pub(super) fn unknown() -> KnownLeader {
        KnownLeader(watch::Sender::new(None))
    }

    /// For those who ask.
    pub(super) fn subscribe(&self) -> watch::Receiver<Option<String>> {
        self.0.subscribe()
    }

    /// This is who leads now; whether that is news.
    pub(super) fn seen(&self, leader: Option<String>) -> bool {
        self.0.send_if_modified(|known| std::mem::replace(known, leader.clone()) != leader)
    }

    fn forget(&self) {
        self.seen(None);
    }
}

/// When something was last said that is to be said now and then.
#[derive(Default)]
pub(super) struct Said(Option<Instant>);

impl Said {
    /// Whether it is to be said now: it is news, or was not said for that long.
    pub(super) fn is_due(&mut self, is_news: bool, every: Duration) -> bool {
        let is_due = is_news || self.0.is_none_or(|at| at.elapsed() >= every);
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
    }
}
