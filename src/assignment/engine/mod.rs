//! Decides what happens when.
//!
//! [`Engine::step`] takes events in: renewals and claims only touch memory and are answered at once; calls that change the state wait.
//! A [`Turn`](Event::Turn) makes a *draft* of the next state out of everything that waits (`turn`), and asks for its commit; while that
//! is in flight events go on being taken in, and nothing else is drafted. `Committed` puts the draft in force (`settle`): only then is
//! anybody told.
//!
//! | file | what |
//! | --- | --- |
//! | `mod` | the engine's memory, and which event goes where |
//! | `calls` | renewals; what registering, leaving and operators' wishes do to a draft |
//! | `demands` | what operators demand besides: removals, moves |
//! | `pause` | rebalancing, paused and resumed |
//! | `questions` | what operators ask, and nothing changes |
//! | `forecast` | what would move, if |
//! | `explain` | how a shard is, and why; the words stand in `sentences` |
//! | `history` | what happened to each shard last |
//! | `notes` | why not more is done, worded when somebody asks |
//! | `turn` | what a turn drafts: ends of leases, freed shards, releases, grants |
//! | `settle` | what follows from a commit, and from a leader's first one |
//! | `contact` | what is known of one incarnation |
//! | `deadlines` | until when shards have time |
//! | `draft` | the next state, within a store's limits |
//! | `unserved` | why shards are not served |
//! | `wall` | the wall clock, counted on from when the leadership began |

mod calls;
mod contact;
mod deadlines;
mod demands;
mod draft;
mod explain;
mod forecast;
mod history;
mod notes;
mod pause;
mod questions;
mod sentences;
mod settle;
#[cfg(test)]
mod tests;
mod turn;
mod unserved;
mod wall;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::assignment::command::{Answer, Cause, Command, ExecutorOverview, ExecutorState, Notice, Overview, Refusal, Snapshot};
use crate::assignment::event::{Demand, Departure, Event, Registration, Renewal, RequestId, Settings, Takeover};
use crate::assignment::lease::{Lease, find_stall, margin};
use crate::assignment::record::{ExecutorRecord, Standing, Wish};
use crate::assignment::state::{Inventory, Meta, Seal, State};
use crate::types::{BootInstant, ClusterId, Epoch, ExecutorId, Incarnation, Revision, ShardId, Slot, Term, Version};

use contact::Contact;
use draft::Outbox;
use history::History;
use notes::Notes;
use unserved::Unserved;
use wall::Wall;

/// One leadership's mind. See the module's picture. Everything by which it decides shows in `Debug`: what looks the same acts the
/// same, by which `tests/model/` tells engines apart.
#[derive(Clone, Debug)]
pub struct Engine {
    settings: Settings,
    takeover: Takeover,
    wall: Wall,

    /// What is durable and in force; on an empty store, what its first commit starts from.
    state: Arc<State>,
    /// Of the stored state; `None` while the store is empty.
    revision: Option<Revision>,
    phase: Phase,
    in_flight: Option<InFlight>,
    /// After a commit that failed: not before this, and how long to wait after the next failure.
    retry: (BootInstant, Duration),

    /// Calls that wait for the next draft, in the order in which they came.
    queue: VecDeque<Waiting>,
    /// Epochs above the recorded ones that somebody showed (L11), for the next draft.
    shown_epochs: BTreeMap<ShardId, Shown>,
    contacts: BTreeMap<Slot, Contact>,
    /// The registered incarnation of each id.
    present: BTreeMap<ExecutorId, Slot>,

    /// Where shards that are on their way are to go. A hint: whoever grants looks whether it still makes sense.
    destinations: BTreeMap<ShardId, Destination>,
    /// Who did not start a shard (L6): it goes to somebody else next.
    avoid: BTreeMap<ShardId, Slot>,
    unserved: Unserved,
    /// For people alone.
    history: History,
    /// What the last pass of the planner wanted and was not done yet, ascending by shard. For people alone.
    deferred: Vec<Deferred>,
    /// Why incarnations ended, where it was not their lease.
    ended: BTreeMap<Slot, Cause>,
    /// How many commits were tried.
    attempts: u64,

    /// The version that was loaded: the store had nothing newer. Whoever has seen something newer proves that it was restored.
    loaded: Version,
    /// Of this leadership; it may raise its term later.
    first_term: Term,
    /// Somebody has seen something newer than was loaded.
    restored: bool,
    /// Clusters that executors came from, each of which has held grants back once (L12).
    foreign: BTreeSet<ClusterId>,
    /// How often ids were taken over by another incarnation within two leases and margins of the last time, and when that was.
    flaps: BTreeMap<ExecutorId, Flaps>,
    /// Since when the store takes no commit.
    failing_since: Option<BootInstant>,

    /// A move that did not fit into one draft: whose it is, and how many shards have to move for it.
    begun_move: Option<(RequestId, u32)>,

    /// Until when joins are gathered.
    settle_until: Option<BootInstant>,
    /// Executors left that had shards.
    departures: Option<Departures>,
    /// Until when nothing is granted: shards may still be held under another cluster's leases (L12).
    held_until: Option<BootInstant>,
    /// When the leases that an earlier leader granted are over (L8): from then on `meta` need not remember their length.
    longer_leases_end: Option<BootInstant>,
    /// The leadership's belief deadline (L4).
    believe_until: Option<BootInstant>,

    /// When the turn that comes next is due (L9).
    due: BootInstant,
    /// No deadline is over before this.
    alarm: BootInstant,
    /// Something changed that the next turn has to look at.
    attention: bool,
    notes: Notes,
}

/// How far a leadership has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first commit, which raises the term, is not durable.
    Starting,
    /// It is, but executors cannot reach this leader yet.
    Closed,
    /// Executors can reach it.
    Open,
}

/// The commit in flight.
#[derive(Clone, Debug)]
struct InFlight {
    next: State,
    outbox: Outbox,
}

/// A call that waits for a draft.
#[derive(Clone, Debug)]
enum Waiting {
    Register(RequestId, Registration),
    Deregister(RequestId, Departure),
    Wish(RequestId, ExecutorId, Wish),
    Demand(RequestId, Demand),
    /// A renewal that showed something which has to be recorded before it is answered (L10, L11).
    Renew(RequestId, Renewal),
    Heard(RequestId, Version),
}

/// An epoch above the recorded one.
#[derive(Clone, Copy, Debug)]
struct Shown {
    epoch: Epoch,
    /// Who holds the shard at that epoch; `None` where it was a storage's word.
    by: Option<Slot>,
}

/// See [`Engine::flaps`].
#[derive(Clone, Copy, Debug)]
struct Flaps {
    in_a_row: u32,
    last: BootInstant,
}

/// Executors that left one after the other, none later than the calm time after the one before.
#[derive(Clone, Copy, Debug)]
struct Departures {
    /// When the first of them did.
    since: BootInstant,
    /// Until when nothing is moved for balance.
    calm_until: BootInstant,
}

/// So often in a row another incarnation may follow within two leases and margins before the id is called unstable: then its shards go
/// to others.
const FLAPS: u32 = 3;

/// Where a shard is to go.
#[derive(Clone, Copy, Debug)]
struct Destination {
    slot: Slot,
    /// Not chosen by a plan: the incarnation takes the place of the shard's last owner, so nothing moves (L13).
    succession: bool,
}

/// A step of a plan that waits.
#[derive(Clone, Copy, Debug)]
struct Deferred {
    shard: ShardId,
    to: Slot,
}

/// How things stand, for gauges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Shards that nobody is known to serve, by why: unassigned, being released, or granted and not yet admitted.
    pub unserved: BTreeMap<Cause, u32>,
    /// Executors by state.
    pub executors: BTreeMap<ExecutorState, u32>,
}

/// How many calls wait for a draft at the most: more come only while the store takes nothing.
const MOST_WAITING: usize = 16_384;

/// The first and the longest wait after a commit that failed.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

impl Engine {
    /// Registering an incarnation in place of another changes up to this many pages, which belong together.
    pub const LEAST_PAGES_PER_COMMIT: usize = 4;

    /// Takes over what the store has (`None`: nothing yet). The first [`Event::Turn`] commits the new term; until that is durable
    /// every call is answered with `NotReady`.
    ///
    /// # Panics
    /// Where the stored shard count is not the configured one, the state is not open, or a commit could not write the few pages that
    /// belong together: all of it is checked before a leadership is sought.
    pub fn new(settings: Settings, takeover: Takeover, loaded: Option<(Revision, State)>, now: BootInstant) -> Engine {
        assert!(settings.max_pages_per_commit >= Self::LEAST_PAGES_PER_COMMIT, "too few pages for what belongs together");
        let (revision, state) = match loaded {
            Some((revision, state)) => (Some(revision), state),
            None => (None, State::new(Self::first_meta(&takeover))),
        };
        assert_eq!(state.meta.number_of_shards, takeover.number_of_shards, "the shard count is checked before");
        assert_eq!(state.meta.seal, Seal::Open, "nobody leads on a state that was exported, or is not whole");
        let loaded = Version { term: state.meta.term, revision: revision.unwrap_or_default() };
        Engine {
            unserved: Unserved::new(takeover.number_of_shards),
            history: History::new(takeover.number_of_shards, now),
            deferred: Vec::new(),
            wall: Wall::new(takeover.unix_ms, now),
            settings,
            takeover,
            state: Arc::new(state),
            revision,
            phase: Phase::Starting,
            in_flight: None,
            retry: (now, RETRY.0),
            queue: VecDeque::new(),
            shown_epochs: BTreeMap::new(),
            contacts: BTreeMap::new(),
            present: BTreeMap::new(),
            destinations: BTreeMap::new(),
            avoid: BTreeMap::new(),
            ended: BTreeMap::new(),
            attempts: 0,
            loaded,
            first_term: Term::default(),
            restored: false,
            foreign: BTreeSet::new(),
            flaps: BTreeMap::new(),
            failing_since: None,
            begun_move: None,
            settle_until: None,
            departures: None,
            held_until: None,
            longer_leases_end: None,
            believe_until: None,
            due: now,
            alarm: now,
            attention: true,
            notes: Notes::default(),
        }
    }

    fn first_meta(takeover: &Takeover) -> Meta {
        Meta {
            cluster_id: takeover.new_cluster,
            number_of_shards: takeover.number_of_shards,
            term: Term::default(),
            token: takeover.token,
            attempt: 0,
            lease_ttl_ms: 0,
            inventory: Inventory::default(),
            seal: Seal::Open,
            pause: None,
        }
    }

    /// Until when the leadership may be believed in; as long as nobody says so, without end. After that nothing is granted or renewed
    /// (L4). To be set before every batch of events, from a deadline that was read after the events were.
    pub fn believe_until(&mut self, deadline: BootInstant) {
        self.believe_until = Some(deadline);
    }

    /// Takes in one event. `now` must have been read after the event arrived, and never go back.
    pub fn step(&mut self, now: BootInstant, event: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        self.look_at_the_clock(now, &mut commands);
        match event {
            Event::Register(request, registration) => {
                self.enqueue(now, request, Waiting::Register(request, registration), &mut commands)
            }
            Event::Deregister(request, departure) => {
                self.enqueue(now, request, Waiting::Deregister(request, departure), &mut commands)
            }
            Event::Wish(request, id, wish) => self.enqueue(now, request, Waiting::Wish(request, id, wish), &mut commands),
            Event::Demand(request, demand) => self.enqueue(now, request, Waiting::Demand(request, demand), &mut commands),
            Event::Ask(request, question) => commands.push(Command::Reply(request, self.answer(now, question))),
            Event::Heard(request, version) => self.enqueue(now, request, Waiting::Heard(request, version), &mut commands),
            Event::Renew(request, renewal) => self.renew(now, request, renewal, &mut commands),
            Event::Inspect(request) => {
                let overview = Answer::Overview(self.overview(now));
                commands.push(Command::Reply(request, Ok(overview)));
            }
            Event::Applied { slot, incarnation, mark, held } => self.applied(now, slot, incarnation, mark, held),
            Event::Probed { slot, incarnation, healthy } => self.probed(slot, incarnation, healthy),
            Event::PortOpened => self.port_opened(now, &mut commands),
            Event::Committed { revision } => self.committed(now, revision, &mut commands),
            Event::CommitFailed => self.commit_failed(now, &mut commands),
            Event::Turn => self.turn(now, &mut commands),
        }
        commands
    }

    /// When the next [`Event::Turn`] is due, at the latest.
    pub fn next_turn(&self) -> BootInstant {
        self.due
    }

    /// **L9, stalls.** If the turn that was due did not come, this process was stopped or starved: it blames itself before anybody
    /// else (P10).
    fn look_at_the_clock(&mut self, now: BootInstant, commands: &mut Vec<Command>) {
        let Some(stall) = find_stall(self.due, now, self.settings.turn_interval) else { return };
        for contact in self.contacts.values_mut() {
            contact.postpone(&stall);
        }
        self.due = now;
        commands.push(Command::Notice(Notice::Stalled { delay: stall.delay }));
    }

    /// **L4, belief.** Whether this leadership may still grant and renew.
    fn believes(&self, now: BootInstant) -> bool {
        self.believe_until.is_none_or(|deadline| now < deadline)
    }

    fn may_answer(&self, now: BootInstant) -> Result<(), Refusal> {
        if self.phase != Phase::Open {
            return Err(Refusal::NotReady);
        }
        if !self.believes(now) {
            return Err(Refusal::LeadershipLost);
        }
        Ok(())
    }

    fn enqueue(&mut self, now: BootInstant, request: RequestId, waiting: Waiting, commands: &mut Vec<Command>) {
        let room = if self.queue.len() < MOST_WAITING { Ok(()) } else { Err(Refusal::StoreUnavailable) };
        match self.may_answer(now).and(room) {
            Ok(()) => self.queue.push_back(waiting),
            Err(refusal) => commands.push(Command::Reply(request, Err(refusal))),
        }
    }

    /// The version in force.
    fn version(&self) -> Version {
        Version { term: self.state.meta.term, revision: self.revision.unwrap_or_default() }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot { version: self.version(), state: Arc::clone(&self.state) }
    }

    /// The longest lease that an executor may hold, and what is added to it before it is called over.
    fn longest_lease(&self) -> Duration {
        let longest = self.settings.lease_ttl.max(Duration::from_millis(self.state.meta.lease_ttl_ms));
        longest + margin(longest)
    }

    /// The end of a lease that is renewed now (L7).
    fn lease_end(&self, now: BootInstant) -> BootInstant {
        now.after(self.settings.lease_ttl + self.settings.margin())
    }

    fn contact(&mut self, slot: Slot, incarnation: Incarnation) -> Option<&mut Contact> {
        self.contacts.get_mut(&slot).filter(|contact| contact.incarnation == incarnation)
    }

    fn probed(&mut self, slot: Slot, incarnation: Incarnation, healthy: bool) {
        let Some(contact) = self.contact(slot, incarnation) else { return };
        let changed = std::mem::replace(&mut contact.healthy, healthy) != healthy;
        self.attention |= changed;
    }

    /// How an executor is, in one word.
    fn executor_state(&self, slot: Slot, record: &ExecutorRecord) -> ExecutorState {
        let contact = self.contacts.get(&slot);
        let shards = contact.map_or(0, Contact::shards);
        match record {
            ExecutorRecord { standing: Standing::Gone, wish: Wish::Remove, .. } if shards == 0 => ExecutorState::Removed,
            ExecutorRecord { standing: Standing::Superseded | Standing::Gone, .. } => ExecutorState::Lapsed,
            // Its end is not durable yet.
            _ if contact.is_some_and(|it| it.lease_is_over) => ExecutorState::Lapsed,
            ExecutorRecord { wish: Wish::Remove, .. } => ExecutorState::Removing,
            ExecutorRecord { wish: Wish::Drain, .. } | ExecutorRecord { leaving: true, .. } => {
                if shards == 0 {
                    ExecutorState::Drained
                } else {
                    ExecutorState::Draining
                }
            }
            ExecutorRecord { wish: Wish::Cordon, .. } => ExecutorState::Cordoned,
            _ if contact.is_none_or(|it| !it.healthy || it.sluggish_until.is_some()) => ExecutorState::Suspect,
            _ => ExecutorState::Active,
        }
    }

    /// Shards that nobody is known to serve, by why; see [`Statistics`]. At hand without counting.
    pub fn unserved(&self) -> &BTreeMap<Cause, u32> {
        self.unserved.counts()
    }

    /// How things stand. Looks at every executor.
    pub fn statistics(&self) -> Statistics {
        let mut executors: BTreeMap<ExecutorState, u32> = ExecutorState::ALL.map(|state| (state, 0)).into();
        if self.phase != Phase::Starting {
            for (slot, record) in self.state.executors() {
                *executors.entry(self.executor_state(slot, record)).or_default() += 1;
            }
        }
        Statistics { unserved: self.unserved.counts().clone(), executors }
    }

    fn overview(&self, now: BootInstant) -> Overview {
        let executors = self.state.executors().map(|(slot, record)| {
            let contact = self.contacts.get(&slot);
            let lease = contact.and_then(|contact| contact.lease).filter(|_| record.standing != Standing::Gone);
            let ends = lease.map_or(now, |lease| lease.ends());
            ExecutorOverview {
                slot,
                id: record.id.clone(),
                incarnation: record.incarnation,
                endpoint: record.endpoint.clone(),
                state: self.executor_state(slot, record),
                weight: record.weight,
                shards: contact.map_or(0, Contact::shards),
                stopping: contact.map_or(0, |contact| contact.releasing.len() as u32),
                starting: contact.map_or(0, |contact| contact.unadmitted.len() as u32),
                lease_remaining: ends.since(now).saturating_sub(self.settings.margin()),
            }
        });
        let mut executors: Vec<ExecutorOverview> = executors.collect();
        executors.sort_by(|a, b| (&a.id, a.slot).cmp(&(&b.id, b.slot)));
        Overview { snapshot: self.snapshot(), executors, notes: self.notes(now), lease_ttl: self.settings.lease_ttl }
    }

    /// Whether an id changes its incarnation too often to be waited for.
    fn is_unstable(&self, id: &ExecutorId) -> bool {
        self.flaps.get(id).is_some_and(|flaps| flaps.in_a_row > FLAPS)
    }

    fn first_lease(&self, now: BootInstant) -> Lease {
        Lease::until(now.after(self.longest_lease() + self.settings.takeover_grace))
    }
}
