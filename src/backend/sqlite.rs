//! One SQLite database file: its connections, its schema, and which file it is.
//!
//! There is one connection that writes and one that reads; in WAL mode neither waits for the other. While SQLite has the file
//! open, this process must not open and close it by other means: POSIX drops a process's locks on a file with the first descriptor
//! of it that is closed. Looking at it by `stat` is fine.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection};

use crate::backend::Error;
use crate::types::Token;

/// Somebody else has the lock. Extended result codes carry the primary one in their lowest byte.
const SQLITE_BUSY: i32 = 5;
/// Result codes that speak of the moment and not of what is stored: PERM, ABORT, BUSY, LOCKED, NOMEM, READONLY, INTERRUPT, IOERR,
/// FULL, CANTOPEN, PROTOCOL, NOLFS and AUTH. With any other (a statement that does not fit the schema is ERROR, 1) trying again
/// would go on for ever.
const PASSING: [i32; 13] = [3, 4, SQLITE_BUSY, 6, 7, 8, 9, 10, 13, 14, 15, 22, 23];
/// What every database begins with. A shorter file is none, but SQLite takes one of a single byte for a new one and writes over it.
const HEADER_BYTES: u64 = 100;
/// What was being done, as errors say it.
const OPENING: &str = "opening the database";
const MIGRATING: &str = "bringing the schema up to date";

/// An open database file.
#[derive(Debug)]
pub struct Database {
    path: PathBuf,
    identity: Identity,
    writer: SqlitePool,
    reader: SqlitePool,
    request_timeout: Duration,
}

impl Database {
    /// Opens the file at `path`, which is created if it is missing, and brings its schema up to date.
    ///
    /// `request_timeout` bounds one request. Half of it is spent at most on waiting for another process's lock, so that there is
    /// time left to do the work.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the directory does not exist, the file has a second name (a hard link), or it cannot be opened,
    /// written or locked in time; [`Error::Corrupt`] where it is no database, was cut short or lost (it is missing, but has
    /// a leader cell), or has another schema than this version
    /// makes.
    pub async fn open(path: &Path, request_timeout: Duration) -> Result<Arc<Database>, Error> {
        let (path, created) = place(path)?;
        Database::open_at(path, created, request_timeout).await
    }

    /// [`Database::open`], of a file that is there: none is made.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no file at `path`, and what opening fails with.
    pub async fn open_existing(path: &Path, request_timeout: Duration) -> Result<Arc<Database>, Error> {
        let path = real_name(path)?;
        Database::open_at(path, false, request_timeout).await
    }

    async fn open_at(path: PathBuf, created: bool, request_timeout: Duration) -> Result<Arc<Database>, Error> {
        let deadline = tokio::time::Instant::now() + request_timeout;
        loop {
            let attempt = match unfit(&path, created) {
                Some(failure) => Err(failure),
                None => Database::connect(&path, request_timeout).await,
            };
            match attempt {
                Err(failure) if failure.may_pass() && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(failure) => return Err(failure.of(&path)),
                Ok(database) => return Ok(Arc::new(database)),
            }
        }
    }

    async fn connect(path: &Path, request_timeout: Duration) -> Result<Database, Failure> {
        let opening = |error| Failure::Sql(OPENING, error);
        let identity = Identity::of(path).map_err(|error| opening(sqlx::Error::Io(error)))?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(false)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(lock_timeout(request_timeout))
            .pragma("cell_size_check", "ON")
            .pragma("trusted_schema", "OFF")
            .disable_statement_logging();
        // What is refused is left as it is: the file is switched to write-ahead logging only once its schema is known to be ours.
        let mut first = options.connect().await.map_err(opening)?;
        migrate(&mut first).await?;
        first.close().await.map_err(opening)?;
        let options = options.journal_mode(SqliteJournalMode::Wal);
        // One connection that lives as long as it is sound: its statements stay prepared.
        let pool = || {
            let pool = PoolOptions::<Sqlite>::new().max_connections(1).acquire_timeout(request_timeout);
            pool.idle_timeout(None).max_lifetime(None)
        };
        let writer = pool().connect_with(options.clone()).await.map_err(opening)?;
        let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&writer).await.map_err(opening)?;
        if mode != "wal" {
            let reason = format!("{} does not take write-ahead logging (its journal mode is {mode})", path.display());
            return Err(opening(sqlx::Error::Configuration(reason.into())));
        }
        let reader = pool().connect_with(options.pragma("query_only", "ON")).await.map_err(opening)?;
        let database = Database { path: path.to_owned(), identity, writer, reader, request_timeout };
        match database.displaced() {
            Some(reason) => Err(opening(sqlx::Error::Configuration(reason.into()))),
            None => Ok(database),
        }
    }

    /// Where the file is, by its real name: absolute and without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What bounds one request.
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// Ends both connections and waits until they are closed. A request under way may finish first; later ones are unavailable.
    pub async fn close(&self) {
        self.writer.close().await;
        self.reader.close().await;
    }

    /// Why what is written here would not be found at [`Database::path`] by the next process; `None` while it would.
    pub fn displaced(&self) -> Option<String> {
        self.identity.displaced(&self.path)
    }

    /// Draws the next leadership number and writes down whose it is. From then on no other leadership's fence holds.
    ///
    /// # Errors
    /// Where the database did not answer, or refused. A number may have been drawn all the same; it is then nobody's.
    pub async fn draw_leadership(&self, token: Token, holder: &str) -> Result<i64, Error> {
        let mut connection = self.writer().await?;
        let drawn = draw(&mut connection, token, holder).await;
        if drawn.is_err() {
            // As after a commit of the state: closed is rolled back.
            connection.close().await.ok();
        }
        drawn.map_err(|error| self.failure("drawing a leadership number", error))
    }

    /// What was drawn last: the number, and whose it is. `None`: nobody ever led. It waits for no lock.
    ///
    /// # Errors
    /// Where the database did not answer.
    pub async fn leadership(&self) -> Result<Option<(i64, Vec<u8>)>, Error> {
        let mut connection = self.reader().await?;
        let row = sqlx::query_as("SELECT number, token FROM leader").fetch_optional(&mut *connection).await;
        row.map_err(|error| self.failure("reading who leads", error))
    }

    /// The connection that writes, for one user at a time.
    pub(crate) async fn writer(&self) -> Result<PoolConnection<Sqlite>, Error> {
        self.writer.acquire().await.map_err(|error| self.failure("waiting for the connection that writes", error))
    }

    /// The connection that reads, for one user at a time.
    pub(crate) async fn reader(&self) -> Result<PoolConnection<Sqlite>, Error> {
        self.reader.acquire().await.map_err(|error| self.failure("waiting for the connection that reads", error))
    }

    /// What an error says that for certain changed nothing.
    pub(crate) fn failure(&self, what: &'static str, error: sqlx::Error) -> Error {
        Failure::Sql(what, error).of(&self.path)
    }
}

/// In a transaction whose COMMIT is looked at: of a statement that commits by itself and returns a row, sqlx sees the row and not what
/// became of the commit.
async fn draw(connection: &mut SqliteConnection, token: Token, holder: &str) -> Result<i64, sqlx::Error> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let statement = "INSERT INTO leader (one, number, token, holder) VALUES (1, 1, ?, ?) \
         ON CONFLICT (one) DO UPDATE SET number = number + 1, token = excluded.token, holder = excluded.holder \
         RETURNING number";
    let drawn = sqlx::query_scalar(statement).bind(token.0.to_be_bytes().to_vec()).bind(holder);
    let number = drawn.fetch_one(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(number)
}

/// Whether somebody else had the lock for too long; of a COMMIT it says that the transaction is still open, so nothing was written.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    result_code(error) == Some(SQLITE_BUSY)
}

fn result_code(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

fn lock_timeout(request_timeout: Duration) -> Duration {
    // SQLite counts in 32 bits of milliseconds.
    (request_timeout / 2).clamp(Duration::from_millis(1), Duration::from_secs(3600))
}

enum Failure {
    Sql(&'static str, sqlx::Error),
    Migration(MigrateError),
    /// The stored schema is not the one that the migrations make.
    Schema(String),
    /// Nothing is left of a database that somebody has led.
    Emptied,
    /// Not even the file.
    Missing,
    /// So many bytes are no database.
    Short(u64),
    /// A directory, or a device.
    NoFile,
    /// So many names.
    Linked(u64),
}

impl Failure {
    /// Whether another process that opens the same fresh file just now may be the cause: it creates the file empty, and switching it
    /// to write-ahead logging waits for nobody, whatever the busy time-out.
    fn may_pass(&self) -> bool {
        match self {
            Failure::Sql(_, error)
            | Failure::Migration(MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) => is_busy(error),
            Failure::Emptied => true,
            Failure::Migration(_)
            | Failure::Schema(_)
            | Failure::Missing
            | Failure::Short(_)
            | Failure::NoFile
            | Failure::Linked(_) => false,
        }
    }

    fn of(self, path: &Path) -> Error {
        let corrupt = |reason| Error::Corrupt { record: format!("the database file {}", path.display()), reason };
        let unavailable = |what, why: String| Error::Unavailable { what, source: format!("{}: {why}", path.display()).into() };
        match self {
            Failure::Migration(MigrateError::VersionMissing(version)) => {
                corrupt(format!("it was written by a newer version: this program does not know its migration {version}"))
            }
            Failure::Migration(MigrateError::VersionMismatch(version)) => {
                corrupt(format!("its migration {version} is not the one that this program knows"))
            }
            Failure::Migration(MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) => {
                Failure::Sql(MIGRATING, error).of(path)
            }
            Failure::Migration(error) => corrupt(error.to_string()),
            Failure::Schema(difference) => corrupt(difference),
            Failure::Emptied | Failure::Missing => {
                let leader = leader_file(path);
                let (is, leader) = (if matches!(self, Failure::Missing) { "missing" } else { "empty" }, leader.display());
                corrupt(format!(
                    "it is {is}, but it had a leader, as {leader} says: its content was lost. Restore it; or to begin anew, with another \
                     cluster, remove it and {leader}"
                ))
            }
            Failure::Short(bytes) => {
                corrupt(format!("its length is {bytes}, below the {HEADER_BYTES} bytes with which every database begins"))
            }
            Failure::NoFile => unavailable(
                OPENING,
                "it is no file, but a directory or a device: persistence.sqlite.path names a file".to_owned(),
            ),
            Failure::Linked(names) => unavailable(
                OPENING,
                format!("the file has {names} names (hard links), and under each another manager could lead; leave it one name"),
            ),
            Failure::Sql(what, error) if speaks_of_content(&error) => corrupt(format!("{what}: {error}")),
            Failure::Sql(what, error) => unavailable(what, error.to_string()),
        }
    }
}

/// Whether an error comes from what is stored, so that trying again does not help.
fn speaks_of_content(error: &sqlx::Error) -> bool {
    match (result_code(error), error) {
        (Some(code), _) => !PASSING.contains(&code),
        (None, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::RowNotFound) => true,
        (None, _) => false,
    }
}

/// The whole schema in one transaction: of two processes that open a fresh file at once, one waits for the other. It is then compared
/// with what the migrations make of an empty database: a bit flipped in it would make statements fail long after.
///
/// A database that has its schema is only read: a standby opens it while a leader that hangs has the write lock.
async fn migrate(connection: &mut SqliteConnection) -> Result<(), Failure> {
    let failed = |error| Failure::Sql(MIGRATING, error);
    let begun = "SELECT EXISTS (SELECT * FROM sqlite_schema WHERE name = '_sqlx_migrations')";
    let begun: bool = sqlx::query_scalar(begun).fetch_one(&mut *connection).await.map_err(failed)?;
    let begin = if begun { "BEGIN" } else { "BEGIN IMMEDIATE" };
    let mut transaction = connection.begin_with(begin).await.map_err(failed)?;
    // Not `run`, whose future is not `Send` here.
    migrator().run_direct(None, &mut *transaction, false).await.map_err(Failure::Migration)?;
    compare(&objects(&mut transaction).await.map_err(failed)?, &made_objects().await?)?;
    transaction.commit().await.map_err(failed)
}

/// A row of SQLite's schema: type, name, table, and the text that made it.
type Object = (String, String, String, Option<String>);

/// What a database consists of, without the table in which sqlx keeps its own account of migrations.
async fn objects(connection: &mut SqliteConnection) -> Result<BTreeSet<Object>, sqlx::Error> {
    let rows = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE tbl_name <> '_sqlx_migrations'";
    Ok(sqlx::query_as(rows).fetch_all(connection).await?.into_iter().collect())
}

/// What the migrations make of an empty database.
async fn made_objects() -> Result<BTreeSet<Object>, Failure> {
    let failed = |error| Failure::Sql("making the schema in memory", error);
    let mut memory = SqliteConnectOptions::new().in_memory(true).connect().await.map_err(failed)?;
    migrator().run_direct(None, &mut memory, false).await.map_err(Failure::Migration)?;
    let made = objects(&mut memory).await.map_err(failed)?;
    memory.close().await.map_err(failed)?;
    Ok(made)
}

/// Everything that the migrations make is there as they make it, and nothing else is bound to it. Other tables are somebody's own.
fn compare(stored: &BTreeSet<Object>, made: &BTreeSet<Object>) -> Result<(), Failure> {
    if let Some((kind, name, ..)) = made.difference(stored).next() {
        return Err(Failure::Schema(format!("its {kind} {name} is missing, or not as this version makes it")));
    }
    let ours = |table: &str| made.iter().any(|object| object.2 == table);
    match stored.difference(made).find(|object| ours(&object.2)) {
        Some((kind, name, table, _)) => {
            Err(Failure::Schema(format!("its table {table} has a {kind} {name} that this version does not make")))
        }
        None => Ok(()),
    }
}

fn migrator() -> Migrator {
    let state = include_str!("../../migrations/sqlite/0001_state.sql");
    Migrator::with_migrations(vec![Migration::new(
        1,
        Cow::Borrowed("state"),
        MigrationType::Simple,
        sqlx::SqlStr::from_static(state),
        false,
    )])
}

fn unavailable(reason: String) -> Error {
    Error::Unavailable { what: OPENING, source: reason.into() }
}

fn real_name(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(|error| unavailable(format!("{}: {error}", path.display())))
}

/// The real name of the database file, which exists after this, and whether it did not before.
fn place(path: &Path) -> Result<(PathBuf, bool), Error> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        let (parent, path) = (parent.display(), path.display());
        return Err(unavailable(format!("the directory {parent} of the database {path} does not exist")));
    }
    // In this order: who makes a database makes its cell after it.
    if let (Ok(parent), Some(name)) = (parent.canonicalize(), path.file_name()) {
        let leader = leader_file(&parent.join(name));
        let was_led = leader.metadata().is_ok_and(|leader| leader.len() > 0);
        let is_missing = || path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if was_led && is_missing() {
            return Err(Failure::Missing.of(path));
        }
    }
    // An empty file is an empty database to SQLite. One that exists is not even opened here: closing any descriptor of it would drop
    // the locks that this process may hold on it already (fcntl(2)).
    let created = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => true,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(unavailable(format!("{}: {error}", path.display()))),
    };
    Ok((real_name(path)?, created))
}

/// Why the file at `path` must not be handed to SQLite at all. A process that creates the file leaves it empty for a moment, so an
/// empty one may be new.
fn unfit(path: &Path, created: bool) -> Option<Failure> {
    // Where it cannot be looked at, opening it says why.
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.is_file() {
        return Some(Failure::NoFile);
    }
    match (metadata.nlink(), metadata.len()) {
        (names @ 2.., _) => Some(Failure::Linked(names)),
        (_, 0) if !created && leader_file(path).exists() => Some(Failure::Emptied),
        (_, bytes @ 1..HEADER_BYTES) => Some(Failure::Short(bytes)),
        _ => None,
    }
}

/// The leader cell beside a database (given by its real name): by it processes settle who leads.
pub(crate) fn leader_file(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".leader");
    PathBuf::from(name)
}

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// Of the file that has this name now. A symbolic link is a file of its own: whoever comes by it opens what it points at under its
    /// real name, and looks for everything else beside that one.
    pub(crate) fn of(path: &Path) -> io::Result<Identity> {
        std::fs::symlink_metadata(path).map(|metadata| Identity::from(&metadata))
    }

    /// Why the file at `path` is not this one; `None` where it is, or where that could not be found out.
    pub(crate) fn displaced(self, path: &Path) -> Option<String> {
        match Identity::of(path) {
            Ok(identity) if identity == self => None,
            Ok(_) => Some(format!("{} was replaced by another file", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(format!("{} was deleted", path.display())),
            Err(_) => None,
        }
    }
}

impl From<&std::fs::Metadata> for Identity {
    fn from(metadata: &std::fs::Metadata) -> Identity {
        Identity { device: metadata.dev(), inode: metadata.ino() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No test of ours can cut the power, so what makes a commit survive that is looked at instead (P2).
    #[tokio::test]
    async fn what_is_committed_is_on_disk() {
        let directory = tempfile::tempdir().expect("a directory");
        let database = Database::open(&directory.path().join("test.db"), Duration::from_secs(10)).await.expect("a database");
        let mut writer = database.writer().await.expect("a connection");
        let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *writer).await.expect("an answer");
        let journal: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *writer).await.expect("an answer");
        assert_eq!((synchronous, journal.as_str()), (2, "wal"));
    }
}
