//! When to call the manager: a third of the lease after the last call, at once when there is news, later and later after failures.

use std::time::Duration;

use crate::types::BootInstant;

/// How pauses after failures grow: the first one, and by what each is longer than the one before.
#[derive(Clone, Copy, Debug)]
struct Growth {
    first: Duration,
    factor: f64,
}

/// An executor that calls has a lease to go on with.
const PATIENT: Growth = Growth { first: Duration::from_millis(50), factor: 2.0 };
/// A caller's table gets old meanwhile. Each pause is, but for the first one's length, at most as long as all that came before it,
/// shortened by chance as they may be: so the table is behind by about as long as nobody could tell, and no more.
const EAGER: Growth = Growth { first: Duration::from_millis(2), factor: 1.5 };
/// The longest pause while the lease is not known, and the longest of all.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The first pause of who is not wanted; doubled each time.
const FIRST_PAUSE_REMOVED: Duration = Duration::from_secs(1);
/// The longest such pause.
const LONGEST_PAUSE_REMOVED: Duration = Duration::from_secs(10);
/// News waits this long for more of it.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// The longest that one attempt may take.
pub const LONGEST_ATTEMPT: Duration = Duration::from_secs(2);

/// The next call's time. All of it is arithmetic.
#[derive(Debug)]
pub struct Pace {
    lease_ttl: Option<Duration>,
    due: BootInstant,
    /// Failures in a row.
    failures: u32,
    growth: Growth,
}

impl Pace {
    /// An executor's; due at once.
    pub fn new(now: BootInstant) -> Pace {
        Pace { lease_ttl: None, due: now, failures: 0, growth: PATIENT }
    }

    /// The pace of one who only reads, and should know soon; due at once.
    pub fn eager(now: BootInstant) -> Pace {
        Pace { growth: EAGER, ..Pace::new(now) }
    }

    /// When the next call is due.
    pub fn due(&self) -> BootInstant {
        self.due
    }

    /// What one attempt may take, connecting included: a third of the lease, 2 s at most.
    pub fn attempt_timeout(&self) -> Duration {
        self.lease_ttl.map_or(LONGEST_ATTEMPT, |ttl| (ttl / 3).min(LONGEST_ATTEMPT))
    }

    /// The call that was sent at `sent` was accepted.
    pub fn succeeded(&mut self, sent: BootInstant, lease_ttl: Duration) {
        self.failures = 0;
        self.lease_ttl = Some(lease_ttl);
        self.due = sent.after(lease_ttl / 3);
    }

    /// The last call failed. The next waits for `jitter` (0 to 1) of a pause that grows up to a sixth of the lease, 1 s at most;
    /// it does not wait where the caller has `another_address` that did not fail yet.
    pub fn failed(&mut self, now: BootInstant, jitter: f64, another_address: bool) {
        if another_address {
            self.due = now;
            return;
        }
        let longest = self.lease_ttl.map_or(LONGEST_PAUSE, |ttl| (ttl / 6).min(LONGEST_PAUSE));
        let Growth { first, factor } = self.growth;
        let pause = first.mul_f64(factor.powi(self.failures.min(32) as i32)).min(longest);
        self.failures += 1;
        // At least half of the pause, so that failures never become a busy loop.
        self.due = now.after(pause.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0)));
    }

    /// The manager does not want this executor for now. The next call waits for `jitter` (0 to 1) of a pause that doubles from 1 s up
    /// to 10 s.
    pub fn removed(&mut self, now: BootInstant, jitter: f64) {
        let pause = FIRST_PAUSE_REMOVED.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE_REMOVED);
        self.failures += 1;
        self.due = now.after(pause.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0)));
    }

    /// Whether the last call failed and no address is left to try at once.
    pub fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// There is something to tell: soon, unless calls fail anyway.
    pub fn hurry(&mut self, now: BootInstant) {
        if self.failures == 0 {
            self.due = self.due.min(now.after(DEBOUNCE));
        }
    }

    /// A new beginning: at once.
    pub fn reset(&mut self, now: BootInstant) {
        *self = Pace { due: now, failures: 0, ..*self };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootInstant {
        BootInstant(Duration::from_millis(ms))
    }

    #[test]
    fn renews_a_third_after_the_sending_and_sooner_with_news() {
        let mut pace = Pace::new(at(5));
        assert_eq!((pace.due(), pace.attempt_timeout()), (at(5), Duration::from_secs(2)));
        pace.succeeded(at(10), Duration::from_secs(3));
        assert_eq!((pace.due(), pace.attempt_timeout()), (at(1010), Duration::from_secs(1)));
        pace.hurry(at(100));
        pace.hurry(at(105));
        assert_eq!(pace.due(), at(110), "news does not push the call away");
    }

    /// A manager that is there again is found within about the time for which none was.
    #[test]
    fn an_eager_one_pauses_no_longer_than_it_has_been_waiting() {
        for until in 0..12 {
            let (mut pace, mut waited) = (Pace::eager(at(0)), Duration::ZERO);
            for _ in 0..until {
                pace.failed(at(0), 0.0, false);
                waited += pace.due().since(at(0));
            }
            pace.failed(at(0), 1.0, false);
            let next = pace.due().since(at(0));
            assert!(next <= waited + EAGER.first + Duration::from_micros(1), "{next:?} after {waited:?}");
        }
    }

    #[test]
    fn who_is_not_wanted_asks_again_ever_more_slowly_and_in_no_hurry() {
        let mut pace = Pace::new(at(0));
        let mut pauses = Vec::new();
        for _ in 0..6 {
            pace.removed(at(1000), 1.0);
            pace.hurry(at(1000));
            pauses.push(pace.due().since(at(1000)).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn pauses_double_up_to_a_sixth_of_the_lease_and_news_does_not_shorten_them() {
        let mut pace = Pace::new(at(0));
        pace.succeeded(at(0), Duration::from_millis(900));
        let mut pauses = Vec::new();
        for _ in 0..4 {
            pace.failed(at(1000), 1.0, false);
            pauses.push(pace.due().since(at(1000)).as_millis());
        }
        assert_eq!(pauses, [50, 100, 150, 150]);
        pace.hurry(at(1000));
        assert_eq!(pace.due(), at(1150));
        pace.failed(at(2000), 0.0, false);
        assert_eq!(pace.due(), at(2075), "never less than half");
        pace.failed(at(3000), 1.0, true);
        assert_eq!(pace.due(), at(3000), "the next address is tried at once");
    }
}
