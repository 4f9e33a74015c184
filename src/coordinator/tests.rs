//! The coordinator with the real engine, over a store whose every answer the test gives.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Call, Error, Failure, Handle, Parts, run};
use crate::assignment::command::{Answer, Refusal};
use crate::assignment::event::{Event, Registration, Settings, Takeover};
use crate::assignment::state::Changes;
use crate::assignment::{Engine, command::LeaseAnswer};
use crate::backend::Fence;
use crate::clock;
use crate::election::Belief;
use crate::executors::{self, Executors};
use crate::metrics::Metrics;
use crate::published::Published;
use crate::store::{self, Limits, Loaded, Store};
use crate::types::{ClusterId, Incarnation, Revision, Token};

/// Everything in these tests happens well within this, or not at all.
const SOON: Duration = Duration::from_secs(5);

type Outcome = Result<Revision, store::Error>;

/// Passes every commit on to the test, which answers it.
struct Scripted(mpsc::UnboundedSender<(Changes, oneshot::Sender<Outcome>)>);

#[async_trait::async_trait]
impl Store for Scripted {
    async fn load(&self) -> Result<Option<Loaded>, store::Error> {
        Ok(None)
    }

    async fn commit(&self, _: &Fence, _: Option<Revision>, changes: &Changes) -> Outcome {
        let (answer, answered) = oneshot::channel();
        self.0.send((changes.clone(), answer)).unwrap();
        answered.await.unwrap()
    }

    fn limits(&self) -> Limits {
        Limits { pages: 100 }
    }
}

struct Leader {
    handle: Handle,
    commits: mpsc::UnboundedReceiver<(Changes, oneshot::Sender<Outcome>)>,
    published: Arc<Published>,
    stopping: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
    revision: u64,
}

impl Leader {
    /// With the first commit durable and the port open.
    async fn start(patience: Duration) -> Leader {
        let (commits, committed) = mpsc::unbounded_channel();
        let stopping = CancellationToken::new();
        let (handle, calls) = Handle::new(stopping.clone(), patience);
        let (reports, reported) = mpsc::channel(16);
        let (metrics, published) = (Arc::new(Metrics::new().unwrap()), Arc::new(Published::default()));
        let settings = Settings {
            lease_ttl: Duration::from_secs(600),
            settle_time: Duration::from_secs(300),
            calm_time: Duration::ZERO,
            rebalance_threshold: 0.1,
            exclusive_ids: false,
            turn_interval: Duration::from_secs(1),
            takeover_grace: Duration::ZERO,
            max_pages_per_commit: 100,
        };
        let takeover =
            Takeover { token: Token(1), unix_ms: 1, new_cluster: ClusterId(uuid::Uuid::from_u128(7)), number_of_shards: 8 };
        let links = executors::Settings { command_timeout: SOON, probe_interval: SOON, probe_timeout: SOON, number_of_shards: 8 };
        let parts = Parts {
            engine: Engine::new(settings, takeover, None, clock::now()),
            store: Arc::new(Scripted(commits)),
            fence: Fence::Sql { number: 1, token: Token(1) },
            belief: Belief(tokio::sync::watch::channel(clock::now().after(Duration::from_secs(600))).1),
            store_patience: Duration::from_secs(600),
            pulse: crate::election::Pulse::new(),
            calls,
            reports: reported,
            executors: Executors::new(links, reports.clone(), Arc::clone(&metrics), CancellationToken::new(), TaskTracker::new()),
            published: Arc::clone(&published),
            metrics,
            stopping: stopping.clone(),
        };
        let task = tokio::spawn(run(parts));
        let mut leader = Leader { handle, commits: committed, published, stopping, task, revision: 0 };
        leader.land().await;
        timeout(SOON, leader.published.first()).await.expect("the first state is published soon");
        reports.send(Event::PortOpened).await.unwrap();
        leader
    }

    async fn commit(&mut self) -> (Changes, oneshot::Sender<Outcome>) {
        timeout(SOON, self.commits.recv()).await.expect("a commit comes soon").unwrap()
    }

    /// Lets the next commit land.
    async fn land(&mut self) {
        let (_, answer) = self.commit().await;
        self.answer(answer);
    }

    fn answer(&mut self, answer: oneshot::Sender<Outcome>) {
        self.revision += 1;
        answer.send(Ok(Revision(self.revision))).unwrap();
    }

    fn register(&self, id: &str) -> JoinHandle<Result<Answer, Failure>> {
        let registration = Registration {
            id: id.parse().unwrap(),
            incarnation: Incarnation(1),
            endpoint: "http://127.0.0.1:9".to_owned(),
            weight: 1,
            before: None,
        };
        let handle = self.handle.clone();
        tokio::spawn(async move { handle.call(Call::Register(registration)).await })
    }

    fn knows(&self, id: &str) -> bool {
        let edition = self.published.current().unwrap();
        edition.snapshot.state.executors().any(|(_, record)| record.id.as_str() == id)
    }
}

async fn lease(call: JoinHandle<Result<Answer, Failure>>) -> LeaseAnswer {
    match timeout(SOON, call).await.expect("an answer comes soon").unwrap().unwrap() {
        Answer::Lease(lease) => lease,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn calls_that_arrive_during_a_commit_share_the_next_one() {
    let mut leader = Leader::start(SOON).await;
    let first = leader.register("a");
    let (_, answer) = leader.commit().await;
    let (second, third) = (leader.register("b"), leader.register("c"));
    // Both have arrived once a call that came after them is answered, which reads and takes no commit.
    tokio::task::yield_now().await;
    leader.handle.call(Call::Inspect).await.unwrap();
    leader.answer(answer);
    let first = lease(first).await;
    leader.land().await;
    let (second, third) = (lease(second).await, lease(third).await);
    assert_eq!((first.version.revision, second.version.revision), (Revision(2), Revision(3)));
    assert_eq!(second.version, third.version, "one commit for both");
}

#[tokio::test]
async fn a_caller_that_goes_away_in_the_middle_of_a_commit_changes_nothing_about_it() {
    let mut leader = Leader::start(SOON).await;
    let gone = leader.register("a");
    let (_, answer) = leader.commit().await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    leader.answer(answer);
    let next = leader.register("b");
    leader.land().await;
    assert_eq!(lease(next).await.version.revision, Revision(3), "no conflict");
    assert!(leader.knows("a") && leader.knows("b"));
}

#[tokio::test]
async fn a_failed_commit_is_told_to_its_callers_and_shown_to_nobody() {
    let mut leader = Leader::start(SOON).await;
    let before = leader.published.current().unwrap().snapshot.version;
    let call = leader.register("a");
    let (_, answer) = leader.commit().await;
    answer.send(Err(store::Error::Unavailable { what: "test", source: "gone".into() })).unwrap();
    assert_eq!(call.await.unwrap(), Err(Failure::Refused(Refusal::StoreUnavailable)));
    assert_eq!(leader.published.current().unwrap().snapshot.version, before);
    let again = leader.register("a");
    leader.land().await;
    lease(again).await;
}

#[tokio::test]
async fn who_waits_too_long_is_told_so_and_the_commit_goes_on() {
    let mut leader = Leader::start(Duration::from_millis(50)).await;
    let call = leader.register("a");
    let (_, answer) = leader.commit().await;
    let failure = call.await.unwrap().unwrap_err();
    assert!(matches!(failure, Failure::TooSlow(_)));
    // It is said to readers too, so it must not speak of writing.
    let text = failure.to_string();
    assert!(text.contains("overloaded, or its store is slow") && !text.contains("writ"), "{text}");
    leader.answer(answer);
    timeout(SOON, async {
        while !leader.knows("a") {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .expect("it lands");
}

#[tokio::test]
async fn a_stop_sees_the_commit_in_flight_through_and_takes_in_nothing_new() {
    let mut leader = Leader::start(SOON).await;
    let call = leader.register("a");
    let (_, answer) = leader.commit().await;
    leader.stopping.cancel();
    assert_eq!(leader.register("b").await.unwrap(), Err(Failure::Stopping));
    assert!(!leader.task.is_finished());
    leader.answer(answer);
    lease(call).await;
    timeout(SOON, &mut leader.task).await.expect("it ends").unwrap().unwrap();
    assert!(leader.knows("a"));
}

#[tokio::test]
async fn a_fenced_commit_ends_the_coordinator_and_nobody_hears_ok() {
    let mut leader = Leader::start(SOON).await;
    let call = leader.register("a");
    let (_, answer) = leader.commit().await;
    answer.send(Err(store::Error::LeadershipLost)).unwrap();
    let ended = timeout(SOON, &mut leader.task).await.expect("it ends").unwrap();
    assert!(matches!(ended, Err(Error::LeadershipLost)));
    assert_eq!(call.await.unwrap(), Err(Failure::Cut), "it was taken in");
}
