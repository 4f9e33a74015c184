//! Whether the machine kept up: c and r are taken as 50 ms each, so a bound says nothing about a moment at which a bare write took longer.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often it is tried.
const EVERY: Duration = Duration::from_millis(10);

/// Writes that were late, while [`Pulse::beat`] goes on.
#[derive(Default)]
pub struct Pulse {
    /// When each was over, and how long it took from when it was due.
    beats: Mutex<Vec<(Instant, Duration)>>,
    is_over: AtomicBool,
}

impl Pulse {
    /// Writes a page to a file and waits for the disk, over and over, until [`Pulse::end`].
    pub fn beat(&self) {
        let mut file = tempfile::tempfile().unwrap();
        while !self.is_over.load(Ordering::Relaxed) {
            let due = Instant::now() + EVERY;
            std::thread::sleep(EVERY);
            file.write_all(&[7; 4096]).unwrap();
            file.sync_data().unwrap();
            self.beats.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), due.elapsed()));
        }
    }

    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// The longest that a write took which ended after `since`.
    pub fn longest(&self, since: Instant) -> Duration {
        let beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        beats.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, took)| *took).max().unwrap_or_default()
    }
}
