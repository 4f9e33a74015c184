//! A state leaves its store.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::info;
use uuid::Uuid;

use super::document::{self, Checksum, Content, Document, Taken};
use super::file::{self, Destination, Target};
use super::{Error, commit, load, refuse_parts, under_leadership, unless_asked, with_places};
use crate::assignment::State;
use crate::assignment::state::{MAX_SEAL_TEXT_LEN, Seal};
use crate::backend::Fence;
use crate::clock;
use crate::config::{Config, StoreKind};
use crate::run::{
    self,
    places::{Missing, Places},
};
use crate::store::Loaded;
use crate::types::{ClusterId, Term};

/// What to do.
#[derive(Clone, Debug)]
pub struct Export {
    /// Where the document goes.
    pub to: Destination,
    /// Only read, seal nothing, and make another cluster of it.
    pub copy: bool,
    /// Cancelled by [`export`] once the destination can be written: no earlier need anybody be asked to step down.
    pub opened: CancellationToken,
    /// Cancelled by [`export`] once nobody need be asked to step down any more.
    pub elected: CancellationToken,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The cluster that the document is of; another one than the store's where it is a copy.
    pub cluster_id: ClusterId,
    /// All of the cluster's shards.
    pub number_of_shards: u32,
    /// How many records of executors the document has.
    pub executors: usize,
    /// Whoever leads on the document takes a higher one.
    pub term: Term,
    /// By which the document is recognised, also by the store that takes it in.
    pub checksum: Checksum,
}

/// Takes the state out of the configured store. Ends early when `shutdown` is cancelled.
///
/// The order is: open the destination, win the leadership, wait until no leader before can believe in its own any more, write the document beside its
/// place, seal the store, and give the document its name. So a document that is there is that of a sealed store, and a store is sealed
/// only when its document is on the disk. On standard output the seal comes first. After a crash anywhere the same command goes on: a
/// store that is sealed already gives the same document, without a new seal and without a leadership.
///
/// # Errors
/// See [`Error`].
pub async fn export(config: &Config, export: Export, shutdown: &CancellationToken) -> Result<Exported, Error> {
    if config.persistence.kind == StoreKind::Sqlite && is_missing(&config.persistence.sqlite.path) {
        return Err(Error::NoDatabase(config.persistence.sqlite.path.clone()));
    }
    let to = export.to.clone();
    let target = unless_asked(shutdown, blocking(move || Target::open(&to))).await?;
    // What can be refused was: whoever leads may be asked to step down.
    export.opened.cancel();
    let identity = run::identity();
    let from = config.persistence.kind.as_str();
    let exporter = Exporter { export, identity: identity.clone(), from, target };
    let work = async move |places: &Places| exporter.take(places, shutdown).await;
    with_places(config, &identity, Missing::Refused, shutdown, work).await
}

fn is_missing(path: &Path) -> bool {
    path.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

struct Exporter {
    export: Export,
    identity: String,
    /// The kind of store.
    from: &'static str,
    target: Target,
}

impl Exporter {
    async fn take(self, places: &Places, shutdown: &CancellationToken) -> Result<Exported, Error> {
        let loaded = unless_asked(shutdown, read(places)).await?;
        if self.export.copy {
            return unless_asked(shutdown, self.copy(loaded.state)).await;
        }
        if let Seal::Sealed { .. } = loaded.state.meta.seal {
            return unless_asked(shutdown, self.again(&loaded.state)).await;
        }
        under_leadership(places, shutdown, async move |fence, grace| self.take_and_seal(places, fence, grace).await).await
    }

    async fn copy(self, mut state: State) -> Result<Exported, Error> {
        self.export.elected.cancel();
        let of = std::mem::replace(&mut state.meta.cluster_id, ClusterId(Uuid::new_v4()));
        let (by, from) = (self.identity.clone(), self.from.to_owned());
        let document = Document::new(Content::of(&state, Taken::Copy { unix_ms: clock::unix_ms(), by, from, of }));
        let exported = Exported::of(&document);
        self.hand_out(document).await?;
        Ok(exported)
    }

    /// Of a store that is sealed already.
    async fn again(self, state: &State) -> Result<Exported, Error> {
        self.export.elected.cancel();
        info!("the store is sealed already: this is the same document again");
        let document = self.sealed(state);
        let exported = Exported::of(&document);
        self.hand_out(document).await?;
        Ok(exported)
    }

    async fn take_and_seal(self, places: &Places, fence: Fence, grace: Duration) -> Result<Exported, Error> {
        self.export.elected.cancel();
        // The leader before may renew leases until then, and whoever leads at the other store must not end them earlier (L8).
        tokio::time::sleep(grace).await;
        let Loaded { revision, state } = read(places).await?;
        if let Seal::Sealed { .. } = state.meta.seal {
            return self.again(&state).await;
        }
        let mut sealed = state.clone();
        let unix_ms = clock::unix_ms();
        // Nobody has said anything under this term, so the other store's small revisions lie behind nothing that was heard.
        sealed.meta.term = state.meta.term.next(unix_ms);
        (sealed.meta.token, sealed.meta.attempt) = (fence.token(), 1);
        let note = cut(&format!("exported to {}", self.export.to));
        sealed.meta.seal = Seal::Sealed { unix_ms, by: cut(&self.identity), note };

        let document = self.sealed(&sealed);
        let (exported, changes) = (Exported::of(&document), sealed.changes_since(Some(&state)));
        match self.target {
            Target::File(partial) => {
                let partial = blocking(move || partial.write(&document)).await?;
                commit(places, &fence, Some(revision), &changes).await?;
                info!("the store is sealed: nobody leads on it any more");
                blocking(move || partial.publish()).await?;
            }
            Target::Stdout => {
                commit(places, &fence, Some(revision), &changes).await?;
                info!("the store is sealed: nobody leads on it any more");
                blocking(move || file::print(&document)).await?;
            }
        }
        Ok(exported)
    }

    /// Made of nothing but what the store keeps, so that it is the same every time.
    fn sealed(&self, state: &State) -> Document {
        let (unix_ms, by) = match &state.meta.seal {
            Seal::Sealed { unix_ms, by, .. } => (*unix_ms, by.clone()),
            Seal::Open | Seal::Importing { .. } => (0, String::new()),
        };
        Document::new(Content::of(state, Taken::Sealed { unix_ms, by, from: self.from.to_owned() }))
    }

    async fn hand_out(self, document: Document) -> Result<(), Error> {
        blocking(move || match self.target {
            Target::Stdout => file::print(&document),
            Target::File(partial) => partial.write(&document)?.publish(),
        })
        .await
    }
}

/// What can be exported.
async fn read(places: &Places) -> Result<Loaded, Error> {
    let loaded = load(places).await?.ok_or(Error::Empty)?;
    refuse_parts(&loaded)?;
    match document::summary(&loaded.state) {
        Some(violations) => Err(Error::Contradiction(violations)),
        None => Ok(loaded),
    }
}

impl Exported {
    fn of(document: &Document) -> Exported {
        let content = document.content();
        Exported {
            cluster_id: content.cluster_id,
            number_of_shards: content.number_of_shards,
            executors: content.executors.len(),
            term: Term(content.term.0),
            checksum: document.checksum(),
        }
    }
}

/// As much of a text as a seal takes.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_SEAL_TEXT_LEN)].to_owned()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|ended| Err(Error::Write { what: "its place".to_owned(), source: ended.into() }))
}
