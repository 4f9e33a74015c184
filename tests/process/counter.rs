//! The example of docs/executors.md, `examples/counter/`: real processes that count in a shared storage, and are killed, frozen and
//! restarted meanwhile. What was acknowledged must be in the storage, once; and the fence in it must hold.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use shard_manager::client::shard_for;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Row as _};

use crate::harness::{Child, Cluster, PATIENCE, poll_until};

const SHARDS: u32 = 16;
const KEYS: u64 = 12;
/// With work that is under way when things break, and a machine that does other things.
const LONG: Duration = Duration::from_secs(40);

/// Writes down every write that the storage accepts, in the order in which it does, whatever the writer thinks of it.
const AUDIT: &str = "
    CREATE TABLE audit (number INTEGER PRIMARY KEY, key TEXT, shard INTEGER, epoch INTEGER, fence INTEGER);
    CREATE TRIGGER audit_first AFTER INSERT ON counters BEGIN
        INSERT INTO audit (key, shard, epoch, fence)
        VALUES (NEW.key, NEW.shard, NEW.epoch, (SELECT epoch FROM fence WHERE shard = NEW.shard));
    END;
    CREATE TRIGGER audit_later AFTER UPDATE ON counters BEGIN
        INSERT INTO audit (key, shard, epoch, fence)
        VALUES (NEW.key, NEW.shard, NEW.epoch, (SELECT epoch FROM fence WHERE shard = NEW.shard));
    END;
";

/// A process of the example.
struct Counter {
    child: Child,
    address: SocketAddr,
}

impl Counter {
    async fn start(cluster: &Cluster, id: &str, listen: &str, storage: &Path) -> Counter {
        let (manager, storage) = (cluster.manager.grpc.to_string(), storage.display().to_string());
        let arguments = ["--id", id, "--manager", &manager, "--listen", listen, "--storage", &storage];
        let mut child = Child::spawn_example(&format!("counter {id}"), "counter", &arguments);
        let address = child.announced("listens on ").await.parse().unwrap();
        Counter { child, address }
    }

    fn url(&self, key: &str) -> String {
        format!("http://{}/counters/{key}", self.address)
    }
}

/// The storage, as somebody sees it who is none of the executors.
struct Storage(SqliteConnection);

impl Storage {
    async fn open(path: &Path) -> Storage {
        Storage(SqliteConnectOptions::new().filename(path).busy_timeout(PATIENCE).connect().await.unwrap())
    }

    async fn run(&mut self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&mut self.0).await.unwrap();
    }

    async fn values(&mut self) -> BTreeMap<String, u64> {
        let rows = sqlx::query("SELECT key, value FROM counters").fetch_all(&mut self.0).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn fence(&mut self, shard: u32) -> u64 {
        sqlx::query_scalar("SELECT epoch FROM fence WHERE shard = ?").bind(shard).fetch_one(&mut self.0).await.unwrap()
    }

    /// Waits until every key of the caller was counted up from where it is now.
    async fn all_count_on(&mut self) {
        let before = self.values().await;
        poll_until("every key counts on", LONG, async || {
            let values = self.values().await;
            let keys = (0..KEYS).map(|key| format!("key-{key}"));
            keys.into_iter().all(|key| values.get(&key) > before.get(&key)).then_some(())
        })
        .await;
    }
}

/// What the caller printed at its end, by key: acknowledged, and of unknown outcome.
fn tallies(printed: &[String]) -> BTreeMap<String, (u64, u64)> {
    let tally = |line: &String| match line.split(' ').collect::<Vec<_>>()[..] {
        [key, "acknowledged", acknowledged, "unknown", unknown] => {
            Some((key.to_owned(), (acknowledged.parse().unwrap(), unknown.parse().unwrap())))
        }
        _ => None,
    };
    printed.iter().filter_map(tally).collect()
}

/// Case 33, with the storage in it: one executor is killed, one is frozen in the middle of a write until its lease is over and the shard
/// has a new owner, one is restarted in order. Every acknowledged increment is there once, and nothing was written under an epoch
/// when the storage had seen a higher one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_in_the_storage_whatever_happens_to_executors() {
    let cluster = Cluster::start(&["number_of_shards=16"]).await;
    let path = cluster.directory.path().join("counters.db");
    let mut a = Counter::start(&cluster, "a", "127.0.0.1:0", &path).await;
    let b = Counter::start(&cluster, "b", "127.0.0.1:0", &path).await;
    let mut c = Counter::start(&cluster, "c", "127.0.0.1:0", &path).await;
    let mut storage = Storage::open(&path).await;
    storage.run(AUDIT).await;
    cluster.at_rest(&["a", "b", "c"]).await;
    let (manager, keys) = (cluster.manager.grpc.to_string(), KEYS.to_string());
    let mut caller = Child::spawn_example("the caller", "counter_client", &["--manager", &manager, "--keys", &keys]);
    storage.all_count_on().await;

    // Killed, and started again where it was.
    c.child.kill();
    cluster.at_rest(&["a", "b"]).await;
    storage.all_count_on().await;
    let listen = c.address.to_string();
    c = Counter::start(&cluster, "c", &listen, &path).await;
    let table = cluster.at_rest(&["a", "b", "c"]).await;
    storage.all_count_on().await;

    // A wrong owner says so, and who is right.
    let late =
        (0..).map(|number| format!("late-{number}")).find(|key| table.of("b").contains(&shard_for(key.as_bytes(), SHARDS).0));
    let late = late.unwrap();
    let shard = shard_for(late.as_bytes(), SHARDS).0;
    let http = reqwest::Client::new();
    let refused = http.post(a.url(&late)).send().await.unwrap();
    assert_eq!(refused.status(), 421);
    let refusal = tonic::Status::from_header_map(refused.headers()).unwrap();
    let named = shard_manager::client::NotOwner::of(&refusal).unwrap().current.unwrap();
    assert_eq!((named.owner.id.as_str(), named.epoch.0), ("b", table.shards[shard as usize].epoch));

    // Frozen with a write that has begun and waits for the storage, until somebody else owns the shard.
    storage.run("BEGIN EXCLUSIVE").await;
    let write = tokio::spawn(http.post(b.url(&late)).timeout(LONG).send());
    let marker = format!("key=\"{late}\"");
    poll_until("b is about to write", PATIENCE, async || {
        b.child.printed().iter().any(|line| line.contains("writing") && line.contains(&marker)).then_some(())
    })
    .await;
    b.child.freeze().await;
    storage.run("ROLLBACK").await;
    let before = table.shards[shard as usize].epoch;
    let after = poll_until("the fence is up at the new owner", LONG, async || {
        let fence = storage.fence(shard).await;
        (fence > before).then_some(fence)
    })
    .await;
    storage.all_count_on().await;
    assert!(!write.is_finished(), "the write waits in b");
    b.child.thaw();
    let answer = write.await.unwrap().unwrap();
    assert_eq!(answer.status(), 421, "the late write is refused");
    let said = poll_until("it was the storage that refused it", PATIENCE, async || {
        let mut lines = b.child.printed().into_iter();
        lines.find(|line| line.contains("the storage refused a stale epoch") && line.contains(&format!("shard={shard} ")))
    })
    .await;
    assert!(said.contains(&format!("epoch={before} seen={after}")), "{said}");
    assert_eq!(storage.values().await.get(&late), None);
    cluster.at_rest(&["a", "b", "c"]).await;
    storage.all_count_on().await;

    // Restarted in order.
    assert_eq!(a.child.stop(PATIENCE).await.0, Some(0));
    storage.all_count_on().await;
    let a = Counter::start(&cluster, "a", "127.0.0.1:0", &path).await;
    cluster.at_rest(&["a", "b", "c"]).await;
    storage.all_count_on().await;

    caller.signal(Signal::TERM);
    assert_eq!(caller.exit_code(LONG).await, Some(0));
    let tallies = tallies(&caller.printed());
    assert_eq!(tallies.len() as u64, KEYS);
    let values = storage.values().await;
    for (key, (acknowledged, unknown)) in &tallies {
        let value = values[key];
        assert!(
            value >= *acknowledged && value <= acknowledged + unknown,
            "{key} is {value}: {acknowledged} were acknowledged and {unknown} of unknown outcome"
        );
    }
    let rows = sqlx::query("SELECT key, shard, epoch, fence FROM audit ORDER BY number").fetch_all(&mut storage.0).await.unwrap();
    assert_eq!(rows.len() as u64, values.values().sum::<u64>(), "every write was looked at");
    let mut newest = BTreeMap::new();
    for row in &rows {
        let (key, shard, epoch, fence): (&str, u32, u64, u64) = (row.get(0), row.get(1), row.get(2), row.get(3));
        assert_eq!(epoch, fence, "{key} was written under an epoch that is not the fence's");
        let newest = newest.entry(shard).or_insert(epoch);
        assert!(epoch >= *newest, "{key} was written under epoch {epoch}, after {newest}");
        *newest = epoch;
    }
    drop((a, b, c));
}

/// The storage has seen epochs that the manager does not know, as after its state was restored from a backup. The owner is refused, says
/// so, and gets its shards again above what the storage has seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epochs_that_only_the_storage_has_seen_are_told_to_the_manager_and_surpassed() {
    let cluster = Cluster::start(&["number_of_shards=16"]).await;
    let path = cluster.directory.path().join("counters.db");
    let _a = Counter::start(&cluster, "a", "127.0.0.1:0", &path).await;
    let mut storage = Storage::open(&path).await;
    storage.run(AUDIT).await;
    cluster.at_rest(&["a"]).await;
    let (manager, keys) = (cluster.manager.grpc.to_string(), KEYS.to_string());
    let _caller = Child::spawn_example("the caller", "counter_client", &["--manager", &manager, "--keys", &keys]);
    storage.all_count_on().await;

    storage.run("UPDATE fence SET epoch = epoch + 1000").await;
    let shard = shard_for(b"key-0", SHARDS).0;
    let raised = storage.fence(shard).await;
    storage.all_count_on().await;
    let (fence, table) = (storage.fence(shard).await, cluster.table().await);
    assert!(fence > raised, "{fence} is not above {raised}");
    assert_eq!(table.shards[shard as usize].epoch, fence, "the manager knows it too");
}
