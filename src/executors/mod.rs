//! One link and one probe per executor. They report by channel; nobody waits for them, and none waits for another.

pub mod link;
pub mod probe;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::transport::{Channel, Endpoint};
use tracing::error;

use crate::assignment::command::Assignment;
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
    endpoint: String,
    desired: watch::Sender<Assignment>,
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

    /// Drives an executor towards this assignment from now on; replaces what was sent before. An executor that is new, or is a
    /// new incarnation in its slot, is connected to.
    pub fn send(&mut self, assignment: Assignment) {
        if let Some(connected) = self.connected.get(&assignment.slot)
            && connected.incarnation == assignment.incarnation
            && connected.endpoint == assignment.endpoint
        {
            connected.desired.send_replace(assignment);
            return;
        }
        let channel = match connect(&assignment.endpoint, &self.context.settings) {
            Ok(channel) => channel,
            // Endpoints are checked when they register; this one was stored by a version with other rules.
            Err(error) => {
                self.connected.remove(&assignment.slot);
                error!(
                    executor = %assignment.id, endpoint = %assignment.endpoint, error = &error as &dyn std::error::Error,
                    "an executor's endpoint is unusable; it is told nothing, and loses its shards with its lease unless it renews"
                );
                return;
            }
        };
        let end = CancellationToken::new();
        let (slot, incarnation, endpoint) = (assignment.slot, assignment.incarnation, assignment.endpoint.clone());
        let probe = probe::run(slot, incarnation, assignment.id.clone(), channel.clone(), self.context.clone());
        let (desired, wanted) = watch::channel(assignment);
        let link = link::run(wanted, channel, self.context.clone());
        self.spawn(end.clone(), probe);
        self.spawn(end.clone(), link);
        self.connected.insert(slot, Connected { incarnation, endpoint, desired, _end: end.drop_guard() });
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
fn connect(endpoint: &str, settings: &Settings) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(endpoint.to_owned())?
        .connect_timeout(settings.command_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5));
    Ok(endpoint.connect_lazy())
}

#[cfg(test)]
mod tests;
