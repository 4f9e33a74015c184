//! Callers: what a router knows while executors and managers come, go and are away.

use std::time::{Duration, Instant};

use shard_manager::client::{NoRoute, NotOwner, Route, Router};
use shard_manager::rpc::shard_executor_client::ShardExecutorClient;
use shard_manager::rpc::shard_executor_server::{ShardExecutor, ShardExecutorServer};
use shard_manager::rpc::shard_manager_client::ShardManagerClient;
use shard_manager::rpc::{self, reason, reason_of};
use shard_manager::types::{Revision, ShardId, Term, Version};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::harness::{Cluster, OnOneHost, PATIENCE, Proxy, Replicas, free_address, poll_until, stays};

const L: Duration = Duration::from_secs(2);

/// A router whose table is the manager's.
async fn router(cluster: &Cluster, managers: &[String]) -> Router {
    let router = Router::start(managers).unwrap();
    let table = cluster.table().await;
    let version = Version { term: Term(table.term), revision: Revision(table.revision) };
    tokio::time::timeout(PATIENCE, router.at_least(version)).await.unwrap();
    router
}

/// What a caller does: connects, and where that fails, says so.
async fn is_reached(route: &Route) -> bool {
    Endpoint::from_shared(route.owner.endpoint.clone()).unwrap().connect().await.is_ok()
}

/// Case 55. The owner is killed: a caller notices that it cannot be reached, asks again, and finds the new owner as soon as there is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_is_gone_and_the_next_call_finds_the_new_one() {
    let mut cluster = Cluster::start(&[]).await;
    let (mut a, _b) = (cluster.executor("a").await, cluster.executor("b").await);
    let table = cluster.at_rest(&["a", "b"]).await;
    let router = router(&cluster, &[cluster.manager.grpc.to_string()]).await;
    let shard = ShardId(*table.of("a").first().unwrap());
    let first = router.route(shard, PATIENCE).await.unwrap();
    assert_eq!((first.owner.id.as_str(), first.owner.endpoint.as_str()), ("a", format!("http://{}", a.address).as_str()));
    assert_eq!(first.epoch.0, table.shards[shard.0 as usize].epoch);
    assert!(is_reached(&first).await);

    a.child.kill();
    let killed = Instant::now();
    let found = poll_until("a caller reaches the shard again", PATIENCE, async || {
        let route = router.route(shard, PATIENCE).await.unwrap();
        if is_reached(&route).await {
            return Some(route);
        }
        router.invalidate(&route, None);
        None
    })
    .await;
    let took = killed.elapsed();
    assert_eq!(found.owner.id.as_str(), "b");
    assert!(found.epoch > first.epoch);
    assert!(took < L + Duration::from_secs(1), "it took {took:?}");
    let asked = Instant::now();
    assert_eq!(router.route(ShardId(64), PATIENCE).await, Err(NoRoute::NoSuchShard { shard: ShardId(64), number_of_shards: 64 }));
    assert!(asked.elapsed() < Duration::from_secs(1), "that is known at once");
}

/// Case 55, where the table at hand is stale: what the manager says does not get through, until the caller asks anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doubted_route_is_asked_for_and_not_waited_for() {
    let mut cluster = Cluster::start(&[]).await;
    let proxy = Proxy::to(cluster.manager.grpc).await;
    let (mut a, _b) = (cluster.executor("a").await, cluster.executor("b").await);
    let table = cluster.at_rest(&["a", "b"]).await;
    // The second address leads past the proxy.
    let managers = [proxy.address.to_string(), cluster.manager.grpc.to_string()];
    let router = router(&cluster, &managers).await;
    let shard = ShardId(*table.of("a").first().unwrap());
    let first = router.route(shard, PATIENCE).await.unwrap();
    proxy.black_hole();
    a.child.kill();
    let _alone = cluster.at_rest(&["b"]).await;
    router.invalidate(&first, None);
    let asked = Instant::now();
    let next = router.route(shard, PATIENCE).await.unwrap();
    assert_eq!(next.owner.id.as_str(), "b");
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
}

/// Refuses everything, as an executor that knows who owns the shard.
struct Wrong(Router, ShardId);

#[tonic::async_trait]
impl ShardExecutor for Wrong {
    async fn apply_assignment(
        &self,
        _: Request<rpc::ApplyAssignmentRequest>,
    ) -> Result<Response<rpc::ApplyAssignmentResponse>, Status> {
        Err(self.0.not_owner(self.1).into())
    }
}

/// Case 56. The refusal crosses the wire with the owner and its epoch, and a caller whose table is behind goes there at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_owner_names_the_right_one() {
    let mut cluster = Cluster::start(&[]).await;
    let mut a = cluster.executor("a").await;
    cluster.at_rest(&["a"]).await;
    let proxy = Proxy::to(cluster.manager.grpc).await;
    let behind = router(&cluster, &[proxy.address.to_string()]).await;
    let shard = ShardId(7);
    let old = behind.route(shard, PATIENCE).await.unwrap();
    proxy.black_hole();
    a.child.kill();
    let b = cluster.executor("b").await;
    let table = cluster.at_rest(&["b"]).await;

    let informed = router(&cluster, &[cluster.manager.grpc.to_string()]).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let service = ShardExecutorServer::new(Wrong(informed, shard));
    let serving = tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    let mut wrong = ShardExecutorClient::connect(format!("http://{address}")).await.unwrap();
    let status = wrong.apply_assignment(rpc::ApplyAssignmentRequest::default()).await.unwrap_err();
    serving.abort();

    assert_eq!(reason_of(&status).as_deref(), Some(reason::NOT_OWNER));
    let refusal = NotOwner::of(&status).unwrap();
    let named = refusal.current.clone().unwrap();
    let owned = &table.shards[7];
    assert_eq!((named.owner.id.as_str(), named.epoch.0, named.owner.incarnation.0), ("b", owned.epoch, owned.incarnation));
    assert_eq!(named.owner.endpoint, format!("http://{}", b.address));
    behind.invalidate(&old, Some(&refusal));
    assert_eq!(behind.route(shard, Duration::ZERO).await, Ok(named));
}

/// Case 57. While the manager is away a router goes on with what it has and says how old that is; then it goes on with the manager.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manager_is_away_and_the_router_goes_on() {
    let mut cluster = Cluster::start(&[]).await;
    let _a = cluster.executor("a").await;
    let table = cluster.at_rest(&["a"]).await;
    let nobody = Router::start([free_address().to_string()]).unwrap();
    let patience = Duration::from_millis(100);
    assert_eq!(nobody.route(ShardId(0), patience).await, Err(NoRoute::NoTable { patience }));
    assert_eq!((nobody.age(), nobody.shard(b"k")), (None, None));

    let router = router(&cluster, &[cluster.manager.grpc.to_string()]).await;
    let key = b"user-42";
    let before = router.route_of(key, PATIENCE).await.unwrap();
    assert_eq!(Some(before.shard), router.shard(key));
    cluster.manager.child.kill();
    let killed = Instant::now();
    let mut oldest = Duration::ZERO;
    stays("it answers out of memory", Duration::from_secs(2), async || {
        let age = router.age().unwrap();
        assert!(age >= oldest, "nobody made it younger");
        oldest = age;
        router.route_of(key, Duration::ZERO).await.as_ref() == Ok(&before)
    })
    .await;
    assert!(oldest >= Duration::from_millis(1900) && oldest <= killed.elapsed() + Duration::from_secs(6), "{oldest:?}");
    // Doubt does not make it wait for a manager that is not there: it asks, and goes on.
    router.invalidate(&before, None);
    let asked = Instant::now();
    assert_eq!(router.route_of(key, PATIENCE).await.as_ref(), Ok(&before));
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());

    cluster.manager.restart().await;
    let higher = Version { term: Term(table.term + 1), revision: Revision(0) };
    let newer = tokio::time::timeout(PATIENCE, router.at_least(higher)).await.expect("it finds the manager again");
    assert_eq!(newer.route(before.shard), Some(before), "owner and epoch are what they were");
    assert!(router.age().unwrap() < Duration::from_secs(6));
}

/// The leader is killed: a router that knows both managers goes on with the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_follows_the_leadership() {
    let mut replicas = Replicas::<OnOneHost>::start(2, &[]).await;
    let rest = replicas.at_rest().await;
    let managers = [&replicas.cluster.manager, &replicas.standbys[0]].map(|it| it.grpc.to_string());
    let router = router(&replicas.cluster, &managers).await;
    replicas.cluster.manager.child.kill();
    replicas.succession(PATIENCE).await;
    let higher = Version { term: Term(rest.term() + 1), revision: Revision(0) };
    let table = tokio::time::timeout(PATIENCE, router.at_least(higher)).await.expect("it finds the successor");
    assert_eq!(table.routes().count(), table.number_of_shards() as usize, "everything is owned still");
}

/// The store was wiped: the router takes the table of the new cluster, though its version may be lower (L12).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_goes_along_to_a_new_cluster() {
    let mut cluster = Cluster::start(&[]).await;
    let router = router(&cluster, &[cluster.manager.grpc.to_string()]).await;
    let before = router.table().unwrap().cluster_id();
    assert_eq!(cluster.manager.stop().await, Some(0));
    cluster.store.wipe();
    cluster.manager.restart().await;
    let after = poll_until("it has another table", PATIENCE, async || {
        let table = router.table().unwrap();
        (table.cluster_id() != before).then_some(table)
    })
    .await;
    assert_eq!(after.cluster_id().to_string(), cluster.table().await.cluster_id);
}

/// Case 54. A watcher that reads nothing of a large table is ended, and others are told meanwhile; when it reads on it learns why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_does_not_read_is_dropped() {
    let cluster = Cluster::start(&["number_of_shards=200000"]).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", cluster.manager.grpc)).unwrap();
    let channel = endpoint.initial_stream_window_size(65_535).connect().await.unwrap();
    let mut client = ShardManagerClient::new(channel).max_decoding_message_size(rpc::MAX_MESSAGE_BYTES);
    let mut slow = client.watch_routing_table(rpc::WatchRoutingTableRequest::default()).await.unwrap().into_inner();
    let router = router(&cluster, &[cluster.manager.grpc.to_string()]).await;
    assert_eq!(cluster.manager.metric("shard_manager_watchers").await, 2.0);
    // 5 s until something waits behind the table, then 10 s.
    poll_until("one watcher is left", Duration::from_secs(30), async || {
        (cluster.manager.metric("shard_manager_watchers").await == 1.0).then_some(())
    })
    .await;
    assert!(router.age().unwrap() < Duration::from_secs(6), "the other one is told");
    let ended = loop {
        match slow.message().await {
            Ok(message) => assert!(message.is_some(), "it ends with a reason"),
            Err(status) => break status,
        }
    };
    assert_eq!(reason_of(&ended).as_deref(), Some(reason::SLOW_WATCHER));
}
