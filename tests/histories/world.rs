//! All there is: a store, leaders of whom the last is the newest, processes of executors, and messages under way. What is promised is
//! looked at whenever something is told or written, and after every step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::executor::{LEADERSHIP, Process};
use crate::store::Store;
use crate::{CALM, LEASE, SETTLE, TICK};
use crate::{Fate, Step, Succession, Way};
use shard_manager::assignment::command::{Answer, Command, Reply};
use shard_manager::assignment::event::{Event, RequestId, Settings, Takeover};
use shard_manager::assignment::record::Wish;
use shard_manager::assignment::state::Changes;
use shard_manager::assignment::{Engine, State};
use shard_manager::client::ledger::Push;
use shard_manager::holdings::Holdings;
use shard_manager::types::{BootInstant, ClusterId, Epoch, Incarnation, Revision, ShardId, Slot, Token, Version};

pub type Checked = Result<(), String>;

/// A commit that the store has not answered.
struct Unsettled {
    landed: Option<Revision>,
    expected: Option<Revision>,
    changes: Changes,
}

pub struct Leader {
    pub number: u64,
    pub engine: Engine,
    believes_until: BootInstant,
    /// It cannot reach the store any more.
    pub cut_off: bool,
    open: bool,
    unsettled: Option<Unsettled>,
    /// Whose call a request is, its number there, and what becomes of the answer.
    calls: BTreeMap<RequestId, (usize, u64, Way)>,
    /// The highest version that it told each incarnation.
    pub told: BTreeMap<Incarnation, Version>,
}

/// A message under way.
#[derive(Clone)]
pub enum Message {
    Request { leader: u64, event: Event, call: (RequestId, usize, u64) },
    Answer { process: usize, number: u64, reply: Reply },
    Push { leader: u64, slot: Slot, process: usize, push: Push },
    Applied { leader: u64, event: Event },
}

pub struct World {
    pub now: BootInstant,
    settings: Settings,
    pub store: Store,
    pub leaders: Vec<Leader>,
    /// Those that are gone are not there any more.
    pub processes: BTreeMap<usize, Process>,
    pub under_way: VecDeque<Message>,
    /// For leaders, in order; the newest leader reads none while it stands still.
    events: VecDeque<(u64, Event)>,
    stands_still: bool,
    pub fate: Fate,
    requests: u64,
    incarnations: u64,
    pub commits: usize,
    /// Who started each shard last, and at which epoch.
    pub started: BTreeMap<ShardId, (Epoch, Incarnation)>,
}

impl World {
    /// A leadership on an empty store whose port has just opened.
    pub fn new(number_of_shards: u32, max_pages_per_commit: usize) -> World {
        let store = Store::new(number_of_shards);
        let mut world = World {
            now: BootInstant(Duration::from_secs(1_000_000)),
            settings: Settings {
                lease_ttl: LEASE,
                settle_time: SETTLE,
                calm_time: CALM,
                rebalance_threshold: 0.1,
                exclusive_ids: false,
                turn_interval: TICK,
                takeover_grace: Duration::ZERO,
                max_pages_per_commit,
            },
            store,
            leaders: Vec::new(),
            processes: BTreeMap::new(),
            under_way: VecDeque::new(),
            events: VecDeque::new(),
            stands_still: false,
            fate: Fate::Lands,
            requests: 0,
            incarnations: 0,
            commits: 0,
            started: BTreeMap::new(),
        };
        world.lead(Duration::ZERO, LEASE);
        world.pump().expect("nothing to go wrong yet");
        world
    }

    /// Shards that were started, counted by epochs.
    pub fn grants(&self) -> usize {
        let epochs = self.store.history.values().flat_map(State::shards).filter(|(_, record)| record.owner().is_some());
        epochs.map(|(shard, record)| (shard, record.epoch)).collect::<BTreeSet<_>>().len()
    }

    pub fn lead(&mut self, takeover_grace: Duration, lease_ttl: Duration) {
        self.store.leader += 1;
        let number = self.store.leader;
        let settings = Settings { takeover_grace, lease_ttl, ..self.settings.clone() };
        let takeover = Takeover {
            token: Token(u128::from(number)),
            // The wall clock stands still: terms grow all the same.
            unix_ms: 1000,
            new_cluster: ClusterId(uuid::Uuid::from_u128(7)),
            number_of_shards: self.store.number_of_shards,
        };
        let engine = Engine::new(settings, takeover, self.store.load(), self.now);
        self.leaders.push(Leader {
            number,
            engine,
            believes_until: self.now.after(LEADERSHIP),
            cut_off: false,
            open: false,
            unsettled: None,
            calls: BTreeMap::new(),
            told: BTreeMap::new(),
        });
        self.stands_still = false;
    }

    pub fn newest(&self) -> u64 {
        self.store.leader
    }

    fn process(&mut self, at: usize) -> Option<&mut Process> {
        let count = self.processes.len();
        self.processes.values_mut().nth(at % count.max(1))
    }

    pub fn take(&mut self, step: &Step) -> Checked {
        let now = self.now;
        match *step {
            Step::Join { id, place } => self.join((id, place)),
            Step::Leave(at) => self.process(at).map_or((), |it| it.ledger.leave(now)),
            Step::Stop(at) => self.process(at).map_or((), |it| it.ledger.stop(now)),
            Step::Die(at) => {
                let gone = self.processes.keys().copied().nth(at % self.processes.len().max(1));
                gone.and_then(|at| self.processes.remove(&at));
            }
            Step::Calls(at, way) => self.process(at).map_or((), |it| it.calls = way),
            Step::Commands(at, way) => self.process(at).map_or((), |it| it.commands = way),
            Step::Slow(at, slow) => self.process(at).map_or((), |it| it.slow = slow),
            Step::Finish(at) => self.process(at).map_or((), |it| it.finish(now)),
            Step::GiveUp(at) => self.process(at).map_or((), |it| it.give_up(now)),
            Step::Arrive { message, again } => self.arrive(message, again)?,
            Step::Pass(ms) => return self.pass(Duration::from_millis(ms)),
            Step::Stall(ms) => {
                self.stands_still = true;
                self.pass(Duration::from_millis(ms))?;
                self.stands_still = false;
                self.renew_leadership();
            }
            Step::Commits(fate) => self.fate = fate,
            Step::Settle => self.settle()?,
            Step::Lead { how, short_lease } => return self.succeed(how, if short_lease { LEASE * 2 / 5 } else { LEASE }),
            Step::Wish(at, wish) => self.wish(at, wish),
            Step::Probe(at, healthy) => self.probe(at, healthy),
        }
        self.go_on()
    }

    pub fn join(&mut self, seat: (usize, usize)) {
        // Nobody else can be behind the same address. That proves that the process before is gone, as long as no registration of it is
        // still on its way: one that arrived later would look like a newer process there. See "not promised".
        let gone: Vec<usize> = self.processes.iter().filter(|(_, it)| it.seat == seat).map(|(at, _)| *at).collect();
        self.processes.retain(|at, _| !gone.contains(at));
        self.under_way.retain(|message| {
            !matches!(message, Message::Request { event: Event::Register(..), call: (_, of, _), .. } if gone.contains(of))
        });
        self.incarnations += 1;
        let process = Process::new(seat, Incarnation(self.incarnations), self.newest(), self.now);
        self.processes.insert(self.incarnations as usize, process);
    }

    pub fn wish(&mut self, at: usize, wish: Wish) {
        self.requests += 1;
        self.events.push_back((self.newest(), Event::Wish(RequestId(self.requests), Process::id(at), wish)));
    }

    pub fn probe(&mut self, at: usize, healthy: bool) {
        let Some((_, state)) = self.store.current() else { return };
        let executors: Vec<(Slot, Incarnation)> = state.executors().map(|(slot, it)| (slot, it.incarnation)).collect();
        if let Some(&(slot, incarnation)) = executors.get(at % executors.len().max(1)) {
            self.events.push_back((self.newest(), Event::Probed { slot, incarnation, healthy }));
        }
    }

    fn succeed(&mut self, how: Succession, lease_ttl: Duration) -> Checked {
        let mut grace = Duration::ZERO;
        match how {
            Succession::Crash => self.leaders.clear(),
            Succession::StillBelieves => grace = LEADERSHIP,
            Succession::BeliefOver => {
                self.leaders.iter_mut().for_each(|leader| leader.cut_off = true);
                self.pass(LEADERSHIP)?;
            }
        }
        while self.leaders.len() > 1 {
            self.leaders.remove(0);
        }
        self.lead(grace, lease_ttl);
        self.go_on()
    }

    /// Time passes, in steps of the engine's turns.
    pub fn pass(&mut self, time: Duration) -> Checked {
        let until = self.now.after(time);
        self.go_on()?;
        while self.now < until {
            self.now = self.now.after(TICK).min(until);
            self.renew_leadership();
            self.go_on()?;
        }
        Ok(())
    }

    fn renew_leadership(&mut self) {
        let (newest, until) = (self.newest(), self.now.after(LEADERSHIP));
        let stands_still = self.stands_still;
        for leader in &mut self.leaders {
            if leader.number == newest && !leader.cut_off && !stands_still {
                leader.believes_until = until;
            }
        }
    }

    /// Everybody does what is to be done at this instant.
    pub fn go_on(&mut self) -> Checked {
        for _ in 0..1000 {
            for process in self.processes.values_mut() {
                process.look(self.now);
            }
            self.look_at_starts()?;
            self.processes.retain(|_, process| process.ledger.end().is_none());
            let called = self.call();
            self.pump()?;
            if !called {
                return self.check_owners();
            }
        }
        Err("calls without end".to_owned())
    }

    /// Every process that wants to makes a call.
    fn call(&mut self) -> bool {
        let mut any = false;
        let leaders: Vec<u64> = self.leaders.iter().map(|leader| leader.number).collect();
        for (&at, process) in &mut self.processes {
            self.requests += 1;
            let request = RequestId(self.requests);
            let Some((number, event)) = process.call(self.now, request) else { continue };
            any = true;
            if !leaders.contains(&process.manager) {
                process.manager = self.store.leader;
            }
            let leader = process.manager;
            let call = (request, at, number);
            match process.calls {
                Way::Lost => {}
                Way::Late => self.under_way.push_back(Message::Request { leader, event, call }),
                way => {
                    let leader = self.leaders.iter_mut().find(|it| it.number == leader).expect("looked for");
                    leader.calls.insert(request, (at, number, way));
                    self.events.push_back((leader.number, event));
                }
            }
        }
        any
    }

    fn arrive(&mut self, message: usize, again: bool) -> Checked {
        let at = message % self.under_way.len().max(1);
        let Some(message) = self.under_way.get(at).cloned() else { return Ok(()) };
        // A call is answered once, whatever the network does.
        if !again || !matches!(message, Message::Push { .. }) {
            self.under_way.remove(at);
        }
        match message {
            Message::Request { leader: number, event, call: (request, process, of) } => {
                if let Some(leader) = self.leaders.iter_mut().find(|it| it.number == number) {
                    leader.calls.insert(request, (process, of, Way::Prompt));
                    self.events.push_back((number, event));
                }
            }
            Message::Answer { process, number, reply } => return self.answer(process, number, reply),
            Message::Push { leader, slot, process, push } => return self.push(leader, slot, process, &push, Way::Prompt),
            Message::Applied { leader, event } => self.events.push_back((leader, event)),
        }
        Ok(())
    }

    /// Leaders read what there is to read, and take a turn after it.
    pub fn pump(&mut self) -> Checked {
        for _ in 0..1000 {
            let mut batch = Vec::new();
            let (still, newest) = (self.stands_still, self.newest());
            let reads = |number: u64| !(still && number == newest);
            let mut unread = VecDeque::new();
            for (number, event) in std::mem::take(&mut self.events) {
                if reads(number) { batch.push((number, event)) } else { unread.push_back((number, event)) }
            }
            self.events = unread;
            let awake = self.leaders.iter().filter(|leader| reads(leader.number));
            let turns: Vec<u64> = awake
                .filter(|it| self.now >= it.engine.next_turn() || batch.iter().any(|(to, _)| *to == it.number))
                .map(|it| it.number)
                .collect();
            if batch.is_empty() && turns.is_empty() {
                return Ok(());
            }
            for (number, event) in batch {
                self.step(number, event)?;
            }
            for number in turns {
                self.step(number, Event::Turn)?;
            }
        }
        Err("it never comes to rest at one instant".to_owned())
    }

    fn step(&mut self, number: u64, event: Event) -> Checked {
        let Some(leader) = self.leaders.iter_mut().find(|leader| leader.number == number) else { return Ok(()) };
        leader.engine.believe_until(leader.believes_until);
        for command in leader.engine.step(self.now, event) {
            self.carry_out(number, command)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, number: u64, command: Command) -> Checked {
        match command {
            Command::Commit { expected, changes } => self.commit(number, expected, changes),
            Command::Publish(snapshot) => {
                if self.store.history.get(&snapshot.version) != Some(&*snapshot.state) {
                    return Err(format!("P2: {} is published and not durable", snapshot.version));
                }
                if let Some(leader) = self.leaders.iter_mut().find(|it| it.number == number && !it.open) {
                    leader.open = true;
                    self.events.push_back((number, Event::PortOpened));
                }
                Ok(())
            }
            Command::Send(assignment) => {
                self.told(number, assignment.incarnation, assignment.version, Some(&assignment.holdings))?;
                let found = self.processes.iter().find(|(_, it)| it.ledger.incarnation() == assignment.incarnation);
                let Some((&at, process)) = found else { return Ok(()) };
                let push = Push {
                    cluster_id: assignment.cluster_id,
                    version: assignment.version,
                    executor_id: Process::name(process.seat.0).to_owned(),
                    incarnation: assignment.incarnation.0,
                    assignment: Holdings::clone(&assignment.holdings),
                };
                match process.commands {
                    Way::Lost => {}
                    Way::Late => {
                        self.under_way.push_back(Message::Push { leader: number, slot: assignment.slot, process: at, push })
                    }
                    way => self.push(number, assignment.slot, at, &push, way)?,
                }
                Ok(())
            }
            Command::Reply(request, reply) => self.reply(number, request, reply),
            Command::Connect(_) | Command::Disconnect(_) | Command::Notice(_) => Ok(()),
        }
    }

    fn commit(&mut self, number: u64, expected: Option<Revision>, changes: Changes) -> Checked {
        let leader = self.leaders.iter().find(|it| it.number == number).expect("it asks");
        if leader.unsettled.is_some() {
            return Err("two commits in flight".to_owned());
        }
        self.commits += 1;
        let fate = if leader.cut_off { Fate::Hangs } else { self.fate };
        if fate == Fate::Fails && number == self.newest() {
            self.events.push_back((number, Event::CommitFailed));
            return Ok(());
        }
        let landed = if fate == Fate::Hangs { None } else { self.write(number, expected, &changes)? };
        let Some(leader) = self.leaders.iter_mut().find(|it| it.number == number) else { return Ok(()) };
        match landed {
            Some(revision) if fate == Fate::Lands => self.events.push_back((number, Event::Committed { revision })),
            landed => leader.unsettled = Some(Unsettled { landed, expected, changes }),
        }
        Ok(())
    }

    /// Where it is refused, that leader is no more.
    fn write(&mut self, number: u64, expected: Option<Revision>, changes: &Changes) -> Result<Option<Revision>, String> {
        let landed = self.store.commit(number, expected, changes)?;
        if landed.is_none() {
            self.leaders.retain(|leader| leader.number != number);
        }
        self.check_owners()?;
        Ok(landed)
    }

    /// **L5.** What was in doubt is settled by the identical commit.
    pub fn settle(&mut self) -> Checked {
        let numbers: Vec<u64> =
            self.leaders.iter().filter(|it| !it.cut_off || it.number != self.newest()).map(|it| it.number).collect();
        for number in numbers {
            let leader = self.leaders.iter_mut().find(|it| it.number == number);
            let Some(unsettled) = leader.and_then(|it| it.unsettled.take()) else { continue };
            let landed = match unsettled.landed.filter(|_| number == self.newest()) {
                Some(revision) => Some(revision),
                None => self.write(number, unsettled.expected, &unsettled.changes)?,
            };
            self.events.extend(landed.map(|revision| (number, Event::Committed { revision })));
        }
        Ok(())
    }

    fn push(&mut self, leader: u64, slot: Slot, process: usize, push: &Push, way: Way) -> Checked {
        let Some(process) = self.processes.get_mut(&process) else { return Ok(()) };
        let Some((mark, held)) = process.push(self.now, push) else { return Ok(()) };
        let event = Event::Applied { slot, incarnation: Incarnation(push.incarnation), mark, held };
        match way {
            Way::AnswerLost => {}
            Way::AnswerLate => self.under_way.push_back(Message::Applied { leader, event }),
            _ => self.events.push_back((leader, event)),
        }
        self.look_at_starts()
    }

    fn reply(&mut self, number: u64, request: RequestId, reply: Reply) -> Checked {
        let leader = self.leaders.iter_mut().find(|leader| leader.number == number);
        let Some((at, of, way)) = leader.and_then(|it| it.calls.remove(&request)) else { return Ok(()) };
        if let (Ok(Answer::Lease(answer)), Some(process)) = (&reply, self.processes.get(&at)) {
            let incarnation = process.ledger.incarnation();
            self.told(number, incarnation, answer.version, answer.assignment.as_ref())?;
        }
        match way {
            Way::AnswerLost => {}
            Way::AnswerLate => self.under_way.push_back(Message::Answer { process: at, number: of, reply }),
            _ => self.answer(at, of, reply)?,
        }
        Ok(())
    }

    fn answer(&mut self, at: usize, number: u64, reply: Reply) -> Checked {
        let newest = self.newest();
        let Some(process) = self.processes.get_mut(&at) else { return Ok(()) };
        self.incarnations += 1;
        if process.answered(self.now, number, reply, Incarnation(self.incarnations)) {
            process.manager = newest;
        }
        self.look_at_starts()
    }
}
