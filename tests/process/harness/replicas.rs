//! Several managers over one store: one leads, the others stand by.

use std::time::Duration;

use super::{Cluster, Executor, Manager, PATIENCE, Place, Table, boot_ns, poll_until};

/// Of the leadership, unless a scenario sets another. It is the shortest that there is.
pub const TTL: Duration = Duration::from_secs(2);

/// See the module. `cluster.manager` is the leader, or was when the scenario last looked.
pub struct Replicas<P> {
    // Before the place, so that processes end first.
    pub cluster: Cluster,
    /// In the order in which they began to wait.
    pub standbys: Vec<Manager>,
    pub place: P,
    settings: Vec<String>,
}

/// What must not change for executors while replicas come and go.
pub struct Rest {
    since: u64,
    table: Table,
    executors: Vec<Executor>,
}

impl<P: Place> Replicas<P> {
    /// As many as that at a new place. Executors outlive a succession by their leases.
    pub async fn start(replicas: usize, settings: &[&str]) -> Replicas<P> {
        Replicas::start_at(P::make().await, replicas, settings).await
    }

    /// The same, at this one.
    pub async fn start_at(place: P, replicas: usize, settings: &[&str]) -> Replicas<P> {
        let settings = P::settings(settings);
        let store = place.leaders_store();
        let cluster = Cluster::around(Manager::start(&store, &settings).await, store);
        let settings = settings.into_iter().map(str::to_owned).collect();
        let mut started = Replicas { cluster, standbys: Vec::new(), place, settings };
        for _ in 1..replicas {
            started.join().await;
        }
        started
    }

    /// One more replica, past the proxy; returns when it waits.
    pub async fn join(&mut self) {
        let settings: Vec<&str> = self.settings.iter().map(String::as_str).collect();
        let standby = Manager::stand(&self.place.store(), &settings).await;
        self.waits(&standby).await;
        self.standbys.push(standby);
    }

    /// Returns when this one waits, by what it says, and for the one that leads by what the store says.
    pub async fn waits(&self, replica: &Manager) {
        poll_until("it waits for the leader", PATIENCE, async || {
            let status: serde_json::Value = serde_json::from_str(&replica.try_get("/status").await?.1).unwrap();
            let leader = self.place.queue().await.into_iter().next()?;
            let (waits, knows) = (status["role"] == "standby", status["leader"].as_str().is_some_and(|it| leader.contains(it)));
            (waits && knows && self.place.has_queued(replica).await).then_some(())
        })
        .await;
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
        let before: Vec<u64> = rest.executors.iter().map(Executor::lease_until).collect();
        for (executor, before) in rest.executors.iter().zip(before) {
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
