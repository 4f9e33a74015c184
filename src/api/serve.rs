//! Serves a listener. Connections, and the tasks that hyper starts for the streams on them, are tasks of a [`Nursery`], so that they
//! can be *ended*, not only asked to end, before the leadership is given up.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, join};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::api::Peer;
use crate::api::nursery::{Nursery, OnDrop, Streams};

/// The pause after a connection could not be accepted: most likely there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Streams that one connection may have open.
const MAX_STREAMS: u32 = 1024;
/// What a peer may send ahead on one stream.
const WINDOW: u32 = 1 << 20;
/// What an HTTP/2 connection begins with; it tells the version.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Of one kind of trouble, a line is logged this often at most.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// What peers may take of one port.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Connections open at once; further ones wait in the operating system's queue.
    connections: usize,
    /// How long a peer may take over its first bytes, until the version of HTTP is known; an HTTP/1 peer over the headers of each
    /// request, and before it; and an HTTP/2 peer before it is asked whether it is there, and over its answer.
    patience: Duration,
}

const LIMITS: Limits = Limits { connections: 4096, patience: Duration::from_secs(10) };

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2 with prior knowledge, nothing else.
    Grpc,
    /// HTTP/1 and HTTP/2.
    Http,
}

/// Accepts connections until `stopping` is cancelled, then closes the port. Connections that are open finish the requests that they
/// are at, and end with `nursery` at the latest; a gRPC connection that is at none, and answered none just now, is dropped at once.
/// `connections` hears +1 and -1.
///
/// At most 4,096 connections are open at once, and one whose peer sends nothing, or only the half of a greeting or of a header, is
/// closed after 10 s; one whose HTTP/2 peer answers no ping, after 20 s.
pub async fn run(
    listener: TcpListener,
    router: Router,
    protocol: Protocol,
    stopping: CancellationToken,
    nursery: Nursery,
    connections: impl Fn(i64) + Clone + Send + Sync + 'static,
) {
    run_within(LIMITS, listener, router, protocol, stopping, nursery, connections).await;
}

async fn run_within(
    limits: Limits,
    listener: TcpListener,
    router: Router,
    protocol: Protocol,
    stopping: CancellationToken,
    nursery: Nursery,
    connections: impl Fn(i64) + Clone + Send + Sync + 'static,
) {
    let mut acceptor = Acceptor::new(listener, limits.connections);
    while let Some((stream, peer, place)) = stopping.run_until_cancelled(acceptor.next()).await {
        let (router, stopping, streams) = (router.clone(), stopping.clone(), nursery.child());
        let connections = connections.clone();
        nursery.spawn(async move {
            connections(1);
            let _closed = OnDrop(|| connections(-1));
            let _place = place;
            connection(limits.patience, stream, peer, router, protocol, stopping, streams).await;
        });
    }
}

/// Takes connections from a listener, as many at once as there are places.
struct Acceptor {
    listener: TcpListener,
    places: Arc<Semaphore>,
    limit: usize,
    full: Repeated,
    failed: Repeated,
}

impl Acceptor {
    fn new(listener: TcpListener, limit: usize) -> Acceptor {
        let places = Arc::new(Semaphore::new(limit));
        Acceptor { listener, places, limit, full: Repeated::default(), failed: Repeated::default() }
    }

    /// The next connection and its place, which is free again when it is dropped. Cancel-safe.
    async fn next(&mut self) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
        let place = self.place().await;
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => return (stream, peer, place),
                Err(error) => {
                    if let Some(times) = self.failed.take(Instant::now()) {
                        warn!(
                            error = &error as &dyn std::error::Error,
                            times, "connections could not be accepted; the next is tried in {ACCEPT_PAUSE:?}"
                        );
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn place(&mut self) -> OwnedSemaphorePermit {
        let waiting = Arc::clone(&self.places).acquire_owned();
        // Nobody closes it; a listener without places would wait for ever, as it should.
        if self.places.available_permits() == 0
            && let Some(times) = self.full.take(Instant::now())
        {
            warn!(times, limit = self.limit, "no more connections can be open on a port; further ones wait until some end");
        }
        match waiting.await {
            Ok(place) => place,
            Err(_) => std::future::pending().await,
        }
    }
}

/// Trouble that comes again and again, and is told now and then.
#[derive(Debug, Default)]
struct Repeated {
    told: Option<Instant>,
    untold: u64,
}

impl Repeated {
    /// Counts one more; where it is time to tell, how many there were since that was done last.
    fn take(&mut self, now: Instant) -> Option<u64> {
        self.untold += 1;
        if self.told.is_some_and(|told| now < told + WARN_EVERY) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

/// Reads until the version of HTTP is known: to the end of [`PREFACE`], or to the first byte that differs from it. Empty where the
/// peer closed the connection instead.
async fn opening(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut opening = Vec::with_capacity(PREFACE.len());
    while opening.len() < PREFACE.len() && PREFACE.starts_with(&opening) {
        if stream.read_buf(&mut opening).await? == 0 {
            return Ok(Vec::new());
        }
    }
    Ok(opening)
}

async fn connection(
    patience: Duration,
    mut stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    protocol: Protocol,
    stopping: CancellationToken,
    streams: Nursery,
) {
    // Without it an answer may wait for the peer's acknowledgement; a connection that cannot have it still works.
    drop(stream.set_nodelay(true));
    let begun = stopping.run_until_cancelled(timeout(patience, opening(&mut stream))).await;
    let opening = match begun {
        Some(Ok(Ok(opening))) if !opening.is_empty() => opening,
        Some(Ok(Err(error))) => {
            return debug!(%peer, error = &error as &dyn std::error::Error, "a connection broke before it began");
        }
        Some(Ok(Ok(_))) | None => return,
        Some(Err(_)) => return debug!(%peer, ?patience, "a peer did not begin to speak HTTP; its connection is closed"),
    };
    let (read, write) = stream.into_split();
    let stream = join(io::Cursor::new(opening).chain(read), write);
    let _end_streams = streams.end_on_drop();
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.call(request)
    });
    let streams = Streams::new(streams);
    let mut builder = Builder::new(streams.clone());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(patience);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(patience)
        .keep_alive_timeout(patience)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(4 * WINDOW);
    if protocol == Protocol::Grpc {
        builder = builder.http2_only();
    }
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stopping.cancelled() => match protocol {
            // The handshake of an orderly end would only keep the leadership waiting for peers that have nothing to lose.
            Protocol::Grpc if streams.are_quiet() => Ok(()),
            _ => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        },
    };
    if let Err(error) = served {
        debug!(%peer, error, "a connection ended with an error");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

    use axum::body::Body;
    use axum::routing::get;
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::TokioExecutor;
    use tokio::io::AsyncWriteExt;
    use tokio::sync::Notify;
    use tokio::task::JoinHandle;

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
            Server::start_within(LIMITS, Protocol::Http, router).await
        }

        async fn start_within(limits: Limits, protocol: Protocol, router: Router) -> Server {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (stopping, nursery, open) = (CancellationToken::new(), Nursery::default(), Arc::new(AtomicI64::new(0)));
            let counted = Arc::clone(&open);
            let count = move |change| {
                counted.fetch_add(change, Ordering::SeqCst);
            };
            let accepting =
                tokio::spawn(run_within(limits, listener, router, protocol, stopping.clone(), nursery.clone(), count));
            Server { address, stopping, nursery, open, accepting }
        }

        async fn has_open(&self, connections: i64) {
            let look = async {
                while self.open.load(Ordering::SeqCst) != connections {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(SOON, look).await.unwrap_or_else(|_| panic!("{connections} connections are not open"));
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

    /// The same over HTTP/2 alone, where a connection without requests would not be waited for.
    #[tokio::test]
    async fn a_stop_lets_a_call_under_way_have_its_answer() {
        let (arrived, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (arrive, wait) = (Arc::clone(&arrived), Arc::clone(&go_on));
        let handler = move || async move {
            arrive.notify_one();
            wait.notified().await;
            "done"
        };
        let server = Server::start_within(LIMITS, Protocol::Grpc, Router::new().route("/", get(handler))).await;
        let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Body>();
        let call = tokio::spawn(client.get(format!("http://{}/", server.address).parse().unwrap()));
        timeout(SOON, arrived.notified()).await.expect("it arrives");
        server.stopping.cancel();
        timeout(SOON, server.accepting).await.expect("the port closes").unwrap();
        go_on.notify_one();
        let answer = timeout(SOON, call).await.expect("it is answered").unwrap().unwrap();
        assert_eq!(axum::body::to_bytes(Body::new(answer.into_body()), 100).await.unwrap(), "done");
        drop(client);
        timeout(SOON, server.nursery.idle()).await.expect("the connection ends by itself");
    }

    /// A peer that never answers a ping, as an orderly end would ask it to.
    #[tokio::test]
    async fn a_stop_drops_a_quiet_connection_at_once() {
        let server = Server::start_within(LIMITS, Protocol::Grpc, Router::new()).await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        stream.write_all(&[PREFACE, &settings].concat()).await.unwrap();
        // The server's own settings: it speaks HTTP/2 now.
        timeout(SOON, stream.read_u8()).await.expect("it greets").unwrap();
        server.stopping.cancel();
        timeout(SOON, server.nursery.idle()).await.expect("the connection ends by itself");
        assert_eq!(server.open.load(Ordering::SeqCst), 0);
    }

    /// Sends `bytes`, and waits for the server to close the connection; how long that took.
    async fn closed(server: &Server, bytes: &[u8]) -> Duration {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let begun = Instant::now();
        stream.write_all(bytes).await.unwrap();
        // Whether it is closed in order or reset is no matter; so is what the server says before.
        drop(timeout(SOON, stream.read_to_end(&mut Vec::new())).await.expect("it is closed"));
        begun.elapsed()
    }

    #[tokio::test]
    async fn a_peer_that_does_not_begin_to_speak_is_hung_up_on() {
        let patience = Duration::from_millis(300);
        for protocol in [Protocol::Grpc, Protocol::Http] {
            let limits = Limits { patience, ..LIMITS };
            let server = Server::start_within(limits, protocol, Router::new().route("/", get(async || "hello"))).await;
            for bytes in [&b""[..], b"P", &PREFACE[..PREFACE.len() - 1]] {
                let after = closed(&server, bytes).await;
                assert!(after >= patience - Duration::from_millis(10), "{protocol:?}, {bytes:?}: after {after:?}");
            }
            server.has_open(0).await;
        }
        // From then on it is hyper that looks at the clock.
        let server = Server::start_within(Limits { patience, ..LIMITS }, Protocol::Http, Router::new()).await;
        for bytes in [PREFACE, b"G", b"GET / HTTP/1.1\r\nHost: x", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"] {
            let after = closed(&server, bytes).await;
            assert!(after >= patience - Duration::from_millis(10), "{bytes:?}: after {after:?}");
        }
    }

    /// A request that comes in small pieces, the first of which tell nothing, is served all the same.
    #[tokio::test]
    async fn a_slow_beginning_is_no_offence() {
        let server = Server::start(Router::new().route("/", get(async || "hello"))).await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        for byte in b"GET / HTTP/1.0\r\n\r\n" {
            stream.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        let mut answer = String::new();
        timeout(SOON, stream.read_to_string(&mut answer)).await.expect("it is answered").unwrap();
        assert!(answer.starts_with("HTTP/1.0 200 OK") && answer.ends_with("hello"), "{answer}");
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_wait_until_one_ends() {
        let limits = Limits { connections: 2, ..LIMITS };
        let server = Server::start_within(limits, Protocol::Http, Router::new().route("/", get(async || "hello"))).await;
        let (first, _second) =
            (TcpStream::connect(server.address).await.unwrap(), TcpStream::connect(server.address).await.unwrap());
        server.has_open(2).await;
        let mut request = server.get();
        // Nothing tells that it waits; that it is not answered for a while shows it.
        assert!(timeout(Duration::from_millis(200), &mut request).await.is_err());
        assert_eq!(server.open.load(Ordering::SeqCst), 2);
        drop(first);
        assert_eq!(timeout(SOON, request).await.expect("it is its turn").unwrap().unwrap(), "hello");
    }

    #[test]
    fn trouble_that_repeats_is_told_now_and_then_with_its_count() {
        let (mut trouble, begun) = (Repeated::default(), Instant::now());
        let told: Vec<_> = (0..250).filter_map(|at| Some((at, trouble.take(begun + at * ACCEPT_PAUSE)?))).collect();
        assert_eq!(told, [(0, 1), (100, 100), (200, 100)]);
    }

    #[tokio::test]
    async fn a_stop_does_not_wait_for_a_peer_that_has_said_nothing() {
        let server = Server::start(Router::new()).await;
        let _silent = TcpStream::connect(server.address).await.unwrap();
        server.has_open(1).await;
        server.stopping.cancel();
        timeout(SOON, server.nursery.idle()).await.expect("the connection ends by itself");
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
