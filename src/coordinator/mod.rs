//! The one task that owns the [`Engine`]: it takes a batch of events, runs the commands that come out, and feeds the results back.
//!
//! ```text
//!  Handle::call ──bounded──►┐                    ┌──► Commit     one future, polled beside everything else (commit.rs)
//!  links, probes ─bounded──►├─ batch ─► Engine ──┼──► Publish    published.rs: readers never come here
//!  commit's result ────────►┤                    ├──► Send       executors/: a queue of one, never waited for
//!  next_turn ──────────────►┘                    └──► Reply      oneshot; a caller that left is nobody's problem
//! ```
//!
//! One commit is in flight at a time and carries everything that arrived meanwhile (group commit). A commit belongs to this task,
//! not to its callers: whoever goes away, it completes and its result is taken in.

mod commit;
mod notice;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::assignment::command::{Answer, Command, ExecutorState, Notice, Refusal, Reply};
use crate::assignment::event::{Demand, Departure, Event, Question, Registration, Renewal, RequestId};
use crate::assignment::record::Wish;
use crate::assignment::{Engine, command::Cause};
use crate::backend::Fence;
use crate::clock;
use crate::election::{Belief, Pulse};
use crate::executors::Executors;
use crate::metrics::Metrics;
use crate::published::Published;
use crate::store::{self, Store};
use crate::types::{BootInstant, ExecutorId, Version};

/// How many calls wait for the coordinator before callers are held back.
const QUEUE: usize = 4096;
/// How many events one batch takes in, so that a flood of calls cannot put off the turn.
const BATCH: usize = 1024;

/// The least time between two turns that nothing but the clock asks for: whatever the engine says is due, this task never spins.
const LEAST_REST: Duration = Duration::from_millis(1);

/// How often executors are counted at the most, since that looks at each of them. A turn that comes sooner leaves it to the next one, which
/// is never far.
const EXECUTORS_EVERY: Duration = Duration::from_millis(100);

/// What can be asked of the coordinator. Every field is valid by itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// See [`Event::Register`].
    Register(Registration),
    /// See [`Event::Renew`].
    Renew(Renewal),
    /// See [`Event::Deregister`].
    Deregister(Departure),
    /// See [`Event::Wish`].
    Wish(ExecutorId, Wish),
    /// See [`Event::Demand`].
    Demand(Demand),
    /// See [`Event::Ask`].
    Ask(Question),
    /// See [`Event::Heard`].
    Heard(Version),
    /// See [`Event::Inspect`].
    Inspect,
}

impl Call {
    pub(crate) fn into_event(self, id: RequestId) -> Event {
        match self {
            Call::Register(registration) => Event::Register(id, registration),
            Call::Renew(renewal) => Event::Renew(id, renewal),
            Call::Deregister(departure) => Event::Deregister(id, departure),
            Call::Wish(executor, wish) => Event::Wish(id, executor, wish),
            Call::Demand(demand) => Event::Demand(id, demand),
            Call::Ask(question) => Event::Ask(id, question),
            Call::Heard(version) => Event::Heard(id, version),
            Call::Inspect => Event::Inspect(id),
        }
    }
}

/// Why a call got no answer of the engine's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The engine refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// This process stops leading: nothing new is taken in, and this was not.
    #[error("this manager is stopping")]
    Stopping,
    /// This process stopped leading before there was an answer. What was asked may still become durable.
    #[error("this manager stopped before it could answer; a change may still take effect")]
    Cut,
    /// There is no answer yet. What was asked goes on, and may still become durable.
    #[error(
        "no answer after {0:?}: this manager is overloaded, or its store is slow; what was asked goes on, and a change may still take effect"
    )]
    TooSlow(Duration),
}

/// Why the coordinator ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The fence refused a commit.
    #[error("a commit was refused: another process leads, or did since")]
    LeadershipLost,
    /// The time until which this process may believe that it leads passed while a commit was not settled.
    #[error("a commit was not settled before the leadership's deadline")]
    Expired,
    /// The store holds something that it must not.
    #[error("the store failed")]
    Store(#[source] store::Error),
    /// The store has taken no commit for as long as a leader bears with that.
    #[error("the store has taken no commit for too long")]
    StoreGone(#[source] store::Error),
    /// The link or the probe of an executor ended.
    #[error("a task that serves an executor ended")]
    Executors(#[source] tokio::task::JoinError),
}

/// How calls reach the coordinator. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    calls: mpsc::Sender<(Call, oneshot::Sender<Reply>)>,
    stopping: CancellationToken,
    patience: Duration,
}

impl Handle {
    /// A handle and the queue behind it. Calls fail with [`Failure::Stopping`] once `stopping` is cancelled, and with
    /// [`Failure::TooSlow`] after `patience`.
    pub fn new(stopping: CancellationToken, patience: Duration) -> (Handle, Calls) {
        let (calls, queue) = mpsc::channel(QUEUE);
        (Handle { calls, stopping, patience }, Calls(queue))
    }

    /// Asks, and waits for the answer: what is answered `Ok` is durable. Dropping the future takes nothing back.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn call(&self, call: Call) -> Result<Answer, Failure> {
        if self.is_stopping() {
            return Err(Failure::Stopping);
        }
        let (reply, answer) = oneshot::channel();
        let asked = async {
            self.calls.send((call, reply)).await.map_err(|_| Failure::Stopping)?;
            // The coordinator drops the other end only when it ends.
            answer.await.map_err(|_| Failure::Cut)?.map_err(Failure::Refused)
        };
        tokio::time::timeout(self.patience, asked).await.unwrap_or(Err(Failure::TooSlow(self.patience)))
    }

    /// Whether this manager takes in nothing new any more.
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Waits until this manager takes in nothing new any more. Cancel-safe.
    pub async fn stopping(&self) {
        self.stopping.cancelled().await;
    }
}

/// The calls that wait for the coordinator.
pub struct Calls(mpsc::Receiver<(Call, oneshot::Sender<Reply>)>);

#[cfg(any(test, shard_manager_fuzzing))]
impl Calls {
    /// The next call, and who waits for its answer: for whoever stands in the coordinator's place.
    pub(crate) fn take(&mut self) -> Option<(Call, oneshot::Sender<Reply>)> {
        self.0.try_recv().ok()
    }
}

/// What the coordinator works with.
pub struct Parts {
    /// The mind of this leadership.
    pub engine: Engine,
    /// Where the state goes.
    pub store: Arc<dyn Store>,
    /// The precondition of every write.
    pub fence: Fence,
    /// Until when the leadership may be believed in (L4).
    pub belief: Belief,
    /// How long commits may fail, without one that lands in between, before the leadership ends (see [`Error::StoreGone`]).
    pub store_patience: Duration,
    /// Beaten at every turn, so that whoever keeps the leadership alive sees that somebody acts on it.
    pub pulse: Pulse,
    /// From the API.
    pub calls: Calls,
    /// From links, probes, and whoever opens the port.
    pub reports: mpsc::Receiver<Event>,
    /// Links and probes.
    pub executors: Executors,
    /// What readers see.
    pub published: Arc<Published>,
    /// What operators see.
    pub metrics: Arc<Metrics>,
    /// Cancelled when nothing new is to be taken in.
    pub stopping: CancellationToken,
}

type Commit = Pin<Box<dyn Future<Output = Result<Event, Error>> + Send>>;

struct Coordinator {
    parts: Parts,
    waiting: HashMap<RequestId, oneshot::Sender<Reply>>,
    next_request: u64,
    commit: Option<Commit>,
    /// Since when commits fail without one that landed in between, and when the last one was sent or failed.
    failing: Option<(BootInstant, BootInstant)>,
    unserved: BTreeMap<Cause, u32>,
    counted_until: BootInstant,
    /// When executors were counted last.
    executors_counted: BootInstant,
}

/// Runs until `stopping` is cancelled and the commit that was in flight then is settled; or until the leadership or the store
/// fails. Links and probes have ended when this returns; where it is dropped instead, they are aborted.
///
/// # Errors
/// See [`Error`].
pub async fn run(parts: Parts) -> Result<(), Error> {
    let mut coordinator = Coordinator {
        parts,
        waiting: HashMap::new(),
        next_request: 0,
        commit: None,
        failing: None,
        unserved: BTreeMap::new(),
        counted_until: clock::now(),
        executors_counted: BootInstant::default(),
    };
    let ended = coordinator.work().await;
    let ended = match ended {
        Ok(()) => coordinator.settle().await,
        Err(error) => Err(error),
    };
    coordinator.parts.executors.shutdown().await;
    ended
}

impl Coordinator {
    async fn work(&mut self) -> Result<(), Error> {
        let stopping = self.parts.stopping.clone();
        // The first turn commits the new term; it waits for nothing.
        self.turn(Vec::new());
        while let Some(batch) = stopping.run_until_cancelled(self.batch()).await {
            self.turn(batch?);
        }
        Ok(())
    }

    /// Waits until there is something to do, and takes in what else has arrived.
    async fn batch(&mut self) -> Result<Vec<Event>, Error> {
        let mut batch = Vec::new();
        let due = self.parts.engine.next_turn().max(self.counted_until.after(LEAST_REST));
        tokio::select! {
            biased;
            settled = settled(&mut self.commit) => {
                let event = settled?;
                let failed = matches!(event, Event::CommitFailed);
                self.failing = self.failing.filter(|_| failed).map(|(since, _)| (since, clock::now()));
                batch.push(event);
            }
            error = self.parts.executors.failed() => return Err(Error::Executors(error)),
            Some(report) = self.parts.reports.recv() => batch.push(report),
            Some((call, reply)) = self.parts.calls.0.recv() => batch.push(self.admit(call, reply)),
            () = clock::sleep_until(due) => {}
        }
        // Messages that are already here are read before anything is called over, however late this turn is (L9).
        while batch.len() < BATCH
            && let Ok(report) = self.parts.reports.try_recv()
        {
            batch.push(report);
        }
        while batch.len() < 2 * BATCH
            && let Ok((call, reply)) = self.parts.calls.0.try_recv()
        {
            batch.push(self.admit(call, reply));
        }
        Ok(batch)
    }

    fn admit(&mut self, call: Call, reply: oneshot::Sender<Reply>) -> Event {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        self.waiting.insert(id, reply);
        call.into_event(id)
    }

    /// Everything here happens without waiting. The deadline and the clock are read after the events were (L4).
    fn turn(&mut self, batch: Vec<Event>) {
        self.parts.pulse.beat();
        let deadline = self.parts.belief.deadline();
        let now = clock::now();
        self.parts.engine.believe_until(deadline);
        for event in batch.into_iter().chain([Event::Turn]) {
            let commands = self.parts.engine.step(now, event);
            self.execute(commands);
        }
        self.count(now);
    }

    fn execute(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Commit { expected, changes } => {
                    debug_assert!(self.commit.is_none(), "one commit at a time");
                    let Parts { store, fence, belief, metrics, .. } = &self.parts;
                    let (store, metrics) = (Arc::clone(store), Arc::clone(metrics));
                    let (fence, belief) = (fence.clone(), belief.clone());
                    let give_up = self.give_up();
                    self.commit = Some(Box::pin(commit::settle(store, fence, belief, give_up, metrics, expected, changes)));
                }
                Command::Publish(snapshot) => {
                    self.parts.metrics.version(snapshot.version);
                    self.parts.metrics.rebalancing_paused(snapshot.state.meta.pause.as_ref().map(|pause| pause.until_unix_ms));
                    self.parts.published.publish(snapshot);
                }
                Command::Connect(peer) => self.parts.executors.connect(peer),
                Command::Send(assignment) => self.parts.executors.send(assignment),
                Command::Disconnect(slot) => self.parts.executors.disconnect(slot),
                Command::Reply(id, reply) => {
                    if let Some(caller) = self.waiting.remove(&id) {
                        // A caller that went away needs no answer; what it asked for is done all the same.
                        drop(caller.send(reply));
                    }
                }
                Command::Notice(notice) => {
                    self.parts.metrics.notice(&notice);
                    notice::log(&notice);
                }
            }
        }
    }

    /// When a commit that is sent now is not tried again. A failure of long ago says nothing about the time since.
    fn give_up(&mut self) -> BootInstant {
        let (now, patience) = (clock::now(), self.parts.store_patience);
        let since = self.failing.filter(|(_, last)| now.since(*last) < patience / 2).map_or(now, |(since, _)| since);
        self.failing = Some((since, now));
        since.after(patience)
    }

    /// Brings the gauges up to date, and adds up shard-seconds: since the last turn things stood as that turn left them.
    fn count(&mut self, now: BootInstant) {
        let metrics = &self.parts.metrics;
        let passed = now.since(self.counted_until).as_secs_f64();
        self.counted_until = now;
        for (cause, shards) in self.unserved.iter().filter(|(_, shards)| **shards > 0) {
            metrics.unserved(*cause, f64::from(*shards) * passed);
        }
        let unserved = self.parts.engine.unserved();
        if self.unserved != *unserved {
            for cause in Cause::ALL {
                metrics.unserved_shards(cause, unserved.get(&cause).copied().unwrap_or(0));
            }
            self.unserved.clone_from(unserved);
        }
        if now.since(self.executors_counted) >= EXECUTORS_EVERY {
            let statistics = self.parts.engine.statistics();
            for state in ExecutorState::ALL {
                metrics.executors(state, statistics.executors.get(&state).copied().unwrap_or(0));
            }
            self.executors_counted = now;
        }
    }

    /// Nothing new is taken in; the commit in flight is seen to its end, and its callers get their answers.
    async fn settle(&mut self) -> Result<(), Error> {
        if self.commit.is_none() {
            return Ok(());
        }
        let event = settled(&mut self.commit).await?;
        self.parts.engine.believe_until(self.parts.belief.deadline());
        let commands = self.parts.engine.step(clock::now(), event);
        // No executor hears of it from this process any more, and no turn follows. Nor did it stall: it waited for the commit alone.
        let wanted = |command: &Command| match command {
            Command::Connect(_) | Command::Send(_) | Command::Disconnect(_) | Command::Commit { .. } => false,
            Command::Notice(notice) => !matches!(notice, Notice::Stalled { .. }),
            _ => true,
        };
        self.execute(commands.into_iter().filter(wanted).collect());
        Ok(())
    }
}

/// The result of the commit in flight; never, where there is none. Cancel-safe: the commit stays where it is.
async fn settled(commit: &mut Option<Commit>) -> Result<Event, Error> {
    match commit {
        None => std::future::pending().await,
        Some(running) => {
            let result = running.await;
            *commit = None;
            result
        }
    }
}

#[cfg(test)]
mod tests;
