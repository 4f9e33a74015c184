//! Claims of a cell, and what becomes of them.

use std::io;

use super::Origin;

const TERM_BITS: u32 = 42;
pub(super) const MAX_TERM: u64 = (1 << TERM_BITS) - 1;
pub(super) const MAX_PID: u32 = (1 << 22) - 1;
/// Of what describes an owner: the lowest 24 bits of its term on top, 40 bits below.
const TAG_SHIFT: u32 = 40;
pub(super) const LOW: u64 = (1 << TAG_SHIFT) - 1;

/// A claim that was won: which leadership of the cell it is. Worth nothing once another one replaced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim(pub(super) u64);

impl Claim {
    pub(super) fn of(pid: u32, term: u64) -> Claim {
        Claim((u64::from(pid) << TERM_BITS) | (term & MAX_TERM))
    }

    /// Of the process that it was made for; 0 where the cell was given up.
    #[inline]
    pub fn pid(self) -> u32 {
        // 22 bits are left.
        (self.0 >> TERM_BITS) as u32
    }

    /// Which of the cell's claims it is, counted from 1; 0 before the first.
    #[inline]
    pub fn term(self) -> u64 {
        self.0 & MAX_TERM
    }

    pub(super) fn is_vacant(self) -> bool {
        self.pid() == 0
    }

    /// What describes this claim carries this on top.
    #[inline]
    pub(super) fn tagged(self, low: u64) -> u64 {
        (self.term() << TAG_SHIFT) | (low & LOW)
    }

    pub(super) fn describes(self, word: u64) -> bool {
        word >> TAG_SHIFT == self.tagged(0) >> TAG_SHIFT
    }
}

/// A claim that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// Now.
    Won(Claim, Vacancy),
    /// This very process holds it already; perhaps another part of it.
    Already(Claim),
}

/// Why a cell could be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vacancy {
    /// Nobody held it: it is new, or its last holder stepped down.
    Empty,
    /// Its holder is gone: no process has its pid, or one that started at another time, or the machine started anew.
    Gone,
    /// Its holder lives, but its heartbeat was more than the grace behind.
    Hung,
    /// Its holder lives and has a higher pid, and the claimant asked for that to count.
    Preempted,
}

/// Why a claim failed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Somebody holds it and lives. Boxed, so that what a holder is answered stays small.
    #[error("it is held by {0}")]
    Held(Box<Leader>),
    /// The claimant is not a process that could hold anything.
    #[error("pid {pid} is refused: it must be 1 to {MAX_PID}, and of a process that runs")]
    Claimant {
        /// As given.
        pid: u32,
        /// What looking at it failed with.
        source: Option<io::Error>,
    },
    /// All terms are used up. That takes longer than any machine lives; the file is damaged.
    #[error("the cell has no term above {MAX_TERM} left; it is damaged. If no manager runs here, remove it")]
    Exhausted,
}

/// Who held the cell at the moment of looking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// By what it holds it.
    pub claim: Claim,
    /// When and where its process began; `None` where that is not known (yet).
    pub origin: Option<Origin>,
    /// How it describes itself; `None` where it did not (yet).
    pub text: Option<String>,
    /// How many global ticks ago it last beat.
    pub ticks_behind: u64,
}

impl std::fmt::Display for Leader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let process = format!("process {}", self.claim.pid());
        match &self.text {
            // As this program introduces itself; others may write anything.
            Some(text) if text.starts_with(&format!("{process} ")) => f.write_str(text),
            Some(text) => write!(f, "{process} ({text})"),
            None => f.write_str(&process),
        }
    }
}

/// A beat or a step-down of one who does not hold the cell any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the leader cell is not held by term {} of process {} any more", .0.term(), .0.pid())]
pub struct NotHeld(pub Claim);
