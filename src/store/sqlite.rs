//! Stub.
#![allow(missing_docs)]
use std::sync::Arc;

use crate::assignment::state::Changes;
use crate::backend::Fence;
use crate::backend::sqlite::Database;
use crate::store::{Error, Limits, Loaded, Store};
use crate::types::Revision;
pub struct SqliteStore(#[allow(dead_code)] Arc<Database>);
impl SqliteStore {
    pub fn new(database: Arc<Database>) -> SqliteStore {
        SqliteStore(database)
    }
}
#[async_trait::async_trait]
impl Store for SqliteStore {
    async fn load(&self) -> Result<Option<Loaded>, Error> {
        Ok(None)
    }
    async fn commit(&self, _: &Fence, expected: Option<Revision>, _: &Changes) -> Result<Revision, Error> {
        Ok(Revision(expected.map_or(1, |r| r.0 + 1)))
    }
    fn limits(&self) -> Limits {
        Limits { pages: 100 }
    }
}
