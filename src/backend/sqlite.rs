//! Stub.
#![allow(missing_docs)]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
pub struct Database;
impl Database {
    pub async fn open(_path: &Path, _request_timeout: Duration) -> Result<Arc<Database>, crate::store::Error> {
        Ok(Arc::new(Database))
    }
}
