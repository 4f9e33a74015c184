//! Everything there is: replicas, executors' processes, the store, a reader, and links between them that lose, delay, repeat and
//! reorder; and the promises, looked at after every step.

use std::collections::BTreeMap;
use std::time::Duration;

use shard_manager::assignment::command::Snapshot;
use shard_manager::assignment::lease;
use shard_manager::assignment::planner::{self, Member, Role};
use shard_manager::assignment::record::{ShardRecord, ShardState};
use shard_manager::types::{ExecutorId, ShardId, Slot};

use crate::context::{Context, LEASE, LONGEST_WAY, Message, Node, Reached, TURN};
use crate::executor::Process;
use crate::guards::Guard;
use crate::random::{Instant, MS, Random, SECOND, us};
use crate::replica::Replica;
use crate::store::LEADERSHIP;

enum What {
    Arrives(Node, Box<Message>),
    Replica(usize),
    Process(usize),
    Fault,
    Look,
}

/// How rough a seed is.
struct Weather {
    lost: u64,
    repeated: u64,
    slow: u64,
    late: u64,
    /// The longest pause between two faults.
    rest: Instant,
}

pub struct World {
    pub context: Context,
    pub replicas: Vec<Replica>,
    pub processes: Vec<Process>,
    /// What readers see.
    table: Option<Snapshot>,
    pub ids: Vec<ExecutorId>,
    queue: BTreeMap<(Instant, u64), What>,
    entries: u64,
    /// When each runs next, as far as queued.
    pub wakes: BTreeMap<(bool, usize), Instant>,
    weather: Weather,
    storm_ends: Instant,
}

/// What a run came to.
pub struct Outcome {
    /// From the end of faults until every shard was held.
    pub held_after: Duration,
    /// From the end of faults until every shard was held, and fairly so.
    pub fair_after: Duration,
    pub reached: Reached,
}

pub struct Failure {
    pub what: String,
    pub trace: Vec<String>,
}

impl World {
    pub fn new(seed: u64, guard: Option<Guard>, tracing: bool) -> World {
        let mut random = Random::new(seed);
        let rough = random.between(0, 4);
        let weather = Weather {
            lost: 15 * rough,
            repeated: 15 * rough,
            slow: 60 * rough,
            late: 15 * rough,
            rest: random.between(200, 1500) * MS,
        };
        let storm_ends = random.between(5, 25) * SECOND;
        let shards = random.between(1, 13) as u32;
        let pages = random.between(4, 9) as usize;
        let replicas = random.between(1, 4) as usize;
        let executors = random.between(2, 5) as usize;
        let context = Context::new(random, guard, shards, pages, tracing);
        let ids = ["a", "b", "c", "d"].iter().take(executors).map(|id| id.parse().expect("a valid id")).collect();
        let mut world = World {
            context,
            replicas: Vec::new(),
            processes: Vec::new(),
            table: None,
            ids,
            queue: BTreeMap::new(),
            entries: 0,
            wakes: BTreeMap::new(),
            weather,
            storm_ends,
        };
        for at in 0..replicas {
            let replica = Replica::new(at, &mut world.context);
            world.replicas.push(replica);
            world.wake(false, at, 0);
        }
        for id in world.ids.clone() {
            world.start(id, false);
        }
        world.at(SECOND, What::Fault);
        world.at(SECOND, What::Look);
        world
    }

    /// Until it has come to rest after the storm, or a promise is broken.
    pub fn run(mut self) -> Result<Outcome, Failure> {
        let mut held_after = None;
        while let Some(((time, _), what)) = self.queue.pop_first() {
            self.context.time = time;
            let look = matches!(what, What::Look);
            self.context.expect(self.entries < 1_000_000, || "it never comes to an end".to_owned());
            self.happen(what);
            self.deliver();
            self.check_owners();
            if let Some(what) = self.context.failure.take() {
                return Err(Failure { what, trace: self.context.lines.into() });
            }
            if look && self.context.calm {
                let calm = time - self.storm_ends;
                let (held, fair) = self.settled();
                held_after = held_after.filter(|_| held).or(held.then_some(calm));
                if let Some(held_after) = held_after.filter(|_| fair) {
                    let (held_after, fair_after) = (Duration::from_micros(held_after), Duration::from_micros(calm));
                    return Ok(Outcome { held_after, fair_after, reached: self.context.reached });
                }
                let bound = if held { self.bound() + 64 * us(LEASE) } else { self.bound() };
                self.context.expect(calm < bound, || {
                    format!("P6: shards are {} after {} ms of calm", if held { "unfair" } else { "not held" }, calm / MS)
                });
            }
        }
        unreachable!("there is always another look")
    }

    /// **P6.** The last message of the storm arrives; an election; what it left behind runs out by a new leader's first leases, or what
    /// that granted was not started or stopped and runs out once more.
    fn bound(&self) -> Instant {
        let lease = us(LEASE + lease::margin(LEASE));
        LONGEST_WAY + LEADERSHIP + 3 * lease + 2 * SECOND
    }

    fn at(&mut self, time: Instant, what: What) {
        self.entries += 1;
        self.queue.insert((time, self.entries), what);
    }

    pub fn wake(&mut self, is_process: bool, at: usize, time: Instant) {
        let time = time.max(self.context.time);
        let queued = self.wakes.get(&(is_process, at)).copied().unwrap_or(Instant::MAX);
        if time < queued {
            self.wakes.insert((is_process, at), time);
            self.at(time, if is_process { What::Process(at) } else { What::Replica(at) });
        }
    }

    fn happen(&mut self, what: What) {
        let time = self.context.time;
        match what {
            What::Arrives(to, message) => self.arrive(to, *message),
            What::Replica(at) => {
                self.wakes.remove(&(false, at));
                let paused = self.replicas[at].paused_until;
                if paused > 0 && paused <= time {
                    self.replicas[at].paused_until = 0;
                    // It may turn before it gets to read what arrived.
                    if self.context.random.per_mille(500) {
                        let unread = std::mem::take(&mut self.replicas[at].inbox);
                        let later = time + self.context.random.between(MS, us(TURN));
                        for message in unread {
                            self.at(later, What::Arrives(Node::Replica(at), Box::new(message)));
                        }
                    }
                }
                self.run_replica(at);
            }
            What::Process(at) => {
                self.wakes.remove(&(true, at));
                if self.processes[at].paused_until <= time {
                    self.processes[at].paused_until = 0;
                }
                self.run_process(at);
            }
            What::Fault if time >= self.storm_ends => self.calm_down(),
            What::Fault => {
                self.fault();
                let rest = self.context.random.between(MS, self.weather.rest);
                self.at((time + rest).min(self.storm_ends), What::Fault);
            }
            What::Look => {
                self.look();
                self.at(time + 50 * MS, What::Look);
            }
        }
    }

    fn run_replica(&mut self, at: usize) {
        let time = self.context.time;
        let replica = &mut self.replicas[at];
        if replica.down_until > time || replica.paused_until > 0 {
            let until = replica.down_until.max(replica.paused_until);
            return self.wake(false, at, until);
        }
        let next = replica.run(&mut self.context);
        if let Some(crashed) = self.context.crash.take() {
            let until = time + self.context.random.between(10 * MS, 3 * SECOND);
            self.replicas[crashed].crash(until);
            return self.wake(false, crashed, until);
        }
        self.wake(false, at, next.max(time));
    }

    pub fn run_process(&mut self, at: usize) {
        let process = &mut self.processes[at];
        if !process.alive {
            return;
        }
        if process.paused_until > 0 {
            let until = process.paused_until;
            return self.wake(true, at, until);
        }
        let next = process.run(&mut self.context);
        if next < Instant::MAX {
            self.wake(true, at, next.max(self.context.time));
        }
    }

    fn arrive(&mut self, to: Node, message: Message) {
        match (to, message) {
            (Node::Replica(at), message) => {
                if self.replicas[at].down_until > self.context.time {
                    if let Message::Call { from, call, .. } = message {
                        self.context.send(Node::Process(from), Message::Answer { call, reply: None });
                    }
                    return;
                }
                self.replicas[at].inbox.push(message);
                self.run_replica(at);
            }
            (Node::Process(at), message) => self.hand_to_process(at, message),
            (Node::Endpoint(endpoint), message) => {
                let listens = self.processes.iter().rposition(|process| process.alive && process.endpoint == endpoint);
                if let Some(at) = listens {
                    self.hand_to_process(at, message);
                }
            }
            (Node::Store, Message::Commit { from, number, request, expected, changes }) => {
                let (time, guard) = (self.context.time, self.context.guard);
                if !self.context.store.answers(time, request) {
                    return;
                }
                match self.context.store.commit(time, guard, number, expected, &changes) {
                    Ok(result) => {
                        let attempt = changes.meta.attempt;
                        self.context.log(|| format!("the store answers attempt {attempt} of leadership {number}: {result:?}"));
                        self.context.send(Node::Replica(from), Message::Stored { number, attempt, result });
                    }
                    Err(what) => self.context.expect(false, || what),
                }
            }
            (Node::Store, Message::Keep { from, number, sent }) if self.context.store.keep(self.context.time, number) => {
                self.context.send(Node::Replica(from), Message::Kept { number, sent });
            }
            (Node::Reader, Message::Table(table)) => self.read(table),
            _ => {}
        }
    }

    fn hand_to_process(&mut self, at: usize, message: Message) {
        if self.processes[at].alive {
            self.processes[at].inbox.push(message);
            self.run_process(at);
        }
    }

    /// **P7.** A reader keeps the newest table, and nothing in it ever goes back.
    fn read(&mut self, table: Snapshot) {
        let version = table.version;
        if let Some(before) = &self.table {
            if version <= before.version && self.context.guard != Some(Guard::Reader) {
                return;
            }
            let epochs = before.state.shards().zip(table.state.shards()).all(|((_, old), (_, new))| old.epoch <= new.epoch);
            let newer = version >= before.version && epochs;
            let before = before.version;
            self.context.expect(newer, || format!("P7: a reader went from {before} back to {version}"));
        }
        self.table = Some(table);
    }

    /// Puts on their way the messages of this step.
    fn deliver(&mut self) {
        for (to, message) in std::mem::take(&mut self.context.out) {
            let from = match &message {
                Message::Call { from, .. } => Node::Process(*from),
                Message::Push { from, .. } | Message::Commit { from, .. } | Message::Keep { from, .. } => Node::Replica(*from),
                Message::Stored { .. } | Message::Kept { .. } => Node::Store,
                _ => Node::Reader,
            };
            let cuts = &self.context.cuts;
            if cuts.contains(&(from.clone(), to.clone())) || cuts.contains(&(to.clone(), from)) {
                continue;
            }
            let Weather { lost, repeated, .. } = self.weather;
            if !self.context.calm && self.context.random.per_mille(lost) {
                continue;
            }
            if !self.context.calm && self.context.random.per_mille(repeated) {
                let time = self.context.time + self.way();
                self.at(time, What::Arrives(to.clone(), Box::new(message.clone())));
            }
            let time = self.context.time + self.way();
            self.at(time, What::Arrives(to, Box::new(message)));
        }
    }

    fn way(&mut self) -> Instant {
        let Weather { slow, late, .. } = self.weather;
        let random = &mut self.context.random;
        match random.between(0, 1000) {
            dice if dice < late && !self.context.calm => random.between(100 * MS, LONGEST_WAY),
            dice if dice < slow && !self.context.calm => random.between(5 * MS, 200 * MS),
            _ => random.between(100, 3 * MS),
        }
    }

    /// **P3.** No two processes work on one shard under live leases.
    fn check_owners(&mut self) {
        let time = self.context.time;
        let mut owners: BTreeMap<ShardId, usize> = BTreeMap::new();
        for (at, process) in self.processes.iter().enumerate().filter(|(_, process)| process.alive) {
            for shard in process.workers.keys().filter(|shard| process.works_on(**shard, time)) {
                if let Some(other) = owners.insert(*shard, at) {
                    let (one, two) = (self.processes[other].name(), process.name());
                    let shard = *shard;
                    self.context.expect(false, || format!("P3: {one} and {two} both work on shard {shard}"));
                    return;
                }
            }
        }
    }

    /// Whether every shard is worked on by who owns it, and whether the planner would leave it at that.
    fn settled(&self) -> (bool, bool) {
        let Some(Snapshot { state, .. }) = self.context.store.current() else { return (false, false) };
        let works = |(shard, record): (ShardId, ShardRecord)| {
            let ShardState::Held(slot) = record.state else { return false };
            let Some(owner) = state.executor(slot) else { return false };
            self.processes.iter().any(|process| {
                let works = process.workers.get(&shard).is_some_and(|worker| worker.epoch == record.epoch);
                works && process.alive && process.id == owner.id && process.ledger.incarnation() == owner.incarnation
            })
        };
        if !state.shards().all(works) {
            return (false, false);
        }
        let members =
            state.executors().map(|(slot, record)| Member { slot, id: record.id.clone(), weight: 1, role: Role::Takes });
        let members: Vec<Member> = members.collect();
        let home = |slot: Slot| members.iter().position(|member| member.slot == slot).map_or(planner::NOBODY, |at| at as u32);
        let homes: Vec<u32> = state.shards().map(|(_, record)| record.owner().map_or(planner::NOBODY, home)).collect();
        let input = planner::Input { members: &members, homes: &homes, threshold: 0.1, avoid: &BTreeMap::new() };
        (true, members.len() == self.ids.len() && planner::plan(&input).0.moves.is_empty())
    }
}
