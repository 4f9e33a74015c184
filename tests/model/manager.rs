//! A manager: the real engine, and around it what coordinator, links and keepalive do, one message at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use shard_manager::assignment::command::{Answer, Assignment, Command, LeaseAnswer, Notice, Refusal, Reply, Snapshot};
use shard_manager::assignment::event::{Event, RequestId, Settings, Takeover};
use shard_manager::assignment::record::{ShardState, Wish};
use shard_manager::assignment::state::Changes;
use shard_manager::assignment::{Engine, State};
use shard_manager::client::ledger::{Push, PushRefusal};
use shard_manager::holdings::Holdings;
use shard_manager::types::{ClusterId, Revision, Slot, Token, Version};

use crate::executor;
use crate::guards::Guard;
use crate::message::{Call, Clock, LEADERSHIP, Message, Output, Outputs, StoreRefusal};
use crate::shared::{Shared, print_of};
use crate::store::Store;

#[derive(Clone, Debug)]
pub struct Manager {
    at: usize,
    pub paused: bool,
    pub leadership: Option<Leadership>,
}

#[derive(Clone, Debug)]
pub struct Leadership {
    pub number: u64,
    engine: Engine,
    /// The tick at which the belief in it ends (L4).
    pub believe_until: u32,
    commit: Option<InFlight>,
    links: BTreeMap<Slot, Link>,
    /// What the engine published last, and its print.
    memory: Option<(Snapshot, u64)>,
}

#[derive(Clone, Debug)]
struct InFlight {
    message: Shared<Message>,
    attempt: u64,
    /// An answer was not waited for: it may have landed (L5).
    in_doubt: bool,
}

#[derive(Clone, Debug)]
struct Link {
    executor: usize,
    /// The version of the command that is not answered yet.
    awaits: Option<Version>,
}

/// What happens to a manager.
#[derive(Clone, Debug, Hash)]
pub enum Input {
    /// Wins the election and loads what is stored.
    Win(Shared<Store>),
    /// A tick has passed; whether the leadership was renewed before. Turns, unless that would change something: then the turn comes as
    /// one of the things that may happen first or later.
    Tick {
        is_kept: bool,
    },
    Turn,
    Keep,
    Message(Shared<Message>),
    /// The answer to the commit is not waited for any more.
    NotAnswered,
    /// Its leadership may not be believed in any more.
    GiveUp,
    /// An operator drains an executor, or takes that back.
    Wish {
        executor: usize,
        drain: bool,
    },
    Pause,
    Wake,
}

impl Leadership {
    fn settings(clock: Clock) -> Settings {
        Settings {
            lease_ttl: clock.lease(),
            settle_time: Duration::ZERO,
            calm_time: Duration::ZERO,
            rebalance_threshold: 0.1,
            exclusive_ids: false,
            turn_interval: clock.length_of_tick(),
            takeover_grace: Duration::ZERO,
            max_pages_per_commit: 64,
        }
    }

    pub fn is_open(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether an operator's wish would change something.
    pub fn may_wish(&self, executor: usize, drain: bool) -> bool {
        let memory = self.memory.as_ref().map(|(snapshot, _)| &snapshot.state);
        let record = memory.and_then(|state| state.present(&executor::id(executor)));
        record.is_some_and(|(_, record)| (record.wish == Wish::Drain) != drain)
    }

    pub fn is_believed_in(&self, clock: Clock) -> bool {
        clock.tick < self.believe_until
    }

    pub fn waits_for_a_turn(&self, clock: Clock) -> bool {
        self.engine.next_turn() <= clock.now()
    }

    pub fn waits_for_the_store(&self) -> bool {
        self.commit.is_some()
    }

    pub fn commits(&self, attempt: u64) -> bool {
        self.commit.as_ref().is_some_and(|commit| commit.attempt == attempt)
    }

    /// **L5.** What it goes by while nothing is under way to the store.
    pub fn settled_memory(&self) -> Option<(Revision, u64)> {
        self.memory.as_ref().filter(|_| self.commit.is_none()).map(|(snapshot, print)| (snapshot.version.revision, *print))
    }

    pub fn waits_for_command(&self, executor: usize, version: Version) -> bool {
        self.links.values().any(|link| link.executor == executor && link.awaits == Some(version))
    }
}

impl Manager {
    pub fn new(at: usize) -> Manager {
        Manager { at, paused: false, leadership: None }
    }

    pub fn take(&self, clock: Clock, input: &Input, guard: Option<Guard>) -> (Manager, Outputs) {
        let (mut manager, mut out) = (self.clone(), Outputs::default());
        match input {
            Input::Win(store) => {
                let takeover = Takeover {
                    token: Token(u128::from(store.leader)),
                    unix_ms: 0,
                    new_cluster: ClusterId(uuid::Uuid::from_u128(7)),
                    number_of_shards: 1,
                };
                manager.leadership = Some(Leadership {
                    number: store.leader,
                    engine: Engine::new(Leadership::settings(clock), takeover, store.load(), clock.now()),
                    believe_until: clock.tick + LEADERSHIP,
                    commit: None,
                    links: BTreeMap::new(),
                    memory: None,
                });
                out.reached("a leadership began");
            }
            Input::Pause => manager.paused = true,
            Input::Wake => manager.paused = false,
            Input::GiveUp => {
                manager.leadership = None;
                out.reached("a leader gave up by its own deadline");
            }
            _ => {}
        }
        if let Some(leadership) = &mut manager.leadership {
            let mut turn = Term { at: manager.at, clock, guard, leadership, out: &mut out };
            if turn.take_in(input).is_err() {
                manager.leadership = None;
            }
        }
        (manager, out)
    }
}

/// The leadership is over.
struct Over;

/// One leadership while something happens to it.
struct Term<'a> {
    at: usize,
    clock: Clock,
    guard: Option<Guard>,
    leadership: &'a mut Leadership,
    out: &'a mut Outputs,
}

impl Term<'_> {
    fn take_in(&mut self, input: &Input) -> Result<(), Over> {
        match input {
            Input::Win(_) | Input::Turn => self.turn(),
            Input::Tick { is_kept } => {
                if *is_kept {
                    self.leadership.believe_until = self.clock.tick + LEADERSHIP;
                }
                self.believe();
                let mut turned = self.leadership.engine.clone();
                if turned.step(self.clock.now(), Event::Turn).is_empty() {
                    self.leadership.engine = turned;
                }
            }
            Input::Keep => self.leadership.believe_until = self.clock.tick + LEADERSHIP,
            Input::NotAnswered => self.not_answered(),
            Input::Message(message) => return self.message(message),
            Input::Wish { executor, drain } => {
                let wish = if *drain { Wish::Drain } else { Wish::None };
                self.event(Event::Wish(RequestId(u64::MAX), executor::id(*executor), wish), None);
            }
            Input::GiveUp | Input::Pause | Input::Wake => {}
        }
        Ok(())
    }

    fn message(&mut self, message: &Message) -> Result<(), Over> {
        match message {
            Message::Call { from, number, body, .. } => {
                let request = RequestId(((*from as u64) << 48) | number);
                let mut body = body.clone();
                if self.guard == Some(Guard::Marks)
                    && let (Call::Renew(renewal), Some((memory, _))) = (&mut body, &self.leadership.memory)
                {
                    renewal.mark = memory.version;
                }
                self.event(
                    match body {
                        Call::Register(registration) => Event::Register(request, registration),
                        Call::Renew(renewal) => Event::Renew(request, renewal),
                    },
                    None,
                );
            }
            Message::Pushed { from, version, answer, .. } => self.pushed(*from, *version, answer),
            Message::Stored { attempt, result, .. } => {
                let Some(commit) = self.leadership.commit.take_if(|commit| commit.attempt == *attempt) else { return Ok(()) };
                match result {
                    Ok((revision, print)) => {
                        if commit.in_doubt {
                            self.out.reached("a commit in doubt was settled");
                        }
                        self.event(Event::Committed { revision: *revision }, Some(*print));
                    }
                    Err(StoreRefusal::Unavailable) if commit.in_doubt => {
                        // The identical commit again.
                        self.out.0.push(Output::Send(commit.message.clone()));
                        self.leadership.commit = Some(commit);
                    }
                    Err(StoreRefusal::Unavailable) => {
                        self.out.reached("a commit failed");
                        self.event(Event::CommitFailed, None);
                    }
                    Err(StoreRefusal::LeadershipLost | StoreRefusal::ConcurrentModification) => return Err(Over),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn not_answered(&mut self) {
        let Some(commit) = &mut self.leadership.commit else { return };
        if self.guard == Some(Guard::UnknownOutcomes) {
            self.leadership.commit = None;
            return self.event(Event::CommitFailed, None);
        }
        commit.in_doubt = true;
        self.out.0.push(Output::Send(commit.message.clone()));
    }

    fn pushed(&mut self, from: usize, version: Version, answer: &Result<(Version, Holdings), PushRefusal>) {
        let links = self.leadership.links.iter_mut();
        let Some((&slot, link)) = links.into_iter().find(|(_, link)| link.executor == from && link.awaits == Some(version))
        else {
            return;
        };
        link.awaits = None;
        let Ok((mark, held)) = answer else { return };
        let Some((memory, _)) = &self.leadership.memory else { return };
        let Some(record) = memory.state.executor(slot) else { return };
        let mark = if self.guard == Some(Guard::Marks) { memory.version } else { *mark };
        self.event(Event::Applied { slot, incarnation: record.incarnation, mark, held: held.clone() }, None);
    }

    fn believe(&mut self) {
        // Without its rule it believes for longer than anything lasts.
        let until = if self.guard == Some(Guard::Belief) { 1_000_000 } else { self.leadership.believe_until };
        self.leadership.engine.believe_until(self.clock.at(until));
    }

    fn turn(&mut self) {
        self.step(Event::Turn, None);
    }

    /// A batch of one event. `stored` is the print of what the store holds, where the event says that it does.
    fn event(&mut self, event: Event, stored: Option<u64>) {
        self.step(event, stored);
        self.turn();
    }

    fn step(&mut self, event: Event, stored: Option<u64>) {
        self.believe();
        let opens = !self.leadership.is_open();
        for command in self.leadership.engine.step(self.clock.now(), event) {
            match command {
                Command::Commit { expected, changes } => self.commit(expected, changes),
                Command::Publish(snapshot) => {
                    let print = print_of(&*snapshot.state);
                    self.out.expect(stored == Some(print), || format!("P2: {} is told, and is not durable", snapshot.version));
                    self.leadership.memory = Some((snapshot, print));
                }
                Command::Connect(peer) => {
                    let executor = (0..2).find(|executor| executor::endpoint(*executor) == peer.endpoint);
                    let link = Link { executor: executor.expect("one of the two"), awaits: None };
                    self.leadership.links.insert(peer.slot, link);
                }
                Command::Disconnect(slot) => {
                    self.leadership.links.remove(&slot);
                }
                Command::Send(assignment) => self.give(&assignment),
                Command::Reply(request, reply) => self.reply(request, reply),
                Command::Notice(notice) => self.out.reached(match notice {
                    Notice::Joined { .. } => "an executor joined",
                    Notice::Lapsed { .. } => "a lease ended",
                    Notice::Moved { .. } => "the shard moved",
                    Notice::NotAdmitted { .. } => "the shard was not started in time",
                    Notice::ReleaseTimedOut { .. } => "the shard was not stopped in time",
                    Notice::Wished { .. } => "an operator wished something",
                    Notice::Stalled { .. } => "a leader stalled",
                    _ => "something else was noticed",
                }),
            }
        }
        if opens && self.leadership.is_open() {
            self.step(Event::PortOpened, None);
        }
    }

    fn commit(&mut self, expected: Option<Revision>, changes: Changes) {
        self.out.expect(self.leadership.commit.is_none(), || "P2: two commits are in flight".to_owned());
        let attempt = changes.meta.attempt;
        let early = Revision(expected.map_or(1, |revision| revision.0 + 1));
        let message = Shared::new(Message::Commit { from: self.at, leadership: self.leadership.number, expected, changes });
        self.out.0.push(Output::Send(message.clone()));
        self.leadership.commit = Some(InFlight { message, attempt, in_doubt: false });
        if self.guard == Some(Guard::DurableFirst) {
            self.leadership.commit = None;
            self.step(Event::Committed { revision: early }, None);
        }
    }

    /// **P2.** What is said is said of what was published last.
    fn held(&mut self, version: Version, slot: Slot, said: Option<&Holdings>) {
        let memory = self.leadership.memory.as_ref().map(|(snapshot, _)| snapshot);
        let fits = memory
            .is_some_and(|memory| memory.version == version && said.is_none_or(|said| *said == holdings(&memory.state, slot)));
        self.out.expect(fits, || format!("P2: {version} is said, and is not what was published last"));
    }

    fn give(&mut self, assignment: &Assignment) {
        let Assignment { slot, incarnation, cluster_id, version, holdings } = assignment;
        self.held(*version, *slot, Some(holdings));
        let Some(link) = self.leadership.links.get_mut(slot) else { return };
        link.awaits = Some(*version);
        let push = Push {
            cluster_id: *cluster_id,
            version: *version,
            executor_id: executor::id(link.executor).to_string(),
            incarnation: incarnation.0,
            assignment: Holdings::clone(holdings),
        };
        let (to, leadership) = (link.executor, self.leadership.number);
        self.out.send(Message::Push { from: self.at, leadership, to, push });
    }

    fn reply(&mut self, request: RequestId, mut reply: Reply) {
        if request == RequestId(u64::MAX) {
            return;
        }
        let (to, number) = ((request.0 >> 48) as usize, request.0 & ((1 << 48) - 1));
        let slot = self.slot(to);
        if let (Ok(Answer::Lease(lease)), Some(slot)) = (&reply, slot) {
            self.held(lease.version, slot, lease.assignment.as_ref());
        }
        self.out.reached(match &reply {
            Ok(_) => "a call was answered",
            Err(Refusal::LeaseEnding { .. }) => "a renewal was refused while its lease was being ended",
            Err(Refusal::LeadershipLost) => "a call was refused past the belief deadline",
            Err(_) => "a call was refused",
        });
        if self.guard == Some(Guard::ExpiryFirst)
            && matches!(reply, Err(Refusal::LeaseEnding { .. }))
            && let (Some((memory, _)), Some(slot)) = (&self.leadership.memory, slot)
        {
            // The answer that it would have got before.
            reply = Ok(Answer::Lease(LeaseAnswer {
                cluster_id: memory.state.meta.cluster_id,
                version: memory.version,
                number_of_shards: 1,
                lease_ttl: self.clock.lease(),
                assignment: Some(holdings(&memory.state, slot)),
                claim_wanted: false,
            }));
        }
        self.out.send(Message::Answer { to, number, reply });
    }

    fn slot(&self, executor: usize) -> Option<Slot> {
        let (memory, _) = self.leadership.memory.as_ref()?;
        memory.state.present(&executor::id(executor)).map(|(slot, _)| slot)
    }
}

/// What the executor in a slot should hold.
fn holdings(state: &State, slot: Slot) -> Holdings {
    let held = state.shards().filter(|(_, record)| record.state == ShardState::Held(slot));
    Holdings::from_pairs(held.map(|(shard, record)| (shard, record.epoch)))
}
