//! The leader cell: one page of shared memory, in a file, by which the processes of one host agree who leads.
//!
//! ```text
//!   0  header     magic, version                    written once, when the file is made
//!  16  settled    1: nobody can believe any more that it leads by a cell before this one
//!  64  owner      pid (22 bits) | term (42 bits)    the only word that decides anything
//! 128  origin     when the owner's process started, and in which boot and pid namespace
//! 192  heartbeat  term's tag (24) | tick (40)       the owner's last sign of life, in global ticks
//! 256  ticks      the global tick                   advanced by those who wait
//! 320  spare      means nothing
//! 384  text       tag (24) | checksum (40); then 512 bytes in which the owner describes itself
//! 4095 bell       written by a step-down, so that inotify(7) wakes those who wait
//! ```
//!
//! **One compare-and-swap decides a claim**, on the owner word: from exactly the word that was judged, to the claimant's pid and the
//! next term. A term is never used twice, so no word ever comes back, and a swap that succeeds replaced the very leadership that was
//! found vacant (no ABA). A step-down is a swap too, to pid 0 under the same term. All of Linux's pids fit into 22 bits.
//!
//! **Everything else in the cell only describes the owner**, and names in 24 bits of its own word whose term it describes: the *tag*. A
//! claimant may die right after its swap; one that was stopped before it wrote may write late, over its successor's words. Whatever
//! carries another tag than the owner word's therefore counts as not known. Not known is never taken for gone: without an origin a pid
//! says nothing, and the first who finds no heartbeat starts one from the present tick, so that grace is given from then on. A live
//! owner sets both right, by its next beat and its next [`LeaderCell::describe`].
//!
//! **No data races, no locks.** Every word is atomic, whoever is stopped or killed in the middle holds up nobody, and a text that was
//! torn fails its checksum.
//!
//! Not protected from: a process that writes nonsense through a mapping of its own, and one that cuts the file short while others have
//! it mapped. The latter ends them by SIGBUS at their next access, unless they saw it first by [`LeaderCell::displaced`], to be called
//! before each round. This code never makes the file smaller.

// The one file of this crate with unsafe code: a mapping, its end, the view of it; and descriptors that are waited on.
#![allow(unsafe_code)]

mod claim;
mod file;

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub use self::claim::{Claim, Claimed, Leader, NotHeld, Refused, Vacancy};
use self::claim::{LOW, MAX_PID, MAX_TERM};
use self::file::ATTEMPTS;
pub use self::file::{Error, FILE_BYTES, Reason};
use super::process::{Handle, Origin};
use crate::backend::sqlite::Identity;

const TEXT_BYTES: usize = 512;

/// A word, or a few that belong together, in cache lines of their own.
#[repr(C, align(64))]
struct Line<T>(T);

#[repr(C)]
struct Page {
    /// Magic and version; settled.
    header: Line<[AtomicU64; 3]>,
    owner: Line<AtomicU64>,
    /// Start time under the tag; boot; namespace.
    origin: Line<[AtomicU64; 3]>,
    heartbeat: Line<AtomicU64>,
    ticks: Line<AtomicU64>,
    spare: Line<AtomicU64>,
    /// Tag and checksum.
    text_head: Line<AtomicU64>,
    text: Line<[AtomicU64; TEXT_BYTES / 8]>,
}

const BELL: u64 = FILE_BYTES - 1;
const _: () = assert!(size_of::<Page>() as u64 <= BELL);

/// A cell, mapped into this process. See the module.
#[derive(Debug)]
pub struct LeaderCell {
    path: PathBuf,
    file: File,
    identity: Identity,
    preempts: bool,
    /// Of this process; what it is compared with does not have to be read each time.
    own: (u32, Origin),
    /// The owner word that was found to be this process's; 0: none. No other leadership ever has the same word.
    known: AtomicU64,
    page: NonNull<Page>,
}

// SAFETY: the mapping belongs to this value alone, is unmapped only by its drop, and everything in it is atomic.
unsafe impl Send for LeaderCell {}
// SAFETY: as above; no method writes anything but atomics through a shared reference.
unsafe impl Sync for LeaderCell {}

impl Drop for LeaderCell {
    fn drop(&mut self) {
        // SAFETY: exactly this range was mapped by `map`, and no reference into it outlives `self`.
        // A mapping that cannot be unmapped stays until the process ends, which harms nobody.
        unsafe { munmap(self.page.as_ptr().cast(), size_of::<Page>()) }.ok();
    }
}

impl LeaderCell {
    /// Opens the cell at `path`, which is made if it is missing or empty. Any number of processes may do so at once.
    ///
    /// # Errors
    /// See [`Reason`]. What is refused is left as it is.
    pub fn create(path: &Path) -> Result<LeaderCell, Error> {
        LeaderCell::find(path, true)
    }

    /// Opens the cell at `path`, which somebody has made.
    ///
    /// # Errors
    /// See [`Reason`].
    pub fn open(path: &Path) -> Result<LeaderCell, Error> {
        LeaderCell::find(path, false)
    }

    /// A claimant with a lower pid takes the cell from a live holder. Off by default.
    #[must_use]
    pub fn with_preemption(mut self, preempts: bool) -> LeaderCell {
        self.preempts = preempts;
        self
    }

    fn find(path: &Path, make: bool) -> Result<LeaderCell, Error> {
        let refused = |why| Error { path: path.to_owned(), why };
        for _ in 0..ATTEMPTS {
            let file = file::open(path, make).map_err(refused)?;
            let metadata = file.metadata().map_err(|error| refused(error.into()))?;
            if !metadata.is_file() {
                return Err(refused(Reason::Kind(if metadata.is_dir() { "a directory" } else { "no regular file" })));
            }
            if make {
                file::form(&file).map_err(refused)?;
            }
            file::check(&file).map_err(refused)?;
            let identity = Identity::from(&metadata);
            if make && identity.displaced(path).is_some() {
                // Deleted or replaced since it was opened: the next process would find another one.
                continue;
            }
            let own = std::process::id();
            let origin = Origin::of(own).map_err(|error| refused(error.into()))?;
            let page = map(&file).map_err(|error| refused(error.into()))?;
            let (known, path) = (AtomicU64::new(0), path.to_owned());
            return Ok(LeaderCell { path, file, identity, preempts: false, own: (own, origin), known, page });
        }
        Err(refused(Reason::Unstable))
    }

    #[inline]
    fn page(&self) -> &Page {
        // SAFETY: the mapping is page-aligned, as long as `Page` and lives as long as `self`; the file was as long when it was mapped.
        // All bit patterns are valid for atomic integers, and other processes only ever write them as such.
        unsafe { self.page.as_ref() }
    }

    /// Claims the cell for the process `pid`, which is nearly always the calling one.
    ///
    /// It succeeds where nobody holds the cell, where its holder is gone, and where its holder's heartbeat is more than `grace_ticks`
    /// behind the global tick (`u64::MAX`: however far). Of several claimants at one moment exactly one wins.
    /// The winner's first beat is part of the claim; [`LeaderCell::describe`] should follow.
    ///
    /// # Errors
    /// See [`Refused`].
    #[inline]
    pub fn try_claim(&self, pid: u32, grace_ticks: u64) -> Result<Claimed, Refused> {
        let seen = Claim(self.page().owner.0.load(Ordering::Acquire));
        // A holder that asks again compares two words.
        if seen.0 == self.known.load(Ordering::Relaxed) && seen.pid() == pid && pid == self.own.0 {
            return Ok(Claimed::Already(seen));
        }
        self.claim_anew(pid, grace_ticks)
    }

    /// Apart, so that the short way of a holder carries none of its weight.
    #[cold]
    #[inline(never)]
    fn claim_anew(&self, pid: u32, grace_ticks: u64) -> Result<Claimed, Refused> {
        let claimed = self.claim(pid, grace_ticks);
        if let Ok(Claimed::Won(claim, _) | Claimed::Already(claim)) = claimed
            && pid == self.own.0
        {
            self.known.store(claim.0, Ordering::Relaxed);
        }
        claimed
    }

    fn claim(&self, pid: u32, grace_ticks: u64) -> Result<Claimed, Refused> {
        loop {
            let seen = Claim(self.page().owner.0.load(Ordering::Acquire));
            let origin = self.origin_of(pid)?;
            if seen.pid() == pid && self.origin(seen) == Some(origin) {
                return Ok(Claimed::Already(seen));
            }
            let Some(vacancy) = self.vacancy(seen, pid, origin, grace_ticks) else {
                match self.current_leader() {
                    Some(leader) if leader.claim == seen => return Err(Refused::Held(Box::new(leader))),
                    // Somebody else has it since, or nobody.
                    _ => continue,
                }
            };
            if seen.term() == MAX_TERM {
                return Err(Refused::Exhausted);
            }
            let claim = Claim::of(pid, seen.term() + 1);
            if self.page().owner.0.compare_exchange(seen.0, claim.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.write_origin(claim, origin);
                // Lost again already, it describes nobody.
                self.beat(claim).ok();
                return Ok(Claimed::Won(claim, vacancy));
            }
        }
    }

    fn origin_of(&self, pid: u32) -> Result<Origin, Refused> {
        if pid == 0 || pid > MAX_PID {
            return Err(Refused::Claimant { pid, source: None });
        }
        if pid == self.own.0 {
            return Ok(self.own.1);
        }
        Origin::of(pid).map_err(|error| Refused::Claimant { pid, source: Some(error) })
    }

    fn vacancy(&self, seen: Claim, pid: u32, claimant: Origin, grace_ticks: u64) -> Option<Vacancy> {
        if seen.is_vacant() {
            Some(Vacancy::Empty)
        } else if self.is_gone(seen, pid, claimant) {
            Some(Vacancy::Gone)
        } else if self.ticks_behind(seen) > grace_ticks {
            Some(Vacancy::Hung)
        } else if self.preempts && pid < seen.pid() {
            Some(Vacancy::Preempted)
        } else {
            None
        }
    }

    /// Whether the process of a claim has ended, for certain.
    fn is_gone(&self, seen: Claim, pid: u32, claimant: Origin) -> bool {
        // As long as it is not known where its pid means something, to look it up here may find nobody although it lives.
        let Some(origin) = self.origin(seen) else { return false };
        if origin.boot != claimant.boot {
            return true;
        }
        if !origin.shares_pids_with(&claimant) {
            return false;
        }
        // The claimant has the pid of a holder before.
        if pid == seen.pid() {
            return origin.started != claimant.started;
        }
        match Handle::open(seen.pid(), origin.started) {
            Ok(None) => true,
            Ok(Some(handle)) => handle.has_exited().unwrap_or(false),
            Err(_) => false,
        }
    }

    /// A sign of life: the heartbeat is at the global tick again. Writes nothing where it is already.
    ///
    /// # Errors
    /// Another leadership replaced this one, or it was given up.
    #[inline]
    pub fn beat(&self, claim: Claim) -> Result<(), NotHeld> {
        if !self.is_held_by(claim) {
            return Err(NotHeld(claim));
        }
        let beat = claim.tagged(self.page().ticks.0.load(Ordering::Relaxed));
        // As long as nobody ticks there is nothing to say, and a word that others read stays in their caches.
        if self.page().heartbeat.0.load(Ordering::Relaxed) == beat {
            return Ok(());
        }
        // Visible to everybody before the second look: a claim that did not see this beat is seen here, or comes after it.
        self.page().heartbeat.0.store(beat, Ordering::SeqCst);
        if self.page().owner.0.load(Ordering::SeqCst) == claim.0 { Ok(()) } else { Err(NotHeld(claim)) }
    }

    /// Moves the global tick on by one. Returns what it is then.
    ///
    /// How long a tick is, and that it is not made faster by many who wait, is up to those who call this; see [`LeaderCell::tick_after`].
    pub fn tick(&self) -> u64 {
        self.page().ticks.0.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    /// Moves the global tick on by one, unless it has moved since it was `seen`. Returns what it is then.
    ///
    /// Who calls this with what it returned the time before, and never twice within a time T, keeps this rule together with everybody
    /// else who does: two ticks are at least T apart, however many there are. (Whoever ticks saw the same number T before, so nobody
    /// ticked in between.) And a caller that was stopped for long ticks once when it wakes.
    pub fn tick_after(&self, seen: u64) -> u64 {
        let ticked = seen.wrapping_add(1);
        self.page().ticks.0.compare_exchange(seen, ticked, Ordering::AcqRel, Ordering::Acquire).map_or_else(|now| now, |_| ticked)
    }

    /// Gives the cell up, and wakes those who watch its file.
    ///
    /// # Errors
    /// It was not held by this claim any more, or its file was cut short, so that nobody holds anything by it: then nothing was changed.
    pub fn step_down(&self, claim: Claim) -> Result<(), NotHeld> {
        // The way down ends here also for whoever saw that it was cut: neither the page must be touched, nor the bell make it long again.
        if self.cut_short().is_some() {
            return Err(NotHeld(claim));
        }
        let vacant = Claim::of(0, claim.term());
        let swap = self.page().owner.0.compare_exchange(claim.0, vacant.0, Ordering::AcqRel, Ordering::Acquire);
        swap.map_err(|_| NotHeld(claim))?;
        // A write through a mapping wakes nobody. Where this one fails they see it at their next look.
        self.file.write_at(&[0], BELL).ok();
        Ok(())
    }

    /// Writes down where `claim`'s process comes from and how it describes itself (cut to what there is room for), unless it is there
    /// already. To be called again from time to time: somebody whose claim was lost long ago may have written over it.
    pub fn describe(&self, claim: Claim, text: &str) {
        if !self.is_held_by(claim) {
            return;
        }
        if let Ok(origin) = self.origin_of(claim.pid())
            && self.origin(claim) != Some(origin)
        {
            self.write_origin(claim, origin);
        }
        let text = &text[..text.floor_char_boundary(TEXT_BYTES)];
        if self.text(claim).as_deref() == Some(text) {
            return;
        }
        let mut bytes = [0; TEXT_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        for (word, chunk) in self.page().text.0.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        self.page().text_head.0.store(head(claim, &bytes), Ordering::Release);
    }

    /// Who holds the cell; `None` where nobody does. That it lives is not looked at.
    pub fn current_leader(&self) -> Option<Leader> {
        let claim = Claim(self.page().owner.0.load(Ordering::Acquire));
        (!claim.is_vacant()).then(|| Leader {
            claim,
            origin: self.origin(claim),
            text: self.text(claim),
            ticks_behind: self.ticks_behind(claim),
        })
    }

    /// Whether nobody has replaced this claim, and it was not given up.
    #[inline]
    pub fn is_held_by(&self, claim: Claim) -> bool {
        self.page().owner.0.load(Ordering::Acquire) == claim.0
    }

    /// How many claims there have been; a holder's term is the number of its own.
    pub fn election_term(&self) -> u64 {
        Claim(self.page().owner.0.load(Ordering::Acquire)).term()
    }

    /// Whether everybody who led by another cell at this place has stopped believing in it, as somebody who leads by this one found.
    pub fn is_settled(&self) -> bool {
        self.page().header.0[2].load(Ordering::Acquire) != 0
    }

    /// From now on it is [settled](Self::is_settled), for good.
    pub fn settle(&self) {
        self.page().header.0[2].store(1, Ordering::Release);
    }

    /// The global tick.
    pub fn global_tick(&self) -> u64 {
        self.page().ticks.0.load(Ordering::Acquire)
    }

    /// How many ticks the heartbeat of a claim is behind. Where there is none of it, one is begun: zero.
    pub fn ticks_behind(&self, claim: Claim) -> u64 {
        // Before the tick, or a beat in between would seem to come from the future.
        let heartbeat = self.page().heartbeat.0.load(Ordering::Acquire);
        let tick = self.global_tick();
        if claim.describes(heartbeat) {
            return tick.wrapping_sub(heartbeat) & LOW;
        }
        // Not over a beat that came since.
        self.page().heartbeat.0.compare_exchange(heartbeat, claim.tagged(tick), Ordering::AcqRel, Ordering::Acquire).ok();
        0
    }

    /// Why the next process would not find this cell at its path, or would find it cut short; `None` while it would.
    pub fn displaced(&self) -> Option<String> {
        match self.cut_short() {
            Some(bytes) => Some(format!("{} was cut short to {bytes} bytes", self.path.display())),
            None => self.identity.displaced(&self.path),
        }
    }

    /// To how many bytes the file was cut; `None` where it is whole, or that cannot be found out.
    fn cut_short(&self) -> Option<u64> {
        self.file.metadata().ok().map(|metadata| metadata.len()).filter(|bytes| *bytes < FILE_BYTES)
    }

    /// A word of the same page that means nothing: what bare operations on this memory take can be measured with it.
    pub fn spare(&self) -> &AtomicU64 {
        &self.page().spare.0
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    fn origin(&self, claim: Claim) -> Option<Origin> {
        let [started, boot, namespace] = &self.page().origin.0;
        let started = started.load(Ordering::Acquire);
        claim.describes(started).then(|| Origin {
            started: started & LOW,
            boot: boot.load(Ordering::Relaxed),
            namespace: namespace.load(Ordering::Relaxed),
        })
    }

    fn write_origin(&self, claim: Claim, origin: Origin) {
        let words = &self.page().origin.0;
        words[1].store(origin.boot, Ordering::Relaxed);
        words[2].store(origin.namespace, Ordering::Relaxed);
        // Last: its tag says whose all three are.
        words[0].store(claim.tagged(origin.started), Ordering::Release);
    }

    fn text(&self, claim: Claim) -> Option<String> {
        let stored = self.page().text_head.0.load(Ordering::Acquire);
        let mut bytes = [0; TEXT_BYTES];
        for (word, chunk) in self.page().text.0.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        if stored != head(claim, &bytes) {
            return None;
        }
        let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        String::from_utf8(bytes[..length].to_vec()).ok()
    }
}

/// What stands before the text of a claim: its tag, and a checksum.
fn head(claim: Claim, text: &[u8]) -> u64 {
    claim.tagged(u64::from(crc32fast::hash(text)))
}

fn map(file: &File) -> io::Result<NonNull<Page>> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing that Rust knows of.
    let address = unsafe { mmap(null_mut(), size_of::<Page>(), access, flags, file, 0) }?;
    NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))
}

/// A descriptor that a task can wait on. Here because tokio makes it a promise that the descriptor stays open and the same.
pub(super) fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open until it is dropped, here by the `AsyncFd` after it deregistered it; nobody replaces or closes it.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

#[cfg(test)]
mod tests;
