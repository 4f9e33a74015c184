//! A cluster moves from one store to another while its executors run. They notice no more than a change of leaders.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use shard_manager::assignment::record::{ExecutorRecord, ShardRecord, ShardState, Standing, Wish};
use shard_manager::assignment::state::{Inventory, Meta, Seal, State};
use shard_manager::transfer::document::{Content, Document, Taken};
use shard_manager::types::{ClusterId, Epoch, Incarnation, ShardId, Slot, Term, Token};
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

use crate::harness::{
    Child, Cluster, Executor, Manager, OnEtcd, PATIENCE, Place, Replicas, Store, Table, boot_ns, free_address, poll_until, run,
    window,
};
use crate::support::etcd::Etcd;
use crate::support::postgres::Postgres;

/// Executors outlive a move by their leases.
const SETTINGS: [&str; 2] = ["executors.lease_ttl=15s", "leadership.lease_ttl=2s"];

fn sqlite(cluster: &Cluster, name: &str) -> Store {
    Store::Sqlite(cluster.directory.path().join(name))
}

fn etcd_store(etcd: &Etcd) -> Store {
    Store::Etcd { endpoint: etcd.endpoints().join(","), prefix: "/moved/".to_owned() }
}

fn postgres_store(postgres: &Postgres, schema: &str) -> Store {
    Store::Postgres { url: postgres.url(), schema: schema.to_owned() }
}

fn arguments(command: &[&str], store: &Store) -> Vec<String> {
    let sets = store.settings().into_iter().chain(["leadership.lease_ttl=2s".to_owned()]);
    command.iter().map(ToString::to_string).chain(sets.flat_map(|set| ["--set".to_owned(), set])).collect()
}

async fn command(command: &[&str], store: &Store) -> Output {
    let arguments = arguments(command, store);
    run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// Runs a command that ends with that code, and says that.
async fn ends(with: i32, says: &str, arguments: &[&str], store: &Store) {
    let output = command(arguments, store).await;
    let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    assert_eq!(output.status.code(), Some(with), "{arguments:?}: {said}");
    assert!(said.contains(says), "{arguments:?} does not say {says:?}: {said}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn read(path: &Path) -> Document {
    Document::parse(&std::fs::read(path).unwrap()).unwrap()
}

/// A manager over this store does not serve, whatever it is told to do about a lost leadership.
async fn nobody_may_lead(store: &Store, says: &str) {
    for on_loss in ["exit", "standby"] {
        let settings = ["number_of_shards=64", "leadership.lease_ttl=2s"].map(str::to_owned).to_vec();
        let settings = [settings, vec![format!("leadership.on_loss={on_loss}")]].concat();
        let mut manager = Manager::spawn(free_address(), free_address(), store, &settings);
        assert_eq!(manager.exit_code(PATIENCE).await, Some(3));
        let printed = manager.printed().join("\n");
        assert!(printed.contains(says), "{printed}");
        assert!(!printed.contains("gRPC listening"), "{printed}");
    }
}

/// Executors with every shard, and what must not change about it.
struct Rest {
    since: u64,
    table: Table,
    executors: Vec<Executor>,
}

impl Rest {
    async fn of(cluster: &mut Cluster) -> Rest {
        let executors = vec![cluster.executor("a").await, cluster.executor("b").await];
        let table = cluster.at_rest(&["a", "b"]).await;
        Rest { since: boot_ns(), table, executors }
    }

    /// The same owners at the same epochs, without a stop and a start; served under a higher term, and nothing is held to be restored.
    async fn is_kept(&self, cluster: &Cluster) {
        let now = cluster.at_rest(&["a", "b"]).await;
        assert_eq!(now.shards, self.table.shards, "owners, incarnations and epochs");
        assert_eq!(now.cluster_id, self.table.cluster_id);
        assert!(now.term > self.table.term, "{} after {}", now.term, self.table.term);
        for executor in &self.executors {
            let before = executor.lease_until();
            let renewed = async || (executor.lease_until() > before).then_some(());
            poll_until("it renews its lease", PATIENCE, renewed).await;
            assert_eq!(executor.changes_since(self.since), [], "{} started or stopped something", executor.id);
        }
        assert_eq!(cluster.manager.metric("shard_manager_lease_lapses_total").await, 0.0);
        let printed = cluster.manager.child.printed().join("\n");
        assert!(!printed.contains("restored"), "{printed}");
        cluster.check_safety();
    }
}

/// Round and round. The first export finds the manager stopped, the next ones ask it to step down. Both before and after its state went
/// on elsewhere, a sealed store serves nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_moves_there_and_back() {
    let (etcd, postgres) = (Etcd::single().await, Postgres::start().await);
    let mut cluster = Cluster::start(&SETTINGS).await;
    let rest = Rest::of(&mut cluster).await;
    cluster.manager.json(&["cordon", "a"]).await;
    cluster.state_is("a", "cordoned").await;
    let mut from = cluster.store.clone();
    let mut term = rest.table.term;
    let ways = [postgres_store(&postgres, "moved"), etcd_store(&etcd), sqlite(&cluster, "back.db")];
    for (at, to) in ways.into_iter().enumerate() {
        let document = cluster.directory.path().join(format!("{at}.json"));
        let path = text(&document);
        if at == 0 {
            assert_eq!(cluster.manager.stop().await, Some(0));
            ends(0, "the store is sealed", &["export", "--to", path], &from).await;
        } else {
            let manager = cluster.manager.grpc.to_string();
            ends(0, "the store is sealed", &["export", "--to", path, "--manager", &manager], &from).await;
            assert_eq!(cluster.manager.child.exit_code(PATIENCE).await, Some(3), "who stepped down does not lead again");
        }
        nobody_may_lead(&from, "sealed at").await;
        ends(0, "is in the store", &["import", "--from", path], &to).await;
        let moved = read(&document);
        assert!(moved.content().term.0 > term, "the seal raises the term");
        cluster.manager.move_to(&to).await;
        rest.is_kept(&cluster).await;
        cluster.state_is("a", "cordoned").await;
        term = cluster.table().await.term;
        assert!(term > moved.content().term.0);
        nobody_may_lead(&from, "sealed at").await;
        // The store that it came from still gives the same, and nothing else.
        let again = cluster.directory.path().join(format!("{at}.again.json"));
        ends(0, "the store is sealed", &["export", "--to", text(&again)], &from).await;
        assert_eq!(std::fs::read(&document).unwrap(), std::fs::read(&again).unwrap());
        // And where it went, it is no longer.
        ends(3, "has a state already", &["import", "--from", path], &to).await;
        from = to;
    }
    rest.is_kept(&cluster).await;
}

/// Everybody who waits is asked in turn; afterwards nobody waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_has_its_turn_among_replicas() {
    let mut replicas = Replicas::<OnEtcd>::start(3, &["executors.lease_ttl=15s"]).await;
    let _rest = replicas.at_rest().await;
    let store = replicas.place.store();
    let managers: Vec<&Manager> = std::iter::once(&replicas.cluster.manager).chain(&replicas.standbys).collect();
    let addresses = managers.iter().map(|it| it.grpc.to_string()).collect::<Vec<_>>().join(",");
    let document = replicas.cluster.directory.path().join("x.json");
    ends(0, "the store is sealed", &["export", "--to", text(&document), "--manager", &addresses], &store).await;
    let all = std::iter::once(&mut replicas.cluster.manager).chain(&mut replicas.standbys);
    for manager in all {
        assert_eq!(manager.child.exit_code(PATIENCE).await, Some(3));
        assert!(manager.child.printed().iter().any(|line| line.contains("sealed at")));
    }
    assert_eq!(replicas.place.queue().await.len(), 0);
    assert_eq!(read(&document).content().executors.len(), 2);
}

/// It waits for whoever leads, names it, and gets its turn when that one stops, or steps down because the export asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_has_its_turn_beside_the_one_process_on_a_file() {
    let mut cluster = Cluster::start(&SETTINGS).await;
    let rest = Rest::of(&mut cluster).await;
    let (document, from) = (cluster.directory.path().join("x.json"), cluster.store.clone());
    let pid = format!("process {}", cluster.manager.child.pid());
    let mut waits = Child::spawn("export", &arguments(&["export", "--to", text(&document)], &from));
    let names = async || waits.printed().iter().any(|line| line.contains("waiting") && line.contains(&pid)).then_some(());
    poll_until("it names who leads", PATIENCE, names).await;
    assert!(!document.exists());
    assert_eq!(waits.stop(PATIENCE).await.0, Some(1), "it was interrupted");
    assert!(cluster.manager.is_ready().await);
    let manager = cluster.manager.grpc.to_string();
    ends(0, "the store is sealed", &["export", "--to", text(&document), "--manager", &manager], &from).await;
    assert_eq!(cluster.manager.child.exit_code(PATIENCE).await, Some(3));
    nobody_may_lead(&from, "sealed at").await;
    let to = sqlite(&cluster, "new.db");
    ends(0, "is in the store", &["import", "--from", text(&document)], &to).await;
    cluster.manager.move_to(&to).await;
    rest.is_kept(&cluster).await;
}

/// One after the other in a script, at the same addresses: who handed over to the export does not sit on its ports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_that_handed_over_to_an_export_ends_before_its_courtesy_is_over() {
    let mut cluster = Cluster::start(&SETTINGS).await;
    let rest = Rest::of(&mut cluster).await;
    let (document, from, to) = (cluster.directory.path().join("x.json"), cluster.store.clone(), sqlite(&cluster, "new.db"));
    let manager = cluster.manager.grpc.to_string();
    ends(0, "the store is sealed", &["export", "--to", text(&document), "--manager", &manager], &from).await;
    // Half the courtesy; it also is what an import takes at least.
    assert_eq!(cluster.manager.child.exit_code(Duration::from_millis(250)).await, Some(3));
    ends(0, "is in the store", &["import", "--from", text(&document)], &to).await;
    cluster.manager.move_to(&to).await;
    rest.is_kept(&cluster).await;
}

/// What it waits for does not matter: a reader that does not read, or a store that does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_ends_when_it_is_asked_to() {
    let mut cluster = Cluster::start(&SETTINGS).await;
    let (document, store) = (cluster.directory.path().join("x.json"), cluster.store.clone());
    assert_eq!(cluster.manager.stop().await, Some(0));
    let (large, _) = written(cluster.directory.path(), 65_536);
    let sealed = sqlite(&cluster, "sealed.db");
    ends(0, "is in the store", &["import", "--from", text(&large)], &sealed).await;
    for copy in [true, false] {
        let command = [&["export", "--to", "-"][..], if copy { &["--copy"] } else { &[] }].concat();
        let mut export = std::process::Command::new(env!("CARGO_BIN_EXE_shard-manager"))
            .args(arguments(&command, &sealed))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // It has begun to write, and there is far more of it than a pipe takes.
        let mut pipe = export.stdout.take().unwrap();
        let mut first = [0];
        std::io::Read::read_exact(&mut pipe, &mut first).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&export), rustix::process::Signal::TERM).unwrap();
        let ended = poll_until("it ends", PATIENCE, async || export.try_wait().unwrap()).await;
        assert_eq!(ended.code(), Some(1), "copy: {copy}");
        drop(pipe);
    }
    // Somebody has the database for himself.
    let mut other = SqliteConnectOptions::new().filename(store.path()).connect().await.unwrap();
    sqlx::raw_sql("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").execute(&mut other).await.unwrap();
    let mut patient = arguments(&["export", "--to", text(&document)], &store);
    for set in ["leadership.lease_ttl=60s", "persistence.request_timeout=20s"] {
        patient.extend(["--set".to_owned(), set.to_owned()]);
    }
    let mut export = Child::spawn("export", &patient);
    let partial = cluster.directory.path().join("x.json.partial");
    poll_until("it has begun", PATIENCE, async || partial.exists().then_some(())).await;
    let (code, took) = export.stop(PATIENCE).await;
    assert_eq!(code, Some(1));
    assert!(took < Duration::from_secs(5), "it took {took:?}");
    assert!(!partial.exists());
}

/// Nobody hands over for an export that cannot write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_that_cannot_be_written_costs_no_leadership() {
    let cluster = Cluster::start(&SETTINGS).await;
    let before = cluster.table().await;
    let manager = cluster.manager.grpc.to_string();
    let nowhere = cluster.directory.path().join("no/such/x.json");
    ends(1, "cannot be written", &["export", "--to", text(&nowhere), "--manager", &manager], &cluster.store).await;
    let mistyped = sqlite(&cluster, "mistyped.db");
    ends(3, "there is no database", &["export", "--manager", &manager], &mistyped).await;
    assert!(!mistyped.path().exists(), "an export makes none");
    assert!(cluster.manager.is_ready().await);
    assert_eq!(cluster.table().await.term, before.term);
}

/// Another cluster from its first moment on: it takes nothing away from the one that it was copied from, which goes on leading.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_do_not_obey_a_copy() {
    let mut cluster = Cluster::start(&["executors.lease_ttl=2s"]).await;
    let rest = Rest::of(&mut cluster).await;
    let document = cluster.directory.path().join("copy.json");
    ends(0, "nothing was sealed", &["export", "--copy", "--to", text(&document)], &cluster.store.clone()).await;
    let copied = read(&document).content().cluster_id.to_string();
    assert_ne!(copied, rest.table.cluster_id);
    let store = sqlite(&cluster, "copy.db");
    ends(0, &copied, &["import", "--from", text(&document)], &store).await;
    let copy = Cluster::around(Manager::start(&store, &["executors.lease_ttl=2s", "number_of_shards=64"]).await, store);
    // It knows the executors, and how to reach them; what it says to them is not for them.
    assert_eq!(copy.executors().await.len(), 2);
    poll_until("the copy holds its executors to be gone", PATIENCE, async || {
        copy.table().await.shards.iter().all(|shard| shard.executor.is_none()).then_some(())
    })
    .await;
    assert_eq!(copy.table().await.cluster_id, copied);
    let table = cluster.at_rest(&["a", "b"]).await;
    assert_eq!((&table.cluster_id, &table.shards), (&rest.table.cluster_id, &rest.table.shards));
    assert_eq!(table.term, rest.table.term, "its leader never noticed");
    for executor in &rest.executors {
        assert_eq!(executor.changes_since(rest.since), []);
    }
    cluster.check_safety();
}

/// What is refused leaves no trace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals() {
    let mut cluster = Cluster::start(&SETTINGS).await;
    let path = |name: &str| cluster.directory.path().join(name);
    let (document, empty) = (path("x.json"), sqlite(&cluster, "empty.db"));
    let store = cluster.store.clone();
    assert_eq!(cluster.manager.stop().await, Some(0));
    std::fs::write(&document, "mine").unwrap();
    ends(2, "is not overwritten", &["export", "--to", text(&document)], &store).await;
    assert_eq!(std::fs::read(&document).unwrap(), b"mine");
    std::fs::remove_file(&document).unwrap();
    ends(1, "cannot be written", &["export", "--to", text(&path("no/such/x.json"))], &store).await;
    ends(3, "nothing to export", &["export", "--to", text(&document)], &empty).await;
    ends(2, "cannot be used with", &["export", "--copy", "--manager", "localhost:1"], &store).await;
    assert!(!document.exists());
    // Nothing of this sealed anything.
    cluster.manager.restart().await;
    assert_eq!(cluster.manager.stop().await, Some(0));

    ends(0, "the store is sealed", &["export", "--to", text(&document)], &store).await;
    let edited = path("edited.json");
    let whole = std::fs::read_to_string(&document).unwrap();
    std::fs::write(&edited, whole.replacen("\"0\"", "\"1\"", 1)).unwrap();
    ends(2, "checksum is", &["import", "--from", text(&edited)], &empty).await;
    std::fs::write(&edited, &whole[..whole.len() / 2]).unwrap();
    ends(2, "is it whole?", &["import", "--from", text(&edited)], &empty).await;
    let import = ["import", "--from", text(&document)];
    ends(
        2,
        "is 65 in the configuration, the document has 64",
        &[&import[..], &["--set", "number_of_shards=65"]].concat(),
        &empty,
    )
    .await;
    ends(2, "cannot be read", &["import", "--from", text(&path("none.json"))], &empty).await;
    ends(3, "has a state already", &import, &store).await;
    // The target is as empty as it was.
    ends(3, "nothing to export", &["export", "--copy"], &empty).await;
    ends(0, "is in the store", &[&import[..], &["--set", "number_of_shards=64"]].concat(), &empty).await;
    ends(0, "was in the store already", &import, &empty).await;
}

/// Wherever it dies: the file is not there or whole, it is there only if the store is sealed, and the same command goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exports_that_are_killed_go_on() {
    let mut cluster = Cluster::start(&SETTINGS).await;
    let executor = cluster.executor("a").await;
    let table = cluster.at_rest(&["a"]).await;
    assert_eq!(cluster.manager.stop().await, Some(0));
    let mut store = cluster.store.clone();
    let (etcd, postgres) = (Etcd::single().await, Postgres::start().await);
    let mut sealed_early = 0;
    for round in 0..12 {
        let document = cluster.directory.path().join(format!("{round}.json"));
        let mut export = Child::spawn("export", &arguments(&["export", "--to", text(&document)], &store));
        window(Duration::from_millis(round * 12)).await;
        export.kill();
        if document.exists() {
            sealed_early += 1;
            nobody_may_lead(&store, "sealed at").await;
        } else {
            ends(0, "the store is sealed", &["export", "--to", text(&document)], &store).await;
        }
        let content = read(&document).content().clone();
        assert_eq!(content.cluster_id.to_string(), table.cluster_id);
        assert_eq!(content.shards.epochs.iter().map(|epoch| epoch.0).collect::<Vec<_>>(), epochs(&table));
        // On to the next, in turn on a file and on servers.
        store = match round % 3 {
            0 => postgres_store(&postgres, &format!("round_{round}")),
            1 => Store::Etcd { endpoint: etcd.endpoints().join(","), prefix: format!("/{round}/") },
            _ => sqlite(&cluster, &format!("{round}.db")),
        };
        ends(0, "is in the store", &["import", "--from", text(&document)], &store).await;
    }
    println!("{sealed_early} were done before they were killed");
    drop(executor);
}

fn epochs(table: &Table) -> Vec<u64> {
    table.shards.iter().map(|shard| shard.epoch).collect()
}

/// A document with so many shards, as a cluster with two executors has it.
fn written(directory: &Path, number_of_shards: u32) -> (PathBuf, Document) {
    let mut state = State::new(Meta {
        cluster_id: ClusterId("00112233-4455-6677-8899-aabbccddeeff".parse().unwrap()),
        number_of_shards,
        term: Term(1_700_000_000_000),
        token: Token(1),
        attempt: 1,
        lease_ttl_ms: 2_000,
        inventory: Inventory::default(),
        seal: Seal::Open,
        pause: None,
    });
    for slot in 0..2 {
        let record = ExecutorRecord {
            id: format!("executor-{slot}").parse().unwrap(),
            incarnation: Incarnation(u64::MAX - u64::from(slot)),
            endpoint: "http://127.0.0.1:1".to_owned(),
            weight: 1,
            wish: Wish::None,
            leaving: false,
            standing: Standing::Present,
        };
        state.set_executor(Slot(slot), Some(record));
    }
    for shard in 0..number_of_shards {
        let state_of = ShardState::Held(Slot(shard % 2));
        state.set_shard(ShardId(shard), ShardRecord { epoch: Epoch(1_700_000_000_000 + u64::from(shard)), state: state_of });
    }
    let taken = Taken::Sealed { unix_ms: 1_700_000_000_000, by: "a test".to_owned(), from: "sqlite".to_owned() };
    let document = Document::new(Content::of(&state, taken));
    let path = directory.join(format!("{number_of_shards}.json"));
    document.write(std::io::BufWriter::new(std::fs::File::create(&path).unwrap())).unwrap();
    (path, document)
}

/// Dead between two commits, it leaves a part that nobody leads on, and that takes nothing but the same document.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn imports_that_are_killed_go_on() {
    let etcd = Etcd::single().await;
    let directory = tempfile::tempdir().unwrap();
    let (path, document) = written(directory.path(), 100_000);
    let (other, _) = written(directory.path(), 99_999);
    let few = ["--set", "persistence.etcd.max_operations=5"];
    for after in [1, 9, 18] {
        let store = Store::Etcd { endpoint: etcd.endpoints().join(","), prefix: format!("/{after}/") };
        let import = [&["import", "--from", text(&path)][..], &few].concat();
        let mut killed = Child::spawn("import", &arguments(&import, &store));
        let what = format!("{after} parts are written");
        let marker = format!(" {after} of ");
        poll_until(&what, PATIENCE, async || killed.said(&marker)).await;
        killed.kill();
        assert!(killed.said(" 25 of ").is_none(), "it was done");
        let settings = vec!["number_of_shards=100000".to_owned(), "leadership.lease_ttl=2s".to_owned()];
        let mut manager = Manager::spawn(free_address(), free_address(), &store, &settings);
        assert_eq!(manager.exit_code(PATIENCE).await, Some(3));
        assert!(manager.printed().iter().any(|line| line.contains("a part of an import")), "{:?}", manager.printed());
        ends(3, "a part of an import", &["export", "--copy"], &store).await;
        ends(3, "a part of another document", &["import", "--from", text(&other)], &store).await;
        // Other limits cut it in other places.
        let limit = if after == 9 { "persistence.etcd.max_operations=8" } else { few[1] };
        ends(0, "is in the store", &["import", "--from", text(&path), "--set", limit], &store).await;
        let back = directory.path().join(format!("{after}.json"));
        ends(0, "the store is sealed", &["export", "--to", text(&back)], &store).await;
        let (mut expected, back) = (document.content().clone(), read(&back).content().clone());
        assert!(back.term > expected.term);
        (expected.term, expected.taken) = (back.term, back.taken.clone());
        assert_eq!(back, expected);
    }
}
