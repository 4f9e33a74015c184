//! One link and one probe per executor. They report by channel; nobody waits for them, and none waits for another.

pub mod link;
pub mod probe;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::transport::{Channel, Endpoint};
use tracing::error;

use crate::assignment::command::{Assignment, Peer};
use crate::assignment::event::Event;
use crate::metrics::Metrics;
use crate::types::{Incarnation, Slot};

/// How executors are spoken to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The deadline of one attempt to tell an executor its assignment.
    pub command_timeout: Duration,
    /// The time between two health probes of one executor.
    pub probe_interval: Duration,
    /// How long a probe waits for its answer.
    pub probe_timeout: Duration,
    /// Answers that name other shards are refused.
    pub number_of_shards: u32,
}

/// What links and probes share.
#[derive(Clone)]
struct Context {
    settings: Settings,
    reports: mpsc::Sender<Event>,
    metrics: Arc<Metrics>,
    /// Cancelled when the port is open; probes begin then.
    port_open: CancellationToken,
}

/// The executors that this leadership is connected to.
pub struct Executors {
    context: Context,
    connected: HashMap<Slot, Connected>,
    tasks: JoinSet<()>,
    tracker: TaskTracker,
}

struct Connected {
    incarnation: Incarnation,
    /// Taken out as it comes in, so it does not grow.
    wanted: mpsc::UnboundedSender<Assignment>,
    /// Ends link and probe when dropped.
    _end: DropGuard,
}

impl Executors {
    /// None yet. Every task is counted in `tracker` until it has really ended, also where this is dropped.
    pub fn new(
        settings: Settings,
        reports: mpsc::Sender<Event>,
        metrics: Arc<Metrics>,
        port_open: CancellationToken,
        tracker: TaskTracker,
    ) -> Executors {
        let context = Context { settings, reports, metrics, port_open };
        Executors { context, connected: HashMap::new(), tasks: JoinSet::new(), tracker }
    }

    /// Makes contact with an executor, in place of whoever was in its slot: probes it, and tells it what [`Executors::send`] says.
    pub fn connect(&mut self, peer: Peer) {
        self.disconnect(peer.slot);
        let channel = match open(&peer.endpoint, &self.context.settings) {
            Ok(channel) => channel,
            // Endpoints are checked when they register; this one was stored by a version with other rules.
            Err(error) => {
                error!(
                    executor = %peer.id, endpoint = %peer.endpoint, error = &error as &dyn std::error::Error,
                    "an executor's endpoint is unusable; it is told its shards only in answers to its renewals"
                );
                return;
            }
        };
        let (send, wanted) = mpsc::unbounded_channel();
        let end = CancellationToken::new();
        self.spawn(end.clone(), probe::run(peer.clone(), channel.clone(), self.context.clone()));
        self.spawn(end.clone(), link::run(peer.clone(), wanted, channel, self.context.clone()));
        let connected = Connected { incarnation: peer.incarnation, wanted: send, _end: end.drop_guard() };
        self.connected.insert(peer.slot, connected);
    }

    /// Drives an executor towards this assignment from now on; replaces what was sent before. Without effect where that incarnation
    /// is not connected.
    pub fn send(&mut self, assignment: Assignment) {
        if let Some(connected) = self.connected.get(&assignment.slot)
            && connected.incarnation == assignment.incarnation
        {
            // A link that panicked ends the process by `failed`.
            connected.wanted.send(assignment).ok();
        }
    }

    /// Ends the link and the probe of the executor in this slot.
    pub fn disconnect(&mut self, slot: Slot) {
        self.connected.remove(&slot);
    }

    fn spawn(&mut self, end: CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
        let task = async move {
            end.run_until_cancelled(task).await;
        };
        self.tasks.spawn(self.tracker.track_future(task));
    }

    /// Waits until a link or a probe panics, for as long as it takes. Cancel-safe.
    pub async fn failed(&mut self) -> JoinError {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(())) => {}
                Some(Err(error)) => return error,
                None => std::future::pending().await,
            }
        }
    }

    /// Ends every link and probe, and returns when they have ended.
    pub async fn shutdown(&mut self) {
        self.connected.clear();
        self.tasks.shutdown().await;
    }
}

/// A connection that is opened when it is first used, and again when it broke.
fn open(endpoint: &str, settings: &Settings) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(endpoint.to_owned())?
        .connect_timeout(settings.command_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5));
    Ok(endpoint.connect_lazy())
}

#[cfg(test)]
mod tests;
