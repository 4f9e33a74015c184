//! One shard moves: how long it takes, and when a thousand watchers know.

use std::net::SocketAddr;
use std::time::Instant;

use shard_manager::rpc::shard_manager_admin_client::ShardManagerAdminClient;
use shard_manager::rpc::shard_manager_client::ShardManagerClient;
use shard_manager::rpc::watch_routing_table_response::Change;
use shard_manager::rpc::{
    ChangeExecutorRequest, GetRoutingTableRequest, LeaseAnswer, MAX_MESSAGE_BYTES, NOBODY, WatchRoutingTableRequest,
    WatchRoutingTableResponse,
};
use shard_manager::store::codec;
use shard_manager::types::Token;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tonic::transport::Channel;

use crate::bare::Bare;
use crate::cluster::{Apart, PATIENCE, Process, connect, ms, settled, table};
use crate::commits::{BareSqlite, next, state};
use crate::crowd::{Crowd, name};
use crate::host::serve;
use crate::page::{Figure, Summary};
use crate::support::free_address;

const SHARDS: u32 = 1024;
/// Of two executors: the second's fair share is one shard, and it has it unless it is drained.
const WEIGHTS: [u32; 2] = [1000, 1];

/// Two executors that do at once what they are told, one of which has one shard, and an operator who drains and uncordons it in turn.
struct Scene {
    // Before its directory, so that the process ends first.
    _manager: Process,
    grpc: SocketAddr,
    crowd: Crowd,
    operator: ShardManagerAdminClient<Channel>,
    directory: TempDir,
    /// The one that has the shard.
    owner: usize,
}

impl Scene {
    async fn start() -> Scene {
        let (directory, grpc) = (tempfile::tempdir().unwrap(), free_address());
        let sets = ["executors.lease_ttl=1h", "executors.settle_time=100ms", "executors.calm_time=0s"];
        let manager = serve(directory.path(), grpc, free_address(), &sets);
        table(grpc).await;
        let mut crowd = Crowd::at(grpc).await;
        crowd.join(WEIGHTS).await;
        settled(grpc, 2).await;
        let operator = ShardManagerAdminClient::new(connect(grpc).await.unwrap());
        Scene { _manager: manager, grpc, crowd, operator, directory, owner: 1 }
    }

    /// Has the one shard move to the other executor. When that was asked for, and when its new owner was told.
    async fn move_one(&mut self) -> (Instant, Instant) {
        while self.crowd.deliveries.try_recv().is_ok() {}
        let change = ChangeExecutorRequest { executor_id: name(1), ..ChangeExecutorRequest::default() };
        let to = name(1 - self.owner);
        let begun = Instant::now();
        match self.owner {
            1 => drop(self.operator.drain_executor(change).await.unwrap()),
            _ => drop(self.operator.uncordon_executor(change).await.unwrap()),
        }
        loop {
            let delivery = tokio::time::timeout(PATIENCE, self.crowd.deliveries.recv()).await.expect("it is told soon").unwrap();
            // The release of the one goes out before the grant to the other.
            if delivery.executor == to {
                self.owner = 1 - self.owner;
                return (begun, delivery.at);
            }
        }
    }
}

/// From the wish until the new owner is told.
pub async fn handoff(runs: usize) -> Vec<Figure> {
    let mut scene = Scene::start().await;
    let bytes = prost::Message::encode_to_vec(&table(scene.grpc).await);
    let bare = Bare::start(scene.directory.path(), &bytes, &LeaseAnswer::default()).await;
    let mut bare = ShardManagerClient::new(connect(bare.address).await.unwrap());
    let mut file = BareSqlite::open(&scene.directory.path().join("floor.db")).await;
    let mut stored = state(SHARDS, 2, Token(1));
    file.write(codec::encode(&stored.changes_since(None)).unwrap()).await;
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let (begun, told) = scene.move_one().await;
        times.push(ms(told - begun));
        let mut floor = 0.0;
        for _ in 0..3 {
            let after = next(&stored);
            floor += file.write(codec::encode(&after.changes_since(Some(&stored))).unwrap()).await;
            stored = after;
        }
        for _ in 0..2 {
            let begun = Instant::now();
            bare.get_routing_table(GetRoutingTableRequest::default()).await.unwrap();
            floor += ms(begun.elapsed());
        }
        floors.push(floor);
    }
    let ratio = Summary::of(times.clone()).median / Summary::of(floors.clone()).median;
    let how = format!(
        "One of {SHARDS} shards goes from one executor to another, on a manager on SQLite: from an operator's wish (a drain, or its end) until the new \
         owner is told, by way of a commit that releases it, the old owner's word that it stopped, and a commit that grants it. Both executors do at \
         once what they are told."
    );
    let floor = "three times `meta` and a page of 1,024 shards by bare statements into another SQLite file, and two calls of a bare tonic server on a \
                 connection that is open";
    vec![Figure::new("one shard moves", how).times(times).floor(floor, floors).reach("median, in floors", 1.5, ratio)]
}

const WATCHERS: usize = 1000;

/// What a watcher saw: that the executor with this number owns a shard which somebody else owned before.
struct Seen {
    at: Instant,
    owner: usize,
}

/// Readers of the table, each on a connection of its own, on a runtime of their own.
struct Watchers {
    seen: mpsc::UnboundedReceiver<Seen>,
    _apart: Apart,
}

impl Watchers {
    async fn start(manager: SocketAddr) -> Watchers {
        let apart = Apart::new();
        let (sender, seen) = mpsc::unbounded_channel();
        let (ready, mut are_ready) = mpsc::channel(WATCHERS);
        for _ in 0..WATCHERS {
            apart.handle().spawn(watch(manager, sender.clone(), ready.clone()));
        }
        for _ in 0..WATCHERS {
            tokio::time::timeout(PATIENCE, are_ready.recv()).await.expect("every watcher has a table").unwrap();
        }
        Watchers { seen, _apart: apart }
    }
}

async fn watch(manager: SocketAddr, seen: mpsc::UnboundedSender<Seen>, ready: mpsc::Sender<()>) {
    // A thousand at once: some have to come again.
    let channel = loop {
        if let Some(channel) = connect(manager).await {
            break channel;
        }
    };
    let mut client = ShardManagerClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let mut changes = client.watch_routing_table(WatchRoutingTableRequest::default()).await.unwrap().into_inner();
    while let Ok(Some(WatchRoutingTableResponse { change: Some(change) })) = changes.message().await {
        match change {
            Change::Full(_) => drop(ready.send(()).await),
            Change::Delta(delta) => {
                let at = Instant::now();
                let granted = (delta.owner.iter().zip(&delta.shards))
                    .find(|(owner, shard)| **owner != NOBODY && !delta.releasing.contains(shard));
                let owner = granted.map(|(owner, _)| delta.owners[*owner as usize].executor_id.clone());
                if let Some(owner) = owner.and_then(|owner| (0..2).find(|&at| name(at) == owner)) {
                    seen.send(Seen { at, owner }).ok();
                }
            }
        }
    }
}

/// From the wish until the last of very many watchers knows the new owner.
pub async fn watchers(runs: usize) -> Vec<Figure> {
    let mut scene = Scene::start().await;
    let mut watchers = Watchers::start(scene.grpc).await;
    let (mut times, mut firsts) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let (begun, _) = scene.move_one().await;
        let mut at = Vec::new();
        while at.len() < WATCHERS {
            let seen = tokio::time::timeout(PATIENCE, watchers.seen.recv()).await.expect("they are told soon").unwrap();
            assert_eq!(seen.owner, scene.owner, "nothing else moves");
            at.push(seen.at - begun);
        }
        times.push(ms(at.iter().max().copied().unwrap_or_default()));
        firsts.push(ms(at.iter().min().copied().unwrap_or_default()));
    }
    let (last, first) = (Summary::of(times.clone()), Summary::of(firsts));
    let how = format!(
        "{WATCHERS} watchers of the routing table, each on a connection of its own, all in one other process on one thread, while one of {SHARDS} shards \
         moves as above: from the operator's wish until the last of them has read who owns it now. The first has it after {:.1} ms (median).",
        first.median
    );
    vec![Figure::new("1,000 watchers", how).times(times).reach("max: 100 ms", 100.0, last.max)]
}
