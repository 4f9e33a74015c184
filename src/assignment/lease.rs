//! The manager's side of the executor leases: plain arithmetic over instants.

use std::time::Duration;

use crate::types::BootInstant;

/// What the manager adds to a lease before it calls it over: 100 ms and a hundredth of the lease. Covers clock drift (L7).
pub fn margin(lease_ttl: Duration) -> Duration {
    Duration::from_millis(100) + lease_ttl / 100
}

/// The lease of one incarnation, as the manager counts it: from *receiving* a renewal, with the margin on top (L7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    ends: BootInstant,
    ending: bool,
}

impl Lease {
    /// A lease that runs until `ends`.
    pub fn until(ends: BootInstant) -> Lease {
        Lease { ends, ending: false }
    }

    /// When it ends, the margin included.
    pub fn ends(&self) -> BootInstant {
        self.ends
    }

    /// Whether its end is being committed.
    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// Renews it until `ends`, or longer where it already runs longer: an executor may still count on what an earlier leader granted
    /// (L8). Refused (`false`) once its end is being committed (L1).
    pub fn renew(&mut self, ends: BootInstant) -> bool {
        if !self.ending {
            self.ends = self.ends.max(ends);
        }
        !self.ending
    }

    /// **L1, expiry first.** Claims the end of the lease, if it is over: from here on renewals are refused, and only then may the
    /// commit that frees the shards be made. `false` where the lease is not over or its end was claimed before.
    pub fn begin_ending(&mut self, now: BootInstant) -> bool {
        let over = !self.ending && now >= self.ends;
        self.ending |= over;
        over
    }

    /// Ends it before its time, for an executor that has nothing any more, or that is proven gone: from here on renewals are refused,
    /// and only then may the commit be made that says so (L1).
    pub fn end(&mut self) {
        self.ending = true;
    }

    /// The commit that was to end it did not land: it can be renewed again, or ended again.
    pub fn end_failed(&mut self) {
        self.ending = false;
    }

    /// See [`postponed`].
    pub fn postpone(&mut self, stall: &Stall) {
        self.ends = postponed(self.ends, stall);
    }
}

/// The process did not get to run when it should have (L9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// When it runs again.
    pub now: BootInstant,
    /// By how much it is late.
    pub delay: Duration,
    /// How long it takes, at the most, to read what arrived meanwhile.
    pub grace: Duration,
}

/// **L9, stalls.** Finds one: a turn that was due at `due` comes at `now`, more than `tolerance` later.
pub fn find_stall(due: BootInstant, now: BootInstant, tolerance: Duration) -> Option<Stall> {
    let delay = now.since(due);
    (delay > tolerance).then_some(Stall { now, delay, grace: tolerance })
}

/// A deadline after a stall: later by the delay, since nothing that came in meanwhile was read; and never before there was time to
/// read it.
pub fn postponed(deadline: BootInstant, stall: &Stall) -> BootInstant {
    deadline.after(stall.delay).max(stall.now.after(stall.grace))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootInstant {
        BootInstant(Duration::from_millis(ms))
    }

    #[test]
    fn l1_a_lease_whose_end_is_being_committed_is_not_renewed() {
        let mut lease = Lease::until(at(100));
        assert!(!lease.begin_ending(at(99)), "not over yet");
        assert!(lease.begin_ending(at(100)));
        assert!(!lease.begin_ending(at(101)), "claimed once");
        assert!(!lease.renew(at(200)));
        lease.end_failed();
        assert!(lease.renew(at(200)), "the commit did not land: alive after all");
        assert_eq!(lease.ends(), at(200));
    }

    #[test]
    fn l1_a_lease_that_is_ended_before_its_time_is_not_renewed() {
        let mut lease = Lease::until(at(100));
        lease.end();
        assert!(!lease.renew(at(200)));
        assert!(!lease.begin_ending(at(300)), "claimed already");
        lease.end_failed();
        assert!(lease.renew(at(200)));
    }

    #[test]
    fn l8_a_renewal_never_shortens_a_lease() {
        let mut lease = Lease::until(at(60_000));
        assert!(lease.renew(at(15_000)));
        assert_eq!(lease.ends(), at(60_000));
    }

    #[test]
    fn l9_a_late_turn_moves_deadlines_by_the_delay_and_leaves_time_to_read() {
        let tolerance = Duration::from_millis(100);
        assert_eq!(find_stall(at(1000), at(1100), tolerance), None);
        let stall = find_stall(at(1000), at(6000), tolerance).expect("five seconds late");
        assert_eq!(stall.delay, Duration::from_secs(5));
        assert_eq!(postponed(at(3000), &stall), at(8000));
        assert_eq!(postponed(at(1010), &stall), at(6100), "10 ms would not be enough to read what arrived");
    }
}
