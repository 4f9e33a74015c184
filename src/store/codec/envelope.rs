//! The envelope: what stands between stored bytes and desert's decoder.
//!
//! ```text
//! offset  bytes  big-endian
//!      0      4  magic, "SHMG"
//!      4      2  format version of the body
//!      6      2  kind of record
//!      8      4  page number
//!     12      4  length of the body
//!     16      4  CRC-32 over bytes 0..16 and the body
//!     20         body
//! ```

use super::{Key, Kind, Reason, Refused};

/// The newest format that this program reads. Everything is written in the oldest format that can hold it, so that what an older
/// program can read it reads, and what it must not act on it refuses: format 2 is that of a `meta` with a seal, format 3 that of one
/// with a pause.
pub const FORMAT_VERSION: u16 = 3;

/// Bytes before the body.
pub const HEADER_LEN: usize = 20;

const MAGIC: [u8; 4] = *b"SHMG";
const CHECKED_LEN: usize = 16;

/// Puts a body of this format into its envelope.
pub(crate) fn seal(key: Key, version: u16, body: &[u8]) -> Result<Vec<u8>, Refused> {
    let length = u32::try_from(body.len())
        .map_err(|_| Refused::new(key, Reason::Content(format!("a body of {} bytes is too long", body.len()))))?;
    let mut record = Vec::with_capacity(HEADER_LEN + body.len());
    record.extend_from_slice(&MAGIC);
    record.extend_from_slice(&version.to_be_bytes());
    record.extend_from_slice(&key.kind.number().to_be_bytes());
    record.extend_from_slice(&key.page.to_be_bytes());
    record.extend_from_slice(&length.to_be_bytes());
    let checksum = checksum(&record, body);
    record.extend_from_slice(&checksum.to_be_bytes());
    record.extend_from_slice(body);
    Ok(record)
}

/// Takes a body, and its format, out of the envelope that was stored under `key`.
///
/// Magic, length and checksum come first, in every version, so that the other findings are about what was really written.
pub(super) fn open(key: Key, record: &[u8]) -> Result<(u16, &[u8]), Refused> {
    let refused = |reason| Err(Refused::new(key, reason));
    let Some((header, body)) = record.split_first_chunk::<HEADER_LEN>() else {
        return refused(Reason::Length { found: record.len(), expected: HEADER_LEN });
    };
    let [m0, m1, m2, m3, v0, v1, k0, k1, p0, p1, p2, p3, l0, l1, l2, l3, c0, c1, c2, c3] = *header;
    if [m0, m1, m2, m3] != MAGIC {
        return refused(Reason::Magic);
    }
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    if body.len() != length {
        return refused(Reason::Length { found: record.len(), expected: HEADER_LEN.saturating_add(length) });
    }
    if checksum(&header[..CHECKED_LEN], body) != u32::from_be_bytes([c0, c1, c2, c3]) {
        return refused(Reason::Checksum);
    }
    let version = u16::from_be_bytes([v0, v1]);
    match version {
        1 => {}
        2 | 3 if key.kind == Kind::Meta => {}
        found if found > FORMAT_VERSION => return refused(Reason::NewerVersion { found }),
        found => return refused(Reason::UnknownVersion { found }),
    }
    let (kind, page) = (u16::from_be_bytes([k0, k1]), u32::from_be_bytes([p0, p1, p2, p3]));
    if (kind, page) != (key.kind.number(), key.page) {
        return refused(Reason::Misplaced { kind, page });
    }
    Ok((version, body))
}

fn checksum(header: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(body);
    hasher.finalize()
}
