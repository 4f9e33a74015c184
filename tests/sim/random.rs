//! Chance and clocks, from a seed.

use std::time::Duration;

use shard_manager::types::BootInstant;

/// True time, in microseconds since the world began.
pub type Instant = u64;

pub const MS: u64 = 1000;
pub const SECOND: u64 = 1000 * MS;

pub fn span(us: u64) -> Duration {
    Duration::from_micros(us)
}

pub fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("a short time")
}

/// SplitMix64: a seed means the same run whatever the versions of other crates are.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5eed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `from .. to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True so many times out of a thousand.
    pub fn per_mille(&mut self, times: u64) -> bool {
        self.next() % 1000 < times
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len())])
    }
}

/// A process's own clock: it began somewhere, and runs a little too fast or too slow.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset: u64,
    /// Millionths.
    drift: i64,
}

/// Two clocks differ by twice this at the most: less than the hundredth that the lease margin allows for (L7).
const MOST_DRIFT: u64 = 4000;

impl Clock {
    pub fn draw(random: &mut Random) -> Clock {
        let drift = random.between(0, 2 * MOST_DRIFT + 1) as i64 - MOST_DRIFT as i64;
        Clock { offset: random.between(1000 * SECOND, 1_000_000 * SECOND), drift }
    }

    pub fn read(&self, time: Instant) -> BootInstant {
        let drifted = time as i64 + time as i64 * self.drift / 1_000_000;
        BootInstant(span(self.offset + drifted as u64))
    }

    /// The first true time at which this clock shows `instant` or more.
    pub fn when(&self, instant: BootInstant) -> Instant {
        if instant.0 > Duration::from_secs(1 << 32) {
            return Instant::MAX;
        }
        let shown = us(instant.0).saturating_sub(self.offset);
        let mut time = (shown as i64 * 1_000_000 / (1_000_000 + self.drift)) as u64;
        while self.read(time) < instant {
            time += 1;
        }
        time
    }
}
