//! An executor by hand: says over gRPC what a scenario wants it to say, and takes no commands.

use shard_manager::rpc::renew_lease_request::Claim;
use shard_manager::rpc::shard_manager_client::ShardManagerClient;
use shard_manager::rpc::{self, LeaseAnswer, RegisterRequest, RenewLeaseRequest};
use tonic::Status;
use tonic::transport::Channel;

use super::{Manager, free_address};

/// One incarnation.
#[derive(Clone)]
pub struct Fake {
    pub client: ShardManagerClient<Channel>,
    pub id: String,
    pub incarnation: u64,
    pub endpoint: String,
    /// From the last answer.
    pub cluster_id: String,
    pub mark: Option<rpc::Version>,
    pub assignment: rpc::Holdings,
}

impl Fake {
    /// Not registered yet; nobody listens at its endpoint.
    pub fn new(manager: &Manager, id: &str, incarnation: u64) -> Fake {
        Fake {
            client: manager.client(),
            id: id.to_owned(),
            incarnation,
            endpoint: free_address().to_string(),
            cluster_id: String::new(),
            mark: None,
            assignment: rpc::Holdings::default(),
        }
    }

    pub fn registration(&self) -> RegisterRequest {
        RegisterRequest {
            executor_id: self.id.clone(),
            incarnation: self.incarnation,
            endpoint: self.endpoint.clone(),
            ..RegisterRequest::default()
        }
    }

    pub fn renewal(&self, held: rpc::Holdings) -> RenewLeaseRequest {
        RenewLeaseRequest {
            executor_id: self.id.clone(),
            incarnation: self.incarnation,
            cluster_id: self.cluster_id.clone(),
            mark: self.mark,
            claim: Some(Claim::Held(held)),
            ..RenewLeaseRequest::default()
        }
    }

    pub async fn register(&mut self) -> Result<LeaseAnswer, Status> {
        let answer = self.client.register(self.registration()).await?.into_inner();
        Ok(self.heard(answer))
    }

    /// Claims what it was told to hold last.
    pub async fn renew(&mut self) -> Result<LeaseAnswer, Status> {
        self.renew_claiming(self.assignment.clone()).await
    }

    pub async fn renew_claiming(&mut self, held: rpc::Holdings) -> Result<LeaseAnswer, Status> {
        let answer = self.client.renew_lease(self.renewal(held)).await?.into_inner();
        Ok(self.heard(answer))
    }

    pub async fn deregister(&mut self) -> Result<(), Status> {
        let request = rpc::DeregisterRequest {
            executor_id: self.id.clone(),
            incarnation: self.incarnation,
            cluster_id: self.cluster_id.clone(),
        };
        self.client.deregister(request).await.map(drop)
    }

    fn heard(&mut self, answer: LeaseAnswer) -> LeaseAnswer {
        self.cluster_id.clone_from(&answer.cluster_id);
        self.mark = answer.version;
        if let Some(assignment) = &answer.assignment {
            self.assignment = assignment.clone();
        }
        answer
    }
}
