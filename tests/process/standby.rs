//! Processes beside one database file: one serves, the others wait; and what a leader does whose file is in trouble.

use std::path::Path;
use std::time::{Duration, Instant};

use shard_manager::rpc;
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::harness::{Cluster, Executor, Fake, Manager, PATIENCE, Store, Table, boot_ns, poll_until};

/// What a machine with two busy cores may be late by.
const SLACK: Duration = Duration::from_millis(1500);
const GRACE: Duration = Duration::from_secs(1);
/// Executors outlive a leader that hangs for its grace.
const SETTINGS: [&str; 4] =
    ["leadership.host.grace=1s", "executors.lease_ttl=6s", "executors.settle_time=300ms", "number_of_shards=64"];

/// A leader, a standby, and an executor that knows both and has everything.
struct Pair {
    cluster: Cluster,
    standby: Manager,
    executor: Executor,
    table: Table,
    since: u64,
}

impl Pair {
    async fn at_rest() -> Pair {
        let mut cluster = Cluster::start(&SETTINGS).await;
        let standby = Manager::stand(&cluster.store, &SETTINGS).await;
        poll_until("it says who leads", PATIENCE, async || {
            standby.status().await["leader"].as_str()?.contains(&cluster.manager.identity()).then_some(())
        })
        .await;
        let both = format!("{},{}", cluster.manager.grpc, standby.grpc);
        let executor = cluster.executor_with("a", &["--manager", &both]).await;
        let table = cluster.at_rest(&["a"]).await;
        Pair { cluster, standby, executor, table, since: boot_ns() }
    }

    /// The standby serves; what was before is handed out, and the executor has noticed nothing.
    async fn succession(&mut self, within: Duration) -> Duration {
        let begun = Instant::now();
        poll_until("the standby serves", within, async || self.standby.is_ready().await.then_some(())).await;
        let took = begun.elapsed();
        std::mem::swap(&mut self.cluster.manager, &mut self.standby);
        let table = self.cluster.at_rest(&["a"]).await;
        assert_eq!(table.shards, self.table.shards, "owners, incarnations and epochs");
        assert!(table.term > self.table.term);
        assert_eq!(self.executor.changes_since(self.since), []);
        self.cluster.check_safety();
        took
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_beside_a_standby_is_killed() {
    let mut pair = Pair::at_rest().await;
    let standby = &pair.standby;
    assert_eq!(standby.get("/readyz").await, (503, "{\"reason\":\"standby\"}".to_owned()));
    assert_eq!(standby.status().await["role"], "standby");
    pair.cluster.manager.child.kill();
    pair.succession(SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_beside_a_standby_is_told_to_stop() {
    let mut pair = Pair::at_rest().await;
    assert_eq!(pair.cluster.manager.stop().await, Some(0));
    pair.succession(SLACK).await;
}

/// It is killed by the standby, which says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_beside_a_standby_is_stopped() {
    let mut pair = Pair::at_rest().await;
    pair.cluster.manager.child.freeze().await;
    pair.succession(GRACE + SLACK).await;
    assert_eq!(pair.standby.child.exit_code(PATIENCE).await, None, "killed");
    assert!(pair.cluster.manager.child.said("has not beaten for ").is_some());
}

/// It lets the other one go first, and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_beside_a_standby_steps_down() {
    let mut pair = Pair::at_rest().await;
    pair.cluster.manager.json(&["step-down", "--reason", "a test"]).await;
    pair.succession(SLACK).await;
    poll_until("it waits", PATIENCE, async || {
        pair.standby.status().await["leader"].as_str()?.contains(&pair.cluster.manager.identity()).then_some(())
    })
    .await;
    assert!(pair.standby.child.is_running());
}

async fn lock(store: &Store) -> SqliteConnection {
    let mut connection = SqliteConnectOptions::new().filename(store.path()).connect().await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut connection).await.unwrap();
    connection
}

/// Asks for something that has to be written, again and again, until the leader ends; its exit code, and how long it took.
async fn insist(manager: &mut Manager) -> (Option<i32>, Duration) {
    let begun = Instant::now();
    let mut admin = manager.admin();
    poll_until("it ends", PATIENCE, async || {
        let wish = rpc::ChangeExecutorRequest { executor_id: "a".to_owned(), ..rpc::ChangeExecutorRequest::default() };
        let outcome = admin.cordon_executor(wish).await;
        assert!(outcome.is_err(), "what is not durable is not answered OK");
        (!manager.child.is_running()).then_some(())
    })
    .await;
    (manager.child.exit_code(PATIENCE).await, begun.elapsed())
}

const SHORT: [&str; 3] = ["leadership.lease_ttl=2s", "executors.lease_ttl=6s", "number_of_shards=64"];

/// Case 30, for longer than a leadership lasts: it says what is wrong, ends as one whose store is gone, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_is_locked_for_too_long() {
    let mut cluster = Cluster::start(&SHORT).await;
    let executor = cluster.executor("a").await;
    let before = cluster.at_rest(&["a"]).await;
    let locked = lock(&cluster.store).await;
    let (code, took) = insist(&mut cluster.manager).await;
    assert_eq!(code, Some(3));
    assert!(took < Duration::from_secs(2 + 1 + 1) + SLACK, "TTL, a request and a pause, but {took:?}");
    assert!(cluster.manager.child.printed().join("\n").contains("database is locked"));
    drop(locked);
    cluster.manager.restart().await;
    assert_eq!(cluster.at_rest(&["a"]).await.shards, before.shards);
    cluster.check_safety();
    drop(executor);
}

/// The file goes under a running leader: what it would write there is for nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_is_deleted_under_the_leader() {
    let mut cluster = Cluster::start(&SHORT).await;
    Fake::new(&cluster.manager, "a", 1).register().await.unwrap();
    std::fs::remove_file(cluster.store.path()).unwrap();
    assert_eq!(cluster.manager.child.exit_code(SLACK).await, Some(4));
    assert!(cluster.manager.child.printed().join("\n").contains("was deleted"));
}

/// A small file system of its own, full. Unmounted when dropped.
struct Disk(tempfile::TempDir);

impl Disk {
    /// `None` where this user cannot mount anything.
    fn mount() -> Option<Disk> {
        let disk = Disk(tempfile::tempdir().unwrap());
        let mount = ["-t", "tmpfs", "-o", "size=2m", "tmpfs"];
        let mounted = std::process::Command::new("mount").args(mount).arg(disk.0.path()).status();
        mounted.is_ok_and(|status| status.success()).then_some(disk)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills what is left.
    fn fill(&self) -> std::path::PathBuf {
        let path = self.path().join("filler");
        let mut file = std::fs::File::create(&path).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        std::process::Command::new("umount").args(["-l"]).arg(self.0.path()).status().ok();
    }
}

/// It goes on reading and beating, and could lead for ever without writing a byte. It stops, and what was durable is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_disk_is_full() {
    let Some(disk) = Disk::mount() else {
        assert!(!rustix::process::geteuid().is_root(), "root can mount a file system");
        return;
    };
    let store = Store::Sqlite(disk.path().join("shard-manager.db"));
    let mut cluster = Cluster::around(Manager::start(&store, &SHORT).await, store);
    let executor = cluster.executor("a").await;
    let before = cluster.at_rest(&["a"]).await;
    let filler = disk.fill();
    let (code, _) = insist(&mut cluster.manager).await;
    assert_eq!(code, Some(3));
    assert!(cluster.manager.child.printed().join("\n").contains("full"));
    std::fs::remove_file(filler).unwrap();
    cluster.manager.restart().await;
    assert_eq!(cluster.at_rest(&["a"]).await.shards, before.shards);
    cluster.check_safety();
    drop(executor);
}
