//! The two clocks, read here and nowhere else.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::types::BootInstant;

/// Now, by CLOCK_BOOTTIME.
pub fn now() -> BootInstant {
    let time = clock_gettime(ClockId::Boottime);
    // The kernel starts this clock at 0 and never turns it back.
    BootInstant(Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)))
}

/// Milliseconds since 1970 by the wall clock, which may jump; only ever a lower bound for a new term.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970 for people, as RFC 3339.
#[cfg(feature = "server")]
pub fn text(unix_ms: u64) -> String {
    use humantime_serde::re::humantime::format_rfc3339_millis;

    // Beyond the year 9999 there is no such text.
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms)).filter(|_| unix_ms < 253_402_300_800_000);
    time.map_or_else(|| format!("{unix_ms} ms after 1970"), |time| format_rfc3339_millis(time).to_string())
}

/// Waits until `deadline` by CLOCK_BOOTTIME. Tokio's timers stand still while the machine is suspended, so this looks at the
/// clock at least every quarter of a second: it wakes at the deadline, or that much after the end of a suspension.
pub async fn sleep_until(deadline: BootInstant) {
    loop {
        let left = deadline.since(now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(Duration::from_millis(250))).await;
    }
}
