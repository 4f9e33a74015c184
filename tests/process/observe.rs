//! What the outside sees: HTTP, metrics, gRPC health, reflection.

use std::time::Duration;

use shard_manager::rpc::shard_manager_admin_client::ShardManagerAdminClient;
use shard_manager::rpc::{ChangeExecutorRequest, RegisterRequest};
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use tonic::codegen::tokio_stream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::harness::{Cluster, Manager, PATIENCE, Store, free_address, poll_until};

async fn get(address: std::net::SocketAddr, path: &str) -> Option<(u16, String)> {
    let answer = reqwest::get(format!("http://{address}{path}")).await.ok()?;
    Some((answer.status().as_u16(), answer.text().await.ok()?))
}

/// While somebody else holds the database, a manager is alive, not ready, says why, and counts nothing as its own; then it leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_makes_a_starting_manager_wait() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::Sqlite(directory.path().join("shard-manager.db"));
    let mut manager = Manager::start(&store, &[]).await;
    assert_eq!(manager.stop().await, Some(0));
    let mut stranger = SqliteConnectOptions::new().filename(store.path()).connect().await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut stranger).await.unwrap();
    let (grpc, http) = (free_address(), free_address());
    let mut child = Manager::spawn(grpc, http, &store, &["persistence.request_timeout=5s".to_owned()]);
    // Starting first; then it has the cell, and waits for the database to get its number.
    let waits = (503, "{\"reason\":\"standby\"}".to_owned());
    poll_until("it waits", PATIENCE, async || (get(http, "/readyz").await? == waits).then_some(())).await;
    assert_eq!(get(http, "/healthz").await.unwrap().0, 200);
    let (_, metrics) = get(http, "/metrics").await.unwrap();
    for zero in [
        "shard_manager_is_leader 0",
        "shard_manager_leader_since_epoch 0",
        "shard_manager_campaign_attempt_failures_total 0",
        "shard_manager_term 0",
        "shard_manager_unserved_shards{cause=\"crash\"} 0",
        "shard_manager_executors{state=\"active\"} 0",
        "shard_manager_lease_lapses_total 0",
    ] {
        assert!(metrics.lines().any(|line| line == zero), "{zero} in {metrics}");
    }
    let status: serde_json::Value = serde_json::from_str(&get(http, "/status").await.unwrap().1).unwrap();
    assert_eq!((&status["role"], &status["grpc"], &status["leader"]), (&"standby".into(), &().into(), &().into()));
    assert!(std::net::TcpStream::connect(grpc).is_err(), "the gRPC port is closed");
    sqlx::raw_sql("ROLLBACK").execute(&mut stranger).await.unwrap();
    child.announced("gRPC listening on ").await;
    let ready = poll_until("it is ready", PATIENCE, async || get(http, "/readyz").await.filter(|it| it.0 == 200)).await;
    assert_eq!(ready.1, "{\"ready\":true}");
}

/// A leader says so at once and everywhere, and what happens shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_is_looked_at() {
    let mut cluster = Cluster::start(&[]).await;
    let manager = &cluster.manager;
    assert_eq!(manager.get("/readyz").await.0, 200);
    assert_eq!(manager.metric("shard_manager_is_leader").await, 1.0);
    let since = manager.metric("shard_manager_leader_since_epoch").await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - since).abs() < 30.0, "{since}, now {now}");
    let table = cluster.table().await;
    let status: serde_json::Value = serde_json::from_str(&manager.get("/status").await.1).unwrap();
    assert_eq!(
        (&status["role"], &status["term"], &status["revision"], &status["cluster_id"], &status["grpc"]),
        (
            &"leader".into(),
            &table.term.into(),
            &table.revision.into(),
            &table.cluster_id.clone().into(),
            &manager.grpc.to_string().into()
        )
    );
    assert!(status["identity"].as_str().unwrap().contains(&manager.child.pid().to_string()));
    assert!(status["last_store_contact"].is_number());
    assert_eq!(manager.metric("shard_manager_term").await, table.term as f64);
    assert_eq!(manager.metric("shard_manager_executor_joins_total").await, 0.0);
    assert_eq!(manager.metric("shard_manager_unserved_shards{cause=\"start-up\"}").await, 64.0);

    let a = cluster.executor("a").await;
    cluster.at_rest(&["a"]).await;
    let manager = &cluster.manager;
    assert_eq!(manager.metric("shard_manager_executor_joins_total").await, 1.0);
    // Executors are counted ten times a second.
    poll_until("a is counted", PATIENCE, async || {
        (manager.metric("shard_manager_executors{state=\"active\"}").await == 1.0).then_some(())
    })
    .await;
    assert!(manager.metric("shard_manager_grpc_connections").await >= 1.0);
    assert!(manager.metric("shard_manager_unserved_shard_seconds_total{cause=\"start-up\"}").await > 0.0);
    assert!(manager.get("/").await.1.contains(&format!("http://{}", a.address)));
    assert_eq!(manager.get("/nothing").await.0, 404);
}

/// gRPC health tells each service; who asks about another is told that there is none. Reflection lists what there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_tools_ask_what_there_is() {
    let cluster = Cluster::start(&[]).await;
    let mut health = HealthClient::new(cluster.manager.connection());
    for service in ["", "shardmanager.v1.ShardManager", "shardmanager.v1.ShardManagerAdmin"] {
        let answer = health.check(HealthCheckRequest { service: service.to_owned() }).await.unwrap();
        assert_eq!(answer.into_inner().status, 1, "{service:?} is SERVING");
    }
    let unknown = health.check(HealthCheckRequest { service: "nobody".to_owned() }).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);

    let request = tonic_reflection::pb::v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(cluster.manager.connection());
    let answers = reflection.server_reflection_info(tokio_stream::once(request)).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    let names: Vec<&str> = list.service.iter().map(|it| it.name.as_str()).collect();
    for service in ["grpc.health.v1.Health", "shardmanager.v1.ShardManager", "shardmanager.v1.ShardManagerAdmin"] {
        assert!(names.contains(&service), "{service} in {names:?}");
    }
}

/// Whoever watches the health service is told of the end before the connection goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watched_manager_stops() {
    let mut cluster = Cluster::start(&[]).await;
    let mut health = HealthClient::new(cluster.manager.connection());
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 1);
    let (code, took) = cluster.manager.child.stop(PATIENCE).await;
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(1), "a watcher held it for {took:?}");
    assert_eq!(watch.message().await.unwrap().unwrap().status, 2, "NOT_SERVING");
    let request =
        RegisterRequest { executor_id: "x".to_owned(), incarnation: 1, endpoint: "h:1".to_owned(), ..RegisterRequest::default() };
    assert!(cluster.manager.client().register(request).await.is_err());
}

/// Whoever asks for a change may be gone before the store has taken it. It is made all the same, so who asked must stand in the log by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_caller_goes_away_is_logged_with_who_asked_and_why() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    cluster.at_rest(&["a"]).await;
    let mut stranger = SqliteConnectOptions::new().filename(cluster.store.path()).connect().await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut stranger).await.unwrap();
    let mut admin = ShardManagerAdminClient::connect(format!("http://{}", cluster.manager.grpc)).await.unwrap();
    let (executor_id, asked_by, reason) = ("a".to_owned(), "me@host".to_owned(), "noisy neighbour".to_owned());
    let asking =
        tokio::spawn(
            async move { admin.cordon_executor(ChangeExecutorRequest { executor_id, asked_by, reason }).await.map(|_| ()) },
        );
    let line = poll_until("it is logged", PATIENCE, async || {
        let log = cluster.manager.child.printed();
        log.into_iter().find(|line| line.contains("an operator asks for a change"))
    })
    .await;
    asking.abort();
    assert!(line.contains("noisy neighbour") && line.contains("me@host") && line.contains("Cordon"), "{line}");
    sqlx::raw_sql("ROLLBACK").execute(&mut stranger).await.unwrap();
    drop(a);
}
