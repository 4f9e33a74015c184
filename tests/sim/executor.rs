//! A process of an executor: the real ledger and pace, with workers that only take their time.

use std::collections::BTreeMap;
use std::time::Duration;

use shard_manager::assignment::command::{Answer as Answered, Reply};
use shard_manager::assignment::event::{Departure, Registration};
use shard_manager::client::ledger::{Action, Attempt, Ignored, Kind, Ledger, Push, PushRefusal, Verdict};
use shard_manager::client::meaning::{Failure, Meaning};
use shard_manager::client::pace::Pace;
use shard_manager::holdings::Holdings;
use shard_manager::rpc::reason_of;
use shard_manager::types::{BootInstant, Epoch, ExecutorId, Incarnation, ShardId, Version};

use crate::context::{Call, Context, Message, Node, Who};
use crate::guards::Guard;
use crate::random::{Clock, Instant, MS, span};
use crate::words;

/// How long a process tries to deregister.
const FAREWELL: Duration = Duration::from_secs(2);

/// The work on one shard.
pub struct Worker {
    pub epoch: Epoch,
    /// Of a shard that is being stopped: the lease that it keeps (L6). Else the process's lease counts.
    deadline: Option<BootInstant>,
    /// When it will have stopped.
    stopped: Option<BootInstant>,
    /// Whom its writes are from.
    who: Who,
    /// When it writes next.
    writes: BootInstant,
    /// Whether the storage takes what it writes.
    pub is_taken: bool,
}

pub struct Process {
    pub at: usize,
    pub id: ExecutorId,
    pub endpoint: String,
    pub clock: Clock,
    pub paused_until: Instant,
    /// It was stopped in the middle of whatever it did.
    pub wakes_up: bool,
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
    pub leaving: bool,
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
            wakes_up: false,
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

    /// Whether this very incarnation works on a shard at an epoch.
    pub fn has(&self, shard: ShardId, epoch: Epoch, (id, incarnation): (&ExecutorId, Incarnation)) -> bool {
        let works = self.workers.get(&shard).is_some_and(|worker| worker.epoch == epoch);
        works && self.id == *id && self.ledger.incarnation() == incarnation
    }

    /// Takes in what arrived, does what is due; when it wants to run next.
    pub fn run(&mut self, context: &mut Context) -> Instant {
        let now = self.clock.read(context.time);
        if std::mem::take(&mut self.wakes_up) && context.random.per_mille(500) {
            self.write(now, context);
        }
        self.ledger.look(now);
        self.carry_out(now, context);
        for message in std::mem::take(&mut self.inbox) {
            match message {
                Message::Answer { call, reply } => self.take_in_answer(now, call, reply, context),
                Message::Push { from, number, push } => self.take_in_push(now, from, number, push, context),
                Message::Written { shard, epoch, refused } => self.take_in_written(shard, epoch, refused, context),
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
        self.write(now, context);
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
        let writes = self.workers.values().map(|worker| worker.writes).min();
        let own = [self.ledger.next_look(), call, workers, writes, self.waiting.map(|it| it.2), self.farewell];
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
            (Kind::Renew, Some(cluster_id)) => Call::Renew(words::renewal(id, cluster_id, &attempt)),
            (Kind::Deregister, Some(cluster_id)) => Call::Deregister(Departure { id, incarnation, cluster_id }),
            // As a manager would refuse it.
            (kind, None) => {
                context.expect(false, || format!("{} calls to {kind:?} and does not know where it is known", self.name()));
                return self.ledger.deregistered();
            }
        };
        self.calls += 1;
        let call = Message::Call { from: self.at, call: self.calls, body };
        context.send(Node::Process(self.at), Node::Replica(self.manager), call);
        self.call = Some((self.calls, attempt, now.after(self.pace.attempt_timeout())));
    }

    fn take_in_answer(&mut self, now: BootInstant, call: u64, reply: Option<Reply>, context: &mut Context) {
        let Some((_, mut attempt, _)) = self.call.take_if(|(number, _, _)| *number == call) else { return };
        let refusal = match reply {
            Some(Ok(Answered::Lease(lease))) => {
                let mut answer = words::answer(&lease);
                if context.guard == Some(Guard::CountsFromSending) {
                    attempt.sent = now;
                }
                if context.guard == Some(Guard::AnswersBelowTheMark) {
                    answer.version = answer.version.max(self.ledger.mark());
                }
                let (mark, told) = (self.ledger.mark(), lease.version);
                // Marks of different clusters do not compare.
                let is_own = self.ledger.cluster_id() == Some(lease.cluster_id);
                match self.ledger.answered(now, &attempt, answer) {
                    Ok(()) => {
                        context.expect(told >= mark || !is_own, || {
                            format!("L3: {} took an answer of {told} at {mark}", self.name())
                        });
                        self.failed_in_a_row = 0;
                        self.pace.succeeded(attempt.sent, lease.lease_ttl);
                    }
                    Err(Ignored::ClaimWanted) => self.pace.reset(now),
                    Err(Ignored::Foreign { named }) => {
                        context.expect(false, || format!("L12: cluster {named} answers the renewal of another one"));
                    }
                    Err(Ignored::Outdated) => {}
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
        let what = refusal.to_string();
        let reason = reason_of(&refusal.into());
        let verdict = match Meaning::of(reason.as_deref(), attempt.kind, self.ledger.is_ending()) {
            Meaning::Verdict(verdict) => verdict,
            Meaning::Gone => return self.ledger.deregistered(),
            Meaning::Rejected => return context.expect(false, || format!("{} is rejected: {what}", self.name())),
            Meaning::Failed(failure) => {
                self.ledger.unanswered(now, &attempt, true);
                return self.failed(now, failure != Failure::Later, context);
            }
        };
        context.log(|| format!("{} is refused: {what}", self.name()));
        context.reached(match verdict {
            Verdict::Superseded => "a process was superseded",
            Verdict::UnknownExecutor => "a process had to register anew",
            Verdict::WrongCluster => "a process found another cluster in the place of its own",
            Verdict::Removed => "a process was removed",
        });
        self.ledger.refused(now, &attempt, verdict, Incarnation(context.random.next() | 1));
        match verdict {
            Verdict::Removed => self.pace.removed(now, context.random.between(0, 1000) as f64 / 1000.0),
            _ => self.pace.reset(now),
        }
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
        let (cluster_id, own) = (push.cluster_id, self.ledger.cluster_id());
        if context.guard == Some(Guard::CommandsBelowTheMark) {
            push.version = push.version.max(mark);
        }
        match self.ledger.push(now, &push) {
            Ok(()) => {
                context.expect(Some(cluster_id) == own, || format!("L12: {} took a command of {cluster_id}", self.name()));
                context.expect(told >= mark, || format!("P5: {} took a command of {told} at {mark}", self.name()));
                self.answer_push(context);
                self.waiting = Some((from, number, now.after(span(800 * MS))));
            }
            Err(refusal) => {
                context.reached(match refusal {
                    PushRefusal::StaleTerm { .. } => "a stale command bounced",
                    PushRefusal::WrongIncarnation { .. } => "a command for another incarnation bounced",
                    PushRefusal::LeaseOver => "a command without a lease bounced",
                    PushRefusal::WrongCluster { .. } => "a command of another cluster bounced",
                    _ => "anything else",
                });
                let answer = Message::Pushed { number, answer: Err(refusal) };
                context.send(Node::Process(self.at), Node::Replica(from), answer);
            }
        }
    }

    fn answer_push(&mut self, context: &mut Context) {
        if let Some((from, number, _)) = self.waiting.take() {
            let answer: (Version, Holdings) = (self.ledger.mark(), Holdings::clone(&self.ledger.held()));
            context.send(Node::Process(self.at), Node::Replica(from), Message::Pushed { number, answer: Ok(answer) });
        }
    }

    /// What works on shards writes now and then.
    fn write(&mut self, now: BootInstant, context: &mut Context) {
        for (shard, worker) in self.workers.iter_mut().filter(|(_, worker)| worker.writes <= now) {
            worker.writes = now.after(span(context.random.between(100 * MS, 600 * MS)));
            let (epoch, writer) = (worker.epoch, worker.who.clone());
            let write = Message::Write { from: self.at, shard: *shard, epoch, writer };
            context.send(Node::Process(self.at), Node::Storage, write);
        }
    }

    fn take_in_written(&mut self, shard: ShardId, epoch: Epoch, refused: Option<Epoch>, context: &mut Context) {
        if let Some(worker) = self.workers.get_mut(&shard).filter(|worker| worker.epoch == epoch) {
            worker.is_taken = refused.is_none();
        }
        let Some(seen) = refused else { return };
        context.log(|| format!("the storage refuses {} shard {shard}@{epoch}: it has seen {seen}", self.name()));
        let works = self.workers.contains_key(&shard);
        context.reached(if works { "the storage refused a write" } else { "the storage refused what had been fenced" });
        if context.guard != Some(Guard::StorageRefusals) {
            self.ledger.storage_has_seen(shard, seen);
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
                        let who = (self.id.clone(), self.ledger.incarnation());
                        context.started(shard, epoch, &who);
                        let worker = Worker { epoch, deadline: None, stopped: None, who, writes: now, is_taken: false };
                        let twice = self.workers.insert(shard, worker);
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
