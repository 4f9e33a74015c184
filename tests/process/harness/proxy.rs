//! A TCP proxy that cuts: black-hole (sockets stay, no byte moves), one direction or both, restore, drop all connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Which bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From whoever connects to the target.
    Requests,
    /// From the target to whoever connected.
    Answers,
}

/// Listens until dropped.
pub struct Proxy {
    pub address: SocketAddr,
    gates: Arc<Gates>,
}

/// What is open. Connections that were made before the current generation end.
struct Gates {
    requests: watch::Sender<bool>,
    answers: watch::Sender<bool>,
    generation: watch::Sender<u64>,
}

impl Proxy {
    /// Everything passes.
    pub async fn to(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let gates =
            Gates { requests: watch::Sender::new(true), answers: watch::Sender::new(true), generation: watch::Sender::new(0) };
        let gates = Arc::new(gates);
        tokio::spawn(accept(listener, target, Arc::downgrade(&gates)));
        Proxy { address, gates }
    }

    fn gate(&self, direction: Direction) -> &watch::Sender<bool> {
        match direction {
            Direction::Requests => &self.gates.requests,
            Direction::Answers => &self.gates.answers,
        }
    }

    /// No byte moves this way until restored; what was sent meanwhile moves then.
    pub fn hold(&self, direction: Direction) {
        self.gate(direction).send_replace(false);
    }

    /// No byte moves.
    pub fn black_hole(&self) {
        self.hold(Direction::Requests);
        self.hold(Direction::Answers);
    }

    /// Everything passes again.
    pub fn restore(&self) {
        self.gates.requests.send_replace(true);
        self.gates.answers.send_replace(true);
    }

    /// Every connection ends; bytes that were held are lost.
    pub fn drop_all(&self) {
        self.gates.generation.send_modify(|generation| *generation += 1);
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, gates: std::sync::Weak<Gates>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        let Some(gates) = gates.upgrade() else { return };
        let (requests, answers) = (gates.requests.subscribe(), gates.answers.subscribe());
        let mut generation = gates.generation.subscribe();
        generation.mark_unchanged();
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect(target).await else { return };
            tokio::select! {
                // A dropped proxy ends its connections too.
                _ = generation.changed() => {}
                _ = pump(&client, &server, requests) => {}
                _ = pump(&server, &client, answers) => {}
            }
        });
    }
}

/// Moves bytes one way while the gate is open, until the sender closes: nobody here talks on over half a connection.
async fn pump(from: &TcpStream, to: &TcpStream, mut gate: watch::Receiver<bool>) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = loop {
            from.readable().await?;
            match from.try_read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => break read?,
            }
        };
        if length == 0 || gate.wait_for(|open| *open).await.is_err() {
            return Ok(());
        }
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            to.writable().await?;
            match to.try_write(rest) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => rest = &rest[written?..],
            }
        }
    }
}
