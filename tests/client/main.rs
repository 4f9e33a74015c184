//! An executor's session over real sockets, with a scripted manager on the other side.
#![allow(clippy::unwrap_used)]

mod fake;
mod log;
mod router;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fake::{Manager, eventually, push};
use log::Log;
use shard_manager::client::{
    Error, ExecutorSession, Happening, ObserverError, SessionEvent, SessionObserver, ShardGrant, ShardHost, StartError,
};
use shard_manager::rpc::{self, reason, reason_of};
use tokio::sync::watch;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// Logs what happens to shards; stops when `may_stop`.
#[derive(Clone)]
struct Host {
    log: Arc<Mutex<Vec<String>>>,
    may_stop: watch::Sender<bool>,
    ends_at_once: bool,
}

impl Host {
    fn new() -> Host {
        Host { log: Arc::default(), may_stop: watch::Sender::new(true), ends_at_once: false }
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn has(&self, entries: &[&str]) -> bool {
        let log = self.log();
        entries.iter().all(|entry| log.iter().any(|logged| logged == entry))
    }
}

struct Running {
    log: Arc<Mutex<Vec<String>>>,
    name: String,
    grant: ShardGrant,
    has_returned: bool,
}

impl Running {
    fn say(&self, what: &str) {
        self.log.lock().unwrap().push(format!("{what} {}", self.name));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let cancelled = self.grant.is_cancelled();
        self.say(if self.has_returned {
            "end"
        } else if cancelled {
            "drop"
        } else {
            "drop uncancelled"
        });
    }
}

impl ShardHost for Host {
    async fn run(&self, grant: ShardGrant) {
        let name = format!("{}@{}", grant.shard, grant.epoch);
        let mut running = Running { log: Arc::clone(&self.log), name, grant, has_returned: false };
        running.say("start");
        if !self.ends_at_once {
            running.grant.cancelled().await;
            running.say("cancel");
            let _ = self.may_stop.subscribe().wait_for(|may_stop| *may_stop).await;
        }
        running.has_returned = true;
    }
}

async fn session(host: &Host, managers: &[SocketAddr]) -> ExecutorSession {
    let managers = managers.iter().map(SocketAddr::to_string);
    ExecutorSession::builder("e".parse().unwrap(), host.clone()).managers(managers).start().await.unwrap()
}

fn names(shards: &[(u32, u64)]) -> rpc::Holdings {
    let (shards, epochs) = shards.iter().copied().unzip();
    rpc::Holdings { shards, epochs }
}

#[tokio::test]
async fn registers_starts_its_set_and_says_so_once_in_full() {
    let manager = Manager::start(3000, &[(1, 9), (2, 9)]).await;
    let host = Host::new();
    let session = session(&host, &[manager.address]).await;
    eventually("a digest after a full claim", || {
        let renewals = manager.renewals();
        let full = rpc::renew_lease_request::Claim::Held(names(&[(1, 9), (2, 9)]));
        renewals.iter().any(|renewal| renewal.claim == Some(full.clone()))
    })
    .await;
    let register = manager.registers()[0].clone();
    assert_eq!((register.executor_id.as_str(), register.weight), ("e", 1));
    assert_eq!(register.endpoint, format!("http://{}", session.local_addr()));
    assert!(host.has(&["start 1@9", "start 2@9"]));
    let before = manager.renewals().len();
    eventually("the next renewal", || manager.renewals().len() > before).await;
    let last = manager.renewals().pop().unwrap();
    assert!(matches!(last.claim, Some(rpc::renew_lease_request::Claim::Digest(_))), "{last:?}");
    let channel = tonic::transport::Endpoint::from_shared(session.endpoint().to_owned()).unwrap().connect_lazy();
    let mut health = HealthClient::new(channel);
    for service in ["", "shardmanager.v1.ShardExecutor"] {
        let status = health.check(HealthCheckRequest { service: service.into() }).await.unwrap().into_inner();
        assert_eq!(status.status(), tonic_health::pb::health_check_response::ServingStatus::Serving);
    }
    session.stop().await.unwrap();
    assert_eq!(manager.deregisters()[0].incarnation, register.incarnation);
    assert!(host.has(&["end 1@9", "end 2@9"]));
}

/// What a process serves itself is on the session's port, by HTTP/1 too; whatever it takes, commands and probes get through.
#[tokio::test]
async fn routes_of_its_own_are_served_beside_commands() {
    let manager = Manager::start(3000, &[(1, 9)]).await;
    let host = Host::new();
    let own = axum::Router::new().route("/{*path}", axum::routing::any(|| async { "mine" }));
    let builder = ExecutorSession::builder("e".parse().unwrap(), host.clone()).managers([manager.address.to_string()]);
    let session = builder.serve(own).start().await.unwrap();
    eventually("the start", || host.has(&["start 1@9"])).await;
    let answer = reqwest::get(format!("{}/counters/a", session.endpoint())).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.text().await.unwrap().as_str()), (200, "mine"));
    let response = push(&session, manager.push(2, &[(1, 9)], 0)).await.unwrap();
    assert_eq!(response.held, Some(names(&[(1, 9)])));
    let channel = tonic::transport::Endpoint::from_shared(session.endpoint().to_owned()).unwrap().connect_lazy();
    let health = HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(health.get_ref().status(), tonic_health::pb::health_check_response::ServingStatus::Serving);
    session.stop().await.unwrap();
}

#[tokio::test]
async fn a_command_is_answered_when_stopped_or_after_its_wait_or_when_overtaken() {
    let manager = Manager::start(30_000, &[(1, 9), (2, 9)]).await;
    let host = Host::new();
    let session = session(&host, &[manager.address]).await;
    eventually("the start", || host.has(&["start 1@9", "start 2@9"])).await;
    host.may_stop.send_replace(false);

    let request = manager.push(2, &[(2, 9)], 0);
    let response = push(&session, request).await.unwrap();
    assert_eq!((response.mark, response.held), (Some(rpc::Version { term: 5, revision: 2 }), Some(names(&[(1, 9), (2, 9)]))));

    let send = |request| tokio::spawn(fake::push_to(session.endpoint().to_owned(), request));
    let older = send(manager.push(3, &[(2, 9), (3, 11)], 60_000));
    eventually("the start of shard 3", || host.has(&["start 3@11"])).await;
    let newer = send(manager.push(4, &[(2, 9), (3, 11)], 60_000));
    let response = older.await.unwrap().unwrap();
    assert_eq!(response.held, Some(names(&[(1, 9), (2, 9), (3, 11)])), "overtaken, and answered with the truth");
    let overtaken_by = Some(rpc::Version { term: 5, revision: 4 });
    assert_eq!(response.mark, overtaken_by, "not answered before the newer one came");
    host.may_stop.send_replace(true);
    let response = newer.await.unwrap().unwrap();
    assert_eq!(response.held, Some(names(&[(2, 9), (3, 11)])), "answered when shard 1 has stopped");
    assert!(host.has(&["end 1@9"]));

    for (change, expected) in [
        (Box::new(|r: &mut rpc::ApplyAssignmentRequest| r.incarnation += 1) as Box<dyn Fn(&mut _)>, reason::WRONG_INCARNATION),
        (Box::new(|r: &mut rpc::ApplyAssignmentRequest| r.cluster_id = uuid::Uuid::max().to_string()), reason::WRONG_CLUSTER),
        (
            Box::new(|r: &mut rpc::ApplyAssignmentRequest| r.version = Some(rpc::Version { term: 4, revision: 9 })),
            reason::STALE_TERM,
        ),
        (Box::new(|r: &mut rpc::ApplyAssignmentRequest| r.version = None), reason::INVALID_ARGUMENT),
        (Box::new(|r: &mut rpc::ApplyAssignmentRequest| r.assignment = Some(names(&[(9999, 1)]))), reason::INVALID_ARGUMENT),
    ] {
        let mut request = manager.push(5, &[], 0);
        change(&mut request);
        let status = push(&session, request).await.unwrap_err();
        assert_eq!(reason_of(&status).as_deref(), Some(expected), "{status:?}");
    }
    assert!(!host.has(&["cancel 2@9"]), "what is refused changes nothing");
}

#[tokio::test]
async fn a_lease_that_runs_out_fences_and_a_manager_that_comes_back_gives_the_set_again() {
    let manager = Manager::start(900, &[(1, 9)]).await;
    let host = Host::new();
    let session = session(&host, &[manager.address]).await;
    eventually("the start", || host.has(&["start 1@9"])).await;
    host.may_stop.send_replace(false);
    let address = manager.address;
    let incarnation = manager.registers()[0].incarnation;
    manager.stop().await;
    eventually("the fence", || host.has(&["drop 1@9"])).await;
    assert_eq!(host.log(), ["start 1@9", "drop 1@9"], "the token fires, then the future is dropped");
    let request = fake::command("e", incarnation, 9, &[(1, 9)], 0);
    let status = push(&session, request).await.unwrap_err();
    assert_eq!(reason_of(&status).as_deref(), Some(reason::LEASE_OVER), "no push restarts it (L3)");

    host.log.lock().unwrap().clear();
    let manager = Manager::start_at(address, 900, &[(1, 9)]).await;
    eventually("the start at the same epoch", || host.has(&["start 1@9"])).await;
    let first = manager.renewals()[0].clone();
    assert_eq!((first.incarnation, first.claim), (incarnation, Some(rpc::renew_lease_request::Claim::Held(names(&[])))));
    assert!(manager.registers().is_empty(), "the incarnation goes on");
}

/// A thousand shards share a fate: one line, not a thousand.
/// Addresses that do not lead are nothing to tell, as long as one does; a manager that is lost is, once, and when it is found again.
#[tokio::test]
async fn the_log_has_one_line_when_the_manager_is_lost_and_one_when_it_is_found() {
    let log = Log::start();
    let (closed, standby, manager) =
        (fake::closed_port().await, Manager::start(900, &[]).await, Manager::start(900, &[(1, 9)]).await);
    standby.refuse(Some(reason::NOT_READY));
    let (address, host) = (manager.address, Host::new());
    let _session = session(&host, &[closed, standby.address, address]).await;
    eventually("the start", || host.has(&["start 1@9"])).await;
    assert_eq!(log.lines(&["WARN"]), [] as [&str; 0], "one of three leads");

    manager.stop().await;
    eventually("the fence", || host.has(&["drop 1@9"])).await;
    let urls = format!("http://{closed}, http://{}, http://{address}", standby.address);
    eventually("many rounds", || standby.renewals().len() > 5).await;
    let lost = log.lines(&["WARN", " manager ", &urls, "trying on; the lease lives for another "]);
    assert_eq!((lost.len(), log.lines(&["WARN"]).len()), (1, 2), "the other is the fence: {:?}", log.lines(&[]));

    let manager = Manager::start_at(address, 900, &[(1, 9)]).await;
    eventually("renewals", || manager.renewals().len() > 2).await;
    assert_eq!(log.lines(&["INFO", "a manager answers, after ", &format!("http://{address}")]).len(), 1, "{:?}", log.lines(&[]));
    assert_eq!(log.lines(&["WARN"]).len(), 2);
}

#[tokio::test]
async fn what_happens_to_many_shards_is_one_line_in_the_log() {
    let all: Vec<(u32, u64)> = (0..1024).map(|shard| (shard, 9)).collect();
    let log = Log::start();
    let manager = Manager::start(900, &all).await;
    let host = Host::new();
    let fenced = session(&host, &[manager.address]).await;
    eventually("the start", || host.log().len() == 1024).await;
    manager.stop().await;
    eventually("the fence", || host.log().iter().filter(|entry| entry.starts_with("drop")).count() == 1024).await;
    drop(fenced);
    let lines = log.lines(&["1024 shards (0, 1, 2, 3, 4, …)", "ran out"]);
    assert_eq!(lines.len(), 1, "{lines:?}");

    let manager = Manager::start(30_000, &all).await;
    let host = Host { ends_at_once: true, ..Host::new() };
    let _unwilling = session(&host, &[manager.address]).await;
    let unasked = || log.lines(&["ended unasked"]);
    eventually("the line", || !unasked().is_empty()).await;
    assert_eq!(unasked().len(), 1, "{:?}", unasked());
    assert_eq!(log.lines(&[" shards ("]).len(), 2, "and no other about shards: {:?}", log.lines(&[]));
}

#[tokio::test]
async fn a_manager_that_is_away_for_less_than_the_lease_is_not_missed() {
    let manager = Manager::start(3000, &[(1, 9)]).await;
    let host = Host::new();
    let _session = session(&host, &[manager.address]).await;
    eventually("the start", || host.has(&["start 1@9"])).await;
    let address = manager.address;
    manager.stop().await;
    let manager = Manager::start_at(address, 3000, &[(1, 9)]).await;
    eventually("two renewals at the new one", || manager.renewals().len() >= 2).await;
    assert_eq!((host.log(), manager.registers().len()), (vec!["start 1@9".to_owned()], 0));
}

#[tokio::test]
async fn unknown_executor_stops_everything_and_registers_as_a_new_incarnation() {
    let manager = Manager::start(3000, &[(1, 9)]).await;
    let host = Host::new();
    let _session = session(&host, &[manager.address]).await;
    eventually("the start", || host.has(&["start 1@9"])).await;
    host.may_stop.send_replace(false);
    manager.refuse(Some(reason::UNKNOWN_EXECUTOR));
    eventually("the cancellation", || host.has(&["cancel 1@9"])).await;
    manager.refuse(None);
    assert_eq!(manager.registers().len(), 1, "everything stops first");
    manager.assign(7, &[(1, 12)]);
    host.may_stop.send_replace(true);
    eventually("the start at a higher epoch", || host.has(&["end 1@9", "start 1@12"])).await;
    let registers = manager.registers();
    assert_ne!(registers[0].incarnation, registers[1].incarnation);
    assert_eq!(registers[0].cluster_id, "");
    assert_eq!(
        (registers[1].cluster_id.as_str(), registers[1].mark),
        (fake::CLUSTER, Some(rpc::Version { term: 5, revision: 1 }))
    );
}

#[tokio::test]
async fn superseded_stops_deregisters_its_own_incarnation_and_ends_for_good() {
    let manager = Manager::start(3000, &[(1, 9)]).await;
    let host = Host::new();
    let mut session = session(&host, &[manager.address]).await;
    eventually("the start", || host.has(&["start 1@9"])).await;
    manager.refuse(Some(reason::SUPERSEDED));
    let end = session.ended().await;
    assert!(matches!(end, Err(Error::Superseded { .. })), "{end:?}");
    assert!(host.has(&["end 1@9"]));
    assert_eq!(manager.deregisters()[0].incarnation, manager.registers()[0].incarnation);
    assert_eq!(manager.registers().len(), 1);
}

#[tokio::test]
async fn leave_asks_for_the_shards_to_be_moved_first() {
    let manager = Manager::start(30_000, &[(1, 9), (2, 9)]).await;
    let host = Host::new();
    let mut session = session(&host, &[manager.address]).await;
    eventually("the start", || host.has(&["start 1@9", "start 2@9"])).await;
    session.begin_leave(Duration::from_secs(20));
    eventually("the wish to leave", || manager.renewals().iter().any(|renewal| renewal.leaving)).await;
    assert!(!host.has(&["cancel 1@9"]) && manager.deregisters().is_empty());
    manager.assign(2, &[(2, 9)]);
    push(&session, manager.push(2, &[(2, 9)], 1000)).await.unwrap();
    assert!(!host.has(&["cancel 2@9"]));
    manager.assign(3, &[]);
    push(&session, manager.push(3, &[], 1000)).await.unwrap();
    session.ended().await.unwrap();
    assert_eq!(manager.deregisters().len(), 1);
    assert!(host.has(&["end 1@9", "end 2@9"]));
}

#[tokio::test]
async fn leave_does_not_wait_longer_than_told() {
    let log = Log::start();
    let manager = Manager::start(30_000, &[(1, 9)]).await;
    let host = Host::new();
    let session = session(&host, &[manager.address]).await;
    eventually("the start", || host.has(&["start 1@9"])).await;
    tokio::time::timeout(Duration::from_secs(5), session.leave(Duration::from_millis(200))).await.unwrap().unwrap();
    assert!(host.has(&["end 1@9"]));
    assert_eq!(
        log.lines(&["INFO", " left; shards that were still held then were stopped", "shards=1"]).len(),
        1,
        "{:?}",
        log.lines(&[])
    );
    assert_eq!(manager.deregisters().len(), 1);
}

#[tokio::test]
async fn stop_ends_at_once_where_no_manager_was_ever_reached() {
    let closed = fake::closed_port().await;
    let session = session(&Host::new(), &[closed]).await;
    tokio::time::timeout(Duration::from_secs(1), session.stop()).await.unwrap().unwrap();
}

/// A registration that arrived, though its answer did not, would be granted shards until its lease is over.
#[tokio::test]
async fn a_stop_while_a_registration_is_under_way_deregisters_what_may_have_arrived() {
    let manager = Manager::start(30_000, &[(1, 9)]).await;
    let host = Host::new();
    let is_over =
        |session: ExecutorSession| async { tokio::time::timeout(Duration::from_secs(5), session.stop()).await.unwrap() };

    manager.answer_registrations(false);
    let session_1 = session(&host, &[manager.address]).await;
    eventually("the registration", || manager.registers().len() == 1).await;
    session_1.begin_stop();
    manager.answer_registrations(true);
    is_over(session_1).await.unwrap();
    assert_eq!(manager.registers().len(), 1, "its answer was waited for");
    let left = || manager.deregisters().into_iter().map(|it| (it.incarnation, it.cluster_id)).collect::<Vec<_>>();
    let expected = |at: usize| (manager.registers()[at].incarnation, fake::CLUSTER.to_owned());
    assert_eq!(left(), [expected(0)]);

    // Not answered with an outcome: it may have been written all the same.
    manager.refuse(Some(reason::STORE_UNAVAILABLE));
    let session_2 = session(&host, &[manager.address]).await;
    eventually("the registration", || manager.registers().len() >= 2).await;
    session_2.begin_stop();
    manager.refuse(None);
    is_over(session_2).await.unwrap();
    assert_eq!(left(), [expected(0), expected(1)]);

    // Never answered: it ends all the same.
    manager.answer_registrations(false);
    let known = manager.registers().len();
    let session_3 = session(&host, &[manager.address]).await;
    eventually("the registration", || manager.registers().len() > known).await;
    is_over(session_3).await.unwrap();
    assert_eq!(host.log(), [] as [&str; 0], "nothing was ever started");
}

#[tokio::test]
async fn addresses_that_are_closed_silent_or_not_ready_cost_a_try_each() {
    let closed = fake::closed_port().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let standby = Manager::start(30_000, &[]).await;
    standby.refuse(Some(reason::NOT_READY));
    let manager = Manager::start(30_000, &[(1, 9)]).await;
    let host = Host::new();
    let _session = session(&host, &[closed, standby.address, silent.local_addr().unwrap(), manager.address]).await;
    eventually("the start", || host.has(&["start 1@9"])).await;
}

#[tokio::test]
async fn work_that_ends_unasked_is_told_as_not_held_and_run_again() {
    let manager = Manager::start(30_000, &[(1, 9)]).await;
    let host = Host { ends_at_once: true, ..Host::new() };
    let _session = session(&host, &[manager.address]).await;
    let again = || host.log().iter().filter(|entry| *entry == "start 1@9").count() >= 3;
    eventually("the third start", again).await;
    let empty = rpc::renew_lease_request::Claim::Held(names(&[]));
    eventually("the truth", || manager.renewals().iter().any(|renewal| renewal.claim == Some(empty.clone()))).await;
}

#[tokio::test]
async fn an_epoch_that_the_storage_has_seen_reaches_the_manager_at_once() {
    let manager = Manager::start(30_000, &[(1, 9)]).await;
    let host = Host::new();
    let session = session(&host, &[manager.address]).await;
    eventually("the start", || host.has(&["start 1@9"])).await;
    session.report_storage_epoch(shard_manager::types::ShardId(1), shard_manager::types::Epoch(40));
    let told = Some(names(&[(1, 40)]));
    eventually("the epoch", || manager.renewals().iter().any(|renewal| renewal.storage_epochs == told)).await;
}

/// Fails at its third event.
struct Full(Arc<Mutex<Vec<Happening>>>);

impl SessionObserver for Full {
    fn observe(&mut self, event: &SessionEvent) -> Result<(), ObserverError> {
        let mut seen = self.0.lock().unwrap();
        if matches!(event.what, Happening::Started(shard, _) if shard.0 == 2) {
            return Err("no space left".into());
        }
        seen.push(event.what.clone());
        Ok(())
    }
}

#[tokio::test]
async fn an_observer_that_cannot_write_ends_the_session_before_the_work_it_could_not_note() {
    let manager = Manager::start(30_000, &[(1, 9), (2, 9), (3, 9)]).await;
    let (host, seen) = (Host::new(), Arc::default());
    let builder = ExecutorSession::builder("e".parse().unwrap(), host.clone()).observer(Full(Arc::clone(&seen)));
    let mut session = builder.managers([manager.address.to_string()]).start().await.unwrap();
    let end = session.ended().await;
    assert!(matches!(end, Err(Error::Observer(_))), "{end:?}");
    assert!(!host.has(&["start 2@9"]) && !host.has(&["start 3@9"]), "{:?}", host.log());
    let kinds: Vec<String> = seen.lock().unwrap().iter().map(|happening| format!("{happening:?}")).collect();
    let expected = ["Began", "Joined", "Leased", "Started", "Fenced"];
    assert!(kinds.iter().zip(expected).all(|(kind, expected)| kind.starts_with(expected)), "{kinds:?}");
    let joined = &seen.lock().unwrap()[1];
    assert!(matches!(joined, Happening::Joined { version, .. } if version.term.0 == 5), "by a manager of term 5: {joined:?}");
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_it_begins() {
    let builder = || ExecutorSession::builder("e".parse().unwrap(), Host::new());
    let text = async |builder: shard_manager::client::Builder<Host>| builder.start().await.unwrap_err().to_string();
    assert!(matches!(builder().start().await, Err(StartError::NoManager)));
    let builder = || builder().managers(["127.0.0.1:1"]);
    assert_eq!(text(builder().weight(0)).await, "weight 0 is refused: it must be 1 to 1000");
    assert_eq!(
        text(builder().managers(["https://x:1"])).await,
        "a manager's address \"https://x:1\" is refused: it must be host:port or http://host:port"
    );
    assert_eq!(
        text(builder().listen("0.0.0.0:0".parse().unwrap())).await,
        "0.0.0.0:0 is no address that a manager could reach: with it, an address to advertise must be given"
    );
    let session = builder().listen("0.0.0.0:0".parse().unwrap()).advertise("pod-3:7000").start().await.unwrap();
    assert_eq!(session.endpoint(), "http://pod-3:7000");
}
