//! Serves a listener. Connections, and the tasks that hyper starts for the streams on them, are tasks of a [`Nursery`], so that they
//! can be *ended*, not only asked to end, before the leadership is given up.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use hyper::rt::Executor;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::api::Peer;

/// The pause after a connection could not be accepted: most likely there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A peer that is silent for this long is asked whether it is there, and has as long to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Streams that one connection may have open.
const MAX_STREAMS: u32 = 1024;
/// What a peer may send ahead on one stream.
const WINDOW: u32 = 1 << 20;
/// How long an HTTP/1 peer may take over its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Tasks that end together.
#[derive(Clone, Debug, Default)]
pub struct Nursery {
    tracker: TaskTracker,
    end: CancellationToken,
}

impl Nursery {
    /// Starts a task that ends, at its next await, when the nursery does.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let end = self.end.clone();
        self.tracker.spawn(async move {
            end.run_until_cancelled(task).await;
        });
    }

    /// Counts tasks that others start and end.
    pub fn tracker(&self) -> TaskTracker {
        self.tracker.clone()
    }

    /// A nursery whose tasks count as, and end with, tasks of this one, and which can be ended alone.
    fn child(&self) -> Nursery {
        Nursery { tracker: self.tracker.clone(), end: self.end.child_token() }
    }

    /// Waits until every task has ended by itself. Cancel-safe.
    pub async fn idle(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Ends every task, and returns when every one has really ended, however long one of them blocks its thread.
    pub async fn shutdown(&self) {
        self.end.cancel();
        self.idle().await;
    }
}

/// For the tasks that hyper starts.
impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Nursery {
    fn execute(&self, task: F) {
        self.spawn(task);
    }
}

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2 with prior knowledge, nothing else.
    Grpc,
    /// HTTP/1 and HTTP/2.
    Http,
}

/// Accepts connections until `stopping` is cancelled, then closes the port. Connections that are open finish the requests that they
/// are at, and end with `nursery` at the latest. `connections` hears +1 and -1.
pub async fn run(
    listener: TcpListener,
    router: Router,
    protocol: Protocol,
    stopping: CancellationToken,
    nursery: Nursery,
    connections: impl Fn(i64) + Clone + Send + Sync + 'static,
) {
    while let Some(accepted) = stopping.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, peer)) => {
                let connection = connection(stream, peer, router.clone(), protocol, stopping.clone(), nursery.child());
                let connections = connections.clone();
                nursery.spawn(async move {
                    connections(1);
                    let _closed = OnDrop(|| connections(-1));
                    connection.await;
                });
            }
            Err(error) => {
                warn!(
                    error = &error as &dyn std::error::Error,
                    "a connection could not be accepted; the next is tried in {ACCEPT_PAUSE:?}"
                );
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Does something when a scope is left, by whatever way.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    protocol: Protocol,
    stopping: CancellationToken,
    streams: Nursery,
) {
    // Without it an answer may wait for the peer's acknowledgement; a connection that cannot have it still works.
    drop(stream.set_nodelay(true));
    let _end_streams = streams.end.clone().drop_guard();
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.call(request)
    });
    let mut builder = Builder::new(streams);
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(4 * WINDOW);
    if protocol == Protocol::Grpc {
        builder = builder.http2_only();
    }
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        debug!(%peer, error, "a connection ended with an error");
    }
}
