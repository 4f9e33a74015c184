//! Moving a cluster from one store to another: a state leaves its store as a [`document`], and the store is sealed; another store takes
//! it in. Cluster id, term and epochs go along, so executors notice no more than a change of leaders.
//!
//! What keeps two managers, one on each store, from being both obeyed, in the order in which it comes:
//!
//! 1. [`export`] wins the leadership, so the leader before it has lost it: its fence holds no longer.
//! 2. It seals the store by a fenced commit. From then on nobody leads there, not even who is elected, and what was written is whole.
//! 3. The seal raises the term, as each leadership does: nobody has ever said anything under the document's term.
//! 4. [`import`] writes into an empty store only, and marks it until all of it is there. Whoever leads there raises the term again, so
//!    executors refuse whatever the old store's leaders said and might still say (P5).

pub mod document;
mod export;
mod file;
mod import;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use export::{Export, Exported, export};
pub use file::Destination;
pub use import::{Import, Imported, import};

use crate::assignment::state::{Changes, Seal};
use crate::backend::Fence;
use crate::clock;
use crate::config::Config;
use crate::election::{self, Patience};
use crate::metrics::Metrics;
use crate::run::{
    self,
    places::{Missing, Places},
};
use crate::store::{self, Loaded};
use crate::types::{ClusterId, Revision, Term};

/// The pause before a commit of unknown outcome is sent again.
const PAUSE: Duration = Duration::from_millis(200);
/// How often it is said that one is sent again.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// For so long a commit of unknown outcome is sent again.
const SETTLING: Duration = Duration::from_secs(30);
/// How long giving up the leadership may take.
const RELEASING: Duration = Duration::from_secs(2);
/// How long the store may take to close.
const CLOSING: Duration = Duration::from_millis(250);

/// Why a state was not moved.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be opened, or the state is not open.
    #[error(transparent)]
    Run(#[from] run::Error),
    /// The file is there.
    #[error("{} is there already; it is not overwritten", .0.display())]
    FileExists(PathBuf),
    /// The document cannot be written. The store may be sealed by now: then the same command gives the same document.
    #[error("the document cannot be written to {what}; nothing is lost: put that right, and run the same command again")]
    Write {
        /// To what.
        what: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The document is not taken.
    #[error("the document is refused")]
    Document(#[from] document::Invalid),
    /// The configuration wants another shard count than the document has.
    #[error(
        "number_of_shards is {configured} in the configuration, the document has {document}: the number of a cluster never changes"
    )]
    ShardCount {
        /// As configured.
        configured: u32,
        /// As exported.
        document: u32,
    },
    /// There is nothing to export.
    #[error("the store is empty: there is nothing to export")]
    Empty,
    /// There is not even a database.
    #[error("there is no database {}: there is nothing to export", .0.display())]
    NoDatabase(PathBuf),
    /// The state breaks its own rules. It could not be imported again, so it is not sealed.
    #[error("the stored state contradicts itself, nothing is exported: {0}")]
    Contradiction(String),
    /// The target has a state.
    #[error("the store has a state already, of cluster {cluster_id} at term {term}: it takes an empty one, nothing was written")]
    Occupied {
        /// Whose it is.
        cluster_id: ClusterId,
        /// Of whoever led there last.
        term: Term,
    },
    /// The target has a part of another document.
    #[error("the store has a part of another document, {found:08x}, this one is {document:08x}: nothing was written")]
    OtherImport {
        /// The checksum of what is there.
        found: u32,
        /// The checksum of the document.
        document: u32,
    },
    /// The store failed.
    #[error("the store failed while {doing}; run the same command again when it answers")]
    Store {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: store::Error,
    },
    /// The campaign failed.
    #[error("the campaign failed")]
    Campaign(#[source] election::Error),
    /// The leadership was lost before the work was done.
    #[error("the leadership was lost before it was done; run the same command again")]
    LeadershipLost(#[source] store::BoxError),
    /// A signal came.
    #[error("it was interrupted; run the same command again to go on")]
    Interrupted,
}

impl Error {
    /// What the process ends with: 1 interrupted, or the file cannot be written; 2 usage, configuration or document; 3 store or what
    /// is in it; 4 leadership lost.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Run(error) => error.exit_code(),
            Error::Interrupted | Error::Write { .. } => 1,
            Error::FileExists(_) | Error::Document(_) | Error::ShardCount { .. } => 2,
            Error::Empty
            | Error::NoDatabase(_)
            | Error::Contradiction(_)
            | Error::Occupied { .. }
            | Error::OtherImport { .. } => 3,
            Error::Store { .. } | Error::Campaign(_) => 3,
            Error::LeadershipLost(_) => 4,
        }
    }
}

async fn load(places: &Places) -> Result<Option<Loaded>, Error> {
    places.store.load().await.map_err(|source| Error::Store { doing: "reading the stored state", source })
}

/// Refuses a state that is a part of an import.
fn refuse_parts(loaded: &Loaded) -> Result<(), Error> {
    match &loaded.state.meta.seal {
        seal @ Seal::Importing { .. } => Err(run::Error::NotOpen(seal.clone()).into()),
        Seal::Open | Seal::Sealed { .. } => Ok(()),
    }
}

/// Campaigns, waiting as a standby for as long as it takes; does `work` under the leadership, and gives it up.
///
/// What `work` is given is the fence, and for how long the leader before may still believe that it leads.
async fn under_leadership<T>(
    places: &Places,
    shutdown: &CancellationToken,
    work: impl AsyncFnOnce(Fence, Duration) -> Result<T, Error>,
) -> Result<T, Error> {
    // A campaign that was asked to end may still have something to take back, from a server that does not answer.
    let long_asked = async {
        shutdown.cancelled().await;
        tokio::time::sleep(RELEASING).await;
    };
    let won = tokio::select! {
        won = places.election.campaign(shutdown) => won,
        () = long_asked => Err(election::Error::Cancelled),
    };
    let mut leadership = won.map_err(|error| match error {
        election::Error::Cancelled => Error::Interrupted,
        error => Error::Campaign(error),
    })?;
    info!("elected");
    let (fence, grace) = (leadership.fence().clone(), leadership.takeover_grace());
    let done = tokio::select! {
        biased;
        () = shutdown.cancelled() => Err(Error::Interrupted),
        lost = leadership.lost() => Err(Error::LeadershipLost(lost.into())),
        done = work(fence, grace) => done,
    };
    match tokio::time::timeout(RELEASING, leadership.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(error = error.as_ref(), "the leadership could not be given up; it ends by itself"),
        Err(_) => warn!("the leadership could not be given up in time; it ends by itself"),
    }
    done
}

/// Commits, and sends the identical commit again as long as it is unknown whether it landed (L5).
async fn commit(places: &Places, fence: &Fence, expected: Option<Revision>, changes: &Changes) -> Result<Revision, Error> {
    let failed = |source| Error::Store { doing: "committing", source };
    let give_up = clock::now().after(SETTLING);
    let mut open = false;
    let mut said: Option<tokio::time::Instant> = None;
    loop {
        match places.store.commit(fence, expected, changes).await {
            Ok(revision) => return Ok(revision),
            Err(store::Error::LeadershipLost) => return Err(Error::LeadershipLost(store::Error::LeadershipLost.into())),
            Err(error @ store::Error::Unavailable { .. }) if !open => return Err(failed(error)),
            Err(error @ (store::Error::Unavailable { .. } | store::Error::OutcomeUnknown { .. })) => {
                open = true;
                if clock::now() >= give_up {
                    return Err(failed(error));
                }
                if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
                    said = Some(tokio::time::Instant::now());
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "it is unknown whether a commit landed; it is sent again every {PAUSE:?}, for {SETTLING:?} at most"
                    );
                }
            }
            Err(error) => return Err(failed(error)),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Does `work`, unless a signal comes: then that ends it wherever it is.
async fn unless_asked<T>(shutdown: &CancellationToken, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    shutdown.run_until_cancelled(work).await.unwrap_or(Err(Error::Interrupted))
}

/// Opens what is configured, does `work`, and closes it. What `work` does outside of a leadership it does [`unless_asked`] to stop.
async fn with_places<T>(
    config: &Config,
    identity: &str,
    missing: Missing,
    shutdown: &CancellationToken,
    work: impl AsyncFnOnce(&Places) -> Result<T, Error>,
) -> Result<T, Error> {
    let metrics = Metrics::new().map_err(|error| run::Error::Task { name: "metrics", source: error.into() })?;
    let metrics = Arc::new(metrics);
    let opening = async { Ok(run::places::open(config, identity, &metrics, Patience::Wait, missing).await?) };
    let (places, close) = unless_asked(shutdown, opening).await?;
    let done = work(&places).await;
    drop(places);
    drop(tokio::time::timeout(CLOSING, close).await);
    done
}
