//! The document that a state travels in: one JSON object, the same whatever store it comes from. Pure: nothing here does I/O.
//!
//! ```text
//! { "format": "shard-manager-export", "version": 1, "checksum": "<8 hex digits>",
//!   "content": {
//!     "cluster_id", "number_of_shards", "term", "lease_ttl_ms",
//!     "taken":     how the state was taken: "sealed" (it moves) or "copy"
//!     "executors": one object for each incarnation that the state knows
//!     "shards":    { "owners": place in executors or null, "epochs", "releasing": shard numbers, ascending }
//!     "retired":   incarnations that may never register again, the oldest first,
//!     "pause":     where rebalancing is paused: until when, who asked, why; else it is not there } }
//! ```
//!
//! Numbers of 64 bits are decimal strings, since JSON readers of other languages round what is above 2^53. The checksum is the
//! CRC-32 of the content as compact JSON with its keys in the order above: it finds what was cut or edited by mistake, and says which
//! document it is. It is no signature.

mod json;

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

pub use json::{Checksum, InvalidChecksum, Number};

use json::{EndName, StandingName, WishName, text};

use crate::api;
use crate::assignment::check::check;
use crate::assignment::record::{End, ExecutorRecord, Retiree, ShardRecord, ShardState, Standing, Wish};
use crate::assignment::state::{
    EXECUTORS_PER_PAGE, ExecutorPage, Inventory, MAX_PAUSE_TEXT_LEN, Meta, Pause, RETIREE_PAGES, RETIREES_PER_PAGE, RetireePage,
    SHARDS_PER_PAGE, Seal, ShardPage, State,
};
use crate::store::codec::MAX_LEASE_TTL_MS;
use crate::types::{ClusterId, Epoch, ExecutorId, Incarnation, MAX_NUMBER, MAX_SHARDS, Slot, Term, Token};

/// What `format` says.
pub const FORMAT: &str = "shard-manager-export";

/// The version that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// Violations that a message names; there may be one for each shard.
const NAMED: usize = 3;

/// A state on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    format: String,
    version: u32,
    checksum: Checksum,
    content: Content,
}

/// Everything of a [`Document`] that its checksum covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// Of the cluster; of a copy, a new one.
    #[serde(with = "text")]
    pub cluster_id: ClusterId,
    /// 1 to [`MAX_SHARDS`].
    pub number_of_shards: u32,
    /// The one that the seal was written under: nobody has said anything under a higher one, or under this one.
    pub term: Number,
    /// The largest executor lease that somebody may still hold, in milliseconds (L8).
    pub lease_ttl_ms: u64,
    /// How it was taken.
    pub taken: Taken,
    /// One for each incarnation that the state knows.
    pub executors: Vec<Executor>,
    /// All of them.
    pub shards: Shards,
    /// Incarnations that may never register again (L13); those of one bucket stand in the order of their retirement.
    pub retired: Vec<Retired>,
    /// An operator's pause of rebalancing, which moves along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Paused>,
}

/// See [`Pause`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paused {
    /// Until when, in milliseconds since 1970.
    pub until_unix_ms: u64,
    /// Who asked for it.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// How a state was taken out of its store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case", deny_unknown_fields)]
pub enum Taken {
    /// The store was sealed: the cluster moves.
    Sealed {
        /// When, in milliseconds since 1970.
        unix_ms: u64,
        /// By which process.
        by: String,
        /// The kind of store.
        from: String,
    },
    /// The store was only read: this is another cluster from here on.
    Copy {
        /// When, in milliseconds since 1970.
        unix_ms: u64,
        /// By which process.
        by: String,
        /// The kind of store.
        from: String,
        /// The cluster that it is a copy of.
        #[serde(with = "text")]
        of: ClusterId,
    },
}

/// One incarnation of an executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Executor {
    /// Its stable name.
    #[serde(with = "text")]
    pub id: ExecutorId,
    /// Which process.
    pub incarnation: Number,
    /// Where it serves.
    pub endpoint: String,
    /// See [`ExecutorRecord::weight`].
    pub weight: u32,
    /// What an operator wants of it.
    #[serde(with = "WishName")]
    pub wish: Wish,
    /// It asked to leave.
    pub leaving: bool,
    /// Whether it still counts.
    #[serde(with = "StandingName")]
    pub standing: Standing,
}

/// Every shard, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shards {
    /// The owner's place in [`Content::executors`]; `None`: unassigned.
    pub owners: Vec<Option<u32>>,
    /// Of the current grant, else of the last one; 0: never granted.
    pub epochs: Vec<Number>,
    /// Those whose owner was told to stop them, ascending.
    pub releasing: Vec<u32>,
}

/// See [`Retiree`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retired {
    /// FNV-1a of the executor id, 64 bits.
    pub id_hash: Number,
    /// Which process.
    pub incarnation: Number,
    /// How it ended.
    #[serde(with = "EndName")]
    pub end: End,
}

/// Why a document is not taken. Nothing was written then.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// It is cut off, no JSON, or has other fields than a document has.
    #[error("the document cannot be read; is it whole?")]
    Unreadable(#[source] serde_json::Error),
    /// It is something else.
    #[error("format is {found:?}, it takes {FORMAT:?}: this was not written by `shard-manager export`")]
    Format {
        /// As it says.
        found: String,
    },
    /// This program is too old for it, or no program ever wrote it.
    #[error("version is {found}, this program reads version {VERSION}{}", if *.found > u64::from(VERSION) { ": a newer one wrote it" } else { "" })]
    Version {
        /// As it says.
        found: u64,
    },
    /// It was changed after it was written.
    #[error("checksum is {found}, but the content makes {expected}: the document was changed after it was written")]
    Checksum {
        /// As it says.
        found: Checksum,
        /// Of what is there.
        expected: Checksum,
    },
    /// A value breaks a rule.
    #[error("{0}")]
    Rule(String),
}

/// What there is to say of any version.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
}

impl Document {
    /// Of this content.
    pub fn new(content: Content) -> Document {
        let checksum = content.checksum();
        Document { format: FORMAT.to_owned(), version: VERSION, checksum, content }
    }

    /// Reads a document, and holds it to its checksum. What its content must obey is [`Content::state`]'s to check.
    ///
    /// # Errors
    /// Where it is no document, not whole, of another version, or changed.
    pub fn parse(bytes: &[u8]) -> Result<Document, Invalid> {
        let Head { format, version } = serde_json::from_slice(bytes).map_err(Invalid::Unreadable)?;
        if format != FORMAT {
            return Err(Invalid::Format { found: format.chars().take(50).collect() });
        }
        if version != u64::from(VERSION) {
            return Err(Invalid::Version { found: version });
        }
        let document: Document = serde_json::from_slice(bytes).map_err(Invalid::Unreadable)?;
        let expected = document.content.checksum();
        if document.checksum != expected {
            return Err(Invalid::Checksum { found: document.checksum, expected });
        }
        Ok(document)
    }

    /// Writes it, with a line end.
    ///
    /// # Errors
    /// Where `to` cannot be written.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut to, self)?;
        to.write_all(b"\n")
    }

    /// What is in it.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// What names it.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }
}

impl Content {
    /// Of a state. Slots are left out: owners are places in the list of executors.
    pub fn of(state: &State, taken: Taken) -> Content {
        let (slots, executors): (Vec<Slot>, Vec<Executor>) = state.executors().map(|(slot, it)| (slot, Executor::of(it))).unzip();
        let mut shards = Shards::default();
        for (shard, record) in state.shards() {
            // Slots ascend. A state names no owner that it does not have.
            let place = record.owner().and_then(|slot| slots.binary_search(&slot).ok());
            shards.owners.push(place.map(|place| place as u32));
            shards.epochs.push(Number(record.epoch.0));
            if matches!(record.state, ShardState::Releasing(_)) {
                shards.releasing.push(shard.0);
            }
        }
        let pages = state.changes_since(None).retirees;
        let retired = pages.iter().flat_map(|(_, page)| page.iter().map(Retired::of)).collect();
        let pause = state.meta.pause.as_deref().cloned();
        let pause = pause.map(|Pause { until_unix_ms, by, reason }| Paused { until_unix_ms, by, reason });
        let Meta { cluster_id, number_of_shards, term, lease_ttl_ms, .. } = state.meta;
        Content { cluster_id, number_of_shards, term: Number(term.0), lease_ttl_ms, taken, executors, shards, retired, pause }
    }

    /// The CRC-32 of its canonical form.
    fn checksum(&self) -> Checksum {
        struct Hash(crc32fast::Hasher);
        impl Write for Hash {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.update(bytes);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut hash = io::BufWriter::new(Hash(crc32fast::Hasher::new()));
        // Nothing of this fails: the hash takes every byte, and every key is text.
        let written = serde_json::to_writer(&mut hash, self).map_err(io::Error::from).and_then(|()| hash.flush());
        debug_assert!(written.is_ok());
        Checksum(hash.get_ref().0.clone().finalize())
    }

    /// The state, with slots given anew, as `token` writes it: open, and with an inventory of exactly what it has to write.
    ///
    /// # Errors
    /// Where a value breaks a rule, or the state contradicts itself.
    pub fn state(&self, token: Token) -> Result<State, Invalid> {
        let broken = |rule: String| Err(Invalid::Rule(rule));
        if let Taken::Copy { of, .. } = &self.taken
            && *of == self.cluster_id
        {
            return broken(format!("a copy has a cluster_id of its own, this one has that of its original, {of}"));
        }
        if !(1..=MAX_SHARDS).contains(&self.number_of_shards) {
            return broken(format!("number_of_shards is {}, it takes 1 to {MAX_SHARDS}", self.number_of_shards));
        }
        // Whoever leads on it takes the next one, and whoever is granted a shard likewise.
        if self.term.0 >= MAX_NUMBER {
            return broken(format!("term is {}, it takes less than {MAX_NUMBER}", self.term));
        }
        for Executor { id, endpoint, .. } in &self.executors {
            match api::endpoint(endpoint) {
                Ok(form) if form == *endpoint => {}
                Ok(form) => return broken(format!("the endpoint of executor {id} is {endpoint:?}, it is written {form:?}")),
                Err(refused) => return broken(format!("the endpoint of executor {id}: {}", refused.problem)),
            }
        }
        if !(1..=MAX_LEASE_TTL_MS).contains(&self.lease_ttl_ms) {
            return broken(format!("lease_ttl_ms is {}, it takes 1 to {MAX_LEASE_TTL_MS}", self.lease_ttl_ms));
        }
        let pause = self.pause.as_ref().map(|it| Pause::new(it.until_unix_ms, &it.by, &it.reason));
        let unchanged = |pause: &Pause, it: &Paused| pause.by == it.by && pause.reason == it.reason;
        if let (Some(pause), Some(it)) = (&pause, &self.pause)
            && !unchanged(pause, it)
        {
            return broken(format!("a text of the pause has more than {MAX_PAUSE_TEXT_LEN} bytes, or more than one line"));
        }
        let executors = self.executor_pages();
        let shards = self.shard_pages()?;
        let retirees = self.retiree_pages()?;
        let written = |page: &ShardPage| page.iter().any(|record| *record != ShardRecord::default());
        let meta = Meta {
            cluster_id: self.cluster_id,
            number_of_shards: self.number_of_shards,
            term: Term(self.term.0),
            token,
            attempt: 0,
            lease_ttl_ms: self.lease_ttl_ms,
            inventory: Inventory {
                executors: executors.len() as u32,
                shards: bits(shards.iter().map(written)),
                retirees: bits(retirees.iter().map(|page| !page.is_empty())).first().copied().unwrap_or(0),
            },
            seal: Seal::Open,
            pause: pause.map(Box::new),
        };
        let state = State::from_pages(meta, executors, shards, retirees).map_err(|invalid| Invalid::Rule(invalid.to_string()))?;
        match summary(&state) {
            None => Ok(state),
            Some(violations) => broken(format!("the state contradicts itself: {violations}")),
        }
    }

    fn executor_pages(&self) -> Vec<ExecutorPage> {
        let page = |executors: &[Executor]| {
            let mut page: ExecutorPage = executors.iter().map(|it| Some(it.record())).collect();
            page.resize(EXECUTORS_PER_PAGE, None);
            page
        };
        self.executors.chunks(EXECUTORS_PER_PAGE).map(page).collect()
    }

    fn shard_pages(&self) -> Result<Vec<ShardPage>, Invalid> {
        let Shards { owners, epochs, releasing } = &self.shards;
        for (name, found) in [("owners", owners.len()), ("epochs", epochs.len())] {
            if found != self.number_of_shards as usize {
                let rule = format!("there are {found} {name} where number_of_shards is {}", self.number_of_shards);
                return Err(Invalid::Rule(rule));
            }
        }
        if let Some(pair) = releasing.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(Invalid::Rule(format!("shard {} stands after shard {} in releasing, which ascends", pair[1], pair[0])));
        }
        let mut left = releasing.iter().copied().peekable();
        let mut records = Vec::with_capacity(owners.len());
        for (shard, (owner, epoch)) in (0u32..).zip(owners.iter().zip(epochs)) {
            if let Some(owner) = owner.filter(|owner| *owner as usize >= self.executors.len()) {
                let known = self.executors.len();
                return Err(Invalid::Rule(format!(
                    "shard {shard} is owned by executor {owner}, there are {known}, counted from 0"
                )));
            }
            if epoch.0 >= MAX_NUMBER {
                return Err(Invalid::Rule(format!("the epoch of shard {shard} is {epoch}, it takes less than {MAX_NUMBER}")));
            }
            let state = match (owner.map(Slot), left.next_if_eq(&shard).is_some()) {
                (Some(slot), false) => ShardState::Held(slot),
                (Some(slot), true) => ShardState::Releasing(slot),
                (None, false) => ShardState::Unassigned,
                (None, true) => return Err(Invalid::Rule(format!("shard {shard} is releasing, but nobody owns it"))),
            };
            records.push(ShardRecord { epoch: Epoch(epoch.0), state });
        }
        if let Some(shard) = left.next() {
            return Err(Invalid::Rule(format!("shard {shard} is releasing, number_of_shards is {}", self.number_of_shards)));
        }
        Ok(records.chunks(SHARDS_PER_PAGE).map(<[ShardRecord]>::to_vec).collect())
    }

    fn retiree_pages(&self) -> Result<Vec<RetireePage>, Invalid> {
        let mut pages = vec![RetireePage::new(); RETIREE_PAGES];
        for retired in &self.retired {
            if retired.incarnation.0 == 0 {
                return Err(Invalid::Rule("an incarnation in retired is 0, which nobody draws".to_owned()));
            }
            let bucket = (retired.id_hash.0 % RETIREE_PAGES as u64) as usize;
            let page = &mut pages[bucket];
            if page.len() == RETIREES_PER_PAGE {
                let rule = format!("bucket {bucket} of retired has more than {RETIREES_PER_PAGE} incarnations");
                return Err(Invalid::Rule(rule));
            }
            page.push(retired.record());
        }
        Ok(pages)
    }
}

/// What is wrong with a state, in one line; `None`: nothing.
pub fn summary(state: &State) -> Option<String> {
    let violations = check(state);
    let named: Vec<String> = violations.iter().take(NAMED).map(ToString::to_string).collect();
    let more = violations.len().saturating_sub(NAMED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| named.join("; ") + &more)
}

impl Executor {
    fn of(record: &ExecutorRecord) -> Executor {
        let ExecutorRecord { id, incarnation, endpoint, weight, wish, leaving, standing } = record.clone();
        Executor { id, incarnation: Number(incarnation.0), endpoint, weight, wish, leaving, standing }
    }

    fn record(&self) -> ExecutorRecord {
        let Executor { id, incarnation, endpoint, weight, wish, leaving, standing } = self.clone();
        ExecutorRecord { id, incarnation: Incarnation(incarnation.0), endpoint, weight, wish, leaving, standing }
    }
}

impl Retired {
    fn of(retiree: &Retiree) -> Retired {
        Retired { id_hash: Number(retiree.id_hash), incarnation: Number(retiree.incarnation.0), end: retiree.end }
    }

    fn record(&self) -> Retiree {
        Retiree { id_hash: self.id_hash.0, incarnation: Incarnation(self.incarnation.0), end: self.end }
    }
}

/// A bit for each, in words of 64, without words of zeros at the end.
fn bits(set: impl Iterator<Item = bool>) -> Vec<u64> {
    let mut words = Vec::new();
    for (at, _) in set.enumerate().filter(|(_, set)| *set) {
        words.resize(at / 64 + 1, 0);
        words[at / 64] |= 1u64 << (at % 64);
    }
    words
}

#[cfg(test)]
pub(super) mod tests;
