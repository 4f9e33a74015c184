//! Records of the store, as bytes from anywhere and as bodies of an envelope that holds.
//!
//! ```text
//! what (1)   bits 0, 1: meta, executors, shards, retirees; bit 2: the rest is a body, to be put into an envelope
//!            bit 3: a whole store, of records that each begin with such a byte and have their length before their rest
//! format (1), page (2), number_of_shards (4), rest
//! ```

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::input::Input;
use crate::store::codec::{self, Key, Kind, MAX_META_LEN, MAX_PAGE_LEN, Refused, seal};

/// States of more shards are read by the same code, only slower.
const MOST_SHARDS: u32 = 1 << 16;
/// The longest message of a refusal; the longest value in one is an executor id, cut and escaped.
const MOST_SAID: usize = 4096;

const KINDS: [Kind; 4] = [Kind::Meta, Kind::Executors, Kind::Shards, Kind::Retirees];

struct Record {
    key: Key,
    number_of_shards: u32,
    bytes: Vec<u8>,
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let what = input.byte();
    if what & 8 == 0 {
        let (format, page, number_of_shards) = (input.byte(), input.short(), input.word());
        return one(&Record::of(what, format, page, number_of_shards, input.rest()));
    }
    let mut records = Vec::new();
    while !input.is_empty() {
        let (what, format, page) = (input.byte(), input.byte(), input.short());
        records.push(Record::of(what, format, page, 0, input.chunk()));
    }
    store(&records);
}

impl Record {
    fn of(what: u8, format: u8, page: u16, number_of_shards: u32, rest: &[u8]) -> Record {
        let kind = KINDS[usize::from(what & 3)];
        let key = if kind == Kind::Meta { Key::META } else { Key::new(kind, u32::from(page)) };
        let bytes = if what & 4 == 0 {
            rest.to_vec()
        } else {
            seal(key, u16::from(format), rest).expect("a body of any bytes has its envelope")
        };
        Record { key, number_of_shards, bytes }
    }
}

fn one(record: &Record) {
    let Record { key, number_of_shards, bytes } = record;
    let (page, shards) = (key.page, *number_of_shards);
    match key.kind {
        Kind::Meta => comes_back(record, MAX_META_LEN, codec::decode_meta(bytes), codec::encode_meta),
        Kind::Executors => {
            comes_back(record, MAX_PAGE_LEN, codec::decode_executors(page, bytes), |it| codec::encode_executors(page, it));
        }
        Kind::Shards => {
            let decoded = codec::decode_shards(page, bytes, shards);
            // An empty page is none: no state has it, and nobody writes it.
            if decoded.as_ref().is_ok_and(Vec::is_empty) {
                return;
            }
            comes_back(record, MAX_PAGE_LEN, decoded, |it| codec::encode_shards(page, it, shards));
        }
        Kind::Retirees => {
            comes_back(record, MAX_PAGE_LEN, codec::decode_retirees(page, bytes), |it| codec::encode_retirees(page, it));
        }
    }
}

/// What is taken would be written in the very same bytes, and in no more than limits say; what is refused is named.
fn comes_back<T: PartialEq + Debug>(
    Record { key, bytes, .. }: &Record,
    most: usize,
    decoded: Result<T, Refused>,
    encode: impl Fn(&T) -> Result<Vec<u8>, Refused>,
) {
    match decoded {
        Ok(content) => {
            let again = encode(&content).expect("what was read can be written");
            assert!(again == *bytes, "{key} is read as {content:?}, which is written in other bytes");
            assert!(again.len() <= most, "{key} has {} bytes, more than {most}", again.len());
        }
        Err(refused) => is_named(key, &refused),
    }
}

fn is_named(key: &Key, refused: &Refused) {
    assert_eq!(refused.record, key.to_string());
    assert!(refused.to_string().len() < MOST_SAID, "a refusal of {} bytes", refused.to_string().len());
}

/// All records of a store: the state that they make is written in the same records.
fn store(records: &[Record]) {
    let has_too_many = |record: &Record| codec::decode_meta(&record.bytes).is_ok_and(|it| it.number_of_shards > MOST_SHARDS);
    if records.iter().any(|record| record.key == Key::META && has_too_many(record)) {
        return;
    }
    match codec::decode(records.iter().map(|record| (record.key, &record.bytes))) {
        Ok(None) => assert!(records.is_empty()),
        Ok(Some(state)) => {
            let written: BTreeMap<Key, Vec<u8>> =
                codec::encode(&state.changes_since(None)).expect("it was read").into_iter().collect();
            let read: BTreeMap<Key, Vec<u8>> = records.iter().map(|record| (record.key, record.bytes.clone())).collect();
            assert!(written == read, "a state is read of {:?}, and written as {:?}", read.keys(), written.keys());
        }
        // One of those that are there, one that is missing, or all of them together.
        Err(refused) => assert!(!refused.record.is_empty() && refused.to_string().len() < MOST_SAID),
    }
}
