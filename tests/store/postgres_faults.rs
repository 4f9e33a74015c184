//! PostgreSQL and what goes wrong on the way to it: answers that are lost, sessions that end, servers that stand still.

use std::sync::Arc;
use std::time::{Duration, Instant};

use shard_manager::backend::Fence;
use shard_manager::store::postgres::PostgresStore;
use shard_manager::store::{Error, Loaded, Store};
use sqlx::Connection;
use tokio::net::TcpListener;

use crate::conformance::Harness;
use crate::postgres::{Database, SCHEMA, end, filled, hold, loaded, send, server_at, waiting};
use crate::sample::{self, eventually, whole};
use crate::support::proxy::{Direction, Proxy};

const TIMEOUT: Duration = Duration::from_secs(1);

/// A filled database, reached through a proxy.
async fn through_a_proxy() -> (Database, Proxy, Arc<PostgresStore>, Fence, Loaded) {
    let (database, _, fence, before) = filled(TIMEOUT).await;
    let proxy = Proxy::to(database.0.address).await;
    let store = PostgresStore::new(server_at(&database.0.url_at(proxy.address), SCHEMA, TIMEOUT));
    assert_eq!(loaded(&store).await, before);
    (database, proxy, Arc::new(store), fence, before)
}

#[track_caller]
fn assert_unknown<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::OutcomeUnknown { .. })), "{outcome:?}");
}

#[track_caller]
fn assert_unavailable<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
    let Err(Error::Unavailable { source, .. }) = outcome else { panic!("{outcome:?}") };
    source.to_string()
}

/// Sent again, it is found to have landed, once.
async fn settles(store: &Arc<PostgresStore>, fence: &Fence, before: &Loaded) -> Loaded {
    let sent_again = async || send(store, fence, before).await.unwrap().ok();
    let landed = Loaded { revision: eventually("an answer", sent_again).await, state: sample::next(&before.state) };
    assert_eq!(landed.revision.0, before.revision.0 + 1);
    assert_eq!(loaded(store).await, landed);
    landed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_found_by_sending_again() {
    let (database, proxy, store, fence, before) = through_a_proxy().await;
    // A statement that was not prepared yet would not arrive: its preparation is answered first.
    let revision = send(&store, &fence, &before).await.unwrap().unwrap();
    let before = Loaded { revision, state: sample::next(&before.state) };
    proxy.hold(Direction::Answers);
    let began = Instant::now();
    assert_unknown(send(&store, &fence, &before).await.unwrap());
    assert!(began.elapsed() < TIMEOUT * 2, "took {:?}", began.elapsed());
    let arrived = database.0.column("SELECT number FROM test_shards.revision").await;
    assert_eq!(arrived, [(before.revision.0 + 1).to_string()], "it has landed");
    assert_unavailable(send(&store, &fence, &before).await.unwrap());
    proxy.drop_all();
    proxy.restore();
    settles(&store, &fence, &before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_dropped_or_cut_between_commits_costs_one_more() {
    let (_database, proxy, store, fence, before) = through_a_proxy().await;
    let before = settles(&store, &fence, &before).await;
    proxy.drop_all();
    let before = settles(&store, &fence, &before).await;
    proxy.forget_connections();
    assert_unknown(send(&store, &fence, &before).await.unwrap());
    let before = settles(&store, &fence, &before).await;
    // Nor is a read misled by it.
    proxy.forget_connections();
    assert_eq!(loaded(&store).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_killed_in_the_middle_leaves_all_or_nothing() {
    let (database, store, fence, before) = filled(Duration::from_secs(10)).await;
    let store = Arc::new(store);
    let holding = hold(&database, "SELECT FROM revision FOR UPDATE").await;
    let commit = send(&store, &fence, &before);
    waiting(&database, 1).await;
    assert_eq!(database.0.terminate_backends("shard-manager store%").await, 1);
    // It might have been after the commit: a session's end does not say.
    assert_unknown(commit.await.unwrap());
    end(holding, "ROLLBACK").await;
    assert_eq!(loaded(&store).await, before);
    settles(&store, &fence, &before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_is_waited_for_in_time_and_asked_again() {
    let (database, store, fence, before) = filled(TIMEOUT).await;
    let store = Arc::new(store);
    database.0.pause();
    let began = Instant::now();
    assert_unknown(send(&store, &fence, &before).await.unwrap());
    // Nothing was sent on a connection that does not come about.
    assert_unavailable(send(&store, &fence, &before).await.unwrap());
    assert_unavailable(store.load().await);
    assert!(began.elapsed() < TIMEOUT * 3 + TIMEOUT / 2, "took {:?}", began.elapsed());
    database.0.go_on();
    settles(&store, &fence, &before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_or_crashes_loses_nothing() {
    let (mut database, store, fence, mut before) = filled(TIMEOUT).await;
    let store = Arc::new(store);
    for how in [crate::support::postgres::Postgres::stop, crate::support::postgres::Postgres::kill] {
        before = settles(&store, &fence, &before).await;
        how(&mut database.0);
        assert_unknown(send(&store, &fence, &before).await.unwrap());
        let why = assert_unavailable(send(&store, &fence, &before).await.unwrap());
        assert!(why.contains(&database.0.address.to_string()), "{why}");
        database.0.start_again().await;
        assert_eq!(loaded(&store).await, before);
    }
    settles(&store, &fence, &before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_come_later_than_its_store() {
    let mut database = Database::start().await;
    let fence = database.lead().await;
    database.0.stop();
    let store = database.store(TIMEOUT);
    let state = sample::state(10, fence.token());
    assert_unavailable(store.load().await);
    assert_unavailable(store.commit(&fence, None, &whole(&state)).await);
    // Accepted by the kernel, answered by nobody.
    let listener = TcpListener::bind(database.0.address).await.unwrap();
    let began = Instant::now();
    assert_unavailable(store.load().await);
    assert!((TIMEOUT..TIMEOUT * 2).contains(&began.elapsed()), "took {:?}", began.elapsed());
    drop(listener);
    database.0.start_again().await;
    let revision = store.commit(&fence, None, &whole(&state)).await.unwrap();
    assert_eq!(loaded(&store).await, Loaded { revision, state });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_held_too_long_is_given_up_in_time_and_nothing_lands_late() {
    let (database, store, fence, before) = filled(TIMEOUT).await;
    let store = Arc::new(store);
    for (held, code) in [("SELECT FROM leader FOR UPDATE", "55P03"), ("SELECT FROM revision FOR UPDATE", "55P03")] {
        let holding = hold(&database, held).await;
        let began = Instant::now();
        let why = assert_unavailable(send(&store, &fence, &before).await.unwrap());
        assert!(why.contains(code), "{why}");
        assert!((TIMEOUT / 4..TIMEOUT).contains(&began.elapsed()), "took {:?}", began.elapsed());
        assert_eq!(loaded(&store).await, before, "a reader waits for nobody");
        end(holding, "ROLLBACK").await;
        assert_eq!(loaded(&store).await, before);
    }
    settles(&store, &fence, &before).await;
}

/// A statement that takes too long, a full disk, no more connections and the like, as the server puts them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_refuses_for_now_is_unavailable_and_what_is_damaged_is_not() {
    let (database, store, fence, before) = filled(TIMEOUT).await;
    let store = Arc::new(store);
    let raise = |code: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION test_shards.fail() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'as if' USING ERRCODE = '{code}'; END $$; \
             CREATE OR REPLACE TRIGGER fail BEFORE UPDATE ON test_shards.revision EXECUTE FUNCTION test_shards.fail()"
        )
    };
    for code in ["40001", "40P01", "53100", "53200", "53300", "57014", "58030", "25006", "42501", "XX000", "0A000"] {
        database.0.execute(&raise(code)).await;
        let why = assert_unavailable(send(&store, &fence, &before).await.unwrap());
        assert!(why.contains(code), "{why}");
    }
    for code in ["42P01", "42703", "22P02", "23514", "XX001", "XX002"] {
        database.0.execute(&raise(code)).await;
        let outcome = send(&store, &fence, &before).await.unwrap();
        let Err(Error::Unreadable { what, reason }) = &outcome else { panic!("{code}: {outcome:?}") };
        assert!(what.contains(SCHEMA) && reason.contains(code), "{what}: {reason}");
    }
    database.0.execute("DROP FUNCTION test_shards.fail CASCADE").await;
    assert_eq!(loaded(&store).await, before);
    settles(&store, &fence, &before).await;

    database.0.execute("DROP TABLE test_shards.record").await;
    let commit = send(&store, &fence, &before).await.unwrap().map(drop);
    for (outcome, says) in [(store.load().await.map(drop), "record.body"), (commit, "42P01")] {
        assert!(matches!(&outcome, Err(Error::Unreadable { reason, .. }) if reason.contains(says)), "{outcome:?}");
    }
}

/// A leader that is stopped in the middle of a transaction of its own blocks its successor for a request's time, not for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_idle_in_a_transaction_is_ended() {
    let (database, store, fence, before) = filled(Duration::from_secs(10)).await;
    let store = Arc::new(store);
    let mut stopped = server_at(&database.0.url(), SCHEMA, TIMEOUT).connect("testing").await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT FROM leader FOR UPDATE").execute(&mut stopped).await.unwrap();
    let began = Instant::now();
    let commit = send(&store, &fence, &before);
    waiting(&database, 1).await;
    commit.await.unwrap().unwrap();
    assert!((TIMEOUT / 2..TIMEOUT * 2).contains(&began.elapsed()), "took {:?}", began.elapsed());
    sqlx::raw_sql("COMMIT").execute(&mut stopped).await.unwrap_err();
    stopped.close().await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_closed_leaves_no_session() {
    let (database, store, ..) = filled(TIMEOUT).await;
    let sessions = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'shard-manager%'";
    assert_eq!(database.0.column(sessions).await.len(), 1);
    store.close().await;
    let gone = async || database.0.column(sessions).await.is_empty().then_some(());
    eventually("the session's end", gone).await;
    loaded(&store).await;
}

/// A pooler says so in the place of an answer that it did not get. Here a trigger does, so that the commit is undone; who is told
/// cannot know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_that_speaks_of_a_connection_proves_nothing_of_the_commit() {
    let (database, store, fence, before) = filled(TIMEOUT).await;
    let store = Arc::new(store);
    for (code, is_certain) in [("08P01", false), ("08006", false), ("57P01", false), ("40003", false), ("P0001", true)] {
        let trigger = format!(
            "CREATE OR REPLACE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$; \
             CREATE TRIGGER fail BEFORE UPDATE ON test_shards.revision FOR EACH ROW EXECUTE FUNCTION public.fail()"
        );
        database.0.execute(&trigger).await;
        let outcome = send(&store, &fence, &before).await.unwrap();
        if is_certain {
            assert!(assert_unavailable(outcome).contains(code));
        } else {
            assert_unknown(outcome);
        }
        database.0.execute("DROP TRIGGER fail ON test_shards.revision").await;
    }
    send(&store, &fence, &before).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_died_while_it_was_idle_costs_no_commit_its_outcome() {
    let (database, store, fence, before) = filled(TIMEOUT).await;
    assert_eq!(database.0.terminate_backends("shard-manager store").await, 1);
    tokio::time::sleep(TIMEOUT).await;
    send(&Arc::new(store), &fence, &before).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_no_connection_to_spare_is_read_on_the_one_in_hand() {
    let (database, _, _, before) = filled(TIMEOUT).await;
    database.0.execute("CREATE ROLE tenant LOGIN; GRANT ALL ON SCHEMA test_shards TO tenant").await;
    database.0.execute("GRANT ALL ON ALL TABLES IN SCHEMA test_shards TO tenant").await;
    let server = server_at(&database.0.url().replace("postgres@", "tenant@"), SCHEMA, TIMEOUT);
    let store = PostgresStore::new(Arc::clone(&server));
    assert_eq!(loaded(&store).await, before);
    database.0.execute("ALTER ROLE tenant CONNECTION LIMIT 1").await;
    server.connect("testing").await.unwrap_err();
    assert_eq!(loaded(&store).await, before);
}
