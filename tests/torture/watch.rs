//! What is seen of the managers from outside, all the time: what they say of themselves, the tables that they show, and what is stored.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shard_manager::client::Router;
use shard_manager::rpc::shard_manager_admin_client::ShardManagerAdminClient;
use shard_manager::rpc::shard_manager_client::ShardManagerClient;
use shard_manager::rpc::{GetRoutingTableRequest, GetStatusRequest, ListExecutorsRequest, NOBODY, RoutingTable, Version};
use tonic::transport::{Channel, Endpoint};

use crate::history::{Part, now_ns};

/// How often replicas are asked what they are.
const SCRAPE: Duration = Duration::from_millis(150);
/// How often tables are read.
const READ: Duration = Duration::from_millis(300);
/// How often a leader is asked for everything.
const STATE: Duration = Duration::from_secs(1);
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often this program looks whether it is awake, and how late it may be.
const BEAT: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_millis(500);

/// Who led when it was last looked.
#[derive(Clone, Default)]
pub struct Leaders(Arc<Mutex<Vec<Option<Led>>>>);

/// When that was, and at which term.
type Led = (Instant, u64);

impl Leaders {
    fn set(&self, at: usize, leads: Option<u64>) {
        let mut leaders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if leaders.len() <= at {
            leaders.resize(at + 1, None);
        }
        leaders[at] = leads.map(|term| (Instant::now(), term));
    }

    /// Which replica leads, as far as known.
    pub fn current(&self) -> Option<usize> {
        let leaders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lead = leaders
            .iter()
            .enumerate()
            .filter_map(|(at, it)| it.filter(|(seen, _)| seen.elapsed() < SCRAPE * 4).map(|it| (at, it.1)));
        lead.max_by_key(|(_, term)| *term).map(|(at, _)| at)
    }
}

/// Asks one replica what it is, for ever.
pub async fn scrape(part: Part, leaders: Leaders, at: usize, http: SocketAddr) {
    let client = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
    let get = async |path: &str| client.get(format!("http://{http}/{path}")).send().await.ok()?.text().await.ok();
    let manager = format!("m{at}");
    let mut was_silent = false;
    let mut ticks = tokio::time::interval(SCRAPE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let sent_ns = now_ns();
        let (metrics, metrics_ns) = (get("metrics").await, now_ns());
        let status = get("status").await.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let (Some(metrics), Some(status)) = (metrics, status) else {
            leaders.set(at, None);
            if !was_silent {
                part.note("program", "silent", json!({"manager": manager}));
            }
            was_silent = true;
            continue;
        };
        was_silent = false;
        let is_leader = u8::from(metrics.lines().any(|line| line == "shard_manager_is_leader 1"));
        let (term, revision, role) = (&status["term"], &status["revision"], &status["role"]);
        let fields = json!({
            "manager": manager, "is_leader": is_leader, "sent_ns": sent_ns, "term": term, "revision": revision, "role": role,
        });
        // As of the answer that says whether it leads.
        part.note_at(metrics_ns, "program", "scrape", fields);
        leaders.set(at, term.as_u64().filter(|_| is_leader == 1));
    }
}

fn channel(grpc: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect_timeout(PATIENCE).timeout(PATIENCE).connect_lazy()
}

fn version(version: Option<Version>) -> (u64, u64) {
    version.map_or((0, 0), |version| (version.term, version.revision))
}

/// Reads one replica's table, for ever; notes what is another than before.
pub async fn read(part: Part, at: usize, grpc: SocketAddr) {
    let reader = format!("m{at}");
    let mut last = None;
    let mut client = ShardManagerClient::new(channel(grpc));
    loop {
        tokio::time::sleep(READ).await;
        let Ok(answer) = client.get_routing_table(GetRoutingTableRequest::default()).await else { continue };
        let table = answer.into_inner();
        let seen = (table.cluster_id.clone(), version(table.version));
        if last.as_ref() != Some(&seen) {
            let unowned = table.owner.iter().filter(|owner| **owner == NOBODY).count();
            let (term, revision) = seen.1;
            part.note(
                "program",
                "seen",
                json!({"reader": reader, "cluster_id": seen.0, "term": term, "revision": revision, "unowned": unowned}),
            );
            last = Some(seen);
        }
    }
}

/// What the client's router has, for ever; notes what is another than before.
pub async fn follow(part: Part, router: Router) {
    let mut last = None;
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let Some(table) = router.table() else { continue };
        let seen = (table.cluster_id(), table.version());
        if last != Some(seen) {
            let shards = (0..table.number_of_shards()).map(shard_manager::types::ShardId);
            let unowned = shards.filter(|shard| table.route(*shard).is_none()).count();
            let (cluster_id, term, revision) = (seen.0.to_string(), seen.1.term.0, seen.1.revision.0);
            part.note(
                "program",
                "seen",
                json!({"reader": "router", "cluster_id": cluster_id, "term": term, "revision": revision, "unowned": unowned}),
            );
            last = Some(seen);
        }
    }
}

/// Notes when this program itself did not run.
pub async fn beat(part: Part) {
    let mut last = now_ns();
    loop {
        tokio::time::sleep(BEAT).await;
        let now = now_ns();
        if now - last > u64::try_from((BEAT + LATE).as_nanos()).unwrap() {
            part.note(
                "program",
                "gap",
                json!({"party": "program", "from_ns": last, "to_ns": now, "why": "this program did not run"}),
            );
        }
        last = now;
    }
}

/// Asks for the leader's own word now and then, for ever.
pub async fn states(part: Part, managers: Vec<SocketAddr>) {
    loop {
        tokio::time::sleep(STATE).await;
        state(&part, &managers).await;
    }
}

/// The leader's own word, at one version; noted.
pub async fn state(part: &Part, managers: &[SocketAddr]) -> Option<State> {
    for grpc in managers {
        let mut tables = ShardManagerClient::new(channel(*grpc));
        let mut admin = ShardManagerAdminClient::new(channel(*grpc));
        let Ok(table) = tables.get_routing_table(GetRoutingTableRequest::default()).await else { continue };
        let Ok(executors) = admin.list_executors(ListExecutorsRequest {}).await else { continue };
        let Ok(status) = admin.get_status(GetStatusRequest {}).await else { continue };
        let (table, executors, status) = (table.into_inner(), executors.into_inner(), status.into_inner());
        if table.version != executors.version {
            continue;
        }
        let (term, revision) = version(table.version);
        let listed: Vec<(String, String, u64)> =
            executors.executors.into_iter().map(|it| (it.id, it.state, it.incarnation)).collect();
        let as_json = |(id, state, incarnation): &(String, String, u64)| json!({"executor": id, "state": state, "incarnation": incarnation});
        let fields = json!({
            "term": term,
            "revision": revision,
            "cluster_id": table.cluster_id,
            "owners": owners(&table),
            "executors": listed.iter().map(as_json).collect::<Vec<_>>(),
            "violations": status.violations,
        });
        part.note("program", "state", fields);
        let is_owned = !table.owner.contains(&NOBODY) && table.releasing.is_empty();
        return Some(State { is_owned, executors: listed });
    }
    None
}

/// What matters of it here.
pub struct State {
    /// Every shard, and none is on its way.
    pub is_owned: bool,
    /// Id, state, incarnation.
    pub executors: Vec<(String, String, u64)>,
}

fn owners(table: &RoutingTable) -> Vec<Value> {
    let owner = |owner: u32| table.owners.get(owner as usize).map(|owner| owner.executor_id.clone());
    let row = |(shard, (&index, &epoch))| json!([shard, owner(index), epoch]);
    table.owner.iter().zip(&table.epochs).enumerate().map(row).collect()
}
