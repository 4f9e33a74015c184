//! What the log says about the manager: one line when it is lost, one every half minute while it stays so, one when it is found again.
//!
//! A leader that changes costs a call to each address that no longer leads. As long as one of the others answers, nobody has to know.

use std::fmt;
use std::time::Duration;

use super::meaning::Failure;
use crate::types::{BootInstant, ExecutorId};

/// How often it is said that nothing has changed.
const AGAIN: Duration = Duration::from_secs(30);
/// How often it is said that this executor is still removed.
const STILL_REMOVED: Duration = Duration::from_secs(60);

/// Since when no call was answered, and when that was last said. All of it is arithmetic.
#[derive(Debug, Default)]
pub struct Lookout {
    away: Option<Away>,
    /// When it was last said that an operator removed this executor.
    removed: Option<BootInstant>,
}

#[derive(Clone, Copy, Debug)]
struct Away {
    since: BootInstant,
    told: Option<BootInstant>,
}

/// How much of its lease an executor has left.
pub struct Lease(pub Option<Duration>);

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(left) => write!(f, "the lease lives for another {left:.1?}"),
            None => write!(f, "there is no lease, so no shard is worked on"),
        }
    }
}

impl Lookout {
    /// A call came to nothing; the manager that it went to was last there at `since`, or called then. How long it has been, where that is to be said now: when there is not
    /// `another_address` to try at once, and from then on every half minute.
    pub fn failed(&mut self, now: BootInstant, since: BootInstant, another_address: bool) -> Option<Duration> {
        let away = self.away.get_or_insert(Away { since, told: None });
        let is_due = away.told.map_or(!another_address, |told| now.since(told) >= AGAIN);
        is_due.then(|| {
            away.told = Some(now);
            now.since(away.since)
        })
    }

    /// A manager answered. How long that took, if it was said before that none does.
    pub fn found(&mut self, now: BootInstant) -> Option<Duration> {
        self.away.take().filter(|away| away.told.is_some()).map(|away| now.since(away.since))
    }
}

impl Lookout {
    /// A manager refused this executor as removed. Whether that is to be said now: at first, and from then on every minute.
    pub fn removed(&mut self, now: BootInstant) -> bool {
        let is_due = self.removed.is_none_or(|told| now.since(told) >= STILL_REMOVED);
        if is_due {
            self.removed = Some(now);
        }
        is_due
    }

    /// A manager took this executor in. Whether it was removed before.
    pub fn admitted(&mut self) -> bool {
        self.removed.take().is_some()
    }
}

/// Says that no call gets through, for `away` so far.
pub fn tell_lost(executor: &ExecutorId, failure: Failure, urls: &str, away: Duration, lease: &Lease, why: &dyn fmt::Display) {
    let who = match failure {
        Failure::Unanswered => format!("no manager answers at {urls}"),
        Failure::Elsewhere | Failure::Later => format!("no manager serves this executor at {urls}"),
    };
    tracing::warn!(%executor, last = %why, "{who}, for {away:.1?} now; trying on; {lease}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> BootInstant {
        BootInstant(Duration::from_secs(seconds))
    }

    #[test]
    fn it_is_said_once_when_every_address_failed_then_every_half_minute_then_when_it_is_over() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let mut lookout = Lookout::default();
        assert_eq!(lookout.found(at(0)), None, "it was never away");
        assert_eq!(lookout.failed(at(2), at(1), true), None);
        assert_eq!(lookout.found(at(3)), None, "the next address answers: nobody has to know");

        assert_eq!(lookout.failed(at(11), at(10), true), None);
        assert_eq!(lookout.failed(at(12), at(11), true), None);
        assert_eq!(lookout.failed(at(13), at(12), false), seconds(3));
        assert_eq!(lookout.failed(at(14), at(13), true), None);
        assert_eq!(lookout.failed(at(42), at(41), false), None);
        assert_eq!(lookout.failed(at(43), at(42), true), seconds(33));
        assert_eq!(lookout.failed(at(72), at(72), false), None);
        assert_eq!(lookout.failed(at(73), at(73), false), seconds(63));
        assert_eq!(lookout.found(at(80)), seconds(70));
        assert_eq!(lookout.found(at(81)), None);
    }

    #[test]
    fn a_removal_is_said_once_a_minute_until_it_is_over() {
        let mut lookout = Lookout::default();
        assert!(!lookout.admitted());
        let said: Vec<bool> = [0, 1, 59, 60, 61].map(|second| lookout.removed(at(second))).into();
        assert_eq!(said, [true, false, false, true, false]);
        assert!(lookout.admitted());
        assert!(lookout.removed(at(62)), "again");
    }

    #[test]
    fn the_lease_is_told_with_what_it_means() {
        assert_eq!(Lease(Some(Duration::from_millis(2_540))).to_string(), "the lease lives for another 2.5s");
        assert_eq!(Lease(None).to_string(), "there is no lease, so no shard is worked on");
    }
}
