//! SQLite: the suite on real files, and what can happen to a file.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shard_manager::backend::sqlite::Database;
use shard_manager::backend::{self, Fence};
use shard_manager::store::codec::Key;
use shard_manager::store::sqlite::SqliteStore;
use shard_manager::store::{Error, Loaded, Store};
use shard_manager::types::{Revision, Token};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;

use crate::child::{self, Process};
use crate::conformance::{Harness, conformance};
use crate::sample::{self, whole};

pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A directory with one database file.
pub struct File {
    pub directory: TempDir,
}

impl File {
    pub fn new() -> File {
        File { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("test.db")
    }

    pub async fn database(&self) -> Arc<Database> {
        Database::open(&self.path(), REQUEST_TIMEOUT).await.unwrap()
    }

    /// A connection that knows nothing of us, as another process would have it.
    pub async fn stranger(&self) -> SqliteConnection {
        SqliteConnectOptions::new().filename(self.path()).connect().await.unwrap()
    }

    /// Runs SQL behind the store's back.
    pub async fn sql(&self, sql: &'static str) {
        let mut stranger = self.stranger().await;
        sqlx::raw_sql(sql).execute(&mut stranger).await.unwrap();
        stranger.close().await.unwrap();
    }
}

impl Harness for File {
    async fn open(&self) -> impl Store + 'static {
        SqliteStore::new(self.database().await)
    }

    async fn lead(&self) -> Fence {
        let token = Token::draw();
        let number = self.database().await.draw_leadership(token, "test").await.unwrap();
        Fence::Sql { number, token }
    }

    async fn record(&self, key: Key) -> Option<Vec<u8>> {
        let body = sqlx::query_scalar("SELECT body FROM record WHERE kind = ? AND page = ?");
        body.bind(key.kind.name()).bind(key.page).fetch_optional(&mut self.stranger().await).await.unwrap()
    }

    async fn tamper(&self, key: Key, bytes: Option<Vec<u8>>) {
        let mut stranger = self.stranger().await;
        let delete = sqlx::query("DELETE FROM record WHERE kind = ? AND page = ?").bind(key.kind.name()).bind(key.page);
        delete.execute(&mut stranger).await.unwrap();
        if let Some(bytes) = bytes {
            let insert = sqlx::query("INSERT INTO record VALUES (?, ?, ?)").bind(key.kind.name()).bind(key.page).bind(bytes);
            insert.execute(&mut stranger).await.unwrap();
        }
        stranger.close().await.unwrap();
    }
}

conformance!(conforms, File::new());

/// A file with a state in it, its leader, and a store with this request time-out.
async fn filled(request_timeout: Duration) -> (File, SqliteStore, Fence, Loaded) {
    let file = File::new();
    let fence = file.lead().await;
    let store = SqliteStore::new(Database::open(&file.path(), request_timeout).await.unwrap());
    let state = sample::state(100, fence.token());
    let revision = store.commit(&fence, None, &whole(&state)).await.unwrap();
    (file, store, fence, Loaded { revision, state })
}

async fn refused(path: &Path) -> backend::Error {
    match Database::open(path, Duration::from_secs(1)).await {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error,
    }
}

/// The error with its causes, as it is logged.
fn in_full(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[tokio::test]
async fn a_database_locked_by_somebody_else_is_unavailable_in_time_and_unchanged() {
    let (file, store, fence, before) = filled(Duration::from_millis(600)).await;
    let mut stranger = file.stranger().await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut stranger).await.unwrap();

    let changes = whole(&sample::next(&before.state));
    let began = Instant::now();
    let outcome = store.commit(&fence, Some(before.revision), &changes).await;
    assert!(matches!(outcome, Err(Error::Unavailable { what: "taking the write lock", .. })), "{outcome:?}");
    assert!(began.elapsed() >= Duration::from_millis(250), "gave up after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_millis(1500), "took {:?}", began.elapsed());
    assert_eq!(store.load().await.unwrap().unwrap(), before, "a reader waits for nobody");

    // Nothing half done stands in the way afterwards, and the refused commit does not land late.
    sqlx::raw_sql("ROLLBACK").execute(&mut stranger).await.unwrap();
    assert_eq!(store.load().await.unwrap().unwrap(), before);
    let revision = store.commit(&fence, Some(before.revision), &changes).await.unwrap();
    assert_eq!(store.load().await.unwrap().unwrap(), Loaded { revision, state: sample::next(&before.state) });
}

/// A commit that fails while it writes is rolled back, and the next one finds a sound connection.
#[tokio::test]
async fn a_commit_that_fails_in_the_middle_changes_nothing() {
    let (file, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    let changes = whole(&sample::next(&before.state));
    // They strike after the records were written. The one leaves the transaction open, the other ends it.
    for trigger in [
        "CREATE TRIGGER fails BEFORE UPDATE ON revision BEGIN SELECT RAISE(ABORT, 'struck'); END",
        "CREATE TRIGGER fails BEFORE UPDATE ON revision BEGIN SELECT RAISE(ROLLBACK, 'struck'); END",
    ] {
        file.sql(trigger).await;
        for _ in 0..3 {
            let outcome = store.commit(&fence, Some(before.revision), &changes).await;
            assert!(matches!(&outcome, Err(Error::Unreadable { reason, .. }) if reason.contains("struck")), "{outcome:?}");
            assert_eq!(store.load().await.unwrap().unwrap(), before);
        }
        file.sql("DROP TRIGGER fails").await;
    }
    store.commit(&fence, Some(before.revision), &changes).await.unwrap();
}

/// The fence is part of the transaction: a leadership that is drawn while the commit waits for the write lock is seen by it.
#[tokio::test]
async fn a_leadership_drawn_while_a_commit_waits_for_the_lock_refuses_it() {
    let (file, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    let mut successor = file.stranger().await;
    sqlx::raw_sql("BEGIN IMMEDIATE; UPDATE leader SET number = number + 1").execute(&mut successor).await.unwrap();
    let changes = whole(&sample::next(&before.state));
    let waiting = store.commit(&fence, Some(before.revision), &changes);
    let end = async {
        // Whether the commit waits already or begins later makes no difference to what must come out.
        tokio::task::yield_now().await;
        sqlx::raw_sql("COMMIT").execute(&mut successor).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(waiting, end);
    assert!(matches!(outcome, Err(Error::LeadershipLost)), "{outcome:?}");
    assert_eq!(store.load().await.unwrap().unwrap(), before);
}

#[test]
fn a_read_only_file_is_unavailable_and_unchanged() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (file, store, _, before) = runtime.block_on(filled(REQUEST_TIMEOUT));
    // The last connection leaves the file alone in its directory.
    drop(store);
    runtime.block_on(async { file.database().await.close().await });
    let permit = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    permit(&file.path(), 0o444);
    permit(file.directory.path(), 0o555);
    let mut process = Process::start_as_nobody("read_only", &file.path());
    let said = process.line().expect("the child says what it saw");
    permit(file.directory.path(), 0o755);
    permit(&file.path(), 0o644);
    assert!(said.starts_with("Unavailable") && said.contains("test.db"), "{said}");
    let after = runtime.block_on(async { SqliteStore::new(file.database().await).load().await });
    assert_eq!(after.unwrap().unwrap(), before);
}

pub fn read_only_child(path: &Path) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let error = runtime.block_on(refused(path));
    let kind = if matches!(error, backend::Error::Unavailable { .. }) { "Unavailable" } else { "another error" };
    child::say(format!("{kind}: {}", in_full(&error)));
}

#[tokio::test]
async fn a_missing_directory_is_named() {
    let file = File::new();
    let path = file.directory.path().join("nowhere/test.db");
    let error = in_full(&refused(&path).await);
    assert!(error.contains("the directory") && error.contains("nowhere of the database"), "{error}");
    let error = in_full(&refused(file.directory.path()).await);
    assert!(error.contains(&file.directory.path().display().to_string()), "{error}");
}

#[tokio::test]
async fn what_is_no_database_is_refused_and_left_as_it_is() {
    let file = File::new();
    let bytes = vec![b'x'; 5000];
    std::fs::write(file.path(), &bytes).unwrap();
    let error = refused(&file.path()).await;
    assert!(matches!(error, backend::Error::Corrupt { .. }), "{error:?}");
    assert!(error.to_string().contains("test.db"), "{error}");
    assert_eq!(std::fs::read(file.path()).unwrap(), bytes);
}

#[tokio::test]
async fn a_database_cut_to_nothing_is_not_taken_for_a_new_one() {
    let file = File::new();
    std::fs::write(file.directory.path().join("test.db.leader"), "").unwrap();
    std::fs::write(file.path(), "").unwrap();
    let error = refused(&file.path()).await;
    assert!(matches!(error, backend::Error::Corrupt { .. }), "{error:?}");
    assert!(error.to_string().contains("its content was lost"), "{error}");
    std::fs::remove_file(file.path()).unwrap();
    file.database().await;
}

/// SQLite takes a file of one byte for a new database, and writes over it.
#[tokio::test]
async fn a_database_cut_to_a_few_bytes_is_refused_and_left_as_it_is() {
    let (file, store, ..) = filled(REQUEST_TIMEOUT).await;
    drop(store);
    file.database().await.close().await;
    let sound = std::fs::read(file.path()).unwrap();
    for length in [1, 2, 16, 99] {
        for led in [true, false] {
            let cut = File::new();
            std::fs::write(cut.path(), &sound[..length]).unwrap();
            if led {
                std::fs::write(cut.directory.path().join("test.db.leader"), "").unwrap();
            }
            let error = refused(&cut.path()).await;
            assert!(matches!(error, backend::Error::Corrupt { .. }), "{length} bytes: {error:?}");
            let says = format!("test.db is refused: its length is {length}, below");
            assert!(error.to_string().contains(&says), "{error}");
            assert_eq!(std::fs::read(cut.path()).unwrap(), sound[..length]);
        }
    }
}

/// Statements would fail for ever, or a rule be gone: it is found before anybody leads, and the file stays as it is.
#[tokio::test]
async fn a_bit_flipped_in_the_stored_schema_is_refused() {
    let (file, store, ..) = filled(REQUEST_TIMEOUT).await;
    drop(store);
    file.database().await.close().await;
    let sound = std::fs::read(file.path()).unwrap();
    for table in ["revision", "leader", "record"] {
        let text = format!("CREATE TABLE {table} (");
        let begin = sound.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
        let end = begin + sound[begin..].windows(8).position(|window| window == b") STRICT").unwrap() + 8;
        for at in (begin..end).step_by(5) {
            let flipped = File::new();
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            std::fs::write(flipped.path(), &bytes).unwrap();
            let error = refused(&flipped.path()).await;
            assert!(matches!(error, backend::Error::Corrupt { .. }), "byte {at} of {table}: {error:?}");
            assert!(error.to_string().contains("test.db is refused"), "{error}");
            assert!(std::fs::read(flipped.path()).unwrap() == bytes, "byte {at} of {table}: the file changed");
        }
    }
}

/// What somebody hangs on our tables would run inside our transactions. Tables of their own do no harm.
#[tokio::test]
async fn a_trigger_on_a_table_of_ours_is_refused() {
    let (file, store, ..) = filled(REQUEST_TIMEOUT).await;
    drop(store);
    file.sql("CREATE TABLE other (x); CREATE TRIGGER theirs AFTER INSERT ON other BEGIN DELETE FROM other; END").await;
    file.database().await.close().await;
    file.sql("CREATE TRIGGER strikes AFTER UPDATE ON leader BEGIN DELETE FROM record; END").await;
    let error = refused(&file.path()).await;
    assert!(matches!(error, backend::Error::Corrupt { .. }), "{error:?}");
    assert!(error.to_string().contains("its table leader has a trigger strikes"), "{error}");
}

#[tokio::test]
async fn the_database_of_another_program_is_refused_and_left_as_it_is() {
    let file = File::new();
    std::fs::write(file.path(), "").unwrap();
    file.sql("CREATE TABLE record (artist TEXT, title TEXT); INSERT INTO record VALUES ('a', 'b')").await;
    let theirs = std::fs::read(file.path()).unwrap();
    let error = refused(&file.path()).await;
    assert!(matches!(error, backend::Error::Corrupt { .. }), "{error:?}");
    assert!(error.to_string().contains("table record already exists"), "{error}");
    assert!(std::fs::read(file.path()).unwrap() == theirs, "the file changed");
}

/// A statement that does not fit the schema never will: told as unavailable, it would be sent again for ever.
#[tokio::test]
async fn a_schema_that_is_damaged_while_it_is_open_is_no_passing_trouble() {
    let (file, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    let database = file.database().await;
    file.sql("ALTER TABLE leader RENAME COLUMN token TO tokem").await;
    let outcome = store.commit(&fence, Some(before.revision), &whole(&sample::next(&before.state))).await;
    assert!(matches!(&outcome, Err(Error::Unreadable { reason, .. }) if reason.contains("no such column")), "{outcome:?}");
    let outcome = database.draw_leadership(Token::draw(), "test").await;
    assert!(matches!(&outcome, Err(backend::Error::Corrupt { .. })), "{outcome:?}");
    file.sql("ALTER TABLE record RENAME COLUMN body TO bodi").await;
    let error = store.load().await.unwrap_err();
    let begins = format!("the database file {} is refused: reading the state: ", file.path().canonicalize().unwrap().display());
    assert!(error.to_string().starts_with(&begins), "{error}");
}

/// Under each name another manager would lead, with a lock and a write-ahead log of its own.
#[tokio::test]
async fn a_database_with_two_names_is_refused_under_both() {
    let (file, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    let other = file.directory.path().join("hard.db");
    std::fs::hard_link(file.path(), &other).unwrap();
    for path in [file.path(), other.clone()] {
        let error = refused(&path).await;
        assert!(matches!(error, backend::Error::Unavailable { .. }), "{error:?}");
        let text = in_full(&error);
        assert!(text.contains(&path.canonicalize().unwrap().display().to_string()) && text.contains("has 2 names"), "{text}");
    }
    assert_eq!(std::fs::read_dir(file.directory.path()).unwrap().count(), 4, "no log or lock beside the other name");
    // Whoever has it open already goes on: nobody else can.
    store.commit(&fence, Some(before.revision), &whole(&sample::next(&before.state))).await.unwrap();
    std::fs::remove_file(other).unwrap();
    file.database().await;
}

/// It has as many names as it has directories within, which is no reason to speak of links.
#[tokio::test]
async fn a_directory_in_place_of_the_database_is_called_one() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("within")).unwrap();
    let text = in_full(&refused(directory.path()).await);
    assert!(text.contains("it is no file, but a directory or a device") && !text.contains("links"), "{text}");
}

#[tokio::test]
async fn the_schema_of_a_newer_version_is_refused() {
    let (file, store, ..) = filled(REQUEST_TIMEOUT).await;
    drop(store);
    file.sql(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9, 'new', 1, x'', 0)",
    )
    .await;
    let error = refused(&file.path()).await;
    assert!(matches!(error, backend::Error::Corrupt { .. }), "{error:?}");
    assert!(error.to_string().contains("written by a newer version"), "{error}");
}

/// Two that switch a fresh file to write-ahead logging at once do not wait for each other, and one is told that it is locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_file_can_be_opened_by_many_at_once() {
    for _ in 0..5 {
        let file = File::new();
        let opened: Vec<_> = (0..16)
            .map(|_| {
                let path = file.path();
                tokio::spawn(async move { Database::open(&path, REQUEST_TIMEOUT).await })
            })
            .collect();
        for opened in opened {
            opened.await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn revision_and_records_are_both_there_or_neither() {
    let (file, store, ..) = filled(REQUEST_TIMEOUT).await;
    file.sql("CREATE TABLE kept AS SELECT * FROM revision; DELETE FROM revision").await;
    let outcome = store.load().await;
    assert!(matches!(&outcome, Err(Error::Corrupt { record, .. }) if record == "revision"), "{outcome:?}");
    file.sql("INSERT INTO revision SELECT * FROM kept; DELETE FROM record").await;
    let outcome = store.load().await;
    assert!(matches!(&outcome, Err(Error::Corrupt { record, .. }) if record == "meta"), "{outcome:?}");
    file.sql("INSERT INTO record VALUES ('nonsense', 0, x'00')").await;
    let outcome = store.load().await;
    assert!(matches!(&outcome, Err(Error::Corrupt { record, .. }) if record == "nonsense/0"), "{outcome:?}");
}

#[tokio::test]
async fn an_unrelated_write_does_not_move_the_revision() {
    let (file, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    file.sql("CREATE TABLE other (x); INSERT INTO other VALUES (1)").await;
    assert_eq!(store.load().await.unwrap().unwrap(), before);
    let revision = store.commit(&fence, Some(before.revision), &whole(&sample::next(&before.state))).await.unwrap();
    assert_eq!(revision, Revision(before.revision.0 + 1));
}

#[tokio::test]
async fn a_file_that_was_deleted_or_replaced_takes_no_commit() {
    let (file, store, fence, before) = filled(REQUEST_TIMEOUT).await;
    let changes = whole(&sample::next(&before.state));
    std::fs::rename(file.path(), file.directory.path().join("elsewhere.db")).unwrap();
    let deleted = store.commit(&fence, Some(before.revision), &changes).await.unwrap_err();
    assert!(matches!(deleted, Error::Unavailable { .. }) && in_full(&deleted).contains("was deleted"), "{}", in_full(&deleted));
    std::fs::write(file.path(), "").unwrap();
    let replaced = store.commit(&fence, Some(before.revision), &changes).await.unwrap_err();
    assert!(
        matches!(replaced, Error::Unavailable { .. }) && in_full(&replaced).contains("was replaced"),
        "{}",
        in_full(&replaced)
    );
    std::fs::rename(file.directory.path().join("elsewhere.db"), file.path()).unwrap();
    store.commit(&fence, Some(before.revision), &changes).await.unwrap();
}
