//! What the SQL stores share: rows to state and back.

use super::codec::{self, Key, Kind};
use super::{Error, Loaded};
use crate::backend::Fence;
use crate::types::Revision;

/// The name under which a row of [`assemble`] carries the revision in place of a page.
pub(super) const REVISION: &str = "revision";

/// The state, of rows of kind, page and body that were read as one snapshot, with the revision among them.
pub(super) fn assemble(rows: impl IntoIterator<Item = Result<(String, i64, Vec<u8>), Error>>) -> Result<Option<Loaded>, Error> {
    let mut revision = None;
    let mut records = Vec::new();
    for row in rows {
        let (kind, page, body) = row?;
        if kind == REVISION {
            revision = Some(revision_from(page)?);
        } else {
            records.push((key_from(&kind, page)?, body));
        }
    }
    match (revision, codec::decode(records)?) {
        (None, None) => Ok(None),
        (Some(revision), Some(state)) => Ok(Some(Loaded { revision, state })),
        (None, Some(_)) => Err(missing(REVISION)),
        (Some(_), None) => Err(missing("meta")),
    }
}

/// Whether a leader row with this number and this token is the fence's.
pub(super) fn holds(fence: &Fence, number: i64, token: &[u8]) -> bool {
    match fence {
        Fence::Sql { number: own, token: own_token } => *own == number && own_token.0.to_be_bytes() == token,
        Fence::Etcd { .. } => false,
    }
}

/// A revision as it is stored.
pub(super) fn revision_from(number: i64) -> Result<Revision, Error> {
    let reason = || Error::Corrupt { record: REVISION.to_owned(), reason: format!("it is {number}, it takes 1 or more") };
    u64::try_from(number).ok().filter(|number| *number > 0).map(Revision).ok_or_else(reason)
}

fn key_from(kind: &str, page: i64) -> Result<Key, Error> {
    let corrupt = |reason| Error::Corrupt { record: format!("{kind}/{page}"), reason };
    let kind: Kind = kind.parse().map_err(|error: codec::UnknownKind| corrupt(error.to_string()))?;
    let page = u32::try_from(page).map_err(|_| corrupt(format!("page {page} is out of range")))?;
    Ok(Key::new(kind, page))
}

/// There should be such a record.
pub(super) fn missing(record: &str) -> Error {
    Error::Corrupt { record: record.to_owned(), reason: codec::Reason::Missing.to_string() }
}
