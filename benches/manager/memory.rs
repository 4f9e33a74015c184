//! What a large cluster takes of a manager's memory.

use std::time::Duration;

use shard_manager::rpc::GetRoutingTableRequest;
use shard_manager::rpc::MAX_MESSAGE_BYTES;
use shard_manager::rpc::shard_manager_client::ShardManagerClient;

use crate::cluster::{connect, eventually_within, table};
use crate::crowd::Crowd;
use crate::host::{metric, serve};
use crate::page::Figure;
use crate::support::free_address;

const SHARDS: usize = 1_000_000;
const EXECUTORS: usize = 1000;
/// What is done with so many shards takes a while.
const PATIENCE: Duration = Duration::from_secs(180);

/// Resident memory of a process, in MB.
fn resident(pid: u32) -> f64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kilobytes * 1024.0 / 1e6
}

/// All shards at their executors, and the table served once.
pub async fn all() -> Vec<Figure> {
    let (directory, grpc, http) = (tempfile::tempdir().unwrap(), free_address(), free_address());
    let shards = format!("number_of_shards={SHARDS}");
    let manager = serve(directory.path(), grpc, http, &[&shards, "executors.lease_ttl=1h", "executors.settle_time=2s"]);
    table(grpc).await;
    let mut crowd = Crowd::at(grpc).await;
    crowd.join(vec![1; EXECUTORS]).await;
    eventually_within(PATIENCE, "every shard at an executor", async || (crowd.held() == SHARDS).then_some(())).await;
    eventually_within(PATIENCE, "every shard served", async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        (metric(http, "shard_manager_unserved_shards").await == 0.0).then_some(())
    })
    .await;
    let mut client = ShardManagerClient::new(connect(grpc).await.unwrap()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let served = client.get_routing_table(GetRoutingTableRequest::default()).await.unwrap().into_inner();
    assert_eq!(served.owner.len(), SHARDS);
    // At rest.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let found = resident(manager.id());
    eprintln!("  {found:.0} MB");
    let how = "Resident memory (MB, by smaps_rollup) of a manager on SQLite with 1,000,000 shards and 1,000 executors, each connected, that granted every \
               shard in this life, was told of each that it is held, and has encoded and sent the whole table once; three seconds later.";
    vec![Figure::new("memory, 1,000,000 / 1,000", how).reach("resident, in MB", 200.0, found)]
}
