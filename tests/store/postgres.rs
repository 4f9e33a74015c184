//! PostgreSQL: the suite on real servers, and who waits for whom.

use std::sync::Arc;
use std::time::{Duration, Instant};

use shard_manager::backend::Fence;
use shard_manager::backend::postgres::{Server, Settings};
use shard_manager::config::{self, Secret};
use shard_manager::store::codec::Key;
use shard_manager::store::postgres::PostgresStore;
use shard_manager::store::{Error, Loaded, Store};
use shard_manager::types::{Revision, Token};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::timeout;

use crate::conformance::{Harness, conformance};
use crate::sample::{self, eventually, whole};
use crate::support::postgres::Postgres;

pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
pub const SCHEMA: &str = "test_shards";

/// What a leadership does to the leader row, as far as a store is concerned.
const TAKEOVER: &str = "INSERT INTO test_shards.leader (one, number, token, holder, ttl_ms, expires_at) \
     VALUES (1, 1, $1, 'test', 10000, clock_timestamp() + interval '10 s') \
     ON CONFLICT (one) DO UPDATE SET number = leader.number + 1, token = excluded.token RETURNING number";

/// `persistence.postgres` with nothing but a place.
pub fn postgres_config(url: &str, schema: &str) -> config::Postgres {
    config::Postgres {
        url: Some(Secret::new(url)),
        schema: schema.to_owned(),
        password: None,
        password_file: None,
        ca_file: None,
        cert_file: None,
        key_file: None,
    }
}

pub fn server_at(url: &str, schema: &str, request_timeout: Duration) -> Arc<Server> {
    Server::new(Settings::from_config(&postgres_config(url, schema), request_timeout).unwrap())
}

/// A server whose only cluster is in [`SCHEMA`].
pub struct Database(pub Postgres);

impl Database {
    pub async fn start() -> Database {
        Database(Postgres::start().await)
    }

    pub fn server(&self) -> Arc<Server> {
        server_at(&self.0.url(), SCHEMA, REQUEST_TIMEOUT)
    }

    pub fn store(&self, request_timeout: Duration) -> PostgresStore {
        PostgresStore::new(server_at(&self.0.url(), SCHEMA, request_timeout))
    }
}

pub async fn take_over(client: &mut PgConnection) -> Fence {
    let token = Token::draw();
    let number = sqlx::query_scalar(TAKEOVER).bind(token.0.to_be_bytes().to_vec()).fetch_one(client).await.unwrap();
    Fence::Sql { number, token }
}

impl Harness for Database {
    async fn open(&self) -> impl Store + 'static {
        self.store(REQUEST_TIMEOUT)
    }

    async fn lead(&self) -> Fence {
        self.server().prepare().await.unwrap();
        take_over(&mut self.0.client().await).await
    }

    async fn record(&self, key: Key) -> Option<Vec<u8>> {
        let body = sqlx::query_scalar("SELECT body FROM test_shards.record WHERE kind = $1 AND page = $2");
        let body = body.bind(key.kind.name()).bind(i64::from(key.page));
        body.fetch_optional(&mut self.0.client().await).await.unwrap()
    }

    async fn tamper(&self, key: Key, bytes: Option<Vec<u8>>) {
        let mut client = self.0.client().await;
        let delete = sqlx::query("DELETE FROM test_shards.record WHERE kind = $1 AND page = $2");
        delete.bind(key.kind.name()).bind(i64::from(key.page)).execute(&mut client).await.unwrap();
        if let Some(bytes) = bytes {
            let insert = sqlx::query("INSERT INTO test_shards.record VALUES ($1, $2, $3)");
            insert.bind(key.kind.name()).bind(i64::from(key.page)).bind(bytes).execute(&mut client).await.unwrap();
        }
    }
}

conformance!(conforms, Database::start().await);

/// A server with a state in it, its leader, and a store with this request time-out.
pub async fn filled(request_timeout: Duration) -> (Database, PostgresStore, Fence, Loaded) {
    let database = Database::start().await;
    let fence = database.lead().await;
    let store = database.store(request_timeout);
    let state = sample::state(100, fence.token());
    let revision = store.commit(&fence, None, &whole(&state)).await.unwrap();
    (database, store, fence, Loaded { revision, state })
}

pub async fn loaded(store: &PostgresStore) -> Loaded {
    store.load().await.unwrap().expect("a state")
}

/// Begins a transaction that does `sql`, and leaves it open.
pub async fn hold(database: &Database, sql: &str) -> PgConnection {
    let mut client = database.0.client().await;
    sqlx::raw_sql(AssertSqlSafe(format!("SET search_path = {SCHEMA}; BEGIN; {sql}"))).execute(&mut client).await.unwrap();
    client
}

pub async fn end(mut client: PgConnection, how: &'static str) {
    sqlx::raw_sql(how).execute(&mut client).await.unwrap();
    client.close().await.unwrap();
}

/// Waits until so many sessions of a store wait for a lock.
pub async fn waiting(database: &Database, sessions: usize) {
    let waiting =
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'shard-manager store%' AND wait_event_type = 'Lock'";
    eventually("a store waits", async || (database.0.column(waiting).await.len() == sessions).then_some(())).await;
}

/// A commit under way, sent by a task.
pub fn send(store: &Arc<PostgresStore>, fence: &Fence, before: &Loaded) -> tokio::task::JoinHandle<Result<Revision, Error>> {
    let (store, fence, expected) = (Arc::clone(store), fence.clone(), Some(before.revision));
    let changes = whole(&sample::next(&before.state));
    tokio::spawn(async move { store.commit(&fence, expected, &changes).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_meets_a_takeover_is_lost_if_that_lands_and_lands_if_not() {
    let (database, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    let store = Arc::new(store);
    // The commit's snapshot is older than the takeover's end.
    let takeover = hold(&database, "UPDATE leader SET number = number + 1").await;
    let commit = send(&store, &fence, &before);
    waiting(&database, 1).await;
    end(takeover, "ROLLBACK").await;
    let revision = commit.await.unwrap().unwrap();
    let landed = Loaded { revision, state: sample::next(&before.state) };
    assert_eq!(loaded(&store).await, landed);

    for takeover in [
        "SELECT FROM leader FOR UPDATE; UPDATE leader SET number = number + 1, holder = 'other'",
        // A restored database drew the number twice.
        "SELECT FROM leader FOR UPDATE; UPDATE leader SET token = decode(repeat('ab', 16), 'hex')",
        "DELETE FROM leader",
    ] {
        let mut client = hold(&database, takeover).await;
        let commit = send(&store, &fence, &landed);
        waiting(&database, 1).await;
        sqlx::raw_sql("COMMIT").execute(&mut client).await.unwrap();
        let outcome = commit.await.unwrap();
        assert!(matches!(outcome, Err(Error::LeadershipLost)), "{takeover}: {outcome:?}");
        assert_eq!(loaded(&store).await, landed, "{takeover}");
        let Fence::Sql { number, token } = &fence else { panic!("{fence:?}") };
        let back = "INSERT INTO leader VALUES (1, $1, $2, 'test', 1, clock_timestamp()) \
             ON CONFLICT (one) DO UPDATE SET number = excluded.number, token = excluded.token";
        sqlx::query(back).bind(number).bind(token.0.to_be_bytes().to_vec()).execute(&mut client).await.unwrap();
    }
    // Nothing else was in its way.
    send(&store, &fence, &landed).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_and_a_commit_do_not_wait_for_each_other_but_a_takeover_does() {
    let (database, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    let store = Arc::new(store);
    let renewal = "UPDATE leader SET expires_at = clock_timestamp() + interval '1 h'";
    let renewing = hold(&database, renewal).await;
    let landed = Loaded { revision: send(&store, &fence, &before).await.unwrap().unwrap(), state: sample::next(&before.state) };
    end(renewing, "COMMIT").await;

    // A commit that has the leader row and waits for the revision.
    let holding = hold(&database, "SELECT FROM revision FOR UPDATE").await;
    let commit = send(&store, &fence, &landed);
    waiting(&database, 1).await;
    end(hold(&database, renewal).await, "COMMIT").await;
    let mut client = database.0.client().await;
    let set = "SET search_path = test_shards; SET lock_timeout = '300ms'";
    sqlx::raw_sql(set).execute(&mut client).await.unwrap();
    for takeover in ["UPDATE leader SET number = number + 1", "SELECT FROM leader FOR UPDATE"] {
        let error = sqlx::raw_sql(takeover).execute(&mut client).await.unwrap_err();
        assert_eq!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("55P03"), "{takeover}: {error}");
    }
    end(holding, "ROLLBACK").await;
    let revision = commit.await.unwrap().unwrap();
    assert_eq!(loaded(&store).await, Loaded { revision, state: sample::next(&landed.state) });
}

/// A renewal that the commit's snapshot does not see, and then a takeover: the row is followed to its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_was_renewed_while_a_commit_waited_is_still_the_leaders() {
    let (database, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    let store = Arc::new(store);
    let renewed = "SELECT FROM leader FOR UPDATE; UPDATE leader SET expires_at = clock_timestamp()";
    let renewing = hold(&database, renewed).await;
    let commit = send(&store, &fence, &before);
    waiting(&database, 1).await;
    end(renewing, "COMMIT").await;
    let landed = Loaded { revision: commit.await.unwrap().unwrap(), state: sample::next(&before.state) };

    let taking = hold(&database, &format!("{renewed}; UPDATE leader SET number = number + 1")).await;
    let commit = send(&store, &fence, &landed);
    waiting(&database, 1).await;
    end(taking, "COMMIT").await;
    assert!(matches!(commit.await.unwrap(), Err(Error::LeadershipLost)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waited_for_the_revision_finds_it_moved() {
    let (database, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    let store = Arc::new(store);
    let other = hold(&database, "UPDATE revision SET number = number + 1").await;
    let commit = send(&store, &fence, &before);
    waiting(&database, 1).await;
    end(other, "COMMIT").await;
    let outcome = commit.await.unwrap();
    let actual = Some(Revision(before.revision.0 + 1));
    assert!(matches!(outcome, Err(Error::ConcurrentModification { actual: found, .. }) if found == actual), "{outcome:?}");
    assert_eq!(loaded(&store).await.state, before.state);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_first_commits_one_wins() {
    let database = Database::start().await;
    let fence = database.lead().await;
    let stores = [database.store(REQUEST_TIMEOUT), database.store(REQUEST_TIMEOUT)];
    for round in 0..20 {
        let mut mine = sample::state(10, fence.token());
        mine.meta.attempt = 1 + 2 * round;
        let mut theirs = mine.clone();
        theirs.meta.attempt += 1;
        let changes = [whole(&mine), whole(&theirs)];
        let both = tokio::join!(stores[0].commit(&fence, None, &changes[0]), stores[1].commit(&fence, None, &changes[1]));
        let (winner, state) = match &both {
            (Ok(winner), Err(Error::ConcurrentModification { actual, .. })) if *actual == Some(*winner) => (*winner, mine),
            (Err(Error::ConcurrentModification { actual, .. }), Ok(winner)) if *actual == Some(*winner) => (*winner, theirs),
            both => panic!("{both:?}"),
        };
        assert_eq!(loaded(&stores[0]).await, Loaded { revision: winner, state });
        database.0.execute("DELETE FROM test_shards.record; DELETE FROM test_shards.revision").await;
    }
}

/// The first of two that met on the empty table is undone: the second is not refused for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_commit_that_was_undone_is_in_nobodys_way() {
    let database = Database::start().await;
    let fence = database.lead().await;
    let store = Arc::new(database.store(REQUEST_TIMEOUT));
    let other = hold(&database, "INSERT INTO revision VALUES (1, 1)").await;
    let state = sample::state(10, fence.token());
    let (sender, changes) = (Arc::clone(&store), whole(&state));
    let commit = tokio::spawn(async move { sender.commit(&fence, None, &changes).await });
    waiting(&database, 1).await;
    end(other, "ROLLBACK").await;
    let revision = commit.await.unwrap().unwrap();
    assert_eq!(loaded(&store).await, Loaded { revision, state });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_without_a_revision_are_no_empty_store() {
    let (database, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    database.0.execute("DELETE FROM test_shards.revision").await;
    let outcomes = [store.load().await.map(drop), store.commit(&fence, None, &whole(&before.state)).await.map(drop)];
    for outcome in outcomes {
        assert!(matches!(&outcome, Err(Error::Corrupt { record, .. }) if record == "revision"), "{outcome:?}");
    }
    assert_eq!(database.0.column("SELECT number FROM test_shards.revision").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_in_one_database_do_not_see_each_other_nor_anybodys_search_path() {
    let (database, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    database.0.execute("CREATE SCHEMA trap; CREATE TABLE trap.record (kind text, page bigint, body bytea)").await;
    database.0.execute("ALTER ROLE postgres SET search_path = trap; ALTER DATABASE postgres SET search_path = trap").await;
    // A word of SQL is a name like any other.
    let other = PostgresStore::new(server_at(&database.0.url(), "user", REQUEST_TIMEOUT));
    assert_eq!(other.load().await.unwrap(), None);
    let outcome = other.commit(&fence, None, &whole(&before.state)).await;
    assert!(matches!(outcome, Err(Error::LeadershipLost)), "the leader of another cluster: {outcome:?}");
    assert_eq!(loaded(&store).await, before);
    let tables = "SELECT schemaname FROM pg_tables WHERE tablename = 'record' ORDER BY 1";
    assert_eq!(database.0.column(tables).await, [SCHEMA, "trap", "user"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_write_does_not_move_the_revision() {
    let (database, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    database
        .0
        .execute("CREATE TABLE public.other AS SELECT generate_series(1, 1000) AS x; UPDATE public.other SET x = x + 1")
        .await;
    database.0.execute("UPDATE test_shards.leader SET expires_at = clock_timestamp()").await;
    assert_eq!(loaded(&store).await, before);
    let revision = send(&Arc::new(store), &fence, &before).await.unwrap().unwrap();
    assert_eq!(revision, Revision(before.revision.0 + 1));
}

/// What the server does is as cheap as it is meant to be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_one_round_trip_and_a_refused_one_two() {
    let database = Database::start().await;
    let fence = database.lead().await;
    let proxy = crate::support::proxy::Proxy::to(database.0.address).await;
    let store = PostgresStore::new(server_at(&database.0.url_at(proxy.address), SCHEMA, REQUEST_TIMEOUT));
    let mut before = Loaded { revision: Revision(0), state: sample::state(100, fence.token()) };
    before.revision = store.commit(&fence, None, &whole(&before.state)).await.unwrap();
    let store = Arc::new(store);
    // The first one of its kind on a connection is prepared.
    before = Loaded { revision: send(&store, &fence, &before).await.unwrap().unwrap(), state: sample::next(&before.state) };
    let stale = Loaded { revision: Revision(before.revision.0 - 1), state: sample::next(&before.state) };
    send(&store, &fence, &stale).await.unwrap().unwrap_err();

    let delay = Duration::from_millis(400);
    proxy.delay_answers(delay);
    for (what, round_trips) in [(&before, 1), (&stale, 2)] {
        let began = Instant::now();
        let _ = timeout(REQUEST_TIMEOUT, send(&store, &fence, what)).await.unwrap().unwrap();
        let took = began.elapsed();
        assert!(took >= delay * round_trips && took < delay * (round_trips + 1), "{took:?} for {round_trips} round trips");
    }
}

/// Every plan takes the lock on the leader row before it touches the revision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_lost_the_leadership_does_not_wait_for_the_revision() {
    let (database, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    let holding = hold(&database, "SELECT FROM revision FOR UPDATE").await;
    database.lead().await;
    let outcome = timeout(Duration::from_secs(3), send(&Arc::new(store), &fence, &before)).await.expect("it does not wait");
    assert!(matches!(outcome.unwrap(), Err(Error::LeadershipLost)));
    end(holding, "ROLLBACK").await;
}
