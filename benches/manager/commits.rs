//! A commit through the store, against the same writes without it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};
use shard_manager::assignment::record::{ExecutorRecord, ShardRecord, ShardState, Standing, Wish};
use shard_manager::assignment::state::{Changes, Inventory, Meta, SHARDS_PER_PAGE, Seal, State};
use shard_manager::backend::Fence;
use shard_manager::backend::etcd::{self, Members};
use shard_manager::backend::postgres::{Server, Settings};
use shard_manager::backend::sqlite::Database;
use shard_manager::config::{self, Secret};
use shard_manager::store::Store;
use shard_manager::store::codec::{self, Key};
use shard_manager::store::etcd::EtcdStore;
use shard_manager::store::postgres::PostgresStore;
use shard_manager::store::sqlite::SqliteStore;
use shard_manager::types::{ClusterId, Epoch, Incarnation, Revision, ShardId, Slot, Term, Token};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use crate::cluster::ms;
use crate::page::{Figure, Summary};
use crate::support::etcd::Etcd;
use crate::support::postgres::Postgres;

/// Commits of each kind.
const COMMITS: usize = 500;
/// Before the first that counts.
const WARM_UP: usize = 20;

/// So many shards at 16 executors, all held.
pub fn state(number_of_shards: u32, executors: u32, token: Token) -> State {
    let mut state = State::new(Meta {
        cluster_id: ClusterId(uuid::Uuid::from_u128(7)),
        number_of_shards,
        term: Term(1_700_000_000_000),
        token,
        attempt: 1,
        lease_ttl_ms: 30_000,
        inventory: Inventory::default(),
        seal: Seal::Open,
        pause: None,
    });
    for at in 0..executors {
        let record = ExecutorRecord {
            id: format!("executor-{at}").parse().unwrap(),
            incarnation: Incarnation(u64::MAX - u64::from(at)),
            endpoint: format!("http://10.0.0.{at}:9093"),
            weight: 1,
            wish: Wish::None,
            leaving: false,
            standing: Standing::Present,
        };
        state.set_executor(Slot(at), Some(record));
    }
    for shard in 0..number_of_shards {
        let held = ShardState::Held(Slot(shard % executors));
        state.set_shard(ShardId(shard), ShardRecord { epoch: Epoch(1_700_000_000_000 + u64::from(shard)), state: held });
    }
    state
}

/// The same, after one shard of each page got its next epoch.
pub fn next(state: &State) -> State {
    let mut next = state.clone();
    next.meta.attempt += 1;
    for shard in (0..next.meta.number_of_shards).step_by(SHARDS_PER_PAGE) {
        let (id, record) = (ShardId(shard), next.shard(ShardId(shard)));
        let slot = record.owner().unwrap();
        next.set_shard(id, record.free().grant(slot, next.meta.term));
    }
    next
}

/// Writes one state after another through `store`, and each time the same records by `bare`. Milliseconds of each.
async fn alternate(
    store: &dyn Store,
    fence: &Fence,
    number_of_shards: u32,
    mut bare: impl AsyncFnMut(Vec<(Key, Vec<u8>)>) -> f64,
) -> (Vec<f64>, Vec<f64>) {
    let mut state = state(number_of_shards, 16, fence.token());
    let mut revision: Revision = store.commit(fence, None, &state.changes_since(None)).await.unwrap();
    bare(codec::encode(&state.changes_since(None)).unwrap()).await;
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    for at in 0..WARM_UP + COMMITS {
        let next = next(&state);
        let changes: Changes = next.changes_since(Some(&state));
        let records = codec::encode(&changes).unwrap();
        let begun = Instant::now();
        revision = store.commit(fence, Some(revision), &changes).await.unwrap();
        let time = ms(begun.elapsed());
        let floor = bare(records).await;
        if at >= WARM_UP {
            times.push(time);
            floors.push(floor);
        }
        state = next;
    }
    (times, floors)
}

/// On etcd, small and large, on PostgreSQL and on SQLite.
pub async fn all() -> Vec<Figure> {
    let mut figures = Vec::new();
    for (pages, name) in [(1, "a commit on etcd"), (16, "a large commit on etcd")] {
        let (times, floors) = on_etcd(pages).await;
        let how = format!(
            "`Store::commit` of `meta` and {pages} page{} of 1,024 shards: encoding, the transaction, its answer.",
            if pages == 1 { "" } else { "s" }
        );
        let ratio = Summary::of(times.clone()).median / Summary::of(floors.clone()).median;
        let floor = "a transaction put together before, with the same comparisons, the same bytes under keys as long, and the same reads where a \
                     comparison fails, by the same client library on a connection of its own";
        figures.push(Figure::new(name, how).times(times).floor(floor, floors).reach("median, in floors", 1.3, ratio));
    }
    let (times, floors) = on_postgres().await;
    let ratio = Summary::of(times.clone()).median / Summary::of(floors.clone()).median;
    let how = "`Store::commit` of `meta` and one page of 1,024 shards: encoding, the statement that checks fence and revision and writes, its answer.";
    let floor = "the same statement with the same rows in another schema, put together before, on a connection of its own";
    figures.push(Figure::new("a commit on PostgreSQL", how).times(times).floor(floor, floors).reach(
        "median, in floors",
        1.3,
        ratio,
    ));
    let (times, floors) = on_sqlite().await;
    let how = "`Store::commit` of `meta` and one page of 1,024 shards into a file: encoding, BEGIN IMMEDIATE, fence and revision, the records, COMMIT.";
    let floor =
        "the same rows by bare statements into another file with the same settings: BEGIN IMMEDIATE, one upsert for each, COMMIT";
    figures.push(Figure::new("a commit on SQLite", how).times(times).floor(floor, floors));
    figures
}

async fn on_etcd(pages: u32) -> (Vec<f64>, Vec<f64>) {
    const LEADER: &str = "/store/leader/1";
    let etcd = Etcd::single().await;
    let put = etcd.client().await.put(LEADER, "bench", None).await.unwrap();
    let creation_revision = put.header().unwrap().revision();
    let fence = Fence::Etcd { key: LEADER.to_owned(), creation_revision, token: Token::draw() };
    let settings = etcd::Settings {
        endpoints: etcd.endpoints(),
        ca_file: None,
        identity_files: None,
        credentials: None,
        request_timeout: Duration::from_secs(10),
    };
    let members = Arc::new(Members::new(&settings).unwrap());
    let store = EtcdStore::new(members, "/store/", 128, 1_572_864).unwrap();

    let client = etcd_client::Client::connect(etcd.endpoints(), None).await.unwrap();
    let mut revision = 0;
    let bare = async |records: Vec<(Key, Vec<u8>)>| {
        let meta = format!("/floor/state/{}", Key::META);
        let holds = Compare::create_revision(LEADER, CompareOp::Equal, creation_revision);
        let replaces = Compare::mod_revision(meta.clone(), CompareOp::Equal, revision);
        let writes: Vec<TxnOp> =
            records.into_iter().map(|(key, bytes)| TxnOp::put(format!("/floor/state/{key}"), bytes, None)).collect();
        let count = GetOptions::new().with_prefix().with_count_only();
        let look = vec![TxnOp::get(LEADER, None), TxnOp::get(meta, None), TxnOp::get("/floor/state/", Some(count))];
        let transaction = Txn::new().when(vec![holds, replaces]).and_then(writes).or_else(look);
        let mut client = client.kv_client();
        let begun = Instant::now();
        let answer = client.txn(transaction).await.unwrap();
        let time = ms(begun.elapsed());
        assert!(answer.succeeded());
        revision = answer.header().unwrap().revision();
        time
    };
    alternate(&store, &fence, pages * SHARDS_PER_PAGE as u32, bare).await
}

async fn on_postgres() -> (Vec<f64>, Vec<f64>) {
    let database = Postgres::start().await;
    let schema = async |name: &str| {
        let config = config::Postgres {
            url: Some(Secret::new(database.url())),
            schema: name.to_owned(),
            password: None,
            password_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
        };
        let server = Server::new(Settings::from_config(&config, Duration::from_secs(10)).unwrap());
        let token = Token::draw();
        let mut connection = server.connect("bench").await.unwrap();
        let lead =
            "INSERT INTO leader (one, number, token, holder, ttl_ms, expires_at) VALUES (1, 1, $1, 'bench', 2000, 'infinity')";
        sqlx::query(lead).bind(token.0.to_be_bytes().to_vec()).execute(&mut connection).await.unwrap();
        (server, connection, token)
    };
    let (server, _, token) = schema("store").await;
    let (store, fence) = (PostgresStore::new(server), Fence::Sql { number: 1, token });
    let (_floor, mut connection, token) = schema("floor").await;
    let statement = "WITH fence AS MATERIALIZED (SELECT FROM leader WHERE one = 1 AND number = $1 AND token = $2 FOR KEY SHARE), \
         raised AS (UPDATE revision SET number = number + 1 WHERE one = 1 AND number = $6 AND EXISTS (SELECT FROM fence) RETURNING number), \
         written AS (INSERT INTO record (kind, page, body) \
         SELECT its.kind, its.page, its.body FROM raised, unnest($3::text[], $4::bigint[], $5::bytea[]) AS its (kind, page, body) \
         ON CONFLICT (kind, page) DO UPDATE SET body = excluded.body) SELECT number FROM raised";
    sqlx::query("INSERT INTO revision (one, number) VALUES (1, 1)").execute(&mut connection).await.unwrap();
    let mut revision = 1i64;
    let bare = async |records: Vec<(Key, Vec<u8>)>| {
        let (mut kinds, mut pages, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
        for (key, body) in records {
            kinds.push(key.kind.name());
            pages.push(i64::from(key.page));
            bodies.push(body);
        }
        let statement = sqlx::query_scalar(statement).bind(1i64).bind(token.0.to_be_bytes().to_vec());
        let statement = statement.bind(kinds).bind(pages).bind(bodies).bind(revision);
        let begun = Instant::now();
        revision = statement.fetch_one(&mut connection).await.unwrap();
        ms(begun.elapsed())
    };
    let measured = alternate(&store, &fence, SHARDS_PER_PAGE as u32, bare).await;
    store.close().await;
    measured
}

async fn on_sqlite() -> (Vec<f64>, Vec<f64>) {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(&directory.path().join("state.db"), Duration::from_secs(10)).await.unwrap();
    let token = Token::draw();
    let fence = Fence::Sql { number: database.draw_leadership(token, "bench").await.unwrap(), token };
    let store = SqliteStore::new(Arc::clone(&database));

    let mut bare = BareSqlite::open(&directory.path().join("floor.db")).await;
    let measured = alternate(&store, &fence, SHARDS_PER_PAGE as u32, async |records| bare.write(records).await).await;
    bare.0.close().await.unwrap();
    database.close().await;
    measured
}

/// A file with the settings of the store's, written by bare statements.
pub struct BareSqlite(SqliteConnection);

impl BareSqlite {
    pub async fn open(path: &Path) -> BareSqlite {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        let mut connection: SqliteConnection = options.connect().await.unwrap();
        let table = "CREATE TABLE record (kind TEXT NOT NULL, page INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, page)) STRICT";
        sqlx::query(table).execute(&mut connection).await.unwrap();
        BareSqlite(connection)
    }

    /// Milliseconds that it took.
    pub async fn write(&mut self, records: Vec<(Key, Vec<u8>)>) -> f64 {
        let begun = Instant::now();
        sqlx::query("BEGIN IMMEDIATE").execute(&mut self.0).await.unwrap();
        for (key, bytes) in records {
            let upsert = "INSERT INTO record (kind, page, body) VALUES (?, ?, ?) ON CONFLICT (kind, page) DO UPDATE SET body = excluded.body";
            let upsert = sqlx::query(upsert).bind(key.kind.name()).bind(key.page).bind(bytes);
            upsert.execute(&mut self.0).await.unwrap();
        }
        sqlx::query("COMMIT").execute(&mut self.0).await.unwrap();
        ms(begun.elapsed())
    }
}

/// As SQLite says.
pub async fn sqlite_version() -> String {
    let mut memory = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&mut memory).await.unwrap()
}
