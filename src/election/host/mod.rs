//! Leadership on one host: any number of processes beside one SQLite file, of which one leads.
//!
//! ```text
//! open the cell ─ claim it ─┬─ won: beat ─ draw a number in the database ─ leadership: a task goes on beating
//!                           └─ held: wait for the holder's end (its pidfd), its step-down (inotify), or its silence (ticks)
//! ```
//!
//! The [`cell`] beside the database only settles who *tries*. What fences is the number that each leadership draws in the database after
//! its claim (P1): whoever gets around the cell, by deleting its file for one, takes the leadership over, and never shares it. A leader
//! reads the number again and again, so that it ends soon also where it has nothing to write.
//!
//! **Time.** A leader beats once a tick, and believes in itself until a grace after its last beat, by CLOCK_BOOTTIME (L4). Standbys move
//! the global tick on, and count for how many ticks the heartbeat stands still; two ticks are never closer than `tick`, so a grace in
//! ticks is no shorter than the grace that the leader counts. A stopped or suspended standby counts nothing meanwhile. A leader that was
//! stopped or suspended itself, together with everybody who could have blamed it, still holds the cell when it wakes, and goes on.
//!
//! **A hung leader** is killed first, because it may hold the database's write lock, and is then gone like any other. Where it is not
//! killed, it may wake at any moment and believe in itself until its next beat, so the new leadership says so as its
//! [`Leadership::takeover_grace`].

pub mod cell;
pub mod process;
mod standby;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use self::cell::{Claim, LeaderCell, Vacancy};
use self::process::Origin;
use self::standby::Bell;
use super::candidacy::{Candidacy, KnownLeader, Said};
use super::{Belief, Election, Error, Holder, Leadership, Lost, Patience};
use crate::backend::sqlite::{Database, leader_file};
use crate::backend::{self, BoxError, Fence};
use crate::clock;
use crate::types::{BootInstant, Token};

/// How often a leader writes its description again, in case somebody wrote over it.
const DESCRIBE_EVERY: Duration = Duration::from_secs(1);
/// How often a leader looks whether the number drawn last is still its own. It may be long until it writes something and is told.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause after a database did not let a number be drawn; waiting for its lock comes on top.
const DRAW_PAUSE: Duration = Duration::from_millis(20);
/// How long one who stepped down lets others go first: they are woken within milliseconds.
const COURTESY: Duration = Duration::from_millis(500);

/// What an election is run with.
#[derive(Clone)]
pub struct Options {
    /// How often a leader beats and a standby looks. The same in all processes beside a database.
    pub tick: Duration,
    /// How long a heartbeat may stand still: at least 5 ticks. The same in all processes beside a database.
    pub grace: Duration,
    /// Whether a standby kills a leader whose heartbeat stood still for the grace. Never where there is no patience.
    pub kill_hung: bool,
    /// Who stands, and how. A database that did not let a number be drawn is an attempt that failed.
    pub candidacy: Candidacy,
}

/// See the module.
pub struct HostElection {
    database: Arc<Database>,
    options: Options,
    leader: KnownLeader,
    /// Of this process, where it can be found out.
    own_origin: Option<Origin>,
}

impl HostElection {
    /// An election for the leadership of `database`, whose file it lies beside.
    pub fn new(database: Arc<Database>, options: Options) -> HostElection {
        HostElection { database, options, leader: KnownLeader::unknown(), own_origin: Origin::of(std::process::id()).ok() }
    }

    async fn compete(&self) -> Result<Leadership, Error> {
        loop {
            if let Some(reason) = self.database.displaced() {
                return Err(Error::Displaced(reason));
            }
            let path = leader_file(self.database.path());
            // Making the file may wait for the disk, and for another process that is at it.
            let cell = tokio::task::spawn_blocking(move || LeaderCell::create(&path)).await;
            let cell = cell.map_err(|error| store_error("opening the leader cell", error))?;
            let cell = Arc::new(cell.map_err(|error| store_error("opening the leader cell", error))?);
            let bell = Bell::on(&cell);
            let Some((claim, vacancy)) = self.win(&cell, &bell).await? else { continue };
            if let Some(leadership) = self.take_office(HeldClaim { cell, claim }, bell, vacancy).await? {
                return Ok(leadership);
            }
        }
    }

    /// From the claim to the number. `None`: the claim was lost on the way.
    async fn take_office(&self, held: HeldClaim, bell: Bell, vacancy: Vacancy) -> Result<Option<Leadership>, Error> {
        info!(term = held.claim.term(), ?vacancy, "the leader cell was claimed");
        let deadline = Arc::new(watch::Sender::new(clock::now().after(self.options.grace)));
        let belief = Belief(deadline.subscribe());
        let (lose, mut lost) = oneshot::channel();
        let keeper = Keeper {
            database: Arc::clone(&self.database),
            cell: Arc::clone(&held.cell),
            claim: held.claim,
            options: self.options.clone(),
            deadline,
        };
        // From here on, also while the database keeps this waiting: somebody else would take it for hung.
        let (say_drawn, is_drawn) = oneshot::channel();
        let keeping = AbortOnDropHandle::new(tokio::spawn(async move {
            let reason = tokio::select! {
                reason = keeper.keep(&bell) => reason,
                // Beside it: no read that takes long holds up a beat.
                reason = keeper.overtaken(is_drawn) => reason,
            };
            // Nothing is to be believed in any more (L4).
            keeper.deadline.send_replace(BootInstant::default());
            // Nobody may be listening any more.
            lose.send(reason).ok();
        }));
        let token = Token::draw();
        let number = tokio::select! {
            biased;
            reason = &mut lost => {
                let reason = reason.unwrap_or_else(|_| Lost::Taken("the task that keeps it ended".to_owned()));
                warn!(error = &reason as &dyn std::error::Error, "the leader cell was lost before a number was drawn");
                return Ok(None);
            }
            drawn = self.draw(token) => drawn?,
        };
        // It may live still and believe in itself. Of whoever led by another cell, beside a database that was led, nobody knows.
        let may_believe = vacancy == Vacancy::Hung || (!held.cell.is_settled() && number > 1);
        let grace = if may_believe { self.options.grace } else { Duration::ZERO };
        let fence = Fence::Sql { number, token };
        // Where the task has ended, the leadership is lost, and says so.
        say_drawn.send(Drawn { number, token, grace }).ok();
        let holder = Box::new(HostHolder { keeping, held });
        Ok(Some(Leadership::new(fence, belief, lost, holder).with_takeover_grace(grace)))
    }

    /// Draws the number that fences. Whoever may wait does so for a database that is locked, by a hung leader perhaps, and says so.
    async fn draw(&self, token: Token) -> Result<i64, Error> {
        let mut said = Said::default();
        loop {
            let error = match self.database.draw_leadership(token, &self.options.candidacy.holder).await {
                Ok(number) => return Ok(number),
                Err(error) => error,
            };
            let may_pass =
                matches!(error, backend::Error::Unavailable { .. }) && self.options.candidacy.patience == Patience::Wait;
            if !may_pass {
                return Err(store_error("drawing a leadership number", error));
            }
            (self.options.candidacy.on_failure)();
            if said.is_due(false, self.options.candidacy.announce_every) {
                let error = &error as &dyn std::error::Error;
                warn!(error, "the leader cell is claimed, but the database does not let a number be drawn; waiting for it");
            }
            sleep(DRAW_PAUSE).await;
        }
    }
}

#[async_trait::async_trait]
impl Election for HostElection {
    async fn campaign(&self, shutdown: &CancellationToken) -> Result<Leadership, Error> {
        self.options.candidacy.pulse.rest();
        tokio::select! {
            biased;
            () = shutdown.cancelled() => Err(Error::Cancelled),
            outcome = self.compete() => outcome,
        }
    }

    fn leader(&self) -> Option<watch::Receiver<Option<String>>> {
        Some(self.leader.subscribe())
    }

    fn courtesy(&self) -> Duration {
        COURTESY
    }
}

/// A claim that was won, and is given up when dropped.
struct HeldClaim {
    cell: Arc<LeaderCell>,
    claim: Claim,
}

impl Drop for HeldClaim {
    fn drop(&mut self) {
        // Replaced is given up too.
        self.cell.step_down(self.claim).ok();
    }
}

struct HostHolder {
    // In this order: nothing beats for a claim that was given up.
    keeping: AbortOnDropHandle<()>,
    held: HeldClaim,
}

#[async_trait::async_trait]
impl Holder for HostHolder {
    async fn release(self: Box<Self>) -> Result<(), BoxError> {
        let HostHolder { keeping, held } = *self;
        drop(keeping);
        drop(held);
        Ok(())
    }
}

/// A leadership as the task that keeps it learns of it.
struct Drawn {
    number: i64,
    token: Token,
    /// For how long somebody before it may believe in its own.
    grace: Duration,
}

/// Beats for as long as that is right.
struct Keeper {
    database: Arc<Database>,
    cell: Arc<LeaderCell>,
    claim: Claim,
    options: Options,
    deadline: Arc<watch::Sender<BootInstant>>,
}

impl Keeper {
    async fn keep(&self, bell: &Bell) -> Lost {
        let Options { tick, grace, candidacy: Candidacy { holder, pulse, .. }, .. } = &self.options;
        let mut described: Option<Instant> = None;
        // For how long the coordinator has not turned, in looks of this task, each of which counts for a tick at most: in a process that was
        // stopped as a whole it missed its turns, and is not to blame for that.
        let (mut looked, mut silence) = (clock::now(), Duration::ZERO);
        loop {
            bell.quiet();
            // First: a file that was cut short must not be touched.
            if let Some(reason) = self.cell.displaced().or_else(|| self.database.displaced()) {
                return Lost::Taken(reason);
            }
            // Once it beat, so that a standby does not look for a leader that has no name.
            if described.is_none_or(|described| described.elapsed() >= DESCRIBE_EVERY) {
                self.cell.describe(self.claim, holder);
                described = Some(Instant::now());
            }
            // Before the beat: this is how a lease's renewal is counted everywhere, from its send.
            let now = clock::now();
            let passed = now.since(looked);
            silence = if pulse.age().is_none_or(|age| age <= passed) { Duration::ZERO } else { silence + passed.min(*tick) };
            looked = now;
            if silence < *grace / 3 {
                if self.cell.beat(self.claim).is_err() {
                    return self.taken();
                }
                self.deadline.send_replace(now.after(*grace));
            } else if !self.cell.is_held_by(self.claim) {
                return self.taken();
            } else if silence >= *grace {
                return Lost::Expired(format!("the coordinator has not turned for {silence:?}, so nothing beat for it"));
            }
            tokio::select! {
                () = sleep(*tick) => {}
                () = bell.rung() => {}
            }
        }
    }

    /// Waits until another number was drawn than this leadership's, by somebody who got around the cell. A read that fails says nothing.
    async fn overtaken(&self, drawn: oneshot::Receiver<Drawn>) -> Lost {
        let Ok(Drawn { number: own, token, grace }) = drawn.await else { return std::future::pending().await };
        let since = clock::now();
        loop {
            // Not before: the next one has to wait for whom this one had to wait for.
            if clock::now().since(since) >= grace && self.cell.displaced().is_none() {
                self.cell.settle();
            }
            sleep(self.options.tick.max(LOOK_EVERY)).await;
            match self.database.leadership().await {
                Ok(Some((number, theirs))) if (number, &*theirs) == (own, &token.0.to_be_bytes()) => {}
                Ok(Some((number, _))) => {
                    return Lost::Taken(format!(
                        "leadership {number} was drawn in the database, past the leader cell; this is {own}"
                    ));
                }
                Ok(None) => return Lost::Taken(format!("the database does not know of leadership {own}")),
                Err(_) => {}
            }
        }
    }

    fn taken(&self) -> Lost {
        Lost::Taken(match self.cell.current_leader() {
            Some(leader) => format!("{leader} has claimed the leader cell"),
            None => "the leader cell was claimed by another process, which has given it up since".to_owned(),
        })
    }
}

fn store_error(what: &'static str, source: impl Into<BoxError>) -> Error {
    Error::Store { what, source: source.into() }
}

impl fmt::Debug for HostElection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostElection").field("database", &self.database.path()).finish_non_exhaustive()
    }
}
