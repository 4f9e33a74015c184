//! A TCP proxy between us and a server, and what networks do.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::free_address;

/// Which bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From whoever connects to the server.
    Requests,
    /// From the server to whoever connected.
    Answers,
}

/// See the module. Ends with it, and all its connections too.
pub struct Proxy {
    pub address: SocketAddr,
    network: watch::Sender<Network>,
    _accepting: AbortOnDropHandle<()>,
}

#[derive(Clone, Copy, Default)]
struct Network {
    to_server: Way,
    to_client: Way,
    /// Connections of earlier generations end.
    generation: u64,
    /// How many connections there have been.
    connections: u64,
    /// No byte moves on connections before this one.
    mute_before: u64,
}

#[derive(Clone, Copy, Default)]
struct Way {
    black_hole: bool,
    delay: Duration,
}

impl Proxy {
    /// To a server, which need not be there yet.
    pub async fn to(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind(free_address()).await.unwrap();
        let own = listener.local_addr().unwrap();
        let network = watch::Sender::new(Network::default());
        let state = network.clone();
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let number = state.borrow().connections;
                state.send_modify(|it| it.connections += 1);
                connections.spawn(serve(client, server, number, state.subscribe()));
            }
        });
        Proxy { address: own, network, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Where the server is found through this.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sockets stay, no byte moves.
    pub fn black_hole(&self) {
        self.hold(Direction::Requests);
        self.hold(Direction::Answers);
    }

    /// Sockets stay, no byte moves this way; what was sent meanwhile moves when it is restored.
    pub fn hold(&self, direction: Direction) {
        self.network.send_modify(|it| match direction {
            Direction::Requests => it.to_server.black_hole = true,
            Direction::Answers => it.to_client.black_hole = true,
        });
    }

    /// Bytes move again, those that were held first.
    pub fn restore(&self) {
        self.network.send_modify(|it| (it.to_server.black_hole, it.to_client.black_hole) = (false, false));
    }

    /// Every connection ends; what they held is lost.
    pub fn drop_all(&self) {
        self.network.send_modify(|it| it.generation += 1);
    }

    /// As a firewall that forgets what it let through: connections that are open stay so, but no byte moves on them ever again.
    pub fn forget_connections(&self) {
        self.network.send_modify(|it| it.mute_before = it.connections);
    }

    /// Requests take that much longer.
    pub fn delay_requests(&self, delay: Duration) {
        self.network.send_modify(|it| it.to_server.delay = delay);
    }

    /// Answers take that much longer.
    pub fn delay_answers(&self, delay: Duration) {
        self.network.send_modify(|it| it.to_client.delay = delay);
    }
}

async fn serve(client: TcpStream, server: SocketAddr, number: u64, network: watch::Receiver<Network>) {
    let mut state = network.clone();
    let generation = state.borrow().generation;
    // A new connection in a black hole is not refused: nobody answers.
    if state.wait_for(|it| !it.to_server.black_hole || it.generation != generation).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let answers = async {
        // Whoever asked is gone, and what it asked for may still be on its way.
        if pump(server_reads, client_writes, (number, generation), network.clone(), |it| it.to_client).await == End::Reader {
            std::future::pending().await
        }
    };
    tokio::select! {
        _ = pump(client_reads, server_writes, (number, generation), network.clone(), |it| it.to_server) => {}
        () = answers => {}
        _ = state.wait_for(|it| it.generation != generation) => {}
    }
}

/// Who made an end of one way of a connection.
#[derive(PartialEq, Eq)]
enum End {
    Writer,
    Reader,
}

/// Moves bytes one way. What is read is due after the delay of that moment, whatever else is on its way; and the end of the stream behind
/// it, as between two kernels: what a process sent before it closed or died arrives, however late.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    (number, generation): (u64, u64),
    mut network: watch::Receiver<Network>,
    way: impl Fn(&Network) -> Way,
) -> End {
    let (queue, mut due) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let (delays, way) = (network.clone(), &way);
    let reading = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            // Nothing stands for the end.
            let read = from.read(&mut bytes).await.unwrap_or(0);
            let at = Instant::now() + way(&delays.borrow()).delay;
            if queue.send((at, bytes[..read].to_vec())).is_err() || read == 0 {
                return std::future::pending().await;
            }
        }
    };
    let writing = async {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            let is_dropped = |it: &Network| it.generation != generation;
            let moves = network.wait_for(|it| is_dropped(it) || (!way(it).black_hole && number >= it.mute_before)).await;
            // What a connection held when it was dropped is lost, also where bytes move again at once.
            let is_open = moves.is_ok_and(|it| !is_dropped(&it));
            if !is_open || bytes.is_empty() {
                return End::Writer;
            }
            if to.write_all(&bytes).await.is_err() {
                return End::Reader;
            }
        }
        End::Writer
    };
    tokio::select! {
        end = reading => end,
        end = writing => end,
    }
}
