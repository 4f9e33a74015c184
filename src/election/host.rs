//! Stub.
#![allow(missing_docs)]
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::backend::Fence;
use crate::backend::sqlite::Database;
use crate::election::{Belief, Election, Error, Holder, Leadership, Lost};
use crate::types::Token;
pub struct HostElection;
impl HostElection {
    pub fn new(_: Arc<Database>, _holder_description: String) -> HostElection {
        HostElection
    }
}
struct Held(#[allow(dead_code)] tokio::sync::oneshot::Sender<Lost>);
#[async_trait::async_trait]
impl Holder for Held {
    async fn release(self: Box<Self>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}
#[async_trait::async_trait]
impl Election for HostElection {
    async fn campaign(&self, _: &CancellationToken) -> Result<Leadership, Error> {
        let (sender, lost) = tokio::sync::oneshot::channel();
        Ok(Leadership::new(Fence::Sql { number: 1, token: Token::draw() }, Belief::WhileAlive, lost, Box::new(Held(sender))))
    }
}
