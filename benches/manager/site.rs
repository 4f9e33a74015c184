//! Two managers over one place that keeps the leadership: who leads and who waits.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;

use crate::cluster::{Process, eventually, table};
use crate::guarantees;
use crate::support::etcd::Etcd;
use crate::support::free_address;
use crate::support::postgres::Postgres;

pub const SHARDS: u32 = 1024;
pub const TTL: Duration = Duration::from_millis(guarantees::TTL as u64);
/// How long a leader on one host may stand still.
pub const GRACE: Duration = Duration::from_millis(guarantees::GRACE as u64);
/// How long a successor has waited when its leader goes, at the least.
pub const QUEUED: Duration = Duration::from_secs(1);
/// What every key of the measured cluster begins with.
pub const QUEUE: &str = "/shard-manager/leader/";

/// What keeps state and leadership.
pub enum Ground {
    /// A server of its own.
    Etcd(Etcd),
    /// A server of its own.
    Postgres(Postgres),
    /// A SQLite file in the site's directory.
    Host,
}

impl Ground {
    fn settings(&self) -> Vec<String> {
        match self {
            Ground::Etcd(server) => {
                vec!["persistence.type=etcd".to_owned(), format!("persistence.etcd.endpoints={}", server.endpoints().join(","))]
            }
            Ground::Postgres(server) => {
                vec!["persistence.type=postgres".to_owned(), format!("persistence.postgres.url={}", server.url())]
            }
            Ground::Host => vec![format!("leadership.host.grace={}s", GRACE.as_secs())],
        }
    }
}

/// As figures name it.
impl fmt::Display for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ground::Etcd(_) => "etcd",
            Ground::Postgres(_) => "PostgreSQL",
            Ground::Host => "SQLite",
        })
    }
}

/// Two seats for managers, one of them the leader's.
pub struct Site {
    // Before the ground, so that processes end first.
    pub leader: Process,
    pub ground: Ground,
    directory: TempDir,
    pub seats: [SocketAddr; 2],
    leads: usize,
    executor_lease: &'static str,
}

impl Site {
    /// A leader that serves. Executors have leases of that length.
    pub async fn start(ground: Ground, executor_lease: &'static str) -> Site {
        let (directory, seats) = (tempfile::tempdir().unwrap(), [free_address(), free_address()]);
        let (leader, _) = serve(&ground, &directory, seats[0], executor_lease);
        table(seats[0]).await;
        Site { leader, ground, directory, seats, leads: 0, executor_lease }
    }

    pub fn leader_address(&self) -> SocketAddr {
        self.seats[self.leads]
    }

    /// A standby that has waited for so long.
    pub async fn successor(&self) -> Process {
        let (standby, http) = serve(&self.ground, &self.directory, self.seats[1 - self.leads], self.executor_lease);
        match &self.ground {
            Ground::Etcd(server) => {
                eventually("a successor in the queue", async || (server.keys(QUEUE).await.len() == 2).then_some(())).await;
            }
            Ground::Postgres(_) | Ground::Host => {
                eventually("a successor that knows its leader", async || {
                    let status = reqwest::get(format!("http://{http}/status")).await.ok()?;
                    let status: serde_json::Value = status.json().await.ok()?;
                    (status["role"] == "standby" && status["leader"].is_string()).then_some(())
                })
                .await;
            }
        }
        tokio::time::sleep(QUEUED).await;
        standby
    }

    /// From now on the other seat is the leader's.
    pub fn pass_on(&mut self) {
        self.leads = 1 - self.leads;
    }
}

fn serve(ground: &Ground, directory: &TempDir, seat: SocketAddr, executor_lease: &str) -> (Process, SocketAddr) {
    let http = free_address();
    let mut sets = vec![
        format!("number_of_shards={SHARDS}"),
        format!("grpc.listen={seat}"),
        format!("http.listen={http}"),
        format!("leadership.lease_ttl={}s", TTL.as_secs()),
        format!("executors.lease_ttl={executor_lease}"),
    ];
    sets.extend(ground.settings());
    (Process::serve(directory.path(), &format!("manager-{}", seat.port()), &sets), http)
}
