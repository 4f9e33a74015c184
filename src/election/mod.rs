//! Who may write. There is no `is_leader()`: either you hold a [`Leadership`] and work until it is lost, or you do not, and wait.

mod candidacy;
pub mod etcd;
pub mod host;
pub mod postgres;
mod tenure;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::backend::settings::Invalid;
use crate::backend::{BoxError, Fence};
use crate::clock;
use crate::types::BootInstant;

pub use candidacy::Candidacy;

/// A leadership that was won.
///
/// Dropped without [`Leadership::release`] it ends on its own when the process ends or its time is over.
pub struct Leadership {
    fence: Fence,
    belief: Belief,
    takeover_grace: Duration,
    lost: tokio::sync::oneshot::Receiver<Lost>,
    holder: Box<dyn Holder>,
}

/// Until when a leader may believe that it leads (L4): until the instant in the channel, which renewals move; counted from the *send* of
/// the last acknowledged renewal, or from the last beat. It may be moved on after it has passed: nobody had taken the leadership meanwhile.
#[derive(Clone, Debug)]
pub struct Belief(pub watch::Receiver<BootInstant>);

impl Belief {
    /// The deadline as it is now.
    pub fn deadline(&self) -> BootInstant {
        *self.0.borrow()
    }
}

/// When the coordinator last turned, as whoever keeps a leadership alive sees it: a leader that hangs is not kept alive. Clones share one.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// One that says nothing yet.
    pub fn new() -> Pulse {
        Pulse::default()
    }

    /// The coordinator turned.
    pub fn beat(&self) {
        let nanos = u64::try_from(clock::now().0.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(nanos, Ordering::Relaxed);
    }

    /// There is no coordinator that could hang. A campaign begins with this.
    pub fn rest(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// How long ago it last turned; `None` where there is nothing that turns.
    pub fn age(&self) -> Option<Duration> {
        let nanos = self.0.load(Ordering::Relaxed);
        (nanos > 0).then(|| clock::now().since(BootInstant(Duration::from_nanos(nanos))))
    }
}

/// Why a leadership was lost. There is no value that means "all is well".
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Somebody else has it, or it was taken away.
    #[error("the leadership was taken away: {0}")]
    Taken(String),
    /// It could not be renewed in time.
    #[error("the leadership could not be renewed before its deadline: {0}")]
    Expired(String),
}

/// Why a campaign ended without a leadership.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has it, and this campaign was not to wait (see [`Patience`]).
    #[error("{what} is held by {holder}")]
    HeldElsewhere {
        /// What is held.
        what: String,
        /// Who holds it, e.g. `process 4711`.
        holder: String,
    },
    /// The store behind it did not answer, or refused.
    #[error("the campaign failed: {what}")]
    Store {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: BoxError,
    },
    /// What it was opened on is no longer what is found at its place: whoever goes on has to open it anew.
    #[error("the campaign is about something that is gone: {0}")]
    Displaced(String),
    /// The campaign was asked to end.
    #[error("the campaign was asked to end")]
    Cancelled,
}

/// Keeps a leadership alive and can give it up.
#[async_trait::async_trait]
pub trait Holder: Send {
    /// Gives the leadership up. Already gone counts as released.
    async fn release(self: Box<Self>) -> Result<(), BoxError>;
}

impl Leadership {
    /// Put together by an election that was won.
    pub fn new(fence: Fence, belief: Belief, lost: tokio::sync::oneshot::Receiver<Lost>, holder: Box<dyn Holder>) -> Leadership {
        Leadership { fence, belief, takeover_grace: Duration::ZERO, lost, holder }
    }

    /// The same, won in a way that leaves the leader before to believe in its own for `grace` at most (L8).
    pub fn with_takeover_grace(self, grace: Duration) -> Leadership {
        Leadership { takeover_grace: grace, ..self }
    }

    /// How much longer than a lease nobody's lease may end after this leadership began: the leader before may still have been answering.
    pub fn takeover_grace(&self) -> Duration {
        self.takeover_grace
    }

    /// The precondition of every write.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Until when it can be believed in.
    pub fn belief(&self) -> Belief {
        self.belief.clone()
    }

    /// Waits until the leadership is lost, and says why. A holder that died without a word is a loss too.
    pub async fn lost(&mut self) -> Lost {
        (&mut self.lost).await.unwrap_or_else(|_| Lost::Taken("the task that keeps it ended".to_owned()))
    }

    /// Gives it up, after everything that acts on it has ended.
    pub async fn release(self) -> Result<(), BoxError> {
        self.holder.release().await
    }
}

/// What a campaign does where another process leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Waits as a standby, for as long as it takes.
    Wait,
    /// Fails with [`Error::HeldElsewhere`], and names the holder.
    FailAtOnce,
}

/// A place where a leadership can be won.
#[async_trait::async_trait]
pub trait Election: Send + Sync {
    /// Waits until this process leads, or `shutdown` is cancelled. One that is not to wait fails at once where another process leads, and
    /// names it.
    async fn campaign(&self, shutdown: &CancellationToken) -> Result<Leadership, Error>;

    /// Who leads, by its own description, as far as a campaign that waits here has seen; `None` where nobody ever waits.
    fn leader(&self) -> Option<watch::Receiver<Option<String>>> {
        None
    }

    /// How long a process that stepped down waits before it campaigns again, so that those who wait already are served first. Zero where
    /// a queue sees to that.
    fn courtesy(&self) -> Duration {
        Duration::ZERO
    }
}

/// Whether a leadership of that length can be kept by renewals that take up to that long each.
fn check_ttl(ttl: Duration, request_timeout: Duration) -> Result<(), Invalid> {
    if ttl.subsec_nanos() == 0 && ttl >= Duration::from_secs(2).max(request_timeout * 2) {
        return Ok(());
    }
    let rule = format!("whole seconds, at least 2s and twice the request timeout of {request_timeout:?}");
    Err(Invalid::Value { name: "leadership.lease_ttl", value: format!("{ttl:?}"), rule })
}
