//! What callers ask for: `POST /counters/KEY` adds one and `GET /counters/KEY` reads, both answered with the value.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use shard_manager::client::{NotOwner, Router};
use shard_manager::types::ShardId;
use tonic::Status;

use crate::counters::{Counters, Request};
use crate::storage;

/// Why a request was not done, or not surely.
enum Refusal {
    /// 503: which shard the key belongs to is not known before a manager answered. Nothing was done.
    NotReady,
    /// 421: somebody else owns the shard. Nothing was done.
    NotOwner(NotOwner),
    /// 500: it may have been done.
    Storage(storage::Error),
}

#[derive(Clone)]
struct Service {
    counters: Counters,
    router: Router,
}

/// The routes, served on the session's own port.
pub fn routes(counters: Counters, router: Router) -> axum::Router {
    axum::Router::new().route("/counters/{key}", get(read).post(increment)).with_state(Service { counters, router })
}

async fn increment(State(service): State<Service>, Path(key): Path<String>) -> Result<String, Refusal> {
    let (shard, request) = service.enter(&key)?;
    service.answer(shard, request.increment(&key).await)
}

async fn read(State(service): State<Service>, Path(key): Path<String>) -> Result<String, Refusal> {
    let (shard, request) = service.enter(&key)?;
    service.answer(shard, request.read(&key).await)
}

impl Service {
    /// What is not open here is not ours, whatever the table says: it is behind, or the shard is still starting or already stopping.
    fn enter(&self, key: &str) -> Result<(ShardId, Request), Refusal> {
        let shard = self.router.shard(key.as_bytes()).ok_or(Refusal::NotReady)?;
        let request = self.counters.enter(shard).ok_or_else(|| Refusal::NotOwner(self.router.not_owner(shard)))?;
        Ok((shard, request))
    }

    fn answer(&self, shard: ShardId, result: Result<i64, storage::Error>) -> Result<String, Refusal> {
        match result {
            Ok(value) => Ok(format!("{value}\n")),
            Err(storage::Error::Fenced { .. }) => Err(Refusal::NotOwner(self.router.not_owner(shard))),
            Err(error) => Err(Refusal::Storage(error)),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Refusal::NotReady => (StatusCode::SERVICE_UNAVAILABLE, "no manager has answered yet\n").into_response(),
            Refusal::NotOwner(refusal) => {
                // A gRPC status is a few headers, so it travels over any HTTP, with the owner and the epoch in it.
                let status = Status::from(refusal);
                let mut response = (StatusCode::MISDIRECTED_REQUEST, format!("{}\n", status.message())).into_response();
                match status.add_header(response.headers_mut()) {
                    Ok(()) => response,
                    Err(status) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{status}\n")).into_response(),
                }
            }
            Refusal::Storage(error) => {
                tracing::warn!(%error, "a request failed, or its outcome is not known");
                (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
            }
        }
    }
}
