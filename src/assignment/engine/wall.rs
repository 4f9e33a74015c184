//! The wall clock, for people and for what a later leader has to understand. The engine reads none: it was told the time when it
//! began, and counts on from there by the instants that it is given. So a step of the wall clock is not followed.

use std::time::Duration;

use crate::types::BootInstant;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Wall {
    unix_ms: u64,
    at: BootInstant,
}

impl Wall {
    /// It shows `unix_ms`, in milliseconds since 1970, at `at`.
    pub fn new(unix_ms: u64, at: BootInstant) -> Wall {
        Wall { unix_ms, at }
    }

    /// What it shows at an instant that is not before its first.
    pub fn unix_ms(&self, now: BootInstant) -> u64 {
        let passed = u64::try_from(now.since(self.at).as_millis()).unwrap_or(u64::MAX);
        self.unix_ms.saturating_add(passed)
    }

    /// When it shows this; its first instant where that is over already.
    pub fn instant(&self, unix_ms: u64) -> BootInstant {
        self.at.after(Duration::from_millis(unix_ms.saturating_sub(self.unix_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_from_where_it_was_read() {
        let at = BootInstant(Duration::from_secs(5));
        let wall = Wall::new(1000, at);
        assert_eq!(wall.unix_ms(at), 1000);
        assert_eq!(wall.unix_ms(at.after(Duration::from_millis(250))), 1250);
        assert_eq!(wall.instant(1250), at.after(Duration::from_millis(250)));
        assert_eq!(wall.instant(999), at, "over already");
        assert_eq!(Wall::new(u64::MAX, at).unix_ms(at.after(Duration::from_secs(1))), u64::MAX);
    }
}
