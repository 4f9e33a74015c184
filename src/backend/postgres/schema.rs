//! The tables: made by migrations, and then looked at.

use std::borrow::Cow;
use std::collections::BTreeSet;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

use super::Server;
use crate::backend::Error;

pub(super) const PREPARING: &str = "preparing the schema";
pub(super) const LOOKING: &str = "looking at the schema";
/// Beside the schema's checksum, the key of the advisory lock under which it is prepared. Drawn once; any number would do.
const LOCK: i32 = 0x7368_6172;

/// What the migrations make. Constraints are as the server shows them.
const MADE: [&str; 25] = [
    "column leader.expires_at timestamp with time zone, not null",
    "column leader.holder text, not null",
    "column leader.number bigint, not null",
    "column leader.one smallint, not null",
    "column leader.token bytea, not null",
    "column leader.ttl_ms bigint, not null",
    "column record.body bytea, not null",
    "column record.kind text, not null",
    "column record.page bigint, not null",
    "column revision.number bigint, not null",
    "column revision.one smallint, not null",
    "constraint on leader: CHECK ((number > 0))",
    "constraint on leader: CHECK ((octet_length(token) = 16))",
    "constraint on leader: CHECK ((one = 1))",
    "constraint on leader: CHECK ((ttl_ms > 0))",
    "constraint on leader: PRIMARY KEY (one)",
    "constraint on leader: UNIQUE (number)",
    "constraint on record: CHECK ((page >= 0))",
    "constraint on record: PRIMARY KEY (kind, page)",
    "constraint on revision: CHECK ((number > 0))",
    "constraint on revision: CHECK ((one = 1))",
    "constraint on revision: PRIMARY KEY (one)",
    "table leader",
    "table record",
    "table revision",
];

/// All of it in one transaction, under a lock: of several that meet a fresh database one makes the tables, and the others find them.
pub(super) async fn prepare(server: &Server, connection: &mut PgConnection) -> Result<(), Error> {
    let failed = |error| server.failure(PREPARING, error);
    let mut transaction = connection.begin().await.map_err(failed)?;
    let checksum = crc32fast::hash(server.schema().as_bytes()).cast_signed();
    let lock = sqlx::query("SELECT pg_advisory_xact_lock($1, $2)").bind(LOCK).bind(checksum);
    lock.execute(&mut *transaction).await.map_err(failed)?;
    let usable =
        "SELECT has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = $1";
    let usable = sqlx::query_scalar(usable).bind(server.schema()).fetch_optional(&mut *transaction);
    let usable: Option<bool> = usable.await.map_err(failed)?;
    if usable == Some(false) {
        let why = format!("its user may not use the schema {} and create tables in it", server.schema());
        return Err(server.unavailable(PREPARING, why));
    }
    if usable.is_none() {
        // The name was found to hold nothing that would end the quotes.
        let create = AssertSqlSafe(format!("CREATE SCHEMA \"{}\"", server.schema()));
        // Not `failure`: a name that the server keeps for itself is no damage.
        let created = sqlx::raw_sql(create).execute(&mut *transaction).await;
        created.map_err(|error| server.unavailable("creating the schema", super::said(&error)))?;
    }
    // Not `run`, whose future is not `Send` here.
    let migrated = migrator().run_direct(None, &mut *transaction, false).await;
    migrated.map_err(|error| refusal(server, error))?;
    compare(&objects(&mut transaction).await.map_err(failed)?).map_err(|reason| server.corrupt(reason))?;
    transaction.commit().await.map_err(failed)
}

/// Refuses tables that are not as this version makes them. Makes nothing, and takes two round trips.
pub(super) async fn check(server: &Server, connection: &mut PgConnection) -> Result<(), Error> {
    let failed = |error| server.failure(LOOKING, error);
    let stored = objects(connection).await.map_err(failed)?;
    // Where nothing is there, there is no such table either.
    if !stored.is_empty() {
        let applied = sqlx::raw_sql("SELECT version, checksum FROM _sqlx_migrations").fetch_all(&mut *connection).await;
        let applied = applied.map_err(failed)?;
        let migrator = migrator();
        for row in &applied {
            let (version, checksum): (i64, Vec<u8>) =
                (row.try_get("version").map_err(failed)?, row.try_get("checksum").map_err(failed)?);
            match migrator.iter().find(|known| known.version == version) {
                None => return Err(refusal(server, MigrateError::VersionMissing(version))),
                Some(known) if *known.checksum != *checksum => {
                    return Err(refusal(server, MigrateError::VersionMismatch(version)));
                }
                Some(_) => {}
            }
        }
        if applied.len() < migrator.iter().count() {
            return Err(server.corrupt("it is of an older version".to_owned()));
        }
    }
    compare(&stored).map_err(|reason| server.corrupt(reason))
}

fn migrator() -> Migrator {
    let state = include_str!("../../../migrations/postgres/0001_state.sql");
    let state = sqlx::SqlStr::from_static(state);
    let state = Migration::new(1, Cow::Borrowed("state"), MigrationType::Simple, state, false);
    let mut migrator = Migrator::with_migrations(vec![state]);
    // sqlx's lock is one for the whole database, and waits on after its transaction.
    migrator.set_locking(false);
    migrator
}

fn refusal(server: &Server, error: MigrateError) -> Error {
    match error {
        MigrateError::VersionMissing(version) => {
            server.corrupt(format!("it was written by a newer version: this program does not know its migration {version}"))
        }
        MigrateError::VersionMismatch(version) => {
            server.corrupt(format!("its migration {version} is not the one that this program knows"))
        }
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => server.failure(PREPARING, error),
        error => server.corrupt(error.to_string()),
    }
}

/// What our tables consist of, and what is bound to them and could make a statement do something else.
async fn objects(connection: &mut PgConnection) -> Result<BTreeSet<String>, sqlx::Error> {
    let objects = "WITH ours AS ( \
             SELECT c.oid, c.relname AS name, c.relrowsecurity FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = current_schema() AND c.relkind = 'r' AND c.relname IN ('leader', 'record', 'revision')) \
         SELECT format('table %s%s', name, CASE WHEN relrowsecurity THEN ' with row security' END) FROM ours \
         UNION ALL SELECT format('column %s.%s %s%s', name, a.attname, format_type(a.atttypid, a.atttypmod), \
             CASE WHEN a.attnotnull THEN ', not null' END) \
             FROM ours JOIN pg_attribute a ON a.attrelid = ours.oid WHERE a.attnum > 0 AND NOT a.attisdropped \
         UNION ALL SELECT format('constraint on %s: %s', name, pg_get_constraintdef(k.oid)) \
             FROM ours JOIN pg_constraint k ON k.conrelid = ours.oid WHERE k.contype <> 'n' \
         UNION ALL SELECT format('trigger %s on %s', t.tgname, name) \
             FROM ours JOIN pg_trigger t ON t.tgrelid = ours.oid WHERE NOT t.tgisinternal \
         UNION ALL SELECT format('rule %s on %s', r.rulename, name) FROM ours JOIN pg_rewrite r ON r.ev_class = ours.oid";
    sqlx::raw_sql(objects).fetch_all(connection).await?.iter().map(|row| row.try_get(0)).collect()
}

/// Everything that the migrations make is there as they make it, and nothing else is bound to it. Other tables are somebody's own.
fn compare(stored: &BTreeSet<String>) -> Result<(), String> {
    let made: BTreeSet<String> = MADE.iter().map(|object| (*object).to_owned()).collect();
    if let Some(object) = made.difference(stored).next() {
        return Err(format!("its {object} is missing"));
    }
    match stored.difference(&made).next() {
        Some(object) => Err(format!("it has a {object} that this version does not make")),
        None => Ok(()),
    }
}
