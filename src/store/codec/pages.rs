//! Each kind of record: its columns, and the bounds of their values.

use std::str::FromStr;

use uuid::Uuid;

use super::columns::{Reader, Writer};
use super::envelope::{HEADER_LEN, open, seal};
use super::{Key, Kind, Reason, Refused};
use crate::assignment::record::{End, ExecutorRecord, MAX_ENDPOINT_LEN, Retiree, ShardRecord, ShardState, Standing, Wish};
use crate::assignment::state::{
    EXECUTORS_PER_PAGE, ExecutorPage, Inventory, MAX_PAUSE_TEXT_LEN, MAX_SEAL_TEXT_LEN, Meta, Pause, RETIREE_PAGES,
    RETIREES_PER_PAGE, RetireePage, SHARDS_PER_PAGE, Seal, ShardPage,
};
use crate::types::{ClusterId, Epoch, ExecutorId, Incarnation, MAX_NUMBER, MAX_SHARDS, MAX_WEIGHT, Slot, Term, Token};

/// The longest executor lease that a record can hold, in milliseconds: 49 days.
pub const MAX_LEASE_TTL_MS: u64 = u32::MAX as u64;

/// The most pages of executors: their slots are numbered in 32 bits.
pub const MAX_EXECUTOR_PAGES: u32 = u32::MAX / EXECUTORS_PER_PAGE as u32;

/// What a record of columns takes besides its cells: the envelope, and a length for each column.
const FRAME_LEN: usize = 64 + HEADER_LEN;

/// No `meta` is longer, in bytes: one bit for each page of shards, the texts of a seal and of a pause, and less than 160 bytes besides.
pub const MAX_META_LEN: usize =
    FRAME_LEN + 160 + 2 * (MAX_SEAL_TEXT_LEN + MAX_PAUSE_TEXT_LEN) + MAX_SHARDS as usize / SHARDS_PER_PAGE / 8;

/// No page of any kind is longer, in bytes: the longest is a full bucket of retirees, at 17 bytes each.
pub const MAX_PAGE_LEN: usize = FRAME_LEN + RETIREES_PER_PAGE * 17;

/// Kinds of seals. Never change their meaning. None is written in format 3 only.
const UNSEALED: u8 = 0;
const SEALED: u8 = 1;
const IMPORTING: u8 = 2;

/// How many pages a number of shards takes.
pub(super) fn shard_pages(number_of_shards: u32) -> u32 {
    number_of_shards.div_ceil(SHARDS_PER_PAGE as u32)
}

/// How many shards are on a page; only the last one is not full.
pub(super) fn shard_page_len(page: u32, number_of_shards: u32) -> usize {
    (number_of_shards as usize).saturating_sub(page as usize * SHARDS_PER_PAGE).min(SHARDS_PER_PAGE)
}

/// `meta` as bytes: as ever where it is open, in the formats that older programs refuse where it has a seal or a pause.
///
/// # Errors
/// Where a value is out of its bounds.
pub fn encode_meta(meta: &Meta) -> Result<Vec<u8>, Refused> {
    let version = match (&meta.pause, &meta.seal) {
        (Some(_), _) => 3,
        (None, Seal::Open) => 1,
        (None, _) => 2,
    };
    encode_as(version, Key::META, |columns| {
        check_meta(meta)?;
        let Meta { cluster_id, number_of_shards, term, token, attempt, lease_ttl_ms, inventory, seal, pause } = meta;
        columns.column(&cluster_id.0.as_bytes().to_vec())?;
        columns.column(&token.0.to_be_bytes().to_vec())?;
        columns.column(&vec![*number_of_shards, inventory.executors])?;
        columns.column(&vec![term.0, *attempt, *lease_ttl_ms, inventory.retirees])?;
        columns.column(&inventory.shards)?;
        let (kind, number, texts) = match seal {
            Seal::Open if pause.is_none() => return Ok(()),
            Seal::Open => (UNSEALED, 0, [""; 2]),
            Seal::Sealed { unix_ms, by, note } => (SEALED, *unix_ms, [by.as_str(), note.as_str()]),
            Seal::Importing { document } => (IMPORTING, u64::from(*document), [""; 2]),
        };
        columns.column(&vec![kind])?;
        columns.column(&vec![number])?;
        columns.texts(texts.into_iter())?;
        let Some(Pause { until_unix_ms, by, reason }) = pause.as_deref() else { return Ok(()) };
        columns.column(&vec![*until_unix_ms])?;
        columns.texts([by.as_str(), reason.as_str()].into_iter())
    })
}

/// `meta` from bytes.
///
/// # Errors
/// Where the envelope does not hold or a value is out of its bounds.
pub fn decode_meta(record: &[u8]) -> Result<Meta, Refused> {
    decode_any(Key::META, record, |version, columns| {
        let cluster_id = columns.array("cluster_id")?;
        let token = columns.array("token")?;
        let [number_of_shards, executors] = columns.array("counts")?;
        let [term, attempt, lease_ttl_ms, retirees] = columns.array("numbers")?;
        let shards = columns.any("shard_pages")?;
        let seal = if version == 1 { Seal::Open } else { decode_seal(version, columns)? };
        let pause = if version < 3 { None } else { Some(Box::new(decode_pause(columns)?)) };
        let meta = Meta {
            cluster_id: ClusterId(Uuid::from_bytes(cluster_id)),
            number_of_shards,
            term: Term(term),
            token: Token(u128::from_be_bytes(token)),
            attempt,
            lease_ttl_ms,
            inventory: Inventory { executors, shards, retirees },
            seal,
            pause,
        };
        check_meta(&meta)?;
        Ok(meta)
    })
}

fn decode_pause(columns: &mut Reader<'_>) -> Result<Pause, String> {
    let [until_unix_ms] = columns.array("pause")?;
    let texts: [String; 2] = columns.texts("pause_texts", 2)?.try_into().map_err(|_| "a pause takes two texts")?;
    let [by, reason] = texts;
    Ok(Pause { until_unix_ms, by, reason })
}

fn decode_seal(version: u16, columns: &mut Reader<'_>) -> Result<Seal, String> {
    let [kind] = columns.array("seal")?;
    let [number] = columns.array::<u64, 1>("seal_number")?;
    let texts: [String; 2] = columns.texts("seal_texts", 2)?.try_into().map_err(|_| "a seal takes two texts")?;
    let [by, note] = texts;
    match kind {
        UNSEALED if version >= 3 => match (number, by.is_empty() && note.is_empty()) {
            (0, true) => Ok(Seal::Open),
            _ => Err("what is not sealed has a seal's number or text".to_owned()),
        },
        SEALED => Ok(Seal::Sealed { unix_ms: number, by, note }),
        IMPORTING if !by.is_empty() || !note.is_empty() => Err("what is being imported has the text of a seal".to_owned()),
        IMPORTING => {
            let document = number.try_into().map_err(|_| format!("a document's checksum is {number}, it takes 32 bits"))?;
            Ok(Seal::Importing { document })
        }
        _ => Err(format!("a seal is {kind}, it takes {SEALED} or {IMPORTING}")),
    }
}

fn check_meta(meta: &Meta) -> Result<(), String> {
    let Meta { number_of_shards, term, lease_ttl_ms, inventory, seal, pause, .. } = meta;
    if let Some(Pause { by, reason, .. }) = pause.as_deref()
        && let Some(text) = [by, reason].into_iter().find(|text| text.len() > MAX_PAUSE_TEXT_LEN)
    {
        return Err(format!("a text of the pause has {} bytes, it takes at most {MAX_PAUSE_TEXT_LEN}", text.len()));
    }
    if let Seal::Sealed { by, note, .. } = seal
        && let Some(text) = [by, note].into_iter().find(|text| text.len() > MAX_SEAL_TEXT_LEN)
    {
        return Err(format!("a text of the seal has {} bytes, it takes at most {MAX_SEAL_TEXT_LEN}", text.len()));
    }
    if !(1..=MAX_SHARDS).contains(number_of_shards) {
        return Err(format!("number_of_shards is {number_of_shards}, it takes 1 to {MAX_SHARDS}"));
    }
    if term.0 > MAX_NUMBER {
        return Err(format!("the term is {term}, it takes at most {MAX_NUMBER}"));
    }
    if !(1..=MAX_LEASE_TTL_MS).contains(lease_ttl_ms) {
        return Err(format!("lease_ttl_ms is {lease_ttl_ms}, it takes 1 to {MAX_LEASE_TTL_MS}"));
    }
    if inventory.executors > MAX_EXECUTOR_PAGES {
        return Err(format!("the inventory has {} executor pages, it takes at most {MAX_EXECUTOR_PAGES}", inventory.executors));
    }
    let pages = shard_pages(*number_of_shards) as usize;
    if inventory.shards.len() > pages.div_ceil(64) || (pages..pages.next_multiple_of(64)).any(|page| inventory.has_shards(page)) {
        return Err(format!("the inventory has shard pages beyond the {pages} that {number_of_shards} shards take"));
    }
    Ok(())
}

/// A page of executor records as bytes.
///
/// # Errors
/// Where the page does not have exactly [`EXECUTORS_PER_PAGE`] places, or a value is out of its bounds.
pub fn encode_executors(page: u32, content: &ExecutorPage) -> Result<Vec<u8>, Refused> {
    encode(Key::new(Kind::Executors, page), |columns| {
        if content.len() != EXECUTORS_PER_PAGE {
            return Err(format!("it has {} places, it takes {EXECUTORS_PER_PAGE}", content.len()));
        }
        let records: Vec<&ExecutorRecord> = content.iter().flatten().collect();
        records.iter().try_for_each(|record| check_executor(record))?;
        columns.column(&content.iter().map(|place| u8::from(place.is_some())).collect::<Vec<_>>())?;
        columns.column(&records.iter().map(|record| record.incarnation.0).collect::<Vec<_>>())?;
        columns.column(&records.iter().map(|record| record.weight).collect::<Vec<_>>())?;
        columns.column(&records.iter().map(|record| wish_number(record.wish)).collect::<Vec<_>>())?;
        columns.column(&records.iter().map(|record| u8::from(record.leaving)).collect::<Vec<_>>())?;
        columns.column(&records.iter().map(|record| standing_number(record.standing)).collect::<Vec<_>>())?;
        columns.texts(records.iter().map(|record| record.id.as_str()))?;
        columns.texts(records.iter().map(|record| record.endpoint.as_str()))
    })
}

/// A page of executor records from bytes.
///
/// # Errors
/// Where the envelope does not hold or a value is out of its bounds.
pub fn decode_executors(page: u32, record: &[u8]) -> Result<ExecutorPage, Refused> {
    decode(Key::new(Kind::Executors, page), record, |columns| {
        let places = columns.array::<u8, EXECUTORS_PER_PAGE>("places")?;
        let taken = places.map(|place| flag("place", place));
        let count = taken.iter().filter(|taken| matches!(taken, Ok(true))).count();

        let incarnations: Vec<u64> = columns.column("incarnations", count)?;
        let weights: Vec<u32> = columns.column("weights", count)?;
        let wishes: Vec<u8> = columns.column("wishes", count)?;
        let leaving: Vec<u8> = columns.column("leaving", count)?;
        let standings: Vec<u8> = columns.column("standings", count)?;
        let ids = columns.texts("ids", count)?;
        let endpoints = columns.texts("endpoints", count)?;

        let mut records = Vec::with_capacity(count);
        for (at, (id, endpoint)) in ids.into_iter().zip(endpoints).enumerate() {
            let record = ExecutorRecord {
                id: ExecutorId::from_str(&id).map_err(|error| error.to_string())?,
                incarnation: Incarnation(incarnations[at]),
                endpoint,
                weight: weights[at],
                wish: wish(wishes[at])?,
                leaving: flag("leaving", leaving[at])?,
                standing: standing(standings[at])?,
            };
            check_executor(&record)?;
            records.push(record);
        }
        let mut records = records.into_iter();
        taken.into_iter().map(|taken| Ok(if taken? { records.next() } else { None })).collect()
    })
}

fn check_executor(record: &ExecutorRecord) -> Result<(), String> {
    let ExecutorRecord { id, incarnation, endpoint, weight, .. } = record;
    if incarnation.0 == 0 {
        return Err(format!("executor {id} has incarnation 0, which nobody draws"));
    }
    if !(1..=MAX_WEIGHT).contains(weight) {
        return Err(format!("executor {id} has weight {weight}, it takes 1 to {MAX_WEIGHT}"));
    }
    if endpoint.len() > MAX_ENDPOINT_LEN {
        return Err(format!("executor {id} has an endpoint of {} bytes, it takes at most {MAX_ENDPOINT_LEN}", endpoint.len()));
    }
    Ok(())
}

fn flag(name: &str, number: u8) -> Result<bool, String> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(format!("{name} is {number}, it takes 0 or 1")),
    }
}

fn wish_number(wish: Wish) -> u8 {
    match wish {
        Wish::None => 0,
        Wish::Cordon => 1,
        Wish::Drain => 2,
        Wish::Remove => 3,
    }
}

fn wish(number: u8) -> Result<Wish, String> {
    match number {
        0 => Ok(Wish::None),
        1 => Ok(Wish::Cordon),
        2 => Ok(Wish::Drain),
        3 => Ok(Wish::Remove),
        _ => Err(format!("a wish is {number}, it takes 0 to 3")),
    }
}

fn standing_number(standing: Standing) -> u8 {
    match standing {
        Standing::Present => 0,
        Standing::Superseded => 1,
        Standing::Gone => 2,
    }
}

fn standing(number: u8) -> Result<Standing, String> {
    match number {
        0 => Ok(Standing::Present),
        1 => Ok(Standing::Superseded),
        2 => Ok(Standing::Gone),
        _ => Err(format!("a standing is {number}, it takes 0 to 2")),
    }
}

/// A page of shard records as bytes: 13 bytes a shard.
///
/// # Errors
/// Where the page does not have exactly the shards that belong on it, or a value is out of its bounds.
pub fn encode_shards(page: u32, content: &ShardPage, number_of_shards: u32) -> Result<Vec<u8>, Refused> {
    encode(Key::new(Kind::Shards, page), |columns| {
        let expected = shard_page_len(page, number_of_shards);
        if content.len() != expected || expected == 0 {
            return Err(format!("it has {} shards, of {number_of_shards} it takes {expected}", content.len()));
        }
        content.iter().try_for_each(check_shard)?;
        columns.column(&content.iter().map(|shard| shard.epoch.0).collect::<Vec<_>>())?;
        columns.column(&content.iter().map(|shard| shard_state_number(shard.state)).collect::<Vec<_>>())?;
        columns.column(&content.iter().map(|shard| shard.owner().map_or(0, |slot| slot.0)).collect::<Vec<_>>())
    })
}

/// A page of shard records from bytes.
///
/// # Errors
/// Where the envelope does not hold, the page does not have exactly the shards that belong on it, or a value is out of its bounds.
pub fn decode_shards(page: u32, record: &[u8], number_of_shards: u32) -> Result<ShardPage, Refused> {
    decode(Key::new(Kind::Shards, page), record, |columns| {
        let count = shard_page_len(page, number_of_shards);
        let epochs: Vec<u64> = columns.column("epochs", count)?;
        let states: Vec<u8> = columns.column("states", count)?;
        let owners: Vec<u32> = columns.column("owners", count)?;
        let cells = epochs.into_iter().zip(states).zip(owners);
        let records = cells.map(|((epoch, state), owner)| {
            let record = ShardRecord { epoch: Epoch(epoch), state: shard_state(state, Slot(owner))? };
            check_shard(&record)?;
            Ok(record)
        });
        records.collect()
    })
}

fn check_shard(record: &ShardRecord) -> Result<(), String> {
    let epoch = record.epoch.0;
    if epoch > MAX_NUMBER {
        return Err(format!("an epoch is {epoch}, it takes at most {MAX_NUMBER}"));
    }
    if let Some(slot) = record.owner()
        && epoch == 0
    {
        return Err(format!("a shard of slot {slot} has epoch 0, which is never granted"));
    }
    Ok(())
}

fn shard_state_number(state: ShardState) -> u8 {
    match state {
        ShardState::Unassigned => 0,
        ShardState::Held(_) => 1,
        ShardState::Releasing(_) => 2,
    }
}

fn shard_state(number: u8, owner: Slot) -> Result<ShardState, String> {
    match number {
        0 if owner == Slot(0) => Ok(ShardState::Unassigned),
        0 => Err(format!("an unassigned shard names slot {owner}")),
        1 => Ok(ShardState::Held(owner)),
        2 => Ok(ShardState::Releasing(owner)),
        _ => Err(format!("the state of a shard is {number}, it takes 0 to 2")),
    }
}

/// A bucket of retired incarnations as bytes.
///
/// # Errors
/// Where there are more than [`RETIREES_PER_PAGE`], or one does not belong here.
pub fn encode_retirees(page: u32, content: &RetireePage) -> Result<Vec<u8>, Refused> {
    encode(Key::new(Kind::Retirees, page), |columns| {
        check_retirees(page, content)?;
        columns.column(&content.iter().map(|it| it.id_hash).collect::<Vec<_>>())?;
        columns.column(&content.iter().map(|it| it.incarnation.0).collect::<Vec<_>>())?;
        columns.column(&content.iter().map(|it| end_number(it.end)).collect::<Vec<_>>())
    })
}

/// A bucket of retired incarnations from bytes.
///
/// # Errors
/// Where the envelope does not hold, there are more than [`RETIREES_PER_PAGE`], or one does not belong here.
pub fn decode_retirees(page: u32, record: &[u8]) -> Result<RetireePage, Refused> {
    decode(Key::new(Kind::Retirees, page), record, |columns| {
        let hashes: Vec<u64> = columns.any("hashes")?;
        let incarnations: Vec<u64> = columns.column("incarnations", hashes.len())?;
        let ends: Vec<u8> = columns.column("ends", hashes.len())?;
        let cells = hashes.into_iter().zip(incarnations).zip(ends);
        let retirees = cells.map(|((id_hash, incarnation), number)| {
            Ok(Retiree { id_hash, incarnation: Incarnation(incarnation), end: end(number)? })
        });
        let retirees = retirees.collect::<Result<Vec<Retiree>, String>>()?;
        check_retirees(page, &retirees)?;
        Ok(retirees)
    })
}

fn check_retirees(page: u32, retirees: &[Retiree]) -> Result<(), String> {
    if retirees.len() > RETIREES_PER_PAGE {
        return Err(format!("it has {} incarnations, it takes at most {RETIREES_PER_PAGE}", retirees.len()));
    }
    for Retiree { id_hash: hash, incarnation, .. } in retirees {
        if hash % RETIREE_PAGES as u64 != u64::from(page) {
            return Err(format!("hash {hash:#x} belongs into another bucket"));
        }
        if incarnation.0 == 0 {
            return Err("an incarnation is 0, which nobody draws".to_owned());
        }
    }
    Ok(())
}

fn end_number(end: End) -> u8 {
    match end {
        End::Over => 0,
        End::Superseded => 1,
    }
}

fn end(number: u8) -> Result<End, String> {
    match number {
        0 => Ok(End::Over),
        1 => Ok(End::Superseded),
        _ => Err(format!("how an incarnation ended is {number}, it takes 0 or 1")),
    }
}

fn encode(key: Key, write: impl FnOnce(&mut Writer) -> Result<(), String>) -> Result<Vec<u8>, Refused> {
    encode_as(1, key, write)
}

fn encode_as(version: u16, key: Key, write: impl FnOnce(&mut Writer) -> Result<(), String>) -> Result<Vec<u8>, Refused> {
    let mut columns = Writer::new();
    write(&mut columns).map_err(|reason| Refused::new(key, Reason::Content(reason)))?;
    seal(key, version, &columns.finish())
}

fn decode<T>(key: Key, record: &[u8], read: impl FnOnce(&mut Reader<'_>) -> Result<T, String>) -> Result<T, Refused> {
    decode_any(key, record, |_, columns| read(columns))
}

/// Of a kind of record that has several formats.
fn decode_any<T>(key: Key, record: &[u8], read: impl FnOnce(u16, &mut Reader<'_>) -> Result<T, String>) -> Result<T, Refused> {
    let (version, body) = open(key, record)?;
    let mut columns = Reader::new(body);
    let content = read(version, &mut columns).and_then(|content| columns.finish().map(|()| content));
    content.map_err(|reason| Refused::new(key, Reason::Content(reason)))
}
