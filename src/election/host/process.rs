//! Processes of this host, by pid *and* start time: a pid alone may by now be somebody else's.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::types::Token;

/// Where and when a process began: together with its pid nothing else is ever taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// When it started, in clock ticks since the machine did (field 22 of `/proc/PID/stat`).
    pub started: u64,
    /// Half of the boot's id; the kernel draws it anew at each boot.
    pub boot: u64,
    /// The pid namespace in which its pid means something, by its inode. Containers have their own. Zero where it means nothing to anybody.
    pub namespace: u64,
}

/// Of a process that does not see itself in `/proc` under its own pid: that is another namespace's, and says nothing about any pid.
const NOWHERE: u64 = 0;

impl Origin {
    /// Of a process that this one can see under `pid`. Where `/proc` is another namespace's this process can see none but itself, and has
    /// a number drawn at random for the time at which it started: nobody's pid can be looked up, and it is recognised all the same.
    ///
    /// # Errors
    /// Where there is no such process, or `/proc` cannot be read.
    pub fn of(pid: u32) -> io::Result<Origin> {
        let boot = boot()?;
        let own = std::process::id();
        if sees_itself(own)? {
            return Ok(Origin { started: started(pid)?, boot, namespace: std::fs::metadata("/proc/self/ns/pid")?.ino() });
        }
        if pid != own {
            let what = format!("process {pid} cannot be seen: /proc is that of another pid namespace");
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        static DRAWN: OnceLock<u64> = OnceLock::new();
        let started = *DRAWN.get_or_init(|| Token::draw().0 as u64 & STARTED);
        Ok(Origin { started, boot, namespace: NOWHERE })
    }

    /// Whether a pid means the same to both processes.
    pub fn shares_pids_with(&self, other: &Origin) -> bool {
        (self.boot, self.namespace) == (other.boot, other.namespace) && self.namespace != NOWHERE
    }
}

/// As many bits as a cell keeps of a start time.
const STARTED: u64 = (1 << 40) - 1;

/// Whether `/proc` shows this process under its own pid.
fn sees_itself(own: u32) -> io::Result<bool> {
    match std::fs::read_link("/proc/self") {
        Ok(shown) => Ok(shown.to_str().and_then(|shown| shown.parse().ok()) == Some(own)),
        // It has no pid there.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// When the process started, in clock ticks since boot.
///
/// # Errors
/// `NotFound` where there is no such process (or it is hidden from this user); else what reading `/proc` failed with.
pub fn started(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    started_in(&stat).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has no start time: {stat:?}")))
}

/// Field 22. The second one is a name in parentheses that may hold anything, parentheses and blanks included.
fn started_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn boot() -> io::Result<u64> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id: String = std::fs::read_to_string(path)?.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&id, 16).map_err(|error| io::Error::other(format!("{path}: {error}")))
}

/// A process, held by its pidfd: whatever is done through it reaches that process, or nobody.
#[derive(Debug)]
pub struct Handle(OwnedFd);

impl Handle {
    /// The process of that pid which started then; `None` where there is no such process (any more). Its start time is read after the
    /// pidfd was opened, so it is the start time of the process that the pidfd is of.
    ///
    /// # Errors
    /// Where the kernel has no pidfds, there are no descriptors left, or `/proc` does not show the process: then nothing is known.
    pub fn open(pid: u32, at: u64) -> io::Result<Option<Handle>> {
        let Some(handle) = Handle::of(pid)? else { return Ok(None) };
        match started(pid) {
            Ok(time) if time == at => Ok(Some(handle)),
            Ok(_) => Ok(None),
            // It ended in between; or it lives, and is hidden from this user.
            Err(_) if handle.has_exited()? => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whoever has that pid at this moment.
    ///
    /// # Errors
    /// As [`Handle::open`].
    pub fn of(pid: u32) -> io::Result<Option<Handle>> {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Some(Handle(descriptor))),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether all its threads have ended, waited for by its parent or not.
    ///
    /// # Errors
    /// What poll(2) failed with.
    pub fn has_exited(&self) -> io::Result<bool> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now))? > 0)
    }

    /// SIGKILL. One that has ended already is no error.
    ///
    /// # Errors
    /// `PermissionDenied` for another user's process.
    pub fn kill(&self) -> io::Result<()> {
        kill(&self.0)
    }

    /// The pidfd: readable once the process has ended.
    pub fn into_descriptor(self) -> OwnedFd {
        self.0
    }
}

/// See [`Handle::kill`].
pub(super) fn kill(process: &OwnedFd) -> io::Result<()> {
    match pidfd_send_signal(process, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_time_is_found_behind_any_name() {
        let rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        for name in ["sh", "a b", "x) R 1", "(("] {
            assert_eq!(started_in(&format!("17 ({name}){rest}")), Some(4711), "{name}");
        }
        assert_eq!(started_in("17 (sh) S 1 2"), None);
        assert_eq!(started_in(""), None);
    }

    #[test]
    fn a_process_is_only_found_under_its_start_time() {
        let pid = std::process::id();
        let started = started(pid).expect("it runs");
        let handle = Handle::open(pid, started).expect("pidfds").expect("this process");
        assert!(!handle.has_exited().expect("an answer"));
        assert!(Handle::open(pid, started + 1).expect("pidfds").is_none(), "it has the pid of another one");
        assert!(Handle::open(u32::MAX, 1).expect("no pid").is_none());
        assert!(Handle::open(0, 1).expect("no pid").is_none());
    }

    /// A killed process that nobody waited for keeps its pid and start time. It is gone all the same.
    #[test]
    fn a_zombie_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a child");
        let handle = Handle::open(child.id(), started(child.id()).expect("it runs")).expect("pidfds").expect("the child");
        handle.kill().expect("it is ours");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !handle.has_exited().expect("an answer") {
            assert!(std::time::Instant::now() < deadline, "it ends");
            std::thread::yield_now();
        }
        let again = Handle::of(child.id()).expect("pidfds").expect("not waited for yet");
        assert!(again.has_exited().expect("an answer"));
        child.wait().expect("it ended");
        assert!(Handle::of(child.id()).expect("pidfds").is_none());
    }
}
