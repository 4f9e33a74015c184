//! A store in memory, for tests of what stands above it. Nothing survives the process.
//!
//! It keeps records as encoded bytes and answers as the real stores do. [`MemoryStore::disturb`] makes the next commit go wrong.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::codec::{self, Key};
use super::{Error, Limits, Loaded, Store};
use crate::assignment::state::Changes;
use crate::backend::Fence;
use crate::types::{Revision, Token};

/// See the module. Clones are handles to the same store.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    content: Arc<Mutex<Content>>,
}

#[derive(Debug, Default)]
struct Content {
    leader: Option<(i64, Token)>,
    revision: Option<Revision>,
    records: BTreeMap<Key, Vec<u8>>,
    disturbance: Option<Disturbance>,
}

/// What goes wrong with the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// [`Error::Unavailable`]; nothing is written.
    Refuse,
    /// [`Error::OutcomeUnknown`]; nothing was written.
    LoseRequest,
    /// [`Error::OutcomeUnknown`]; it was written, if it would have been without the disturbance.
    LoseAnswer,
}

impl MemoryStore {
    /// An empty one.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Draws a new leadership; from then on the fence of none before holds.
    pub fn lead(&self) -> Fence {
        let mut content = self.lock();
        let number = content.leader.map_or(1, |(number, _)| number + 1);
        let token = Token::draw();
        content.leader = Some((number, token));
        Fence::Sql { number, token }
    }

    /// Makes the next commit go wrong.
    pub fn disturb(&self, disturbance: Disturbance) {
        self.lock().disturbance = Some(disturbance);
    }

    /// Replaces the bytes of a record, or with `None` takes it away, behind everybody's back.
    pub fn tamper(&self, key: Key, bytes: Option<Vec<u8>>) {
        let records = &mut self.lock().records;
        match bytes {
            Some(bytes) => records.insert(key, bytes),
            None => records.remove(&key),
        };
    }

    /// The bytes of a record as they are stored.
    pub fn record(&self, key: Key) -> Option<Vec<u8>> {
        self.lock().records.get(&key).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    fn commit(&mut self, fence: &Fence, expected: Option<Revision>, changes: &Changes) -> Result<Revision, Error> {
        let records = codec::encode(changes).map_err(super::unfit)?;
        let Fence::Sql { number, token } = fence else { return Err(Error::LeadershipLost) };
        if self.leader != Some((*number, *token)) {
            return Err(Error::LeadershipLost);
        }
        if self.revision != expected {
            return match self.revision {
                Some(landed) if self.is_stored(changes)? => Ok(landed),
                actual => Err(Error::ConcurrentModification { expected, actual }),
            };
        }
        self.records.extend(records);
        let revision = Revision(expected.map_or(1, |revision| revision.0 + 1));
        self.revision = Some(revision);
        Ok(revision)
    }

    fn is_stored(&self, changes: &Changes) -> Result<bool, Error> {
        let missing = || Error::Corrupt { record: Key::META.to_string(), reason: codec::Reason::Missing.to_string() };
        let meta = codec::decode_meta(self.records.get(&Key::META).ok_or_else(missing)?)?;
        Ok((meta.token, meta.attempt) == (changes.meta.token, changes.meta.attempt))
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn load(&self) -> Result<Option<Loaded>, Error> {
        let content = self.lock();
        let missing = |record: &str| Error::Corrupt { record: record.to_owned(), reason: codec::Reason::Missing.to_string() };
        match (content.revision, codec::decode(content.records.iter().map(|(key, bytes)| (*key, bytes)))?) {
            (None, None) => Ok(None),
            (Some(revision), Some(state)) => Ok(Some(Loaded { revision, state })),
            (None, Some(_)) => Err(missing("revision")),
            (Some(_), None) => Err(missing("meta")),
        }
    }

    async fn commit(&self, fence: &Fence, expected: Option<Revision>, changes: &Changes) -> Result<Revision, Error> {
        let mut content = self.lock();
        let unknown = || Error::OutcomeUnknown { what: "committing", source: "the test said so".into() };
        match content.disturbance.take() {
            None => content.commit(fence, expected, changes),
            Some(Disturbance::Refuse) => Err(Error::Unavailable { what: "committing", source: "the test said so".into() }),
            Some(Disturbance::LoseRequest) => Err(unknown()),
            Some(Disturbance::LoseAnswer) => {
                content.commit(fence, expected, changes).ok();
                Err(unknown())
            }
        }
    }

    fn limits(&self) -> Limits {
        // Small, so that tests of what cuts changes into commits need no large states.
        Limits { pages: 16 }
    }
}
