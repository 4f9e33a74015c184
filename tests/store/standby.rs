//! Standbys beside a database file whose leader is killed, stopped, or steps down. Leaders and standbys that are to be broken are real
//! processes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use shard_manager::backend::Fence;
use shard_manager::backend::sqlite::Database;
use shard_manager::clock;
use shard_manager::election::host::cell::{Claimed, LeaderCell};
use shard_manager::election::host::{HostElection, Options};
use shard_manager::election::{Candidacy, Election, Error, Leadership, Lost, Patience};
use shard_manager::store::sqlite::SqliteStore;
use shard_manager::store::{self, Store};
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::child::{self, Process};
use crate::host::{number, options};
use crate::sample::{self, whole};
use crate::sqlite::File;

/// Short, for those whose silence is to be noticed.
const GRACE: Duration = Duration::from_millis(400);
/// For whatever has no bound of its own.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a machine with two busy cores may be late by.
const SLACK: Duration = Duration::from_millis(500);
/// Half of it is waited for a lock.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(200);

fn waiting() -> Options {
    with(options(), |candidacy| candidacy.patience = Patience::Wait)
}

fn with(mut options: Options, change: impl FnOnce(&mut Candidacy)) -> Options {
    change(&mut options.candidacy);
    options
}

fn short() -> Options {
    Options { grace: GRACE, ..waiting() }
}

async fn election(path: &Path, options: Options) -> HostElection {
    HostElection::new(Database::open(path, REQUEST_TIMEOUT).await.unwrap(), options)
}

/// A campaign that waits by now: it knows whom it waits for. With its result comes when it was won.
async fn standby(path: &Path, options: Options) -> JoinHandle<(Result<Leadership, Error>, Instant)> {
    let election = election(path, options).await;
    let mut leader = election.leader().unwrap();
    let campaign = tokio::spawn(async move {
        let outcome = election.campaign(&CancellationToken::new()).await;
        (outcome, Instant::now())
    });
    timeout(PATIENCE, leader.wait_for(Option::is_some)).await.unwrap().unwrap();
    campaign
}

async fn won(campaign: JoinHandle<(Result<Leadership, Error>, Instant)>) -> (Leadership, Instant) {
    let (outcome, at) = timeout(PATIENCE, campaign).await.unwrap().unwrap();
    (outcome.unwrap_or_else(|error| panic!("{error}: {:?}", std::error::Error::source(&error))), at)
}

fn cell(file: &File) -> LeaderCell {
    LeaderCell::open(&file.directory.path().join("test.db.leader")).unwrap()
}

fn signal(process: &Process, signal: Signal) {
    kill_process(Pid::from_child(&process.child), signal).unwrap();
}

/// SIGSTOP; returns once it is in force.
async fn stop(process: &Process) {
    signal(process, Signal::STOP);
    until("it is stopped", || state(process) == Some('T')).await;
}

fn state(process: &Process) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.child.id())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Leads until it is killed or loses it; where asked to, with the database's write lock, as one has it in the middle of a commit.
pub fn leading_child(path: &Path, in_commit: bool) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut leadership = runtime.block_on(async {
        let leadership = election(path, short()).await.campaign(&CancellationToken::new()).await;
        leadership.unwrap_or_else(|error| panic!("{error}"))
    });
    let _lock = in_commit.then(|| {
        runtime.block_on(async {
            let mut connection = SqliteConnectOptions::new().filename(path).connect().await.unwrap();
            sqlx::raw_sql("BEGIN IMMEDIATE; UPDATE leader SET holder = 'never'").execute(&mut connection).await.unwrap();
            connection
        })
    });
    child::say(number(&leadership));
    std::thread::spawn(|| {
        child::wait_for_parent();
        std::process::exit(0);
    });
    child::say(runtime.block_on(leadership.lost()));
    drop(leadership);
    child::wait_for_parent();
}

/// Waits, says so, and says when it leads.
pub fn waiting_child(path: &Path) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    std::thread::spawn(|| {
        child::wait_for_parent();
        std::process::exit(0);
    });
    runtime.block_on(async {
        let campaign = standby(path, short()).await;
        child::say("waits");
        let (mut leadership, _) = won(campaign).await;
        child::say("leads");
        leadership.lost().await;
    });
}

fn drawn(leader: &mut Process) -> i64 {
    leader.line().unwrap().parse().unwrap()
}

/// No time-out has any part in it: the grace is ten minutes, and the tick a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_killed_and_the_standby_leads_at_once() {
    let file = File::new();
    let mut leader = Process::start("lead", &file.path());
    let before = drawn(&mut leader);
    let options = Options { tick: Duration::from_secs(60), ..waiting() };
    let campaign = standby(&file.path(), options).await;
    // Not waited for: a zombie is dead too.
    leader.child.kill().unwrap();
    let killed = Instant::now();
    let (leadership, at) = won(campaign).await;
    assert!(at - killed < SLACK, "it took {:?}", at - killed);
    assert_eq!(number(&leadership), before + 1);
    assert_eq!(leadership.takeover_grace(), Duration::ZERO, "the dead believe nothing");
    assert_eq!(cell(&file).election_term(), 2);
}

/// Neither of them looks for a minute: the one who steps down wakes the one who waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_steps_down_and_the_standby_leads_at_once() {
    let file = File::new();
    let options = || Options { tick: Duration::from_secs(60), ..waiting() };
    let first = election(&file.path(), options()).await.campaign(&CancellationToken::new()).await.unwrap();
    let campaign = standby(&file.path(), options()).await;
    let released = Instant::now();
    first.release().await.unwrap();
    let (second, at) = won(campaign).await;
    assert!(at - released < SLACK, "it took {:?}", at - released);
    // Dropped is given up too.
    let campaign = standby(&file.path(), options()).await;
    drop(second);
    won(campaign).await;
}

/// Case 69: it is stopped in the middle of a commit, with the write lock. It is killed, and then it is like any that died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_stopped_in_a_commit_and_the_standby_kills_it() {
    let file = File::new();
    let mut leader = Process::start("lead_in_commit", &file.path());
    let before = drawn(&mut leader);
    let campaign = standby(&file.path(), short()).await;
    stop(&leader).await;
    let stopped = Instant::now();
    let (leadership, at) = won(campaign).await;
    let took = at - stopped;
    assert!(took > GRACE - Duration::from_millis(100) && took < GRACE + SLACK, "it took {took:?}");
    assert_eq!(leader.child.wait().unwrap().signal(), Some(9));
    assert_eq!(number(&leadership), before + 1, "what it had begun to write is gone");
    assert_eq!(leadership.takeover_grace(), Duration::ZERO);
}

/// Case 69 without the kill: the standby claims the cell and waits for the lock, which is free when the other one goes on. That one is told
/// at once, and its writes are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_stopped_in_a_commit_and_not_killed() {
    let file = File::new();
    let mut leader = Process::start("lead_in_commit", &file.path());
    let before = drawn(&mut leader);
    let failures = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&failures);
    let count = move || {
        counted.fetch_add(1, Ordering::SeqCst);
    };
    let campaign =
        standby(&file.path(), with(Options { kill_hung: false, ..short() }, |candidacy| candidacy.on_failure = Arc::new(count)))
            .await;
    stop(&leader).await;
    until("the standby has found the database locked", || failures.load(Ordering::SeqCst) >= 2).await;
    assert!(!campaign.is_finished());
    assert_eq!(cell(&file).current_leader().unwrap().claim.pid(), std::process::id(), "it has claimed the cell, and keeps it");
    signal(&leader, Signal::CONT);
    let said = leader.line().unwrap();
    assert!(said.contains("was taken away") && said.contains(&format!("process {}", std::process::id())), "{said}");
    // Its lock goes with its process.
    leader.kill();
    let (leadership, _) = won(campaign).await;
    assert_eq!(number(&leadership), before + 1);
    assert_eq!(leadership.takeover_grace(), GRACE, "the one before may have believed in itself until its next beat");
}

/// Who must not wait must not kill either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_campaign_that_does_not_wait_leaves_a_stopped_leader_alone() {
    let file = File::new();
    let mut leader = Process::start("lead_shortly", &file.path());
    drawn(&mut leader);
    stop(&leader).await;
    let cell = cell(&file);
    for _ in 0..1000 {
        cell.tick();
    }
    let outcome = election(&file.path(), with(short(), |candidacy| candidacy.patience = Patience::FailAtOnce)).await;
    let outcome = outcome.campaign(&CancellationToken::new()).await;
    assert!(matches!(outcome, Err(Error::HeldElsewhere { holder, .. }) if holder.contains(&leader.child.id().to_string())));
    assert_eq!(state(&leader), Some('T'));
}

/// A laptop sleeps: leader and standby are stopped together, for longer than the grace. However they wake, nobody is blamed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_and_standby_are_stopped_together_and_the_leader_goes_on() {
    let file = File::new();
    let mut leader = Process::start("lead_shortly", &file.path());
    drawn(&mut leader);
    let mut standby = Process::start("stand_by", &file.path());
    assert_eq!(standby.line().as_deref(), Some("waits"));
    let cell = cell(&file);
    for _ in 0..3 {
        stop(&standby).await;
        stop(&leader).await;
        let tick = cell.global_tick();
        tokio::time::sleep(GRACE * 2).await;
        signal(&standby, Signal::CONT);
        // The standby is first, and finds a heartbeat that is long past by the wall.
        until("the standby has looked again", || cell.global_tick() > tick).await;
        signal(&leader, Signal::CONT);
        until("the leader beats again", || cell.ticks_behind(cell.current_leader().unwrap().claim) == 0).await;
        let tick = cell.global_tick();
        until("a grace has passed", || cell.global_tick() > tick + 20).await;
        assert_eq!((cell.election_term(), cell.current_leader().unwrap().claim.pid()), (1, leader.child.id()));
    }
    leader.child.kill().unwrap();
    assert_eq!(standby.line().as_deref(), Some("leads"));
}

/// Opens the cell, and says what came of it.
pub fn looking_child(path: &Path) {
    let mut name = path.as_os_str().to_owned();
    name.push(".leader");
    match LeaderCell::create(Path::new(&name)) {
        Ok(_) => child::say("opened"),
        Err(error) => child::say(format!("{error}: {}", error.why)),
    }
}

/// Two users: the file of one, who did not mean to share it, is refused to the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cell_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let file = File::new();
    election(&file.path(), options()).await.campaign(&CancellationToken::new()).await.unwrap().release().await.unwrap();
    std::fs::set_permissions(file.directory.path(), Permissions::from_mode(0o755)).unwrap();
    let said = Process::start_as_nobody("look_at_cell", &file.path()).line().unwrap();
    assert!(said.contains("test.db.leader cannot be used: every process that may lead must be able to"), "{said}");
}

/// Two users who share the file: the leader of one hangs, and the other must not kill it. It takes over all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_of_another_user_is_not_killed() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let file = File::new();
    let mut leader = Process::start("lead_shortly", &file.path());
    drawn(&mut leader);
    std::fs::set_permissions(file.directory.path(), Permissions::from_mode(0o777)).unwrap();
    for entry in std::fs::read_dir(file.directory.path()).unwrap() {
        std::fs::set_permissions(entry.unwrap().path(), Permissions::from_mode(0o666)).unwrap();
    }
    let mut standby = Process::start_as_nobody("stand_by", &file.path());
    assert_eq!(standby.line().as_deref(), Some("waits"));
    stop(&leader).await;
    assert_eq!(standby.line().as_deref(), Some("leads"));
    assert_eq!(state(&leader), Some('T'));
    signal(&leader, Signal::CONT);
    assert!(leader.line().unwrap().contains("was taken away"));
}

/// The task that beats is healthy, and beats for nobody: the leadership ends with its grace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_coordinator_hangs_stops_believing_and_gives_up() {
    let file = File::new();
    let options = short();
    let pulse = options.candidacy.pulse.clone();
    let mut leadership = election(&file.path(), options).await.campaign(&CancellationToken::new()).await.unwrap();
    let belief = leadership.belief();
    let first = belief.deadline();
    until("beats move the deadline on", || belief.deadline() > first).await;
    pulse.beat();
    let hung = Instant::now();
    let lost = timeout(PATIENCE, leadership.lost()).await.unwrap();
    assert!(matches!(&lost, Lost::Expired(why) if why.contains("has not turned")), "{lost}");
    assert!(hung.elapsed() < GRACE + SLACK, "it took {:?}", hung.elapsed());
    assert!(belief.deadline() <= clock::now());
}

/// The cell's file is deleted, and a standby leads beside the old leader for a moment: the old one is fenced, and told by the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cell_is_deleted_under_a_leader_with_a_standby() {
    let file = File::new();
    let mut first = election(&file.path(), waiting()).await.campaign(&CancellationToken::new()).await.unwrap();
    let store = SqliteStore::new(file.database().await);
    let state = sample::state(10, first.fence().token());
    let revision = store.commit(first.fence(), None, &whole(&state)).await.unwrap();
    let campaign = standby(&file.path(), waiting()).await;
    std::fs::remove_file(file.directory.path().join("test.db.leader")).unwrap();
    let lost = timeout(PATIENCE, first.lost()).await.unwrap();
    assert!(
        matches!(&lost, Lost::Taken(why) if why.contains("test.db.leader was deleted") || why.contains("was replaced")),
        "{lost}"
    );
    let (second, _) = won(campaign).await;
    assert_eq!(second.takeover_grace(), waiting().grace, "how it came to be new is not known");
    let outcome = store.commit(first.fence(), Some(revision), &whole(&sample::next(&state))).await;
    assert!(matches!(outcome, Err(store::Error::LeadershipLost)), "{outcome:?}");
    first.release().await.unwrap();
    assert!(cell(&file).current_leader().is_some(), "the loser's release is not the winner's");
}

/// The cell is new and its first claimant dies before it has drawn a number: the next one knows no more about who led by the old cell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claimant_of_a_new_cell_that_dies_early_leaves_the_grace_to_the_next() {
    let file = File::new();
    let path = file.directory.path().join("test.db.leader");
    let (database, shutdown) = (file.path(), CancellationToken::new());
    let first = election(&database, short()).await.campaign(&shutdown).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let cell = LeaderCell::create(&path).unwrap();
    let Ok(Claimed::Won(early, _)) = cell.try_claim(std::process::id(), u64::MAX) else { panic!("it is new") };
    cell.step_down(early).unwrap();
    let second = election(&database, short()).await.campaign(&shutdown).await.unwrap();
    assert_eq!((number(&second), second.takeover_grace()), (2, GRACE));
    assert!(!cell.is_settled());
    until("a grace has passed", || cell.is_settled()).await;
    second.release().await.unwrap();
    let third = election(&database, short()).await.campaign(&shutdown).await.unwrap();
    assert_eq!(third.takeover_grace(), Duration::ZERO);
    drop(first);
}

/// Ten wait, and the one who leads is killed over and over: each time exactly one follows, by one number more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_wait_one_follows() {
    let file = File::new();
    let mut leader = Process::start("lead", &file.path());
    let before = drawn(&mut leader);
    let mut campaigns = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let election = election(&file.path(), waiting()).await;
        let mut known = election.leader().unwrap();
        campaigns.spawn(async move { election.campaign(&CancellationToken::new()).await });
        timeout(PATIENCE, known.wait_for(Option::is_some)).await.unwrap().unwrap();
    }
    leader.child.kill().unwrap();
    for follower in 1..=10 {
        let won = timeout(PATIENCE, campaigns.join_next()).await.unwrap().unwrap().unwrap().unwrap();
        let Fence::Sql { number, .. } = won.fence() else { panic!("{:?}", won.fence()) };
        assert_eq!(*number, before + follower, "one each, and nobody drew in vain");
        assert!(campaigns.try_join_next().is_none(), "two lead");
        won.release().await.unwrap();
    }
}

/// Asked to end, whoever waits ends at once, and leaves nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_asked_to_end() {
    let file = File::new();
    let first = election(&file.path(), waiting()).await.campaign(&CancellationToken::new()).await.unwrap();
    let shutdown = CancellationToken::new();
    let second = election(&file.path(), waiting()).await;
    let mut leader = second.leader().unwrap();
    let asked = shutdown.clone();
    let campaign = tokio::spawn(async move { second.campaign(&asked).await });
    timeout(PATIENCE, leader.wait_for(|leader| leader.as_deref() == Some("a test"))).await.unwrap().unwrap();
    shutdown.cancel();
    assert!(matches!(timeout(SLACK, campaign).await.unwrap().unwrap(), Err(Error::Cancelled)));
    first.release().await.unwrap();
    assert_eq!(cell(&file).current_leader(), None);
}
