//! Waiting beside a cell that somebody else holds, until it can be claimed.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::cell::{Claim, Claimed, Leader, LeaderCell, Vacancy};
use super::process::{self, Handle, Origin};
use super::{HostElection, store_error};
use crate::election::candidacy::Said;
use crate::election::{Error, Patience};

/// How long a killed process may take to end. One that the kernel holds on to (a disk that does not answer) may never.
const DYING: Duration = Duration::from_secs(5);

/// Says when somebody stepped down, or did something to the cell's file: inotify(7) on the very file that is mapped.
///
/// A futex in the cell would wake as fast, but to wait on one takes a thread; to look every few milliseconds takes the machine from
/// others. Where there is no inotify to be had (users have a limit of them), a standby finds out at its next tick.
#[derive(Debug)]
pub(super) struct Bell(Option<AsyncFd<OwnedFd>>);

impl Bell {
    pub(super) fn on(cell: &LeaderCell) -> Bell {
        Bell(Bell::try_on(cell).inspect_err(|error| warn!(%error, "no inotify: a step-down is seen at the next tick only")).ok())
    }

    fn try_on(cell: &LeaderCell) -> io::Result<AsyncFd<OwnedFd>> {
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let what = WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
        // By the descriptor, not by the path, at which there may be another file by now.
        inotify::add_watch(&watch, format!("/proc/self/fd/{}", cell.file().as_raw_fd()), what)?;
        super::cell::watch(watch)
    }

    /// Forgets what was rung before. To be called before looking at the cell: what happens after that rings again.
    pub(super) fn quiet(&self) {
        let Some(watch) = &self.0 else { return };
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(watch.get_ref(), &mut buffer);
        while events.next().is_ok() {}
    }

    /// Waits until something happens to the file, or happened since [`Bell::quiet`].
    pub(super) async fn rung(&self) {
        match &self.0 {
            // It ends with the runtime, where nobody waits any more.
            Some(watch) if let Ok(mut ready) = watch.readable().await => ready.clear_ready(),
            _ => std::future::pending().await,
        }
    }
}

/// What a standby remembers from look to look.
struct Vigil {
    /// The global tick as it last was.
    tick: u64,
    /// Looks are at least a tick apart: then however many stand by, the global tick runs no faster (see [`LeaderCell::tick_after`]), and
    /// for a standby that was itself stopped, however long, one tick has passed.
    next_look: Instant,
    /// Whom it waits for.
    said: Said,
}

/// Why a wait ended.
enum Woken {
    /// Something changed: try again.
    Changed,
    /// The holder's heartbeat stands still.
    Hung,
}

impl HostElection {
    /// Waits until this process has claimed the cell. `None`: cell or database is no longer the one at its path.
    pub(super) async fn win(&self, cell: &LeaderCell, bell: &Bell) -> Result<Option<(Claim, Vacancy)>, Error> {
        let own = std::process::id();
        let mut vigil = Vigil { tick: cell.global_tick(), next_look: Instant::now() + self.options.tick, said: Said::default() };
        loop {
            bell.quiet();
            if let Some(reason) = self.displaced(cell) {
                warn!(reason, "what this standby waits beside is opened anew");
                return Ok(None);
            }
            match cell.try_claim(own, u64::MAX) {
                Ok(Claimed::Won(claim, vacancy)) => return Ok(Some((claim, vacancy))),
                // By another part of this process.
                Ok(Claimed::Already(_)) | Err(super::cell::Refused::Held(_)) => {}
                Err(error) => return Err(store_error("claiming the leader cell", error)),
            }
            let Some(leader) = cell.current_leader() else { continue };
            // Who died before it said where it came from is waited for, for the grace at most: nobody else would find that it is silent.
            if self.options.candidacy.patience == Patience::FailAtOnce && leader.origin.is_some() {
                let (database, cell) = (self.database.path().display(), cell.path().display());
                let what = format!("the leadership of {database} (leader cell {cell})");
                return Err(Error::HeldElsewhere { what, holder: leader.to_string() });
            }
            let process = watch_process(&leader);
            if let Woken::Hung = self.wait(cell, bell, &leader, process.as_ref(), &mut vigil).await
                && let Some(won) = self.depose(cell, &leader, process).await
            {
                return Ok(Some(won));
            }
        }
    }

    async fn wait(&self, cell: &LeaderCell, bell: &Bell, leader: &Leader, process: Option<&Watched>, vigil: &mut Vigil) -> Woken {
        loop {
            self.announce(leader, vigil);
            tokio::select! {
                biased;
                () = ended(process) => {
                    info!("the leader, {leader}, has ended");
                    return Woken::Changed;
                }
                () = bell.rung() => return Woken::Changed,
                () = sleep_until(vigil.next_look) => {}
            }
            vigil.next_look = Instant::now() + self.options.tick;
            if self.displaced(cell).is_some() {
                return Woken::Changed;
            }
            vigil.tick = cell.tick_after(vigil.tick);
            // Not of this very process, of which another part leads: whether that hangs is its own affair.
            // In another container a leader may well have the same pid.
            let is_other = leader.claim.pid() != std::process::id() || leader.origin != self.own_origin;
            if is_other && cell.is_held_by(leader.claim) && cell.ticks_behind(leader.claim) > self.grace_ticks() {
                return Woken::Hung;
            }
            // Whoever's end would not be told has to be looked at; so has who did not describe itself yet.
            if process.is_none() || leader.text.is_none() || !cell.is_held_by(leader.claim) {
                return Woken::Changed;
            }
        }
    }

    /// A holder that lives, and whose heartbeat stands still. It may have the database's write lock: then nobody gets on before it is
    /// dead. `None`: to be tried again in the usual way.
    async fn depose(&self, cell: &LeaderCell, leader: &Leader, process: Option<Watched>) -> Option<(Claim, Vacancy)> {
        let grace = self.options.grace;
        match process {
            Some(process) if self.options.kill_hung => match process.kill() {
                Ok(()) => {
                    warn!("the leader, {leader}, has not beaten for {grace:?}: it is killed, and this process takes over");
                    if timeout(DYING, process.exited()).await.is_ok() {
                        return None;
                    }
                    warn!("{leader} was killed but does not end; the leadership is taken over all the same");
                }
                Err(error) => {
                    warn!(%error, "the leader, {leader}, has not beaten for {grace:?}, and must not be killed by this user");
                }
            },
            _ => warn!("the leader, {leader}, has not beaten for {grace:?}; it is not killed"),
        }
        // That took its time.
        if self.displaced(cell).is_some() {
            return None;
        }
        match cell.try_claim(std::process::id(), self.grace_ticks()) {
            Ok(Claimed::Won(claim, vacancy)) => {
                warn!(
                    "the leadership of {leader} is taken over: what it still writes is refused by its number; if it has the database's \
                     write lock, this waits for that"
                );
                Some((claim, vacancy))
            }
            // It beats again; or another standby was faster.
            _ => None,
        }
    }

    fn displaced(&self, cell: &LeaderCell) -> Option<String> {
        cell.displaced().or_else(|| self.database.displaced())
    }

    fn announce(&self, leader: &Leader, vigil: &mut Vigil) {
        let who = leader.text.clone().unwrap_or_else(|| leader.to_string());
        let is_news = self.leader.seen(Some(who.clone()));
        if leader.text.is_some() && vigil.said.is_due(is_news, self.options.candidacy.announce_every) {
            info!(leader = who, "waiting for the leadership, as a standby");
        }
    }

    /// A heartbeat that is further behind than this has stood still for the grace, at least.
    pub(super) fn grace_ticks(&self) -> u64 {
        let ticks = self.options.grace.as_nanos().div_ceil(self.options.tick.as_nanos().max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX - 1)
    }
}

/// A process that can be waited on, by its pidfd.
struct Watched(AsyncFd<OwnedFd>);

impl Watched {
    /// Waits until the process has ended; fails where the runtime is shutting down. Cancel-safe.
    async fn exited(&self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }

    fn kill(&self) -> io::Result<()> {
        process::kill(self.0.get_ref())
    }
}

/// The process that holds the cell, if it is known for certain which one that is.
fn watch_process(leader: &Leader) -> Option<Watched> {
    let origin = leader.origin?;
    // In another pid namespace its pid would be somebody else's.
    if !origin.shares_pids_with(&Origin::of(std::process::id()).ok()?) {
        return None;
    }
    let handle = Handle::open(leader.claim.pid(), origin.started).ok()??;
    super::cell::watch(handle.into_descriptor()).ok().map(Watched)
}

async fn ended(process: Option<&Watched>) {
    match process {
        Some(process) if process.exited().await.is_ok() => {}
        _ => std::future::pending().await,
    }
}
