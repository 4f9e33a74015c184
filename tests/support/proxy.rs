//! A TCP proxy between us and a server, and what networks do.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::etcd::address;

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
}

#[derive(Clone, Copy, Default)]
struct Way {
    black_hole: bool,
    delay: Duration,
}

impl Proxy {
    /// To a server, which need not be there yet.
    pub async fn to(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind(address()).await.unwrap();
        let own = listener.local_addr().unwrap();
        let (network, state) = watch::channel(Network::default());
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client, server, state.clone()));
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
        self.network.send_modify(|it| (it.to_server.black_hole, it.to_client.black_hole) = (true, true));
    }

    /// Requests arrive, answers do not.
    pub fn swallow_answers(&self) {
        self.network.send_modify(|it| it.to_client.black_hole = true);
    }

    /// Bytes move again, those that were held first.
    pub fn restore(&self) {
        self.network.send_modify(|it| (it.to_server.black_hole, it.to_client.black_hole) = (false, false));
    }

    /// Every connection ends; what they held is lost.
    pub fn drop_all(&self) {
        self.network.send_modify(|it| it.generation += 1);
    }

    /// Answers take that much longer.
    pub fn delay_answers(&self, delay: Duration) {
        self.network.send_modify(|it| it.to_client.delay = delay);
    }
}

async fn serve(client: TcpStream, server: SocketAddr, network: watch::Receiver<Network>) {
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
    tokio::select! {
        () = pump(client_reads, server_writes, network.clone(), |it| it.to_server) => {}
        () = pump(server_reads, client_writes, network.clone(), |it| it.to_client) => {}
        _ = state.wait_for(|it| it.generation != generation) => {}
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut network: watch::Receiver<Network>,
    way: impl Fn(&Network) -> Way,
) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let Ok(read @ 1..) = from.read(&mut bytes).await else { return };
        let delay = way(&network.borrow()).delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if network.wait_for(|it| !way(it).black_hole).await.is_err() || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
