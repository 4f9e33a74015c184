//! A routing table as callers have it: read from messages that nobody has to trust.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::wire::{self, Invalid};
use crate::rpc::{self, NOBODY};
use crate::types::{ClusterId, Epoch, ExecutorId, Incarnation, MAX_NUMBER, MAX_SHARDS, Revision, ShardId, Version};

/// A process that owns shards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Its stable name.
    pub id: ExecutorId,
    /// Which process of that name.
    pub incarnation: Incarnation,
    /// Where it serves, as it told the manager: `http://host:port`.
    pub endpoint: String,
}

/// Who owns one shard, by the newest word that somebody had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The shard.
    pub shard: ShardId,
    /// The ownership generation: of two routes of a shard, the one with the higher epoch is the newer.
    pub epoch: Epoch,
    /// The process that was granted the shard at that epoch.
    pub owner: Arc<Owner>,
}

/// Who owns which shard, at one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    cluster_id: ClusterId,
    version: Version,
    owners: Vec<Option<Arc<Owner>>>,
    epochs: Vec<Epoch>,
    releasing: BTreeSet<ShardId>,
}

impl Table {
    /// The cluster that it is of.
    pub fn cluster_id(&self) -> ClusterId {
        self.cluster_id
    }

    /// Its place in the order of tables of that cluster.
    pub fn version(&self) -> Version {
        self.version
    }

    /// How many shards there are; the same for a cluster's whole life.
    pub fn number_of_shards(&self) -> u32 {
        // As read; there are no more than MAX_SHARDS.
        self.epochs.len() as u32
    }

    /// Who owns a shard; `None` where nobody does, or there is no such shard. A shard that its owner was asked to release is the
    /// owner's still.
    pub fn route(&self, shard: ShardId) -> Option<Route> {
        let owner = self.owners.get(shard.0 as usize)?.clone()?;
        Some(Route { shard, epoch: self.epoch(shard), owner })
    }

    /// Of the current, else of the last grant of a shard; 0 where there never was one, or there is no such shard.
    pub fn epoch(&self, shard: ShardId) -> Epoch {
        self.epochs.get(shard.0 as usize).copied().unwrap_or_default()
    }

    /// Whether the owner of a shard was asked to release it: somebody else will own it soon.
    pub fn is_releasing(&self, shard: ShardId) -> bool {
        self.releasing.contains(&shard)
    }

    /// Every shard that somebody owns, ascending.
    pub fn routes(&self) -> impl Iterator<Item = Route> + '_ {
        (0..self.number_of_shards()).filter_map(|shard| self.route(ShardId(shard)))
    }

    /// From a message.
    ///
    /// # Errors
    /// Where it breaks a rule of proto/.
    pub(crate) fn read(message: &rpc::RoutingTable) -> Result<Table, Invalid> {
        let number = message.number_of_shards;
        wire::in_range("number_of_shards", u64::from(number), 1, u64::from(MAX_SHARDS))?;
        equally_long("owner", message.owner.len(), number as usize)?;
        equally_long("epochs", message.epochs.len(), number as usize)?;
        Ok(Table {
            cluster_id: wire::cluster_id(&message.cluster_id)?,
            version: wire::version(message.version)?,
            owners: owners(&message.owners, &message.owner)?,
            epochs: epochs(&message.epochs)?,
            releasing: ascending(&message.releasing, number)?,
        })
    }

    /// Whether this says no more than that the table is the newest.
    pub(crate) fn is_confirmed_by(&self, delta: &rpc::RoutingTableDelta) -> bool {
        let nothing = rpc::RoutingTableDelta {
            from_revision: self.version.revision.0,
            version: Some(self.version.into()),
            ..rpc::RoutingTableDelta::default()
        };
        *delta == nothing
    }

    /// Becomes the table that `delta` leads to. Where that is refused, nothing has changed.
    ///
    /// # Errors
    /// Where it breaks a rule of proto/, or does not begin at this table.
    pub(crate) fn apply(&mut self, delta: &rpc::RoutingTableDelta) -> Result<(), Invalid> {
        let version = wire::version(delta.version)?;
        let from = Version { revision: Revision(delta.from_revision), ..version };
        if from != self.version || version < from {
            return Err(Invalid::Step { from, to: version, has: self.version });
        }
        equally_long("owner", delta.owner.len(), delta.shards.len())?;
        equally_long("epochs", delta.epochs.len(), delta.shards.len())?;
        let shards = ascending(&delta.shards, self.number_of_shards())?;
        let releasing = ascending(&delta.releasing, self.number_of_shards())?;
        let owners = owners(&delta.owners, &delta.owner)?;
        let epochs = epochs(&delta.epochs)?;
        for ((shard, owner), epoch) in shards.into_iter().zip(owners).zip(epochs) {
            self.owners[shard.0 as usize] = owner;
            self.epochs[shard.0 as usize] = epoch;
            if releasing.contains(&shard) {
                self.releasing.insert(shard);
            } else {
                self.releasing.remove(&shard);
            }
        }
        self.version = version;
        Ok(())
    }
}

fn equally_long(field: &'static str, found: usize, expected: usize) -> Result<(), Invalid> {
    if found == expected { Ok(()) } else { Err(Invalid::Length { field, found, expected }) }
}

/// One owner per index.
fn owners(owners: &[rpc::Owner], index: &[u32]) -> Result<Vec<Option<Arc<Owner>>>, Invalid> {
    let owner = |owner: &rpc::Owner| {
        let id = owner.executor_id.parse()?;
        Ok(Arc::new(Owner { id, incarnation: Incarnation(owner.incarnation), endpoint: owner.endpoint.clone() }))
    };
    let known: Vec<Arc<Owner>> = owners.iter().map(owner).collect::<Result<_, Invalid>>()?;
    let one = |&index: &u32| match known.get(index as usize) {
        _ if index == NOBODY => Ok(None),
        Some(owner) => Ok(Some(Arc::clone(owner))),
        None => Err(Invalid::NoSuchOwner { index, owners: known.len() }),
    };
    index.iter().map(one).collect()
}

fn epochs(epochs: &[u64]) -> Result<Vec<Epoch>, Invalid> {
    epochs.iter().map(|&epoch| wire::in_range("epoch", epoch, 0, MAX_NUMBER).map(|()| Epoch(epoch))).collect()
}

fn ascending(shards: &[u32], number_of_shards: u32) -> Result<BTreeSet<ShardId>, Invalid> {
    use crate::holdings::Invalid as Rule;
    if let Some(pair) = shards.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(Rule::Order { previous: pair[0], shard: pair[1] }.into());
    }
    match shards.last() {
        Some(&shard) if shard >= number_of_shards => Err(Rule::Range { shard, number_of_shards }.into()),
        _ => Ok(shards.iter().copied().map(ShardId).collect()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn owner(id: &str) -> rpc::Owner {
        rpc::Owner { executor_id: id.to_owned(), incarnation: 5, endpoint: format!("http://{id}:1") }
    }

    fn good() -> rpc::RoutingTable {
        rpc::RoutingTable {
            cluster_id: uuid::Uuid::nil().to_string(),
            version: Some(rpc::Version { term: 3, revision: 7 }),
            number_of_shards: 3,
            owners: vec![owner("a"), owner("b")],
            owner: vec![0, 1, NOBODY],
            epochs: vec![4, 5, 0],
            releasing: vec![1],
        }
    }

    fn step() -> rpc::RoutingTableDelta {
        rpc::RoutingTableDelta {
            from_revision: 7,
            version: Some(rpc::Version { term: 3, revision: 9 }),
            owners: vec![owner("c")],
            shards: vec![1, 2],
            owner: vec![NOBODY, 0],
            epochs: vec![5, 6],
            releasing: vec![2],
        }
    }

    #[test]
    fn a_table_says_who_owns_what() {
        let table = Table::read(&good()).unwrap();
        assert_eq!(table.number_of_shards(), 3);
        let route = table.route(ShardId(1)).unwrap();
        assert_eq!((route.owner.id.as_str(), route.owner.incarnation.0, route.epoch), ("b", 5, Epoch(5)));
        assert!(table.is_releasing(ShardId(1)) && !table.is_releasing(ShardId(0)));
        assert_eq!((table.route(ShardId(2)), table.route(ShardId(3))), (None, None));
        assert_eq!(table.routes().map(|route| route.shard.0).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn a_delta_leads_from_one_table_to_the_next() {
        let mut table = Table::read(&good()).unwrap();
        table.apply(&step()).unwrap();
        let expected = rpc::RoutingTable {
            version: Some(rpc::Version { term: 3, revision: 9 }),
            owners: vec![owner("a"), owner("c")],
            owner: vec![0, NOBODY, 1],
            epochs: vec![4, 5, 6],
            releasing: vec![2],
            ..good()
        };
        assert_eq!(table, Table::read(&expected).unwrap());
    }

    #[test]
    fn a_message_that_breaks_a_rule_is_refused_and_changes_nothing() {
        let full = |change: fn(&mut rpc::RoutingTable)| {
            let mut message = good();
            change(&mut message);
            Table::read(&message).unwrap_err().to_string()
        };
        assert_eq!(full(|m| m.number_of_shards = 0), "number_of_shards 0 is refused: it must be 1 to 4194304");
        assert_eq!(full(|m| m.owner.truncate(2)), "owner has 2 entries where there must be 3");
        assert_eq!(full(|m| m.epochs.push(1)), "epochs has 4 entries where there must be 3");
        assert_eq!(full(|m| m.owner[0] = 2), "owner 2 does not exist: there are 2, counted from 0");
        assert_eq!(full(|m| m.epochs[0] = u64::MAX), format!("epoch {} is refused: it must be 0 to {MAX_NUMBER}", u64::MAX));
        assert_eq!(full(|m| m.releasing = vec![3]), "shard 3 does not exist: there are 3, counted from 0");
        assert!(full(|m| m.owners[0].executor_id.clear()).contains("executor id"));
        let delta = |change: fn(&mut rpc::RoutingTableDelta)| {
            let (mut table, mut message) = (Table::read(&good()).unwrap(), step());
            change(&mut message);
            let refused = table.apply(&message).unwrap_err().to_string();
            assert_eq!(table, Table::read(&good()).unwrap());
            refused
        };
        assert_eq!(delta(|m| m.from_revision = 6), "a step from 3/6 to 3/9 does not begin at the table at 3/7, or leads back");
        assert_eq!(
            delta(|m| m.version = Some(rpc::Version { term: 4, revision: 9 })),
            "a step from 4/7 to 4/9 does not begin at the table at 3/7, or leads back"
        );
        assert_eq!(
            delta(|m| m.version = Some(rpc::Version { term: 3, revision: 6 })),
            "a step from 3/7 to 3/6 does not begin at the table at 3/7, or leads back"
        );
        assert_eq!(delta(|m| m.shards = vec![2, 1]), "shard 1 follows shard 2: shards must ascend, each once");
        assert_eq!(delta(|m| m.epochs.truncate(1)), "epochs has 1 entries where there must be 2");
    }
}
