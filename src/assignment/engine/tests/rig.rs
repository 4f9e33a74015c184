//! A leadership on a store that takes every commit when the test says so, and executors that do as they are told.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use crate::assignment::Engine;
use crate::assignment::check;
use crate::assignment::command::{Answer, Command, LeaseAnswer, Notice, Overview, Refusal, Reply};
use crate::assignment::event::{Claim, Departure, Event, Registration, Renewal, RequestId, Settings, Takeover};
use crate::assignment::record::Wish;
use crate::assignment::state::State;
use crate::holdings::Holdings;
use crate::types::{BootInstant, ClusterId, Epoch, ExecutorId, Incarnation, Revision, ShardId, Slot, Term, Token, Version};

pub const LEASE: Duration = Duration::from_secs(10);
pub const MARGIN: Duration = Duration::from_millis(200);
pub const SETTLE: Duration = Duration::from_millis(500);
pub const CALM: Duration = Duration::from_secs(20);
pub const TICK: Duration = Duration::from_millis(100);
/// The wall clock when the first leadership begins, so its term.
pub const TERM: u64 = 1000;

pub fn settings() -> Settings {
    Settings {
        lease_ttl: LEASE,
        settle_time: SETTLE,
        calm_time: CALM,
        rebalance_threshold: 0.1,
        exclusive_ids: false,
        turn_interval: TICK,
        takeover_grace: Duration::ZERO,
        max_pages_per_commit: 64,
    }
}

pub fn cluster() -> ClusterId {
    ClusterId(Uuid::from_u128(7))
}

pub fn takeover(number_of_shards: u32, unix_ms: u64) -> Takeover {
    Takeover { token: Token(u128::from(unix_ms)), unix_ms, new_cluster: cluster(), number_of_shards }
}

pub fn id(name: &str) -> ExecutorId {
    name.parse().expect("a valid id")
}

pub fn version(term: u64, revision: u64) -> Version {
    Version { term: Term(term), revision: Revision(revision) }
}

pub fn held(pairs: &[(u32, u64)]) -> Holdings {
    Holdings::from_pairs(pairs.iter().map(|&(shard, epoch)| (ShardId(shard), Epoch(epoch))))
}

/// What a command list is about, in a word each: to compare the order of kinds.
pub fn kinds(commands: &[Command]) -> Vec<&'static str> {
    let kind = |command: &Command| match command {
        Command::Commit { .. } => "commit",
        Command::Publish(_) => "publish",
        Command::Connect(_) => "connect",
        Command::Send(_) => "send",
        Command::Disconnect(_) => "disconnect",
        Command::Reply(..) => "reply",
        Command::Notice(_) => "notice",
    };
    commands.iter().map(kind).collect()
}

pub fn replies(commands: &[Command]) -> Vec<Reply> {
    let reply = |command: &Command| match command {
        Command::Reply(_, reply) => Some(reply.clone()),
        _ => None,
    };
    commands.iter().filter_map(reply).collect()
}

pub fn notices(commands: &[Command]) -> Vec<Notice> {
    let notice = |command: &Command| match command {
        Command::Notice(notice) => Some(notice.clone()),
        _ => None,
    };
    commands.iter().filter_map(notice).collect()
}

/// A well-behaved executor that stops and starts at once.
#[derive(Clone, Debug)]
pub struct Executor {
    pub id: ExecutorId,
    pub incarnation: Incarnation,
    pub mark: Version,
    pub held: Holdings,
    pub slot: Option<Slot>,
    /// Does not do what it is told, and says nothing.
    pub deaf: bool,
    /// Says that it wants to leave.
    pub leaving: bool,
}

pub struct Rig {
    pub engine: Engine,
    pub now: BootInstant,
    pub revision: u64,
    pub state: Option<State>,
    pub executors: BTreeMap<&'static str, Executor>,
    /// Every shard's highest epoch so far, and all that was published, to be checked at every step.
    published: Option<State>,
    requests: u64,
}

impl Rig {
    /// A leadership on an empty store whose port has just opened.
    pub fn new(number_of_shards: u32) -> Rig {
        Rig::with(settings(), number_of_shards)
    }

    pub fn with(settings: Settings, number_of_shards: u32) -> Rig {
        let mut rig = Rig::starting(settings, takeover(number_of_shards, TERM), None);
        rig.open();
        rig
    }

    pub fn starting(settings: Settings, takeover: Takeover, loaded: Option<(Revision, State)>) -> Rig {
        let now = BootInstant(Duration::from_secs(1_000_000));
        let revision = loaded.as_ref().map_or(0, |(revision, _)| revision.0);
        let state = loaded.as_ref().map(|(_, state)| state.clone());
        let engine = Engine::new(settings, takeover, loaded, now);
        Rig { engine, now, revision, published: state.clone(), state, executors: BTreeMap::new(), requests: 0 }
    }

    /// The first commit, and the port.
    pub fn open(&mut self) -> Vec<Command> {
        assert_eq!(kinds(&self.turn()), ["commit"]);
        self.commit();
        self.step(Event::PortOpened)
    }

    pub fn step(&mut self, event: Event) -> Vec<Command> {
        let commands = self.engine.step(self.now, event);
        for command in &commands {
            if let Command::Publish(snapshot) = command {
                let state = State::clone(&snapshot.state);
                assert_eq!(check::check(&state), [], "every published state is sound");
                if let Some(before) = &self.published {
                    assert_eq!(check::check_step(before, &state), [], "and follows from the one before");
                }
                self.published = Some(state.clone());
                self.state = Some(state);
            }
        }
        commands
    }

    pub fn turn(&mut self) -> Vec<Command> {
        self.step(Event::Turn)
    }

    /// Turns, each when it is due, until one asks for a commit; its commands.
    pub fn turn_until_commit(&mut self) -> Vec<Command> {
        for _ in 0..1000 {
            self.now = self.now.max(self.engine.next_turn());
            let commands = self.turn();
            if !commands.is_empty() {
                assert!(kinds(&commands).contains(&"commit"), "{commands:?}");
                return commands;
            }
        }
        panic!("no commit in sight");
    }

    /// The commit in flight lands.
    pub fn commit(&mut self) -> Vec<Command> {
        self.revision += 1;
        let revision = Revision(self.revision);
        self.step(Event::Committed { revision })
    }

    pub fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    pub fn state(&self) -> &State {
        self.state.as_ref().expect("something was published")
    }

    pub fn version(&self) -> Version {
        Version { term: self.state().meta.term, revision: Revision(self.revision) }
    }

    pub fn overview(&mut self) -> Overview {
        let request = self.request();
        let commands = self.step(Event::Inspect(request));
        match &replies(&commands)[..] {
            [Ok(Answer::Overview(overview))] => overview.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// `executor=epoch` for each shard, `-` where nobody has it, `~` in front of one that is being released.
    pub fn owners(&self) -> Vec<String> {
        let name = |slot| self.state().executor(slot).map_or("?", |record| record.id.as_str()).to_owned();
        let owner = |record: crate::assignment::record::ShardRecord| match record.state {
            crate::assignment::record::ShardState::Unassigned => "-".to_owned(),
            crate::assignment::record::ShardState::Held(slot) => format!("{}={}", name(slot), record.epoch),
            crate::assignment::record::ShardState::Releasing(slot) => format!("~{}={}", name(slot), record.epoch),
        };
        self.state().shards().map(|(_, record)| owner(record)).collect()
    }

    pub fn count(&self, name: &str) -> usize {
        let slots: Vec<Slot> = self.state().executors().filter(|(_, it)| it.id.as_str() == name).map(|it| it.0).collect();
        self.state().shards().filter(|(_, record)| record.owner().is_some_and(|slot| slots.contains(&slot))).count()
    }

    pub fn registration(&self, name: &str, incarnation: u64, endpoint: &str) -> Registration {
        Registration {
            id: id(name),
            incarnation: Incarnation(incarnation),
            endpoint: endpoint.to_owned(),
            weight: 1,
            before: None,
        }
    }

    pub fn register(&mut self, registration: Registration) -> Vec<Command> {
        let request = self.request();
        self.step(Event::Register(request, registration))
    }

    pub fn wish(&mut self, name: &str, wish: Wish) -> Vec<Command> {
        let request = self.request();
        self.step(Event::Wish(request, id(name), wish))
    }

    pub fn deregister(&mut self, name: &str, incarnation: u64) -> Vec<Command> {
        let request = self.request();
        let departure = Departure { id: id(name), incarnation: Incarnation(incarnation), cluster_id: cluster() };
        self.step(Event::Deregister(request, departure))
    }

    /// A renewal as an executor in this very state would send it.
    pub fn renewal(&self, executor: &Executor) -> Renewal {
        Renewal {
            id: executor.id.clone(),
            incarnation: executor.incarnation,
            cluster_id: cluster(),
            mark: executor.mark,
            claim: Claim::Full(executor.held.clone()),
            leaving: executor.leaving,
            storage_epochs: Holdings::default(),
        }
    }

    pub fn renew(&mut self, renewal: Renewal) -> Vec<Command> {
        let request = self.request();
        self.step(Event::Renew(request, renewal))
    }

    /// Renews, and takes the answer to heart.
    pub fn renew_as(&mut self, name: &'static str) -> Result<LeaseAnswer, Refusal> {
        let renewal = self.renewal(&self.executors[name]);
        let commands = self.renew(renewal);
        match &replies(&commands)[..] {
            [Ok(Answer::Lease(answer))] => {
                let executor = self.executors.get_mut(name).expect("known");
                executor.mark = executor.mark.max(answer.version);
                if let Some(assignment) = &answer.assignment {
                    executor.held = assignment.clone();
                }
                Ok(answer.clone())
            }
            [Err(refusal)] => Err(refusal.clone()),
            other => panic!("{other:?}"),
        }
    }

    /// An executor joins under this incarnation, at an endpoint named after both, and its registration becomes durable.
    pub fn join(&mut self, name: &'static str, incarnation: u64) -> Vec<Command> {
        self.join_at(name, incarnation, &format!("http://{name}-{incarnation}:1"))
    }

    pub fn join_at(&mut self, name: &'static str, incarnation: u64, endpoint: &str) -> Vec<Command> {
        let executor = Executor {
            id: id(name),
            incarnation: Incarnation(incarnation),
            mark: Version::default(),
            held: Holdings::default(),
            slot: None,
            deaf: false,
            leaving: false,
        };
        self.executors.insert(name, executor);
        assert_eq!(self.register(self.registration(name, incarnation, endpoint)), []);
        self.settle()
    }

    /// Turns, commits, and lets executors obey until nothing is left to do at this instant. Returns every command.
    pub fn settle(&mut self) -> Vec<Command> {
        let mut all = Vec::new();
        for _ in 0..1000 {
            let mut commands = self.turn();
            let committing = kinds(&commands).contains(&"commit");
            if committing {
                commands.extend(self.commit());
            }
            let sent = self.obey(&commands);
            all.extend(commands);
            if !committing && !sent {
                return all;
            }
        }
        panic!("it never comes to rest: {:?}", kinds(&all));
    }

    fn obey(&mut self, commands: &[Command]) -> bool {
        let mut any = false;
        for command in commands {
            match command {
                Command::Connect(peer) => {
                    let mine = self.executors.values_mut().find(|it| it.id == peer.id && it.incarnation == peer.incarnation);
                    if let Some(executor) = mine {
                        executor.slot = Some(peer.slot);
                    }
                }
                Command::Send(assignment) => {
                    let mine = self.executors.values_mut().find(|it| it.incarnation == assignment.incarnation);
                    let Some(executor) = mine.filter(|it| !it.deaf) else { continue };
                    executor.mark = executor.mark.max(assignment.version);
                    executor.held = (*assignment.holdings).clone();
                    let (mark, held) = (executor.mark, executor.held.clone());
                    let (slot, incarnation) = (assignment.slot, assignment.incarnation);
                    self.step(Event::Applied { slot, incarnation, mark, held });
                    any = true;
                }
                _ => {}
            }
        }
        any
    }

    /// Time passes, turn by turn; whoever is not deaf renews every second.
    pub fn pass(&mut self, time: Duration) -> Vec<Command> {
        let until = self.now.after(time);
        let mut all = Vec::new();
        while self.now < until {
            let second = self.now.0.as_secs();
            self.now = self.now.after(TICK).min(until);
            if self.now.0.as_secs() != second {
                let names: Vec<&'static str> = self.executors.iter().filter(|(_, it)| !it.deaf).map(|(name, _)| *name).collect();
                for name in names {
                    let _ = self.renew_as(name);
                }
            }
            all.extend(self.settle());
        }
        all
    }
}
