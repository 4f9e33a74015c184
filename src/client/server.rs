//! What the executor serves: `ShardExecutor`, and `grpc.health.v1` for the manager's probes.

use std::future::Future;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::ledger::PushRefusal;
use crate::rpc::shard_executor_server::{ShardExecutor, ShardExecutorServer};
use crate::rpc::{ApplyAssignmentRequest, ApplyAssignmentResponse, MAX_MESSAGE_BYTES};

/// A connection that answers no ping for this long is dead; pings go out as often.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A command and whom to answer.
pub struct Delivery {
    /// As it came.
    pub request: ApplyAssignmentRequest,
    /// Takes the answer.
    pub reply: oneshot::Sender<Result<ApplyAssignmentResponse, Status>>,
}

struct Service {
    deliveries: mpsc::Sender<Delivery>,
}

#[tonic::async_trait]
impl ShardExecutor for Service {
    async fn apply_assignment(
        &self,
        request: Request<ApplyAssignmentRequest>,
    ) -> Result<Response<ApplyAssignmentResponse>, Status> {
        let (reply, answer) = oneshot::channel();
        let delivery = Delivery { request: request.into_inner(), reply };
        // Either channel closes only when the session is over.
        self.deliveries.send(delivery).await.map_err(|_| PushRefusal::Stopping)?;
        let answer = answer.await.map_err(|_| PushRefusal::Stopping)?;
        answer.map(Response::new)
    }
}

/// Serves on `listener` until `shutdown`. What is neither a command nor a probe goes to `own`, where there is such.
pub fn serve(
    listener: TcpListener,
    deliveries: mpsc::Sender<Delivery>,
    own: Option<Routes>,
    shutdown: CancellationToken,
) -> impl Future<Output = Result<(), tonic::transport::Error>> + Send {
    let service = ShardExecutorServer::new(Service { deliveries })
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    async move {
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<ShardExecutorServer<Service>>().await;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let mut routes = Routes::new(health_service).add_service(service);
        // gRPC needs HTTP/2; what else there is may be asked for by older means.
        let accept_http1 = own.is_some();
        if let Some(own) = own {
            // Behind ours: whatever it takes, the manager still gets through.
            let router = routes.axum_router_mut();
            *router = std::mem::take(router).fallback_service(own.into_axum_router());
        }
        Server::builder()
            .accept_http1(accept_http1)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, shutdown.cancelled_owned())
            .await
    }
}
