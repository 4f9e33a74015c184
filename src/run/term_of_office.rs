//! What lives as long as one leadership, from its first commit to the release: the coordinator, the open port, and everything behind it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tracing::{info, warn};

use super::places::Places;
use super::tasks::Tasks;
use super::{Ended, Error, LAST_ANSWERS, Manager, listen};
use crate::api::http::Phase;
use crate::api::nursery::Nursery;
use crate::api::serve::Protocol;
use crate::api::{self, Leading};
use crate::assignment::Engine;
use crate::assignment::event::{Event, Settings, Takeover};
use crate::clock;
use crate::coordinator::{self, Handle};
use crate::election::Leadership;
use crate::executors::{self, Executors};
use crate::published::Published;
use crate::store::Loaded;
use crate::types::ClusterId;

/// Reports of links and probes that wait for the coordinator.
const REPORTS: usize = 1024;

/// Everything that lives as long as one leadership.
pub(super) struct TermOfOffice {
    tasks: Tasks,
    /// gRPC connections, their streams, watchers, links and probes.
    nursery: Nursery,
    stopping: CancellationToken,
    reports: mpsc::Sender<Event>,
    port_open: CancellationToken,
    leading: Leading,
    health: Option<api::Health>,
}

const COORDINATOR: &str = "coordinator";
const LISTENER: &str = "gRPC listener";

impl TermOfOffice {
    /// Starts the coordinator, which begins with the first commit.
    pub(super) fn begin(manager: &Manager, leadership: &Leadership, places: &Places, loaded: Option<Loaded>) -> TermOfOffice {
        let config = &manager.config;
        let (nursery, stopping, port_open) = (Nursery::default(), CancellationToken::new(), CancellationToken::new());
        let (reports, reported) = mpsc::channel(REPORTS);
        let (handle, calls) = Handle::new(stopping.clone(), config.persistence.request_timeout);
        let published = Arc::new(Published::default());
        let settings = Settings {
            lease_ttl: config.executors.lease_ttl,
            settle_time: config.executors.settle_time,
            calm_time: config.executors.calm_time,
            rebalance_threshold: config.rebalance_threshold,
            exclusive_ids: config.executors.exclusive_ids,
            turn_interval: manager.turn_interval(),
            takeover_grace: leadership.takeover_grace(),
            max_pages_per_commit: places.store.limits().pages,
        };
        let takeover = Takeover {
            token: leadership.fence().token(),
            unix_ms: clock::unix_ms(),
            new_cluster: ClusterId(uuid::Uuid::new_v4()),
            number_of_shards: config.number_of_shards,
        };
        if loaded.is_none() {
            warn!("the store is empty: a new cluster, {}, begins with the first commit", takeover.new_cluster);
        }
        let loaded = loaded.map(|loaded| (loaded.revision, loaded.state));
        let links = executors::Settings {
            command_timeout: config.executors.command_timeout,
            probe_interval: config.executors.probe_interval,
            probe_timeout: config.executors.probe_timeout,
            number_of_shards: config.number_of_shards,
        };
        let executors =
            Executors::new(links, reports.clone(), Arc::clone(&manager.metrics), port_open.clone(), nursery.tracker());
        let parts = coordinator::Parts {
            engine: Engine::new(settings, takeover, loaded, clock::now()),
            store: Arc::clone(&places.store),
            fence: leadership.fence().clone(),
            belief: leadership.belief(),
            store_patience: manager.store_patience(),
            pulse: places.pulse.clone(),
            calls,
            reports: reported,
            executors,
            published: Arc::clone(&published),
            metrics: Arc::clone(&manager.metrics),
            stopping: stopping.clone(),
        };
        let mut tasks = Tasks::default();
        tasks.spawn(COORDINATOR, async move { coordinator::run(parts).await.map_err(Error::from) });
        let leading = Leading {
            handle,
            published,
            metrics: Arc::clone(&manager.metrics),
            number_of_shards: config.number_of_shards,
            identity: manager.identity.clone(),
            nursery: nursery.clone(),
            step_down: CancellationToken::new(),
        };
        TermOfOffice { tasks, nursery, stopping, reports, port_open, leading, health: None }
    }

    /// Opens the port once the first commit is durable, and serves until something ends it.
    pub(super) async fn serve(&mut self, manager: &Manager, leadership: &mut Leadership) -> Result<Ended, Error> {
        let (routes, health) = api::routes(&self.leading, manager.reflection.clone());
        let first = Arc::clone(&self.leading.published);
        tokio::select! {
            biased;
            ended = self.until_ended(manager.shutdown(), leadership) => return ended,
            _ = first.first() => {}
        }
        self.open_port(manager, routes, health).await?;
        self.until_ended(manager.shutdown(), leadership).await
    }

    async fn until_ended(&mut self, shutdown: &CancellationToken, leadership: &mut Leadership) -> Result<Ended, Error> {
        tokio::select! {
            biased;
            // Who was asked to stop stops with 0, whatever else comes to light at that moment.
            () = shutdown.cancelled() => Ok(Ended::Asked),
            lost = leadership.lost() => Err(Error::LeadershipLost(lost.into())),
            error = self.tasks.failed() => Err(error),
            () = self.leading.step_down.cancelled() => Ok(Ended::SteppedDown),
        }
    }

    async fn open_port(&mut self, manager: &Manager, routes: Routes, health: api::Health) -> Result<(), Error> {
        health.serving(true).await;
        let (listener, address) = listen("gRPC", manager.config.grpc.listen).await?;
        let metrics = Arc::clone(&manager.metrics);
        let serving = api::serve::run(
            listener,
            routes.into_axum_router(),
            Protocol::Grpc,
            self.stopping.clone(),
            self.nursery.clone(),
            move |change| metrics.connections(change),
        );
        self.tasks.spawn(LISTENER, async move {
            serving.await;
            Ok(())
        });
        self.health = Some(health);
        // The queue is empty or the coordinator takes from it: this does not wait long; and if the coordinator has ended, that says so.
        drop(self.reports.send(Event::PortOpened).await);
        self.port_open.cancel();
        manager.view.enter(Phase::Leader(Box::new(self.leading.clone())));
        manager.view.grpc_open(address);
        manager.addresses.send_modify(|known| known.grpc = Some(address));
        info!(address = %address, "gRPC listening on {address}");
        Ok(())
    }

    /// The way down. Gauges and readiness are down already.
    pub(super) async fn end(mut self, ended: &Result<Ended, Error>, request_timeout: Duration) {
        self.stopping.cancel();
        if let Some(health) = &self.health {
            health.serving(false).await;
        }
        // Who lost the leadership answers nobody any more; in every other case the commit in flight may still be seen through.
        if !matches!(ended, Err(Error::LeadershipLost(_))) {
            if tokio::time::timeout(request_timeout, self.tasks.drain()).await.is_err() {
                warn!(?request_timeout, "a commit in flight was not settled in time; its outcome stays unknown");
            }
            drop(tokio::time::timeout(LAST_ANSWERS, self.nursery.idle()).await);
        }
        self.tasks.shutdown().await;
        self.nursery.shutdown().await;
    }
}
