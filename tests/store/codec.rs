//! Records and their bytes. What is fed with bad bytes runs in a child process, so that an abort would be seen.

use std::sync::Arc;

use proptest::prelude::*;
use shard_manager::assignment::record::{End, ExecutorRecord, Retiree, ShardRecord, ShardState};
use shard_manager::assignment::state::{
    EXECUTORS_PER_PAGE, ExecutorPage, Inventory, MAX_PAUSE_TEXT_LEN, MAX_SEAL_TEXT_LEN, Meta, Pause, RETIREES_PER_PAGE,
    RetireePage, SHARDS_PER_PAGE, Seal, ShardPage,
};
use shard_manager::store::codec::{self, HEADER_LEN, Key, Kind, Reason, Refused};
use shard_manager::types::{Epoch, Incarnation, MAX_NUMBER, MAX_SHARDS, Slot, Term, Token};

use crate::child::{self, Process};
use crate::sample::{self, whole};

/// A record with its content, so that one test can go through all kinds.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    Meta(Meta),
    Executors(u32, ExecutorPage),
    Shards(u32, ShardPage, u32),
    Retirees(u32, RetireePage),
}

impl Content {
    fn encode(&self) -> Result<Vec<u8>, Refused> {
        match self {
            Content::Meta(meta) => codec::encode_meta(meta),
            Content::Executors(page, content) => codec::encode_executors(*page, content),
            Content::Shards(page, content, of) => codec::encode_shards(*page, content, *of),
            Content::Retirees(page, content) => codec::encode_retirees(*page, content),
        }
    }

    /// Decodes bytes as if they were stored where this is.
    fn decode(&self, bytes: &[u8]) -> Result<Content, Refused> {
        Ok(match self {
            Content::Meta(_) => Content::Meta(codec::decode_meta(bytes)?),
            Content::Executors(page, _) => Content::Executors(*page, codec::decode_executors(*page, bytes)?),
            Content::Shards(page, _, of) => Content::Shards(*page, codec::decode_shards(*page, bytes, *of)?, *of),
            Content::Retirees(page, _) => Content::Retirees(*page, codec::decode_retirees(*page, bytes)?),
        })
    }

    fn key(&self) -> Key {
        match self {
            Content::Meta(_) => Key::META,
            Content::Executors(page, _) => Key::new(Kind::Executors, *page),
            Content::Shards(page, ..) => Key::new(Kind::Shards, *page),
            Content::Retirees(page, _) => Key::new(Kind::Retirees, *page),
        }
    }
}

/// Records as a running cluster has them, and the smallest ones.
fn contents() -> Vec<Content> {
    let state = sample::state(1100, Token(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10));
    let of = state.meta.number_of_shards;
    let mut changes = whole(&state);
    let mut contents = vec![Content::Meta(changes.meta.clone())];
    let mut large = changes.meta;
    (large.number_of_shards, large.term, large.attempt) = (MAX_SHARDS, Term(MAX_NUMBER), u64::MAX);
    large.inventory = Inventory { executors: 99, shards: vec![u64::MAX; 64], retirees: u64::MAX };
    contents.push(Content::Meta(large.clone()));
    let text = "x".repeat(MAX_SEAL_TEXT_LEN);
    large.seal = Seal::Sealed { unix_ms: u64::MAX, by: text.clone(), note: text };
    contents.push(Content::Meta(large.clone()));
    let text = "y".repeat(MAX_PAUSE_TEXT_LEN);
    large.pause = Some(Box::new(Pause { until_unix_ms: u64::MAX, by: text.clone(), reason: text }));
    contents.push(Content::Meta(large.clone()));
    large.seal = Seal::Open;
    contents.push(Content::Meta(large.clone()));
    (large.seal, large.pause) = (Seal::Importing { document: u32::MAX }, None);
    contents.push(Content::Meta(large));
    let own = |page: Arc<ExecutorPage>| Arc::unwrap_or_clone(page);
    contents.extend(changes.executors.into_iter().map(|(page, content)| Content::Executors(page, own(content))));
    contents.push(Content::Executors(2, vec![None; EXECUTORS_PER_PAGE]));
    contents.push(Content::Executors(3, (0..16).map(|at| Some(sample::executor(at))).collect()));
    contents.push(Content::Shards(0, changes.shards.remove(0).1.to_vec(), of));
    contents.push(Content::Shards(1, vec![ShardRecord::default(); 76], of));
    contents.push(Content::Shards(0, vec![ShardRecord { epoch: Epoch(MAX_NUMBER), state: ShardState::Held(Slot(u32::MAX)) }], 1));
    contents.extend(changes.retirees.into_iter().map(|(page, content)| Content::Retirees(page, content.to_vec())));
    contents.push(Content::Retirees(5, Vec::new()));
    contents
}

#[test]
fn records_are_read_back_as_they_were() {
    for content in contents() {
        assert_eq!(content.decode(&content.encode().unwrap()).unwrap(), content);
    }
    let full: RetireePage = (0..RETIREES_PER_PAGE as u64).map(|at| retiree(at * 64 + 9, at + 1)).collect();
    let full = Content::Retirees(9, full);
    assert_eq!(full.decode(&full.encode().unwrap()).unwrap(), full);
}

#[test]
fn bad_bytes_are_refused_and_never_crash_the_process() {
    let mut process = Process::start("codec", std::path::Path::new(""));
    let mut last = None;
    while let Some(line) = process.line() {
        last = Some(line);
    }
    let status = process.child.wait().unwrap();
    assert!(status.success(), "the child ended with {status} after {last:?}");
    assert_eq!(last.as_deref(), Some("done"));
}

pub fn child() {
    for content in contents() {
        let sound = content.encode().unwrap();
        child::say(format!("{} of {} bytes", content.key(), sound.len()));
        flip_every_bit(&content, &sound);
        cut_and_extend(&content, &sound);
        flip_bits_under_a_right_checksum(&content, &sound);
    }
    child::say("done");
}

/// A single flipped bit is always found by the envelope.
fn flip_every_bit(content: &Content, sound: &[u8]) {
    let mut bytes = sound.to_vec();
    // Every bit of a small record; of a page of 13 kB, every bit of the first kilobyte and the last, and every 37th between.
    let bits = sound.len() * 8;
    let every = |bit: &usize| bits < 40_000 || *bit < 8192 || *bit >= bits - 8192 || bit.is_multiple_of(37);
    for bit in (0..bits).filter(every) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let refused = content.decode(&bytes).expect_err("a flipped bit is refused");
        assert!(matches!(refused.reason, Reason::Magic | Reason::Length { .. } | Reason::Checksum), "bit {bit}: {refused}");
        assert_eq!(refused.record, content.key().to_string());
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

fn cut_and_extend(content: &Content, sound: &[u8]) {
    for length in 0..sound.len() {
        let refused = content.decode(&sound[..length]).expect_err("a truncated record is refused");
        assert!(matches!(refused.reason, Reason::Length { .. }), "{length} bytes: {refused}");
    }
    for tail in [&[0][..], &[0xff; 7], sound] {
        let refused = content.decode(&[sound, tail].concat()).expect_err("bytes after a record are refused");
        assert!(matches!(refused.reason, Reason::Length { .. }), "{refused}");
    }
}

/// Whoever computes a right checksum over wrong bytes still crashes nothing, and everything taken is within its bounds: it can be
/// encoded again. Bodies are cut and extended too.
fn flip_bits_under_a_right_checksum(content: &Content, sound: &[u8]) {
    let body = &sound[HEADER_LEN..];
    let version = u16::from_be_bytes([sound[4], sound[5]]);
    let try_body = |body: &[u8]| {
        let bytes = sealed_as(version, content.key(), body);
        if let Ok(taken) = content.decode(&bytes) {
            taken.encode().expect("what is taken is within its bounds");
        }
    };
    let mut flipped = body.to_vec();
    let step = if body.len() > 5000 { 101 } else { 1 };
    for bit in (0..body.len() * 8).step_by(step) {
        flipped[bit / 8] ^= 1 << (bit % 8);
        try_body(&flipped);
        flipped[bit / 8] ^= 1 << (bit % 8);
    }
    for length in (0..body.len()).step_by(step) {
        try_body(&body[..length]);
    }
    for huge in [[0xff, 0xff, 0xff, 0xff, 0x0f], [0xfe, 0xff, 0xff, 0xff, 0x0f], [0x01, 0, 0, 0, 0], [0x80; 5]] {
        try_body(&[&huge, body].concat());
        try_body(&[body, &huge].concat());
    }
    assert!(
        content.decode(&sealed_as(version, content.key(), &[body, &[0]].concat())).is_err(),
        "bytes after the last column are refused"
    );
}

/// A record around any body, with a right checksum.
fn sealed(key: Key, body: &[u8]) -> Vec<u8> {
    sealed_as(1, key, body)
}

fn sealed_as(version: u16, key: Key, body: &[u8]) -> Vec<u8> {
    let kind = match key.kind {
        Kind::Meta => 1u16,
        Kind::Executors => 2,
        Kind::Shards => 3,
        Kind::Retirees => 4,
    };
    let header = [
        &b"SHMG"[..],
        &version.to_be_bytes(),
        &kind.to_be_bytes(),
        &key.page.to_be_bytes(),
        &u32::try_from(body.len()).unwrap().to_be_bytes(),
    ];
    let header = header.concat();
    let checksum = crc32fast::hash(&[&header, body].concat());
    [&header, &checksum.to_be_bytes()[..], body].concat()
}

#[test]
fn other_versions_and_other_names_have_reasons_of_their_own() {
    let content = &contents()[0];
    let body = content.encode().unwrap()[HEADER_LEN..].to_vec();
    let reason = |bytes: &[u8]| content.decode(bytes).unwrap_err().reason;
    assert_eq!(reason(&sealed_as(4, Key::META, &body)), Reason::NewerVersion { found: 4 });
    // Only `meta` ever had the formats 2 and 3.
    let page = codec::encode_retirees(5, &Vec::new()).unwrap();
    for version in [2, 3] {
        let as_later = sealed_as(version, Key::new(Kind::Retirees, 5), &page[HEADER_LEN..]);
        assert_eq!(codec::decode_retirees(5, &as_later).unwrap_err().reason, Reason::UnknownVersion { found: version });
    }
    assert_eq!(reason(&sealed_as(0, Key::META, &body)), Reason::UnknownVersion { found: 0 });
    assert_eq!(reason(&sealed(Key::new(Kind::Meta, 1), &body)), Reason::Misplaced { kind: 1, page: 1 });
    assert_eq!(reason(&sealed(Key::new(Kind::Shards, 0), &body)), Reason::Misplaced { kind: 3, page: 0 });
    assert_eq!(reason(&sealed_as(4, Key::META, &body)).to_string().split(':').next(), Some("it was written by a newer version"));
}

#[test]
fn values_out_of_their_bounds_are_refused_both_ways() {
    let refuse = |content: &Content, says: &str| {
        let refused = content.encode().expect_err(says);
        assert!(refused.to_string().contains(says), "{refused}: {says}");
    };
    let meta = |change: fn(&mut Meta)| {
        let mut meta = sample::meta(1024, Token(1));
        change(&mut meta);
        Content::Meta(meta)
    };
    refuse(&meta(|meta| meta.number_of_shards = 0), "number_of_shards is 0, it takes 1 to 4194304");
    refuse(&meta(|meta| meta.number_of_shards = MAX_SHARDS + 1), "number_of_shards is 4194305");
    refuse(&meta(|meta| meta.term = Term(MAX_NUMBER + 1)), "the term is 4611686018427387905");
    refuse(&meta(|meta| meta.lease_ttl_ms = 0), "lease_ttl_ms is 0");
    refuse(&meta(|meta| meta.lease_ttl_ms = 1 << 32), "lease_ttl_ms is 4294967296");
    refuse(&meta(|meta| meta.inventory.shards = vec![2]), "shard pages beyond the 1");
    refuse(&meta(|meta| meta.inventory.shards = vec![0, 0]), "shard pages beyond the 1");
    refuse(&meta(|meta| meta.inventory.executors = u32::MAX), "executor pages");

    let long = |by: usize, note: usize| {
        let mut meta = sample::meta(1024, Token(1));
        meta.seal = Seal::Sealed { unix_ms: 1, by: "x".repeat(by), note: "x".repeat(note) };
        Content::Meta(meta)
    };
    refuse(&long(257, 0), "a text of the seal has 257 bytes, it takes at most 256");
    refuse(&long(0, 300), "a text of the seal has 300 bytes");

    let paused = |by: usize, reason: usize| {
        let mut meta = sample::meta(1024, Token(1));
        meta.pause = Some(Box::new(Pause { until_unix_ms: 1, by: "x".repeat(by), reason: "x".repeat(reason) }));
        Content::Meta(meta)
    };
    refuse(&paused(257, 0), "a text of the pause has 257 bytes, it takes at most 256");
    refuse(&paused(0, 300), "a text of the pause has 300 bytes");

    let executor = |change: fn(&mut ExecutorRecord)| {
        let mut record = sample::executor(3);
        change(&mut record);
        let mut page = vec![None; EXECUTORS_PER_PAGE];
        page[7] = Some(record);
        Content::Executors(0, page)
    };
    refuse(&executor(|record| record.incarnation = Incarnation(0)), "executor-3.example_A has incarnation 0");
    refuse(&executor(|record| record.weight = 0), "weight 0, it takes 1 to 1000");
    refuse(&executor(|record| record.weight = 1001), "weight 1001");
    refuse(&executor(|record| record.endpoint = "x".repeat(513)), "an endpoint of 513 bytes");
    refuse(&Content::Executors(0, vec![None; 15]), "15 places");

    let shard = |epoch, state| Content::Shards(0, vec![ShardRecord { epoch: Epoch(epoch), state }], 1);
    refuse(&shard(MAX_NUMBER + 1, ShardState::Unassigned), "an epoch is 4611686018427387905");
    refuse(&shard(0, ShardState::Held(Slot(3))), "slot 3 has epoch 0");
    refuse(&Content::Shards(0, vec![ShardRecord::default(); 2], 1), "it has 2 shards, of 1 it takes 1");
    refuse(&Content::Shards(1, vec![ShardRecord::default(); SHARDS_PER_PAGE], 1024), "it takes 0");
    refuse(&Content::Retirees(1, vec![retiree(2, 1)]), "belongs into another bucket");
    refuse(&Content::Retirees(1, vec![retiree(65, 0)]), "an incarnation is 0");
    refuse(&Content::Retirees(1, vec![retiree(1, 1); RETIREES_PER_PAGE + 1]), "at most 4096");

    // The same bounds hold for what is read: columns of one cell, epochs, states, owners.
    let read = |epoch: u64, state: u8, owner: u32| {
        let body = [&[2][..], &epoch.to_be_bytes(), &[1, state, 2], &owner.to_be_bytes()].concat();
        codec::decode_shards(0, &sealed(Key::new(Kind::Shards, 0), &body), 1)
    };
    assert_eq!(read(7, 1, 3).unwrap(), [ShardRecord { epoch: Epoch(7), state: ShardState::Held(Slot(3)) }]);
    for (epoch, state, owner, says) in [
        (MAX_NUMBER + 1, 1, 3, "an epoch is"),
        (7, 3, 3, "the state of a shard is 3"),
        (7, 0, 3, "names slot 3"),
        (0, 2, 3, "epoch 0"),
    ] {
        let refused = read(epoch, state, owner).unwrap_err();
        assert!(refused.to_string().contains(says), "{refused}: {says}");
    }
}

proptest! {
    /// Random bytes in place of a body, under a right checksum. desert itself is not run on more than the columns' kinds of vectors.
    #[test]
    fn random_bodies_are_refused_or_within_their_bounds(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        for content in contents() {
            if let Ok(taken) = content.decode(&sealed(content.key(), &body)) {
                prop_assert!(taken.encode().is_ok());
            }
        }
    }
}

/// The format as it is stored. Whoever changes these bytes raises `FORMAT_VERSION` and reads the old ones as well.
#[test]
fn golden_bytes() {
    let meta = sample::meta(1024, Token(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10));
    let mut executors = vec![None; EXECUTORS_PER_PAGE];
    executors[1] = Some(sample::executor(1));
    let shards = vec![
        ShardRecord { epoch: Epoch(5), state: ShardState::Held(Slot(1)) },
        ShardRecord { epoch: Epoch(6), state: ShardState::Releasing(Slot(2)) },
        ShardRecord { epoch: Epoch(7), state: ShardState::Unassigned },
    ];
    let open = Meta { inventory: Inventory { executors: 1, shards: vec![1], retirees: 4 }, ..meta };
    let sealed = Seal::Sealed { unix_ms: 1_700_000_000_000, by: "me".to_owned(), note: "there".to_owned() };
    let pause = Box::new(Pause { until_unix_ms: 1_700_000_000_000, by: "me".to_owned(), reason: "a game".to_owned() });
    let golden = [
        (
            Content::Meta(open.clone()),
            "53484d4700010001000000000000005576af6bba1000112233445566778899aabbccddeeff100102030405060708090a0b0c\
             0d0e0f10040000040000000001080000018bcfe5680000000000000000010000000000007530000000000000000402000000\
             0000000001",
        ),
        (
            Content::Meta(Meta { seal: sealed.clone(), ..open.clone() }),
            "53484d47000200010000000000000071d52994fd1000112233445566778899aabbccddeeff100102030405060708090a0b0c\
             0d0e0f10040000040000000001080000018bcfe5680000000000000000010000000000007530000000000000000402000000\
             00000000010101020000018bcfe56800040000000200000005076d657468657265",
        ),
        (
            Content::Meta(Meta { seal: Seal::Importing { document: 0x0102_0304 }, ..open.clone() }),
            "53484d4700020001000000000000006a31551d091000112233445566778899aabbccddeeff100102030405060708090a0b0c\
             0d0e0f10040000040000000001080000018bcfe5680000000000000000010000000000007530000000000000000402000000\
             0000000001010202000000000102030404000000000000000000",
        ),
        (
            Content::Meta(Meta { pause: Some(pause.clone()), ..open.clone() }),
            "53484d47000300010000000000000085ba11eb111000112233445566778899aabbccddeeff100102030405060708090a0b0c\
             0d0e0f10040000040000000001080000018bcfe5680000000000000000010000000000007530000000000000000402000000\
             0000000001010002000000000000000004000000000000000000020000018bcfe56800040000000200000006086d65612067\
             616d65",
        ),
        (
            Content::Meta(Meta { pause: Some(pause), seal: sealed, ..open.clone() }),
            "53484d4700030001000000000000008c0b9b21fe1000112233445566778899aabbccddeeff100102030405060708090a0b0c\
             0d0e0f10040000040000000001080000018bcfe5680000000000000000010000000000007530000000000000000402000000\
             00000000010101020000018bcfe56800040000000200000005076d657468657265020000018bcfe568000400000002000000\
             06086d65612067616d65",
        ),
        (
            Content::Executors(0, executors),
            "53484d470001000200000000000000599b701791100001000000000000000000000000000002fffffffffffffffe02000000\
             640101010001010200000014146578656375746f722d312e6578616d706c655f41020000001414687474703a2f2f31302e30\
             2e302e313a39303933",
        ),
        (
            Content::Shards(0, shards, 3),
            "53484d4700010003000000000000002a922ad6fb060000000000000005000000000000000600000000000000070301020006\
             000000010000000200000000",
        ),
        (
            Content::Retirees(2, vec![retiree(66, 9)]),
            "53484d47000100040000000200000014c3cbf29d0200000000000000420200000000000000090101",
        ),
    ];
    for (content, hex) in golden {
        let bytes = content.encode().unwrap();
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, hex, "{}", content.key());
        assert_eq!(content.decode(&bytes).unwrap(), content);
    }
}

fn retiree(id_hash: u64, incarnation: u64) -> Retiree {
    Retiree { id_hash, incarnation: Incarnation(incarnation), end: End::Superseded }
}
