//! The way to PostgreSQL: settings, the schema, what a session is set to, certificates and passwords.

use std::path::PathBuf;
use std::time::Duration;

use shard_manager::backend::Error;
use shard_manager::backend::postgres::{Server, Settings};
use shard_manager::backend::settings::Invalid;
use shard_manager::config::{self, Secret};
use shard_manager::store::Store;
use shard_manager::store::postgres::PostgresStore;
use sqlx::Connection;

use crate::conformance::Harness;
use crate::postgres::{Database, SCHEMA, filled, loaded, postgres_config, server_at};
use crate::sample;
use crate::support::postgres::{Options, Postgres};
use crate::support::proxy::Proxy;

const TIMEOUT: Duration = Duration::from_secs(5);

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/support/tls").join(name)
}

/// The error with its causes, as it is logged and as it is debugged.
fn in_full(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(format!("{error} {error:?}"), |text, cause| format!("{text}: {cause} {cause:?}"))
}

async fn refused(server: &Server) -> Error {
    server.prepare().await.expect_err("it is refused")
}

#[track_caller]
fn assert_unavailable(error: &Error, says: &str) {
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(in_full(error).contains(says), "{error:?} says nothing of {says:?}");
}

#[track_caller]
fn assert_corrupt(error: &Error, says: &str) {
    let Error::Corrupt { record, reason } = error else { panic!("{error:?}") };
    assert!(record.contains(SCHEMA) && reason.contains(says), "{record}: {reason:?} says nothing of {says:?}");
}

#[test]
fn settings_that_can_never_work_are_refused_by_name_and_without_the_password() {
    let good = "postgres://me:hunter2@db:5432/shards?sslmode=require";
    let change = |how: fn(&mut config::Postgres)| {
        let mut config = postgres_config(good, SCHEMA);
        how(&mut config);
        let error = Settings::from_config(&config, TIMEOUT).unwrap_err();
        assert!(!in_full(&error).contains("hunter2"), "{error:?}");
        error
    };
    let url = |url: &'static str| Settings::from_config(&postgres_config(url, SCHEMA), TIMEOUT).unwrap_err();
    assert!(matches!(change(|it| it.url = None), Invalid::Missing { key: "persistence.postgres.url" }));
    for bad in [
        "mysql://me:hunter2@db/x",
        "postgres://me:hunter2@db:port/x",
        "postgres://me:hunter2@db/x?sslmode=sometimes",
        "postgres://me:hunter2@db/x?sslpassword=hunter2",
        "postgres://me:p?hunter2@db/x",
        "postgres://db/x?options=-c%20search_path%3Dhunter2",
    ] {
        let error = url(bad);
        assert!(matches!(error, Invalid::Url { .. }), "{bad}: {error:?}");
        assert!(!in_full(&error).contains("hunter2"), "{error:?}");
    }
    for schema in ["", "Upper", "1st", "a\"b", "a b", "a,b"] {
        let error = Settings::from_config(&postgres_config(good, schema), TIMEOUT).unwrap_err();
        assert!(matches!(error, Invalid::Value { name: "persistence.postgres.schema", .. }), "{schema}: {error:?}");
    }
    let half = change(|it| it.cert_file = Some(file("client.pem")));
    assert!(matches!(half, Invalid::Half { missing: "persistence.postgres.key_file", .. }), "{half:?}");
    for (key, error) in [
        ("ca_file", change(|it| it.ca_file = Some("/no/such/file".into()))),
        ("password_file", change(|it| it.password_file = Some("/no/such/file".into()))),
        ("key_file", change(|it| (it.cert_file, it.key_file) = (Some(file("client.pem")), Some("/no/such/file".into())))),
    ] {
        assert!(matches!(error, Invalid::File { .. }) && error.to_string().contains(key), "{error:?}");
    }
    let zero = Settings::from_config(&postgres_config(good, SCHEMA), Duration::ZERO).unwrap_err();
    assert!(matches!(zero, Invalid::Value { name: "request_timeout", .. }), "{zero:?}");
    let settings = Settings::from_config(&postgres_config(good, SCHEMA), TIMEOUT).unwrap();
    let server = Server::new(settings.clone());
    assert!(!format!("{settings:?} {server:?}").contains("hunter2"), "{settings:?} {server:?}");
    assert_eq!((server.schema(), server.request_timeout()), (SCHEMA, TIMEOUT));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_start_at_once_prepare_one_schema() {
    let database = Database::start().await;
    for round in 0..5 {
        let schema = format!("round_{round}");
        let prepare = |_| {
            let server = server_at(&database.0.url(), &schema, TIMEOUT);
            tokio::spawn(async move { server.prepare().await })
        };
        let replicas: Vec<_> = (0..6).map(prepare).collect();
        for replica in replicas {
            replica.await.unwrap().unwrap();
        }
        let applied = database.0.column(&format!("SELECT version FROM {schema}._sqlx_migrations")).await;
        assert_eq!(applied, ["1"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_is_there_needs_no_right_to_create_one() {
    let database = Database::start().await;
    database
        .0
        .execute("CREATE ROLE tenant LOGIN; CREATE SCHEMA test_shards AUTHORIZATION tenant; CREATE ROLE nobody LOGIN")
        .await;
    let url = database.0.url();
    let tenant = server_at(&url.replace("postgres@", "tenant@"), SCHEMA, TIMEOUT);
    tenant.prepare().await.unwrap();
    assert_eq!(PostgresStore::new(tenant).load().await.unwrap(), None);
    let other = server_at(&url.replace("postgres@", "tenant@"), "another", TIMEOUT);
    assert_unavailable(&refused(&other).await, "42501");
    let nobody = server_at(&url.replace("postgres@", "nobody@"), SCHEMA, TIMEOUT);
    assert_unavailable(&refused(&nobody).await, "may not use the schema test_shards");
    let reserved = server_at(&url, "pg_mine", TIMEOUT);
    assert_unavailable(&refused(&reserved).await, "42939");
    database.0.execute("ALTER ROLE tenant CONNECTION LIMIT 0").await;
    assert_unavailable(&refused(&server_at(&url.replace("postgres@", "tenant@"), SCHEMA, TIMEOUT)).await, "53300");
    let gone =
        server_at(&url.replace("/postgres", "/no_such_database").replace("//no_such_database", "//postgres"), SCHEMA, TIMEOUT);
    assert_unavailable(&refused(&gone).await, "3D000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_is_refused_and_left_as_it_is() {
    let (database, _, _, before) = filled(TIMEOUT).await;
    database.0.execute("INSERT INTO test_shards._sqlx_migrations VALUES (2, 'newer', now(), true, '', 0)").await;
    assert_corrupt(&refused(&database.server()).await, "written by a newer version");
    // Nobody reads it either.
    let outcome = database.store(TIMEOUT).load().await;
    assert!(matches!(outcome, Err(shard_manager::store::Error::Unreadable { .. })), "{outcome:?}");
    database.0.execute("DELETE FROM test_shards._sqlx_migrations WHERE version = 2").await;
    assert_eq!(loaded(&database.store(TIMEOUT)).await, before);
    database.0.execute("UPDATE test_shards._sqlx_migrations SET checksum = ''").await;
    assert_corrupt(&refused(&database.server()).await, "migration 1 is not the one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_becomes_newer_while_a_standby_waits_is_refused_when_it_reads_again() {
    let (database, store, _, before) = filled(TIMEOUT).await;
    assert_eq!(loaded(&store).await, before);
    database
        .0
        .execute(
            "INSERT INTO test_shards._sqlx_migrations VALUES (2, 'newer', now(), true, '', 0); \
             ALTER TABLE test_shards.record ADD COLUMN more int",
        )
        .await;
    let Err(shard_manager::store::Error::Unreadable { reason, .. }) = store.load().await else { panic!("it is refused") };
    assert!(reason.contains("newer version"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_far_away_gets_its_schema_all_the_same() {
    let database = Database::start().await;
    let proxy = Proxy::to(database.0.address).await;
    proxy.delay_answers(Duration::from_millis(150));
    let store = PostgresStore::new(server_at(&database.0.url_at(proxy.address), SCHEMA, Duration::from_secs(1)));
    assert_eq!(store.load().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_are_not_as_they_were_made_are_named() {
    let database = Database::start().await;
    for (damage, says) in [
        ("DROP TABLE test_shards.leader", "column leader.expires_at"),
        ("ALTER TABLE test_shards.record DROP COLUMN body", "column record.body bytea"),
        ("ALTER TABLE test_shards.record ALTER COLUMN page TYPE integer", "column record.page bigint"),
        ("ALTER TABLE test_shards.leader DROP CONSTRAINT leader_number_key", "UNIQUE (number)"),
        ("ALTER TABLE test_shards.leader ADD COLUMN more int", "column leader.more"),
        ("ALTER TABLE test_shards.record ENABLE ROW LEVEL SECURITY", "table record"),
        ("CREATE RULE skip AS ON UPDATE TO test_shards.revision DO INSTEAD NOTHING", "rule skip on revision"),
        (
            "CREATE TRIGGER skip BEFORE UPDATE ON test_shards.record FOR EACH ROW \
             EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "trigger skip on record",
        ),
    ] {
        database.server().prepare().await.unwrap();
        database.0.execute(damage).await;
        assert_corrupt(&refused(&database.server()).await, says);
        database.0.execute("DROP SCHEMA test_shards CASCADE").await;
    }
}

async fn setting(server: &Server, name: &str) -> String {
    let mut connection = server.connect("looking").await.unwrap();
    let value = sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    value
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_bounded_and_durable_whatever_the_server_is_set_to() {
    let database = Database::start().await;
    let server = database.server();
    database
        .0
        .execute(
            "ALTER DATABASE postgres SET lock_timeout = '1h'; ALTER DATABASE postgres SET statement_timeout = '1h'; \
             ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'",
        )
        .await;
    for (name, value) in [
        ("lock_timeout", "5s"),
        ("statement_timeout", "7500ms"),
        ("idle_in_transaction_session_timeout", "10s"),
        ("transaction_isolation", "read committed"),
        ("tcp_user_timeout", "10000"),
        ("search_path", SCHEMA),
        ("application_name", "shard-manager looking"),
    ] {
        assert_eq!(setting(&server, name).await, value, "{name}");
    }
    for (configured, value) in
        [("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")]
    {
        database.0.execute(&format!("ALTER DATABASE postgres SET synchronous_commit = {configured}")).await;
        assert_eq!(setting(&server, "synchronous_commit").await, value, "{configured}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_and_a_read_only_database_are_refused_for_now() {
    let database = Database::start().await;
    database.0.execute("ALTER DATABASE postgres SET default_transaction_read_only = on").await;
    let server = database.server();
    assert_unavailable(&refused(&server).await, "read-only");
    database.0.execute("BEGIN READ WRITE; ALTER DATABASE postgres RESET ALL; COMMIT").await;
    server.prepare().await.unwrap();

    let files = vec![("standby.signal".to_owned(), Vec::new())];
    // A standby takes no fewer than its primary, here the one that initdb was.
    let config = vec!["max_connections = 200".to_owned()];
    let standby = Postgres::start_with(Options { config, files, ..Options::default() }).await;
    assert_unavailable(&refused(&server_at(&standby.url(), SCHEMA, TIMEOUT)).await, "it is a standby");
}

/// A server that takes its superuser as it is, and `somebody` only with a certificate and the password "hunter2".
async fn demanding() -> Database {
    let read = |name: &str| std::fs::read(file(name)).unwrap();
    let postgres = Postgres::start_with(Options {
        config: ["ssl = on", "ssl_ca_file = 'ca.pem'", "ssl_cert_file = 'server.pem'", "ssl_key_file = 'server.key'"]
            .map(str::to_owned)
            .to_vec(),
        hba: Some(
            "host all postgres 127.0.0.1/32 trust\nhostssl all somebody 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n"
                .to_owned(),
        ),
        files: ["ca.pem", "server.pem", "server.key"].map(|name| (name.to_owned(), read(name))).to_vec(),
    })
    .await;
    postgres.execute("CREATE ROLE somebody LOGIN PASSWORD 'hunter2'; CREATE SCHEMA test_shards AUTHORIZATION somebody").await;
    Database(postgres)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_demands_a_certificate_and_a_password_gets_them() {
    let database = demanding().await;
    let directory = tempfile::tempdir().unwrap();
    let password_file = directory.path().join("password");
    std::fs::write(&password_file, "hunter2\n").unwrap();
    let url = format!("postgres://somebody@localhost:{}/postgres", database.0.address.port());
    let good = config::Postgres {
        password_file: Some(password_file),
        ca_file: Some(file("ca.pem")),
        cert_file: Some(file("client.pem")),
        key_file: Some(file("client.key")),
        ..postgres_config(&url, SCHEMA)
    };
    let server = |config: &config::Postgres| Server::new(Settings::from_config(config, TIMEOUT).unwrap());
    let store = PostgresStore::new(server(&good));
    assert_eq!(store.load().await.unwrap(), None);
    let encrypted = "SELECT usename FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND client_dn IS NOT NULL";
    assert_eq!(database.0.column(encrypted).await, ["somebody"]);
    let fence = database.lead().await;
    let state = sample::state(10, fence.token());
    store.commit(&fence, None, &sample::whole(&state)).await.unwrap();
    assert_eq!(loaded(&store).await.state, state);

    let change = |how: &dyn Fn(&mut config::Postgres)| {
        let mut config = good.clone();
        how(&mut config);
        server(&config)
    };
    // What the URL says of encryption is no way around the authority.
    let insists = change(&|it| it.url = Some(Secret::new(url.clone() + "?sslmode=disable")));
    insists.prepare().await.unwrap();
    for (says, server) in [
        ("28P01", change(&|it| (it.password_file, it.password) = (None, Some(Secret::new("hunter3"))))),
        ("UnknownIssuer", change(&|it| it.ca_file = Some(file("stranger.pem")))),
        ("28000", change(&|it| (it.cert_file, it.key_file) = (None, None))),
        ("28000", change(&|it| (it.ca_file, it.url) = (None, Some(Secret::new(url.clone() + "?sslmode=disable"))))),
    ] {
        let error = refused(&server).await;
        assert_unavailable(&error, says);
        assert!(!in_full(&error).contains("hunter"), "{error:?}");
    }
}
