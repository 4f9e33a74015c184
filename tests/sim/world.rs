//! Everything there is: replicas, executors' processes, readers, the store, and links between them that lose, delay, repeat and
//! reorder.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shard_manager::types::ExecutorId;

use crate::context::{Context, LONGEST_WAY, Message, Node, Reached, TURN};
use crate::executor::Process;
use crate::guards::Guard;
use crate::random::{Instant, MS, Random, SECOND, us};
use crate::reader::Reader;
use crate::replica::{Replica, refuse};
use crate::rest::Lacks;

/// What has its own turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Runs {
    Replica(usize),
    Process(usize),
    Reader(usize),
}

enum What {
    Arrives(Node, Box<Message>),
    Turn(Runs),
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
    pub readers: Vec<Reader>,
    pub ids: Vec<ExecutorId>,
    /// Who was removed and is not admitted again when the storm is over.
    pub gone: BTreeSet<ExecutorId>,
    queue: BTreeMap<(Instant, u64), What>,
    entries: u64,
    /// When each runs next, as far as queued.
    pub wakes: BTreeMap<Runs, Instant>,
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
        let readers = random.between(1, 3) as usize;
        let mut context = Context::new(random, guard, shards, pages, tracing);
        // In half of the worlds the store is lost now and then, in half of these while clocks are wrong.
        let lot = context.random.below(4);
        (context.store_is_lost, context.store.clocks_are_right) = (lot < 2, lot == 1);
        // In half of the worlds managers are configured anew with other leases now and then.
        if context.random.per_mille(500) {
            context.leases = [2, 3, 6].map(Duration::from_secs).to_vec();
        }
        let ids = ["a", "b", "c", "d"].iter().take(executors).map(|id| id.parse().expect("a valid id")).collect();
        let mut world = World {
            context,
            replicas: Vec::new(),
            processes: Vec::new(),
            readers: Vec::new(),
            ids,
            gone: BTreeSet::new(),
            queue: BTreeMap::new(),
            entries: 0,
            wakes: BTreeMap::new(),
            weather,
            storm_ends,
        };
        for at in 0..replicas {
            let replica = Replica::new(at, &mut world.context);
            world.replicas.push(replica);
            world.wake(Runs::Replica(at), 0);
        }
        for at in 0..readers {
            let reader = Reader::new(at, replicas, &mut world.context);
            world.readers.push(reader);
            world.wake(Runs::Reader(at), 0);
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
        let (mut held_after, mut last_held) = (None, 0);
        while let Some(((time, _), what)) = self.queue.pop_first() {
            self.context.time = time;
            let look = matches!(what, What::Look);
            self.context.expect(self.entries < 1_000_000, || "P6: it never comes to an end".to_owned());
            self.happen(what);
            self.deliver();
            self.check_owners();
            if let Some(what) = self.context.failure.take() {
                return Err(Failure { what, trace: self.context.lines.into() });
            }
            if look && self.context.calm {
                let calm = time - self.storm_ends;
                let lacks = self.lacks();
                let held = matches!(lacks, None | Some(Lacks::Fair));
                held_after = held_after.filter(|_| held).or(held.then_some(calm));
                if let Some(held_after) = held_after.filter(|_| lacks.is_none()) {
                    let (held_after, fair_after) = (Duration::from_micros(held_after), Duration::from_micros(calm));
                    return Ok(Outcome { held_after, fair_after, reached: self.context.reached });
                }
                let (longest, lost) = (self.context.longest_lease(), self.context.store.restores > 0);
                // What is still to be spread may move once more.
                last_held = if held { calm } else { last_held };
                let (bound, late) = match lacks {
                    None | Some(Lacks::Fair) => (Lacks::Fair.bound(longest, lost), calm),
                    Some(lacks) => (lacks.bound(longest, lost), calm - last_held),
                };
                self.context.expect(late < bound, || format!("P6: shards are not {lacks:?} after {} ms of calm", late / MS));
            }
        }
        unreachable!("there is always another look")
    }

    fn at(&mut self, time: Instant, what: What) {
        self.entries += 1;
        self.queue.insert((time, self.entries), what);
    }

    pub fn wake(&mut self, who: Runs, time: Instant) {
        let time = time.max(self.context.time);
        let queued = self.wakes.get(&who).copied().unwrap_or(Instant::MAX);
        if time < queued {
            self.wakes.insert(who, time);
            self.at(time, What::Turn(who));
        }
    }

    fn happen(&mut self, what: What) {
        let time = self.context.time;
        match what {
            What::Arrives(to, message) => self.arrive(to, *message),
            What::Turn(who) => {
                self.wakes.remove(&who);
                match who {
                    Runs::Replica(at) => {
                        let paused = self.replicas[at].paused_until;
                        if paused > 0 && paused <= time {
                            self.wake_replica(at);
                        }
                        self.run_replica(at);
                    }
                    Runs::Process(at) => {
                        let process = &mut self.processes[at];
                        if process.paused_until > 0 && process.paused_until <= time {
                            (process.paused_until, process.wakes_up) = (0, true);
                        }
                        self.run_process(at);
                    }
                    Runs::Reader(at) => self.run_reader(at),
                }
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

    fn wake_replica(&mut self, at: usize) {
        self.replicas[at].paused_until = 0;
        // It may turn before it gets to read what arrived.
        if self.context.random.per_mille(500) {
            let unread = std::mem::take(&mut self.replicas[at].inbox);
            let later = self.context.time + self.context.random.between(MS, us(TURN));
            for message in unread {
                self.at(later, What::Arrives(Node::Replica(at), Box::new(message)));
            }
        }
    }

    fn run_replica(&mut self, at: usize) {
        let time = self.context.time;
        let replica = &mut self.replicas[at];
        if replica.down_until > time || replica.paused_until > 0 {
            let until = replica.down_until.max(replica.paused_until);
            return self.wake(Runs::Replica(at), until);
        }
        let next = replica.run(&mut self.context);
        if let Some(crashed) = self.context.crash.take() {
            let until = time + self.context.random.between(10 * MS, 3 * SECOND);
            self.replicas[crashed].crash(until);
            return self.wake(Runs::Replica(crashed), until);
        }
        self.wake(Runs::Replica(at), next.max(time));
    }

    pub fn run_process(&mut self, at: usize) {
        let process = &mut self.processes[at];
        if !process.alive {
            return;
        }
        if process.paused_until > 0 {
            let until = process.paused_until;
            return self.wake(Runs::Process(at), until);
        }
        let next = process.run(&mut self.context);
        if next < Instant::MAX {
            self.wake(Runs::Process(at), next.max(self.context.time));
        }
    }

    pub fn run_reader(&mut self, at: usize) {
        let next = self.readers[at].run(&mut self.context);
        self.wake(Runs::Reader(at), next);
    }

    fn arrive(&mut self, to: Node, message: Message) {
        match (to, message) {
            (Node::Replica(at), message) => {
                // Whoever calls an executor dead has looked.
                let lives = |id: &ExecutorId| self.processes.iter().any(|process| process.alive && process.id == *id);
                if matches!(&message, Message::Word(word) if word.buries().is_some_and(lives)) {
                    return;
                }
                if self.replicas[at].down_until > self.context.time {
                    return refuse(at, vec![message], &mut self.context);
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
                let before = self.context.store.current();
                match self.context.store.commit(time, guard, number, expected, &changes) {
                    Ok(result) => {
                        let after = self.context.store.current();
                        if let Some(after) = after.filter(|after| before.as_ref().is_none_or(|it| it.version != after.version)) {
                            let before = before.as_ref().map(|before| &*before.state);
                            let kept = self.context.operators.landed(number, before, &after.state);
                            self.context.take(kept);
                        }
                        let attempt = changes.meta.attempt;
                        self.context.log(|| format!("the store answers attempt {attempt} of leadership {number}: {result:?}"));
                        let stored = Message::Stored { number, attempt, result };
                        self.context.send(Node::Store, Node::Replica(from), stored);
                    }
                    Err(what) => self.context.expect(false, || what),
                }
            }
            (Node::Store, Message::Keep { from, number, sent }) if self.context.store.keep(self.context.time, number) => {
                self.context.send(Node::Store, Node::Replica(from), Message::Kept { number, sent });
            }
            (Node::Reader(at), message) => {
                self.readers[at].inbox.push(message);
                self.run_reader(at);
            }
            (Node::Storage, Message::Write { from, shard, epoch, writer }) => {
                let refused = self.context.write(shard, epoch, writer);
                self.context.send(Node::Storage, Node::Process(from), Message::Written { shard, epoch, refused });
            }
            _ => {}
        }
    }

    fn hand_to_process(&mut self, at: usize, message: Message) {
        if self.processes[at].alive {
            self.processes[at].inbox.push(message);
            self.run_process(at);
        }
    }

    /// Puts on their way the messages of this step.
    fn deliver(&mut self) {
        for (from, to, message) in std::mem::take(&mut self.context.out) {
            if self.context.cuts.contains(&(from, to.clone())) {
                continue;
            }
            let Weather { lost, repeated, .. } = self.weather;
            if !self.context.calm && self.context.random.per_mille(lost) {
                if matches!(message, Message::Answer { reply: Some(Ok(_)), .. }) {
                    self.context.reached("the answer to a call was lost");
                }
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
}
