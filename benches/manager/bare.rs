//! The least that a server can do: tonic's own, in a process of its own as the manager is, with answers that were there before it started.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use prost::Message as _;
use prost::bytes::Bytes;
use shard_manager::rpc::ready::{Message, shard_manager_server};
use shard_manager::rpc::{self, LeaseAnswer};
use tokio::net::TcpListener;
use tonic::codegen::tokio_stream::Empty;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::cluster::eventually;
use crate::support::free_address;

/// What this program is started with to be the bare server; a directory with its answers and an address follow.
pub const ARGUMENT: &str = "bare-server";

/// A bare server as a process; ends when dropped, or when this process does.
pub struct Bare {
    child: Child,
    pub address: SocketAddr,
}

impl Bare {
    /// Answers `GetRoutingTable` with these bytes, and `RenewLease` and `Register` with this message.
    pub async fn start(directory: &Path, table: &[u8], lease: &LeaseAnswer) -> Bare {
        std::fs::write(directory.join("table"), table).unwrap();
        std::fs::write(directory.join("lease"), lease.encode_to_vec()).unwrap();
        let address = free_address();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(ARGUMENT).arg(directory).arg(address.to_string()).stdin(Stdio::piped());
        let bare = Bare { child: command.spawn().unwrap(), address };
        eventually("a bare server", async || crate::cluster::connect(address).await).await;
        bare
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Serves until whoever started this process is gone.
pub fn serve(directory: &Path, address: SocketAddr) {
    let read = |name| std::fs::read(directory.join(name)).unwrap();
    let answers = Answers { table: read("table").into(), lease: LeaseAnswer::decode(&*read("lease")).unwrap() };
    // As many threads as the manager has.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.spawn(async move {
        let incoming = TcpIncoming::from(TcpListener::bind(address).await.unwrap()).with_nodelay(Some(true));
        let service = shard_manager_server::ShardManagerServer::new(answers).max_encoding_message_size(rpc::MAX_MESSAGE_BYTES);
        Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
    });
    // Ends with the process at the other end of the pipe, however that one ends.
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
    runtime.shutdown_background();
}

struct Answers {
    table: Bytes,
    lease: LeaseAnswer,
}

#[tonic::async_trait]
impl shard_manager_server::ShardManager for Answers {
    async fn register(&self, _: Request<rpc::RegisterRequest>) -> Result<Response<LeaseAnswer>, Status> {
        Ok(Response::new(self.lease.clone()))
    }

    async fn renew_lease(&self, _: Request<rpc::RenewLeaseRequest>) -> Result<Response<LeaseAnswer>, Status> {
        Ok(Response::new(self.lease.clone()))
    }

    async fn deregister(&self, _: Request<rpc::DeregisterRequest>) -> Result<Response<rpc::DeregisterResponse>, Status> {
        Ok(Response::new(rpc::DeregisterResponse {}))
    }

    async fn get_routing_table(&self, _: Request<rpc::GetRoutingTableRequest>) -> Result<Response<Message>, Status> {
        Ok(Response::new(Message::new(self.table.clone())))
    }

    type WatchRoutingTableStream = Empty<Result<Message, Status>>;

    async fn watch_routing_table(
        &self,
        _: Request<rpc::WatchRoutingTableRequest>,
    ) -> Result<Response<Empty<Result<Message, Status>>>, Status> {
        Err(Status::unimplemented("nothing is watched here"))
    }
}
