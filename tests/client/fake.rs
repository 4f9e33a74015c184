//! A manager that says what it is told to.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shard_manager::client::ExecutorSession;
use shard_manager::rpc::shard_executor_client::ShardExecutorClient;
use shard_manager::rpc::shard_manager_server::{ShardManager, ShardManagerServer};
use shard_manager::rpc::{self, refusal};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};

/// Every fake manager's cluster.
pub const CLUSTER: &str = "00000000-0000-0000-0000-000000000001";

struct State {
    ttl_ms: u64,
    revision: u64,
    assignment: rpc::Holdings,
    refusal: Option<&'static str>,
    /// Registrations are taken in and not answered.
    is_silent: watch::Sender<bool>,
    registers: Vec<rpc::RegisterRequest>,
    renewals: Vec<rpc::RenewLeaseRequest>,
    deregisters: Vec<rpc::DeregisterRequest>,
    watches: usize,
    /// One for each watch that goes on.
    watchers: Vec<mpsc::Sender<Told>>,
}

/// See the module. Always of term 5.
pub struct Manager {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

type Told = Result<rpc::WatchRoutingTableResponse, Status>;

struct Service(Arc<Mutex<State>>);

fn set(pairs: &[(u32, u64)]) -> rpc::Holdings {
    let (shards, epochs) = pairs.iter().copied().unzip();
    rpc::Holdings { shards, epochs }
}

/// A command of term 5.
pub fn command(id: &str, incarnation: u64, revision: u64, pairs: &[(u32, u64)], wait_ms: u64) -> rpc::ApplyAssignmentRequest {
    rpc::ApplyAssignmentRequest {
        cluster_id: CLUSTER.into(),
        version: Some(rpc::Version { term: 5, revision }),
        executor_id: id.into(),
        incarnation,
        assignment: Some(set(pairs)),
        wait_ms,
    }
}

/// Sends a command.
pub async fn push(
    session: &ExecutorSession,
    request: rpc::ApplyAssignmentRequest,
) -> Result<rpc::ApplyAssignmentResponse, Status> {
    push_to(session.endpoint().to_owned(), request).await
}

/// Sends a command.
pub async fn push_to(endpoint: String, request: rpc::ApplyAssignmentRequest) -> Result<rpc::ApplyAssignmentResponse, Status> {
    let mut client = ShardExecutorClient::connect(endpoint).await.unwrap();
    Ok(client.apply_assignment(request).await?.into_inner())
}

/// Polls a condition under a deadline.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A port that nobody listens on.
pub async fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

impl Manager {
    pub async fn start(ttl_ms: u64, pairs: &[(u32, u64)]) -> Manager {
        Manager::start_at("127.0.0.1:0".parse().unwrap(), ttl_ms, pairs).await
    }

    pub async fn start_at(address: SocketAddr, ttl_ms: u64, pairs: &[(u32, u64)]) -> Manager {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            ttl_ms,
            revision: 1,
            assignment: set(pairs),
            refusal: None,
            is_silent: watch::Sender::new(false),
            registers: vec![],
            renewals: vec![],
            deregisters: vec![],
            watches: 0,
            watchers: vec![],
        };
        let state = Arc::new(Mutex::new(state));
        let shutdown = CancellationToken::new();
        let service = ShardManagerServer::new(Service(Arc::clone(&state)));
        let stopped = shutdown.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            let server = Server::builder().add_service(service);
            server.serve_with_incoming_shutdown(TcpIncoming::from(listener), stopped).await.unwrap();
        });
        Manager { address, state, shutdown, task }
    }

    pub async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }

    pub fn assign(&self, revision: u64, pairs: &[(u32, u64)]) {
        let mut state = self.state.lock().unwrap();
        (state.revision, state.assignment) = (revision, set(pairs));
    }

    pub fn refuse(&self, reason: Option<&'static str>) {
        self.state.lock().unwrap().refusal = reason;
    }

    /// Answers no registration until it is told to again.
    pub fn answer_registrations(&self, answers: bool) {
        self.state.lock().unwrap().is_silent.send_replace(!answers);
    }

    /// Ends the watches that go on.
    pub fn end_watches(&self) {
        self.state.lock().unwrap().watchers.clear();
    }

    /// How often its table was asked for. Each time it tells it, and nothing more.
    pub fn watches(&self) -> usize {
        self.state.lock().unwrap().watches
    }

    pub fn registers(&self) -> Vec<rpc::RegisterRequest> {
        self.state.lock().unwrap().registers.clone()
    }

    pub fn renewals(&self) -> Vec<rpc::RenewLeaseRequest> {
        self.state.lock().unwrap().renewals.clone()
    }

    pub fn deregisters(&self) -> Vec<rpc::DeregisterRequest> {
        self.state.lock().unwrap().deregisters.clone()
    }

    /// A command for the incarnation that registered last.
    pub fn push(&self, revision: u64, pairs: &[(u32, u64)], wait_ms: u64) -> rpc::ApplyAssignmentRequest {
        let registered = self.registers().pop().unwrap();
        command(&registered.executor_id, registered.incarnation, revision, pairs, wait_ms)
    }
}

impl State {
    fn answer(&self, claim: Option<rpc::renew_lease_request::Claim>) -> Result<Response<rpc::LeaseAnswer>, Status> {
        if let Some(reason) = self.refusal {
            let code = if reason == rpc::reason::NOT_READY { Code::Unavailable } else { Code::FailedPrecondition };
            return Err(refusal(code, reason, "as scripted", &[]));
        }
        let digest = self.assignment.check(1024).unwrap().digest();
        let agrees = match claim {
            Some(rpc::renew_lease_request::Claim::Held(held)) => held == self.assignment,
            Some(rpc::renew_lease_request::Claim::Digest(claimed)) => claimed == digest,
            None => false,
        };
        Ok(Response::new(rpc::LeaseAnswer {
            cluster_id: CLUSTER.into(),
            version: Some(rpc::Version { term: 5, revision: self.revision }),
            number_of_shards: 1024,
            lease_ttl_ms: self.ttl_ms,
            assignment: (!agrees).then(|| self.assignment.clone()),
            claim_wanted: false,
        }))
    }
}

#[tonic::async_trait]
impl ShardManager for Service {
    async fn register(&self, request: Request<rpc::RegisterRequest>) -> Result<Response<rpc::LeaseAnswer>, Status> {
        let mut is_silent = {
            let mut state = self.0.lock().unwrap();
            state.registers.push(request.into_inner());
            state.is_silent.subscribe()
        };
        let _ = is_silent.wait_for(|is_silent| !is_silent).await;
        self.0.lock().unwrap().answer(None)
    }

    async fn renew_lease(&self, request: Request<rpc::RenewLeaseRequest>) -> Result<Response<rpc::LeaseAnswer>, Status> {
        let mut state = self.0.lock().unwrap();
        let request = request.into_inner();
        state.renewals.push(request.clone());
        state.answer(request.claim)
    }

    async fn deregister(&self, request: Request<rpc::DeregisterRequest>) -> Result<Response<rpc::DeregisterResponse>, Status> {
        self.0.lock().unwrap().deregisters.push(request.into_inner());
        Ok(Response::new(rpc::DeregisterResponse {}))
    }

    async fn get_routing_table(
        &self,
        _request: Request<rpc::GetRoutingTableRequest>,
    ) -> Result<Response<rpc::RoutingTable>, Status> {
        Err(Status::unimplemented("not scripted"))
    }

    type WatchRoutingTableStream = ReceiverStream<Told>;

    async fn watch_routing_table(
        &self,
        _request: Request<rpc::WatchRoutingTableRequest>,
    ) -> Result<Response<Self::WatchRoutingTableStream>, Status> {
        let full = rpc::RoutingTable {
            cluster_id: CLUSTER.to_owned(),
            version: Some(rpc::Version { term: 5, revision: 7 }),
            number_of_shards: 1,
            owners: vec![rpc::Owner { executor_id: "a".to_owned(), incarnation: 5, endpoint: "http://a:1".to_owned() }],
            owner: vec![0],
            epochs: vec![1000],
            releasing: vec![],
        };
        let change = Some(rpc::watch_routing_table_response::Change::Full(full));
        let (watcher, told) = mpsc::channel(1);
        watcher.try_send(Ok(rpc::WatchRoutingTableResponse { change })).unwrap();
        let mut state = self.0.lock().unwrap();
        state.watches += 1;
        state.watchers.push(watcher);
        Ok(Response::new(ReceiverStream::new(told)))
    }
}
