//! The face of a session: how it is set up, talked to and ended.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::service::Routes;

use super::actor::Actor;
use super::control::Control;
use super::error::{Error, StartError};
use super::host::ShardHost;
use super::managers::{Managers, normalize};
use super::observer::{Nobody, SessionObserver};
use super::pace::LONGEST_ATTEMPT;
use super::server;
use crate::types::{Epoch, ExecutorId, Incarnation, MAX_WEIGHT, ShardId};

/// Commands that may wait for the session's task; more make their senders wait.
const DELIVERIES: usize = 64;

/// Sets up a session. See [`ExecutorSession::builder`].
pub struct Builder<H> {
    id: ExecutorId,
    host: H,
    managers: Vec<String>,
    listen: SocketAddr,
    advertise: Option<String>,
    weight: u32,
    routes: Option<Routes>,
    observer: Box<dyn SessionObserver>,
}

impl<H: ShardHost> Builder<H> {
    /// Adds addresses at which a manager may be, as `host:port` or `http://host:port`. At least one is needed; with several, each is
    /// tried until one leads.
    pub fn managers<T: Into<String>>(mut self, addresses: impl IntoIterator<Item = T>) -> Self {
        self.managers.extend(addresses.into_iter().map(Into::into));
        self
    }

    /// Where to serve the manager's commands. Default: a free port of 127.0.0.1.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Where the manager reaches this very process, as `host:port` or `http://host:port`. Default: the address listened on, as bound.
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = Some(address.into());
        self
    }

    /// The share of the shards, relative to other executors: 1 (the default) to [`MAX_WEIGHT`].
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Serves these too, on the same port and for as long as the session: what callers reach at the endpoint that the routing table names.
    /// [`Routes`] of gRPC services, or an `axum::Router` (0.8) for other things, by HTTP/1 or HTTP/2. Default: nothing.
    ///
    /// They are open from the start, so also before there is a lease and after it ran out: what they do for a shard is their own to tie to
    /// its [`ShardGrant`](super::ShardGrant). When the session ends, what is under way has half a second to finish.
    pub fn serve(mut self, routes: impl Into<Routes>) -> Self {
        self.routes = Some(routes.into());
        self
    }

    /// Who watches. Default: nobody.
    pub fn observer(mut self, observer: impl SessionObserver) -> Self {
        self.observer = Box::new(observer);
        self
    }

    /// Opens the port and begins. Does not wait for a manager: the session looks for one for as long as it lives.
    pub async fn start(self) -> Result<ExecutorSession, StartError> {
        if self.managers.is_empty() {
            return Err(StartError::NoManager);
        }
        if !(1..=MAX_WEIGHT).contains(&self.weight) {
            return Err(StartError::Weight { weight: self.weight });
        }
        let managers = Managers::new(&self.managers, LONGEST_ATTEMPT).map_err(StartError::Manager)?;
        let advertised = self.advertise.as_deref().map(normalize).transpose().map_err(StartError::Advertise)?;
        if advertised.is_none() && self.listen.ip().is_unspecified() {
            return Err(StartError::Unreachable { listen: self.listen });
        }
        let bind = |source| StartError::Bind { listen: self.listen, source };
        let listener = TcpListener::bind(self.listen).await.map_err(bind)?;
        let local_addr = listener.local_addr().map_err(bind)?;
        let endpoint = advertised.unwrap_or_else(|| format!("http://{local_addr}"));

        let (controls, control_receiver) = mpsc::unbounded_channel();
        let (delivery_sender, deliveries) = mpsc::channel(DELIVERIES);
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(server::serve(listener, delivery_sender, self.routes, shutdown.clone()));
        let actor = Actor::new(super::actor::Parts {
            id: self.id,
            incarnation: Incarnation::draw(),
            host: self.host,
            observer: self.observer,
            managers,
            endpoint: endpoint.clone(),
            weight: self.weight,
            controls: controls.clone(),
            control_receiver,
            deliveries,
            serving,
            shutdown: shutdown.drop_guard(),
        });
        let task = AbortOnDropHandle::new(tokio::spawn(actor.run()));
        Ok(ExecutorSession { local_addr, endpoint, controls, task })
    }
}

/// An executor's tie to the manager, kept by a task of its own.
///
/// Dropping it ends everything at once: shards are cancelled and dropped, and the manager finds out when the lease runs out. To end
/// in order, call [`leave`](ExecutorSession::leave) or [`stop`](ExecutorSession::stop).
#[derive(Debug)]
pub struct ExecutorSession {
    local_addr: SocketAddr,
    endpoint: String,
    controls: mpsc::UnboundedSender<Control>,
    task: AbortOnDropHandle<Result<(), Error>>,
}

impl ExecutorSession {
    /// Begins to set up a session of the executor `id`, which must be no other process's, whose shards `host` works on.
    pub fn builder<H: ShardHost>(id: ExecutorId, host: H) -> Builder<H> {
        Builder {
            id,
            host,
            managers: Vec::new(),
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            advertise: None,
            weight: 1,
            routes: None,
            observer: Box::new(Nobody),
        }
    }

    /// Where it serves the manager's commands, as bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Where it tells the manager that it serves, as `http://host:port`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Waits for the session's end: `Ok` where it was asked to. Cancel-safe; not to be called again after it returned.
    pub async fn ended(&mut self) -> Result<(), Error> {
        (&mut self.task).await.map_err(Error::Task)?
    }

    /// Asks the manager to move every shard away, in order; then, or after `timeout`, goes on as [`stop`](ExecutorSession::stop).
    /// A second call, or a stop, cuts it short. Returns at once; the end is what [`ended`](ExecutorSession::ended) waits for.
    pub fn begin_leave(&self, timeout: Duration) {
        let _ = self.controls.send(Control::Leave(timeout));
    }

    /// Cancels every shard, waits until all have stopped or the lease ran out, and deregisters. Returns at once; the end is what
    /// [`ended`](ExecutorSession::ended) waits for.
    pub fn begin_stop(&self) {
        let _ = self.controls.send(Control::Stop);
    }

    /// Cancels every shard, waits until all have stopped or the lease ran out, and ends without deregistering: the shards stay this
    /// executor's until its lease is over. Where its next process registers before that, under the same id and at the same literal
    /// address, they go on there and nothing moves; otherwise they are without an owner until the lease is over. Returns at once; the end
    /// is what [`ended`](ExecutorSession::ended) waits for.
    pub fn begin_restart(&self) {
        let _ = self.controls.send(Control::Restart);
    }

    /// [`begin_leave`](ExecutorSession::begin_leave), and waits for the end. Dropped, it drops the session.
    pub async fn leave(mut self, timeout: Duration) -> Result<(), Error> {
        self.begin_leave(timeout);
        self.ended().await
    }

    /// [`begin_stop`](ExecutorSession::begin_stop), and waits for the end. Dropped, it drops the session.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.begin_stop();
        self.ended().await
    }

    /// Tells the manager that the executor's storage has seen `epoch` of a shard and refuses lower ones (L11). See
    /// [`ShardGrant::report_storage_epoch`](super::ShardGrant::report_storage_epoch).
    pub fn report_storage_epoch(&self, shard: ShardId, epoch: Epoch) {
        let _ = self.controls.send(Control::StorageEpoch(shard, epoch));
    }
}
