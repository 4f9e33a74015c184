//! Stored records (P9): bytes as they are, and bodies in an envelope that fits, since no mutation finds a checksum. What is taken must be
//! written again and read as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shard_manager::store::codec::{self, Key, Kind};

/// As the envelope's documentation draws it.
fn sealed(key: Key, version: u16, body: &[u8]) -> Vec<u8> {
    let number = |kind| 1 + Kind::ALL.iter().position(|it| *it == kind).unwrap_or(0) as u16;
    let mut record = b"SHMG".to_vec();
    record.extend(version.to_be_bytes());
    record.extend(number(key.kind).to_be_bytes());
    record.extend(key.page.to_be_bytes());
    record.extend((body.len() as u32).to_be_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&record);
    hasher.update(body);
    record.extend(hasher.finalize().to_be_bytes());
    record.extend(body);
    record
}

fn read(key: Key, number_of_shards: u32, record: &[u8]) {
    let page = key.page;
    match key.kind {
        Kind::Meta => {
            if let Ok(meta) = codec::decode_meta(record) {
                let again = codec::encode_meta(&meta).expect("what was read can be written");
                assert_eq!(codec::decode_meta(&again).expect("and read again"), meta);
            }
        }
        Kind::Executors => {
            if let Ok(content) = codec::decode_executors(page, record) {
                let again = codec::encode_executors(page, &content).expect("what was read can be written");
                assert_eq!(codec::decode_executors(page, &again).expect("and read again"), content);
            }
        }
        Kind::Shards => {
            if let Ok(content) = codec::decode_shards(page, record, number_of_shards) {
                let again = codec::encode_shards(page, &content, number_of_shards).expect("what was read can be written");
                assert_eq!(codec::decode_shards(page, &again, number_of_shards).expect("and read again"), content);
            }
        }
        Kind::Retirees => {
            if let Ok(content) = codec::decode_retirees(page, record) {
                let again = codec::encode_retirees(page, &content).expect("what was read can be written");
                assert_eq!(codec::decode_retirees(page, &again).expect("and read again"), content);
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let [kind, version, page, shards, body @ ..] = data else { return };
    let kind = Kind::ALL[usize::from(*kind) % Kind::ALL.len()];
    let key = if kind == Kind::Meta { Key::META } else { Key::new(kind, u32::from(*page % 4)) };
    let number_of_shards = 1 + u32::from(*shards) * 17;
    let record = sealed(key, 1 + u16::from(*version % 3), body);
    read(key, number_of_shards, body);
    read(key, number_of_shards, &record);
    let _ = codec::decode([(Key::META, &record[..]), (key, body)]);
});
