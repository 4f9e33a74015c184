//! Answers per second, of a manager and of a server that does nothing but answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use prost::Message;
use shard_manager::rpc::{GetRoutingTableRequest, LeaseAnswer, RenewLeaseRequest, ready};
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use crate::bare::Bare;
use crate::cluster::{Apart, connect, eventually, settled, table};
use crate::crowd::Crowd;
use crate::host::{landed, serve};
use crate::page::{Figure, Summary};
use crate::support::free_address;

const CONNECTIONS: usize = 4;
const IN_FLIGHT: usize = 64;
/// How long one run lasts.
const ROUND: Duration = Duration::from_millis(500);
const SHARE: &str =
    "the load comes from another process, which shares the machine's cores with the server, with the manager as with the floor";

/// Asks, on a runtime of its own.
struct Load {
    apart: Apart,
    channels: Vec<Channel>,
}

impl Load {
    async fn on(address: SocketAddr) -> Load {
        let apart = Apart::new();
        let connecting = apart.handle().spawn(async move {
            let mut channels = Vec::new();
            for _ in 0..CONNECTIONS {
                channels.push(connect(address).await.unwrap());
            }
            channels
        });
        let channels = connecting.await.unwrap();
        Load { apart, channels }
    }

    /// Milliseconds per thousand answers while so many calls are in flight, each of `calls` in turn. What is answered is not looked into.
    async fn round<M: Message + Default + Clone + 'static>(&self, path: &'static str, calls: Arc<Vec<M>>) -> f64 {
        let next = Arc::new(AtomicUsize::new(0));
        let (mut callers, begun) = (JoinSet::new(), Instant::now());
        for at in 0..IN_FLIGHT {
            let (next, calls) = (Arc::clone(&next), Arc::clone(&calls));
            let mut client = Grpc::new(self.channels[at % CONNECTIONS].clone());
            let caller = async move {
                let mut answers = 0u32;
                while begun.elapsed() < ROUND {
                    let call = calls[next.fetch_add(1, Ordering::Relaxed) % calls.len()].clone();
                    client.ready().await.unwrap();
                    let codec = ProstCodec::<M, ready::Message>::default();
                    client.unary(tonic::Request::new(call), PathAndQuery::from_static(path), codec).await.unwrap();
                    answers += 1;
                }
                answers
            };
            callers.spawn_on(caller, self.apart.handle());
        }
        let answers: u32 = callers.join_all().await.into_iter().sum();
        begun.elapsed().as_secs_f64() * 1e6 / f64::from(answers)
    }
}

/// The same calls to the one and to the other, in turn.
async fn compare<M: Message + Default + Clone + 'static>(
    own: &Load,
    bare: &Load,
    path: &'static str,
    calls: Vec<M>,
    runs: usize,
) -> (Vec<f64>, Vec<f64>) {
    let calls = Arc::new(calls);
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    for run in 0..=runs {
        let (time, floor) = (own.round(path, Arc::clone(&calls)).await, bare.round(path, Arc::clone(&calls)).await);
        // The first warms up.
        if run > 0 {
            times.push(time);
            floors.push(floor);
        }
    }
    eprintln!("  {:.0} a second, bare {:.0}", 1e6 / Summary::of(times.clone()).median, 1e6 / Summary::of(floors.clone()).median);
    (times, floors)
}

/// The table of 1,024 shards at 16 executors.
pub async fn tables(runs: usize) -> Vec<Figure> {
    let (directory, grpc) = (tempfile::tempdir().unwrap(), free_address());
    let sets = ["executors.lease_ttl=1h", "executors.settle_time=100ms", "executors.calm_time=0s"];
    let _manager = serve(directory.path(), grpc, free_address(), &sets);
    table(grpc).await;
    let mut crowd = Crowd::at(grpc).await;
    crowd.join([1; 16]).await;
    let bytes = settled(grpc, 16).await.encode_to_vec();
    let bare = Bare::start(directory.path(), &bytes, &LeaseAnswer::default()).await;
    let (own, bare) = (Load::on(grpc).await, Load::on(bare.address).await);
    let path = "/shardmanager.v1.ShardManager/GetRoutingTable";
    let (times, floors) = compare(&own, &bare, path, vec![GetRoutingTableRequest::default()], runs).await;
    let ratio = Summary::of(times.clone()).median / Summary::of(floors.clone()).median;
    let how = format!(
        "`GetRoutingTable` of 1,024 shards at 16 executors, {} bytes, {IN_FLIGHT} calls in flight over {CONNECTIONS} connections: the time of a run by a \
         thousand answers. The answers are not decoded; {SHARE}.",
        bytes.len()
    );
    let floor = "a bare tonic server, a process of its own, that has the same bytes ready";
    vec![Figure::new("1,000 routing tables", how).times(times).floor(floor, floors).reach(
        "median, in floors: 0.8 of the answers per second",
        1.0 / 0.8,
        ratio,
    )]
}

/// Renewals by digest of 10,000 executors.
pub async fn renewals(runs: usize) -> Vec<Figure> {
    const EXECUTORS: usize = 10_000;
    let (directory, grpc, http) = (tempfile::tempdir().unwrap(), free_address(), free_address());
    let shards = format!("number_of_shards={EXECUTORS}");
    let sets = [shards.as_str(), "executors.lease_ttl=1h", "executors.settle_time=1s", "executors.probe_interval=1h"];
    let _manager = serve(directory.path(), grpc, http, &sets);
    table(grpc).await;
    let mut crowd = Crowd::at(grpc).await;
    crowd.join(vec![1; EXECUTORS]).await;
    settled(grpc, EXECUTORS).await;
    let client = shard_manager::rpc::shard_manager_client::ShardManagerClient::new(connect(grpc).await.unwrap());
    // While a command to it is under way, the set is told with the answer; and what one renews by is what it was told last.
    let (calls, answer) = eventually("an answer without a set", async || {
        let calls = crowd.renewals(EXECUTORS);
        let answer = client.clone().renew_lease(calls[0].clone()).await.unwrap().into_inner();
        let agrees = answer.assignment.is_none() && !answer.claim_wanted && crowd.held() == EXECUTORS;
        agrees.then_some((calls, answer))
    })
    .await;
    let bare = Bare::start(directory.path(), &[], &answer).await;
    let (own, bare) = (Load::on(grpc).await, Load::on(bare.address).await);
    let (path, before) = ("/shardmanager.v1.ShardManager/RenewLease", landed(http).await);
    let (question, length) = (RenewLeaseRequest::encoded_len(&calls[0]), answer.encoded_len());
    let (times, floors) = compare(&own, &bare, path, calls, runs).await;
    let written = landed(http).await - before;
    let ratio = Summary::of(times.clone()).median / Summary::of(floors.clone()).median;
    let how = format!(
        "`RenewLease` by digest, of 10,000 executors with a shard each in turn, {question} bytes and {length} back, {IN_FLIGHT} calls in flight over \
         {CONNECTIONS} connections: the time of a run by a thousand answers. No lease runs out and nothing moves meanwhile; {SHARE}."
    );
    let floor = "a bare tonic server, a process of its own, that decodes the same requests and encodes the same answer";
    vec![
        Figure::new("1,000 renewals", how)
            .times(times)
            .floor(floor, floors)
            .reach("median, in floors: 0.6 of the calls per second", 1.0 / 0.6, ratio)
            .reach("commits meanwhile", 0.0, written),
    ]
}
