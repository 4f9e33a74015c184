use std::os::unix::fs::symlink;
use std::sync::Barrier;
use std::sync::atomic::AtomicU32;

use super::file::{MAGIC, VERSION};
use super::*;

const NEVER: u64 = u64::MAX;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("test.db.leader")
    }

    fn cell(&self) -> LeaderCell {
        LeaderCell::create(&self.path()).unwrap()
    }
}

/// A process that lives until it is dropped. Its pid is not the test's.
struct Sleeper(std::process::Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(std::process::Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn own() -> u32 {
    std::process::id()
}

fn tick(cell: &LeaderCell, times: u32) {
    for _ in 0..times {
        cell.tick();
    }
}

#[track_caller]
fn won(claimed: Result<Claimed, Refused>, by: Vacancy) -> Claim {
    match claimed {
        Ok(Claimed::Won(claim, vacancy)) if vacancy == by => claim,
        other => panic!("{other:?} where {by:?} was expected"),
    }
}

#[track_caller]
fn held(claimed: Result<Claimed, Refused>) -> Leader {
    match claimed {
        Err(Refused::Held(leader)) => *leader,
        other => panic!("{other:?}"),
    }
}

/// Writes the cell's own words as another version of the facts would have them.
fn set(cell: &LeaderCell, owner: Claim, started: u64) {
    cell.page().owner.0.store(owner.0, Ordering::SeqCst);
    cell.write_origin(owner, Origin { started, ..cell.own.1 });
    cell.beat(owner).unwrap();
}

#[test]
fn a_cell_is_claimed_beaten_for_and_given_up() {
    let place = Place::new();
    let cell = place.cell();
    assert_eq!((cell.election_term(), cell.global_tick(), cell.current_leader()), (0, 0, None));
    let claim = won(cell.try_claim(own(), NEVER), Vacancy::Empty);
    assert_eq!((claim.pid(), claim.term()), (own(), 1));
    assert_eq!(cell.try_claim(own(), NEVER).unwrap(), Claimed::Already(claim));
    cell.describe(claim, "a test");
    // Through another mapping of the same file.
    let other = LeaderCell::open(&place.path()).unwrap();
    let leader = other.current_leader().unwrap();
    assert_eq!(leader.to_string(), format!("process {} (a test)", own()));
    assert_eq!((leader.claim, leader.origin, leader.ticks_behind), (claim, Some(Origin::of(own()).unwrap()), 0));
    assert_eq!((other.tick(), other.tick()), (1, 2));
    assert_eq!(cell.ticks_behind(claim), 2);
    cell.beat(claim).unwrap();
    assert_eq!(cell.ticks_behind(claim), 0);
    cell.step_down(claim).unwrap();
    assert_eq!((other.current_leader(), other.election_term()), (None, 1));
    assert_eq!(cell.beat(claim), Err(NotHeld(claim)));
    assert_eq!(cell.step_down(claim), Err(NotHeld(claim)));
    assert_eq!(won(other.try_claim(own(), NEVER), Vacancy::Empty).term(), 2);
}

/// Many claim at once, over and over, for processes of their own: each term has one winner, and terms count the winners.
#[test]
fn of_many_claimants_exactly_one_wins_each_term() {
    const CLAIMANTS: usize = 6;
    const WINS: u64 = 400;
    let place = Place::new();
    let (cell, others) = (place.cell(), (0..CLAIMANTS).map(|_| Sleeper::start()).collect::<Vec<_>>());
    let holders = AtomicU32::new(0);
    let wins = std::sync::Mutex::new(Vec::new());
    let start = Barrier::new(CLAIMANTS);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    std::thread::scope(|scope| {
        for other in &others {
            let (cell, holders, wins, start) = (&cell, &holders, &wins, &start);
            scope.spawn(move || {
                start.wait();
                while cell.election_term() < WINS {
                    assert!(std::time::Instant::now() < deadline, "nobody gets on");
                    let Ok(Claimed::Won(claim, vacancy)) = cell.try_claim(other.pid(), NEVER) else { continue };
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                    assert_eq!((claim.pid(), vacancy), (other.pid(), Vacancy::Empty));
                    wins.lock().unwrap().push(claim.term());
                    cell.describe(claim, &format!("claimant {}", other.pid()));
                    cell.beat(claim).unwrap();
                    holders.fetch_sub(1, Ordering::SeqCst);
                    cell.step_down(claim).unwrap();
                }
            });
        }
    });
    let wins = wins.into_inner().unwrap();
    assert_eq!(wins, (1..=cell.election_term()).collect::<Vec<_>>(), "one winner each, in order");
}

/// The holder of a word is judged, replaced, and its successor gives up: the word that was judged never comes back.
#[test]
fn a_claim_of_long_ago_has_no_effect_on_a_later_one_of_the_same_process() {
    let place = Place::new();
    let cell = place.cell();
    let first = won(cell.try_claim(own(), NEVER), Vacancy::Empty);
    cell.step_down(first).unwrap();
    let second = won(cell.try_claim(own(), NEVER), Vacancy::Empty);
    assert_eq!(first.pid(), second.pid());
    assert_eq!(cell.beat(first), Err(NotHeld(first)));
    assert_eq!(cell.step_down(first), Err(NotHeld(first)));
    cell.describe(first, "long ago");
    assert!(cell.is_held_by(second));
    assert_eq!(cell.current_leader().unwrap().text, None);
}

/// Where nobody ticked there is nothing to write, unless what is there is somebody else's.
#[test]
fn the_first_beat_of_a_successor_is_its_own_though_nobody_ticked() {
    let place = Place::new();
    let cell = place.cell();
    let heartbeat = || cell.page().heartbeat.0.load(Ordering::SeqCst);
    let first = won(cell.try_claim(own(), NEVER), Vacancy::Empty);
    assert!(first.describes(heartbeat()));
    cell.step_down(first).unwrap();
    let second = won(cell.try_claim(own(), NEVER), Vacancy::Empty);
    assert!(second.describes(heartbeat()) && !first.describes(heartbeat()));
}

#[test]
fn a_holder_that_lives_is_left_alone_and_one_that_died_is_not() {
    let place = Place::new();
    let cell = place.cell();
    let mut holder = Sleeper::start();
    let claim = won(cell.try_claim(holder.pid(), NEVER), Vacancy::Empty);
    cell.describe(claim, "a sleeper");
    assert_eq!(held(cell.try_claim(own(), NEVER)).to_string(), format!("process {} (a sleeper)", holder.pid()));
    holder.0.kill().unwrap();
    // Waited for by nobody yet.
    let handle = Handle::of(holder.pid()).unwrap().unwrap();
    let patience = std::time::Instant::now();
    while !handle.has_exited().unwrap() {
        assert!(patience.elapsed().as_secs() < 10);
        std::thread::yield_now();
    }
    let next = won(cell.try_claim(own(), NEVER), Vacancy::Gone);
    assert_eq!(next.term(), claim.term() + 1);
    assert_eq!(cell.beat(claim), Err(NotHeld(claim)));
}

/// Another process has got the pid of a holder that died.
#[test]
fn a_pid_that_is_used_again_does_not_keep_the_cell() {
    let place = Place::new();
    let cell = place.cell();
    let other = Sleeper::start();
    let started = Origin::of(other.pid()).unwrap().started;
    set(&cell, Claim::of(other.pid(), 7), started);
    held(cell.try_claim(own(), NEVER));
    set(&cell, Claim::of(other.pid(), 7), started - 1);
    assert_eq!(won(cell.try_claim(own(), NEVER), Vacancy::Gone).term(), 8);
    // And it may be the claimant itself that has it now.
    set(&cell, Claim::of(own(), 9), cell.own.1.started - 1);
    assert_eq!(won(cell.try_claim(own(), NEVER), Vacancy::Gone).term(), 10);
}

#[test]
fn a_cell_of_an_earlier_boot_is_nobodys() {
    let place = Place::new();
    let cell = place.cell();
    let other = Sleeper::start();
    let (claim, origin) = (Claim::of(other.pid(), 3), Origin::of(other.pid()).unwrap());
    set(&cell, claim, origin.started);
    cell.write_origin(claim, Origin { boot: !origin.boot, ..origin });
    assert_eq!(won(cell.try_claim(own(), NEVER), Vacancy::Gone).term(), 4);
}

/// In another container the same pid is another process, dead or alive: only the heartbeat counts.
#[test]
fn a_pid_of_another_namespace_says_nothing() {
    let place = Place::new();
    let cell = place.cell();
    let (claim, origin) = (Claim::of(own(), 3), cell.own.1);
    set(&cell, claim, 1);
    cell.write_origin(claim, Origin { started: 1, namespace: !origin.namespace, ..origin });
    held(cell.try_claim(own(), 5));
    tick(&cell, 6);
    won(cell.try_claim(own(), 5), Vacancy::Hung);
}

#[test]
fn a_heartbeat_counts_as_standing_still_only_beyond_the_grace() {
    let place = Place::new();
    let cell = place.cell();
    let other = Sleeper::start();
    let claim = won(cell.try_claim(other.pid(), NEVER), Vacancy::Empty);
    for _ in 0..5 {
        cell.tick();
        held(cell.try_claim(own(), 5));
    }
    cell.beat(claim).unwrap();
    tick(&cell, 5);
    assert_eq!(held(cell.try_claim(own(), 5)).ticks_behind, 5);
    cell.tick();
    held(cell.try_claim(own(), NEVER));
    let next = won(cell.try_claim(own(), 5), Vacancy::Hung);
    assert_eq!(cell.beat(claim), Err(NotHeld(claim)), "it wakes");
    assert_eq!(cell.ticks_behind(next), 0, "a claim begins with a beat");
}

/// It died between its swap and everything else: what stands in the cell still describes its predecessor.
#[test]
fn a_claimant_that_dies_right_after_its_swap_blocks_nobody_for_longer_than_the_grace() {
    let place = Place::new();
    let cell = place.cell();
    let mut dead = Sleeper::start();
    let before = won(cell.try_claim(own(), NEVER), Vacancy::Empty);
    cell.describe(before, "the one before");
    tick(&cell, 20);
    let silent = Claim::of(dead.pid(), before.term() + 1);
    cell.page().owner.0.store(silent.0, Ordering::SeqCst);
    // While its process lives it is not blamed for the heartbeat of the one before.
    let leader = held(cell.try_claim(own(), 5));
    assert_eq!((leader.origin, leader.text, leader.ticks_behind), (None, None, 0));
    tick(&cell, 5);
    held(cell.try_claim(own(), 5));
    cell.tick();
    let next = won(cell.try_claim(own(), 5), Vacancy::Hung);
    // Nobody has its pid here, but where it came from is not known: it may live in another container.
    cell.page().owner.0.store(Claim::of(dead.pid(), next.term() + 1).0, Ordering::SeqCst);
    dead.0.kill().unwrap();
    dead.0.wait().unwrap();
    held(cell.try_claim(own(), 5));
    tick(&cell, 6);
    won(cell.try_claim(own(), 5), Vacancy::Hung);
}

/// Both see the `/proc` of the host: neither knows anything about the other's pid.
#[test]
fn where_pids_mean_nothing_nobody_is_gone_by_its_pid() {
    let place = Place::new();
    let mut cell = place.cell();
    let mut dead = Sleeper::start();
    cell.own.1.namespace = 0;
    let owner = Claim::of(dead.pid(), 1);
    set(&cell, owner, 1);
    dead.0.kill().unwrap();
    dead.0.wait().unwrap();
    held(cell.try_claim(own(), NEVER));
    // Nor where it has the same pid.
    set(&cell, Claim::of(own(), 2), 1);
    held(cell.try_claim(own(), 5));
    tick(&cell, 6);
    won(cell.try_claim(own(), 5), Vacancy::Hung);
}

/// A holder of before was stopped in the middle of a beat or a description, and finishes it now.
#[test]
fn what_is_written_late_for_an_earlier_term_counts_as_not_known() {
    let place = Place::new();
    let cell = place.cell();
    let first = won(cell.try_claim(own(), NEVER), Vacancy::Empty);
    tick(&cell, 9);
    cell.step_down(first).unwrap();
    let second = won(cell.try_claim(own(), NEVER), Vacancy::Empty);
    cell.describe(second, "the second");
    cell.page().heartbeat.0.store(first.tagged(1), Ordering::SeqCst);
    assert_eq!(cell.ticks_behind(second), 0, "not eight, nor a beat of nobody");
    cell.tick();
    assert_eq!(cell.ticks_behind(second), 1, "counted from when it was found");
    cell.page().text.0[0].store(u64::from_ne_bytes(*b"nonsense"), Ordering::SeqCst);
    assert_eq!(cell.current_leader().unwrap().text, None, "torn");
    cell.write_origin(first, Origin { started: 1, ..cell.own.1 });
    assert_eq!(cell.current_leader().unwrap().origin, None);
    cell.describe(second, "the second");
    let leader = cell.current_leader().unwrap();
    assert_eq!((leader.text.as_deref(), leader.origin), (Some("the second"), Some(cell.own.1)));
}

#[test]
fn a_lower_pid_preempts_only_where_it_was_asked_to() {
    let place = Place::new();
    let (cell, eager) = (place.cell(), place.cell().with_preemption(true));
    let (one, other) = (Sleeper::start(), Sleeper::start());
    let (low, high) = (one.pid().min(other.pid()), one.pid().max(other.pid()));
    let claim = won(cell.try_claim(high, NEVER), Vacancy::Empty);
    held(cell.try_claim(low, NEVER));
    won(eager.try_claim(low, NEVER), Vacancy::Preempted);
    held(eager.try_claim(high, NEVER));
    assert_eq!(cell.beat(claim), Err(NotHeld(claim)));
}

#[test]
fn who_is_no_process_claims_nothing() {
    let place = Place::new();
    let cell = place.cell();
    for pid in [0, MAX_PID + 1, u32::MAX] {
        assert!(matches!(cell.try_claim(pid, 5), Err(Refused::Claimant { source: None, .. })), "{pid}");
    }
    let mut dead = Sleeper::start();
    dead.0.kill().unwrap();
    dead.0.wait().unwrap();
    assert!(matches!(cell.try_claim(dead.pid(), 5), Err(Refused::Claimant { source: Some(_), .. })));
    cell.page().owner.0.store(MAX_TERM, Ordering::SeqCst);
    assert!(matches!(cell.try_claim(own(), 5), Err(Refused::Exhausted)));
}

/// However many tick, as long as each looks once in a while T of its own, two ticks are at least T apart.
#[test]
fn many_who_wait_tick_no_faster_than_one() {
    const PERIOD: u64 = 10;
    let place = Place::new();
    let cell = place.cell();
    // When each looks next, and what it saw last.
    let mut standbys = [(10, 0), (13, 0), (13, 0), (17, 0)];
    let mut ticked = Vec::new();
    for now in 0..1000 {
        for (which, (look, seen)) in standbys.iter_mut().enumerate() {
            // The first one, which ticked so far, is stopped for a while, and looks once when it wakes.
            let stopped = which == 0 && (300..405).contains(&now);
            if now < *look || stopped {
                continue;
            }
            let before = cell.global_tick();
            *seen = cell.tick_after(*seen);
            *look = now + PERIOD;
            if cell.global_tick() != before {
                ticked.push(now);
            }
        }
    }
    assert!(ticked.windows(2).all(|two| two[1] - two[0] >= PERIOD), "{ticked:?}");
    assert!(ticked.len() > 90, "and it does tick: {ticked:?}");
}

/// Anything but a cell is refused, named, and left as it is.
#[test]
fn what_is_no_cell_is_refused_and_left_alone() {
    let page = |magic: u64, version: u64| {
        let mut bytes = vec![0xff; FILE_BYTES as usize];
        bytes[..8].copy_from_slice(&magic.to_ne_bytes());
        bytes[8..16].copy_from_slice(&version.to_ne_bytes());
        bytes
    };
    type Is = fn(&Reason) -> bool;
    let cases: [(Vec<u8>, Is); 7] = [
        (b"4711\nprocess 4711 on a host\n".to_vec(), |why| matches!(why, Reason::Length(28))),
        (page(MAGIC, VERSION)[..4095].to_vec(), |why| matches!(why, Reason::Length(4095))),
        (page(MAGIC, VERSION)[..3].to_vec(), |why| matches!(why, Reason::Length(3))),
        ([page(MAGIC, VERSION), vec![0]].concat(), |why| matches!(why, Reason::Length(4097))),
        (page(u64::from_ne_bytes(*b"SQLite f"), VERSION), |why| matches!(why, Reason::Foreign(_))),
        (page(0, VERSION), |why| matches!(why, Reason::Foreign(0))),
        (page(MAGIC, VERSION + 1), |why| matches!(why, Reason::Version(2))),
    ];
    for (bytes, is_why) in cases {
        let place = Place::new();
        std::fs::write(place.path(), &bytes).unwrap();
        for opened in [LeaderCell::create(&place.path()), LeaderCell::open(&place.path())] {
            let error = opened.unwrap_err();
            assert!(is_why(&error.why), "{error:?}");
            assert!(error.to_string().contains("test.db.leader"), "{error}");
        }
        assert_eq!(std::fs::read(place.path()).unwrap(), bytes);
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let place = Place::new();
    let why = || LeaderCell::create(&place.path()).unwrap_err().why;
    std::fs::create_dir(place.path()).unwrap();
    assert!(matches!(why(), Reason::Kind("a directory")));
    std::fs::remove_dir(place.path()).unwrap();
    symlink(place.0.path().join("elsewhere"), place.path()).unwrap();
    assert!(matches!(why(), Reason::Kind("a symbolic link")));
    std::fs::remove_file(place.path()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(place.path()).status().unwrap();
    assert!(made.success());
    assert!(matches!(why(), Reason::Kind("no regular file")));
    std::fs::remove_file(place.path()).unwrap();
    assert!(
        matches!(LeaderCell::open(&place.path()).unwrap_err().why, Reason::Io(error) if error.kind() == io::ErrorKind::NotFound)
    );
    assert!(!place.path().exists());
}

/// An empty one is what an earlier release leaves behind; one of zeros is of a process that died while it made a cell.
#[test]
fn an_empty_or_unfinished_file_becomes_a_cell() {
    let mut unfinished = vec![0; FILE_BYTES as usize];
    unfinished[8] = 1;
    for bytes in [Vec::new(), vec![0; 100], unfinished[..9].to_vec(), unfinished.clone()] {
        let place = Place::new();
        std::fs::write(place.path(), &bytes).unwrap();
        assert!(LeaderCell::open(&place.path()).is_err(), "{} bytes: nobody has made it yet", bytes.len());
        won(place.cell().try_claim(own(), NEVER), Vacancy::Empty);
        assert_eq!(std::fs::metadata(place.path()).unwrap().len(), FILE_BYTES);
    }
}

/// Whoever comes late must not form anew what somebody has claimed already.
#[test]
fn a_cell_is_made_once_however_many_make_it() {
    for _ in 0..50 {
        let place = Place::new();
        let start = Barrier::new(3);
        let claims: Vec<_> = std::thread::scope(|scope| {
            let makers = [(); 3].map(|()| {
                scope.spawn(|| {
                    start.wait();
                    let cell = place.cell();
                    let claimed = cell.try_claim(own(), NEVER);
                    assert_eq!(cell.displaced(), None);
                    (cell, claimed)
                })
            });
            makers.into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        let winners = claims.iter().filter(|(_, claimed)| matches!(claimed, Ok(Claimed::Won(..)))).count();
        assert_eq!(winners, 1);
        // The origin may not be written yet when the others look: then the claim counts as somebody's who lives.
        let expected = |claimed: &Result<Claimed, Refused>| matches!(claimed, Ok(_) | Err(Refused::Held(_)));
        assert!(claims.iter().all(|(_, claimed)| expected(claimed)), "{claims:?}");
    }
}

#[test]
fn a_file_that_is_deleted_replaced_or_cut_short_is_noticed() {
    let place = Place::new();
    let cell = place.cell();
    assert_eq!(cell.displaced(), None);
    File::options().write(true).open(place.path()).unwrap().set_len(100).unwrap();
    assert!(cell.displaced().unwrap().contains("was cut short to 100 bytes"));
    std::fs::remove_file(place.path()).unwrap();
    assert!(cell.displaced().is_some());
    let cell = place.cell();
    std::fs::remove_file(place.path()).unwrap();
    assert!(cell.displaced().unwrap().contains("was deleted"));
    let _other = place.cell();
    assert!(cell.displaced().unwrap().contains("was replaced"));
}

#[test]
fn a_long_description_is_cut_at_a_character() {
    let place = Place::new();
    let cell = place.cell();
    let claim = won(cell.try_claim(own(), NEVER), Vacancy::Empty);
    let long = "é".repeat(TEXT_BYTES);
    cell.describe(claim, &long[..]);
    assert_eq!(cell.current_leader().unwrap().text.unwrap(), "é".repeat(TEXT_BYTES / 2));
    cell.describe(claim, "short");
    assert_eq!(cell.current_leader().unwrap().text.unwrap(), "short");
    cell.describe(claim, "");
    assert_eq!(cell.current_leader().unwrap().text.unwrap(), "");
}
