//! The played manager: answers as its script says, and writes down everything that it is told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::codegen::tokio_stream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};
use uuid::Uuid;

use super::record::{Claim, Entry, Farewell, NUMBER_OF_SHARDS, Outcome, Registration, Renewal, What, cut, set};
use crate::clock;
use crate::holdings::Holdings;
use crate::rpc::shard_manager_server::{ShardManager, ShardManagerServer};
use crate::rpc::{self, reason, refusal};
use crate::types::{BootInstant, ClusterId, Epoch, Revision, ShardId, Term, Version};

/// The largest message that it takes, in bytes. A conforming executor never needs it: it holds a few shards.
const MAX_BYTES: usize = 16 << 20;
/// An executor that calls more often than this in one run is not listened to any more.
const MOST_ENTRIES: usize = 100_000;

/// How calls are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// As a manager does.
    Properly,
    /// As a manager does, but only after this time.
    Late(Duration),
    /// Registrations: with a lease and no word about an assignment, since nothing was claimed.
    Bare,
    /// Not at all: a sixth of the lease later the call fails as if the connection had.
    Never,
    /// To this incarnation: a refusal.
    Refusal(u64, &'static str),
    /// To this incarnation: with a lease, whichever cluster the call names.
    Foreign(u64),
    /// With a lease at this version, below the mark, and what was assigned then: another set.
    Below(Version),
    /// Claims by digest: with the wish for a claim in full. Those in full: not at all, so that nothing renews the lease.
    ClaimWanted,
}

/// What the manager believes, and how it behaves.
pub struct State {
    pub cluster_id: ClusterId,
    pub version: Version,
    pub assignment: Holdings,
    /// Of the next grants.
    pub epoch: Epoch,
    /// The only executor that is listened to.
    pub executor_id: Option<String>,
    /// Its registered incarnation.
    pub incarnation: Option<u64>,
    pub registrations: Answer,
    pub renewals: Answer,
    pub entries: Vec<Entry>,
    lease_ttl: Duration,
}

impl State {
    /// A new version with this assignment.
    pub fn assign(&mut self, assignment: Holdings) {
        self.version.revision.0 += 1;
        self.assignment = assignment;
    }

    /// The shards at the epoch of the moment.
    pub fn grants(&self, shards: &[u32]) -> Holdings {
        Holdings::from_pairs(shards.iter().map(|&shard| (ShardId(shard), self.epoch)))
    }

    /// Another leader: a higher term, whose revisions begin anew.
    pub fn next_term(&mut self) {
        self.version = Version { term: Term(self.version.term.0 + 1), revision: Revision(1) };
    }

    /// The store was replaced: another cluster. Its term is the lower one: marks of different clusters do not compare.
    pub fn next_cluster(&mut self) -> ClusterId {
        self.version = Version { term: Term(self.version.term.0 / 2), revision: Revision(1) };
        std::mem::replace(&mut self.cluster_id, ClusterId(Uuid::new_v4()))
    }

    /// Every renewal so far, with its time.
    pub fn renewals_since(&self, since: BootInstant) -> impl Iterator<Item = (BootInstant, &Renewal)> {
        self.entries.iter().filter(move |entry| entry.at > since).filter_map(|entry| match &entry.what {
            What::Renew(renewal) => Some((entry.at, renewal)),
            _ => None,
        })
    }

    /// Every registration so far, with its time.
    pub fn registrations_since(&self, since: BootInstant) -> impl Iterator<Item = (BootInstant, &Registration)> {
        self.entries.iter().filter(move |entry| entry.at > since).filter_map(|entry| match &entry.what {
            What::Register(registration) => Some((entry.at, registration)),
            _ => None,
        })
    }

    /// When the call came that earned the newest lease. The executor sent it earlier, so its lease ends earlier than one lease after.
    pub fn leased_at(&self) -> BootInstant {
        self.leased_before(clock::now())
    }

    /// The same, of the newest lease that was earned before `moment`.
    pub fn leased_before(&self, moment: BootInstant) -> BootInstant {
        let leased = |entry: &Entry| match &entry.what {
            What::Register(registration) => registration.outcome.is_lease(),
            What::Renew(renewal) => renewal.outcome.is_lease(),
            _ => false,
        };
        self.entries
            .iter()
            .rev()
            .find(|entry| entry.at <= moment && leased(entry))
            .map_or(BootInstant::default(), |entry| entry.at)
    }

    fn lease(&self, assignment: Option<&Holdings>) -> rpc::LeaseAnswer {
        rpc::LeaseAnswer {
            cluster_id: self.cluster_id.to_string(),
            version: Some(self.version.into()),
            number_of_shards: NUMBER_OF_SHARDS,
            lease_ttl_ms: u64::try_from(self.lease_ttl.as_millis()).unwrap_or(u64::MAX),
            assignment: assignment.map(Into::into),
            claim_wanted: false,
        }
    }

    fn admit(&mut self, executor_id: &str) -> Result<(), Status> {
        if self.entries.len() >= MOST_ENTRIES {
            return Err(Status::resource_exhausted(format!("more than {MOST_ENTRIES} calls in one run")));
        }
        let known = self.executor_id.get_or_insert_with(|| cut(executor_id));
        if *known == cut(executor_id) {
            return Ok(());
        }
        let message = format!("executor {known} is being looked at, one at a time");
        Err(refusal(Code::Unavailable, reason::NOT_READY, message, &[]))
    }

    /// A registration takes effect: a new incarnation's shards have higher epochs.
    fn register(&mut self, incarnation: u64) {
        if self.incarnation == Some(incarnation) {
            return;
        }
        self.incarnation = Some(incarnation);
        self.epoch.0 += 1;
        let shards: Vec<u32> = self.assignment.iter().map(|(shard, _)| shard.0).collect();
        self.assign(self.grants(&shards));
    }

    fn answer_registration(&mut self, incarnation: u64) -> (Result<rpc::LeaseAnswer, Status>, Outcome) {
        match self.registrations {
            Answer::Never => lost(),
            Answer::Bare => {
                self.assignment = Holdings::default();
                self.register(incarnation);
                (Ok(self.lease(None)), self.granted())
            }
            _ => {
                self.register(incarnation);
                (Ok(self.lease(Some(&self.assignment))), self.granted())
            }
        }
    }

    fn answer_renewal(
        &mut self,
        cluster_id: &str,
        incarnation: u64,
        claim: &Claim,
    ) -> (Result<rpc::LeaseAnswer, Status>, Outcome) {
        match self.renewals {
            Answer::Never => return lost(),
            Answer::Refusal(whose, reason) if whose == incarnation => return refused(reason, &self.cluster_id),
            Answer::Foreign(whose) if whose == incarnation => return (Ok(self.lease(Some(&self.assignment))), Outcome::Foreign),
            _ => {}
        }
        if cluster_id.parse() != Ok(self.cluster_id) {
            return refused(reason::WRONG_CLUSTER, &self.cluster_id);
        }
        if self.incarnation != Some(incarnation) {
            return refused(reason::UNKNOWN_EXECUTOR, &self.cluster_id);
        }
        match self.renewals {
            Answer::Below(version) => {
                let answer = rpc::LeaseAnswer { version: Some(version.into()), ..self.lease(Some(&self.outdated())) };
                (Ok(answer), Outcome::Below { at: clock::now() })
            }
            Answer::ClaimWanted if !matches!(claim, Claim::Digest(_)) => lost(),
            Answer::ClaimWanted => (Ok(rpc::LeaseAnswer { claim_wanted: true, ..self.lease(None) }), Outcome::ClaimWanted),
            _ if claim.is(&self.assignment) => (Ok(self.lease(None)), self.granted()),
            _ => {
                let claim_wanted = matches!(claim, Claim::Digest(_));
                let answer = rpc::LeaseAnswer { claim_wanted, ..self.lease(Some(&self.assignment)) };
                (Ok(answer), self.granted())
            }
        }
    }

    /// An assignment from before: shards that are assigned now, save the last, and one more.
    fn outdated(&self) -> Holdings {
        let now: Vec<u32> = self.assignment.iter().map(|(shard, _)| shard.0).collect();
        let kept = now.iter().rev().skip(1).rev().copied();
        self.grants(&kept.chain([NUMBER_OF_SHARDS - 1]).collect::<Vec<_>>())
    }

    fn granted(&self) -> Outcome {
        Outcome::Lease { at: clock::now(), version: self.version }
    }
}

fn lost<T>() -> (Result<T, Status>, Outcome) {
    (Err(Status::unavailable("the connection is lost, as the script wants it")), Outcome::Lost)
}

fn refused<T>(reason: &'static str, cluster_id: &ClusterId) -> (Result<T, Status>, Outcome) {
    let code = if reason == reason::UNKNOWN_EXECUTOR { Code::NotFound } else { Code::FailedPrecondition };
    let metadata = [("cluster_id", cluster_id.to_string())];
    let metadata = if reason == reason::WRONG_CLUSTER { &metadata[..] } else { &[] };
    (Err(refusal(code, reason, "as the script wants it", metadata)), Outcome::Refused(reason))
}

struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
    lease_ttl: Duration,
}

/// See the module. Closes its port when dropped.
pub struct Stage {
    shared: Arc<Shared>,
    pub address: SocketAddr,
    _shutdown: DropGuard,
}

impl Stage {
    /// Serves on `listener` until it is dropped.
    pub fn open(listener: TcpListener, lease_ttl: Duration) -> std::io::Result<Stage> {
        let address = listener.local_addr()?;
        let state = State {
            cluster_id: ClusterId(Uuid::new_v4()),
            version: Version { term: Term(1 << 20), revision: Revision(1) },
            assignment: Holdings::default(),
            epoch: Epoch(1000),
            executor_id: None,
            incarnation: None,
            registrations: Answer::Properly,
            renewals: Answer::Properly,
            entries: Vec::new(),
            lease_ttl,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: watch::Sender::new(()), lease_ttl });
        let service = ShardManagerServer::new(Service(Arc::clone(&shared))).max_decoding_message_size(MAX_BYTES);
        let shutdown = CancellationToken::new();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming_shutdown(incoming, shutdown.clone().cancelled_owned()));
        Ok(Stage { shared, address, _shutdown: shutdown.drop_guard() })
    }

    /// Looks at the state, or changes it.
    pub fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let result = look(&mut self.shared.lock());
        self.shared.changed.send_replace(());
        result
    }

    /// Waits until `look` finds something; `None` once `until` is over.
    pub async fn find<T>(&self, until: BootInstant, mut look: impl FnMut(&State) -> Option<T>) -> Option<T> {
        let mut changed = self.shared.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if let Some(found) = look(&self.shared.lock()) {
                return Some(found);
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = clock::sleep_until(until) => return look(&self.shared.lock()),
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, what: What) -> usize {
        let mut state = self.lock();
        state.entries.push(Entry { at: clock::now(), what });
        let index = state.entries.len() - 1;
        drop(state);
        self.changed.send_replace(());
        index
    }

    /// Decides an answer and writes down what it is.
    async fn settle(
        &self,
        index: usize,
        delay: Option<Duration>,
        decide: impl FnOnce(&mut State) -> (Result<rpc::LeaseAnswer, Status>, Outcome),
    ) -> Result<Response<rpc::LeaseAnswer>, Status> {
        if let Some(delay) = delay {
            clock::sleep_until(clock::now().after(delay)).await;
        }
        let (answer, decided) = {
            let mut state = self.lock();
            let (answer, decided) = decide(&mut state);
            let what = state.entries.get_mut(index).map(|entry| &mut entry.what);
            if let Some(What::Register(Registration { outcome, .. }) | What::Renew(Renewal { outcome, .. })) = what {
                *outcome = decided;
            }
            (answer, decided)
        };
        self.changed.send_replace(());
        if decided == Outcome::Lost {
            // Long enough to be missed; not for ever, for the sake of those who would wait for ever.
            clock::sleep_until(clock::now().after(self.lease_ttl / 6)).await;
        }
        answer.map(Response::new)
    }
}

struct Service(Arc<Shared>);

#[tonic::async_trait]
impl ShardManager for Service {
    async fn register(&self, request: Request<rpc::RegisterRequest>) -> Result<Response<rpc::LeaseAnswer>, Status> {
        let request = request.into_inner();
        let answer = {
            let mut state = self.0.lock();
            state.admit(&request.executor_id)?;
            state.registrations
        };
        let delay = if let Answer::Late(delay) = answer { Some(delay) } else { None };
        let incarnation = request.incarnation;
        let index = self.0.note(What::Register(Registration {
            executor_id: cut(&request.executor_id),
            incarnation,
            endpoint: cut(&request.endpoint),
            weight: request.weight,
            cluster_id: cut(&request.cluster_id),
            mark: request.mark.map(Into::into),
            outcome: Outcome::Open,
        }));
        self.0.settle(index, delay, |state| state.answer_registration(incarnation)).await
    }

    async fn renew_lease(&self, request: Request<rpc::RenewLeaseRequest>) -> Result<Response<rpc::LeaseAnswer>, Status> {
        let request = request.into_inner();
        let claim = Claim::of(request.claim);
        let (newest, is_at_home) = {
            let mut state = self.0.lock();
            state.admit(&request.executor_id)?;
            (state.version, request.cluster_id.parse() == Ok(state.cluster_id))
        };
        let incarnation = request.incarnation;
        let index = self.0.note(What::Renew(Renewal {
            incarnation,
            cluster_id: cut(&request.cluster_id),
            is_at_home,
            mark: request.mark.map(Into::into),
            claim: claim.clone(),
            leaving: request.leaving,
            storage_epochs: request.storage_epochs.as_ref().map(set),
            newest,
            outcome: Outcome::Open,
        }));
        self.0.settle(index, None, |state| state.answer_renewal(&request.cluster_id, incarnation, &claim)).await
    }

    async fn deregister(&self, request: Request<rpc::DeregisterRequest>) -> Result<Response<rpc::DeregisterResponse>, Status> {
        let request = request.into_inner();
        {
            let mut state = self.0.lock();
            state.admit(&request.executor_id)?;
            state.incarnation.take_if(|incarnation| *incarnation == request.incarnation);
        }
        let (incarnation, cluster_id) = (request.incarnation, cut(&request.cluster_id));
        self.0.note(What::Deregister(Farewell { incarnation, cluster_id }));
        Ok(Response::new(rpc::DeregisterResponse {}))
    }

    async fn get_routing_table(
        &self,
        _request: Request<rpc::GetRoutingTableRequest>,
    ) -> Result<Response<rpc::RoutingTable>, Status> {
        Err(Status::unimplemented("this manager is played, for executors"))
    }

    type WatchRoutingTableStream = tokio_stream::Empty<Result<rpc::WatchRoutingTableResponse, Status>>;

    async fn watch_routing_table(
        &self,
        _request: Request<rpc::WatchRoutingTableRequest>,
    ) -> Result<Response<Self::WatchRoutingTableStream>, Status> {
        Err(Status::unimplemented("this manager is played, for executors"))
    }
}
