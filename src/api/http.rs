//! HTTP for machines that watch (`/healthz`, `/readyz`, `/metrics`, `/status`) and a status page for people (`/`).
//!
//! It is up before the store is opened and outlives everything else, so that a replica that waits, fails or stops can say so.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::sync::watch;

use crate::api::{Leading, admin};
use crate::assignment::command::Overview;
use crate::metrics::Metrics;

/// What this process is at.
#[derive(Clone)]
pub enum Phase {
    /// It opens and reads the store.
    Starting,
    /// It waits to be elected.
    Standby,
    /// It was elected, and does not serve yet.
    TakingOver,
    /// It leads and serves.
    Leader(Box<Leading>),
    /// It takes in nothing new.
    Stopping,
}

impl Phase {
    /// As `/readyz` and `/status` call it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Standby => "standby",
            Phase::TakingOver => "taking-over",
            Phase::Leader(_) => "leader",
            Phase::Stopping => "stopping",
        }
    }
}

/// What the HTTP server shows. Only `run` changes it.
pub struct View {
    phase: watch::Sender<Phase>,
    grpc: watch::Sender<Option<SocketAddr>>,
    /// Who leads, as far as a standby has seen.
    leader: RwLock<Option<watch::Receiver<Option<String>>>>,
    metrics: Arc<Metrics>,
    identity: String,
}

impl View {
    /// Starting, with the port closed.
    pub fn new(metrics: Arc<Metrics>, identity: String) -> View {
        let (phase, grpc) = (watch::Sender::new(Phase::Starting), watch::Sender::new(None));
        View { phase, grpc, leader: RwLock::new(None), metrics, identity }
    }

    /// From now on this process is at `phase`.
    pub fn enter(&self, phase: Phase) {
        if !matches!(phase, Phase::Leader(_)) {
            self.grpc.send_replace(None);
        }
        self.phase.send_replace(phase);
    }

    /// Where gRPC is served.
    pub fn grpc_open(&self, address: SocketAddr) {
        self.grpc.send_replace(Some(address));
    }

    /// Where an election says who leads.
    pub fn watch_leader(&self, leader: watch::Receiver<Option<String>>) {
        *self.leader.write().unwrap_or_else(PoisonError::into_inner) = Some(leader);
    }

    fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Who leads, as far as known.
    fn leader(&self, phase: &Phase) -> Option<String> {
        match phase {
            Phase::Leader(_) => Some(self.identity.clone()),
            Phase::Standby => {
                let leader = self.leader.read().unwrap_or_else(PoisonError::into_inner);
                leader.as_ref().and_then(|leader| leader.borrow().clone())
            }
            Phase::Starting | Phase::TakingOver | Phase::Stopping => None,
        }
    }
}

/// Every page.
pub fn router(view: Arc<View>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/", get(page))
        .with_state(view)
}

async fn readyz(State(view): State<Arc<View>>) -> Response {
    match view.phase() {
        Phase::Leader(_) => Json(json!({"ready": true})).into_response(),
        phase => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"reason": phase.as_str()}))).into_response(),
    }
}

async fn metrics(State(view): State<Arc<View>>) -> Response {
    match view.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// What is known without asking anybody: it answers on a standby, and on a leader whose coordinator hangs.
async fn status(State(view): State<Arc<View>>) -> Json<serde_json::Value> {
    let phase = view.phase();
    let edition = match &phase {
        Phase::Leader(leading) => leading.published.current(),
        _ => None,
    };
    let snapshot = edition.as_ref().map(|edition| &edition.snapshot);
    let contact = view.metrics.last_store_contact();
    Json(json!({
        "role": phase.as_str(),
        "identity": view.identity,
        "leader": view.leader(&phase),
        "leader_since": matches!(phase, Phase::Leader(_)).then(|| view.metrics.leader_since()),
        "grpc": view.grpc.borrow().map(|address| address.to_string()),
        "cluster_id": snapshot.map(|snapshot| snapshot.state.meta.cluster_id.to_string()),
        "number_of_shards": snapshot.map(|snapshot| snapshot.state.meta.number_of_shards),
        "term": snapshot.map(|snapshot| snapshot.version.term.0),
        "rebalancing_paused_until_ms": snapshot.and_then(|it| it.state.meta.pause.as_ref()).map(|pause| pause.until_unix_ms),
        "revision": snapshot.map(|snapshot| snapshot.version.revision.0),
        "last_store_contact": (contact != 0).then_some(contact),
        "version": env!("CARGO_PKG_VERSION"),
    }))
}

async fn page(State(view): State<Arc<View>>) -> Response {
    let phase = view.phase();
    let mut body =
        format!("<p>{} is <b>{}</b>. Version {}.</p>", escape(&view.identity), phase.as_str(), env!("CARGO_PKG_VERSION"));
    if let (Phase::Standby, Some(leader)) = (&phase, view.leader(&phase)) {
        body.push_str(&format!("<p>The leader is {}.</p>", escape(&leader)));
    }
    if let Phase::Leader(leading) = &phase {
        match admin::overview(leading).await {
            Ok(overview) => body.push_str(&tables(&overview)),
            Err(status) => {
                body.push_str(&format!("<p>The coordinator did not say how things are: {}</p>", escape(status.message())))
            }
        }
    }
    let style = "body{font:15px sans-serif;margin:2em}table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.3em .7em;text-align:left}";
    let page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>shard-manager</title><style>{style}</style></head>\
         <body><h1>shard-manager</h1>{body}</body></html>"
    );
    // Nothing on the page runs, and nothing is fetched for it.
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(page)).into_response()
}

fn tables(overview: &Overview) -> String {
    let state = &overview.snapshot.state;
    let unassigned = state.shards().filter(|(_, record)| record.owner().is_none()).count();
    let mut html = format!(
        "<table><tr><th>cluster</th><td>{}</td></tr><tr><th>term / revision</th><td>{}</td></tr><tr><th>shards</th><td>{}</td></tr>\
         <tr><th>unassigned</th><td>{unassigned}</td></tr><tr><th>lease</th><td>{:?}</td></tr></table>",
        state.meta.cluster_id, overview.snapshot.version, state.meta.number_of_shards, overview.lease_ttl
    );
    html.push_str(
        "<h2>Executors</h2><table><tr><th>id</th><th>incarnation</th><th>endpoint</th><th>state</th><th>weight</th><th>shards</th>\
         <th>lease left</th></tr>",
    );
    for executor in &overview.executors {
        // Writing to a String does not fail.
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{} ms</td></tr>",
            escape(executor.id.as_str()),
            executor.incarnation,
            escape(&executor.endpoint),
            executor.state,
            executor.weight,
            executor.shards,
            executor.lease_remaining.as_millis()
        );
    }
    html.push_str("</table>");
    for (title, lines) in [("Violations", &admin::violations(overview)), ("Planner", &overview.notes)] {
        if !lines.is_empty() {
            let _ = write!(html, "<h2>{title}</h2><ul>");
            for line in lines {
                let _ = write!(html, "<li>{}</li>", escape(line));
            }
            html.push_str("</ul>");
        }
    }
    html
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_peers_send_is_text_on_the_page() {
        assert_eq!(escape("<script a='b\"'>&"), "&lt;script a=&#39;b&quot;&#39;&gt;&amp;");
    }
}
