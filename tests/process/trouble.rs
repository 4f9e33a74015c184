//! The database file of a running leader is in trouble: locked, deleted, without room. The leader says what is wrong and stops by its own
//! deadline, and nothing is lost.

use std::path::Path;
use std::time::{Duration, Instant};

use shard_manager::rpc;
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::harness::{Cluster, Fake, Manager, PATIENCE, Store, poll_until};

/// What a machine with two busy cores may be late by.
const SLACK: Duration = Duration::from_millis(1500);

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
        eprintln!("not tried: this user may not mount a file system of its own");
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
