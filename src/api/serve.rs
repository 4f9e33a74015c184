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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

    use axum::routing::get;
    use tokio::sync::Notify;
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, timeout};

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    struct Server {
        address: SocketAddr,
        stopping: CancellationToken,
        nursery: Nursery,
        open: Arc<AtomicI64>,
        accepting: JoinHandle<()>,
    }

    impl Server {
        async fn start(router: Router) -> Server {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (stopping, nursery, open) = (CancellationToken::new(), Nursery::default(), Arc::new(AtomicI64::new(0)));
            let counted = Arc::clone(&open);
            let count = move |change| {
                counted.fetch_add(change, Ordering::SeqCst);
            };
            let accepting = tokio::spawn(run(listener, router, Protocol::Http, stopping.clone(), nursery.clone(), count));
            Server { address, stopping, nursery, open, accepting }
        }

        fn get(&self) -> JoinHandle<reqwest::Result<String>> {
            let url = format!("http://{}/", self.address);
            tokio::spawn(async move { reqwest::get(url).await?.text().await })
        }
    }

    #[tokio::test]
    async fn a_stop_closes_the_port_and_lets_a_request_finish() {
        let (arrived, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (arrive, wait) = (Arc::clone(&arrived), Arc::clone(&go_on));
        let handler = move || async move {
            arrive.notify_one();
            wait.notified().await;
            "done"
        };
        let server = Server::start(Router::new().route("/", get(handler))).await;
        let request = server.get();
        timeout(SOON, arrived.notified()).await.expect("it arrives");
        assert_eq!(server.open.load(Ordering::SeqCst), 1);
        server.stopping.cancel();
        timeout(SOON, server.accepting).await.expect("the port closes").unwrap();
        assert!(TcpStream::connect(server.address).await.is_err());
        go_on.notify_one();
        assert_eq!(timeout(SOON, request).await.expect("it is answered").unwrap().unwrap(), "done");
        timeout(SOON, server.nursery.idle()).await.expect("the connection ends by itself");
        assert_eq!(server.open.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_request_that_hangs_ends_with_the_nursery() {
        let (arrived, ended) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let (arrive, end) = (Arc::clone(&arrived), Arc::clone(&ended));
        let handler = move || async move {
            let _ended = OnDrop(move || end.store(true, Ordering::SeqCst));
            arrive.notify_one();
            std::future::pending::<&str>().await
        };
        let server = Server::start(Router::new().route("/", get(handler))).await;
        let request = server.get();
        timeout(SOON, arrived.notified()).await.expect("it arrives");
        server.stopping.cancel();
        timeout(SOON, server.nursery.shutdown()).await.expect("it ends");
        assert!(ended.load(Ordering::SeqCst), "the handler has really ended");
        assert!(timeout(SOON, request).await.expect("the caller notices").unwrap().is_err());
    }

    /// Asked to end, a task that blocks its thread does not; the leadership must not be given up before it has.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_task_that_blocks_its_thread_delays_the_shutdown_by_that_long() {
        let nursery = Nursery::default();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let blocked = Duration::from_millis(600);
        nursery.spawn(async move {
            begun.send(()).unwrap();
            std::thread::sleep(blocked);
        });
        begins.await.unwrap();
        let asked = Instant::now();
        nursery.shutdown().await;
        assert!(asked.elapsed() > blocked - Duration::from_millis(100), "it returned after {:?}", asked.elapsed());
    }
}
