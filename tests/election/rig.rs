//! Candidates, and what can be seen of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shard_manager::backend::Fence;
use shard_manager::backend::etcd::{Members, Settings};
use shard_manager::election::etcd::{EtcdElection, Options};
use shard_manager::election::{Belief, Candidacy, Election, Error, Leadership, Lost, Patience, Pulse};
use shard_manager::types::BootInstant;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::etcd::{Etcd, PATIENCE, eventually};

/// Where the elections of these tests take place.
pub const QUEUE: &str = "/test/leader/";

/// What a machine with two busy cores may be late by.
pub const SLACK: Duration = Duration::from_millis(400);

/// One process that wants to lead.
pub struct Candidate {
    pub election: Arc<EtcdElection>,
    pub pulse: Pulse,
    failures: Arc<AtomicUsize>,
}

pub fn settings(endpoints: Vec<String>, request_timeout: Duration) -> Settings {
    Settings { endpoints, ca_file: None, identity_files: None, credentials: None, request_timeout }
}

impl Candidate {
    pub fn new(name: &str, endpoints: Vec<String>, ttl: u64, request_timeout: Duration) -> Candidate {
        Candidate::with(name, &settings(endpoints, request_timeout), ttl)
    }

    pub fn with(name: &str, settings: &Settings, ttl: u64) -> Candidate {
        let (pulse, failures) = (Pulse::new(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&failures);
        let options = Options {
            prefix: "/test/".to_owned(),
            ttl: Duration::from_secs(ttl),
            candidacy: Candidacy {
                holder: name.to_owned(),
                pulse: pulse.clone(),
                patience: Patience::Wait,
                announce_every: Duration::from_millis(100),
                on_failure: Arc::new(move || {
                    counted.fetch_add(1, Ordering::Relaxed);
                }),
            },
        };
        let election = EtcdElection::new(Arc::new(Members::new(settings).unwrap()), options).unwrap();
        Candidate { election: Arc::new(election), pulse, failures }
    }

    pub fn failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }

    /// Campaigns until it has won.
    pub async fn wins(&self) -> Leadership {
        tokio::time::timeout(PATIENCE, self.election.campaign(&CancellationToken::new())).await.expect("a win in time").unwrap()
    }

    /// Campaigns in the background.
    pub fn stands(&self) -> Standing {
        let (shutdown, election) = (CancellationToken::new(), Arc::clone(&self.election));
        let token = shutdown.clone();
        Standing { shutdown, task: tokio::spawn(async move { election.campaign(&token).await }) }
    }
}

/// A campaign in the background.
pub struct Standing {
    pub shutdown: CancellationToken,
    pub task: JoinHandle<Result<Leadership, Error>>,
}

impl Standing {
    pub async fn wins(self) -> Leadership {
        tokio::time::timeout(PATIENCE, self.task).await.expect("a win in time").unwrap().unwrap()
    }

    /// Asks it to end, and expects that it does within a second.
    pub async fn stops(self) {
        let asked = Instant::now();
        self.shutdown.cancel();
        let outcome = tokio::time::timeout(PATIENCE, self.task).await.expect("an end in time").unwrap();
        assert!(matches!(outcome.map(|_| ()), Err(Error::Cancelled)));
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    }
}

/// Waits until as many wait or lead, and says which lease each has, first come first.
pub async fn queue_of(etcd: &Etcd, length: usize) -> Vec<i64> {
    let leases = async || Some(etcd.keys(QUEUE).await).filter(|keys| keys.len() == length);
    eventually("the queue", leases).await.iter().map(|key| key.lease()).collect()
}

/// The queue is empty half a second later, and nothing keeps a lease alive. (A lease without a key, of a grant that arrived after its
/// own revocation, blocks nobody and runs out.)
pub async fn assert_nothing_left(etcd: &Etcd) {
    let since = Instant::now();
    let mut client = etcd.client().await;
    eventually("an empty queue", async || etcd.keys(QUEUE).await.is_empty().then_some(())).await;
    assert!(since.elapsed() < Duration::from_millis(500), "{:?}", since.elapsed());
    eventually("no lease", async || client.leases().await.unwrap().leases().is_empty().then_some(())).await;
}

pub fn key_of(leadership: &Leadership) -> (String, i64) {
    let Fence::Etcd { key, creation_revision, .. } = leadership.fence() else { panic!("{:?}", leadership.fence()) };
    (key.clone(), *creation_revision)
}

pub fn lease_of(leadership: &Leadership) -> i64 {
    let (key, _) = key_of(leadership);
    i64::from_str_radix(key.strip_prefix(QUEUE).unwrap(), 16).unwrap()
}

pub fn deadline(leadership: &Leadership) -> BootInstant {
    leadership.belief().deadline()
}

pub fn deadlines(leadership: &Leadership) -> tokio::sync::watch::Receiver<BootInstant> {
    let Belief(receiver) = leadership.belief();
    receiver
}

pub async fn lost(leadership: &mut Leadership) -> Lost {
    tokio::time::timeout(PATIENCE, leadership.lost()).await.expect("a loss in time")
}

/// The leadership is still held after `time`, here and at etcd.
pub async fn assert_held_for(etcd: &Etcd, leadership: &mut Leadership, time: Duration) {
    if let Ok(lost) = tokio::time::timeout(time, leadership.lost()).await {
        panic!("{lost}");
    }
    let (key, revision) = key_of(leadership);
    let kept = eventually("a read", async || etcd.client().await.get(key.clone(), None).await.ok()).await;
    assert_eq!(kept.kvs().first().map(|key| key.create_revision()), Some(revision));
    assert!(deadline(leadership) > shard_manager::clock::now());
}
