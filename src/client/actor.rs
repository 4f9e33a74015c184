//! The one task of a session: it reads the clock, asks the ledger, and does what the ledger says.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::DropGuard;
use tonic::Status;

use super::call::{Call, Caller, Reply, may_have_arrived};
use super::control::Control;
use super::error::Error;
use super::host::{ShardGrant, ShardHost};
use super::ledger::{Action, Attempt, End, Ignored, Kind, Ledger, Verdict};
use super::lookout::{self, Lease, Lookout};
use super::managers::Managers;
use super::meaning::{Failure, Meaning};
use super::observer::{Happening, SessionEvent, SessionObserver};
use super::pace::Pace;
use super::server::Delivery;
use super::tally::{Mishaps, Tally};
use super::wire;
use super::workers::{Ended, Workers};
use crate::clock;
use crate::rpc::{ApplyAssignmentResponse, LeaseAnswer, reason_of};
use crate::types::{BootInstant, ExecutorId, Incarnation, MAX_NUMBER};

/// How long the session tries to deregister before it ends without.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long everything else waits for futures that are being dropped. Longer means that one blocks its thread: it stays *held*.
const FENCING: Duration = Duration::from_millis(250);
/// How long connections may take to close at the end.
const CLOSING: Duration = Duration::from_millis(500);

/// What an actor is made of.
pub struct Parts<H> {
    pub id: ExecutorId,
    pub incarnation: Incarnation,
    pub host: H,
    pub observer: Box<dyn SessionObserver>,
    pub managers: Managers,
    /// As the manager gets it.
    pub endpoint: String,
    pub weight: u32,
    /// For the grants.
    pub controls: mpsc::UnboundedSender<Control>,
    pub control_receiver: mpsc::UnboundedReceiver<Control>,
    pub deliveries: mpsc::Receiver<Delivery>,
    /// The server's task.
    pub serving: JoinHandle<Result<(), tonic::transport::Error>>,
    /// Ends it, when dropped.
    pub shutdown: DropGuard,
}

/// See the module.
pub struct Actor<H> {
    id: ExecutorId,
    ledger: Ledger,
    workers: Workers<H>,
    observer: Box<dyn SessionObserver>,
    managers: Managers,
    pace: Pace,
    lookout: Lookout,
    caller: Caller,
    controls: mpsc::UnboundedSender<Control>,
    control_receiver: mpsc::UnboundedReceiver<Control>,
    deliveries: mpsc::Receiver<Delivery>,
    serving: JoinHandle<Result<(), tonic::transport::Error>>,
    shutdown: DropGuard,
    /// The call in flight.
    call: Option<(Kind, Call)>,
    /// The command that waits for shards to stop; only the newest does.
    waiting: Option<Waiting>,
    mishaps: Mishaps,
    /// The incarnation that was last seen to begin.
    begun: Option<Incarnation>,
    /// The incarnation that was last seen to join.
    joined: Option<Incarnation>,
    leave_by: Option<BootInstant>,
    /// How many shards it had when it stopped.
    held_at_stop: usize,
    farewell_by: Option<BootInstant>,
    /// It ends without a word to the manager, so that its shards stay its own.
    is_restarting: bool,
}

struct Waiting {
    reply: oneshot::Sender<Result<ApplyAssignmentResponse, Status>>,
    until: BootInstant,
}

enum Event {
    Ended(Ended),
    Answered(Attempt, Result<Reply, Status>),
    Control(Control),
    Delivered(Delivery),
    ServerEnded(Option<tonic::transport::Error>),
    Time,
}

impl<H: ShardHost> Actor<H> {
    /// Registers as soon as it runs.
    pub fn new(parts: Parts<H>) -> Actor<H> {
        Actor {
            ledger: Ledger::new(parts.id.clone(), parts.incarnation),
            workers: Workers::new(parts.host),
            observer: parts.observer,
            managers: parts.managers,
            pace: Pace::new(clock::now()),
            lookout: Lookout::default(),
            caller: Caller { id: parts.id.clone(), endpoint: parts.endpoint, weight: parts.weight },
            id: parts.id,
            controls: parts.controls,
            control_receiver: parts.control_receiver,
            deliveries: parts.deliveries,
            serving: parts.serving,
            shutdown: parts.shutdown,
            call: None,
            waiting: None,
            mishaps: Mishaps::default(),
            begun: None,
            joined: None,
            leave_by: None,
            held_at_stop: 0,
            farewell_by: None,
            is_restarting: false,
        }
    }

    /// Until the end.
    pub async fn run(mut self) -> Result<(), Error> {
        let end = self.work().await;
        // Where it ends in order, none is left.
        self.workers.fence_all();
        while self.workers.is_fencing() {
            let ended = self.workers.ended().await;
            // The observer may be what failed; the end that stands is the first.
            let _ = self.note_end(clock::now(), ended);
        }
        self.mishaps.tell(&self.id);
        drop(self.waiting);
        drop(self.deliveries);
        drop(self.shutdown);
        if tokio::time::timeout(CLOSING, &mut self.serving).await.is_err() {
            self.serving.abort();
        }
        end
    }

    async fn work(&mut self) -> Result<(), Error> {
        loop {
            self.leave_in_time(clock::now());
            self.end_in_time(clock::now());
            self.mishaps.tell_in_time(clock::now(), &self.id);
            self.catch_up().await?;
            let now = clock::now();
            self.answer_command(now);
            self.begin_call(now)?;
            match self.ledger.end() {
                None => {}
                Some(End::Stopped) => {
                    tracing::info!(executor = %self.id, shards = self.held_at_stop, "left; shards that were still held then were stopped");
                    return Ok(());
                }
                Some(End::Superseded) => return Err(Error::Superseded { id: self.id.clone() }),
            }
            let event = self.next_event().await;
            // What is over ends before anything is taken in, however long this process was stopped.
            self.catch_up().await?;
            self.take_in(event)?;
        }
    }

    async fn next_event(&mut self) -> Event {
        let wake = self.wake();
        let call = async {
            match &mut self.call {
                Some((_, call)) => call.await,
                None => std::future::pending().await,
            }
        };
        let timer = async {
            match wake {
                Some(at) => clock::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ended = self.workers.ended() => Event::Ended(ended),
            (attempt, result) = call => Event::Answered(attempt, result),
            Some(control) = self.control_receiver.recv() => Event::Control(control),
            Some(delivery) = self.deliveries.recv() => Event::Delivered(delivery),
            end = &mut self.serving => Event::ServerEnded(end.ok().and_then(Result::err)),
            () = timer => Event::Time,
        }
    }

    fn wake(&self) -> Option<BootInstant> {
        let call = (self.call.is_none() && self.ledger.may_call()).then(|| self.pace.due());
        let waiting = self.waiting.as_ref().map(|waiting| waiting.until);
        [self.ledger.next_look(), call, waiting, self.leave_by, self.farewell_by, self.mishaps.due()].into_iter().flatten().min()
    }

    /// Ends what is over, and does what the ledger says. After a fence nothing goes on before the futures are dropped.
    async fn catch_up(&mut self) -> Result<(), Error> {
        self.ledger.look(clock::now());
        if !self.carry_out()? {
            return Ok(());
        }
        let patience = tokio::time::sleep(FENCING);
        tokio::pin!(patience);
        while self.workers.is_fencing() {
            tokio::select! {
                biased;
                ended = self.workers.ended() => self.take_in(Event::Ended(ended))?,
                () = &mut patience => {
                    tracing::error!("the lease ran out, and the work on a shard blocks its thread: it cannot be dropped and stays held");
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether something was fenced.
    fn carry_out(&mut self) -> Result<bool, Error> {
        let mut fenced = Tally::default();
        for action in self.ledger.take_actions() {
            match action {
                Action::Fence(shard, _) => {
                    self.workers.fence(shard);
                    fenced.add(shard);
                }
                Action::Leased(until) => {
                    if let Some(cluster_id) = self.ledger.cluster_id()
                        && self.joined.replace(self.ledger.incarnation()) != Some(self.ledger.incarnation())
                    {
                        self.observe(Happening::Joined { cluster_id, version: self.ledger.mark() })?;
                    }
                    self.observe(Happening::Leased { until })?;
                }
                Action::Stop(shard, _) => self.workers.stop(shard),
                Action::Start(shard, epoch) => {
                    // A shard is only ever started under a lease, which a cluster granted.
                    let Some(cluster_id) = self.ledger.cluster_id() else { continue };
                    self.observe(Happening::Started(shard, epoch))?;
                    let (token, controls) = (self.workers.token(), self.controls.clone());
                    self.workers.start(ShardGrant { cluster_id, shard, epoch, token, controls });
                }
            }
        }
        if !fenced.is_empty() {
            tracing::warn!(executor = %self.id, "the lease on {fenced} ran out; the work is ended");
        }
        Ok(!fenced.is_empty())
    }

    fn take_in(&mut self, event: Event) -> Result<(), Error> {
        let now = clock::now();
        match event {
            Event::Ended(ended) => {
                let (shard, epoch) = (ended.shard, ended.epoch);
                // Written down before it can be told to anyone.
                self.note_end(now, ended)?;
                self.ledger.ended(now, shard, epoch);
            }
            Event::Answered(attempt, result) => {
                self.call = None;
                match result {
                    Ok(Reply::Lease(answer)) => self.take_in_answer(now, &attempt, &answer),
                    Ok(Reply::Deregistered) => self.ledger.deregistered(),
                    Err(status) => self.take_in_refusal(now, &attempt, &status)?,
                }
            }
            Event::Control(Control::Leave(timeout)) => {
                if self.leave_by.is_some() {
                    return self.take_in(Event::Control(Control::Stop));
                }
                tracing::info!(executor = %self.id, ?timeout, "leaving: the manager is asked to move every shard away");
                self.ledger.leave(now);
                self.leave_by = Some(now.after(timeout));
            }
            Event::Control(Control::Stop) => self.stop(now),
            Event::Control(Control::Restart) => {
                self.is_restarting = true;
                self.stop(now);
            }
            Event::Control(Control::StorageEpoch(shard, epoch)) => {
                if shard.0 < self.ledger.number_of_shards() && (1..=MAX_NUMBER).contains(&epoch.0) {
                    self.ledger.storage_has_seen(shard, epoch);
                } else {
                    self.mishaps.epoch_refused(now, shard);
                }
            }
            Event::Delivered(delivery) => self.take_in_command(now, delivery),
            Event::ServerEnded(source) => return Err(Error::Server(source)),
            Event::Time => {}
        }
        self.carry_out().map(|_| ())
    }

    fn take_in_answer(&mut self, now: BootInstant, attempt: &Attempt, answer: &LeaseAnswer) {
        let answer = match wire::answer(answer) {
            Ok(answer) => answer,
            Err(invalid) => {
                if !self.pace.is_failing() {
                    tracing::error!(manager = self.managers.url(), %invalid, "the manager's answer breaks a rule and is ignored");
                }
                return self.failed(now, attempt, Failure::Later, &invalid);
            }
        };
        let lease_ttl = answer.lease_ttl;
        match self.ledger.answered(now, attempt, answer) {
            Ok(()) => {
                if attempt.kind == Kind::Register {
                    let (incarnation, manager) = (attempt.incarnation, self.managers.url());
                    tracing::info!(executor = %self.id, %incarnation, manager, ?lease_ttl, "registered");
                    if self.lookout.admitted() {
                        tracing::info!(executor = %self.id, "an operator admitted this executor again");
                    }
                }
                self.found(now);
                self.managers.worked();
                self.pace.succeeded(attempt.sent, lease_ttl);
            }
            Err(Ignored::ClaimWanted) => self.pace.reset(now),
            Err(Ignored::Foreign { named }) => {
                tracing::warn!(executor = %self.id, cluster_id = %named, "the manager belongs to another cluster; registering anew");
                self.ledger.refused(now, attempt, Verdict::WrongCluster, Incarnation::draw());
                self.pace.reset(now);
            }
            Err(Ignored::Outdated) => {}
            Err(ignored @ (Ignored::Stale { .. } | Ignored::Late)) => {
                self.failed(now, attempt, Failure::Later, &ignored);
            }
        }
    }

    fn take_in_refusal(&mut self, now: BootInstant, attempt: &Attempt, status: &Status) -> Result<(), Error> {
        let verdict = match Meaning::of(reason_of(status).as_deref(), attempt.kind, self.ledger.is_ending()) {
            Meaning::Verdict(Verdict::Removed) => {
                self.removed(now, attempt, status.message());
                return Ok(());
            }
            Meaning::Verdict(verdict) => verdict,
            Meaning::Gone => {
                self.ledger.deregistered();
                return Ok(());
            }
            Meaning::Rejected => return Err(Error::Rejected { message: status.message().to_owned() }),
            Meaning::Failed(failure) => {
                self.ledger.unanswered(now, attempt, may_have_arrived(status));
                self.failed(now, attempt, failure, &format_args!("{:?}: {}", status.code(), status.message()));
                return Ok(());
            }
        };
        self.found(now);
        self.held_at_stop = self.ledger.held().len(); // If it was leaving, this is its end.
        tracing::warn!(executor = %self.id, incarnation = %attempt.incarnation, ?verdict, message = status.message(), "refused; it stops every shard");
        self.ledger.refused(now, attempt, verdict, Incarnation::draw());
        self.pace.reset(now);
        if verdict == Verdict::Superseded {
            self.observe(Happening::Superseded)?;
        }
        Ok(())
    }

    /// An operator removed this executor. It stops what it holds, and asks again in no hurry: one day it may be admitted.
    fn removed(&mut self, now: BootInstant, attempt: &Attempt, message: &str) {
        self.found(now);
        self.held_at_stop = self.ledger.held().len(); // If it was leaving, this is its end.
        if self.lookout.removed(now) {
            tracing::warn!(
                executor = %self.id, message,
                "removed: it stops every shard, and goes on asking whether it may register, and says so once a minute"
            );
        }
        self.ledger.refused(now, attempt, Verdict::Removed, Incarnation::draw());
        self.pace.removed(now, rand::random());
    }

    fn take_in_command(&mut self, now: BootInstant, Delivery { request, reply }: Delivery) {
        let pushed =
            wire::push(&request).map_err(Status::from).and_then(|push| self.ledger.push(now, &push).map_err(Status::from));
        match pushed {
            Ok(()) => {
                // A newer command overtakes.
                self.answer_now();
                self.waiting = Some(Waiting { reply, until: now.after(Duration::from_millis(request.wait_ms)) });
            }
            // A sender that is gone wants no answer.
            Err(status) => drop(reply.send(Err(status))),
        }
    }

    fn answer_command(&mut self, now: BootInstant) {
        if self.ledger.is_settled() || self.waiting.as_ref().is_some_and(|waiting| waiting.until <= now) {
            self.answer_now();
        }
    }

    fn answer_now(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            let (mark, held) = (self.ledger.mark(), self.ledger.held());
            let response = ApplyAssignmentResponse { mark: Some(mark.into()), held: Some(held.as_ref().into()) };
            let _ = waiting.reply.send(Ok(response));
        }
    }

    fn leave_in_time(&mut self, now: BootInstant) {
        if self.leave_by.is_some_and(|until| self.ledger.has_left() || until <= now) {
            self.stop(now);
        }
    }

    fn end_in_time(&mut self, now: BootInstant) {
        if self.is_restarting && self.ledger.held().is_empty() {
            self.ledger.deregistered();
        }
        if self.farewell_by.is_some_and(|until| until <= now) {
            self.farewell_by = None;
            tracing::warn!(executor = %self.id, "could not deregister; the manager notices when the lease runs out");
            self.ledger.deregistered();
        }
    }

    fn stop(&mut self, now: BootInstant) {
        self.leave_by = None;
        self.held_at_stop = self.ledger.held().len();
        self.ledger.stop(now);
        if self.call.as_ref().is_some_and(|(kind, _)| *kind == Kind::Register) {
            // It may have arrived, so the answer is waited for: it says from which cluster to deregister.
            self.farewell_by.get_or_insert(now.after(FAREWELL));
        } else {
            // An answer to a renewal no longer matters, and the farewell must not wait for it.
            self.call = None;
        }
        self.pace.reset(now);
    }

    fn begin_call(&mut self, now: BootInstant) -> Result<(), Error> {
        if self.call.is_some() {
            return Ok(());
        }
        if self.ledger.has_news() {
            self.pace.hurry(now);
        }
        if now < self.pace.due() {
            return Ok(());
        }
        let Some(attempt) = self.ledger.compose(now) else { return Ok(()) };
        if attempt.kind == Kind::Register && self.begun.replace(attempt.incarnation) != Some(attempt.incarnation) {
            self.observe(Happening::Began)?;
        }
        if self.ledger.is_ending() {
            self.farewell_by.get_or_insert(now.after(FAREWELL));
        }
        let (kind, client, timeout) = (attempt.kind, self.managers.client(), self.pace.attempt_timeout());
        self.call = Some((kind, self.caller.begin(client, attempt, timeout)));
        Ok(())
    }

    /// An attempt came to nothing: the next one is due here or at the next address, sooner or later.
    fn failed(&mut self, now: BootInstant, attempt: &Attempt, failure: Failure, why: &dyn std::fmt::Display) {
        let (id, call) = (&self.id, attempt.kind);
        tracing::debug!(executor = %id, manager = self.managers.url(), ?call, %why, "a call to the manager failed");
        // Only a manager gives a reason: the connection is good then.
        let has_another = failure != Failure::Later && self.managers.failed(failure == Failure::Unanswered);
        self.pace.failed(now, rand::random(), has_another);
        if call != Kind::Deregister
            && let Some(away) = self.lookout.failed(now, attempt.sent, has_another)
        {
            let lease = Lease(self.ledger.lease().map(|until| until.since(now)));
            lookout::tell_lost(id, failure, &self.managers.urls(), away, &lease, why);
        }
    }

    fn found(&mut self, now: BootInstant) {
        if let Some(after) = self.lookout.found(now) {
            tracing::info!(executor = %self.id, manager = self.managers.url(), "a manager answers, after {after:.1?}");
        }
    }

    fn note_end(&mut self, now: BootInstant, ended: Ended) -> Result<(), Error> {
        let Ended { shard, epoch, is_fenced, is_unasked, panic } = ended;
        if is_unasked || panic.is_some() {
            self.mishaps.ended(now, shard, panic);
        }
        self.observe(if is_fenced { Happening::Fenced(shard, epoch) } else { Happening::Stopped(shard, epoch) })
    }

    fn observe(&mut self, what: Happening) -> Result<(), Error> {
        let event = SessionEvent { at: clock::now(), executor_id: self.id.clone(), incarnation: self.ledger.incarnation(), what };
        self.observer.observe(&event).map_err(Error::Observer)
    }
}
