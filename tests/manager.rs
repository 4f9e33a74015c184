//! A manager in this process, over real stores and sockets: what comes up, in which order things end, and what refuses to start.
#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use shard_manager::config::{Config, Sources};
use shard_manager::rpc;
use shard_manager::rpc::shard_manager_admin_client::ShardManagerAdminClient;
use shard_manager::rpc::shard_manager_client::ShardManagerClient;
use shard_manager::run::{Addresses, Deployment, Error, run_observed};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const SOON: Duration = Duration::from_secs(10);

struct Manager {
    shutdown: CancellationToken,
    addresses: watch::Receiver<Addresses>,
    ended: JoinHandle<Result<(), Error>>,
}

impl Manager {
    fn start(database: &Path, sets: &[&str]) -> Manager {
        Manager::start_as(false, database, sets)
    }

    fn start_as(embedded: bool, database: &Path, sets: &[&str]) -> Manager {
        let database = format!("persistence.sqlite.path={}", database.display());
        let defaults = ["grpc.listen=127.0.0.1:0", "http.listen=127.0.0.1:0", "number_of_shards=8", &database];
        let sets = defaults.iter().chain(sets).map(|set| (*set).to_owned()).collect();
        let (config, _) = Config::load(&Sources { file: None, env: Vec::new(), sets }).unwrap();
        let shutdown = CancellationToken::new();
        let (addresses, known) = watch::channel(Addresses::default());
        let deployment = if embedded {
            Deployment::Embedded { shutdown: shutdown.clone() }
        } else {
            Deployment::Standalone { shutdown: shutdown.clone() }
        };
        Manager { shutdown, addresses: known, ended: tokio::spawn(run_observed(config, deployment, addresses)) }
    }

    async fn grpc(&mut self) -> SocketAddr {
        let known = self.addresses.wait_for(|known| known.grpc.is_some());
        timeout(SOON, known).await.expect("it leads soon").unwrap().grpc.unwrap()
    }

    async fn channel(&mut self) -> Channel {
        let address = self.grpc().await;
        Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
    }

    async fn get(&mut self, path: &str) -> (u16, String) {
        let known = self.addresses.wait_for(|known| known.http.is_some());
        let address = timeout(SOON, known).await.expect("HTTP is up soon").unwrap().http.unwrap();
        let response = reqwest::get(format!("http://{address}{path}")).await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    async fn ended(self) -> Result<(), Error> {
        timeout(SOON, self.ended).await.expect("it ends soon").unwrap()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.ended().await.unwrap();
    }
}

fn registration(id: &str) -> rpc::RegisterRequest {
    rpc::RegisterRequest {
        executor_id: id.to_owned(),
        incarnation: 5,
        endpoint: "127.0.0.1:9".to_owned(),
        ..rpc::RegisterRequest::default()
    }
}

#[tokio::test]
async fn a_leader_says_what_it_is() {
    let directory = TempDir::new().unwrap();
    let mut manager = Manager::start(&directory.path().join("state.db"), &[]);
    let channel = manager.channel().await;
    assert_eq!(manager.get("/healthz").await.0, 200);
    assert_eq!(manager.get("/readyz").await.0, 200);
    let metrics = manager.get("/metrics").await.1;
    assert!(metrics.contains("shard_manager_is_leader 1\n"), "{metrics}");

    let status: serde_json::Value = serde_json::from_str(&manager.get("/status").await.1).unwrap();
    assert_eq!((&status["role"], &status["number_of_shards"]), (&"leader".into(), &8.into()));
    let mut admin = ShardManagerAdminClient::new(channel.clone());
    let said = admin.get_status(rpc::GetStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status["cluster_id"], said.cluster_id);
    assert_eq!((said.role.as_str(), said.number_of_shards, said.violations.len()), ("leader", 8, 0));

    let mut health = HealthClient::new(channel);
    for service in ["", "shardmanager.v1.ShardManager", "shardmanager.v1.ShardManagerAdmin"] {
        let answer = health.check(HealthCheckRequest { service: service.to_owned() }).await.unwrap();
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving, "{service:?}");
    }
    let page = manager.get("/").await;
    assert!(page.0 == 200 && page.1.contains("<h2>Executors</h2>") && !page.1.contains("<script"), "{}", page.1);
    manager.stop().await;
}

#[tokio::test]
async fn a_registration_survives_the_manager() {
    let directory = TempDir::new().unwrap();
    let database = directory.path().join("state.db");
    let mut first = Manager::start(&database, &[]);
    let mut client = ShardManagerClient::new(first.channel().await);
    let lease = client.register(registration("a")).await.unwrap().into_inner();
    first.stop().await;

    let mut second = Manager::start(&database, &[]);
    let mut client = ShardManagerClient::new(second.channel().await);
    let table = client.get_routing_table(rpc::GetRoutingTableRequest::default()).await.unwrap().into_inner();
    assert_eq!(table.cluster_id, lease.cluster_id);
    assert_eq!(table.owners.len(), 1);
    assert!(table.version.unwrap().term > lease.version.unwrap().term);
    second.stop().await;
}

/// The store was restored under a router that has seen more: the leader's term goes above that before it answers (L10).
#[tokio::test]
async fn a_reader_that_saw_a_higher_version_is_served() {
    let directory = TempDir::new().unwrap();
    let mut manager = Manager::start(&directory.path().join("state.db"), &[]);
    let mut client = ShardManagerClient::new(manager.channel().await);
    let table = client.get_routing_table(rpc::GetRoutingTableRequest::default()).await.unwrap().into_inner();
    let seen = rpc::Version { term: table.version.unwrap().term + 1000, revision: 3 };
    let request = rpc::GetRoutingTableRequest { cluster_id: table.cluster_id, known: Some(seen) };
    let table = client.get_routing_table(request).await.unwrap().into_inner();
    assert!(table.version.unwrap().term > seen.term);
    manager.stop().await;
}

/// The same where it watches: what it is told first is above what it has seen.
#[tokio::test]
async fn a_watcher_that_saw_a_higher_version_is_served() {
    let directory = TempDir::new().unwrap();
    let mut manager = Manager::start(&directory.path().join("state.db"), &[]);
    let mut client = ShardManagerClient::new(manager.channel().await);
    let table = client.get_routing_table(rpc::GetRoutingTableRequest::default()).await.unwrap().into_inner();
    let seen = rpc::Version { term: table.version.unwrap().term + 1000, revision: 3 };
    let request = rpc::WatchRoutingTableRequest { cluster_id: table.cluster_id, known: Some(seen) };
    let mut changes = client.watch_routing_table(request).await.unwrap().into_inner();
    let first = timeout(SOON, changes.message()).await.expect("it is told").unwrap().unwrap();
    let Some(rpc::watch_routing_table_response::Change::Full(table)) = first.change else { panic!("{first:?}") };
    assert!(table.version.unwrap().term > seen.term);
    let asked = Instant::now();
    manager.stop().await;
    assert!(asked.elapsed() < Duration::from_secs(1), "a watcher does not hold up a stop: {:?}", asked.elapsed());
    let ended = changes.message().await.unwrap_err();
    assert_eq!(rpc::reason_of(&ended).as_deref(), Some("STOPPING"));
}

#[tokio::test]
async fn bad_requests_are_refused_with_field_and_rule() {
    let directory = TempDir::new().unwrap();
    let mut manager = Manager::start(&directory.path().join("state.db"), &[]);
    let mut client = ShardManagerClient::new(manager.channel().await);
    let bad = rpc::RegisterRequest { endpoint: "https://a:1".to_owned(), ..registration("a") };
    let refused = client.register(bad).await.unwrap_err();
    assert_eq!(rpc::reason_of(&refused).as_deref(), Some("INVALID_ARGUMENT"));
    assert!(refused.message().contains("endpoint") && refused.message().contains("https://a:1"), "{}", refused.message());
    manager.stop().await;
}

#[tokio::test]
async fn another_shard_count_than_the_stored_one_is_refused_with_both() {
    let directory = TempDir::new().unwrap();
    let database = directory.path().join("state.db");
    let mut manager = Manager::start(&database, &[]);
    manager.grpc().await;
    manager.stop().await;
    let error = Manager::start(&database, &["number_of_shards=16"]).ended().await.unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("16") && error.to_string().contains('8'), "{error}");
}

#[tokio::test]
async fn a_second_manager_within_another_process_is_refused_and_the_first_goes_on() {
    within_another_process(&[]).await;
}

/// The same on PostgreSQL. Where the database does not answer it fails soon, instead of waiting for it as a standby would.
#[tokio::test]
async fn within_another_process_nobody_waits_for_postgres() {
    let mut server = support::postgres::Postgres::start().await;
    let url = format!("persistence.postgres.url={}", server.url());
    let sets = ["persistence.type=postgres", &url, "leadership.lease_ttl=2s"];
    within_another_process(&sets).await;
    server.stop();
    let error = Manager::start_as(true, Path::new("none.db"), &sets).ended().await.unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
}

async fn within_another_process(sets: &[&str]) {
    let directory = TempDir::new().unwrap();
    let database = directory.path().join("state.db");
    let mut first = Manager::start(&database, sets);
    first.grpc().await;
    let error = Manager::start_as(true, &database, sets).ended().await.unwrap_err();
    assert_eq!(error.exit_code(), 5);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains(&std::process::id().to_string()), "{cause}");
    assert_eq!(first.get("/readyz").await.0, 200);
    first.stop().await;
    // Where nobody leads, it leads.
    let mut second = Manager::start_as(true, &database, sets);
    second.grpc().await;
    second.stop().await;
}

#[tokio::test]
async fn a_second_manager_on_the_database_waits_and_leads_after_the_first() {
    let directory = TempDir::new().unwrap();
    let database = directory.path().join("state.db");
    let mut first = Manager::start(&database, &[]);
    first.grpc().await;
    let mut second = Manager::start(&database, &[]);
    let deadline = Instant::now() + SOON;
    while second.get("/readyz").await != (503, "{\"reason\":\"standby\"}".to_owned()) {
        assert!(Instant::now() < deadline, "it does not wait");
    }
    first.stop().await;
    second.grpc().await;
    second.stop().await;
}

#[tokio::test]
async fn a_grpc_port_that_is_taken_is_named_and_the_leadership_given_up() {
    let directory = TempDir::new().unwrap();
    let database = directory.path().join("state.db");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Manager::start(&database, &[&format!("grpc.listen={address}")]).ended().await.unwrap_err();
    assert_eq!(error.exit_code(), 6);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    let mut next = Manager::start(&database, &[]);
    next.grpc().await;
    next.stop().await;
}

#[tokio::test]
async fn a_stop_at_any_moment_ends_it_well_and_soon() {
    let directory = TempDir::new().unwrap();
    for delay_ms in [0, 1, 3, 7, 15, 30, 60, 120] {
        let manager = Manager::start(&directory.path().join("state.db"), &[]);
        // Not a synchronisation: whatever it is doing at that moment, it must end.
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        let asked = Instant::now();
        manager.stop().await;
        assert!(asked.elapsed() < Duration::from_secs(1), "stopped {delay_ms} ms after its start it took {:?}", asked.elapsed());
    }
}

/// Clients keep their connections and streams open for as long as they can; a stop does not wait for them.
#[tokio::test]
async fn an_open_stream_does_not_hold_up_a_stop() {
    let directory = TempDir::new().unwrap();
    let mut manager = Manager::start(&directory.path().join("state.db"), &[]);
    let mut health = HealthClient::new(manager.channel().await);
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let asked = Instant::now();
    manager.shutdown.cancel();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing, "its watchers are told");
    manager.ended().await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(1), "it took {:?}", asked.elapsed());
}

/// Where nobody else waits, the one who stepped down leads again: in order, under a higher term, in the same process.
#[tokio::test]
async fn a_leader_that_steps_down_hands_over_and_campaigns_again() {
    let directory = TempDir::new().unwrap();
    let mut manager = Manager::start(&directory.path().join("state.db"), &[]);
    let mut admin = ShardManagerAdminClient::new(manager.channel().await);
    let before = admin.get_status(rpc::GetStatusRequest {}).await.unwrap().into_inner().version.unwrap();
    let answer = admin.step_down(rpc::StepDownRequest { asked_by: "me".into(), reason: "a test".into() }).await.unwrap();
    assert!(answer.into_inner().leader.contains("process"));

    let gone = manager.addresses.wait_for(|known| known.grpc.is_none());
    timeout(SOON, gone).await.expect("it steps down").unwrap();
    let mut admin = ShardManagerAdminClient::new(manager.channel().await);
    let after = admin.get_status(rpc::GetStatusRequest {}).await.unwrap().into_inner().version.unwrap();
    assert!(after.term > before.term && after.revision > before.revision, "{before:?} {after:?}");
    assert_eq!(manager.get("/readyz").await.0, 200);
    manager.stop().await;
}
