//! An executor: the real ledger, and work on the one shard that ends when it is told to, or hangs.

use shard_manager::assignment::command::{Answer as Answered, Refusal, Reply};
use shard_manager::assignment::event::Registration;
use shard_manager::client::ledger::{Action, Answer, Attempt, Ignored, Kind, Ledger, Push, PushRefusal, Verdict};
use shard_manager::holdings::Holdings;
use shard_manager::types::{BootInstant, Epoch, ExecutorId, Incarnation, Version};

use crate::guards::Guard;
use crate::message::{Call, Clock, Message, Output, Outputs};
use crate::shared::Shared;
use crate::words;

/// Room for the calls of one tick in a call's number, which names the tick: so histories that come to the same look the same.
const ROOM: u64 = 16;
/// How many calls an executor makes in one tick at the most: one, and one more where it has news.
const CALLS_PER_TICK: u64 = 2;

#[derive(Clone, Debug)]
pub struct Executor {
    at: usize,
    pub paused: bool,
    ledger: Ledger,
    lease: Option<BootInstant>,
    worker: Option<Worker>,
    call: Option<(u64, Attempt)>,
    last_call: u64,
    /// The command that waits for the shard to stop.
    waiting: Option<(usize, u64, Version)>,
}

#[derive(Clone, Debug)]
struct Worker {
    epoch: Epoch,
    is_stopping: bool,
    /// Of a shard that is being stopped: the lease that it keeps (L6). Else the executor's lease counts.
    deadline: Option<BootInstant>,
}

/// What happens to an executor.
#[derive(Clone, Debug, Hash)]
pub enum Input {
    /// It looks at its clock.
    Look,
    /// It gives up the call that it waits for, if any, and makes the next one.
    Call {
        to: usize,
    },
    Message(Shared<Message>),
    /// The work that was to stop has stopped.
    Stopped,
    Pause,
    Wake,
}

/// The name of an executor.
pub fn id(executor: usize) -> ExecutorId {
    format!("e{executor}").parse().expect("a name")
}

/// Where it serves.
pub fn endpoint(executor: usize) -> String {
    format!("http://127.0.0.1:{}", 1000 + executor)
}

impl Executor {
    pub fn new(at: usize) -> Executor {
        Executor {
            at,
            paused: false,
            ledger: Ledger::new(id(at), Incarnation(at as u64 + 1)),
            lease: None,
            worker: None,
            call: None,
            last_call: 0,
            waiting: None,
        }
    }

    /// **P3.** Whether it works on the shard: while it is awake, for as long as the ledger lets it; and under a live lease in any case.
    pub fn works(&self, clock: Clock) -> bool {
        let Some(worker) = &self.worker else { return false };
        !self.paused || worker.deadline.or(self.lease).is_some_and(|deadline| clock.now() < deadline)
    }

    pub fn is_stopping(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| worker.is_stopping)
    }

    /// The number of the call that it waits for.
    pub fn awaits(&self) -> Option<u64> {
        self.call.as_ref().map(|(number, _)| *number)
    }

    /// Forgets how often it called.
    pub fn rested(&self) -> Executor {
        Executor { last_call: 0, ..self.clone() }
    }

    /// Whether it makes a call now: once a tick, and once more where it has news and the call before was answered. Calls are given up
    /// from the next tick on.
    pub fn calls(&self, clock: Clock) -> Option<Kind> {
        let calls = (self.last_call + 1).saturating_sub(u64::from(clock.tick) * ROOM);
        let again = calls < CALLS_PER_TICK && self.call.is_none() && self.ledger.has_news();
        if (calls > 0 && !again) || !self.ledger.may_call() {
            return None;
        }
        self.ledger.clone().compose(clock.now()).map(|attempt| attempt.kind)
    }

    pub fn is_at_rest(&self) -> bool {
        self.call.is_none() && !self.ledger.has_news()
    }

    pub fn take(&self, clock: Clock, input: &Input, guard: Option<Guard>) -> (Executor, Outputs) {
        let (mut executor, mut out) = (self.clone(), Outputs::default());
        match input {
            Input::Pause => executor.paused = true,
            Input::Wake => executor.paused = false,
            _ => {}
        }
        if !executor.paused {
            executor.act(clock, input, guard, &mut out);
        }
        (executor, out)
    }

    fn act(&mut self, clock: Clock, input: &Input, guard: Option<Guard>, out: &mut Outputs) {
        self.ledger.look(clock.now());
        self.carry_out(clock, guard, out);
        self.end_late(clock, guard);
        match input {
            Input::Call { to } => self.make_call(clock, *to, out),
            Input::Stopped => {
                if let Some(worker) = self.worker.take() {
                    self.ledger.ended(clock.now(), crate::SHARD, worker.epoch);
                }
            }
            Input::Message(message) => match &**message {
                Message::Answer { number, reply, .. } => self.take_in_answer(clock, *number, reply, guard, out),
                Message::Push { from, leadership, push, .. } => self.take_in_push(clock, (*from, *leadership), push, out),
                _ => {}
            },
            Input::Look | Input::Pause | Input::Wake => {}
        }
        self.carry_out(clock, guard, out);
        if self.ledger.is_settled()
            && let Some((to, leadership, version)) = self.waiting.take()
        {
            let answer = (self.ledger.mark(), Holdings::clone(&self.ledger.held()));
            out.send(Message::Pushed { to, leadership, from: self.at, version, answer: Ok(answer) });
        }
        // What is not kept, or made when asked for, is not to tell two executors apart.
        self.lease = self.lease.filter(|_| self.ledger.lease().is_some());
        if self.call.is_none() && self.last_call < u64::from(clock.tick) * ROOM {
            self.last_call = 0;
        }
        self.ledger.held();
    }

    /// Without its rule, work that was to stop lasts as long as the lease that came with the word.
    fn end_late(&mut self, clock: Clock, guard: Option<Guard>) {
        let is_over = |worker: &mut Worker| worker.deadline.is_some_and(|deadline| deadline <= clock.now());
        if guard == Some(Guard::AnswersWithdrawFirst)
            && let Some(worker) = self.worker.take_if(is_over)
        {
            self.ledger.ended(clock.now(), crate::SHARD, worker.epoch);
        }
    }

    fn make_call(&mut self, clock: Clock, to: usize, out: &mut Outputs) {
        if let Some((_, attempt)) = self.call.take() {
            self.ledger.unanswered(clock.now(), &attempt, true);
        }
        let Some(attempt) = self.ledger.compose(clock.now()) else { return };
        let (id, incarnation) = (id(self.at), attempt.incarnation);
        let body = match (attempt.kind, attempt.cluster_id) {
            (Kind::Renew, Some(cluster_id)) => Call::Renew(words::renewal(id, cluster_id, &attempt)),
            (_, before) => {
                let before = before.map(|cluster_id| (cluster_id, attempt.mark));
                Call::Register(Registration { id, incarnation, endpoint: endpoint(self.at), weight: 1, before })
            }
        };
        self.last_call = (self.last_call + 1).max(u64::from(clock.tick) * ROOM);
        let number = self.last_call;
        out.send(Message::Call { from: self.at, to, number, body });
        self.call = Some((number, attempt));
    }

    fn take_in_answer(&mut self, clock: Clock, number: u64, reply: &Reply, guard: Option<Guard>, out: &mut Outputs) {
        let Some((_, mut attempt)) = self.call.take_if(|(awaited, _)| *awaited == number) else { return };
        match reply {
            Ok(Answered::Lease(lease)) => {
                let mut version = lease.version;
                if guard == Some(Guard::AnswersBelowTheMark) {
                    version = version.max(self.ledger.mark());
                }
                if guard == Some(Guard::CountsFromSending) {
                    attempt.sent = clock.now();
                }
                let answer = Answer { version, ..words::answer(lease) };
                match self.ledger.answered(clock.now(), &attempt, answer) {
                    Err(Ignored::Stale { .. }) => out.reached("a stale answer was ignored"),
                    Err(Ignored::Late) => out.reached("a late answer was ignored"),
                    _ => {}
                }
            }
            Err(Refusal::UnknownExecutor { .. } | Refusal::Superseded { .. }) => {
                out.reached("an executor has to register anew");
                let next = Incarnation(attempt.incarnation.0 + 2);
                self.ledger.refused(clock.now(), &attempt, Verdict::UnknownExecutor, next);
            }
            _ => self.ledger.unanswered(clock.now(), &attempt, true),
        }
    }

    fn take_in_push(&mut self, clock: Clock, (from, leadership): (usize, u64), push: &Push, out: &mut Outputs) {
        let version = push.version;
        match self.ledger.push(clock.now(), push) {
            Ok(()) => self.waiting = Some((from, leadership, version)),
            Err(refusal) => {
                out.reached(match refusal {
                    PushRefusal::StaleTerm { .. } => "a stale command bounced",
                    PushRefusal::LeaseOver => "a command without a lease bounced",
                    _ => "another command bounced",
                });
                out.send(Message::Pushed { to: from, leadership, from: self.at, version, answer: Err(refusal) });
            }
        }
    }

    /// Does what the ledger says.
    fn carry_out(&mut self, clock: Clock, guard: Option<Guard>, out: &mut Outputs) {
        loop {
            let mut actions = self.ledger.take_actions();
            if actions.is_empty() {
                return;
            }
            if guard == Some(Guard::AnswersWithdrawFirst) {
                actions.sort_by_key(|action| !matches!(action, Action::Leased(_)));
            }
            for action in actions {
                match action {
                    Action::Leased(until) => self.lease = Some(until),
                    Action::Start(_, epoch) => {
                        out.expect(self.worker.is_none(), || format!("P3: e{} runs the shard twice", self.at));
                        self.worker = Some(Worker { epoch, is_stopping: false, deadline: None });
                        out.0.push(Output::Started(epoch, self.ledger.incarnation()));
                    }
                    Action::Stop(..) => {
                        if let Some(worker) = &mut self.worker {
                            worker.is_stopping = true;
                            worker.deadline = self.lease.filter(|_| guard != Some(Guard::ReleaseKeepsItsLease));
                        }
                    }
                    Action::Fence(_, epoch) => {
                        let lasts = self.worker.as_ref().and_then(|it| it.deadline).is_some_and(|it| clock.now() < it);
                        match guard {
                            Some(Guard::ReleaseKeepsItsLease) if self.is_stopping() => continue,
                            Some(Guard::AnswersWithdrawFirst) if lasts => continue,
                            _ => {}
                        }
                        out.reached("an executor fenced itself");
                        self.worker = None;
                        self.ledger.ended(clock.now(), crate::SHARD, epoch);
                    }
                }
            }
        }
    }
}
