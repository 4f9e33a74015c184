//! Everything there is: replicas, executors' processes, the store, a reader, and links between them that lose, delay, repeat and
//! reorder; and the promises, looked at after every step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use shard_manager::assignment::command::{Answer, Assignment, Reply, Snapshot};
use shard_manager::assignment::event::{Departure, Registration, Renewal};
use shard_manager::assignment::planner::{self, Member, Role};
use shard_manager::assignment::record::{ShardState, Wish};
use shard_manager::assignment::state::{Changes, Meta};
use shard_manager::assignment::{State, lease};
use shard_manager::client::ledger::{Push, PushRefusal};
use shard_manager::holdings::Holdings;
use shard_manager::types::{BootInstant, Epoch, ExecutorId, Incarnation, Revision, ShardId, Slot, Version};

use crate::executor::Process;
use crate::guards::Guard;
use crate::random::{Instant, MS, Random, SECOND, us};
use crate::replica::Replica;
use crate::store::{LEADERSHIP, Refusal, Store};

/// The executor lease L.
pub const LEASE: Duration = Duration::from_secs(3);
/// The longest time between two turns of an engine.
pub const TURN: Duration = Duration::from_millis(200);
/// The longest that a message is under way.
const LONGEST_WAY: Instant = 4 * SECOND;

/// One who sends or receives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    Replica(usize),
    Process(usize),
    /// Whoever listens there when the message arrives.
    Endpoint(String),
    Store,
    Reader,
}

/// What executors ask.
#[derive(Clone, Debug)]
pub enum Call {
    Register(Registration),
    Renew(Renewal),
    Deregister(Departure),
}

#[derive(Clone, Debug)]
pub enum Message {
    Call {
        from: usize,
        call: u64,
        body: Call,
    },
    /// `None`: nobody listened.
    Answer {
        call: u64,
        reply: Option<Reply>,
    },
    Push {
        from: usize,
        number: u64,
        push: Push,
    },
    Pushed {
        number: u64,
        answer: Result<(Version, Holdings), PushRefusal>,
    },
    Commit {
        from: usize,
        number: u64,
        expected: Option<Revision>,
        changes: Changes,
    },
    Stored {
        number: u64,
        attempt: u64,
        result: Result<Revision, Refusal>,
    },
    Keep {
        from: usize,
        number: u64,
        sent: BootInstant,
    },
    Kept {
        number: u64,
        sent: BootInstant,
    },
    Wish(ExecutorId, Wish),
    Probed(Slot, Incarnation, bool),
    Table(Snapshot),
}

/// What every part works with.
pub struct Context {
    pub time: Instant,
    /// No more faults.
    pub calm: bool,
    pub guard: Option<Guard>,
    pub random: Random,
    pub store: Store,
    pub shards: u32,
    /// The store's limit of pages for one commit.
    pub pages: usize,
    /// A replica that has to go down at once.
    pub crash: Option<usize>,
    /// What is sent in this step.
    out: Vec<(Node, Message)>,
    /// Who cannot reach whom, either way.
    cuts: BTreeSet<(Node, Node)>,
    /// The newest start of each shard.
    starts: BTreeMap<ShardId, (Epoch, ExecutorId, Incarnation)>,
    /// What happened how often, to see that storms are rough enough.
    reached: Reached,
    failure: Option<String>,
    tracing: bool,
    lines: VecDeque<String>,
}

impl Context {
    pub fn send(&mut self, to: Node, message: Message) {
        self.out.push((to, message));
    }

    /// For the trace; costs nothing where there is none.
    pub fn log(&mut self, line: impl FnOnce() -> String) {
        if self.tracing {
            self.lines.push_back(format!("{:>10.3} ms  {}", self.time as f64 / MS as f64, line()));
            if self.lines.len() > 80 {
                self.lines.pop_front();
            }
        }
    }

    pub fn reached(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    /// A promise.
    pub fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.failure.is_none() {
            self.failure = Some(what());
        }
    }

    fn take(&mut self, result: Result<(), String>) {
        if let Err(what) = result {
            self.expect(false, || what);
        }
    }

    pub fn reaches_store(&self, replica: usize) -> bool {
        !self.cuts.contains(&(Node::Replica(replica), Node::Store))
    }

    /// **P2.** What readers see is what the store has.
    pub fn published(&mut self, snapshot: &Snapshot) {
        let durable = self.store.durable(snapshot.version).map(|state| *state == snapshot.state);
        let told =
            durable.and_then(|same| if same { Ok(()) } else { Err(format!("P2: {} is not what is stored", snapshot.version)) });
        self.take(told);
    }

    /// **P2.** What executors are told is what the store has.
    pub fn commanded(&mut self, assignment: &Assignment) {
        let Assignment { slot, version, holdings, .. } = assignment;
        let durable = self.store.durable(*version).map(|state| held(state, *slot) == **holdings);
        let told =
            durable.and_then(|same| if same { Ok(()) } else { Err(format!("P2: a command of {version} is not what is stored")) });
        self.take(told);
    }

    /// **P2.** What is answered is what the store has.
    pub fn answered(&mut self, caller: Option<&(ExecutorId, Incarnation)>, reply: &Reply) {
        let told = match reply {
            Ok(Answer::Lease(lease)) => self.store.durable(lease.version).and_then(|state| {
                let (id, incarnation) = caller.ok_or("a lease for nobody")?;
                let (slot, _) = state.incarnation(id, *incarnation).ok_or("P2: a lease for who is not stored")?;
                let same = lease.assignment.as_ref().is_none_or(|assignment| *assignment == held(state, slot));
                if same { Ok(()) } else { Err(format!("P2: an answer of {} is not what is stored", lease.version)) }
            }),
            Ok(Answer::Current(version)) => self.store.durable(*version).map(|_| ()),
            _ => Ok(()),
        };
        self.take(told);
    }

    /// **L5.** A leader goes on as if a commit had not landed: then it did not, and never will.
    pub fn called_failed(&mut self, meta: &Meta) {
        let result = self.store.called_failed(meta);
        self.take(result);
    }

    /// **P4.** Work only ever starts at a higher epoch than before, or again under the same process.
    pub fn started(&mut self, shard: ShardId, epoch: Epoch, (id, incarnation): (&ExecutorId, Incarnation)) {
        let before = self.starts.insert(shard, (epoch, id.clone(), incarnation));
        let grew = before
            .as_ref()
            .is_none_or(|before| epoch > before.0 || epoch == before.0 && (id, incarnation) == (&before.1, before.2));
        self.expect(grew, || format!("P4: {id} starts shard {shard} at {epoch} after {before:?}"));
    }
}

/// What the executor in a slot should hold.
pub fn held(state: &State, slot: Slot) -> Holdings {
    let held = state.shards().filter(|(_, record)| record.state == ShardState::Held(slot));
    Holdings::from_pairs(held.map(|(shard, record)| (shard, record.epoch)))
}

enum What {
    Arrives(Node, Box<Message>),
    Replica(usize),
    Process(usize),
    Fault,
    Look,
}

/// What happened, and how often.
pub type Reached = BTreeMap<&'static str, u64>;

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
    context: Context,
    replicas: Vec<Replica>,
    processes: Vec<Process>,
    /// What readers see.
    table: Option<Snapshot>,
    ids: Vec<ExecutorId>,
    queue: BTreeMap<(Instant, u64), What>,
    entries: u64,
    /// When each runs next, as far as queued.
    wakes: BTreeMap<(bool, usize), Instant>,
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
        let context = Context {
            time: 0,
            calm: false,
            guard,
            random,
            store: Store::default(),
            shards,
            pages,
            crash: None,
            out: Vec::new(),
            cuts: BTreeSet::new(),
            starts: BTreeMap::new(),
            reached: Reached::new(),
            failure: None,
            tracing,
            lines: VecDeque::new(),
        };
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

    fn wake(&mut self, is_process: bool, at: usize, time: Instant) {
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

    fn run_process(&mut self, at: usize) {
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
            (Node::Store, Message::Commit { from, number, expected, changes }) => {
                let (time, guard) = (self.context.time, self.context.guard);
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

    fn start(&mut self, id: ExecutorId, in_place: bool) {
        let at = self.processes.len();
        let before = self.processes.iter().rfind(|process| process.id == id).map(|process| process.endpoint.clone());
        let endpoint = match before.filter(|_| in_place) {
            Some(endpoint) => endpoint,
            None if self.context.random.per_mille(500) => format!("http://10.0.0.1:{}", 1000 + at),
            None => format!("http://{id}-{at}:1"),
        };
        let replicas = self.replicas.len();
        let process = Process::new(at, id, endpoint, replicas, &mut self.context);
        self.context.log(|| format!("{} is started at {}", process.name(), process.endpoint));
        self.processes.push(process);
        self.wake(true, at, self.context.time);
    }

    fn living(&self) -> Vec<usize> {
        (0..self.processes.len()).filter(|at| self.processes[*at].alive).collect()
    }

    fn fault(&mut self) {
        let time = self.context.time;
        let living = self.living();
        let process = self.context.random.pick(&living);
        let replica = self.context.random.below(self.replicas.len());
        let span = match self.context.random.below(3) {
            0 => self.context.random.between(MS, 300 * MS),
            1 => self.context.random.between(300 * MS, 3 * SECOND),
            _ => self.context.random.between(3 * SECOND, 8 * SECOND),
        };
        match (self.context.random.below(17), process) {
            (0, _) => {
                self.context.log(|| format!("replica {replica} crashes for {} ms", span / MS));
                self.replicas[replica].crash(time + span);
                self.wakes.remove(&(false, replica));
                self.wake(false, replica, time + span);
            }
            (1, _) => {
                self.context.log(|| format!("replica {replica} pauses for {} ms", span / MS));
                self.replicas[replica].paused_until = time + span;
                self.wake(false, replica, time + span);
            }
            (2 | 3, Some(at)) => {
                self.context.log(|| format!("process {at} pauses for {} ms", span / MS));
                self.processes[at].paused_until = time + span;
                self.wake(true, at, time + span);
            }
            (4, Some(at)) => {
                self.context.log(|| format!("process {at} crashes"));
                self.processes[at].alive = false;
            }
            (5..=7, _) => {
                let dead = |id: &&ExecutorId| !self.processes.iter().any(|process| process.alive && process.id == **id);
                let dead: Vec<usize> = (0..self.ids.len()).filter(|at| dead(&&self.ids[*at])).collect();
                if let Some(id) = self.context.random.pick(&dead) {
                    let in_place = self.context.random.per_mille(600);
                    self.start(self.ids[id].clone(), in_place);
                }
            }
            (8, Some(at)) => {
                // A second process under the id while the first one lives.
                let id = self.processes[at].id.clone();
                self.start(id, false);
            }
            (9, Some(at)) => {
                self.context.log(|| format!("process {at} leaves"));
                self.processes[at].leave(&self.context);
                self.run_process(at);
            }
            (10, _) => {
                let id = self.ids[self.context.random.below(self.ids.len())].clone();
                let wish = [Wish::None, Wish::Cordon, Wish::Drain][self.context.random.below(3)];
                self.context.log(|| format!("an operator wishes {wish:?} for {id}"));
                self.wish(id, wish);
            }
            (11 | 12, _) => {
                let to = match process.filter(|_| self.context.random.per_mille(600)) {
                    Some(at) => Node::Process(at),
                    None => Node::Store,
                };
                self.context.log(|| format!("replica {replica} and {to:?} are cut apart"));
                let cut = (Node::Replica(replica), to.clone());
                if let Node::Process(at) = to {
                    let endpoint = Node::Endpoint(self.processes[at].endpoint.clone());
                    self.context.cuts.insert((Node::Replica(replica), endpoint));
                }
                self.context.cuts.insert(cut);
            }
            (13, _) => self.context.cuts.clear(),
            (14 | 16, _) => {
                self.context.log(|| format!("the store is out for {} ms", span / 4 / MS));
                self.context.store.out_until = time + span / 4;
            }
            (15, Some(at)) if self.processes[at].paused_until == 0 => {
                self.processes[at].give_up(&mut self.context);
                self.run_process(at);
            }
            _ => {
                let healthy = self.context.random.per_mille(700);
                let peers = self.replicas[replica].peers();
                if let Some((slot, incarnation)) = self.context.random.pick(&peers) {
                    self.context.send(Node::Replica(replica), Message::Probed(slot, incarnation, healthy));
                }
            }
        }
    }

    fn wish(&mut self, id: ExecutorId, wish: Wish) {
        let open: Vec<usize> = (0..self.replicas.len()).filter(|at| self.replicas[*at].is_open()).collect();
        for at in open {
            self.context.send(Node::Replica(at), Message::Wish(id.clone(), wish));
        }
    }

    fn calm_down(&mut self) {
        self.context.log(|| "the storm is over".to_owned());
        self.context.calm = true;
        self.context.cuts.clear();
        self.context.store.out_until = 0;
        let time = self.context.time;
        for at in 0..self.replicas.len() {
            let replica = &mut self.replicas[at];
            replica.down_until = replica.down_until.min(time);
            replica.paused_until = replica.paused_until.min(time);
            self.wakes.remove(&(false, at));
            self.wake(false, at, time);
        }
        for at in self.living() {
            self.processes[at].paused_until = self.processes[at].paused_until.min(time);
            self.wakes.remove(&(true, at));
            self.wake(true, at, time);
        }
    }

    /// Every 50 ms: somebody reads a table; in the calm, operators take back what they wished, and dead processes are started again.
    fn look(&mut self) {
        let replica = self.context.random.below(self.replicas.len());
        if let Some(table) = self.replicas[replica].published().cloned() {
            self.context.send(Node::Reader, Message::Table(table));
        }
        if !self.context.calm {
            return;
        }
        if let Some(snapshot) = self.context.store.current() {
            for (_, record) in snapshot.state.executors().filter(|(_, record)| record.wish != Wish::None) {
                self.wish(record.id.clone(), Wish::None);
            }
        }
        for at in 0..self.replicas.len() {
            for (slot, incarnation) in self.replicas[at].peers() {
                self.context.send(Node::Replica(at), Message::Probed(slot, incarnation, true));
            }
        }
        for id in self.ids.clone() {
            if !self.processes.iter().any(|process| process.alive && process.id == id) {
                self.start(id, true);
            }
        }
    }

    /// Whether every shard is worked on by who owns it, and whether the planner would leave it at that.
    fn settled(&self) -> (bool, bool) {
        let Some(Snapshot { state, .. }) = self.context.store.current() else { return (false, false) };
        let works = |(shard, record): (ShardId, shard_manager::assignment::record::ShardRecord)| {
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
