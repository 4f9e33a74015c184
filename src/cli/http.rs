//! One GET over plain HTTP, for replicas that do not lead and so have no gRPC port open.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tonic::transport::Uri;

use super::manager::innermost;

/// How long the whole exchange may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes that an answer may have.
const MAX_BYTES: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// It makes no URL.
    #[error("HTTP address {0:?} is refused: it takes host:port or http://host:port")]
    Address(String),
    /// Nothing came in time.
    #[error("{url} did not answer within {}s", TIMEOUT.as_secs())]
    TimedOut { url: Uri },
    /// Nobody there, or somebody who does not speak HTTP.
    #[error("{url} cannot be reached: {reason}; is a replica running there?")]
    Unreachable { url: Uri, reason: String },
    /// Somebody else answers there.
    #[error("{url} answered {what}; is that a replica's http.listen address?")]
    Unexpected { url: Uri, what: String },
}

/// The JSON that a replica's HTTP server has at `path`.
pub(super) async fn get_json(address: &str, path: &str) -> Result<Value, Error> {
    let base = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let refused = || Error::Address(address.to_owned());
    let url: Uri = format!("{}{path}", base.trim_end_matches('/')).parse().map_err(|_| refused())?;
    if url.scheme_str() != Some("http") || url.path() != path {
        return Err(refused());
    }
    tokio::time::timeout(TIMEOUT, exchange(url.clone())).await.unwrap_or(Err(Error::TimedOut { url }))
}

async fn exchange(url: Uri) -> Result<Value, Error> {
    let client: Client<HttpConnector, Body> = Client::builder(TokioExecutor::new()).build_http();
    let unreachable = |error: &dyn std::error::Error| Error::Unreachable { url: url.clone(), reason: innermost(error) };
    let answer = client.get(url.clone()).await.map_err(|error| unreachable(&error))?;
    let status = answer.status();
    let body = to_bytes(Body::new(answer.into_body()), MAX_BYTES).await.map_err(|error| unreachable(&error))?;
    let unexpected = |what: String| Error::Unexpected { url: url.clone(), what };
    if !status.is_success() {
        return Err(unexpected(format!("with status {status}")));
    }
    serde_json::from_slice(&body).map_err(|error| unexpected(format!("with something that is not JSON ({error})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn serve(router: axum::Router) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    #[tokio::test]
    async fn the_answer_of_a_replica_is_read_and_that_of_others_refused() {
        let json = async || axum::Json(serde_json::json!({ "role": "standby" }));
        let address = serve(axum::Router::new().route("/status", axum::routing::get(json))).await;
        assert_eq!(get_json(&address, "/status").await.unwrap()["role"], "standby");
        assert_eq!(get_json(&format!("http://{address}/"), "/status").await.unwrap()["role"], "standby");

        let message = get_json(&address, "/elsewhere").await.unwrap_err().to_string();
        assert!(message.contains("404"), "{message}");
        let address = serve(axum::Router::new().route("/status", axum::routing::get(async || "hello"))).await;
        let message = get_json(&address, "/status").await.unwrap_err().to_string();
        assert!(message.contains("not JSON"), "{message}");
        assert!(matches!(get_json("https://host:1", "/status").await, Err(Error::Address(_))));
        assert!(matches!(get_json("", "/status").await, Err(Error::Address(_))));
    }
}
