//! Links and probes against executors over real sockets, whose every answer the test gives.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Code, Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::{Executors, Settings};
use crate::assignment::command::{Assignment, Peer};
use crate::assignment::event::Event;
use crate::holdings::Holdings;
use crate::metrics::{CommandOutcome, Metrics};
use crate::rpc::shard_executor_server::{ShardExecutor, ShardExecutorServer};
use crate::rpc::{self, reason, refusal};
use crate::types::{ClusterId, Epoch, Incarnation, Revision, ShardId, Slot, Term, Version};

/// Everything in these tests happens well within this, or not at all.
const SOON: Duration = Duration::from_secs(5);

type Told = (rpc::ApplyAssignmentRequest, oneshot::Sender<Result<rpc::ApplyAssignmentResponse, Status>>);

/// Passes every command on to the test, which answers it, or does not.
struct Scripted(mpsc::UnboundedSender<Told>);

#[tonic::async_trait]
impl ShardExecutor for Scripted {
    async fn apply_assignment(
        &self,
        request: Request<rpc::ApplyAssignmentRequest>,
    ) -> Result<Response<rpc::ApplyAssignmentResponse>, Status> {
        let (answer, answered) = oneshot::channel();
        self.0.send((request.into_inner(), answer)).map_err(|_| Status::unavailable("the test is over"))?;
        match answered.await {
            Ok(answer) => answer.map(Response::new),
            // The test let go of it: it is never answered.
            Err(_) => std::future::pending().await,
        }
    }
}

struct Executor {
    endpoint: String,
    told: mpsc::UnboundedReceiver<Told>,
    health: HealthReporter,
}

impl Executor {
    async fn start() -> Executor {
        let (tell, told) = mpsc::unbounded_channel();
        let (health, health_service) = tonic_health::server::health_reporter();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server =
            tonic::transport::Server::builder().add_service(ShardExecutorServer::new(Scripted(tell))).add_service(health_service);
        tokio::spawn(server.serve_with_incoming(incoming));
        Executor { endpoint, told, health }
    }

    async fn told(&mut self) -> Told {
        timeout(SOON, self.told.recv()).await.expect("a command comes soon").unwrap()
    }
}

struct Manager {
    executors: Executors,
    reports: mpsc::Receiver<Event>,
    metrics: Arc<Metrics>,
    port_open: CancellationToken,
    tracker: TaskTracker,
}

impl Manager {
    fn start(command_timeout: Duration) -> Manager {
        let (sender, reports) = mpsc::channel(64);
        let metrics = Arc::new(Metrics::new().unwrap());
        let (port_open, tracker) = (CancellationToken::new(), TaskTracker::new());
        let settings = Settings {
            command_timeout,
            probe_interval: Duration::from_millis(20),
            probe_timeout: Duration::from_secs(1),
            number_of_shards: 8,
        };
        let executors = Executors::new(settings, sender, Arc::clone(&metrics), port_open.clone(), tracker.clone());
        Manager { executors, reports, metrics, port_open, tracker }
    }

    fn connect(&mut self, slot: u32, incarnation: u64, endpoint: &str) {
        let id = format!("executor-{slot}").parse().unwrap();
        let (slot, incarnation, endpoint) = (Slot(slot), Incarnation(incarnation), endpoint.to_owned());
        self.executors.connect(Peer { slot, id, incarnation, endpoint });
    }

    async fn report(&mut self) -> Event {
        timeout(SOON, self.reports.recv()).await.expect("a report comes soon").unwrap()
    }
}

fn assignment(slot: u32, revision: u64, shards: &[u32]) -> Assignment {
    Assignment {
        slot: Slot(slot),
        incarnation: Incarnation(7),
        cluster_id: ClusterId(uuid::Uuid::from_u128(1)),
        version: version(revision),
        holdings: Arc::new(holdings(shards)),
    }
}

fn version(revision: u64) -> Version {
    Version { term: Term(1), revision: Revision(revision) }
}

fn holdings(shards: &[u32]) -> Holdings {
    Holdings::from_pairs(shards.iter().map(|shard| (ShardId(*shard), Epoch(1))))
}

fn answer(revision: u64, held: &[u32]) -> Result<rpc::ApplyAssignmentResponse, Status> {
    Ok(rpc::ApplyAssignmentResponse { mark: Some(version(revision).into()), held: Some((&holdings(held)).into()) })
}

fn applied(slot: u32, revision: u64, held: &[u32]) -> Event {
    Event::Applied { slot: Slot(slot), incarnation: Incarnation(7), mark: version(revision), held: holdings(held) }
}

#[tokio::test]
async fn an_executor_is_told_until_it_holds_what_it_should_and_then_left_alone() {
    let (mut executor, mut manager) = (Executor::start().await, Manager::start(SOON));
    manager.connect(0, 7, &executor.endpoint);
    manager.executors.send(assignment(0, 3, &[1]));
    let (request, reply) = executor.told().await;
    assert_eq!((request.incarnation, request.version), (7, Some(version(3).into())));
    assert_eq!(request.wait_ms, 4000, "it answers before the deadline");
    reply.send(answer(3, &[0, 1])).unwrap();
    assert_eq!(manager.report().await, applied(0, 3, &[0, 1]));
    executor.told().await.1.send(answer(3, &[1])).unwrap();
    assert_eq!(manager.report().await, applied(0, 3, &[1]));
    // Longer than several of the pauses between attempts.
    assert!(timeout(Duration::from_millis(500), executor.told()).await.is_err(), "it rests");
    manager.executors.send(assignment(0, 4, &[2]));
    assert_eq!(executor.told().await.0.version, Some(version(4).into()));
    assert_eq!(manager.metrics.commands(CommandOutcome::Settled), 1);
    assert_eq!(manager.metrics.commands(CommandOutcome::Unsettled), 1);
}

#[tokio::test]
async fn a_newer_assignment_overtakes_one_that_is_never_answered() {
    let (mut executor, mut manager) = (Executor::start().await, Manager::start(Duration::from_secs(600)));
    manager.connect(0, 7, &executor.endpoint);
    manager.executors.send(assignment(0, 3, &[1]));
    let never_answered = executor.told().await;
    manager.executors.send(assignment(0, 4, &[1]));
    manager.executors.send(assignment(0, 5, &[1, 2]));
    let (request, reply) = executor.told().await;
    assert_eq!(request.version, Some(version(5).into()), "only the newest is sent");
    reply.send(answer(5, &[1, 2])).unwrap();
    assert_eq!(manager.report().await, applied(0, 5, &[1, 2]));
    assert_eq!(manager.metrics.commands(CommandOutcome::Overtaken), 1);
    drop(never_answered);
}

#[tokio::test]
async fn an_executor_that_never_answers_is_asked_again_and_delays_no_other() {
    let (mut hung, mut well) = (Executor::start().await, Executor::start().await);
    let mut manager = Manager::start(Duration::from_millis(100));
    manager.connect(0, 7, &hung.endpoint);
    manager.executors.send(assignment(0, 3, &[1]));
    manager.connect(1, 7, &well.endpoint);
    manager.executors.send(assignment(1, 3, &[2]));
    let first = hung.told().await;
    well.told().await.1.send(answer(3, &[2])).unwrap();
    assert_eq!(manager.report().await, applied(1, 3, &[2]));
    let again = hung.told().await;
    assert_eq!(again.0, first.0, "the same assignment, whole");
    assert!(manager.metrics.commands(CommandOutcome::TimedOut) >= 1);
}

#[tokio::test]
async fn an_answer_that_breaks_the_protocol_confirms_nothing() {
    let (mut executor, mut manager) = (Executor::start().await, Manager::start(SOON));
    manager.connect(0, 7, &executor.endpoint);
    manager.executors.send(assignment(0, 3, &[1]));
    let beyond = rpc::Holdings { shards: vec![8], epochs: vec![1] };
    let beyond = rpc::ApplyAssignmentResponse { mark: Some(version(3).into()), held: Some(beyond) };
    executor.told().await.1.send(Ok(beyond)).unwrap();
    executor.told().await.1.send(answer(2, &[1])).unwrap();
    executor.told().await.1.send(answer(3, &[1])).unwrap();
    assert_eq!(manager.report().await, applied(0, 3, &[1]), "the first that is reported is the third answer");
    assert_eq!(manager.metrics.commands(CommandOutcome::Invalid), 2);
}

#[tokio::test]
async fn a_refusal_is_counted_and_tried_again() {
    let (mut executor, mut manager) = (Executor::start().await, Manager::start(SOON));
    manager.connect(0, 7, &executor.endpoint);
    manager.executors.send(assignment(0, 3, &[1]));
    let refused = refusal(Code::Unavailable, reason::NOT_READY, "still starting", &[]);
    executor.told().await.1.send(Err(refused)).unwrap();
    executor.told().await.1.send(answer(3, &[1])).unwrap();
    assert_eq!(manager.report().await, applied(0, 3, &[1]));
    assert_eq!(manager.metrics.commands(CommandOutcome::Refused), 1);
}

#[tokio::test]
async fn an_executor_that_cannot_be_reached_is_tried_again_until_it_can() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut manager = Manager::start(SOON);
    manager.connect(0, 7, &format!("http://{closed}"));
    manager.executors.send(assignment(0, 3, &[1]));
    let deadline = Instant::now() + SOON;
    while manager.metrics.commands(CommandOutcome::Unreachable) < 2 {
        assert!(Instant::now() < deadline, "a closed port is noticed and tried again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_new_incarnation_in_the_slot_gets_a_link_of_its_own() {
    let (mut executor, mut manager) = (Executor::start().await, Manager::start(Duration::from_secs(600)));
    manager.connect(0, 7, &executor.endpoint);
    manager.executors.send(assignment(0, 3, &[1]));
    let _never_answered = executor.told().await;
    manager.connect(0, 8, &executor.endpoint);
    manager.executors.send(Assignment { incarnation: Incarnation(8), ..assignment(0, 4, &[1]) });
    assert_eq!(executor.told().await.0.incarnation, 8);
}

#[tokio::test]
async fn shutdown_returns_when_every_link_and_probe_has_ended() {
    let (mut executor, mut manager) = (Executor::start().await, Manager::start(Duration::from_secs(600)));
    manager.connect(0, 7, &executor.endpoint);
    manager.executors.send(assignment(0, 3, &[1]));
    let _never_answered = executor.told().await;
    assert_eq!(manager.tracker.len(), 2);
    timeout(SOON, manager.executors.shutdown()).await.expect("it ends");
    assert!(manager.tracker.is_empty());
}

#[tokio::test]
async fn probes_begin_with_the_open_port_and_say_when_something_changes() {
    let (executor, mut manager) = (Executor::start().await, Manager::start(SOON));
    manager.connect(0, 7, &executor.endpoint);
    manager.executors.send(assignment(0, 3, &[1]));
    // Longer than several intervals: nothing is probed.
    assert!(timeout(Duration::from_millis(200), manager.reports.recv()).await.is_err());
    manager.port_open.cancel();
    let probed = |healthy| Event::Probed { slot: Slot(0), incarnation: Incarnation(7), healthy };
    assert_eq!(manager.report().await, probed(true));
    executor.health.set_service_status("", ServingStatus::NotServing).await;
    assert_eq!(manager.report().await, probed(false));
    executor.health.set_service_status("", ServingStatus::Serving).await;
    assert_eq!(manager.report().await, probed(true));
}

/// An executor that has heard something newer in the answer to a renewal is not told the older word over and over.
#[tokio::test]
async fn a_word_that_was_overtaken_is_not_repeated() {
    let (mut executor, mut manager) = (Executor::start().await, Manager::start(SOON));
    manager.connect(0, 7, &executor.endpoint);
    manager.executors.send(assignment(0, 3, &[1]));
    let stale = rpc::refusal(Code::FailedPrecondition, reason::STALE_TERM, "1/3 is below the mark 1/4", &[]);
    executor.told().await.1.send(Err(stale)).unwrap();
    // Longer than the pause after any other refusal.
    assert!(timeout(Duration::from_millis(1500), executor.told()).await.is_err(), "it rests");
    manager.executors.send(assignment(0, 5, &[1]));
    assert_eq!(executor.told().await.0.version, Some(version(5).into()));
}
