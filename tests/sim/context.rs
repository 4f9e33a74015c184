//! What parts of the world have in common: time, chance, the store, what is said, and what was promised.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use shard_manager::assignment::State;
use shard_manager::assignment::command::{Answer, Assignment, Reply, Snapshot};
use shard_manager::assignment::event::{Departure, Registration, Renewal};
use shard_manager::assignment::record::{ShardState, Wish};
use shard_manager::assignment::state::{Changes, Meta};
use shard_manager::client::ledger::{Push, PushRefusal};
use shard_manager::holdings::Holdings;
use shard_manager::types::{BootInstant, Epoch, ExecutorId, Incarnation, Revision, ShardId, Slot, Version};

use crate::guards::Guard;
use crate::random::{Instant, MS, Random, SECOND};
use crate::store::{Refusal, Store};

/// What happened, and how often.
pub type Reached = BTreeMap<&'static str, u64>;

/// The executor lease L.
pub const LEASE: Duration = Duration::from_secs(3);
/// The longest time between two turns of an engine.
pub const TURN: Duration = Duration::from_millis(200);
/// The longest that a message is under way.
pub const LONGEST_WAY: Instant = 4 * SECOND;

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
        request: u64,
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
    pub out: Vec<(Node, Message)>,
    /// Who cannot reach whom, either way.
    pub cuts: BTreeSet<(Node, Node)>,
    /// The newest start of each shard.
    starts: BTreeMap<ShardId, (Epoch, ExecutorId, Incarnation)>,
    /// What happened how often, to see that storms are rough enough.
    pub reached: Reached,
    pub failure: Option<String>,
    tracing: bool,
    pub lines: VecDeque<String>,
}

impl Context {
    pub fn new(random: Random, guard: Option<Guard>, shards: u32, pages: usize, tracing: bool) -> Context {
        Context {
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
        }
    }

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
