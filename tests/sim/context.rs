//! What parts of the world have in common: time, chance, the store, what is said, and what was promised.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use shard_manager::assignment::State;
use shard_manager::assignment::command::{Answer, Assignment, Reply, Snapshot};
use shard_manager::assignment::event::{Claim, Departure, Registration, Renewal, RequestId};
use shard_manager::assignment::lease::margin;
use shard_manager::assignment::record::ShardState;
use shard_manager::assignment::state::{Changes, Meta};
use shard_manager::client::ledger::{Push, PushRefusal};
use shard_manager::holdings::Holdings;
use shard_manager::types::{BootInstant, ClusterId, Epoch, ExecutorId, Incarnation, Revision, ShardId, Slot, Version};

use crate::guards::Guard;
use crate::operators::{Operators, Word};
use crate::random::{Instant, MS, Random, SECOND, us};
use crate::storage::Storage;
use crate::store::{Refusal, Store};

/// One process of an executor, as managers tell it from others.
pub type Who = (ExecutorId, Incarnation);

/// What happened, and how often.
pub type Reached = BTreeMap<&'static str, u64>;

/// The executor lease L, where it is the same for all leaders.
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
    Reader(usize),
    Store,
    /// The executors'.
    Storage,
    Operator,
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
    /// An operator says it.
    Word(Word),
    Probed(Slot, Incarnation, bool),
    /// A reader that has this table, if any, wants what is newer.
    Watch {
        from: usize,
        stream: u64,
        known: Option<(ClusterId, Version)>,
    },
    /// What a watch says, in order; `None`: no more.
    Told {
        stream: u64,
        place: u64,
        what: Option<Vec<u8>>,
    },
    Write {
        from: usize,
        shard: ShardId,
        epoch: Epoch,
        writer: Who,
    },
    /// Whether the storage took it, else the epoch that it has seen.
    Written {
        shard: ShardId,
        epoch: Epoch,
        refused: Option<Epoch>,
    },
}

/// Who waits for a reply.
#[derive(Clone, Debug)]
pub enum Waits {
    Process(usize, u64),
    Reader { from: usize, stream: u64, known: Option<(ClusterId, Version)> },
    Operator,
}

/// A call that a leader took in.
#[derive(Clone, Debug)]
pub struct Caller {
    pub waits: Waits,
    pub who: Option<Who>,
    /// What it showed (L11).
    shown: Vec<(ShardId, Epoch)>,
    /// The cluster that it comes from.
    pub before: Option<ClusterId>,
}

impl Caller {
    pub fn new(waits: Waits) -> Caller {
        Caller { waits, who: None, shown: Vec::new(), before: None }
    }

    pub fn executor(process: usize, call: u64, body: &Call) -> Caller {
        let caller = Caller::new(Waits::Process(process, call));
        match body {
            Call::Register(it) => {
                let before = it.before.map(|(cluster_id, _)| cluster_id);
                Caller { who: Some((it.id.clone(), it.incarnation)), before, ..caller }
            }
            Call::Renew(it) => {
                let held = if let Claim::Full(held) = &it.claim { Some(held.iter()) } else { None };
                let shown = held.into_iter().flatten().chain(it.storage_epochs.iter()).collect();
                Caller { who: Some((it.id.clone(), it.incarnation)), shown, ..caller }
            }
            Call::Deregister(_) => caller,
        }
    }
}

/// What every part works with.
pub struct Context {
    pub time: Instant,
    /// No more faults.
    pub calm: bool,
    pub guard: Option<Guard>,
    /// The store is wiped and put back now and then.
    pub store_is_lost: bool,
    pub random: Random,
    pub store: Store,
    pub storage: Storage,
    pub operators: Operators,
    pub shards: u32,
    /// What managers are configured with as L: a leader takes one of them (L8).
    pub leases: Vec<Duration>,
    /// The store's limit of pages for one commit.
    pub pages: usize,
    /// A replica that has to go down at once.
    pub crash: Option<usize>,
    /// What is sent in this step.
    pub out: Vec<(Node, Node, Message)>,
    /// Who cannot reach whom.
    pub cuts: BTreeSet<(Node, Node)>,
    /// The newest start of each shard.
    starts: BTreeMap<ShardId, (Epoch, Who)>,
    /// Until then executors may work under leases that were given over what the store has lost: only epochs protect (P3).
    pub lost_leases_end: Instant,
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
            store_is_lost: false,
            random,
            store: Store::default(),
            storage: Storage::default(),
            operators: Operators::default(),
            shards,
            leases: vec![LEASE],
            pages,
            crash: None,
            out: Vec::new(),
            cuts: BTreeSet::new(),
            starts: BTreeMap::new(),
            lost_leases_end: 0,
            reached: Reached::new(),
            failure: None,
            tracing,
            lines: VecDeque::new(),
        }
    }

    pub fn send(&mut self, from: Node, to: Node, message: Message) {
        self.out.push((from, to, message));
    }

    /// For the trace; costs nothing where there is none.
    pub fn log(&mut self, line: impl FnOnce() -> String) {
        if self.tracing {
            self.lines.push_back(format!("{:>10.3} ms  {}", self.time as f64 / MS as f64, line()));
            if self.lines.len() > std::env::var("SIM_LINES").map_or(80, |lines| lines.parse().expect("a number")) {
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

    pub fn take(&mut self, result: Result<(), String>) {
        if let Err(what) = result {
            self.expect(false, || what);
        }
    }

    pub fn reaches_store(&self, replica: usize) -> bool {
        let replica = Node::Replica(replica);
        !self.cuts.contains(&(replica.clone(), Node::Store)) && !self.cuts.contains(&(Node::Store, replica))
    }

    /// Whether no two processes ever have one epoch of a shard, and no two states one version: always, unless the store lost what it had
    /// while clocks were wrong. Until somebody shows a higher term or epoch, they may then be drawn again.
    pub fn versions_tell_apart(&self) -> bool {
        self.store.restores == 0 || self.store.clocks_are_right
    }

    /// Somebody was, or may just have been, given a lease over what the store has lost.
    pub fn leased_over_lost(&mut self) {
        let longest = self.longest_lease();
        let drifted = us(longest + margin(longest));
        self.lost_leases_end = self.lost_leases_end.max(self.time + drifted);
    }

    pub fn longest_lease(&self) -> Duration {
        self.leases.iter().copied().max().unwrap_or(LEASE)
    }

    /// **P2.** What readers see is what the store has.
    pub fn published(&mut self, snapshot: &Snapshot) {
        let told = self.store.bears_out(snapshot.version, "a table", |state| *state == *snapshot.state);
        self.take(told);
    }

    /// **P2.** What executors are told is what the store has.
    pub fn commanded(&mut self, assignment: &Assignment) {
        let Assignment { slot, version, holdings, .. } = assignment;
        let told = self.store.bears_out(*version, "a command", |state| held(state, *slot) == **holdings);
        self.take(told);
    }

    /// **P2.** What is answered is what the store has. **L11.** What was shown was taken in before that.
    pub fn answered(&mut self, caller: &Caller, reply: &Reply) {
        let told = match (reply, &caller.who) {
            (Ok(Answer::Lease(_)), None) => Err("P2: a lease for nobody".to_owned()),
            (Ok(Answer::Lease(lease)), Some((id, incarnation))) => {
                let is_so = |state: &State| {
                    let slot = state.incarnation(id, *incarnation).map(|(slot, _)| slot);
                    slot.is_some_and(|slot| lease.assignment.as_ref().is_none_or(|told| *told == held(state, slot)))
                };
                let has = |state: &State| caller.shown.iter().all(|(shard, epoch)| *epoch <= state.shard(*shard).epoch);
                let is_recorded = self.store.durable(lease.version).any(|state| has(state));
                let told = self.store.bears_out(lease.version, "an answer", is_so);
                let shown = &caller.shown;
                told.and_then(|()| if is_recorded { Ok(()) } else { Err(format!("L11: {id} showed {shown:?} and was answered")) })
            }
            (Ok(Answer::Current(version)), _) => self.store.bears_out(*version, "an answer", |_| true),
            _ => Ok(()),
        };
        self.take(told);
    }

    /// An operator is answered; see [`Operators::answered`].
    pub fn answered_operator(&mut self, leadership: u64, request: RequestId, reply: &Reply) {
        match self.operators.answered(leadership, request, reply, &self.store) {
            Ok(what) => what.filter(|_| !self.calm).into_iter().for_each(|what| self.reached(what)),
            Err(what) => self.expect(false, || what),
        }
    }

    /// **L5.** A leader goes on as if a commit had not landed: then it did not, and never will.
    pub fn called_failed(&mut self, meta: &Meta) {
        let result = self.store.called_failed(meta);
        self.take(result);
    }

    /// **P4.** Work only ever starts at a higher epoch than before, or again under the same process. Over a store that lost what it had
    /// the storage's epochs stand for that, and those of grants.
    pub fn started(&mut self, shard: ShardId, epoch: Epoch, who: &Who) {
        let before = self.starts.insert(shard, (epoch, who.clone()));
        let grew = before.as_ref().is_none_or(|before| epoch > before.0 || epoch == before.0 && *who == before.1);
        self.expect(grew || self.store.restores > 0, || format!("P4: {who:?} starts shard {shard} at {epoch} after {before:?}"));
    }

    /// A write arrives at the executors' storage.
    pub fn write(&mut self, shard: ShardId, epoch: Epoch, writer: Who) -> Option<Epoch> {
        let apart = self.versions_tell_apart();
        match self.storage.write(self.guard, shard, epoch, writer, apart) {
            Ok(refused) => refused,
            Err(what) => {
                self.expect(false, || what);
                None
            }
        }
    }
}

/// What the executor in a slot should hold.
pub fn held(state: &State, slot: Slot) -> Holdings {
    let held = state.shards().filter(|(_, record)| record.state == ShardState::Held(slot));
    Holdings::from_pairs(held.map(|(shard, record)| (shard, record.epoch)))
}
