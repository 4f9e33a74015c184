//! An executor written from docs/protocol.md and `proto/` alone, without the client library. It works on nothing, so starting and
//! stopping a shard takes no time. One flaw at a time can be built in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shard_manager::clock;
use shard_manager::rpc::renew_lease_request::Claim;
use shard_manager::rpc::shard_executor_server::{ShardExecutor, ShardExecutorServer};
use shard_manager::rpc::shard_manager_client::ShardManagerClient;
use shard_manager::rpc::{self, ApplyAssignmentRequest, ApplyAssignmentResponse};
use shard_manager::types::BootInstant;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

use self::caller::Caller;
use crate::flaw::Flaw;

mod caller;

type Shards = BTreeMap<u32, u64>;
/// (term, revision)
type Version = (u64, u64);

struct State {
    flaw: Flaw,
    incarnation: u64,
    is_registered: bool,
    cluster_id: String,
    mark: Version,
    /// The mark that renewals show.
    shown: Version,
    lease_until: Option<BootInstant>,
    lease_ttl: Duration,
    held: Shards,
    /// Shards that are being stopped count as held until then.
    stopping: Option<(Shards, BootInstant)>,
    /// When the last lease ended.
    over: BootInstant,
    /// The digest of the last claim in full that was answered.
    announced: Option<u64>,
    is_leaving: bool,
    has_ended: bool,
    is_superseded: bool,
}

pub struct Executor {
    state: Arc<Mutex<State>>,
    news: Arc<Notify>,
    _server: DropGuard,
    _life: DropGuard,
}

impl Executor {
    /// A new process.
    pub async fn start(manager: &str, flaw: Flaw) -> Executor {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint =
            if flaw == Flaw::BadEndpoint { "nowhere at all".to_owned() } else { listener.local_addr().unwrap().to_string() };
        let state = Arc::new(Mutex::new(State {
            flaw,
            incarnation: if flaw == Flaw::FixedIncarnation { 42 } else { draw() },
            is_registered: false,
            cluster_id: String::new(),
            mark: (0, 0),
            shown: (0, 0),
            lease_until: None,
            lease_ttl: Duration::from_secs(3),
            held: Shards::new(),
            stopping: None,
            over: BootInstant::default(),
            announced: None,
            is_leaving: false,
            has_ended: false,
            is_superseded: false,
        }));
        let (news, server, life) = (Arc::new(Notify::new()), CancellationToken::new(), CancellationToken::new());
        serve(listener, Service { state: Arc::clone(&state), news: Arc::clone(&news) }, flaw, server.clone());
        let client = ShardManagerClient::new(Channel::from_shared(manager.to_owned()).unwrap().connect_lazy());
        let caller = Caller { client, endpoint, state: Arc::clone(&state), news: Arc::clone(&news) };
        let (stop, end) = (life.clone(), server.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = caller.live() => {}
            }
            end.cancel();
        });
        Executor { state, news, _server: server.drop_guard(), _life: life.drop_guard() }
    }

    /// SIGTERM, as it were.
    pub fn leave(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_leaving = true;
        if matches!(state.flaw, Flaw::StopsBeforeTold | Flaw::DeregistersAtOnce) {
            state.held.clear();
        }
        let loses_patience = state.flaw == Flaw::LosesPatience;
        drop(state);
        self.news.notify_one();
        if loses_patience {
            let (state, news) = (Arc::clone(&self.state), Arc::clone(&self.news));
            tokio::spawn(async move {
                clock::sleep_until(clock::now().after(Duration::from_millis(100))).await;
                state.lock().unwrap().held.clear();
                news.notify_one();
            });
        }
    }
}

fn draw() -> u64 {
    rand::random_range(1..=u64::MAX)
}

fn serve(listener: TcpListener, service: Service, flaw: Flaw, stopped: CancellationToken) {
    tokio::spawn(async move {
        let (mut health, health_service) = tonic_health::server::health_reporter();
        let status =
            if flaw == Flaw::NotServing { tonic_health::ServingStatus::NotServing } else { tonic_health::ServingStatus::Serving };
        let name = "shardmanager.v1.ShardExecutor";
        if flaw == Flaw::KnowsNoUnnamedService {
            health.clear_service_status("").await;
        }
        health.set_service_status(if flaw == Flaw::KnowsNoUnnamedService { name } else { "" }, status).await;
        let health_service = (flaw != Flaw::NoHealth).then_some(health_service);
        let server = Server::builder().add_optional_service(health_service).add_service(ShardExecutorServer::new(service));
        server.serve_with_incoming_shutdown(TcpIncoming::from(listener), stopped.cancelled_owned()).await.unwrap();
    });
}

impl State {
    /// The lease is looked at before anything else.
    fn look(&mut self) {
        let now = clock::now();
        self.stopping.take_if(|(_, until)| *until <= now);
        let Some(until) = self.lease_until.filter(|until| *until <= now) else { return };
        if self.flaw == Flaw::FencesLate && now < until.after(self.lease_ttl * 3 / 2) {
            return;
        }
        (self.lease_until, self.over) = (None, until);
        match self.flaw {
            Flaw::NeverFences => {}
            Flaw::TakesCommandsWithoutLease | Flaw::TakesCommandsALittleLonger => self.held.clear(),
            _ => self.begin_anew(),
        }
    }

    /// Everything is stopped; then a new incarnation.
    fn begin_anew(&mut self) {
        self.held.clear();
        self.stopping = None;
        (self.is_registered, self.lease_until, self.announced, self.incarnation) = (false, None, None, draw());
        if self.is_leaving {
            self.has_ended = true;
        }
    }

    fn assign(&mut self, assignment: Option<&rpc::Holdings>, is_command: bool) {
        let Some(assignment) = assignment else { return };
        let wanted: Shards = assignment.shards.iter().copied().zip(assignment.epochs.iter().copied()).collect();
        if !(self.flaw == Flaw::Adds && is_command) {
            let stopped: Shards = self.held.extract_if(.., |shard, _| !wanted.contains_key(shard)).collect();
            if self.flaw == Flaw::IsSlow && !stopped.is_empty() {
                self.stopping = Some((stopped, clock::now().after(self.lease_ttl / 4)));
            }
        }
        for (shard, epoch) in wanted {
            match self.held.get(&shard) {
                Some(&has) if has > epoch && self.flaw != Flaw::TakesLowerEpochs => {}
                Some(&has) if has < epoch && self.flaw == Flaw::IgnoresHigherEpochs && is_command => {}
                _ => drop(self.held.insert(shard, epoch)),
            }
        }
    }

    /// What is held, and what stops.
    fn everything(&self) -> Shards {
        let stopping = self.stopping.iter().flat_map(|(shards, _)| shards);
        stopping.chain(&self.held).map(|(&shard, &epoch)| (shard, epoch)).collect()
    }

    fn has_news(&self) -> bool {
        self.is_registered && self.announced != Some(digest(&self.everything()))
    }

    fn claim(&mut self) -> Claim {
        let claimed = match self.flaw {
            Flaw::OmitsAShard => self.held.iter().skip(1).map(|(&shard, &epoch)| (shard, epoch)).collect(),
            Flaw::HugeClaims => (0..100_000).map(|shard| (shard, u64::MAX)).collect(),
            Flaw::ClaimsNoSuchShard => Shards::from([(u32::MAX, 1)]),
            Flaw::ClaimsHighestEpoch => self.held.keys().map(|&shard| (shard, u64::MAX)).collect(),
            _ => self.everything(),
        };
        let is_known = match self.flaw {
            Flaw::DigestAfterChange => self.announced.is_some(),
            _ => self.announced == Some(digest(&claimed)),
        };
        if is_known && self.flaw != Flaw::AlwaysInFull {
            let flipped = if self.flaw == Flaw::WrongDigest { 1 } else { 0 };
            return Claim::Digest(digest(&claimed) ^ flipped);
        }
        if self.flaw == Flaw::AnnouncesOnSending {
            self.announced = Some(digest(&claimed));
        }
        Claim::Held(holdings(&claimed))
    }

    fn renewal(&mut self) -> rpc::RenewLeaseRequest {
        let (term, revision) = match self.flaw {
            Flaw::OldMarks => self.shown,
            Flaw::HighestMark => (u64::MAX, u64::MAX),
            _ => self.mark,
        };
        let nonsense = rpc::Holdings { shards: vec![99], epochs: vec![u64::MAX] };
        rpc::RenewLeaseRequest {
            executor_id: "by-hand".to_owned(),
            incarnation: self.incarnation,
            cluster_id: self.cluster_id.clone(),
            mark: Some(rpc::Version { term, revision }),
            claim: Some(self.claim()),
            leaving: self.is_leaving,
            storage_epochs: (self.flaw == Flaw::ReportsNonsense).then_some(nonsense),
        }
    }

    fn registration(&self, endpoint: &str) -> rpc::RegisterRequest {
        let (term, revision) = self.mark;
        rpc::RegisterRequest {
            executor_id: "by-hand".to_owned(),
            incarnation: self.incarnation,
            endpoint: endpoint.to_owned(),
            weight: 1,
            cluster_id: self.cluster_id.clone(),
            mark: (!self.cluster_id.is_empty()).then_some(rpc::Version { term, revision }),
        }
    }

    /// An answer to a call of this incarnation that was sent at `sent`.
    fn answered(&mut self, sent: BootInstant, incarnation: u64, claim: Option<&Claim>, answer: &rpc::LeaseAnswer) {
        self.look();
        let version = answer.version.map_or((0, 0), |version| (version.term, version.revision));
        if incarnation != self.incarnation {
            return;
        }
        if claim.is_some() && answer.cluster_id != self.cluster_id {
            if self.flaw == Flaw::IgnoresForeignAnswers {
                return;
            }
            if self.flaw == Flaw::FollowsForeignAnswers {
                self.cluster_id.clone_from(&answer.cluster_id);
                self.mark = version;
            } else {
                return self.begin_anew();
            }
        }
        self.lease_ttl = Duration::from_millis(answer.lease_ttl_ms);
        let from = if self.flaw == Flaw::CountsFromAnswer { clock::now() } else { sent };
        if answer.cluster_id == self.cluster_id && version < self.mark {
            if self.flaw == Flaw::TakesOldAnswers {
                self.lease_until = Some(from.after(self.lease_ttl));
            }
            if self.flaw == Flaw::TakesOldAssignments {
                self.assign(answer.assignment.as_ref(), false);
            }
            return;
        }
        if from.after(self.lease_ttl) <= clock::now() {
            return;
        }
        match claim {
            Some(Claim::Held(held)) => self.announced = Some(digest(&shards(held))),
            _ if answer.claim_wanted && self.flaw != Flaw::IgnoresClaimWanted => self.announced = None,
            _ => {}
        }
        if answer.claim_wanted && answer.assignment.is_none() && self.flaw != Flaw::RenewsByClaimWanted {
            return;
        }
        self.cluster_id.clone_from(&answer.cluster_id);
        (self.mark, self.shown, self.is_registered) = (version, version, true);
        self.lease_until = Some(from.after(self.lease_ttl));
        self.assign(answer.assignment.as_ref(), false);
    }

    fn refused(&mut self, status: &Status) {
        match reason(status).as_deref() {
            Some("SUPERSEDED") if self.flaw == Flaw::RenewsAfterSuperseded => {}
            Some("SUPERSEDED") if self.flaw != Flaw::RegistersAfterSuperseded => {
                self.held.clear();
                self.has_ended = true;
                self.is_superseded = true;
            }
            Some("UNKNOWN_EXECUTOR") if self.flaw == Flaw::IgnoresUnknown => {}
            Some("WRONG_CLUSTER") if self.flaw == Flaw::IgnoresWrongCluster => {}
            Some("UNKNOWN_EXECUTOR") => {
                let before = (self.incarnation, self.held.clone());
                self.begin_anew();
                match self.flaw {
                    Flaw::KeepsIncarnation => self.incarnation = before.0,
                    Flaw::KeepsShards => self.held = before.1,
                    Flaw::RegistersWhileStopping => {
                        self.stopping = Some((before.1, clock::now().after(Duration::from_millis(400))));
                    }
                    Flaw::ForgetsCluster => self.cluster_id.clear(),
                    _ => {}
                }
            }
            Some("WRONG_CLUSTER") => {
                let before = (self.incarnation, self.held.clone());
                self.begin_anew();
                match self.flaw {
                    Flaw::KeepsIncarnationElsewhere => self.incarnation = before.0,
                    Flaw::KeepsShardsElsewhere => self.held = before.1,
                    _ => {}
                }
            }
            Some("SUPERSEDED") => self.begin_anew(),
            _ => {}
        }
    }

    fn apply(&mut self, request: &ApplyAssignmentRequest) -> Result<Shards, Status> {
        self.look();
        let version = request.version.map_or((0, 0), |version| (version.term, version.revision));
        let is_for_me = request.executor_id == "by-hand" && request.incarnation == self.incarnation;
        let refused = |reason: &str| Err(refusal(reason));
        let is_let_in = self.flaw == Flaw::TakesForeignIncarnation && request.executor_id == "by-hand";
        if !(is_for_me || is_let_in) {
            return refused("WRONG_INCARNATION");
        }
        if !self.is_registered {
            return if self.flaw == Flaw::TakesCommandsUnregistered { Ok(Shards::new()) } else { refused("NOT_READY") };
        }
        if request.cluster_id != self.cluster_id {
            self.has_ended |= self.flaw == Flaw::Dies;
            if self.flaw == Flaw::TakesForeignCluster {
                self.assign(request.assignment.as_ref(), true);
                return Ok(self.held.clone());
            }
            return refused("WRONG_CLUSTER");
        }
        let is_stale = if self.flaw == Flaw::ForgetsTerms { version.1 < self.mark.1 } else { version < self.mark };
        if is_stale && self.flaw != Flaw::TakesStaleCommands {
            return refused("STALE_TERM");
        }
        let is_over = self.lease_until.is_none_or(|until| until <= clock::now());
        let is_let_in = match self.flaw {
            Flaw::TakesCommandsWithoutLease => true,
            Flaw::TakesCommandsALittleLonger => clock::now() < self.over.after(Duration::from_millis(700)),
            _ => false,
        };
        if is_over && !is_let_in {
            return refused("LEASE_OVER");
        }
        if self.flaw == Flaw::ExtendsByCommand {
            self.lease_until = Some(clock::now().after(self.lease_ttl));
        }
        self.mark = self.mark.max(version);
        let before = self.held.clone();
        self.assign(request.assignment.as_ref(), true);
        let mut told = self.everything();
        match self.flaw {
            Flaw::OmitsStarting => told.retain(|shard, epoch| before.get(shard) == Some(epoch)),
            Flaw::AnswersNoSuchShard => drop(told.insert(u32::MAX, u64::MAX)),
            _ => {}
        }
        Ok(told)
    }
}

struct Service {
    state: Arc<Mutex<State>>,
    news: Arc<Notify>,
}

#[tonic::async_trait]
impl ShardExecutor for Service {
    async fn apply_assignment(
        &self,
        request: Request<ApplyAssignmentRequest>,
    ) -> Result<Response<ApplyAssignmentResponse>, Status> {
        let request = request.into_inner();
        let (flaw, has_no_lease) = {
            let mut state = self.state.lock().unwrap();
            state.look();
            (
                state.flaw,
                state.is_registered && state.lease_until.is_none()
                    || state.over != BootInstant::default() && !state.is_registered,
            )
        };
        if flaw == Flaw::Stalls && has_no_lease {
            return std::future::pending().await;
        }
        if flaw == Flaw::IsSlow {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let (applied, (term, revision), flaw, has_ended) = {
            let mut state = self.state.lock().unwrap();
            (state.apply(&request), state.mark, state.flaw, state.has_ended)
        };
        if has_ended {
            self.news.notify_one();
            // What a caller sees whose connection breaks, since the process is gone.
            return Err(Status::unavailable("the process has ended"));
        }
        let mut held = applied?;
        self.news.notify_one();
        let stops = self.state.lock().unwrap().stopping.as_ref().map(|(_, until)| *until);
        if let Some(until) = stops.filter(|_| flaw == Flaw::IsSlow) {
            let waits = clock::now().after(Duration::from_millis(request.wait_ms));
            clock::sleep_until(until.min(waits)).await;
            let mut state = self.state.lock().unwrap();
            state.look();
            held = state.everything();
            self.news.notify_one();
        }
        if flaw == Flaw::AnswersLate {
            tokio::time::sleep(Duration::from_millis(request.wait_ms + 4000)).await;
        }
        let mark = (flaw != Flaw::AnswersWithoutMark).then_some(rpc::Version { term, revision });
        Ok(Response::new(ApplyAssignmentResponse { mark, held: Some(holdings(&held)) }))
    }
}

fn refusal(reason: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason, "shard-manager", std::collections::HashMap::<String, String>::new());
    Status::with_error_details(Code::FailedPrecondition, "no", details)
}

fn reason(status: &Status) -> Option<String> {
    status.get_details_error_info().map(|info| info.reason)
}

fn shards(held: &rpc::Holdings) -> Shards {
    held.shards.iter().copied().zip(held.epochs.iter().copied()).collect()
}

fn holdings(held: &Shards) -> rpc::Holdings {
    rpc::Holdings { shards: held.keys().copied().collect(), epochs: held.values().copied().collect() }
}

/// As docs/protocol.md has it.
fn digest(held: &Shards) -> u64 {
    fn mix(w: u64) -> u64 {
        let w = w.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let w = (w ^ (w >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let w = (w ^ (w >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        w ^ (w >> 31)
    }
    held.iter().fold(0, |sum, (&shard, &epoch)| sum.wrapping_add(mix(mix(u64::from(shard) + 1) ^ epoch)))
}
