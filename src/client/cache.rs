//! What a router knows: the newest table, what was said against single routes of it, and the clusters that it left. No I/O, and time
//! is an argument.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::table::{Route, Table};
use super::wire::Invalid;
use crate::rpc::WatchRoutingTableResponse;
use crate::rpc::watch_routing_table_response::Change;
use crate::types::{BootInstant, ClusterId, Epoch, MAX_NUMBER, Revision, ShardId, Term, Version};

/// See the module.
#[derive(Debug, Default)]
pub struct Cache {
    table: Option<Arc<Table>>,
    /// When a manager was last heard to say that the table is the newest.
    heard: Option<BootInstant>,
    /// When the newest question was asked that came to an end: answered, or by nobody.
    settled: Option<BootInstant>,
    doubts: HashMap<ShardId, Doubt>,
    /// The clusters that were left for another (L12).
    left: HashMap<ClusterId, Left>,
    /// One of them was shown again: it is asked for a proof.
    challenged: Option<(ClusterId, Term)>,
}

/// A cluster that was left for another.
#[derive(Debug)]
struct Left {
    /// The highest term that it ever showed here.
    showed: Term,
    /// It was shown again since, and refused.
    refused: bool,
}

/// A route that did not lead to its shard.
#[derive(Debug)]
struct Doubt {
    epoch: Epoch,
    since: BootInstant,
    /// Who was named instead, at a higher epoch.
    named: Option<Route>,
}

/// What is known of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nobody said anything against this.
    Route(Route),
    /// This is doubted, and the managers are being asked.
    Doubtful(Route),
    /// Nobody owns it.
    Unowned,
    /// There is no such shard: there are this many.
    NoSuchShard(u32),
    /// There is no table.
    NoTable,
}

/// Why an answer was not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It breaks a rule.
    #[error("its answer is refused: {0}")]
    Invalid(#[from] Invalid),
    /// It is older than what is known (P7).
    #[error("its table is at {shown}, the one at hand at {has}")]
    Older {
        /// Of the answer.
        shown: Version,
        /// What is known.
        has: Version,
    },
    /// It is of a cluster that was left for another, and has not proven since that it is led (L12).
    #[error("it serves cluster {0}, which was left for another one")]
    Left(ClusterId),
    /// It says nothing that is known here.
    #[error("it says neither a table nor a change")]
    Empty,
}

/// What becomes of a table by what a manager says; `None` where it stays as it is. Reads and copies as much as the table is large, so this
/// is for before a lock is taken, and what is at hand goes on being read meanwhile.
pub fn next(table: Option<&Arc<Table>>, message: &WatchRoutingTableResponse) -> Result<Option<Arc<Table>>, Refused> {
    match message.change.as_ref().ok_or(Refused::Empty)? {
        Change::Full(full) => Ok(Some(Arc::new(Table::read(full)?))),
        Change::Delta(delta) => {
            let table = table.ok_or(Refused::Empty)?;
            if table.is_confirmed_by(delta) {
                return Ok(None);
            }
            let mut next = Table::clone(table);
            next.apply(delta)?;
            Ok(Some(Arc::new(next)))
        }
    }
}

impl Cache {
    /// The newest table.
    pub fn table(&self) -> Option<&Arc<Table>> {
        self.table.as_ref()
    }

    /// What to show a manager that is asked for what is newer (L10).
    ///
    /// **L12.** A leader that was frozen when its store was lost may show its cluster to somebody who never saw it, and so lead away from
    /// the one that lives. So one that was left and is shown again is asked to go above everything that it showed: it takes a commit, of
    /// which none but a leader that still leads is capable.
    pub fn shown(&self) -> Option<(ClusterId, Version)> {
        let challenge = |(cluster_id, term)| (cluster_id, Version { term, revision: Revision(MAX_NUMBER) });
        let has = |table: &Arc<Table>| (table.cluster_id(), table.version());
        self.challenged.map(challenge).or(self.table.as_ref().map(has))
    }

    /// How long ago a manager was heard to say that the table is the newest: counted from when that was read.
    pub fn age(&self, now: BootInstant) -> Option<Duration> {
        self.heard.map(|heard| now.since(heard))
    }

    /// A manager said something at `now`, on being asked at `asked` where this is the first that it says.
    pub fn take(
        &mut self,
        now: BootInstant,
        asked: Option<BootInstant>,
        message: &WatchRoutingTableResponse,
    ) -> Result<(), Refused> {
        let before = self.table.clone();
        self.accept(now, asked, next(before.as_ref(), message)?.as_ref())
    }

    /// The same, of a message that was read by [`next`]: takes no longer for a large table than for a small one. Whoever calls it under
    /// a lock holds on to the table before, so that it is not freed there.
    pub fn accept(&mut self, now: BootInstant, asked: Option<BootInstant>, next: Option<&Arc<Table>>) -> Result<(), Refused> {
        if let Some(table) = next {
            self.replace(table)?;
        }
        self.heard = Some(now);
        self.challenged = None;
        if let Some(asked) = asked {
            self.settle(asked);
        }
        let Cache { table: Some(table), doubts, .. } = self else { return Ok(()) };
        doubts.retain(|shard, doubt| doubt.stands(table.epoch(*shard)));
        Ok(())
    }

    fn replace(&mut self, table: &Arc<Table>) -> Result<(), Refused> {
        let (cluster_id, term) = (table.cluster_id(), table.version().term);
        if let Some(left) = self.left.get_mut(&cluster_id)
            && (!left.refused || term <= left.showed)
        {
            *left = Left { showed: left.showed.max(term), refused: true };
            self.challenged = Some((cluster_id, left.showed));
            return Err(Refused::Left(cluster_id));
        }
        if let Some(before) = &self.table {
            if before.cluster_id() != cluster_id {
                self.left.remove(&cluster_id);
                self.left.insert(before.cluster_id(), Left { showed: before.version().term, refused: false });
                // Its epochs say nothing about the new one's.
                self.doubts.clear();
            } else if table.version() < before.version() {
                return Err(Refused::Older { shown: table.version(), has: before.version() });
            }
        }
        self.table = Some(Arc::clone(table));
        Ok(())
    }

    /// What was asked at `asked` has come to an end: a manager answered, or none of them did. Who waited for that goes on with what
    /// there is.
    pub fn settle(&mut self, asked: BootInstant) {
        self.settled = self.settled.max(Some(asked));
        let settled = self.settled;
        self.doubts.retain(|_, doubt| doubt.named.is_some() || Some(doubt.since) >= settled);
    }

    /// Whether somebody waits for a question that is asked after `asked`.
    pub fn wants_more_than(&self, asked: BootInstant) -> bool {
        self.doubts.values().any(|doubt| doubt.named.is_none() && doubt.since >= asked)
    }

    /// A route did not lead to its shard, and `named` is who was named instead. Nothing happens where something newer is known by now;
    /// what is named is taken where it is newer than the route. Says whether anything changed.
    pub fn doubt(&mut self, now: BootInstant, route: &Route, named: Option<&Route>) -> bool {
        let shard = route.shard;
        let known = match self.known(shard) {
            Known::Route(known) | Known::Doubtful(known) => known.epoch,
            Known::Unowned | Known::NoSuchShard(_) | Known::NoTable => return false,
        };
        let named = named.filter(|named| named.shard == shard && named.epoch > known.max(route.epoch));
        let is_news = known <= route.epoch || named.is_some();
        if is_news {
            self.doubts.insert(shard, Doubt { epoch: route.epoch, since: now, named: named.cloned() });
        }
        is_news
    }

    /// What is known of a shard.
    pub fn known(&self, shard: ShardId) -> Known {
        let Some(table) = &self.table else { return Known::NoTable };
        if shard.0 >= table.number_of_shards() {
            return Known::NoSuchShard(table.number_of_shards());
        }
        match (self.doubts.get(&shard), table.route(shard)) {
            (Some(Doubt { named: Some(named), .. }), _) => Known::Route(named.clone()),
            (_, None) => Known::Unowned,
            (Some(_), Some(route)) => Known::Doubtful(route),
            (None, Some(route)) => Known::Route(route),
        }
    }
}

impl Doubt {
    /// Whether the table, which has `recorded`, does not know better yet.
    fn stands(&self, recorded: Epoch) -> bool {
        match &self.named {
            Some(named) => recorded < named.epoch,
            None => recorded <= self.epoch,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rpc::{NOBODY, Owner, RoutingTable, RoutingTableDelta};
    use crate::types::{Revision, Term};

    const SHARD: ShardId = ShardId(1);

    fn at(seconds: u64) -> BootInstant {
        BootInstant(Duration::from_secs(seconds))
    }

    fn owners() -> Vec<Owner> {
        ["a", "b"].map(|id| Owner { executor_id: id.into(), incarnation: 5, endpoint: format!("http://{id}:1") }).into()
    }

    /// Two shards; `owner` has the second.
    fn full(cluster: u128, (term, revision): (u64, u64), owner: u32, epoch: u64) -> WatchRoutingTableResponse {
        let table = RoutingTable {
            cluster_id: uuid::Uuid::from_u128(cluster).to_string(),
            version: Some(crate::rpc::Version { term, revision }),
            number_of_shards: 2,
            owners: owners(),
            owner: vec![NOBODY, owner],
            epochs: vec![0, epoch],
            releasing: Vec::new(),
        };
        WatchRoutingTableResponse { change: Some(Change::Full(table)) }
    }

    fn step(term: u64, from_revision: u64, revision: u64, changes: &[(u32, u32, u64)]) -> WatchRoutingTableResponse {
        let delta = RoutingTableDelta {
            from_revision,
            version: Some(crate::rpc::Version { term, revision }),
            owners: owners(),
            shards: changes.iter().map(|change| change.0).collect(),
            owner: changes.iter().map(|change| change.1).collect(),
            epochs: changes.iter().map(|change| change.2).collect(),
            releasing: Vec::new(),
        };
        WatchRoutingTableResponse { change: Some(Change::Delta(delta)) }
    }

    fn version(term: u64, revision: u64) -> Version {
        Version { term: Term(term), revision: Revision(revision) }
    }

    fn cache() -> Cache {
        let mut cache = Cache::default();
        assert_eq!(cache.known(SHARD), Known::NoTable);
        cache.take(at(10), Some(at(9)), &full(1, (3, 7), 0, 40)).unwrap();
        cache
    }

    fn route(cache: &Cache) -> Route {
        match cache.known(SHARD) {
            Known::Route(route) => route,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_newest_table_stands_and_an_older_one_does_not_come_back() {
        let mut cache = cache();
        assert_eq!(route(&cache).owner.id.as_str(), "a");
        assert_eq!((cache.known(ShardId(0)), cache.known(ShardId(2))), (Known::Unowned, Known::NoSuchShard(2)));
        cache.take(at(11), None, &step(3, 7, 8, &[(1, 1, 41)])).unwrap();
        assert_eq!(route(&cache).owner.id.as_str(), "b");
        let refused = cache.take(at(12), Some(at(12)), &full(1, (3, 7), 0, 40)).unwrap_err();
        assert_eq!(refused, Refused::Older { shown: version(3, 7), has: version(3, 8) });
        assert!(matches!(cache.take(at(12), None, &step(3, 7, 9, &[])), Err(Refused::Invalid(_))));
        assert_eq!((route(&cache).owner.id.as_str(), cache.age(at(15))), ("b", Some(Duration::from_secs(4))));
        cache.take(at(13), None, &step(3, 8, 8, &[])).unwrap();
        assert_eq!(cache.age(at(15)), Some(Duration::from_secs(2)), "nothing changed, and that was said");
        cache.take(at(14), Some(at(13)), &full(1, (4, 2), 0, 50)).unwrap();
        assert_eq!(cache.table().unwrap().version(), version(4, 2));
    }

    #[test]
    fn a_cluster_that_was_left_is_not_returned_to_unless_it_goes_above_what_it_showed() {
        let cluster = |number| ClusterId(uuid::Uuid::from_u128(number));
        let mut cache = cache();
        cache.take(at(11), Some(at(11)), &full(2, (1, 1), 1, 2)).unwrap();
        assert_eq!(cache.shown(), Some((cluster(2), version(1, 1))));
        let refused = cache.take(at(12), Some(at(12)), &full(1, (9, 9), 0, 99)).unwrap_err();
        assert_eq!(refused, Refused::Left(cluster(1)));
        assert_eq!(route(&cache).owner.id.as_str(), "b");
        assert_eq!(cache.shown(), Some((cluster(1), version(9, MAX_NUMBER))), "whoever leads it has to go above that");
        for term in [8, 9] {
            cache.take(at(13), Some(at(13)), &full(1, (term, 99), 0, 99)).unwrap_err();
            assert_eq!(cache.shown(), Some((cluster(1), version(9, MAX_NUMBER))));
        }
        cache.take(at(14), None, &step(1, 1, 1, &[])).unwrap();
        assert_eq!(cache.shown(), Some((cluster(2), version(1, 1))), "the one at hand is still there");
    }

    #[test]
    fn a_frozen_leader_of_a_lost_cluster_leads_nobody_away_for_ever() {
        let mut cache = cache();
        cache.take(at(11), Some(at(11)), &full(2, (1, 1), 1, 2)).unwrap();
        cache.take(at(12), Some(at(12)), &full(1, (9, 9), 0, 99)).unwrap_err();
        cache.take(at(13), Some(at(13)), &full(1, (10, 9), 0, 99)).unwrap();
        assert_eq!(route(&cache).owner.id.as_str(), "a");
        assert_eq!(cache.shown().map(|(_, version)| version), Some(version(10, 9)));
        let refused = cache.take(at(14), Some(at(14)), &full(2, (1, 1), 1, 2)).unwrap_err();
        assert!(matches!(refused, Refused::Left(_)), "now that one has to prove it");
    }

    /// An older leader of it may be frozen too, and show less than this reader knows.
    #[test]
    fn what_a_left_cluster_showed_before_it_was_left_counts_as_well() {
        let mut cache = cache();
        cache.take(at(11), Some(at(11)), &full(1, (9, 9), 0, 99)).unwrap();
        cache.take(at(12), Some(at(12)), &full(2, (1, 1), 1, 2)).unwrap();
        cache.take(at(13), Some(at(13)), &full(1, (8, 8), 0, 98)).unwrap_err();
        assert_eq!(cache.shown().map(|(_, version)| version), Some(version(9, MAX_NUMBER)));
        cache.take(at(14), Some(at(14)), &full(1, (9, 9), 0, 99)).unwrap_err();
        cache.take(at(15), Some(at(15)), &full(1, (10, 9), 0, 99)).unwrap();
    }

    #[test]
    fn a_doubted_route_is_doubtful_until_somebody_knows_better_or_was_asked_after_it() {
        let mut cache = cache();
        let first = route(&cache);
        cache.doubt(at(20), &first, None);
        assert_eq!(cache.known(SHARD), Known::Doubtful(first.clone()));
        assert!(cache.wants_more_than(at(19)) && !cache.wants_more_than(at(21)));
        cache.take(at(21), None, &step(3, 7, 7, &[])).unwrap();
        assert_eq!(cache.known(SHARD), Known::Doubtful(first.clone()), "that may have been under way already");
        cache.take(at(22), Some(at(19)), &step(3, 7, 7, &[])).unwrap();
        assert_eq!(cache.known(SHARD), Known::Doubtful(first.clone()), "so may this");
        cache.take(at(23), Some(at(21)), &step(3, 7, 7, &[])).unwrap();
        assert_eq!(cache.known(SHARD), Known::Route(first.clone()), "a manager that was asked says that it is right");

        cache.doubt(at(30), &first, None);
        cache.take(at(31), None, &step(3, 7, 8, &[(1, 1, 41)])).unwrap();
        assert_eq!(route(&cache).owner.id.as_str(), "b");
        assert!(!cache.doubt(at(32), &first, None), "there is nothing to wake anybody for");
        assert_eq!(route(&cache).owner.id.as_str(), "b", "who comes late with an old route knows nothing");
        let second = route(&cache);
        cache.doubt(at(33), &second, None);
        cache.settle(at(34));
        assert_eq!(cache.known(SHARD), Known::Route(second), "nobody answers: what there is has to do");
    }

    #[test]
    fn a_table_is_made_beside_the_one_at_hand_and_not_at_all_where_nothing_changed() {
        let mut cache = cache();
        let before = cache.table().cloned().unwrap();
        assert_eq!(next(Some(&before), &step(3, 7, 8, &[(1, 1, 41)])).unwrap().unwrap().version(), version(3, 8));
        assert_eq!(before.version(), version(3, 7), "whoever reads it meanwhile sees no half of a step");
        let beat = WatchRoutingTableResponse {
            change: Some(Change::Delta(RoutingTableDelta {
                from_revision: 7,
                version: Some(crate::rpc::Version { term: 3, revision: 7 }),
                ..RoutingTableDelta::default()
            })),
        };
        assert_eq!(next(Some(&before), &beat).unwrap(), None);
        cache.take(at(12), None, &beat).unwrap();
        assert!(Arc::ptr_eq(&before, cache.table().unwrap()) && cache.age(at(13)) == Some(Duration::from_secs(1)));
    }

    #[test]
    fn an_owner_that_is_named_at_a_higher_epoch_is_taken_until_the_table_has_it() {
        let mut cache = cache();
        let first = route(&cache);
        let named = |epoch| Route {
            epoch: Epoch(epoch),
            owner: Arc::new(super::super::table::Owner { id: "c".parse().unwrap(), ..(*first.owner).clone() }),
            ..first.clone()
        };
        cache.doubt(at(20), &first, Some(&named(40)));
        assert_eq!(cache.known(SHARD), Known::Doubtful(first.clone()), "what is no newer is no news");
        cache.doubt(at(21), &first, Some(&named(42)));
        assert_eq!(cache.known(SHARD), Known::Route(named(42)));
        cache.take(at(22), Some(at(22)), &step(3, 7, 8, &[(1, 1, 41)])).unwrap();
        assert_eq!(cache.known(SHARD), Known::Route(named(42)), "the table is behind what was named");
        cache.take(at(23), None, &step(3, 8, 9, &[(1, 1, 42)])).unwrap();
        assert_eq!(route(&cache).owner.id.as_str(), "b");
    }
}
