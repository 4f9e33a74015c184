//! Records to bytes and back, the same for every store.
//!
//! A record is an *envelope* around a *body*. The envelope says what it is, where it belongs and how long it is, under a checksum,
//! and its layout is the same in every version of the format. The body is a row of columns, each a vector of fixed-width numbers,
//! written by desert. desert's decoder is not made for bad bytes (it can panic, abort, or read something else), so nothing reaches
//! it before everything in the envelope holds, and nothing leaves this module before every value was found within its bounds (P9).
//!
//! Encoding checks the same bounds: what could not be read back is not written.

mod columns;
mod envelope;
mod pages;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::str::FromStr;

#[cfg(any(test, shard_manager_fuzzing))]
pub(crate) use envelope::seal;
pub use envelope::{FORMAT_VERSION, HEADER_LEN};
pub use pages::{
    MAX_EXECUTOR_PAGES, MAX_LEASE_TTL_MS, MAX_META_LEN, MAX_PAGE_LEN, decode_executors, decode_meta, decode_retirees,
    decode_shards, encode_executors, encode_meta, encode_retirees, encode_shards,
};

use crate::assignment::record::ShardRecord;
use crate::assignment::state::{Changes, Invalid, RETIREE_PAGES, RetireePage, State};

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The one small record that every commit writes; its page number is 0.
    Meta,
    /// A page of executor records.
    Executors,
    /// A page of shard records.
    Shards,
    /// A bucket of retired incarnations.
    Retirees,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Meta, Kind::Executors, Kind::Shards, Kind::Retirees];

    /// As stores and messages name it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Meta => "meta",
            Kind::Executors => "executors",
            Kind::Shards => "shards",
            Kind::Retirees => "retirees",
        }
    }

    /// As the envelope carries it. Never changes its meaning.
    fn number(self) -> u16 {
        match self {
            Kind::Meta => 1,
            Kind::Executors => 2,
            Kind::Shards => 3,
            Kind::Retirees => 4,
        }
    }
}

/// A name that is no kind of record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no kind of record: there are meta, executors, shards and retirees")]
pub struct UnknownKind(pub String);

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Kind, UnknownKind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownKind(name.chars().take(50).collect()))
    }
}

/// Where a record is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// What it holds.
    pub kind: Kind,
    /// Which of them; 0 for `meta`.
    pub page: u32,
}

impl Key {
    /// Of the one `meta` record.
    pub const META: Key = Key { kind: Kind::Meta, page: 0 };

    /// Of a page.
    pub fn new(kind: Kind, page: u32) -> Key {
        Key { kind, page }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Meta if self.page == 0 => f.write_str("meta"),
            kind => write!(f, "{}/{}", kind.name(), self.page),
        }
    }
}

/// A record that is not taken, on the way in or on the way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {record} is refused: {reason}")]
pub struct Refused {
    /// Which one; `state` where it takes several to see what is wrong.
    pub record: String,
    /// What is wrong with it.
    pub reason: Reason,
}

/// What is wrong with a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Truncated, or followed by something.
    #[error("it has {found} bytes where its header says {expected}")]
    Length {
        /// Bytes that are there.
        found: usize,
        /// Bytes that should be; of a record without a whole header, the length of a header.
        expected: usize,
    },
    /// It is not a record of ours at all.
    #[error("it does not begin like a record of shard-manager")]
    Magic,
    /// Header or body were changed.
    #[error("its checksum does not hold")]
    Checksum,
    /// It is whole, but this program is too old for it.
    #[error("it was written by a newer version: its format is {found}, this program knows formats up to {FORMAT_VERSION}")]
    NewerVersion {
        /// As the header says.
        found: u16,
    },
    /// No version ever wrote this.
    #[error("its format is {found}, which never existed")]
    UnknownVersion {
        /// As the header says.
        found: u16,
    },
    /// It is whole, but belongs elsewhere.
    #[error("it is stored under the wrong name: its header says kind {kind}, page {page}")]
    Misplaced {
        /// The kind's number, as the header says.
        kind: u16,
        /// As the header says.
        page: u32,
    },
    /// It is whole, but its content breaks a rule.
    #[error("{0}")]
    Content(String),
    /// `meta` says that it exists, or other records do.
    #[error("it is missing")]
    Missing,
    /// `meta` does not know of it.
    #[error("it is there, but meta does not know of it")]
    Unexpected,
    /// The store has it twice.
    #[error("it is there twice")]
    Twice,
    /// The records do not fit together.
    #[error(transparent)]
    State(#[from] Invalid),
}

impl Refused {
    fn new(key: Key, reason: Reason) -> Refused {
        Refused { record: key.to_string(), reason }
    }
}

/// The records that a commit writes, `meta` first.
///
/// # Errors
/// Where a record could not be read back: a value out of its bounds, or a page that `meta` does not know of.
pub fn encode(changes: &Changes) -> Result<Vec<(Key, Vec<u8>)>, Refused> {
    let Changes { meta, executors, shards, retirees } = changes;
    let mut records = vec![(Key::META, encode_meta(meta)?)];
    let known = |kind, page, known: bool| {
        let key = Key::new(kind, page);
        if known { Ok(key) } else { Err(Refused::new(key, Reason::Unexpected)) }
    };
    for (page, content) in executors {
        let key = known(Kind::Executors, *page, *page < meta.inventory.executors)?;
        records.push((key, encode_executors(*page, content)?));
    }
    for (page, content) in shards {
        let key = known(Kind::Shards, *page, meta.inventory.has_shards(*page as usize))?;
        records.push((key, encode_shards(*page, content, meta.number_of_shards)?));
    }
    for (page, content) in retirees {
        let key = known(Kind::Retirees, *page, (*page as usize) < RETIREE_PAGES && meta.inventory.has_retirees(*page as usize))?;
        records.push((key, encode_retirees(*page, content)?));
    }
    Ok(records)
}

/// The state that a store's records make; `None` where there is no record at all.
///
/// # Errors
/// Where any record is refused, a page that `meta` names is missing, there is one that it does not name, or they do not fit
/// together. Nothing is left out and nothing is filled in, but for pages that `meta` says were never written.
pub fn decode<B: AsRef<[u8]>>(records: impl IntoIterator<Item = (Key, B)>) -> Result<Option<State>, Refused> {
    let mut found = BTreeMap::new();
    for (key, bytes) in records {
        match found.entry(key) {
            Entry::Vacant(entry) => entry.insert(bytes),
            Entry::Occupied(_) => return Err(Refused::new(key, Reason::Twice)),
        };
    }
    if found.is_empty() {
        return Ok(None);
    }
    let mut take = |kind, page| {
        let key = Key::new(kind, page);
        found.remove(&key).ok_or_else(|| Refused::new(key, Reason::Missing))
    };

    let meta = decode_meta(take(Kind::Meta, 0)?.as_ref())?;
    let mut executors = Vec::new();
    for page in 0..meta.inventory.executors {
        executors.push(decode_executors(page, take(Kind::Executors, page)?.as_ref())?);
    }
    let mut shards = Vec::new();
    for page in 0..pages::shard_pages(meta.number_of_shards) {
        shards.push(if meta.inventory.has_shards(page as usize) {
            decode_shards(page, take(Kind::Shards, page)?.as_ref(), meta.number_of_shards)?
        } else {
            vec![ShardRecord::default(); pages::shard_page_len(page, meta.number_of_shards)]
        });
    }
    let mut retirees = Vec::new();
    for page in 0..RETIREE_PAGES as u32 {
        retirees.push(if meta.inventory.has_retirees(page as usize) {
            decode_retirees(page, take(Kind::Retirees, page)?.as_ref())?
        } else {
            RetireePage::new()
        });
    }
    if let Some(key) = found.into_keys().next() {
        return Err(Refused::new(key, Reason::Unexpected));
    }
    let state = State::from_pages(meta, executors, shards, retirees);
    state.map(Some).map_err(|invalid| Refused { record: "state".to_owned(), reason: Reason::State(invalid) })
}
