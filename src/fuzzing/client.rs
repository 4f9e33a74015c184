//! What comes over the wire to an executor, to a caller and, as an executor's answer, to a manager: messages of any content, in any order,
//! into a real ledger and a real cache of tables.
//!
//! An input is a list of steps, each a byte and what it takes; see [`Parties::step`].

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;
use tonic::{Code, Status};

use super::input::Input;
use crate::api::manager;
use crate::assignment::command::Assignment;
use crate::client::cache::{self, Cache, Known};
use crate::client::ledger::{Action, Attempt, Kind, Ledger};
use crate::client::meaning::Meaning;
use crate::client::{NotOwner, wire};
use crate::executors::link;
use crate::holdings::Holdings;
use crate::rpc;
use crate::types::{BootInstant, ClusterId, Epoch, Incarnation, MAX_NUMBER, MAX_SHARDS, Revision, ShardId, Slot, Term, Version};

/// Of the executor, and of the cluster that seeds speak of.
pub const ID: &str = "a";
pub const INCARNATION: u64 = 5;
pub const CLUSTER: u128 = 7;
/// Of shards, as the manager's side of a link takes it.
pub const SHARDS: u32 = 64;

const MOST_STEPS: usize = 64;
const MOST_SAID: usize = 8192;

struct Parties {
    now: BootInstant,
    ledger: Ledger,
    attempt: Option<Attempt>,
    next_incarnation: u64,
    /// The last answer had as many.
    number_of_shards: u32,
    cache: Cache,
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let ledger = Ledger::new(ID.parse().unwrap(), Incarnation(INCARNATION));
    let now = BootInstant(Duration::from_secs(1000));
    let mut parties =
        Parties { now, ledger, attempt: None, next_incarnation: 100, number_of_shards: MAX_SHARDS, cache: Cache::default() };
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            return;
        }
        parties.step(&mut input);
    }
}

/// A refusal is said in so many words, and is a refusal of ours.
fn is_sayable(status: &Status) {
    assert!(rpc::reason_of(status).is_some(), "{status:?}");
    assert!(!status.message().is_empty() && status.message().len() < MOST_SAID, "{} bytes", status.message().len());
}

impl Parties {
    fn step(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        match what % 10 {
            0 => self.compose(),
            1 => self.answer(input.chunk()),
            2 => self.command(input.chunk()),
            3 => self.refuse(input.byte(), input.chunk()),
            4 => self.table(input.byte(), input.chunk()),
            5 => {
                self.now = self.now.after(Duration::from_millis(u64::from(input.short())));
                self.ledger.look(self.now);
            }
            6 => self.end(input.byte()),
            7 => {
                let (shard, epoch) = (ShardId(u32::from(input.byte())), Epoch(u64::from(input.word()).max(1)));
                self.ledger.storage_has_seen(shard, epoch);
            }
            8 => applied(input.byte(), input.chunk()),
            _ => match input.byte() % 3 {
                0 => self.ledger.leave(self.now),
                1 => self.ledger.stop(self.now),
                _ => {
                    if let Some(attempt) = self.attempt.take() {
                        self.ledger.unanswered(self.now, &attempt, what >= 128);
                    }
                }
            },
        }
        self.look();
    }

    /// What an executor sends, its manager takes, unless a manager told it nonsense of the number of shards meanwhile.
    fn compose(&mut self) {
        let Some(attempt) = self.ledger.compose(self.now) else { return };
        let id = ID.parse().unwrap();
        let shards = self.ledger.number_of_shards();
        let fits = |set: &Holdings| set.iter().all(|(shard, _)| shard.0 < shards);
        match attempt.kind {
            Kind::Register => drop(manager::registration(&wire::register(&id, "h:1", 1, &attempt)).expect("it is taken")),
            Kind::Renew if fits(&attempt.claim) && fits(&attempt.storage_epochs) => {
                drop(manager::renewal(&wire::renew(&id, &attempt), shards).expect("it is taken"));
            }
            Kind::Renew => {}
            Kind::Deregister if attempt.cluster_id.is_some() => {
                drop(manager::departure(&wire::deregister(&id, &attempt)).expect("it is taken"));
            }
            Kind::Deregister => {}
        }
        self.attempt = Some(attempt);
    }

    fn answer(&mut self, bytes: &[u8]) {
        let Ok(message) = rpc::LeaseAnswer::decode(bytes) else { return };
        let answer = match wire::answer(&message) {
            Ok(answer) => answer,
            Err(invalid) => return is_sayable(&Status::from(invalid)),
        };
        assert!((1..=MAX_SHARDS).contains(&answer.number_of_shards) && answer.version.term.0 <= MAX_NUMBER);
        let Some(attempt) = self.attempt.clone() else { return };
        let (cluster, mark) = (self.ledger.cluster_id(), self.ledger.mark());
        let (sent, ttl, same_cluster) = (attempt.sent, answer.lease_ttl, cluster == Some(answer.cluster_id));
        if self.ledger.answered(self.now, &attempt, answer).is_ok() {
            assert!(!same_cluster || self.ledger.mark() >= mark, "the mark went back");
            assert_eq!(self.ledger.lease(), Some(sent.after(ttl)), "a lease counts from when it was asked for (L7)");
            self.number_of_shards = self.ledger.number_of_shards();
        }
    }

    fn command(&mut self, bytes: &[u8]) {
        let Ok(message) = rpc::ApplyAssignmentRequest::decode(bytes) else { return };
        let push = match wire::push(&message) {
            Ok(push) => push,
            Err(invalid) => return is_sayable(&Status::from(invalid)),
        };
        self.ledger.look(self.now);
        let (lease, mark) = (self.ledger.lease(), self.ledger.mark());
        match self.ledger.push(self.now, &push) {
            Ok(()) => {
                assert!(lease.is_some() && self.ledger.lease() == lease, "a command extends no lease (L3)");
                assert!(push.version >= mark && self.ledger.mark() == push.version);
            }
            Err(refusal) => {
                assert_eq!((self.ledger.lease(), self.ledger.mark()), (lease, mark), "a command that bounces changes nothing");
                is_sayable(&Status::from(refusal));
            }
        }
    }

    /// The details of a status are bytes of whoever answers.
    fn refuse(&mut self, code: u8, details: &[u8]) {
        let status = Status::with_details(Code::from_i32(i32::from(code % 17)), "no", Bytes::copy_from_slice(details));
        let reason = rpc::reason_of(&status);
        rpc::is_unsettled(&status);
        if let Some(refused) = NotOwner::of(&status) {
            if let Some(route) = &refused.current {
                assert!(route.shard == refused.shard && (1..=MAX_NUMBER).contains(&route.epoch.0));
                if let Known::Route(known) = self.cache.known(route.shard) {
                    self.cache.doubt(self.now, &known, Some(route));
                }
            }
            let again = NotOwner::of(&Status::from(refused.clone()));
            assert_eq!(again, Some(refused), "it is said as it was understood");
        }
        let Some(attempt) = self.attempt.take() else { return };
        match Meaning::of(reason.as_deref(), attempt.kind, self.ledger.is_ending()) {
            Meaning::Verdict(verdict) => {
                self.next_incarnation += 1;
                self.ledger.refused(self.now, &attempt, verdict, Incarnation(self.next_incarnation));
            }
            Meaning::Gone => self.ledger.deregistered(),
            Meaning::Rejected | Meaning::Failed(_) => self.ledger.unanswered(self.now, &attempt, true),
        }
    }

    /// A watcher is told something.
    fn table(&mut self, asked: u8, bytes: &[u8]) {
        let Ok(message) = rpc::WatchRoutingTableResponse::decode(bytes) else { return };
        let before = self.cache.table().cloned();
        let asked = (asked & 1 == 1).then_some(self.now);
        match self.cache.take(self.now, asked, &message) {
            Ok(()) => {
                let table = self.cache.table().expect("something was told").clone();
                if let Some(before) = before.filter(|before| before.cluster_id() == table.cluster_id()) {
                    assert!(table.version() >= before.version(), "readers never go back (P7)");
                }
                assert!((1..=MAX_SHARDS).contains(&table.number_of_shards()) && table.version().term.0 >= 1);
                for route in table.routes().take(100) {
                    assert_eq!((table.epoch(route.shard), Some(&route)), (route.epoch, table.route(route.shard).as_ref()));
                    assert!(route.epoch.0 <= MAX_NUMBER);
                    let known = self.cache.known(route.shard);
                    assert!(!matches!(known, Known::Unowned | Known::NoSuchShard(_) | Known::NoTable), "{known:?}");
                }
                assert_eq!(self.cache.known(ShardId(table.number_of_shards())), Known::NoSuchShard(table.number_of_shards()));
                let beat = rpc::RoutingTableDelta {
                    from_revision: table.version().revision.0,
                    version: Some(table.version().into()),
                    ..rpc::RoutingTableDelta::default()
                };
                let beat = rpc::watch_routing_table_response::Change::Delta(beat);
                let beat = rpc::WatchRoutingTableResponse { change: Some(beat) };
                assert_eq!(cache::next(Some(&table), &beat), Ok(None), "nothing changed is no other table");
            }
            Err(refused) => {
                assert!(!refused.to_string().is_empty() && refused.to_string().len() < MOST_SAID);
                let same = match (&before, self.cache.table()) {
                    (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                    (before, now) => before.is_none() && now.is_none(),
                };
                assert!(same, "what is refused changes nothing");
            }
        }
    }

    fn end(&mut self, which: u8) {
        let held: Vec<_> = self.ledger.held().iter().collect();
        if let Some((shard, epoch)) = held.get(usize::from(which) % held.len().max(1)) {
            self.ledger.ended(self.now, *shard, *epoch);
        }
    }

    /// What must hold after every step.
    fn look(&mut self) {
        let lease = self.ledger.lease();
        for action in self.ledger.take_actions() {
            match action {
                Action::Start(_, epoch) => {
                    assert!((1..=MAX_NUMBER).contains(&epoch.0));
                    assert!(lease.is_some_and(|until| until > self.now), "work begins under a live lease");
                }
                Action::Leased(until) => assert!(until > self.now),
                Action::Stop(..) => {}
                Action::Fence(shard, epoch) => {
                    // As the session does: what is fenced is dropped at once.
                    self.ledger.ended(self.now, shard, epoch);
                }
            }
        }
        assert!(self.ledger.mark().term.0 <= MAX_NUMBER && self.ledger.mark().revision.0 <= MAX_NUMBER);
        let held = self.ledger.held();
        assert!(held.iter().all(|(shard, _)| shard.0 < MAX_SHARDS));
    }
}

/// An executor answers its manager's command.
fn applied(number_held: u8, bytes: &[u8]) {
    let Ok(message) = rpc::ApplyAssignmentResponse::decode(bytes) else { return };
    let holdings = Holdings::from_pairs((0..u32::from(number_held % 8)).map(|shard| (ShardId(shard), Epoch(9))));
    let assignment = Assignment {
        slot: Slot(0),
        incarnation: Incarnation(INCARNATION),
        cluster_id: ClusterId(uuid::Uuid::from_u128(CLUSTER)),
        version: Version { term: Term(9), revision: Revision(3) },
        holdings: Arc::new(holdings),
    };
    if let Some((mark, held)) = link::answer_of(&assignment, message, SHARDS) {
        assert!(mark >= assignment.version && mark.term.0 <= MAX_NUMBER && mark.revision.0 <= MAX_NUMBER);
        assert!(held.iter().all(|(shard, epoch)| shard.0 < SHARDS && (1..=MAX_NUMBER).contains(&epoch.0)));
    }
}
