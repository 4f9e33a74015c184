//! A process of an executor: the real ledger and pace, with workers that only take their time.

use std::collections::BTreeMap;
use std::time::Duration;

use shard_manager::assignment::command::{Answer as Answered, Refusal, Reply};
use shard_manager::assignment::event::{Claim, Departure, Registration, Renewal};
use shard_manager::client::ledger::{Action, Answer, Attempt, Ignored, Kind, Ledger, Push, PushRefusal, Verdict};
use shard_manager::client::pace::Pace;
use shard_manager::holdings::Holdings;
use shard_manager::types::{BootInstant, Epoch, ExecutorId, Incarnation, ShardId, Version};

use crate::context::{Call, Context, Message, Node};
use crate::guards::Guard;
use crate::random::{Clock, Instant, MS, span};

/// How long a process tries to deregister.
const FAREWELL: Duration = Duration::from_secs(2);

/// The work on one shard.
pub struct Worker {
    pub epoch: Epoch,
    /// Of a shard that is being stopped: the lease that it keeps (L6). Else the process's lease counts.
    deadline: Option<BootInstant>,
    /// When it will have stopped.
    stopped: Option<BootInstant>,
}

pub struct Process {
    pub at: usize,
    pub id: ExecutorId,
    pub endpoint: String,
    pub clock: Clock,
    pub paused_until: Instant,
    pub alive: bool,
    pub inbox: Vec<Message>,
    pub ledger: Ledger,
    pub workers: BTreeMap<ShardId, Worker>,
    lease: Option<BootInstant>,
    pace: Pace,
    /// The call in flight: its number, and when it is given up.
    call: Option<(u64, Attempt, BootInstant)>,
    calls: u64,
    managers: usize,
    manager: usize,
    failed_in_a_row: usize,
    /// The command that waits for shards to stop, and until when.
    waiting: Option<(usize, u64, BootInstant)>,
    leaving: bool,
    farewell: Option<BootInstant>,
}

impl Process {
    pub fn new(at: usize, id: ExecutorId, endpoint: String, managers: usize, context: &mut Context) -> Process {
        let clock = Clock::draw(&mut context.random);
        let incarnation = Incarnation(context.random.next() | 1);
        Process {
            at,
            endpoint,
            paused_until: 0,
            alive: true,
            inbox: Vec::new(),
            ledger: Ledger::new(id.clone(), incarnation),
            id,
            workers: BTreeMap::new(),
            lease: None,
            pace: Pace::new(clock.read(context.time)),
            clock,
            call: None,
            calls: 0,
            managers,
            manager: context.random.below(managers),
            failed_in_a_row: 0,
            waiting: None,
            leaving: false,
            farewell: None,
        }
    }

    pub fn leave(&mut self, context: &Context) {
        self.leaving = true;
        self.ledger.leave(self.clock.read(context.time));
    }

    /// A worker that returns unasked.
    pub fn give_up(&mut self, context: &mut Context) {
        let running: Vec<ShardId> = self.workers.keys().copied().collect();
        if let Some(worker) = context.random.pick(&running).and_then(|shard| self.workers.get_mut(&shard)) {
            worker.stopped.get_or_insert(self.clock.read(context.time));
        }
    }

    /// **P3.** Whether it works on a shard under a live lease, or works on it although it is awake.
    pub fn works_on(&self, shard: ShardId, time: Instant) -> bool {
        let Some(worker) = self.workers.get(&shard).filter(|_| self.alive) else { return false };
        let now = self.clock.read(time);
        let live = worker.deadline.or(self.lease).is_some_and(|deadline| now < deadline);
        live || self.paused_until == 0 && worker.deadline.or(self.lease).is_some_and(|deadline| now > deadline.after(span(MS)))
    }

    /// Takes in what arrived, does what is due; when it wants to run next.
    pub fn run(&mut self, context: &mut Context) -> Instant {
        let now = self.clock.read(context.time);
        self.ledger.look(now);
        self.carry_out(now, context);
        for message in std::mem::take(&mut self.inbox) {
            match message {
                Message::Answer { call, reply } => self.take_in_answer(now, call, reply, context),
                Message::Push { from, number, push } => self.take_in_push(now, from, number, push, context),
                _ => {}
            }
            self.carry_out(now, context);
        }
        if let Some((_, attempt, _)) = self.call.take_if(|(_, _, until)| *until <= now) {
            self.ledger.unanswered(now, &attempt, true);
            self.failed(now, true, context);
        }
        self.end_workers(now, context);
        if self.leaving && self.ledger.has_left() {
            self.leaving = false;
            self.stop(now);
        }
        if self.farewell.is_some_and(|until| until <= now) {
            self.ledger.deregistered();
        }
        self.carry_out(now, context);
        if self.waiting.is_some_and(|(_, _, until)| self.ledger.is_settled() || until <= now) {
            self.answer_push(context);
        }
        self.begin_call(now, context);
        if self.ledger.end().is_some() {
            context.log(|| format!("{} ended: {:?}", self.name(), self.ledger.end()));
            self.alive = false;
        }
        self.next(now)
    }

    pub fn stop(&mut self, now: BootInstant) {
        self.ledger.stop(now);
        if self.call.as_ref().is_none_or(|(_, attempt, _)| attempt.kind != Kind::Register) {
            self.call = None;
        } else {
            self.farewell.get_or_insert(now.after(FAREWELL));
        }
        self.pace.reset(now);
    }

    pub fn name(&self) -> String {
        format!("{}#{}({:x})", self.id, self.at, self.ledger.incarnation().0 >> 48)
    }

    fn next(&self, now: BootInstant) -> Instant {
        let call = match &self.call {
            Some((_, _, until)) => Some(*until),
            None => self.ledger.may_call().then(|| self.pace.due()),
        };
        let workers = self.workers.values().filter_map(|worker| worker.stopped).min();
        let own = [self.ledger.next_look(), call, workers, self.waiting.map(|it| it.2), self.farewell];
        let next = own.into_iter().flatten().min().map_or(Instant::MAX, |at| self.clock.when(at.max(now)));
        next.max(1)
    }

    fn begin_call(&mut self, now: BootInstant, context: &mut Context) {
        if self.call.is_some() {
            return;
        }
        if self.ledger.has_news() {
            self.pace.hurry(now);
        }
        if now < self.pace.due() {
            return;
        }
        let Some(attempt) = self.ledger.compose(now) else { return };
        if self.ledger.is_ending() {
            self.farewell.get_or_insert(now.after(FAREWELL));
        }
        let id = self.id.clone();
        let incarnation = attempt.incarnation;
        let body = match (attempt.kind, attempt.cluster_id) {
            (Kind::Register, before) => Call::Register(Registration {
                id,
                incarnation,
                endpoint: self.endpoint.clone(),
                weight: 1,
                before: before.map(|cluster_id| (cluster_id, attempt.mark)),
            }),
            (Kind::Renew, Some(cluster_id)) => Call::Renew(Renewal {
                id,
                incarnation,
                cluster_id,
                mark: attempt.mark,
                claim: match attempt.in_full {
                    true => Claim::Full(Holdings::clone(&attempt.claim)),
                    false => Claim::Digest(attempt.claim.digest()),
                },
                leaving: attempt.leaving,
                storage_epochs: attempt.storage_epochs.clone(),
            }),
            (Kind::Deregister, Some(cluster_id)) => Call::Deregister(Departure { id, incarnation, cluster_id }),
            // As a manager would refuse it.
            (kind, None) => {
                context.expect(false, || format!("{} calls to {kind:?} and does not know where it is known", self.name()));
                return self.ledger.deregistered();
            }
        };
        self.calls += 1;
        context.send(Node::Replica(self.manager), Message::Call { from: self.at, call: self.calls, body });
        self.call = Some((self.calls, attempt, now.after(self.pace.attempt_timeout())));
    }

    fn take_in_answer(&mut self, now: BootInstant, call: u64, reply: Option<Reply>, context: &mut Context) {
        let Some((_, mut attempt, _)) = self.call.take_if(|(number, _, _)| *number == call) else { return };
        let refusal = match reply {
            Some(Ok(Answered::Lease(lease))) => {
                let mut answer = Answer {
                    cluster_id: lease.cluster_id,
                    version: lease.version,
                    number_of_shards: lease.number_of_shards,
                    lease_ttl: lease.lease_ttl,
                    assignment: lease.assignment,
                    claim_wanted: lease.claim_wanted,
                };
                if context.guard == Some(Guard::CountsFromSending) {
                    attempt.sent = now;
                }
                if context.guard == Some(Guard::AnswersBelowTheMark) {
                    answer.version = answer.version.max(self.ledger.mark());
                }
                let (mark, told) = (self.ledger.mark(), lease.version);
                match self.ledger.answered(now, &attempt, answer) {
                    Ok(()) => {
                        context.expect(told >= mark, || format!("L3: {} took an answer of {told} at {mark}", self.name()));
                        self.failed_in_a_row = 0;
                        self.pace.succeeded(attempt.sent, lease.lease_ttl);
                    }
                    Err(Ignored::ClaimWanted) => self.pace.reset(now),
                    Err(Ignored::Outdated | Ignored::Foreign { .. }) => {}
                    Err(ignored @ (Ignored::Stale { .. } | Ignored::Late)) => {
                        let stale = matches!(ignored, Ignored::Stale { .. });
                        context.reached(if stale { "a stale answer was ignored" } else { "a late answer was ignored" });
                        self.failed(now, false, context);
                    }
                }
                return;
            }
            Some(Ok(_)) => return self.ledger.deregistered(),
            Some(Err(refusal)) => refusal,
            None => {
                self.ledger.unanswered(now, &attempt, false);
                return self.failed(now, true, context);
            }
        };
        let verdict = match (&refusal, attempt.kind) {
            (Refusal::Superseded { .. } | Refusal::UnknownExecutor { .. } | Refusal::WrongCluster { .. }, kind)
                if kind != Kind::Renew && self.ledger.is_ending() =>
            {
                return self.ledger.deregistered();
            }
            (Refusal::Superseded { .. }, _) => Verdict::Superseded,
            (Refusal::UnknownExecutor { .. }, _) => Verdict::UnknownExecutor,
            (Refusal::WrongCluster { .. }, Kind::Renew) => Verdict::WrongCluster,
            _ => {
                self.ledger.unanswered(now, &attempt, true);
                let elsewhere = !matches!(refusal, Refusal::LeaseEnding { .. } | Refusal::StoreUnavailable);
                return self.failed(now, elsewhere, context);
            }
        };
        context.log(|| format!("{} is refused: {refusal}", self.name()));
        context.reached(if verdict == Verdict::Superseded {
            "a process was superseded"
        } else {
            "a process had to register anew"
        });
        self.ledger.refused(now, &attempt, verdict, Incarnation(context.random.next() | 1));
        self.pace.reset(now);
    }

    fn failed(&mut self, now: BootInstant, elsewhere: bool, context: &mut Context) {
        self.failed_in_a_row += 1;
        if elsewhere {
            self.manager = (self.manager + 1) % self.managers;
        }
        let another = elsewhere && self.failed_in_a_row < self.managers;
        if !another {
            self.failed_in_a_row = 0;
        }
        self.pace.failed(now, context.random.between(0, 1000) as f64 / 1000.0, another);
    }

    fn take_in_push(&mut self, now: BootInstant, from: usize, number: u64, mut push: Push, context: &mut Context) {
        let (mark, told) = (self.ledger.mark(), push.version);
        if context.guard == Some(Guard::CommandsBelowTheMark) {
            push.version = push.version.max(mark);
        }
        match self.ledger.push(now, &push) {
            Ok(()) => {
                context.expect(told >= mark, || format!("P5: {} took a command of {told} at {mark}", self.name()));
                self.answer_push(context);
                self.waiting = Some((from, number, now.after(span(800 * MS))));
            }
            Err(refusal) => {
                context.reached(match refusal {
                    PushRefusal::StaleTerm { .. } => "a stale command bounced",
                    PushRefusal::WrongIncarnation { .. } => "a command for another incarnation bounced",
                    PushRefusal::LeaseOver => "a command without a lease bounced",
                    _ => "anything else",
                });
                context.send(Node::Replica(from), Message::Pushed { number, answer: Err(refusal) });
            }
        }
    }

    fn answer_push(&mut self, context: &mut Context) {
        if let Some((from, number, _)) = self.waiting.take() {
            let answer: (Version, Holdings) = (self.ledger.mark(), Holdings::clone(&self.ledger.held()));
            context.send(Node::Replica(from), Message::Pushed { number, answer: Ok(answer) });
        }
    }

    fn end_workers(&mut self, now: BootInstant, context: &mut Context) {
        let over = |worker: &Worker| worker.stopped.is_some_and(|stopped| stopped <= now);
        let ended: Vec<ShardId> = self.workers.iter().filter(|(_, worker)| over(worker)).map(|(shard, _)| *shard).collect();
        for shard in ended {
            if let Some(worker) = self.workers.remove(&shard) {
                context.log(|| format!("{} stopped {shard}@{}", self.name(), worker.epoch));
                self.ledger.ended(now, shard, worker.epoch);
            }
        }
    }

    /// Does what the ledger says.
    fn carry_out(&mut self, now: BootInstant, context: &mut Context) {
        loop {
            let actions = self.ledger.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Leased(until) => self.lease = Some(until),
                    Action::Start(shard, epoch) => {
                        context.log(|| format!("{} starts {shard}@{epoch}", self.name()));
                        context.started(shard, epoch, (&self.id, self.ledger.incarnation()));
                        let twice = self.workers.insert(shard, Worker { epoch, deadline: None, stopped: None });
                        context.expect(twice.is_none(), || format!("{} runs {shard} twice", self.name()));
                    }
                    Action::Stop(shard, _) => {
                        // Mostly at once; now and then it takes longer than its lease.
                        let takes = match context.random.below(if context.calm { 8 } else { 10 }) {
                            0..=5 => context.random.between(0, 5 * MS),
                            6 | 7 => context.random.between(0, 400 * MS),
                            _ => context.random.between(0, 6000 * MS),
                        };
                        if let Some(worker) = self.workers.get_mut(&shard) {
                            worker.deadline = self.lease;
                            worker.stopped = Some(now.after(span(takes)));
                        }
                    }
                    Action::Fence(shard, epoch) => {
                        let stopping = self.workers.get(&shard).is_some_and(|worker| worker.stopped.is_some());
                        match context.guard {
                            Some(Guard::SelfFence) => continue,
                            Some(Guard::ReleaseKeepsItsLease) if stopping => continue,
                            _ => {}
                        }
                        context.log(|| format!("{} fences {shard}@{epoch}", self.name()));
                        context.reached("an executor fenced itself");
                        self.workers.remove(&shard);
                        self.ledger.ended(now, shard, epoch);
                    }
                }
            }
        }
    }
}
