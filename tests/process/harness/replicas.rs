//! Several managers over one etcd: one leads, the others stand by.

use std::time::Duration;

use etcd_client::KeyValue;

use super::{Cluster, Executor, Manager, PATIENCE, Store, Table, boot_ns, poll_until};
use crate::support::etcd::Etcd;
use crate::support::proxy;

/// Of the leadership, unless a scenario sets another. It is the shortest that there is.
pub const TTL: Duration = Duration::from_secs(2);

const PREFIX: &str = "/test/";

/// See the module. `cluster.manager` is the leader, or was when the scenario last looked.
pub struct Replicas {
    // Before etcd, so that processes end first.
    pub cluster: Cluster,
    /// In the order in which they wait.
    pub standbys: Vec<Manager>,
    /// Between the first leader and etcd.
    pub proxy: proxy::Proxy,
    pub etcd: Etcd,
}

/// What must not change for executors while replicas come and go.
pub struct Rest {
    since: u64,
    table: Table,
    executors: Vec<Executor>,
}

impl Replicas {
    /// As many as that over one etcd server. Executors outlive a succession by their leases.
    pub async fn start(replicas: usize, settings: &[&str]) -> Replicas {
        let etcd = Etcd::single().await;
        let proxy = proxy::Proxy::to(etcd.members[0].client).await;
        let leaders = proxy.endpoint();
        Replicas::over(etcd, proxy, leaders, replicas, settings).await
    }

    /// The same over three etcd servers, all of which every replica knows; nothing stands between.
    pub async fn start_on_three_members(replicas: usize, settings: &[&str]) -> Replicas {
        let etcd = Etcd::three().await;
        let proxy = proxy::Proxy::to(etcd.members[0].client).await;
        let all = etcd.endpoints().join(",");
        Replicas::over(etcd, proxy, all, replicas, settings).await
    }

    async fn over(etcd: Etcd, proxy: proxy::Proxy, leaders: String, replicas: usize, settings: &[&str]) -> Replicas {
        let settings = Replicas::settings(settings);
        let store = Store::Etcd { endpoint: leaders, prefix: PREFIX.to_owned() };
        let cluster = Cluster::around(Manager::start(&store, &settings).await, store);
        let mut started = Replicas { cluster, standbys: Vec::new(), proxy, etcd };
        for _ in 1..replicas {
            started.join(&settings).await;
        }
        started
    }

    /// The settings of each replica, overridden by these.
    pub fn settings<'a>(settings: &[&'a str]) -> Vec<&'a str> {
        let short = ["leadership.lease_ttl=2s", "executors.lease_ttl=6s", "executors.settle_time=300ms", "number_of_shards=64"];
        [&short, settings].concat()
    }

    /// Where etcd is found, past the proxy.
    pub fn store(&self) -> Store {
        Store::Etcd { endpoint: self.etcd.endpoints().join(","), prefix: PREFIX.to_owned() }
    }

    /// One more replica; returns when it waits.
    async fn join(&mut self, settings: &[&str]) {
        let standby = Manager::stand(&self.store(), settings).await;
        self.waits(&standby).await;
        self.standbys.push(standby);
    }

    /// Returns when this one is in the queue.
    pub async fn waits(&self, replica: &Manager) {
        poll_until("it is in the queue", PATIENCE, async || {
            self.queue().await.iter().any(|it| it.contains(&replica.identity())).then_some(())
        })
        .await;
    }

    /// Who leads and who waits, in their order, by what etcd holds.
    pub async fn queue(&self) -> Vec<String> {
        self.keys().await.iter().map(|key| String::from_utf8_lossy(key.value()).into_owned()).collect()
    }

    /// The same, as keys.
    pub async fn keys(&self) -> Vec<KeyValue> {
        self.etcd.keys(&format!("{PREFIX}leader/")).await
    }

    /// Deletes the key of who leads, from outside; what it was.
    pub async fn depose(&self) -> KeyValue {
        let first = self.keys().await.swap_remove(0);
        self.etcd.client().await.delete(first.key(), None).await.unwrap();
        first
    }

    /// The revision of the last write of any record of the state.
    pub async fn written(&self) -> i64 {
        let keys = self.etcd.keys(&format!("{PREFIX}state/")).await;
        keys.iter().map(|key| key.mod_revision()).max().unwrap()
    }

    /// An executor that knows every replica.
    pub async fn executor(&mut self, id: &str) -> Executor {
        let all = std::iter::once(&self.cluster.manager).chain(&self.standbys);
        let all = all.map(|it| it.grpc.to_string()).collect::<Vec<_>>().join(",");
        self.cluster.executor_with(id, &["--manager", &all]).await
    }

    /// Two executors with all shards, at rest.
    pub async fn at_rest(&mut self) -> Rest {
        let executors = vec![self.executor("a").await, self.executor("b").await];
        let table = self.cluster.at_rest(&["a", "b"]).await;
        // The manager has heard it from them, and a journal is not behind that.
        Rest { since: boot_ns(), table, executors }
    }

    /// Executors kept what they had at the epochs that it had, without one stop and start; and they are served.
    pub async fn still(&self, rest: &Rest) {
        let now = self.cluster.at_rest(&["a", "b"]).await;
        assert_eq!(now.shards, rest.table.shards, "owners, incarnations and epochs");
        assert_eq!(now.cluster_id, rest.table.cluster_id);
        for executor in &rest.executors {
            let before = executor.lease_until();
            let renewed = async || (executor.lease_until() > before).then_some(());
            poll_until("it renews its lease", PATIENCE, renewed).await;
            assert_eq!(executor.changes_since(rest.since), [], "{} started or stopped something", executor.id);
        }
        assert_eq!(self.cluster.manager.metric("shard_manager_lease_lapses_total").await, 0.0);
        self.cluster.check_safety();
    }

    /// Waits until a standby serves, and makes it the manager; hands out the one before. At no look did the one before lead still
    /// after another led already.
    pub async fn succession(&mut self, within: Duration) -> Manager {
        let successor = poll_until("a standby serves", within, async || {
            for (at, standby) in self.standbys.iter().enumerate() {
                if leads(standby).await {
                    assert!(!leads(&self.cluster.manager).await, "two lead at once");
                    return standby.is_ready().await.then_some(at);
                }
            }
            None
        })
        .await;
        let successor = self.standbys.remove(successor);
        std::mem::replace(&mut self.cluster.manager, successor)
    }
}

impl Rest {
    /// Of the leader at the time.
    pub fn term(&self) -> u64 {
        self.table.term
    }
}

async fn leads(replica: &Manager) -> bool {
    let metrics = replica.try_get("/metrics").await;
    metrics.is_some_and(|(_, text)| text.lines().any(|line| line == "shard_manager_is_leader 1"))
}
