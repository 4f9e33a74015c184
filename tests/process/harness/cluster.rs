//! A manager, a directory, and every journal that was written under it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use shard_manager::cli::journal::{Line, check};
use shard_manager::rpc::{self, GetRoutingTableRequest, NOBODY};
use tempfile::TempDir;

use super::{Executor, Manager, PATIENCE, Store, poll_until};

/// One shard's owner, as the routing table shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub executor: Option<String>,
    pub incarnation: u64,
    pub epoch: u64,
}

/// A routing table, by shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub cluster_id: String,
    pub term: u64,
    pub revision: u64,
    pub shards: Vec<Owned>,
    pub releasing: usize,
}

impl Table {
    /// How many shards each owner has.
    pub fn counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for id in self.shards.iter().filter_map(|it| it.executor.as_deref()) {
            *counts.entry(id).or_default() += 1;
        }
        counts
    }

    /// The shards of one owner.
    pub fn of(&self, id: &str) -> BTreeSet<u32> {
        let owned = self.shards.iter().enumerate().filter(|(_, it)| it.executor.as_deref() == Some(id));
        owned.map(|(shard, _)| u32::try_from(shard).unwrap()).collect()
    }
}

impl From<rpc::RoutingTable> for Table {
    fn from(table: rpc::RoutingTable) -> Table {
        let shards = table.owner.iter().zip(&table.epochs).map(|(&owner, &epoch)| {
            let owner = (owner != NOBODY).then(|| &table.owners[owner as usize]);
            Owned { executor: owner.map(|it| it.executor_id.clone()), incarnation: owner.map_or(0, |it| it.incarnation), epoch }
        });
        let (shards, version) = (shards.collect(), table.version.unwrap());
        let releasing = table.releasing.len();
        Table { cluster_id: table.cluster_id, term: version.term, revision: version.revision, shards, releasing }
    }
}

/// See the module. Everything below the directory goes with it.
pub struct Cluster {
    pub directory: TempDir,
    pub store: Store,
    pub manager: Manager,
    journals: BTreeSet<PathBuf>,
    started: usize,
}

impl Cluster {
    /// A manager over an empty store, with short times that `settings` override.
    pub async fn start(settings: &[&str]) -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::Sqlite(directory.path().join("shard-manager.db"));
        let manager = Manager::start(&store, &Cluster::settings(settings)).await;
        Cluster { directory, store, manager, journals: BTreeSet::new(), started: 0 }
    }

    /// Around a manager that serves already.
    pub fn around(manager: Manager, store: Store) -> Cluster {
        Cluster { directory: tempfile::tempdir().unwrap(), store, manager, journals: BTreeSet::new(), started: 0 }
    }

    fn settings<'a>(settings: &[&'a str]) -> Vec<&'a str> {
        let short = ["executors.lease_ttl=2s", "executors.settle_time=300ms", "executors.calm_time=1s", "number_of_shards=64"];
        [&short, settings].concat()
    }

    /// An executor with a journal of its own process.
    pub async fn executor(&mut self, id: &str) -> Executor {
        self.executor_with(id, &[]).await
    }

    /// The same, with more arguments.
    pub async fn executor_with(&mut self, id: &str, arguments: &[&str]) -> Executor {
        self.started += 1;
        let journal = self.directory.path().join(format!("{id}.{}.journal", self.started));
        self.journals.insert(journal.clone());
        Executor::start(id, &self.manager.grpc.to_string(), &journal, arguments).await
    }

    /// A new process in the place of one that is gone: same id, same address, same journal.
    pub async fn executor_in_place_of(&self, gone: &Executor) -> Executor {
        let listen = gone.address.to_string();
        Executor::start(&gone.id, &self.manager.grpc.to_string(), &gone.journal, &["--listen", &listen]).await
    }

    fn read(&self) -> Vec<check::Journal> {
        let written: Vec<&PathBuf> = self.journals.iter().filter(|path| path.exists()).collect();
        check::read(&written).unwrap()
    }

    /// Every line of every journal.
    pub fn lines(&self) -> Vec<Line> {
        self.read().concat()
    }

    /// Holds every journal to the rules; what is wrong fails the test.
    pub fn check(&self, rules: check::Rules) -> check::Report {
        let report = check::check(&self.read(), rules);
        assert!(report.violations.is_empty(), "{report}");
        report
    }

    /// No overlap under live leases, and epochs that grow.
    pub fn check_safety(&self) -> check::Report {
        self.check(check::Rules::default())
    }

    /// The same, and no shard without an owner for longer than this.
    pub fn check_gaps(&self, at_most: Duration) -> check::Report {
        self.check(check::Rules { number_of_shards: None, at_most_unowned: Some(at_most) })
    }

    /// The routing table, if the manager answers.
    pub async fn try_table(&self) -> Option<Table> {
        let answer = self.manager.client().get_routing_table(GetRoutingTableRequest::default()).await;
        answer.ok().map(|table| table.into_inner().into())
    }

    /// The routing table.
    pub async fn table(&self) -> Table {
        poll_until("the manager shows its table", PATIENCE, async || self.try_table().await).await
    }

    /// Every executor that the manager knows, by id; one id may have several incarnations.
    pub async fn executors(&self) -> Vec<rpc::Executor> {
        let answer = self.manager.admin().list_executors(rpc::ListExecutorsRequest {}).await.unwrap();
        answer.into_inner().executors
    }

    /// The state of one executor's newest entry; `None` where it is not known.
    pub async fn state_of(&self, id: &str) -> Option<String> {
        self.executors().await.into_iter().rfind(|it| it.id == id).map(|it| it.state)
    }

    /// Waits until an executor is in a state.
    pub async fn state_is(&self, id: &str, state: &str) {
        let what = format!("{id} is {state}");
        poll_until(&what, PATIENCE, async || (self.state_of(id).await.as_deref() == Some(state)).then_some(())).await;
    }

    /// Waits until every shard is owned by one of these and by all of them within the bound that the planner promises for equal
    /// weights and a threshold of 0.1, nothing is on its way, and every owner was seen to hold what it was granted.
    pub async fn at_rest(&self, ids: &[&str]) -> Table {
        self.at_rest_within(ids, PATIENCE).await
    }

    /// The same, under a deadline.
    pub async fn at_rest_within(&self, ids: &[&str], within: Duration) -> Table {
        let what = format!("every shard is at rest at {ids:?}");
        poll_until(&what, within, async || {
            let table = self.try_table().await?;
            let (shards, counts) = (table.shards.len(), table.counts());
            let (floor, ceiling) = (shards / ids.len(), shards.div_ceil(ids.len()));
            // floor(f * 0.1) of the fair share f.
            let slack = shards / (ids.len() * 10);
            let fair = |count: usize| count >= floor - slack && count <= ceiling + slack;
            let all = ids.iter().all(|&id| fair(counts.get(id).copied().unwrap_or(0)));
            let owned = counts.keys().all(|id| ids.contains(id)) && counts.values().sum::<usize>() == shards;
            let rests = all && owned && table.releasing == 0;
            (rests && self.manager.metric("shard_manager_unserved_shards").await == 0.0).then_some(table)
        })
        .await
    }
}
