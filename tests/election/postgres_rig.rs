//! Candidates on PostgreSQL, and what can be seen of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use shard_manager::backend::Fence;
use shard_manager::backend::postgres::{Server, Settings};
use shard_manager::config::{Postgres as Keys, Secret};
use shard_manager::election::postgres::{Options, PostgresElection};
use shard_manager::election::{Candidacy, Election, Error, Leadership, Patience, Pulse};
use tokio_util::sync::CancellationToken;

use crate::rig::{Standing, deadline};
use crate::support::etcd::PATIENCE;
use crate::support::etcd::eventually;
use crate::support::postgres::Postgres;

/// What sessions of ours call themselves.
pub const OURS: &str = "shard-manager %";

/// One process that wants to lead.
pub struct Candidate {
    pub election: Arc<PostgresElection>,
    pub pulse: Pulse,
    failures: Arc<AtomicUsize>,
}

pub fn server(postgres: &Postgres, address: SocketAddr, request_timeout: Duration) -> Arc<Server> {
    server_of(postgres.url_at(address), request_timeout)
}

pub fn server_of(url: String, request_timeout: Duration) -> Arc<Server> {
    let keys = Keys {
        url: Some(Secret::new(url)),
        schema: "managers".to_owned(),
        password: None,
        password_file: None,
        ca_file: None,
        cert_file: None,
        key_file: None,
    };
    Server::new(Settings::from_config(&keys, request_timeout).unwrap())
}

impl Candidate {
    /// One that reaches the server directly.
    pub fn new(name: &str, postgres: &Postgres, ttl: Duration) -> Candidate {
        Candidate::at(name, postgres, postgres.address, ttl)
    }

    /// One that reaches the server at some other address.
    pub fn at(name: &str, postgres: &Postgres, address: SocketAddr, ttl: Duration) -> Candidate {
        Candidate::with(name, server(postgres, address, ttl / 2), ttl, Patience::Wait)
    }

    pub fn with(name: &str, server: Arc<Server>, ttl: Duration, patience: Patience) -> Candidate {
        let (pulse, failures) = (Pulse::new(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&failures);
        let options = Options {
            ttl,
            candidacy: Candidacy {
                holder: name.to_owned(),
                pulse: pulse.clone(),
                patience,
                announce_every: Duration::from_secs(30),
                on_failure: Arc::new(move || {
                    counted.fetch_add(1, Ordering::Relaxed);
                }),
            },
        };
        Candidate { election: Arc::new(PostgresElection::new(server, options).unwrap()), pulse, failures }
    }

    pub fn failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }

    /// Campaigns until it has an outcome.
    pub async fn campaigns(&self) -> Result<Leadership, Error> {
        let never = CancellationToken::new();
        tokio::time::timeout(PATIENCE, self.election.campaign(&never)).await.expect("an outcome in time")
    }

    pub async fn wins(&self) -> Leadership {
        self.campaigns().await.unwrap()
    }

    /// Campaigns in the background.
    pub fn stands(&self) -> Standing {
        let (shutdown, election) = (CancellationToken::new(), Arc::clone(&self.election));
        let token = shutdown.clone();
        Standing { shutdown, task: tokio::spawn(async move { election.campaign(&token).await }) }
    }

    /// Campaigns in the background, and waits until it listens behind `leader`.
    pub async fn waits(&self, postgres: &Postgres, leader: &str) -> Standing {
        let standing = self.stands();
        let mut seen = self.election.leader().unwrap();
        let seen = seen.wait_for(|seen| seen.as_deref() == Some(leader));
        tokio::time::timeout(PATIENCE, seen).await.expect("it sees who leads").unwrap();
        eventually("a standby that listens", async || (listeners(postgres).await > 0).then_some(())).await;
        standing
    }
}

/// How many sessions listen. What they ran last is the LISTEN, or the question whether they still hear.
pub async fn listeners(postgres: &Postgres) -> usize {
    let waiting = "SELECT pid FROM pg_stat_activity WHERE application_name = 'shard-manager waiting' AND state = 'idle' \
         AND (query ILIKE 'LISTEN%' OR query ILIKE 'SELECT 1%')";
    postgres.column(waiting).await.len()
}

/// The row's number and holder, and whether it is over.
pub async fn row(postgres: &Postgres) -> Option<(i64, String, bool)> {
    let row = "SELECT concat_ws('|', number, holder, expires_at <= clock_timestamp()) FROM managers.leader";
    let row = postgres.column(row).await.pop()?;
    let mut fields = row.split('|');
    Some((fields.next()?.parse().unwrap(), fields.next()?.to_owned(), fields.next()? == "t"))
}

/// Until when the row lasts from now on, in milliseconds; negative where that is over.
pub async fn left_ms(postgres: &Postgres) -> i64 {
    let left = "SELECT (extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint FROM managers.leader";
    postgres.column(left).await[0].parse().unwrap()
}

pub fn number(leadership: &Leadership) -> i64 {
    let Fence::Sql { number, .. } = leadership.fence() else { panic!("{:?}", leadership.fence()) };
    *number
}

/// The leadership is still held after `time`, here and in the database.
pub async fn assert_held_for(postgres: &Postgres, leadership: &mut Leadership, time: Duration) {
    if let Ok(lost) = tokio::time::timeout(time, leadership.lost()).await {
        panic!("{lost}");
    }
    let (number_now, _, is_over) = row(postgres).await.unwrap();
    assert_eq!((number_now, is_over), (number(leadership), false));
    assert!(deadline(leadership) > shard_manager::clock::now());
}
