//! A caller: writes through executors, whoever owns the shard at the moment, and notes what it was told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use shard_manager::client::Router;
use shard_manager::types::ShardId;
use tokio_util::sync::CancellationToken;

use crate::history::Part;
use crate::settings::SHARDS;

/// How many ask at once, and how long each pauses between two asks.
pub const WRITERS: usize = 8;
const PACE: Duration = Duration::from_millis(100);
/// How long an owner is looked for, and how long its answer is waited for.
const LOOK: Duration = Duration::from_millis(300);
const TIMEOUT: Duration = Duration::from_secs(1);

/// One after the other, for everything that is asked in a run.
#[derive(Clone, Default)]
pub struct Ids(Arc<AtomicU64>);

impl Ids {
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// Writes until it is stopped. Each ask is made once: what became of it is for the reader of the history to know.
pub async fn write(part: Part, router: Router, ids: Ids, stop: CancellationToken) {
    let http = reqwest::Client::builder().timeout(TIMEOUT).build().unwrap();
    while !stop.is_cancelled() {
        tokio::time::sleep(PACE.mul_f64(rand::random_range(0.5..1.5))).await;
        let shard = rand::random_range(0..SHARDS);
        let Ok(route) = router.route(ShardId(shard), LOOK).await else { continue };
        let id = ids.next();
        let key = format!("{shard}.{}", rand::random_range(0..4));
        part.note("client", "ask", json!({"id": id, "kind": "write", "shard": shard, "key": key, "value": id}));
        let asked = http.post(format!("{}/write/{shard}/{key}/{id}", route.owner.endpoint)).send().await;
        let is_refused = asked.as_ref().is_err_and(reqwest::Error::is_connect);
        let answer = match asked {
            Ok(answer) => Some((answer.status().as_u16(), answer.text().await)),
            Err(_) => None,
        };
        let (event, fields) = match answer {
            Some((200, Ok(epoch))) if epoch.parse::<u64>().is_ok() => {
                let epoch: u64 = epoch.parse().unwrap_or(0);
                ("acknowledged", json!({"id": id, "epoch": epoch, "executor": route.owner.id.as_str()}))
            }
            Some((421, _)) => ("refused_ask", json!({"id": id, "reason": "not the owner"})),
            Some((409, _)) => ("refused_ask", json!({"id": id, "reason": "fenced by the storage"})),
            None if is_refused => ("refused_ask", json!({"id": id, "reason": "nobody is there"})),
            _ => ("unknown", json!({"id": id})),
        };
        part.note("client", event, fields);
        if event != "acknowledged" {
            router.invalidate(&route, None);
        }
    }
}
