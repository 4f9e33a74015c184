//! Every call of a manager: bytes are decoded as tonic decodes them and go through the services into a real engine, whose commits a
//! store in memory takes when the input says so. An answer must be one that our own client takes.
//!
//! An input is the number of shards, as one of [`SHARDS`], and a list of steps: each a byte and what it takes; see [`Manager::step`].

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tonic::codegen::tokio_stream::StreamExt;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Status};

use super::input::Input;
use super::settings;
use crate::api::nursery::Nursery;
use crate::api::{Leading, admin, manager};
use crate::assignment::check::{check, check_step};
use crate::assignment::command::{Assignment, Command, Peer, Reply, Snapshot};
use crate::assignment::event::{RequestId, Takeover};
use crate::assignment::{Engine, Event, State};
use crate::cli::answers::{Answer, printed};
use crate::client::cache::{Cache, Refused};
use crate::client::wire::{self, Invalid};
use crate::coordinator::{Calls, Handle};
use crate::executors::link;
use crate::metrics::Metrics;
use crate::published::Published;
use crate::rpc::ready::shard_manager_server::ShardManager;
use crate::rpc::shard_manager_admin_server::ShardManagerAdmin;
use crate::rpc::{self, MAX_MESSAGE_BYTES, reason};
use crate::store::codec::{self, Key, MAX_META_LEN, MAX_PAGE_LEN};
use crate::types::{BootInstant, ClusterId, Revision, Slot, Token};

/// The cluster that seeds speak of.
pub const CLUSTER: u128 = 7;
pub const SHARDS: [u32; 4] = [1, 8, 40, 1100];
/// When the first leadership began, by the clock on the wall; so its term.
pub const TERM: u64 = 1_700_000_000_000;

const MOST_STEPS: usize = 64;
/// So many turns a caller waits for its answer; then it goes away.
const PATIENCE: usize = 8;
/// The longest message of a refusal, in bytes. With its details it goes into the trailers, of which peers take 16 KiB at the least.
const MOST_SAID: usize = 4096;

const REASONS: [&str; 16] = [
    reason::STALE_TERM,
    reason::SUPERSEDED,
    reason::UNKNOWN_EXECUTOR,
    reason::WRONG_CLUSTER,
    reason::WRONG_INCARNATION,
    reason::NOT_OWNER,
    reason::NOT_READY,
    reason::STOPPING,
    reason::LEADERSHIP_LOST,
    reason::STORE_UNAVAILABLE,
    reason::SLOW_WATCHER,
    reason::REMOVED,
    reason::NOT_NOW,
    reason::INVALID_ARGUMENT,
    reason::LEASE_ENDING,
    reason::LEASE_OVER,
];

type Records = BTreeMap<Key, Vec<u8>>;

struct Manager {
    runtime: &'static Runtime,
    now: BootInstant,
    engine: Engine,
    number_of_shards: u32,
    leading: Leading,
    calls: Calls,
    waiting: BTreeMap<RequestId, oneshot::Sender<Reply>>,
    next_request: u64,
    /// What the store has, and at which revision.
    stored: (Option<Revision>, Records),
    in_flight: Option<Records>,
    /// Commits wait until the input lets them land.
    slow_store: bool,
    published: Option<Snapshot>,
    peers: BTreeMap<Slot, Peer>,
    sent: BTreeMap<Slot, Assignment>,
    /// A reader that watches.
    reader: Cache,
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let make = || tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    RUNTIME.get_or_init(make)
}

/// Its counts matter to nobody here, and to make it takes longer than most inputs.
fn metrics() -> Arc<Metrics> {
    static METRICS: OnceLock<Arc<Metrics>> = OnceLock::new();
    Arc::clone(METRICS.get_or_init(|| Arc::new(Metrics::new().expect("metrics with different names"))))
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let runtime = runtime();
    let _context = runtime.enter();
    let mut manager = Manager::new(runtime, SHARDS[usize::from(input.byte()) % SHARDS.len()]);
    manager.lead();
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        manager.step(&mut input);
    }
    runtime.block_on(manager.leading.nursery.shutdown());
}

fn takeover(number_of_shards: u32, now: BootInstant) -> Takeover {
    let unix_ms = TERM + u64::try_from(now.0.as_millis()).unwrap_or(u64::MAX / 2);
    Takeover { token: Token(1), unix_ms, new_cluster: ClusterId(uuid::Uuid::from_u128(CLUSTER)), number_of_shards }
}

/// What one call takes and answers. Bytes that are no such message never reach a service.
macro_rules! call {
    ($manager:ident, $service:expr, $method:ident, $request:ty, $bytes:expr) => {
        match <$request>::decode($bytes) {
            Ok(request) => {
                let service = $service;
                let answer = $manager.ask(service.$method(Request::new(request)));
                answer.and_then(Manager::answered)
            }
            Err(_) => None,
        }
    };
}

impl Manager {
    fn new(runtime: &'static Runtime, number_of_shards: u32) -> Manager {
        let now = BootInstant(Duration::from_secs(1000));
        let (handle, calls) = Handle::new(CancellationToken::new(), Duration::from_secs(3600));
        let leading = Leading {
            handle,
            published: Arc::default(),
            metrics: metrics(),
            number_of_shards,
            identity: "process 1 on a".to_owned(),
            nursery: Nursery::default(),
            step_down: CancellationToken::new(),
        };
        Manager {
            runtime,
            now,
            engine: Engine::new(settings(), takeover(number_of_shards, BootInstant::default()), None, now),
            number_of_shards,
            leading,
            calls,
            waiting: BTreeMap::new(),
            next_request: 0,
            stored: (None, Records::new()),
            in_flight: None,
            slow_store: false,
            published: None,
            peers: BTreeMap::new(),
            sent: BTreeMap::new(),
            reader: Cache::default(),
        }
    }

    /// The first commit, and the port.
    fn lead(&mut self) {
        self.execute(Event::Turn);
        self.land();
        self.execute(Event::PortOpened);
    }

    /// Another leadership, over what the store has.
    fn take_over(&mut self) {
        (self.in_flight, self.waiting) = (None, BTreeMap::new());
        (self.peers, self.sent) = (BTreeMap::new(), BTreeMap::new());
        let state = codec::decode(self.stored.1.clone()).expect("what was stored is read");
        let loaded = self.stored.0.zip(state);
        self.published = None;
        self.leading.published = Arc::new(Published::default());
        self.leading.step_down = CancellationToken::new();
        self.engine = Engine::new(settings(), takeover(self.number_of_shards, self.now), loaded, self.now);
        self.lead();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        self.now = self.now.after(Duration::from_millis(1));
        let what = input.byte();
        let (manager, admin) =
            (|it: &Manager| manager::Service(it.leading.clone()), |it: &Manager| admin::Service(it.leading.clone()));
        match what % 26 {
            0 => drop(call!(self, manager(self), register, rpc::RegisterRequest, input.chunk()).map(|it| self.leased(&it))),
            1 => drop(call!(self, manager(self), renew_lease, rpc::RenewLeaseRequest, input.chunk()).map(|it| self.leased(&it))),
            2 => drop(call!(self, manager(self), deregister, rpc::DeregisterRequest, input.chunk())),
            3 => {
                let table = call!(self, manager(self), get_routing_table, rpc::GetRoutingTableRequest, input.chunk());
                if let Some(table) = table {
                    self.is_printed(Answer::Table, &table.encode_to_vec());
                    let table = rpc::RoutingTable::decode(&table.encode_to_vec()[..]).expect("it is a table");
                    let full = rpc::watch_routing_table_response::Change::Full(table);
                    self.told(&rpc::WatchRoutingTableResponse { change: Some(full) });
                }
            }
            4 => self.watch(input.chunk()),
            5 => drop(call!(self, admin(self), get_status, rpc::GetStatusRequest, input.chunk()).map(|it| {
                assert_eq!(it.violations.len(), 0);
                self.is_printed(Answer::Status, &it.encode_to_vec());
            })),
            6 => drop(
                call!(self, admin(self), list_executors, rpc::ListExecutorsRequest, input.chunk())
                    .map(|it| self.is_printed(Answer::Executors, &it.encode_to_vec())),
            ),
            7 => drop(call!(self, admin(self), drain_executor, rpc::ChangeExecutorRequest, input.chunk())),
            8 => drop(call!(self, admin(self), cordon_executor, rpc::ChangeExecutorRequest, input.chunk())),
            9 => drop(call!(self, admin(self), uncordon_executor, rpc::ChangeExecutorRequest, input.chunk())),
            10 => drop(call!(self, admin(self), remove_executor, rpc::RemoveExecutorRequest, input.chunk())),
            11 => drop(call!(self, admin(self), admit_executor, rpc::ChangeExecutorRequest, input.chunk())),
            12 => drop(call!(self, admin(self), move_shards, rpc::MoveShardsRequest, input.chunk())),
            13 => {
                let planned = call!(self, admin(self), plan_change, rpc::PlanChangeRequest, input.chunk());
                if let Some(planned) = planned {
                    self.is_printed(Answer::Plan, &planned.encode_to_vec());
                    assert!(planned.shards.len() == planned.from.len() && planned.shards.len() == planned.to.len());
                    let executors = planned.executors.len() as u32;
                    assert!(planned.from.iter().chain(&planned.to).all(|index| *index < executors || *index == rpc::NOBODY));
                }
            }
            14 => drop(
                call!(self, admin(self), explain_shard, rpc::ExplainShardRequest, input.chunk())
                    .map(|it| self.is_printed(Answer::Explanation, &it.encode_to_vec())),
            ),
            15 => drop(call!(self, admin(self), pause_rebalancing, rpc::PauseRebalancingRequest, input.chunk())),
            16 => drop(call!(self, admin(self), resume_rebalancing, rpc::ResumeRebalancingRequest, input.chunk())),
            17 => drop(call!(self, admin(self), step_down, rpc::StepDownRequest, input.chunk())),
            18 => self.applied(input.byte(), input.chunk()),
            19 => self.obey(input.byte()),
            20 => self.pass(input.byte() % 32),
            21 => self.slow_store = !self.slow_store,
            22 => self.land(),
            23 => {
                if self.in_flight.take().is_some() {
                    self.execute(Event::CommitFailed);
                }
            }
            24 => {
                let which = input.byte();
                if let Some((slot, incarnation)) = self.peer(which).map(|peer| (peer.slot, peer.incarnation)) {
                    self.execute(Event::Probed { slot, incarnation, healthy: which >= 128 });
                }
            }
            _ => self.take_over(),
        }
    }

    /// Polls a call, and does the coordinator's work meanwhile.
    fn ask<T>(&mut self, call: impl Future<Output = Result<Response<T>, Status>>) -> Option<Result<Response<T>, Status>> {
        let mut call = pin!(call);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..PATIENCE {
            if let Poll::Ready(answer) = call.as_mut().poll(&mut context) {
                return Some(answer);
            }
            self.work();
        }
        None
    }

    /// An answer, or a refusal that says what it has to.
    fn answered<T>(answer: Result<Response<T>, Status>) -> Option<T> {
        let status = match answer {
            Ok(response) => return Some(response.into_inner()),
            Err(status) => status,
        };
        let reason = rpc::reason_of(&status).unwrap_or_else(|| panic!("no reason: {status:?}"));
        assert!(REASONS.contains(&&*reason), "{status:?}");
        assert!(!matches!(status.code(), Code::Ok | Code::Unknown | Code::Internal), "{status:?}");
        let said = status.message();
        assert!(!said.is_empty() && said.len() <= MOST_SAID, "{} bytes: {said:?}", said.len());
        None
    }

    /// What came in, and a turn.
    fn work(&mut self) {
        while let Some((call, reply)) = self.calls.take() {
            let id = RequestId(self.next_request);
            self.next_request += 1;
            self.waiting.insert(id, reply);
            self.execute(call.into_event(id));
        }
        self.execute(Event::Turn);
        if !self.slow_store {
            self.land();
        }
    }

    /// The commit in flight lands.
    fn land(&mut self) {
        let Some(records) = self.in_flight.take() else { return };
        let revision = Revision(self.stored.0.map_or(1, |before| before.0 + 1));
        self.stored.0 = Some(revision);
        self.stored.1.extend(records);
        self.execute(Event::Committed { revision });
    }

    /// Turns, each when it is due.
    fn pass(&mut self, turns: u8) {
        for _ in 0..turns {
            self.now = self.now.max(self.engine.next_turn());
            self.work();
        }
    }

    fn execute(&mut self, event: Event) {
        for command in self.engine.step(self.now, event) {
            match command {
                Command::Commit { expected, changes } => {
                    assert!(self.in_flight.is_none(), "one commit at a time");
                    assert_eq!(expected, self.stored.0);
                    let records = codec::encode(&changes).expect("what is planned can be stored");
                    let most = |key: &Key| if *key == Key::META { MAX_META_LEN } else { MAX_PAGE_LEN };
                    assert!(records.iter().all(|(key, bytes)| bytes.len() <= most(key)));
                    assert!(records.len() <= settings().max_pages_per_commit + 1, "{} records", records.len());
                    self.in_flight = Some(records.into_iter().collect());
                }
                Command::Publish(snapshot) => self.publish(snapshot),
                Command::Connect(peer) => {
                    Endpoint::from_shared(peer.endpoint.clone()).expect("somebody can be reached at it, perhaps");
                    assert_eq!(crate::api::endpoint(&peer.endpoint).as_ref(), Ok(&peer.endpoint), "endpoints have one form");
                    self.peers.insert(peer.slot, peer);
                }
                Command::Send(assignment) => {
                    let pushed = self.push(&assignment);
                    self.sent.extend(pushed.then_some((assignment.slot, assignment)));
                }
                Command::Disconnect(slot) => {
                    self.peers.remove(&slot);
                    self.sent.remove(&slot);
                }
                Command::Reply(id, reply) => {
                    let caller = self.waiting.remove(&id).expect("who is answered has asked, and was not answered before");
                    drop(caller.send(reply));
                }
                Command::Notice(notice) => assert!(!format!("{notice:?}").is_empty()),
            }
        }
    }

    fn publish(&mut self, snapshot: Snapshot) {
        assert_eq!(check(&snapshot.state), []);
        if let Some(before) = &self.published {
            assert!(snapshot.version > before.version, "versions ascend");
            assert_eq!(check_step(&before.state, &snapshot.state), []);
        }
        let stored: Option<State> = codec::decode(self.stored.1.clone()).expect("what was stored is read");
        assert!(stored.as_ref() == Some(&*snapshot.state), "what is published is what is stored (P2)");
        self.leading.published.publish(snapshot.clone());
        self.published = Some(snapshot);
    }

    /// Whether somebody is there to be told; and whoever is takes it.
    fn push(&self, assignment: &Assignment) -> bool {
        let Some(peer) = self.peers.get(&assignment.slot) else { return false };
        let push = wire::push(&link::request(peer, assignment, Duration::ZERO)).expect("an executor takes what it is told");
        assert_eq!(push.assignment, *assignment.holdings);
        true
    }

    fn peer(&self, which: u8) -> Option<&Peer> {
        self.peers.values().nth(usize::from(which) % self.peers.len().max(1))
    }

    /// An executor answers a command with these bytes.
    fn applied(&mut self, which: u8, bytes: &[u8]) {
        let Ok(message) = rpc::ApplyAssignmentResponse::decode(bytes) else { return };
        self.hears(which, |_| message);
    }

    /// An executor does as it was told.
    fn obey(&mut self, which: u8) {
        self.hears(which, |assignment| rpc::ApplyAssignmentResponse {
            mark: Some(assignment.version.into()),
            held: Some((&*assignment.holdings).into()),
        });
    }

    fn hears(&mut self, which: u8, answer: impl FnOnce(&Assignment) -> rpc::ApplyAssignmentResponse) {
        let Some(assignment) = self.peer(which).and_then(|peer| self.sent.get(&peer.slot)) else { return };
        let (slot, incarnation) = (assignment.slot, assignment.incarnation);
        if let Some((mark, held)) = link::answer_of(assignment, answer(assignment), self.number_of_shards) {
            self.execute(Event::Applied { slot, incarnation, mark, held });
        }
    }

    /// The executor takes its answer.
    fn leased(&self, answer: &rpc::LeaseAnswer) {
        let taken = wire::answer(answer).expect("an executor takes what it is answered");
        assert_eq!(taken.number_of_shards, self.number_of_shards);
        let version = self.published.as_ref().expect("what is answered was published").version;
        assert!(taken.version <= version, "{} is answered, {version} was published", taken.version);
    }

    /// The command that asked for it takes it, and it is text: who gives a reason has no say in what a terminal does.
    fn is_printed(&self, answer: Answer, bytes: &[u8]) {
        let unix_ms = takeover(self.number_of_shards, self.now).unix_ms;
        let printed = printed(answer, bytes, unix_ms).expect("a command prints what it asked for");
        for text in &printed.texts {
            assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        }
    }

    fn watch(&mut self, bytes: &[u8]) {
        let Some(mut changes) =
            call!(self, manager::Service(self.leading.clone()), watch_routing_table, rpc::WatchRoutingTableRequest, bytes)
        else {
            return;
        };
        let first = self.runtime.block_on(changes.next()).expect("a watcher is told something at once");
        let first = first.expect("and not that it is slow").encode_to_vec();
        self.told(&rpc::WatchRoutingTableResponse::decode(&first[..]).expect("it is what a watcher is told"));
    }

    /// The reader takes what it is told, unless it asked as somebody else.
    fn told(&mut self, message: &rpc::WatchRoutingTableResponse) {
        assert!(message.encoded_len() <= MAX_MESSAGE_BYTES);
        match self.reader.take(self.now, Some(self.now), message) {
            Ok(()) | Err(Refused::Empty | Refused::Invalid(Invalid::Step { .. })) => {}
            Err(refused) => panic!("a reader does not take what it is told: {refused}"),
        }
    }
}
