//! A process of an executor: the real ledger, with workers that are only counted.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{LEASE, TICK, Way, words};
use shard_manager::assignment::command::{Answer as Answered, Reply};
use shard_manager::assignment::event::{Departure, Event, Registration, RequestId};
use shard_manager::client::ledger::{Action, Attempt, Kind, Ledger, Push};
use shard_manager::client::meaning::Meaning;
use shard_manager::holdings::Holdings;
use shard_manager::rpc::reason_of;
use shard_manager::types::{BootInstant, Epoch, ExecutorId, Incarnation, ShardId, Version};

/// The work on one shard.
pub struct Worker {
    pub epoch: Epoch,
    /// Of one that is being stopped: the lease that it keeps (L6). Else the process's counts.
    deadline: Option<BootInstant>,
}

pub struct Process {
    /// Which id, and at which of its places.
    pub seat: (usize, usize),
    pub ledger: Ledger,
    pub workers: BTreeMap<ShardId, Worker>,
    lease: Option<BootInstant>,
    pub calls: Way,
    pub commands: Way,
    pub slow: bool,
    /// The leader that it talks to.
    pub manager: u64,
    /// The call in flight, and its number.
    call: Option<(u64, Attempt)>,
    numbers: u64,
    next_call: BootInstant,
    /// News waits for this.
    soonest: BootInstant,
    /// What its workers were started at.
    pub started: Vec<(ShardId, Epoch)>,
}

impl Process {
    pub fn new(seat: (usize, usize), incarnation: Incarnation, manager: u64, now: BootInstant) -> Process {
        Process {
            seat,
            ledger: Ledger::new(Process::id(seat.0), incarnation),
            workers: BTreeMap::new(),
            lease: None,
            calls: Way::Prompt,
            commands: Way::Prompt,
            slow: false,
            manager,
            call: None,
            numbers: 0,
            next_call: now,
            soonest: now,
            started: Vec::new(),
        }
    }

    pub fn id(id: usize) -> ExecutorId {
        Process::name(id).parse().expect("a valid id")
    }

    pub fn name(id: usize) -> &'static str {
        ["a", "b", "c", "d"][id]
    }

    /// **P3.** Whether it works on a shard under a lease that lives, by its own clock.
    pub fn lives_on(&self, shard: ShardId, now: BootInstant) -> bool {
        let worker = self.workers.get(&shard);
        worker.and_then(|worker| worker.deadline.or(self.lease)).is_some_and(|deadline| now < deadline)
    }

    /// Ends what is over, and gives up on a call.
    pub fn look(&mut self, now: BootInstant) {
        self.ledger.look(now);
        if let Some((_, attempt)) = self.call.take_if(|(_, attempt)| now >= attempt.sent.after(LEASE / 3)) {
            self.unanswered(now, &attempt);
        }
        if self.ledger.has_left() {
            self.ledger.stop(now);
        }
        self.act(now);
    }

    fn unanswered(&mut self, now: BootInstant, attempt: &Attempt) {
        self.ledger.unanswered(now, attempt, true);
        if attempt.kind == Kind::Deregister {
            self.ledger.deregistered();
        }
        self.next_call = now.after(TICK * 2);
    }

    /// The call that it makes now, and its number.
    pub fn call(&mut self, now: BootInstant, request: RequestId) -> Option<(u64, Event)> {
        let due = now >= self.soonest && (self.ledger.has_news() || now >= self.next_call);
        if self.call.is_some() || !due {
            return None;
        }
        let attempt = self.ledger.compose(now)?;
        self.act(now);
        let name = Process::id(self.seat.0);
        let incarnation = attempt.incarnation;
        let event = match (attempt.kind, attempt.cluster_id) {
            (Kind::Renew, Some(cluster_id)) => Event::Renew(request, words::renewal(name, cluster_id, &attempt)),
            (Kind::Deregister, Some(cluster_id)) => Event::Deregister(request, Departure { id: name, incarnation, cluster_id }),
            (_, before) => {
                let endpoint = format!("http://10.0.{}.{}:7000", self.seat.0, self.seat.1);
                let before = before.map(|cluster_id| (cluster_id, attempt.mark));
                Event::Register(request, Registration { id: name, incarnation, endpoint, weight: 1, before })
            }
        };
        self.numbers += 1;
        self.call = Some((self.numbers, attempt));
        (self.next_call, self.soonest) = (now.after(LEASE / 3), now.after(TICK));
        Some((self.numbers, event))
    }

    /// The answer to one of its calls; those that it gave up do not count. Whether it goes to another leader next.
    pub fn answered(&mut self, now: BootInstant, number: u64, reply: Reply, next: Incarnation) -> bool {
        let Some((_, attempt)) = self.call.take_if(|(of, _)| *of == number) else { return false };
        let verdict = match reply {
            Ok(Answered::Lease(lease)) => {
                let answer = words::answer(&lease);
                let taken = self.ledger.answered(now, &attempt, answer).is_ok();
                self.next_call = now.after(if taken { lease.lease_ttl / 3 } else { TICK });
                self.act(now);
                return false;
            }
            Ok(_) => {
                self.ledger.deregistered();
                return false;
            }
            Err(refusal) => match Meaning::of(reason_of(&refusal.into()).as_deref(), attempt.kind, self.ledger.is_ending()) {
                Meaning::Verdict(verdict) => verdict,
                Meaning::Gone => {
                    self.ledger.deregistered();
                    return false;
                }
                Meaning::Rejected | Meaning::Failed(_) => {
                    self.unanswered(now, &attempt);
                    return true;
                }
            },
        };
        self.ledger.refused(now, &attempt, verdict, next);
        self.next_call = now;
        self.act(now);
        false
    }

    /// A command. Where it is taken: the mark, and what is held after it.
    pub fn push(&mut self, now: BootInstant, push: &Push) -> Option<(Version, Holdings)> {
        let taken = self.ledger.push(now, push).is_ok();
        self.act(now);
        taken.then(|| (self.ledger.mark(), Holdings::clone(&self.ledger.held())))
    }

    /// Stops what it was told to stop.
    pub fn finish(&mut self, now: BootInstant) {
        let stopping: Vec<ShardId> =
            self.workers.iter().filter(|(_, worker)| worker.deadline.is_some()).map(|(shard, _)| *shard).collect();
        stopping.into_iter().for_each(|shard| self.end(now, shard));
        self.act(now);
    }

    /// The work on every shard ends by itself.
    pub fn give_up(&mut self, now: BootInstant) {
        let all: Vec<ShardId> = self.workers.keys().copied().collect();
        all.into_iter().for_each(|shard| self.end(now, shard));
        self.act(now);
    }

    fn end(&mut self, now: BootInstant, shard: ShardId) {
        if let Some(worker) = self.workers.remove(&shard) {
            self.ledger.ended(now, shard, worker.epoch);
        }
    }

    /// Does what the ledger wants done.
    pub fn act(&mut self, now: BootInstant) {
        loop {
            let actions = self.ledger.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Leased(until) => self.lease = Some(until),
                    Action::Start(shard, epoch) => {
                        self.workers.insert(shard, Worker { epoch, deadline: None });
                        self.started.push((shard, epoch));
                    }
                    Action::Stop(shard, _) if self.slow => {
                        let deadline = self.lease.unwrap_or(now);
                        if let Some(worker) = self.workers.get_mut(&shard) {
                            worker.deadline = Some(deadline);
                        }
                    }
                    Action::Stop(shard, _) | Action::Fence(shard, _) => self.end(now, shard),
                }
            }
        }
    }
}

/// How long a leadership lasts without a renewal.
pub const LEADERSHIP: Duration = Duration::from_secs(3);
