//! A reader of the routing table: the real cache behind a `Router`, and around it what keeps it up to date.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message as _;
use shard_manager::assignment::command::Snapshot;
use shard_manager::client::cache::{Cache, Known, Refused};
use shard_manager::client::pace::Pace;
use shard_manager::client::{Route, Table};
use shard_manager::rpc::WatchRoutingTableResponse;
use shard_manager::rpc::watch_routing_table_response::Change;
use shard_manager::types::{BootInstant, ClusterId, ShardId, Term};

use crate::context::{Context, Message, Node};
use crate::guards::Guard;
use crate::random::{Clock, Instant};
use crate::window::Window;

/// A watch that says nothing for this long is given up.
const SILENCE: Duration = Duration::from_millis(4000);
/// The least time between two questions that doubts raise.
const REFRESH_PAUSE: Duration = Duration::from_millis(20);

pub struct Reader {
    at: usize,
    clock: Clock,
    pub inbox: Vec<Message>,
    cache: Cache,
    pace: Pace,
    managers: usize,
    manager: usize,
    failed_in_a_row: usize,
    watch: Option<Watch>,
    watches: u64,
    /// When the first address was asked since one answered last, or since all had failed.
    round: Option<BootInstant>,
    /// To hold the cache to it (L12): the clusters that it left, and at which terms.
    left: BTreeMap<ClusterId, Term>,
}

/// A stream: in order, or broken.
struct Watch {
    number: u64,
    asked: BootInstant,
    came_with_a_table: bool,
    next: u64,
    /// What came before its turn.
    early: BTreeMap<u64, Option<Vec<u8>>>,
    over: BootInstant,
}

impl Reader {
    pub fn new(at: usize, managers: usize, context: &mut Context) -> Reader {
        let clock = Clock::draw(&mut context.random);
        Reader {
            at,
            clock,
            inbox: Vec::new(),
            cache: Cache::default(),
            pace: Pace::new(clock.read(context.time)),
            managers,
            manager: context.random.below(managers),
            failed_in_a_row: 0,
            watch: None,
            watches: 0,
            round: None,
            left: BTreeMap::new(),
        }
    }

    /// Takes in what arrived, does what is due; when it wants to run next.
    pub fn run(&mut self, context: &mut Context) -> Instant {
        let now = self.clock.read(context.time);
        for message in std::mem::take(&mut self.inbox) {
            let Message::Told { stream, place, what } = message else { continue };
            let Some(watch) = self.watch.as_mut().filter(|watch| watch.number == stream && watch.next <= place) else { continue };
            watch.early.insert(place, what);
            while let Some((first, what)) = self.watch.as_mut().and_then(Watch::take) {
                let taken = what.is_some_and(|what| self.take_in(now, first, &what, context));
                if !taken {
                    self.failed(now, context);
                }
            }
        }
        if self.watch.as_ref().is_some_and(|watch| watch.over <= now) {
            context.reached("a watch fell silent");
            self.failed(now, context);
        }
        // Somebody wants a question that is asked from now on; the one under way is waited for.
        if let Some(watch) = self.watch.take_if(|watch| watch.next > 0 && self.cache.wants_more_than(watch.asked)) {
            self.pace.reset(watch.asked.after(REFRESH_PAUSE));
        }
        if self.watch.is_none() && self.pace.due() <= now {
            self.ask(now, context);
        }
        let next = self.watch.as_ref().map_or(self.pace.due(), |watch| watch.over);
        self.clock.when(next.max(now))
    }

    fn ask(&mut self, now: BootInstant, context: &mut Context) {
        self.round.get_or_insert(now);
        self.watches += 1;
        let known = self.cache.shown();
        self.watch = Some(Watch {
            number: self.watches,
            asked: now,
            came_with_a_table: known.is_some(),
            next: 0,
            early: BTreeMap::new(),
            over: now.after(SILENCE),
        });
        let known = known.filter(|_| context.guard != Some(Guard::Reader));
        let watch = Message::Watch { from: self.at, stream: self.watches, known };
        context.send(Node::Reader(self.at), Node::Replica(self.manager), watch);
    }

    fn failed(&mut self, now: BootInstant, context: &mut Context) {
        self.watch = None;
        self.failed_in_a_row += 1;
        self.manager = (self.manager + 1) % self.managers;
        let another = self.failed_in_a_row < self.managers;
        if !another {
            self.failed_in_a_row = 0;
            self.round.take().into_iter().for_each(|round| self.cache.settle(round));
        }
        self.pace.failed(now, context.random.between(0, 1000) as f64 / 1000.0, another);
    }

    /// **P7.** A reader's table is what was stored at its version, and nothing in it ever goes back.
    fn take_in(&mut self, now: BootInstant, first: bool, what: &[u8], context: &mut Context) -> bool {
        let message = WatchRoutingTableResponse::decode(what).expect("what was encoded can be read");
        let Some(watch) = &mut self.watch else { return false };
        watch.over = now.after(SILENCE);
        let asked = first.then_some(watch.asked);
        if first && watch.came_with_a_table {
            let is_step = matches!(message.change, Some(Change::Delta(_)));
            context.reached(if is_step { "a watch went on from where it was" } else { "a watch began anew with a whole table" });
        }
        let before = self.cache.table().cloned();
        let mut taken = self.cache.take(now, asked, &message);
        if let (Err(Refused::Older { .. }), Some(Guard::Reader)) | (Err(Refused::Left(_)), Some(Guard::LeftClusters)) =
            (&taken, context.guard)
        {
            self.cache = Cache::default();
            taken = self.cache.take(now, asked, &message);
        }
        match taken {
            Ok(()) => {}
            Err(refused) => {
                context.log(|| format!("reader {}: {refused}", self.at));
                context.reached(match refused {
                    Refused::Older { .. } => "a reader refused an older table",
                    Refused::Left(_) => "a reader refused a cluster that it had left",
                    Refused::Invalid(_) | Refused::Empty => "anything else",
                });
                return false;
            }
        }
        self.pace.reset(now);
        (self.failed_in_a_row, self.round) = (0, None);
        let Some(table) = self.cache.table() else { return true };
        if let Some(before) = before {
            if before.cluster_id() != table.cluster_id() {
                self.left.insert(before.cluster_id(), before.version().term);
                context.log(|| format!("reader {} follows to cluster {} at {}", self.at, table.cluster_id(), table.version()));
                context.reached("a reader followed to another cluster");
            } else {
                let epochs = before.routes().all(|route| route.epoch <= table.epoch(route.shard));
                let is_newer = before.version() <= table.version() && (epochs || context.store.restores > 0);
                let (from, to) = (before.version(), table.version());
                context.expect(is_newer, || format!("P7: a reader went from {from} back to {to}"));
            }
        }
        let (cluster_id, version) = (table.cluster_id(), table.version());
        if let Some(left_at) = self.left.remove(&cluster_id) {
            context.reached("a reader returned to a cluster that proved that it is led");
            let term = version.term;
            context.expect(term > left_at, || {
                format!("L12: a reader returned to cluster {cluster_id} at {term}, left at {left_at}")
            });
        }
        let is_so = context.store.durable(version).any(|state| is_of(table, Snapshot { version, state: state.clone() }));
        // Where versions do not tell states apart, a step may begin at another state than the reader has.
        let is_sure = context.versions_tell_apart();
        context.expect(is_so || !is_sure, || format!("P7: a reader's table at {version} is not what is stored"));
        true
    }

    /// Somebody calls the owner of a shard, and finds out whether it works on it.
    pub fn call(&mut self, shard: ShardId, works: impl Fn(&Route) -> bool, context: &mut Context) {
        let now = self.clock.read(context.time);
        let (Known::Route(route) | Known::Doubtful(route)) = self.cache.known(shard) else { return };
        if works(&route) {
            return;
        }
        context.reached("a route led to nobody");
        self.cache.doubt(now, &route, None);
    }

    /// It asks elsewhere.
    pub fn lose_connection(&mut self, context: &mut Context) {
        self.failed(self.clock.read(context.time), context);
    }

    /// Whether it knows this table, and doubts nothing in it. `told_apart`: no two states have one version.
    pub fn knows(&self, newest: &Snapshot, told_apart: bool) -> bool {
        let Some(table) = self.cache.table() else { return false };
        let shards = (0..table.number_of_shards()).map(ShardId);
        let is_sure = shards.map(|shard| self.cache.known(shard)).all(|known| matches!(known, Known::Route(_)));
        let is_newest = (table.cluster_id(), table.version()) == (newest.state.meta.cluster_id, newest.version);
        // Else it may have mixed two tables, until the next leader.
        is_newest && (!told_apart || is_sure && is_of(table, newest.clone()))
    }
}

impl Watch {
    /// What has its turn, and whether it is the first.
    fn take(&mut self) -> Option<(bool, Option<Vec<u8>>)> {
        let what = self.early.remove(&self.next)?;
        self.next += 1;
        Some((self.next == 1, what))
    }
}

/// Whether a table is what somebody would read who was never told of another state.
fn is_of(table: &Table, snapshot: Snapshot) -> bool {
    let window = Window::default();
    window.publish(snapshot);
    let message = window.whole().and_then(|whole| WatchRoutingTableResponse::decode(&*whole).ok());
    let mut cache = Cache::default();
    let taken = message.is_some_and(|message| cache.take(BootInstant::default(), None, &message).is_ok());
    taken && cache.table().is_some_and(|whole| **whole == *table)
}
