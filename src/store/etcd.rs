//! The state in etcd: one key per record, below a prefix.
//!
//! A commit is one transaction with two preconditions: the election key still has the creation revision of the fence, and `meta` was
//! last written by the commit that this one replaces. The revision of the state is the one that etcd gave the last write of `meta`, so
//! other writes to the same etcd do not move it. Nothing is ever compacted from here: that is the business of whoever runs the cluster.

use std::sync::Arc;

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};
use tonic::Code;

use super::codec::{self, Key, Kind};
use super::{Error, Limits, Loaded, Store};
use crate::assignment::Engine;
use crate::assignment::state::Changes;
use crate::backend::etcd::{Failure, Invalid, Members};
use crate::backend::{self, Fence};
use crate::config::Etcd;
use crate::types::{Revision, Token};

/// Below the prefix, what every key of the state begins with.
const STATE: &str = "state/";

/// Records per answer of a read: at the largest that a record can be, 2.2 MB.
const KEYS_PER_READ: i64 = 32;

/// The largest answer that is taken: that many records, each as large as etcd takes by default, for records that are not ours.
const MAX_ANSWER_LEN: usize = 64 * 1024 * 1024;

/// What a request carries besides keys and records, and besides each of them.
const REQUEST_OVERHEAD: usize = 1024;
const OPERATION_OVERHEAD: usize = 64;

/// How many pages fit beside `meta` into one transaction, each at its longest. (The else-branch has three operations, which are counted
/// for themselves.)
const fn pages(prefix_len: usize, max_operations: u32, max_bytes: u32) -> usize {
    let prefix_len = prefix_len + STATE.len();
    let meta = codec::MAX_META_LEN + 2 * prefix_len + OPERATION_OVERHEAD + REQUEST_OVERHEAD;
    let by_operations = (max_operations as usize).saturating_sub(1);
    let by_bytes = (max_bytes as usize).saturating_sub(meta) / (codec::MAX_PAGE_LEN + prefix_len + OPERATION_OVERHEAD);
    if by_operations < by_bytes { by_operations } else { by_bytes }
}

/// Whatever configuration takes leaves room for the pages that belong together.
const _: () = assert!(
    pages(Etcd::MAX_PREFIX_LEN, Etcd::LEAST_OPERATIONS, Etcd::LEAST_BYTES) >= Engine::LEAST_PAGES_PER_COMMIT
        && pages(Etcd::MAX_PREFIX_LEN, Etcd::LEAST_OPERATIONS - 1, u32::MAX) < Engine::LEAST_PAGES_PER_COMMIT
);

/// How often a read starts over because what it was reading was compacted meanwhile.
const READS: usize = 3;

/// See the module.
#[derive(Debug)]
pub struct EtcdStore {
    members: Arc<Members>,
    prefix: String,
    limits: Limits,
}

impl EtcdStore {
    /// The store below `<prefix>state/`. `max_operations` and `max_bytes` are what the servers take in one transaction
    /// (`--max-txn-ops`, `--max-request-bytes`).
    ///
    /// # Errors
    /// Where these leave no room for the pages that belong together, which no checked configuration does.
    pub fn new(members: Arc<Members>, prefix: &str, max_operations: u32, max_bytes: u32) -> Result<EtcdStore, Invalid> {
        let too_small =
            |name, value: u32, least| Invalid::Value { name, value: value.to_string(), rule: format!("{least} or more") };
        let pages = pages(prefix.len(), max_operations, max_bytes);
        if max_operations < Etcd::LEAST_OPERATIONS {
            return Err(too_small("persistence.etcd.max_operations", max_operations, Etcd::LEAST_OPERATIONS));
        }
        if pages < Engine::LEAST_PAGES_PER_COMMIT {
            return Err(too_small("persistence.etcd.max_bytes", max_bytes, Etcd::LEAST_BYTES));
        }
        Ok(EtcdStore { members, prefix: format!("{prefix}{STATE}"), limits: Limits { pages } })
    }

    fn key(&self, key: Key) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Everything at the revision at which the first read found it.
    async fn read(&self) -> Result<Option<Loaded>, ReadError> {
        let mut from = self.prefix.clone().into_bytes();
        let end = end_of(&self.prefix);
        let (mut pinned, mut revision, mut records) = (0, None, Vec::new());
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_limit(KEYS_PER_READ).with_revision(pinned);
            let read = self.members.call("reading the state", |client| {
                let mut client = client.kv_client().max_decoding_message_size(MAX_ANSWER_LEN);
                let (from, options) = (from.clone(), options.clone());
                async move { client.get(from, Some(options)).await }
            });
            let mut answer = read.await?;
            if pinned == 0 {
                pinned = answer.header().map_or(0, |header| header.revision());
            }
            let more = answer.more();
            for record in answer.take_kvs() {
                let key = self.parse(&record)?;
                if key == Key::META {
                    revision = Some(revision_of(&record));
                }
                let (name, bytes) = record.into_key_value();
                records.push((key, bytes));
                from = name;
            }
            if !more {
                break;
            }
            // The first key after the last one.
            from.push(0);
        }
        match (revision, codec::decode(records).map_err(Error::from)?) {
            (Some(revision), Some(state)) => Ok(Some(Loaded { revision, state })),
            (None, None) => Ok(None),
            // A state without `meta` is not decoded, nor one with it left out.
            _ => Err(missing_meta().into()),
        }
    }

    fn parse(&self, record: &KeyValue) -> Result<Key, Error> {
        let name = std::str::from_utf8(record.key()).ok().and_then(|key| key.strip_prefix(&self.prefix));
        let parse = |name: &str| match name.split_once('/') {
            None if name == Key::META.to_string() => Some(Key::META),
            None => None,
            Some((kind, page)) => {
                let key = Key::new(kind.parse::<Kind>().ok()?, page.parse().ok()?);
                // One record has one name: no `+1`, no `01`.
                (key.to_string() == name).then_some(key)
            }
        };
        name.and_then(parse).ok_or_else(|| Error::Corrupt {
            record: String::from_utf8_lossy(record.key()).into_owned(),
            reason: "there is no such record".to_owned(),
        })
    }
}

/// The first key after all that begin with `prefix`, which ends with `/`.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

enum ReadError {
    /// Starting over helps.
    Compacted(Failure),
    Other(Error),
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> ReadError {
        match failure.code {
            Some(Code::OutOfRange) => ReadError::Compacted(failure),
            _ => ReadError::Other(backend::Error::from(failure).into()),
        }
    }
}

impl From<Error> for ReadError {
    fn from(error: Error) -> ReadError {
        ReadError::Other(error)
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn load(&self) -> Result<Option<Loaded>, Error> {
        let mut reads = 1;
        loop {
            match self.read().await {
                Ok(loaded) => return Ok(loaded),
                Err(ReadError::Compacted(_)) if reads < READS => reads += 1,
                Err(ReadError::Compacted(failure)) => return Err(backend::Error::from(failure).into()),
                Err(ReadError::Other(error)) => return Err(error),
            }
        }
    }

    async fn commit(&self, fence: &Fence, expected: Option<Revision>, changes: &Changes) -> Result<Revision, Error> {
        let records = codec::encode(changes).map_err(super::unfit)?;
        let Fence::Etcd { key: fence_key, creation_revision, .. } = fence else { return Err(Error::LeadershipLost) };
        let meta = self.key(Key::META);
        let replaces = match expected {
            Some(revision) => {
                Compare::mod_revision(meta.clone(), CompareOp::Equal, i64::try_from(revision.0).unwrap_or(i64::MAX))
            }
            // No record at all, `meta` or another.
            None => Compare::create_revision(self.prefix.clone(), CompareOp::Equal, 0).with_prefix(),
        };
        let holds = Compare::create_revision(fence_key.clone(), CompareOp::Equal, *creation_revision);
        let writes: Vec<TxnOp> = records.into_iter().map(|(key, bytes)| TxnOp::put(self.key(key), bytes, None)).collect();
        let look = vec![
            TxnOp::get(fence_key.clone(), None),
            TxnOp::get(meta, None),
            TxnOp::get(self.prefix.clone(), Some(GetOptions::new().with_prefix().with_count_only())),
        ];
        let attempt = Attempt {
            members: Arc::clone(&self.members),
            transaction: Txn::new().when(vec![holds, replaces]).and_then(writes).or_else(look),
            creation_revision: *creation_revision,
            expected,
            name: (changes.meta.token, changes.meta.attempt),
        };
        // In a task of its own: a caller that goes away does not take back what may already be on its way.
        match tokio::spawn(attempt.run()).await {
            Ok(outcome) => outcome,
            Err(ended) => Err(Error::OutcomeUnknown { what: "committing", source: ended.into() }),
        }
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

/// One commit under way.
struct Attempt {
    members: Arc<Members>,
    transaction: Txn,
    creation_revision: i64,
    expected: Option<Revision>,
    /// Token and attempt of its `meta`: what it is recognised by, once it landed.
    name: (Token, u64),
}

impl Attempt {
    /// Other members get the identical transaction where one fails or hangs, because it lands once at the most, and is recognised then.
    async fn run(self) -> Result<Revision, Error> {
        let send = self.members.call("committing", |client| {
            let (mut client, transaction) = (client.kv_client(), self.transaction.clone());
            async move { client.txn(transaction).await }
        });
        let answer = send.await.map_err(|failure| {
            let Failure { what, source, may_have_arrived, .. } = failure;
            if may_have_arrived { Error::OutcomeUnknown { what, source } } else { Error::Unavailable { what, source } }
        })?;
        if answer.succeeded() { self.landed(&answer) } else { self.refused(&answer) }
    }

    fn landed(&self, answer: &TxnResponse) -> Result<Revision, Error> {
        let revision = answer.header().and_then(|header| u64::try_from(header.revision()).ok());
        // Without a number of its own it cannot be built upon; sent again, it is found and has one.
        revision.map(Revision).ok_or_else(|| unclear("an answer without a revision"))
    }

    /// Why a precondition did not hold, by what the same transaction saw.
    fn refused(&self, answer: &TxnResponse) -> Result<Revision, Error> {
        let seen = answer.op_responses();
        let [TxnOpResponse::Get(fence), TxnOpResponse::Get(meta), TxnOpResponse::Get(all)] = &seen[..] else {
            return Err(unclear("an answer without what was asked for"));
        };
        if fence.kvs().first().map(KeyValue::create_revision) != Some(self.creation_revision) {
            return Err(Error::LeadershipLost);
        }
        let Some(meta) = meta.kvs().first() else {
            return match all.count() {
                0 => Err(Error::ConcurrentModification { expected: self.expected, actual: None }),
                _ => Err(missing_meta()),
            };
        };
        let stored = codec::decode_meta(meta.value())?;
        if (stored.token, stored.attempt) == self.name {
            // It is this very commit that moved the revision, and its answer was lost.
            return Ok(revision_of(meta));
        }
        Err(Error::ConcurrentModification { expected: self.expected, actual: Some(revision_of(meta)) })
    }
}

fn revision_of(meta: &KeyValue) -> Revision {
    // etcd's revisions begin at 1.
    Revision(meta.mod_revision().unsigned_abs())
}

fn missing_meta() -> Error {
    Error::Corrupt { record: Key::META.to_string(), reason: codec::Reason::Missing.to_string() }
}

fn unclear(what: &str) -> Error {
    Error::OutcomeUnknown { what: "committing", source: what.into() }
}
