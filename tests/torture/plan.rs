//! What is broken, when, and for how long: drawn from a seed before the run begins, so that a seed stands for one sequence of faults.

use std::collections::HashMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::settings::{LEASE, REPLICAS, SEATS, SHARDS, Store, TTL, aftermath};

/// Everything that is done to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// SIGKILL.
    ManagerKilled,
    /// SIGSTOP.
    FreezeManager,
    /// SIGTERM, and started again.
    ManagerRestarted,
    /// An operator asks the leader to step down.
    ManagerSteppedDown,
    /// A standby that has waited stands still for longer than it may, and the leader goes meanwhile: a win that nobody may accept.
    StandbyPausedAsLeaderDies,
    /// Between a replica and the store no byte moves.
    StoreHeld,
    /// Its requests do not arrive; later they do.
    StoreRequestsLost,
    /// They arrive; their answers do not.
    StoreAnswersLost,
    StoreDropped,
    StoreDelayed,
    /// SIGKILL, and started again at the same address.
    ExecutorKilled,
    /// SIGKILL, and started again at another one.
    ExecutorKilledMoved,
    FreezeExecutor,
    /// It ends, and its next process goes on with its shards.
    ExecutorRestarted,
    /// It gives all shards away first, and comes back later.
    ExecutorLeft,
    /// A new one comes, and leaves later.
    ExecutorJoined,
    /// A second process under the same id.
    ExecutorDoubled,
    /// Between an executor and every replica no byte moves.
    CallsHeld,
    CallsAnswersLost,
    CallsDropped,
    CallsDelayed,
    /// Between an executor's port and whoever calls there: the leader and the client.
    CommandsHeld,
    CommandsAnswersLost,
    CommandsDropped,
    CommandsDelayed,
    /// Between an executor and the storage.
    StorageHeld,
    StorageAnswersLost,
    StorageDelayed,
    /// Between the client's router and every replica.
    RouterHeld,
    RouterDropped,
    /// An operator's drain; taken back later.
    Drained,
    /// An operator's removal; the executor is admitted again later.
    Removed,
    /// An operator moves a shard.
    Moved,
    /// SIGKILL of one member of etcd.
    MemberKilled,
    FreezeMember,
    /// PostgreSQL is killed and started again.
    DatabaseRestarted,
    /// It stands still, for less than a leadership's time.
    FreezeStore,
    /// Somebody else holds the write lock of the SQLite file.
    DatabaseLocked,
    /// The store does nothing for longer than a leadership lasts.
    MajorityLost,
    StoreWiped,
    /// Each executor, then each replica, one after the other.
    RollingRestart,
    /// The leader dies as soon as it has acknowledged an operator's wish.
    KillAfterAcknowledgement,
    /// On one side the leader and one executor, on the other the store, the standbys and all other executors.
    Split,
    /// An executor is cut off until its lease ends, and calls again while the leader's commits are slow.
    LeaseEdge,
    /// An executor's shards go and come all the time, and what it is told comes late.
    ChurnLateCommands,
    /// The same, and what it says comes late.
    ChurnLateCalls,
    /// The same, and what it is answered comes late.
    ChurnLateAnswers,
    /// A commit is held on its way until another one leads.
    StaleCommit,
    /// An executor is cut off from every replica for longer than its lease, and runs on; its writes arrive late.
    CutExecutor,
}

/// To whom. Who leads is found out when the time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    Leader,
    /// One of those that do not lead.
    Standby(usize),
    Seat(usize),
    Guest,
    Router,
    Member(usize),
    Store,
    All,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    pub begin: Duration,
    pub length: Duration,
    pub kind: Kind,
    pub target: Target,
    /// A draw of its own: a shard, a delay.
    pub draw: u32,
}

impl Fault {
    /// Whether it breaks what the other one is still breaking. A wiped store hinders nobody for long.
    pub fn conflicts_with(&self, other: &Fault, is_wiped: bool) -> bool {
        let (mine, mut theirs) = (self.kind.resources(self.target), other.kind.resources(other.target));
        if other.kind == Kind::StoreWiped && is_wiped {
            theirs = vec![Resource::Store];
        }
        mine.iter().any(|resource| theirs.contains(resource))
    }
}

/// What one thing at a time is done to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Resource {
    Replicas,
    ReplicasStore,
    Seat(usize),
    Wish(usize),
    Guest,
    Router,
    Store,
}

/// Nothing is broken before everybody had time to come.
const START: Duration = Duration::from_secs(3);
/// The longest pause between two beginnings, on average.
const PACE: Duration = Duration::from_millis(1500);
/// What a rolling restart takes.
const ROLLING: Duration = Duration::from_millis(900 * (SEATS + REPLICAS) as u64);
/// How many executors of those that are always there are broken at one time.
const SEATS_BROKEN: usize = 3;
/// A store that does nothing for long comes in every so many rounds of all the others.
const ROUNDS: usize = 3;
/// Runs that are shorter have no room for what takes many steps.
const LONG: Duration = Duration::from_secs(300);

impl Kind {
    /// As histories call it.
    pub fn name(self) -> String {
        serde_json::to_value(self).unwrap().as_str().unwrap().to_owned()
    }

    /// All that are done over a store, in a run of that length.
    pub fn of(store: Store, length: Duration) -> Vec<Kind> {
        use Kind::*;
        let mut all = vec![
            ManagerKilled,
            FreezeManager,
            ManagerRestarted,
            ManagerSteppedDown,
            StandbyPausedAsLeaderDies,
            ExecutorKilled,
            ExecutorKilledMoved,
            FreezeExecutor,
            ExecutorRestarted,
            ExecutorLeft,
            ExecutorJoined,
            ExecutorDoubled,
            CallsHeld,
            CallsAnswersLost,
            CallsDropped,
            CallsDelayed,
            CommandsHeld,
            CommandsAnswersLost,
            CommandsDropped,
            CommandsDelayed,
            StorageHeld,
            StorageAnswersLost,
            StorageDelayed,
            RouterHeld,
            RouterDropped,
            Drained,
            Removed,
            Moved,
            MajorityLost,
            StoreWiped,
            RollingRestart,
        ];
        let network = [StoreHeld, StoreRequestsLost, StoreAnswersLost, StoreDropped, StoreDelayed];
        match store {
            Store::Etcd => all.extend([&network[..], &[MemberKilled, FreezeMember]].concat()),
            Store::Postgres => all.extend([&network[..], &[DatabaseRestarted, FreezeStore]].concat()),
            Store::Sqlite => all.push(DatabaseLocked),
        }
        if length >= LONG {
            all.extend([KillAfterAcknowledgement, LeaseEdge, ChurnLateCommands, ChurnLateCalls, ChurnLateAnswers]);
            all.extend([StaleCommit, CutExecutor]);
            if store != Store::Sqlite {
                all.push(Split);
            }
        }
        all
    }

    /// The one that histories call so.
    pub fn named(name: &str, store: Store) -> Kind {
        let kind = Kind::of(store, LONG).into_iter().find(|kind| kind.name() == name);
        kind.unwrap_or_else(|| panic!("TORTURE_KINDS: {name} is no kind of fault over {store:?}"))
    }

    fn target(self, random: &mut StdRng) -> Target {
        use Kind::*;
        match self {
            // Who leads is worth more than who waits.
            ManagerKilled | FreezeManager | ManagerRestarted | StoreHeld | StoreRequestsLost | StoreAnswersLost
            | StoreDropped | StoreDelayed => match random.random_range(0..4) {
                standby @ 0..=1 => Target::Standby(standby),
                _ => Target::Leader,
            },
            ManagerSteppedDown => Target::Leader,
            StandbyPausedAsLeaderDies => Target::Standby(random.random_range(0..REPLICAS - 1)),
            ExecutorJoined => Target::Guest,
            RouterHeld | RouterDropped => Target::Router,
            MemberKilled | FreezeMember => Target::Member(random.random_range(0..3)),
            DatabaseRestarted | FreezeStore | DatabaseLocked | MajorityLost | StoreWiped => Target::Store,
            RollingRestart | Split => Target::All,
            _ => Target::Seat(random.random_range(0..SEATS)),
        }
    }

    fn length(self, random: &mut StdRng) -> Duration {
        use Kind::*;
        let mut between = |least: Duration, most: Duration| random.random_range(least..most);
        match self {
            ManagerSteppedDown | StoreDropped | CallsDropped | CommandsDropped | RouterDropped | Moved => Duration::ZERO,
            ManagerRestarted | ExecutorRestarted | DatabaseRestarted => Duration::ZERO,
            FreezeManager | FreezeExecutor | FreezeMember => between(TTL / 3, 3 * TTL),
            StandbyPausedAsLeaderDies => between(TTL * 3 / 2, TTL * 5 / 2),
            ManagerKilled | MemberKilled => between(TTL / 10, TTL * 2),
            FreezeStore | DatabaseLocked => between(TTL / 5, TTL * 4 / 5),
            MajorityLost => between(TTL * 3 / 2, TTL * 5 / 2),
            ExecutorJoined => between(LEASE, LEASE * 3),
            ExecutorLeft | Drained | Removed => between(LEASE, LEASE * 2),
            StoreWiped => aftermath(),
            RollingRestart => ROLLING,
            Split => TTL + LEASE + Duration::from_secs(3),
            CutExecutor => 2 * LEASE + Duration::from_secs(1),
            ChurnLateCommands | ChurnLateCalls | ChurnLateAnswers => Duration::from_secs(5),
            KillAfterAcknowledgement => TTL / 2,
            LeaseEdge => LEASE + Duration::from_millis(1200),
            StaleCommit => TTL + LEASE,
            _ => between(LEASE / 10, LEASE * 3 / 2),
        }
    }

    fn resources(self, target: Target) -> Vec<Resource> {
        use Kind::*;
        match (self, target) {
            (StoreHeld | StoreRequestsLost | StoreAnswersLost | StoreDropped | StoreDelayed, _) => vec![Resource::ReplicasStore],
            // Where the standby stands still and the leader dies, the third one has to reach the store.
            (StandbyPausedAsLeaderDies, _) => vec![Resource::Replicas, Resource::ReplicasStore, Resource::Store],
            (KillAfterAcknowledgement, Target::Seat(at)) => vec![Resource::Replicas, Resource::Wish(at)],
            (StaleCommit, Target::Seat(at)) => {
                vec![Resource::Replicas, Resource::ReplicasStore, Resource::Store, Resource::Wish(at)]
            }
            (LeaseEdge, Target::Seat(at)) => {
                vec![Resource::Replicas, Resource::ReplicasStore, Resource::Store, Resource::Seat(at)]
            }
            (ChurnLateCommands | ChurnLateCalls | ChurnLateAnswers, Target::Seat(at)) => {
                vec![Resource::Seat(at), Resource::Wish(at)]
            }
            (Split, _) => {
                let replicas = [Resource::Replicas, Resource::ReplicasStore, Resource::Store];
                (0..SEATS).map(Resource::Seat).chain(replicas).collect()
            }
            (_, Target::Leader | Target::Standby(_)) => vec![Resource::Replicas],
            (Drained | Removed | Moved, Target::Seat(at)) => vec![Resource::Wish(at)],
            (_, Target::Seat(at)) => vec![Resource::Seat(at)],
            (_, Target::Guest) => vec![Resource::Guest],
            (_, Target::Router) => vec![Resource::Router],
            (StoreWiped, _) => vec![Resource::Store, Resource::ReplicasStore, Resource::Replicas],
            (_, Target::Member(_) | Target::Store) => vec![Resource::Store],
            (_, Target::All) => (0..SEATS).map(Resource::Seat).chain([Resource::Replicas]).collect(),
        }
    }

    /// How long nothing else is done to the same thing after the fault is over.
    fn rest(self) -> Duration {
        use Kind::*;
        match self {
            MemberKilled | FreezeMember | DatabaseRestarted | FreezeStore | MajorityLost => TTL / 2,
            ManagerRestarted | ExecutorRestarted | ExecutorLeft | ExecutorDoubled | RollingRestart => TTL / 2,
            _ => TTL / 8,
        }
    }
}

/// All faults of a run, by their beginnings. Where they would not fit in, they follow each other faster.
pub fn plan(seed: u64, kinds: &[Kind], length: Duration) -> Vec<Fault> {
    let mut pace = PACE;
    loop {
        let faults = draw(seed, kinds, length, pace);
        let has_all = || kinds.iter().all(|kind| faults.iter().any(|fault| fault.kind == *kind));
        if pace < PACE / 20 || has_all() {
            return faults;
        }
        pace = pace.mul_f64(0.85);
    }
}

fn draw(seed: u64, kinds: &[Kind], length: Duration, pace: Duration) -> Vec<Fault> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut faults = Vec::new();
    let mut busy = HashMap::new();
    let mut deck = Vec::new();
    let (mut at, mut rounds, mut is_wiped) = (START, 0, !kinds.contains(&Kind::StoreWiped));
    while at < length {
        if deck.is_empty() {
            deck = kinds.to_vec();
            deck.retain(|kind| *kind != Kind::StoreWiped && (*kind != Kind::MajorityLost || rounds % ROUNDS == 0));
            deck.shuffle(&mut random);
            rounds += 1;
        }
        // In the middle of the run, as soon as the store is in order.
        let due = (!is_wiped && at >= length / 2).then_some(Kind::StoreWiped);
        let drawn = due.into_iter().chain(deck.iter().copied()).find_map(|kind| {
            let fault = one(kind, at, length, &mut random);
            is_free(&busy, &fault).then_some(fault)
        });
        let Some(fault) = drawn else {
            at += Duration::from_millis(100);
            continue;
        };
        match fault.kind {
            Kind::StoreWiped => is_wiped = true,
            kind => deck.retain(|other| *other != kind),
        }
        for resource in fault.kind.resources(fault.target) {
            // A wiped store hinders no replica for long, but its aftermath is a phase of its own.
            let is_short = fault.kind == Kind::StoreWiped && resource != Resource::Store;
            let lasts = if is_short { TTL } else { fault.length };
            busy.insert(resource, fault.begin + lasts + fault.kind.rest());
        }
        faults.push(fault);
        at += pace.mul_f64(random.random_range(0.4..1.6));
    }
    faults
}

/// None goes on when the run is over.
fn one(kind: Kind, begin: Duration, end: Duration, random: &mut StdRng) -> Fault {
    let (target, length, draw) = (kind.target(random), kind.length(random), random.random_range(0..SHARDS));
    Fault { begin, length: length.min(end - begin), kind, target, draw }
}

fn is_free(busy: &HashMap<Resource, Duration>, fault: &Fault) -> bool {
    let is_busy = |resource: &Resource| busy.get(resource).is_some_and(|until| *until > fault.begin);
    let seats = (0..SEATS).filter(|&at| is_busy(&Resource::Seat(at))).count();
    let is_one_too_many = matches!(fault.target, Target::Seat(_)) && seats >= SEATS_BROKEN;
    !is_one_too_many && !fault.kind.resources(fault.target).iter().any(is_busy)
}

#[cfg(test)]
fn plan_of(seed: u64, store: Store, length: Duration) -> Vec<Fault> {
    plan(seed, &Kind::of(store, length), length)
}

#[test]
fn what_is_named_alone_is_all_that_is_done() {
    let kinds = ["lease_edge", "cut_executor"].map(|name| Kind::named(name, Store::Sqlite));
    let faults = plan(1, &kinds, Duration::from_secs(60));
    assert!(kinds.iter().all(|kind| faults.iter().any(|fault| fault.kind == *kind)));
    assert!(faults.iter().all(|fault| kinds.contains(&fault.kind)));
}

#[test]
fn a_seed_stands_for_one_sequence() {
    let plans: Vec<_> = (0..20).map(|seed| plan_of(seed, Store::Etcd, Duration::from_secs(120))).collect();
    for (seed, faults) in (0..).zip(&plans) {
        assert_eq!(*faults, plan_of(seed, Store::Etcd, Duration::from_secs(120)));
        assert_eq!(plans.iter().filter(|other| *other == faults).count(), 1);
    }
}

#[test]
fn a_minute_has_every_kind_and_the_store_is_wiped_once() {
    for store in [Store::Etcd, Store::Postgres, Store::Sqlite] {
        for seed in 0..100 {
            let faults = plan_of(seed, store, Duration::from_secs(60));
            for kind in Kind::of(store, Duration::from_secs(60)) {
                assert!(faults.iter().any(|fault| fault.kind == kind), "{kind:?} on {store:?}, seed {seed}");
            }
            assert_eq!(faults.iter().filter(|fault| fault.kind == Kind::StoreWiped).count(), 1);
            assert!(faults.iter().all(|fault| fault.begin + fault.length <= Duration::from_secs(60)));
        }
    }
}

#[test]
fn five_minutes_have_what_takes_many_steps_too() {
    for store in [Store::Etcd, Store::Postgres, Store::Sqlite] {
        for seed in 0..20 {
            let faults = plan_of(seed, store, LONG);
            for kind in Kind::of(store, LONG) {
                assert!(faults.iter().any(|fault| fault.kind == kind), "{kind:?} on {store:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn no_two_faults_break_one_thing_at_once_and_somebody_is_left() {
    let faults = plan_of(1, Store::Postgres, Duration::from_secs(600));
    for (at, fault) in faults.iter().enumerate() {
        // The aftermath of a wiped store hinders nobody.
        let lasts = |other: &&Fault| other.begin + other.length > fault.begin && other.kind != Kind::StoreWiped;
        let others: Vec<&Fault> = faults[..at].iter().filter(lasts).collect();
        let resources = fault.kind.resources(fault.target);
        for other in &others {
            let shared = other.kind.resources(other.target).into_iter().any(|resource| resources.contains(&resource));
            assert!(!shared, "{other:?} and {fault:?}");
        }
        let seats = others.iter().filter(|other| matches!(other.kind.resources(other.target)[..], [Resource::Seat(_)])).count();
        assert!(seats <= SEATS_BROKEN, "{seats} executors are broken when {fault:?} begins");
    }
}
