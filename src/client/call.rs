//! One call to the manager, from an attempt to its outcome.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tonic::Status;
use tonic::transport::Channel;

use super::ledger::{Attempt, Kind};
use super::wire;
use crate::rpc::LeaseAnswer;
use crate::rpc::shard_manager_client::ShardManagerClient;
use crate::types::ExecutorId;

/// A call in flight. Dropped, it may take effect all the same.
pub type Call = Pin<Box<dyn Future<Output = (Attempt, Result<Reply, Status>)> + Send>>;

/// What a manager answers.
pub enum Reply {
    /// To a registration or a renewal.
    Lease(LeaseAnswer),
    /// To a deregistration.
    Deregistered,
}

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Its stable name.
    pub id: ExecutorId,
    /// Where the manager reaches it.
    pub endpoint: String,
    /// Its share.
    pub weight: u32,
}

impl Caller {
    /// Begins a call, which fails where it is not answered within `timeout`, connecting included.
    pub fn begin(&self, mut client: ShardManagerClient<Channel>, attempt: Attempt, timeout: Duration) -> Call {
        let Caller { id, endpoint, weight } = self.clone();
        Box::pin(async move {
            let call = async {
                match attempt.kind {
                    Kind::Register => {
                        let request = wire::register(&id, &endpoint, weight, &attempt);
                        Ok(Reply::Lease(client.register(request).await?.into_inner()))
                    }
                    Kind::Renew => Ok(Reply::Lease(client.renew_lease(wire::renew(&id, &attempt)).await?.into_inner())),
                    Kind::Deregister => {
                        client.deregister(wire::deregister(&id, &attempt)).await?;
                        Ok(Reply::Deregistered)
                    }
                }
            };
            let result = tokio::time::timeout(timeout, call).await;
            let result = result.unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("no answer within {timeout:?}"))));
            (attempt, result)
        })
    }
}

/// Whether a call that failed may have arrived: not, where there never was a connection.
pub fn may_have_arrived(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return false;
        }
        cause = error.source();
    }
    true
}
