//! Very many executors that do at once what they are told: one small server in this process, on a runtime of its own, that stands for all
//! of them. They renew their leases only when somebody calls for them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use shard_manager::holdings::digest_of;
use shard_manager::rpc::renew_lease_request::Claim;
use shard_manager::rpc::shard_executor_server::{ShardExecutor, ShardExecutorServer};
use shard_manager::rpc::shard_manager_client::ShardManagerClient;
use shard_manager::rpc::{ApplyAssignmentRequest, ApplyAssignmentResponse, LeaseAnswer, RegisterRequest, RenewLeaseRequest};
use shard_manager::types::{Epoch, ShardId};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};

use crate::cluster::{Apart, connect};

/// How many connections carry the registrations.
const CONNECTIONS: usize = 16;

/// See the module.
pub struct Crowd {
    desk: Arc<Desk>,
    pub deliveries: mpsc::UnboundedReceiver<Delivery>,
    address: SocketAddr,
    channels: Vec<Channel>,
    answer: Option<LeaseAnswer>,
    _apart: Apart,
}

/// An executor was told its assignment.
pub struct Delivery {
    pub at: Instant,
    pub executor: String,
}

struct Desk {
    /// By executor.
    told: Mutex<HashMap<String, ApplyAssignmentRequest>>,
    deliveries: mpsc::UnboundedSender<Delivery>,
}

#[tonic::async_trait]
impl ShardExecutor for Desk {
    async fn apply_assignment(
        &self,
        request: Request<ApplyAssignmentRequest>,
    ) -> Result<Response<ApplyAssignmentResponse>, Status> {
        let (at, request) = (Instant::now(), request.into_inner());
        let (mark, assignment) = (request.version, request.assignment.clone().unwrap_or_default());
        let executor = request.executor_id.clone();
        self.deliveries.send(Delivery { at, executor: executor.clone() }).ok();
        self.told.lock().unwrap().insert(executor, request);
        Ok(Response::new(ApplyAssignmentResponse { mark, held: Some(assignment) }))
    }
}

/// The name of one of them.
pub fn name(at: usize) -> String {
    format!("executor-{at}")
}

impl Crowd {
    /// Nobody yet, at the manager that listens there.
    pub async fn at(manager: SocketAddr) -> Crowd {
        let apart = Apart::new();
        let (sender, deliveries) = mpsc::unbounded_channel();
        let desk = Arc::new(Desk { told: Mutex::default(), deliveries: sender });
        let service =
            ShardExecutorServer::from_arc(Arc::clone(&desk)).max_decoding_message_size(shard_manager::rpc::MAX_MESSAGE_BYTES);
        let listener = apart.handle().spawn(async { TcpListener::bind("127.0.0.1:0").await.unwrap() }).await.unwrap();
        let address = listener.local_addr().unwrap();
        apart.handle().spawn(async move {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
        });
        let mut channels = Vec::new();
        for _ in 0..CONNECTIONS {
            channels.push(connect(manager).await.unwrap());
        }
        Crowd { desk, deliveries, address, channels, answer: None, _apart: apart }
    }

    /// Executors `0 ..` of these weights register, a few hundred at once.
    pub async fn join(&mut self, weights: impl IntoIterator<Item = u32>) {
        let (mut calls, places) = (JoinSet::new(), Arc::new(Semaphore::new(512)));
        for (at, weight) in weights.into_iter().enumerate() {
            let mut client = ShardManagerClient::new(self.channels[at % CONNECTIONS].clone());
            let registration = RegisterRequest {
                executor_id: name(at),
                incarnation: 1 + at as u64,
                endpoint: self.address.to_string(),
                weight,
                ..RegisterRequest::default()
            };
            let places = Arc::clone(&places);
            calls.spawn(async move {
                let _place = places.acquire_owned().await.unwrap();
                // On a machine that is busy the manager may say that it cannot be told in time. To register again is harmless.
                loop {
                    match client.register(registration.clone()).await {
                        Ok(answer) => return answer.into_inner(),
                        Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
                    }
                }
            });
        }
        while let Some(call) = calls.join_next().await {
            self.answer = Some(call.unwrap());
        }
    }

    /// How many shards they were told to hold, all together.
    pub fn held(&self) -> usize {
        let told = self.desk.told.lock().unwrap();
        told.values().filter_map(|told| told.assignment.as_ref()).map(|assignment| assignment.shards.len()).sum()
    }

    /// A renewal by digest for each of the first so many, ready to be sent.
    pub fn renewals(&self, executors: usize) -> Vec<RenewLeaseRequest> {
        let answer = self.answer.as_ref().expect("they have joined");
        let told = self.desk.told.lock().unwrap();
        let renewal = |at: usize| {
            let told = told.get(&name(at));
            let held = told.and_then(|told| told.assignment.clone()).unwrap_or_default();
            let digest = |(&shard, &epoch): (&u32, &u64)| digest_of(ShardId(shard), Epoch(epoch));
            RenewLeaseRequest {
                executor_id: name(at),
                incarnation: 1 + at as u64,
                cluster_id: answer.cluster_id.clone(),
                mark: told.map_or(answer.version, |told| told.version),
                claim: Some(Claim::Digest(held.shards.iter().zip(&held.epochs).map(digest).fold(0, u64::wrapping_add))),
                ..RenewLeaseRequest::default()
            }
        };
        (0..executors).map(renewal).collect()
    }
}
