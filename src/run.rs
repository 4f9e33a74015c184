//! Composition and ordered stop.
//!
//! ```text
//! validate ── HTTP up ── open store, decode all of it, check the shard count ── campaign ── load, check again
//!     ── first commit (raises the term) ── bind gRPC ── serve until stopped ── drain ── end every task ── release ── HTTP down
//! ```
//!
//! Whatever happens after the win, the way down is the same: gauges and readiness first; then nothing new is taken in; the commit in
//! flight may finish; every task *ends*; and only then is the leadership given up. `shutdown` may be cancelled at any moment.

mod error;
pub(crate) mod places;
mod tasks;
mod term_of_office;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tracing::{error, info, warn};

use crate::api;
use crate::api::http::{Phase, View};
use crate::api::nursery::Nursery;
use crate::api::serve::Protocol;
use crate::assignment::state::Seal;
use crate::clock;
use crate::config::{Config, OnLoss, StoreKind};
use crate::election::{self, Leadership, Patience};
use crate::metrics::Metrics;
use crate::store::{self, Loaded};

pub use error::Error;
use places::{Missing, Places};
use term_of_office::TermOfOffice;

/// How the manager is run.
#[derive(Clone, Debug)]
pub enum Deployment {
    /// A process of its own, which may wait as a standby for as long as it takes.
    Standalone {
        /// Ends it, at any moment, within a second on a store that answers.
        shutdown: CancellationToken,
    },
    /// Within another process that awaits [`run`] inline: nothing is waited for that another process may never give up.
    Embedded {
        /// Ends it.
        shutdown: CancellationToken,
    },
}

impl Deployment {
    fn shutdown(&self) -> &CancellationToken {
        match self {
            Deployment::Standalone { shutdown } | Deployment::Embedded { shutdown } => shutdown,
        }
    }
}

/// The ports in use, as they become known; port 0 in the configuration shows as the real one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Of the HTTP server.
    pub http: Option<SocketAddr>,
    /// Of the gRPC server; `None` as long as this process does not lead.
    pub grpc: Option<SocketAddr>,
}

/// The pause after an attempt to reach the store or to campaign failed.
const ATTEMPT_PAUSE: Duration = Duration::from_secs(1);
/// How often one who stepped down looks whether the store was sealed.
const SEAL_LOOK: Duration = Duration::from_millis(25);
/// How long answers that are ready may take to reach their callers when the manager stops.
const LAST_ANSWERS: Duration = Duration::from_millis(250);
/// How long the store may take to close.
const CLOSING: Duration = Duration::from_millis(250);
/// The longest time between two turns of the coordinator.
const TURN_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a manager until it is asked to stop.
///
/// # Errors
/// See [`Error`]; [`Error::exit_code`] says what a process should end with.
pub async fn run(config: Config, deployment: Deployment) -> Result<(), Error> {
    run_observed(config, deployment, watch::Sender::new(Addresses::default())).await
}

/// [`run`], for callers that want to know the ports.
///
/// # Errors
/// As [`run`].
pub async fn run_observed(config: Config, deployment: Deployment, addresses: watch::Sender<Addresses>) -> Result<(), Error> {
    if matches!(deployment, Deployment::Embedded { .. }) && config.persistence.kind == StoreKind::Etcd {
        let why = "persistence.type \"etcd\" waits in a campaign, which a manager within another process must not";
        return Err(Error::Configuration(why.to_owned()));
    }
    if matches!(deployment, Deployment::Embedded { .. }) && config.leadership.on_loss == OnLoss::Standby {
        let why = "leadership.on_loss = \"standby\" would wait in a campaign, which a manager within another process must not";
        return Err(Error::Configuration(why.to_owned()));
    }
    let metrics = Arc::new(Metrics::new().map_err(|error| Error::Task { name: "metrics", source: error.into() })?);
    let reflection = api::reflection().map_err(|error| Error::Task { name: "reflection", source: error.into() })?;
    let identity = identity();
    let view = Arc::new(View::new(Arc::clone(&metrics), identity.clone()));

    let (listener, address) = listen("HTTP", config.http.listen).await?;
    info!(address = %address, "HTTP listening on {address}");
    addresses.send_modify(|known| known.http = Some(address));
    let (http, http_stop) = (Nursery::default(), CancellationToken::new());
    let serving =
        api::serve::run(listener, api::http::router(Arc::clone(&view)), Protocol::Http, http_stop.clone(), http.clone(), |_| {});
    http.spawn(serving);

    let manager = Manager { config, deployment, addresses, metrics, view: Arc::clone(&view), identity, reflection };
    let ended = manager.work().await;
    view.enter(Phase::Stopping);
    http_stop.cancel();
    drop(tokio::time::timeout(LAST_ANSWERS, http.idle()).await);
    http.shutdown().await;
    ended
}

struct Manager {
    config: Config,
    deployment: Deployment,
    addresses: watch::Sender<Addresses>,
    metrics: Arc<Metrics>,
    view: Arc<View>,
    identity: String,
    reflection: Routes,
}

impl Manager {
    fn shutdown(&self) -> &CancellationToken {
        self.deployment.shutdown()
    }

    /// Leads, and where so configured leads again after the leadership was lost. Nothing is taken along from one round to the next, the
    /// connections to the store included: what was lost may be the store itself.
    async fn work(&self) -> Result<(), Error> {
        loop {
            let opening = places::open(&self.config, &self.identity, &self.metrics, self.patience(), Missing::Made);
            let Some(opened) = self.shutdown().run_until_cancelled(opening).await else { return Ok(()) };
            let (places, close) = opened?;
            if let Some(leader) = places.election.leader() {
                self.view.watch_leader(leader);
            }
            let mut ended = self.lead_once(&places).await;
            if let Ok(Ended::SteppedDown) = ended {
                info!("this process handed over, as an operator asked; it campaigns again, behind those who wait already");
                self.view.enter(Phase::Standby);
                ended = self.stand_back(&places).await;
            }
            drop(tokio::time::timeout(CLOSING, close).await);
            match ended {
                Ok(Ended::SteppedDown) => {}
                Ok(Ended::Unread) => {
                    self.view.enter(Phase::Standby);
                    if self.shutdown().run_until_cancelled(tokio::time::sleep(ATTEMPT_PAUSE)).await.is_none() {
                        return Ok(());
                    }
                }
                Err(lost @ Error::LeadershipLost(_)) if self.stands_by() => {
                    warn!(error = &lost as &dyn std::error::Error, "this process does not lead any more; it campaigns again");
                    self.view.enter(Phase::Standby);
                    // Whatever took it away may do so again at once.
                    if self.shutdown().run_until_cancelled(tokio::time::sleep(ATTEMPT_PAUSE)).await.is_none() {
                        return Ok(());
                    }
                }
                Err(gone @ Error::Campaign(election::Error::Displaced(_))) if self.may_wait() => {
                    let paused = self.shutdown().run_until_cancelled(self.attempt_failed(&gone)).await;
                    if paused.is_none() {
                        return Ok(());
                    }
                }
                ended => return ended.map(drop),
            }
        }
    }

    /// Lets those who wait already go first. One of them may be an export, which seals the store: then this process is to end, and soon, since
    /// its ports may be wanted for what comes next.
    async fn stand_back(&self, places: &Places) -> Result<Ended, Error> {
        let sealed = async {
            loop {
                tokio::time::sleep(SEAL_LOOK).await;
                // What else there is to say of the store is found out by the next campaign.
                if let Err(sealed @ Error::NotOpen(_)) = self.load(places).await {
                    return sealed;
                }
            }
        };
        tokio::select! {
            biased;
            () = self.shutdown().cancelled() => Ok(Ended::Asked),
            () = tokio::time::sleep(places.election.courtesy()) => Ok(Ended::SteppedDown),
            sealed = sealed => Err(sealed),
        }
    }

    /// How long a leader bears with a store that takes nothing. Longer than a leadership lives without renewal: where both are kept by the
    /// same servers, that speaks first.
    fn store_patience(&self) -> Duration {
        self.config.leadership.lease_ttl + self.config.persistence.request_timeout
    }

    /// At least this often the coordinator turns: a leadership is kept only while it turned within the last third of its time.
    fn turn_interval(&self) -> Duration {
        let Config { persistence, leadership, executors, .. } = &self.config;
        let time = if persistence.kind == StoreKind::Sqlite { leadership.host.grace } else { leadership.lease_ttl };
        TURN_INTERVAL.min(executors.lease_ttl / 10).min(time / 10)
    }

    /// Whether a lost leadership is no end.
    fn stands_by(&self) -> bool {
        self.config.leadership.on_loss == OnLoss::Standby
    }

    /// From the first read to the release.
    async fn lead_once(&self, places: &Places) -> Result<Ended, Error> {
        let Some(read) = self.shutdown().run_until_cancelled(self.load_patiently(places)).await else { return Ok(Ended::Asked) };
        read?;
        self.view.enter(Phase::Standby);
        let Some(mut leadership) = self.campaign(places).await? else { return Ok(Ended::Asked) };
        info!(identity = self.identity, "elected; the state is read again, and taken over with a first commit");
        self.view.enter(Phase::TakingOver);
        self.metrics.lead(clock::unix_ms() / 1000);
        let ended = self.hold(&mut leadership, places).await;
        // Every way out of `hold` took these down already; saying it twice is harmless.
        self.stop_leading();
        match tokio::time::timeout(self.config.persistence.request_timeout, leadership.release()).await {
            // What was lost is not given up, and may be another one's already.
            Ok(Ok(())) if matches!(ended, Err(Error::LeadershipLost(_))) => {}
            Ok(Ok(())) => info!("the leadership was given up"),
            Ok(Err(error)) => warn!(error = error.as_ref(), "the leadership could not be given up; it ends by itself"),
            Err(_) => warn!("the leadership could not be given up in time; it ends by itself"),
        }
        ended
    }

    fn stop_leading(&self) {
        self.metrics.stop_leading();
        self.view.enter(Phase::Stopping);
        self.addresses.send_modify(|known| known.grpc = None);
    }

    /// Reads and decodes everything, and checks shard count and seal, before anything is spawned, probed or written.
    async fn load(&self, places: &Places) -> Result<Option<Loaded>, Error> {
        let loaded = places.store.load().await.map_err(|source| Error::Store { doing: "reading the stored state", source })?;
        self.metrics.store_answered(clock::unix_ms() / 1000);
        let configured = self.config.number_of_shards;
        match &loaded {
            Some(Loaded { state, .. }) if state.meta.number_of_shards != configured => {
                Err(Error::ShardCount { configured, stored: state.meta.number_of_shards })
            }
            Some(Loaded { state, .. }) => match &state.meta.seal {
                Seal::Open => Ok(loaded),
                seal => Err(Error::NotOpen(seal.clone())),
            },
            None => Ok(loaded),
        }
    }

    /// The same, waiting for a store that does not answer: a standby for as long as it takes, a leader for as long as it leads.
    async fn load_patiently(&self, places: &Places) -> Result<Option<Loaded>, Error> {
        loop {
            match self.load(places).await {
                Err(Error::Store { source: error @ store::Error::Unavailable { .. }, .. }) if self.may_wait() => {
                    self.attempt_failed(&error).await;
                }
                read => return read,
            }
        }
    }

    /// `None`: asked to stop.
    async fn campaign(&self, places: &Places) -> Result<Option<Leadership>, Error> {
        loop {
            match places.election.campaign(self.shutdown()).await {
                Ok(leadership) => return Ok(Some(leadership)),
                Err(election::Error::Cancelled) => return Ok(None),
                Err(held @ election::Error::HeldElsewhere { .. }) => return Err(Error::HeldElsewhere(held)),
                Err(gone @ election::Error::Displaced(_)) => return Err(Error::Campaign(gone)),
                Err(error) if self.may_wait() => {
                    if self.shutdown().run_until_cancelled(self.attempt_failed(&error)).await.is_none() {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(Error::Campaign(error)),
            }
        }
    }

    fn may_wait(&self) -> bool {
        self.patience() == Patience::Wait
    }

    fn patience(&self) -> Patience {
        match self.deployment {
            Deployment::Standalone { .. } => Patience::Wait,
            Deployment::Embedded { .. } => Patience::FailAtOnce,
        }
    }

    async fn attempt_failed(&self, error: &(dyn std::error::Error + Send + Sync + 'static)) {
        self.metrics.campaign_failed();
        warn!(
            error = error as &dyn std::error::Error,
            "an attempt to reach the store or to campaign failed; the next one follows in {ATTEMPT_PAUSE:?}"
        );
        tokio::time::sleep(ATTEMPT_PAUSE).await;
    }

    /// Works until the leadership is lost, a task fails, or somebody asks to stop; everything has ended when it returns.
    async fn hold(&self, leadership: &mut Leadership, places: &Places) -> Result<Ended, Error> {
        let loaded = tokio::select! {
            biased;
            () = self.shutdown().cancelled() => return Ok(Ended::Asked),
            lost = leadership.lost() => return Err(Error::LeadershipLost(lost.into())),
            loaded = tokio::time::timeout(self.store_patience(), self.load_patiently(places)) => match loaded {
                Ok(loaded) => loaded?,
                // Once more, for what it fails with.
                Err(_) => match self.load(places).await {
                    Err(error @ Error::Store { source: store::Error::Unavailable { .. }, .. }) if self.stands_by() => {
                        self.metrics.campaign_failed();
                        warn!(error = &error as &dyn std::error::Error, "elected, but the state cannot be read here; others may try");
                        return Ok(Ended::Unread);
                    }
                    loaded => loaded?,
                },
            },
        };
        let mut term = TermOfOffice::begin(self, leadership, places, loaded);
        let ended = term.serve(self, leadership).await;
        // First of all: whoever looks sees that nobody leads here.
        self.stop_leading();
        match &ended {
            Ok(_) => {}
            Err(error @ Error::LeadershipLost(_)) if self.stands_by() => {
                warn!(error = error as &dyn std::error::Error, "this process stops leading");
            }
            Err(error) => error!(error = error as &dyn std::error::Error, "this process stops leading"),
        }
        term.end(&ended, self.config.persistence.request_timeout).await;
        ended
    }
}

/// How a leadership ended that nothing went wrong with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The process was asked to stop.
    Asked,
    /// An operator asked this leader to let another one lead.
    SteppedDown,
    /// The store let this process be elected, but not read the state.
    Unread,
}

async fn listen(what: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let refused = |source| Error::Listen { what, address, source };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    Ok((listener, bound))
}

/// How this process introduces itself.
pub(crate) fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    format!("process {} on {}", std::process::id(), if host.is_empty() { "an unnamed host" } else { host })
}
