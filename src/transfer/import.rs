//! A store takes a state in.

use tokio_util::sync::CancellationToken;
use tracing::info;

use super::document::{Content, Document};
use super::{Error, commit, load, under_leadership, unless_asked, with_places};
use crate::assignment::State;
use crate::assignment::state::{Changes, Inventory, Meta, Seal};
use crate::backend::Fence;
use crate::config::Config;
use crate::run::{
    self,
    places::{Missing, Places},
};
use crate::store::{self, Loaded, codec};
use crate::types::{ClusterId, Revision, Term, Token};

/// What to do.
#[derive(Clone, Debug)]
pub struct Import {
    /// The document, as it was read.
    pub document: Vec<u8>,
    /// `number_of_shards`, where somebody configured it.
    pub configured_shards: Option<u32>,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The cluster that goes on in this store.
    pub cluster_id: ClusterId,
    /// All of the cluster's shards; managers have to be configured with as many.
    pub number_of_shards: u32,
    /// How many records of executors the document has.
    pub executors: usize,
    /// As in the document. Whoever leads takes a higher one.
    pub term: Term,
    /// All of it was there already: nothing was written.
    pub was_there: bool,
}

/// Writes a document into the configured store, which must be empty, or have a part of the same document, or all of it. Ends early when
/// `shutdown` is cancelled.
///
/// The whole document is checked, and encoded, before anything is written. What does not fit into one commit is written in several, and
/// until the last one the state is marked as a part that nobody may lead on.
///
/// # Errors
/// See [`Error`].
pub async fn import(config: &Config, import: Import, shutdown: &CancellationToken) -> Result<Imported, Error> {
    let Import { document, configured_shards } = import;
    let document = Document::parse(&document)?;
    let content = document.content();
    if let Some(configured) = configured_shards.filter(|configured| *configured != content.number_of_shards) {
        return Err(Error::ShardCount { configured, document: content.number_of_shards });
    }
    let state = content.state(Token(0))?;
    let unfit = |refused: codec::Refused| Error::Store { doing: "encoding the state", source: store::Error::from(refused) };
    codec::encode(&state.changes_since(None)).map_err(unfit)?;

    let work = async |places: &Places| {
        let was_there = match room(unless_asked(shutdown, load(places)).await?, content, document.checksum().0)? {
            Room::Taken => true,
            Room::Empty | Room::Part(..) => {
                let write = async |fence: Fence, _| write(places, &fence, &document, state).await;
                under_leadership(places, shutdown, write).await?
            }
        };
        Ok(Imported {
            cluster_id: content.cluster_id,
            number_of_shards: content.number_of_shards,
            executors: content.executors.len(),
            term: Term(content.term.0),
            was_there,
        })
    };
    with_places(config, &run::identity(), Missing::Made, shutdown, work).await
}

/// What the target has.
enum Room {
    /// Nothing.
    Empty,
    /// A part of this document.
    Part(Revision, Inventory),
    /// All of this document, and nobody has led on it.
    Taken,
}

fn room(loaded: Option<Loaded>, content: &Content, checksum: u32) -> Result<Room, Error> {
    let Some(Loaded { revision, state }) = loaded else { return Ok(Room::Empty) };
    let Meta { cluster_id, term, seal, inventory, .. } = &state.meta;
    match seal {
        Seal::Importing { document } if *document == checksum => Ok(Room::Part(revision, inventory.clone())),
        Seal::Importing { document } => Err(Error::OtherImport { found: *document, document: checksum }),
        // Whoever leads raises the term, so this tells whether somebody did.
        Seal::Open if Content::of(&state, content.taken.clone()) == *content => Ok(Room::Taken),
        Seal::Open | Seal::Sealed { .. } => Err(Error::Occupied { cluster_id: *cluster_id, term: *term }),
    }
}

/// `true`: all of it was there.
async fn write(places: &Places, fence: &Fence, document: &Document, mut state: State) -> Result<bool, Error> {
    // It is looked at again: a leader may have been there meanwhile.
    let (mut revision, there) = match room(load(places).await?, document.content(), document.checksum().0)? {
        Room::Empty => (None, Inventory::default()),
        Room::Part(revision, there) => {
            info!("a part of this document is there: it is written again from the beginning");
            (Some(revision), there)
        }
        Room::Taken => return Ok(true),
    };
    state.meta.token = fence.token();
    let pieces = pieces(&state, there, places.store.limits().pages, document.checksum().0);
    let count = pieces.len();
    for (at, piece) in pieces.into_iter().enumerate() {
        revision = Some(commit(places, fence, revision, &piece).await?);
        info!("{} of {count} parts written", at + 1);
    }
    Ok(false)
}

/// Cuts a state into commits of at most `pages` pages. After each, what is in the store is readable: `meta` knows of exactly the pages
/// that are there, `there` included, and owners come before what they own. The last one opens it.
fn pieces(state: &State, there: Inventory, pages: usize, document: u32) -> Vec<Changes> {
    let Changes { executors, shards, retirees, meta: whole } = state.changes_since(None);
    let (mut executors, mut retirees, mut shards) = (executors.into_iter(), retirees.into_iter(), shards.into_iter());
    let mut meta = Meta { seal: Seal::Importing { document }, inventory: there, ..whole };
    let mut pieces = Vec::new();
    loop {
        meta.attempt += 1;
        let mut piece = Changes { meta: meta.clone(), executors: Vec::new(), shards: Vec::new(), retirees: Vec::new() };
        piece.executors.extend(executors.by_ref().take(pages));
        piece.retirees.extend(retirees.by_ref().take(pages - piece.executors.len()));
        piece.shards.extend(shards.by_ref().take(pages - piece.executors.len() - piece.retirees.len()));
        for (page, _) in &piece.executors {
            meta.inventory.executors = meta.inventory.executors.max(page + 1);
        }
        for (page, _) in &piece.retirees {
            meta.inventory.retirees |= 1 << page;
        }
        for (page, _) in &piece.shards {
            meta.inventory.add_shards(*page as usize);
        }
        let last = executors.len() + retirees.len() + shards.len() == 0;
        let seal = if last { Seal::Open } else { meta.seal.clone() };
        piece.meta = Meta { seal, ..meta.clone() };
        pieces.push(piece);
        if last {
            return pieces;
        }
    }
}

#[cfg(test)]
mod tests;
