//! Who leads a database file, where nobody waits for it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shard_manager::backend::Fence;
use shard_manager::backend::sqlite::Database;
use shard_manager::clock;
use shard_manager::election::host::{HostElection, Options};
use shard_manager::election::{Candidacy, Election, Error, Leadership, Lost, Patience, Pulse};
use shard_manager::store::sqlite::SqliteStore;
use shard_manager::store::{self, Store};
use shard_manager::types::Token;
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use tokio_util::sync::CancellationToken;

use crate::child::{self, Process};
use crate::sample::{self, whole};
use crate::sqlite::{File, REQUEST_TIMEOUT};

/// What tests override: a grace that no test waits for, and nobody who waits.
pub fn options() -> Options {
    Options {
        tick: Duration::from_millis(20),
        grace: Duration::from_secs(600),
        kill_hung: true,
        candidacy: Candidacy {
            patience: Patience::FailAtOnce,
            holder: "a test".to_owned(),
            pulse: Pulse::new(),
            announce_every: Duration::from_secs(30),
            on_failure: Arc::new(|| {}),
        },
    }
}

async fn campaign(path: &Path) -> Result<Leadership, Error> {
    let database = Database::open(path, REQUEST_TIMEOUT).await.unwrap();
    HostElection::new(database, options()).campaign(&CancellationToken::new()).await
}

pub fn number(leadership: &Leadership) -> i64 {
    let Fence::Sql { number, .. } = leadership.fence() else { panic!("{:?}", leadership.fence()) };
    *number
}

#[track_caller]
fn assert_held(outcome: Result<Leadership, Error>, file: &File, pid: u32) {
    let Err(error @ Error::HeldElsewhere { .. }) = outcome else { panic!("the campaign was won, or failed otherwise") };
    let text = error.to_string();
    let database = file.path().canonicalize().unwrap();
    assert!(text.contains(&database.display().to_string()), "{text}");
    assert!(text.contains(&format!("process {pid} ")), "{text}: process {pid}");
}

/// Leads, says so, and waits to be killed.
pub fn child(path: &Path) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let leadership = runtime.block_on(campaign(path)).unwrap_or_else(|error| panic!("{error}"));
    child::say(number(&leadership));
    child::wait_for_parent();
}

#[tokio::test]
async fn a_second_campaign_on_the_same_file_is_refused_and_names_the_holder() {
    let file = File::new();
    let first = campaign(&file.path()).await.unwrap();
    assert!(first.belief().deadline() > clock::now());
    assert_held(campaign(&file.path()).await, &file, std::process::id());

    let link = file.directory.path().join("link.db");
    std::os::unix::fs::symlink(file.path(), &link).unwrap();
    assert_held(campaign(&link).await, &file, std::process::id());

    first.release().await.unwrap();
    let second = campaign(&link).await.unwrap();
    assert_held(campaign(&file.path()).await, &file, std::process::id());
    // Dropped is given up too, though nobody was told.
    drop(second);
    campaign(&file.path()).await.unwrap();
}

#[tokio::test]
async fn each_leadership_draws_a_higher_number_and_ends_those_before() {
    let file = File::new();
    let first = campaign(&file.path()).await.unwrap();
    let stale = first.fence().clone();
    let store = SqliteStore::new(file.database().await);
    let state = sample::state(10, stale.token());
    let revision = store.commit(&stale, None, &whole(&state)).await.unwrap();
    first.release().await.unwrap();
    // Released is not taken: until the next one comes, a commit that was under way may land.
    let revision = store.commit(&stale, Some(revision), &whole(&sample::next(&state))).await.unwrap();

    let second = campaign(&file.path()).await.unwrap();
    let Fence::Sql { number: before, token } = stale else { panic!("{stale:?}") };
    assert!(number(&second) > before);
    assert_ne!(second.fence().token(), token);
    let outcome = store.commit(&stale, Some(revision), &whole(&state)).await;
    assert!(matches!(outcome, Err(store::Error::LeadershipLost)), "{outcome:?}");
}

#[test]
fn a_killed_holder_leaves_nothing_in_the_way_of_the_next() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let file = File::new();
    let mut before = 0;
    for _ in 0..3 {
        let mut holder = Process::start("lead", &file.path());
        let drawn: i64 = holder.line().unwrap().parse().unwrap();
        assert!(drawn > before);
        runtime.block_on(async { assert_held(campaign(&file.path()).await, &file, holder.child.id()) });
        holder.kill();
        let leadership = runtime.block_on(campaign(&file.path())).unwrap();
        before = number(&leadership);
        assert_eq!(before, drawn + 1, "a campaign that is refused draws nothing");
    }
}

#[tokio::test]
async fn a_database_that_is_deleted_or_replaced_ends_the_leadership() {
    for replaced in [false, true] {
        let file = File::new();
        let mut leadership = campaign(&file.path()).await.unwrap();
        std::fs::remove_file(file.path()).unwrap();
        if replaced {
            std::fs::write(file.path(), "something else").unwrap();
        }
        let lost = tokio::time::timeout(Duration::from_secs(10), leadership.lost()).await.unwrap();
        let says = if replaced { "was replaced" } else { "was deleted" };
        assert!(matches!(&lost, Lost::Taken(why) if why.contains(says) && why.contains("test.db")), "{lost}");
        leadership.release().await.unwrap();
    }
}

/// Without the fence this would be two leaders.
#[tokio::test]
async fn a_deleted_lock_file_hands_the_leadership_over_and_never_shares_it() {
    let file = File::new();
    let mut first = campaign(&file.path()).await.unwrap();
    let store = SqliteStore::new(file.database().await);
    let state = sample::state(10, first.fence().token());
    let revision = store.commit(first.fence(), None, &whole(&state)).await.unwrap();
    std::fs::remove_file(file.directory.path().join("test.db.leader")).unwrap();

    let second = campaign(&file.path()).await.unwrap();
    let outcome = store.commit(first.fence(), Some(revision), &whole(&sample::next(&state))).await;
    assert!(matches!(outcome, Err(store::Error::LeadershipLost)), "{outcome:?}");
    let lost = tokio::time::timeout(Duration::from_secs(10), first.lost()).await.unwrap();
    assert!(matches!(&lost, Lost::Taken(why) if why.contains("test.db.leader")), "{lost}");
    // The loser's release does not unlock the winner.
    first.release().await.unwrap();
    assert_held(campaign(&file.path()).await, &file, std::process::id());
    drop(second);
}

/// Moved with everything that belongs to it, and a link left at its place: whoever comes by the link finds another cell, and the old
/// leader, which has nothing to write and beats for its own, is told all the same.
#[tokio::test]
async fn a_database_that_is_moved_behind_a_link_has_one_leader() {
    let file = File::new();
    let mut first = campaign(&file.path()).await.unwrap();
    let moved = file.directory.path().join("moved.db");
    for suffix in ["", "-wal", "-shm"] {
        let name = |path: &Path| format!("{}{suffix}", path.display());
        std::fs::rename(name(&file.path()), name(&moved)).unwrap();
    }
    std::os::unix::fs::symlink(&moved, file.path()).unwrap();
    let second = campaign(&file.path()).await.unwrap();
    assert_eq!(number(&second), 2, "the same database");
    let lost = tokio::time::timeout(Duration::from_secs(10), first.lost()).await.unwrap();
    assert!(matches!(&lost, Lost::Taken(why) if why.contains("test.db was replaced")), "{lost}");
}

/// It is noticed, and then nothing touches what is not there any more, the way down included: that would be SIGBUS.
#[tokio::test]
async fn a_cell_that_is_cut_short_ends_the_leadership_and_not_the_process() {
    for bytes in [0, 100] {
        let file = File::new();
        let mut first = campaign(&file.path()).await.unwrap();
        let cell = file.directory.path().join("test.db.leader");
        std::fs::File::options().write(true).open(&cell).unwrap().set_len(bytes).unwrap();
        let lost = tokio::time::timeout(Duration::from_secs(10), first.lost()).await.unwrap();
        assert!(matches!(&lost, Lost::Taken(why) if why.contains("was cut short")), "{lost}");
        first.release().await.unwrap();
        assert_eq!(cell.metadata().unwrap().len(), bytes, "nothing makes it long again");
    }
}

/// Past the cell, whatever the way: who has nothing to write is told by the number.
#[tokio::test]
async fn a_number_drawn_past_the_cell_ends_a_leadership_that_writes_nothing() {
    let file = File::new();
    let mut first = campaign(&file.path()).await.unwrap();
    let looked = tokio::time::timeout(Duration::from_millis(1500), first.lost()).await;
    assert!(looked.is_err(), "its own number is no news: {looked:?}");
    file.database().await.draw_leadership(Token::draw(), "another way in").await.unwrap();
    let lost = tokio::time::timeout(Duration::from_secs(10), first.lost()).await.unwrap();
    assert!(matches!(&lost, Lost::Taken(why) if why.contains("leadership 2 was drawn")), "{lost}");
    assert!(first.belief().deadline() <= clock::now());
}

/// SQLite runs the statement, returns its row, and refuses to commit it: here for a rule that is looked at only then, on a full disk for
/// want of space.
#[tokio::test]
async fn a_number_whose_commit_failed_was_not_drawn() {
    let file = File::new();
    let database = file.database().await;
    assert_eq!(database.draw_leadership(Token::draw(), "a test").await.unwrap(), 1);
    let mut other = SqliteConnectOptions::new().filename(file.path()).connect().await.unwrap();
    let refuse = "CREATE TABLE rule (it INTEGER REFERENCES revision (one) DEFERRABLE INITIALLY DEFERRED); \
         CREATE TRIGGER refuse AFTER UPDATE ON leader BEGIN INSERT INTO rule VALUES (7); END";
    sqlx::raw_sql(refuse).execute(&mut other).await.unwrap();
    let drawn = database.draw_leadership(Token::draw(), "a test").await;
    assert!(drawn.is_err(), "{drawn:?}");
    assert_eq!(database.leadership().await.unwrap().map(|(number, _)| number), Some(1));
    sqlx::raw_sql("DROP TRIGGER refuse").execute(&mut other).await.unwrap();
    assert_eq!(database.draw_leadership(Token::draw(), "a test").await.unwrap(), 2, "nothing was left open");
}

/// What an earlier release left behind: it emptied its lock file when it stopped, and left text in it when it crashed. That may also be
/// one that still runs.
#[tokio::test]
async fn the_lock_file_of_an_earlier_release_is_taken_over_empty_and_refused_with_text() {
    let file = File::new();
    let cell = file.directory.path().join("test.db.leader");
    file.database().await.close().await;
    std::fs::write(&cell, "1\ninit\n").unwrap();
    let Err(Error::Store { source, .. }) = campaign(&file.path()).await else { panic!("it is no cell") };
    assert!(source.to_string().contains("test.db.leader"), "{source}");
    assert_eq!(std::fs::read(&cell).unwrap(), b"1\ninit\n");
    std::fs::write(&cell, "").unwrap();
    campaign(&file.path()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_campaign_that_was_asked_to_end_does_not_begin() {
    let file = File::new();
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    let election = HostElection::new(file.database().await, options());
    assert!(matches!(election.campaign(&shutdown).await, Err(Error::Cancelled)));
    let leadership = election.campaign(&CancellationToken::new()).await.unwrap();
    assert_eq!(number(&leadership), 1);
}
