//! The state is lost, older than what was seen, damaged, or out of reach.

use std::time::{Duration, Instant};

use shard_manager::cli::journal::Entry;
use shard_manager::rpc::{self, GetRoutingTableRequest, reason, reason_of};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection, Row};

use crate::harness::{Cluster, Fake, Manager, PATIENCE, Store, boot_ns, free_address, poll_until};

const L: Duration = Duration::from_secs(2);
/// The manager adds this to a lease of 2 s.
const MARGIN: Duration = Duration::from_millis(120);
const SETTLE: Duration = Duration::from_millis(300);
/// Round trips, commits, and other processes on the machine.
const SLACK: Duration = Duration::from_secs(1);

/// Case 29: everything is lost under executors that run, and under one that is frozen and still holds its lease. They leave the old
/// cluster behind, grants are held back for one lease (L12), and every epoch is above any before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_is_deleted_while_the_manager_is_down() {
    let mut cluster = Cluster::start(&[]).await;
    let executors = [cluster.executor("a").await, cluster.executor("b").await, cluster.executor("c").await];
    let before = cluster.at_rest(&["a", "b", "c"]).await;
    let [a, b, c] = &executors;
    let renewed = c.lease_until();
    poll_until("c has renewed just now", PATIENCE, async || (c.lease_until() > renewed).then_some(())).await;
    c.child.freeze().await;
    assert_eq!(cluster.manager.stop().await, Some(0));
    cluster.store.wipe();
    let lost = boot_ns();
    cluster.manager.restart().await;
    let between = cluster.at_rest_within(&["a", "b"], L + MARGIN + L / 3 + SETTLE + SLACK).await;
    assert_ne!(between.cluster_id, before.cluster_id);
    assert!(between.term > before.term);
    c.child.thaw();
    let after = cluster.at_rest_within(&["a", "b", "c"], 2 * (L + MARGIN) + SETTLE + SLACK).await;
    for (shard, (old, new)) in before.shards.iter().zip(&after.shards).enumerate() {
        assert!(new.epoch > old.epoch && new.incarnation != old.incarnation, "shard {shard}: {old:?}, then {new:?}");
    }
    for executor in [a, b, c] {
        let changes = executor.changes_since(lost);
        let start = changes.iter().position(|line| matches!(line.entry, Entry::Start { .. })).unwrap();
        assert_eq!(start, before.of(&executor.id).len(), "{} stopped everything before it started anything", executor.id);
    }
    cluster.check_safety();
}

/// Only the database is gone, and the leader cell beside it says that it was led: nobody begins another cluster unasked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_database_that_had_a_leader_is_refused() {
    let mut cluster = Cluster::start(&[]).await;
    assert_eq!(cluster.manager.stop().await, Some(0));
    std::fs::remove_file(cluster.store.path()).unwrap();
    let (code, said) = refused(&cluster.store).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("it is missing, but it had a leader") && said.contains("remove it and"), "{said}");
    assert!(!cluster.store.path().exists());
    // As the text says.
    cluster.store.wipe();
    cluster.manager.restart().await;
    let says = "the store is empty: a new cluster";
    poll_until("it says so", PATIENCE, async || cluster.manager.child.printed().iter().any(|it| it.contains(says)).then_some(()))
        .await;
}

/// The same under a manager that runs: it notices that its file is gone, gives the leadership up and ends with exit code 4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_is_deleted_while_the_manager_runs() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    let before = cluster.at_rest(&["a"]).await;
    cluster.store.wipe();
    assert_eq!(cluster.manager.child.exit_code(PATIENCE).await, Some(4));
    cluster.manager.restart().await;
    let after = cluster.at_rest_within(&["a"], 2 * (L + MARGIN) + SETTLE + SLACK).await;
    assert!(before.shards.iter().zip(&after.shards).all(|(old, new)| new.epoch > old.epoch));
    drop(a);
    cluster.check_safety();
}

/// Cases 29 and 41: an older state of the same cluster comes back. What executors show raises what is recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_is_restored_to_an_older_state() {
    let mut cluster = Cluster::start(&[]).await;
    let mut a = cluster.executor("a").await;
    cluster.at_rest(&["a"]).await;
    assert_eq!(cluster.manager.stop().await, Some(0));
    let old = std::fs::read(cluster.store.path()).unwrap();
    cluster.manager.restart().await;
    let b = cluster.executor("b").await;
    cluster.at_rest(&["a", "b"]).await;
    a.child.kill();
    let before = cluster.at_rest(&["b"]).await;
    assert_eq!(cluster.manager.stop().await, Some(0));
    cluster.store.wipe();
    std::fs::write(cluster.store.path(), old).unwrap();
    cluster.manager.restart().await;
    // The old state says that a, which is dead, owns everything: its lease is waited for, and b's claims are heard meanwhile.
    let after = cluster.at_rest_within(&["b"], 2 * (L + MARGIN) + SETTLE + SLACK).await;
    assert_eq!(after.cluster_id, before.cluster_id);
    assert!(before.shards.iter().zip(&after.shards).all(|(old, new)| new.epoch > old.epoch));
    poll_until("b runs everything", PATIENCE, async || (b.holds().len() == 64).then_some(())).await;
    cluster.check_safety();
}

/// Case 64: the lease was longer under the manager before. Nobody is expired before the longer one is over (L8).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_gets_shorter_with_a_new_manager() {
    let mut cluster = Cluster::start(&["executors.lease_ttl=4s"]).await;
    let (a, mut x) = (cluster.executor("a").await, cluster.executor("x").await);
    let before = cluster.at_rest(&["a", "x"]).await;
    x.child.kill();
    let lease_ends = x.lease_until();
    let killed = boot_ns();
    cluster.manager.restart_with(&["executors.lease_ttl=1s"]).await;
    cluster.at_rest(&["a"]).await;
    poll_until("a runs everything", PATIENCE, async || (a.holds().len() == 64).then_some(())).await;
    let starts: Vec<_> = a.changes_since(killed).into_iter().filter(|line| matches!(line.entry, Entry::Start { .. })).collect();
    assert_eq!(starts.len(), before.of("x").len());
    assert!(starts.iter().all(|line| line.at_ns > lease_ends), "{lease_ends}: {starts:?}");
    let at_most = Duration::from_secs(4) + Duration::from_millis(140) + SLACK;
    assert!(starts.iter().all(|line| Duration::from_nanos(line.at_ns - killed) < at_most), "{starts:?}");
    cluster.check_safety();
}

/// Case 65: a router and an executor have seen a higher term than the leader has. It is below no answer (L10).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_has_seen_a_higher_term() {
    let cluster = Cluster::start(&[]).await;
    let before = cluster.table().await;
    let seen = rpc::Version { term: before.term + 1_000_000, revision: 77 };
    let request = GetRoutingTableRequest { cluster_id: before.cluster_id.clone(), known: Some(seen) };
    let answer = cluster.manager.client().get_routing_table(request.clone()).await.unwrap().into_inner().version.unwrap();
    assert_eq!(answer.term, seen.term + 1);
    // Asked again, nothing is left to do.
    let again = cluster.manager.client().get_routing_table(request).await.unwrap().into_inner().version.unwrap();
    assert_eq!(again, answer);

    let mut fake = Fake::new(&cluster.manager, "x", 1);
    fake.register().await.unwrap();
    let seen = rpc::Version { term: answer.term + 500, revision: 1 };
    fake.mark = Some(seen);
    let renewed = fake.renew().await.unwrap().version.unwrap();
    assert!(renewed.term > seen.term);
    // A revision above the leader's, within its own term: the same.
    let seen = rpc::Version { term: renewed.term, revision: renewed.revision + 1000 };
    fake.mark = Some(seen);
    let renewed = fake.renew().await.unwrap().version.unwrap();
    assert!(renewed.term > seen.term);
    // Another cluster's version says nothing here.
    let foreign = "00000000-0000-0000-0000-000000000001".to_owned();
    let known = Some(rpc::Version { term: renewed.term + 10, revision: 1 });
    let request = GetRoutingTableRequest { cluster_id: foreign, known };
    let answer = cluster.manager.client().get_routing_table(request).await.unwrap().into_inner().version.unwrap();
    assert_eq!(answer.term, renewed.term);
}

/// Case 41: a claim with a higher epoch than recorded raises what is recorded, whoever owns the shard, and moves nothing (L11).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_shows_a_higher_epoch() {
    let cluster = Cluster::start(&["executors.settle_time=1s", "executors.lease_ttl=20s"]).await;
    let mut owner = Fake::new(&cluster.manager, "owner", 1);
    owner.register().await.unwrap();
    poll_until("it holds everything", PATIENCE, async || {
        owner.renew().await.unwrap();
        (owner.assignment.shards.len() == 64).then_some(())
    })
    .await;
    owner.renew().await.unwrap();
    let before = cluster.table().await;
    let mut claim = owner.assignment.clone();
    claim.epochs[3] += 1000;
    let shown = claim.epochs[3];
    assert!(owner.renew_claiming(claim).await.unwrap().assignment.is_none(), "what it claims is what it should hold");
    let raised = cluster.table().await;
    assert_eq!(raised.shards[3].epoch, shown);

    // A stranger that is drained before anything moves to it claims what is somebody else's.
    let mut stranger = Fake::new(&cluster.manager, "stranger", 2);
    stranger.register().await.unwrap();
    let wish = rpc::ChangeExecutorRequest { executor_id: "stranger".to_owned(), ..rpc::ChangeExecutorRequest::default() };
    cluster.manager.admin().drain_executor(wish).await.unwrap();
    let shown = raised.shards[5].epoch + 1000;
    stranger.renew_claiming(rpc::Holdings { shards: vec![5], epochs: vec![shown] }).await.unwrap();
    assert_eq!(stranger.assignment.shards, [0_u32; 0], "it is told that it holds nothing");
    let after = cluster.table().await;
    assert!(after.shards[5].epoch > shown, "the owner goes on above it");
    assert!(after.shards.iter().all(|it| it.executor.as_deref() == Some("owner")), "nothing moved");
    let others = |table: &crate::harness::Table| -> Vec<u64> {
        table.shards.iter().enumerate().filter(|(at, _)| ![3, 5].contains(at)).map(|(_, it)| it.epoch).collect()
    };
    assert_eq!(others(&before), others(&after));
}

async fn connect(store: &Store) -> SqliteConnection {
    SqliteConnectOptions::new().filename(store.path()).connect().await.unwrap()
}

/// Case 30: another process locks the database for longer than a request may take. Leases go on; what would have to be written is
/// refused with its reason, and taken once the lock is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_is_locked_for_a_while() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    let before = cluster.at_rest(&["a"]).await;
    let held = a.holds();
    let mut stranger = connect(&cluster.store).await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut stranger).await.unwrap();
    let locked = boot_ns();
    let mut fake = Fake::new(&cluster.manager, "b", 1);
    let begun = Instant::now();
    let refused = fake.register().await.unwrap_err();
    assert_eq!(reason_of(&refused).as_deref(), Some(reason::STORE_UNAVAILABLE), "{refused}");
    assert!(begun.elapsed() < Duration::from_millis(2500), "it took {:?}", begun.elapsed());
    poll_until("the lock outlives a lease", PATIENCE, async || (boot_ns() - locked > 2 * 2_000_000_000).then_some(())).await;
    assert_eq!(cluster.table().await, before);
    assert_eq!((a.holds(), a.changes_since(locked)), (held, vec![]));
    sqlx::raw_sql("ROLLBACK").execute(&mut stranger).await.unwrap();
    poll_until("a registration is taken", Duration::from_secs(3), async || fake.register().await.ok()).await;
    assert!(cluster.manager.metric("shard_manager_commits_total{outcome=\"failed\"}").await > 0.0);
    cluster.check_safety();
}

/// A database with records of every kind, and no manager.
async fn written() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::Sqlite(directory.path().join("shard-manager.db"));
    let mut manager = Manager::start(&store, &["number_of_shards=64", "executors.settle_time=0s"]).await;
    // One that was superseded is remembered as such.
    for incarnation in [1, 2] {
        Fake::new(&manager, "x", incarnation).register().await.unwrap();
    }
    assert_eq!(manager.stop().await, Some(0));
    (directory, store)
}

fn content(store: &Store) -> Vec<u8> {
    std::fs::read(store.path()).unwrap()
}

/// Runs a manager over a damaged store; its exit code, and everything that it said.
async fn refused(store: &Store) -> (Option<i32>, String) {
    let mut child = Manager::spawn(free_address(), free_address(), store, &["number_of_shards=64".to_owned()]);
    let code = child.exit_code(PATIENCE).await;
    (code, child.printed().join("\n"))
}

/// Case 26: a bit of a record is flipped, in each kind of record and in each part of it: exit code 3, the record's name, and the file
/// stays as it is, byte for byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bit_of_a_record_is_flipped() {
    let (_directory, store) = written().await;
    let mut connection = connect(&store).await;
    let rows = sqlx::query("SELECT kind, page, body FROM record ORDER BY kind").fetch_all(&mut connection).await.unwrap();
    let kinds: Vec<String> = rows.iter().map(|row| row.get("kind")).collect();
    assert_eq!(kinds, ["executors", "meta", "retirees", "shards"]);
    for row in rows {
        let (kind, page, body): (String, i64, Vec<u8>) = (row.get("kind"), row.get("page"), row.get("body"));
        let name = if kind == "meta" { kind.clone() } else { format!("{kind}/{page}") };
        let mut flipped: Vec<Vec<u8>> = [0, 5, body.len() / 2, body.len() - 1]
            .into_iter()
            .map(|at| body.iter().enumerate().map(|(it, byte)| if it == at { byte ^ 0x10 } else { *byte }).collect())
            .collect();
        flipped.push(body[..body.len() / 2].to_vec());
        flipped.push(Vec::new());
        for damaged in flipped {
            write(&mut connection, &kind, page, &damaged).await;
            let before = content(&store);
            let (code, said) = refused(&store).await;
            assert_eq!(code, Some(3), "{said}");
            assert!(said.contains(&format!("record {name} is refused")), "{name}: {said}");
            assert_eq!(content(&store), before, "{name}: the file changed");
        }
        write(&mut connection, &kind, page, &body).await;
    }
    connection.close().await.unwrap();
    let manager = Manager::start(&store, &["number_of_shards=64"]).await;
    assert_eq!(manager.get("/readyz").await.0, 200, "put back, it serves");
}

/// Writes a record, and moves it from the log into the database file.
async fn write(connection: &mut SqliteConnection, kind: &str, page: i64, body: &[u8]) {
    let update = sqlx::query("UPDATE record SET body = ? WHERE kind = ? AND page = ?").bind(body).bind(kind).bind(page);
    assert_eq!(update.execute(&mut *connection).await.unwrap().rows_affected(), 1);
    sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(connection).await.unwrap();
}

/// Case 26, below the records: the file itself is damaged, at places all over it. It starts, where the damage hits nothing that
/// counts, or it ends with 3 and leaves the file as it is; never anything else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bit_of_the_file_is_flipped() {
    let (_directory, store) = written().await;
    let sound = content(&store);
    let step = sound.len() / 24;
    let mut refusals = 0;
    for at in (0..sound.len()).step_by(step).chain([sound.len() - 1]) {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x04;
        std::fs::write(store.path(), &damaged).unwrap();
        let mut child = Manager::spawn(free_address(), free_address(), &store, &["number_of_shards=64".to_owned()]);
        let ended = poll_until("it serves or ends", PATIENCE, async || {
            if !child.is_running() { Some(true) } else { child.said("gRPC listening on ").map(|_| false) }
        })
        .await;
        if ended {
            let code = child.exit_code(PATIENCE).await;
            assert_eq!(code, Some(3), "byte {at}: {}", child.printed().join("\n"));
            assert!(content(&store) == damaged, "byte {at}: the file changed");
            refusals += 1;
        }
        drop(child);
        store.wipe();
    }
    assert!(refusals > 0);
    for damaged in [
        &sound[..sound.len() / 2],
        b"this is no database, but it is as long as a header has to be. And a bit longer than that..",
        &[],
    ] {
        store.wipe();
        std::fs::write(store.path(), damaged).unwrap();
        // An empty file had a leader once, by the file beside it.
        let mut leader = store.path().as_os_str().to_owned();
        leader.push(".leader");
        std::fs::write(leader, "").unwrap();
        let (code, said) = refused(&store).await;
        assert_eq!(code, Some(3), "{} bytes: {said}", damaged.len());
        assert!(content(&store) == damaged, "{} bytes: the file changed", damaged.len());
    }
}
