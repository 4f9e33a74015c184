//! Processes that are killed while they commit, and files whose bits flip.

use std::path::Path;
use std::time::Duration;

use shard_manager::backend::Fence;
use shard_manager::backend::sqlite::Database;
use shard_manager::store::sqlite::SqliteStore;
use shard_manager::store::{Loaded, Store};
use shard_manager::types::{Revision, Token};

use crate::child::{self, Process};
use crate::conformance::Harness;
use crate::sample::{self, whole};
use crate::sqlite::{File, REQUEST_TIMEOUT};

/// The last acknowledged revision, or the one whose acknowledgement the kill cut off, is there: whole, and nothing else is.
#[test]
fn a_process_killed_while_it_commits_loses_nothing_that_was_acknowledged() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let file = File::new();
    let mut before = 0;
    for round in 0..12 {
        let mut process = Process::start("commit", &file.path());
        let mut acknowledged = before;
        let mut said = |line: Option<String>| match line {
            Some(line) => acknowledged = line.parse::<u64>().unwrap(),
            None => panic!("the child ended by itself"),
        };
        // Each round is killed at another point.
        for _ in 0..5 + round {
            said(process.line());
        }
        process.kill();
        while let Some(line) = process.line() {
            said(Some(line));
        }
        assert!(acknowledged > before);

        let Loaded { revision, state } =
            runtime.block_on(async { SqliteStore::new(file.database().await).load().await }).unwrap().unwrap();
        let range = acknowledged..=acknowledged + 1;
        assert!(range.contains(&revision.0), "at {revision} after {acknowledged} was acknowledged");
        assert_eq!(state.meta.attempt, revision.0, "each commit writes its number into meta, and into every page");
        assert!(state.shards().all(|(_, shard)| shard.epoch.0 == revision.0), "pages of several commits are mixed");
        before = revision.0;
    }
}

/// Commits for ever; every page of every commit carries the number of the commit. Says each revision that was acknowledged.
pub fn child(path: &Path) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let database = Database::open(path, REQUEST_TIMEOUT).await.unwrap();
        let token = Token::draw();
        let fence = Fence::Sql { number: database.draw_leadership(token, "child").await.unwrap(), token };
        let store = SqliteStore::new(database);
        let loaded = store.load().await.unwrap();
        let mut revision = loaded.as_ref().map(|loaded| loaded.revision);
        let fresh = || shard_manager::assignment::State::new(sample::meta(5000, token));
        let mut state = loaded.map_or_else(fresh, |loaded| loaded.state);
        state.meta.token = token;
        loop {
            let number = revision.map_or(1, |revision| revision.0 + 1);
            state.meta.attempt = number;
            for shard in 0..5000 {
                let shard = shard_manager::types::ShardId(shard);
                state.set_shard(shard, state.shard(shard).raise(shard_manager::types::Epoch(number)));
            }
            let next = store.commit(&fence, revision, &whole(&state)).await.unwrap();
            assert_eq!(next, Revision(number));
            revision = Some(next);
            child::say(number);
        }
    });
}

/// Bits flipped anywhere in a database file lead to an error, or to what was stored; never to a crash or to an empty store.
#[test]
fn flipped_bits_in_the_file_are_an_error_and_never_an_empty_store() {
    let file = File::new();
    let mut process = Process::start("flipped_file", &file.path());
    let mut last = None;
    while let Some(line) = process.line() {
        last = Some(line);
    }
    let status = process.child.wait().unwrap();
    assert!(status.success(), "the child ended with {status} after {last:?}");
    let last = last.unwrap();
    let errors: u32 = last.strip_prefix("errors: ").unwrap().parse().unwrap();
    assert!(errors > 100, "{errors} of 400 flips were seen");
}

pub fn flipped_file_child(path: &Path) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let file = File::new();
        let fence = file.lead().await;
        let database = file.database().await;
        let state = sample::state(2000, fence.token());
        let store = SqliteStore::new(database.clone());
        store.commit(&fence, None, &whole(&state)).await.unwrap();
        database.close().await;
        drop((store, database));
        // With the last connection the log is folded into the file.
        let wal = file.directory.path().join("test.db-wal");
        sample::eventually("the end of the log", async || (!wal.exists()).then_some(())).await;
        let sound = std::fs::read(file.path()).unwrap();

        let mut errors = 0;
        for flip in 0..400 {
            let bit = flip * (sound.len() * 8 / 400) + flip % 8;
            let mut bytes = sound.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            for suffix in ["-wal", "-shm"] {
                std::fs::remove_file(format!("{}{suffix}", path.display())).ok();
            }
            std::fs::write(path, &bytes).unwrap();
            let outcome = async {
                let database = Database::open(path, Duration::from_millis(300)).await?;
                let outcome = SqliteStore::new(database.clone()).load().await;
                database.close().await;
                outcome
            };
            match outcome.await {
                Ok(Some(loaded)) => assert_eq!(loaded.state, state, "bit {bit} changed what was read"),
                Ok(None) => panic!("with bit {bit} flipped the store seems to be empty"),
                Err(error) => {
                    errors += 1;
                    child::say(format!("bit {bit}: {error}"));
                }
            }
        }
        child::say(format!("errors: {errors}"));
    });
}
