//! Watching the routing table: one task per watcher, which tells it what has changed since it was told last.
//!
//! What a watcher has not taken yet is one message and never more. While it takes its time, nothing is made for it; then it gets the
//! step from what it has to the newest. One that takes nothing at all for long is ended: what its connection holds of it is the message
//! that it does not take.
//!
//! To tell a thousand watchers takes tens of milliseconds of a machine, and a handoff has two steps, milliseconds apart: were the
//! first told at once, it would hold up the second. So the more watchers there are, the longer a change waits for the next one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tonic::Status;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;

use crate::api::nursery::OnDrop;
use crate::api::{Leading, status};
use crate::published::Reading;
use crate::rpc::ready::Message;
use crate::types::{ClusterId, Version};

/// What a watcher gets.
pub type Changes = ReceiverStream<Result<Message, Status>>;

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// A watcher is told this often at least, also when nothing has changed: so it knows that it is being told.
    pub beat: Duration,
    /// How long a watcher may leave a message where it is, and a microsecond more for each byte of it.
    pub patience: Duration,
    /// How long a change waits for the next one, for each watcher that there is.
    pub gathering: Duration,
    /// The longest that it waits, however many there are.
    pub longest_gathering: Duration,
}

/// A timer counts whole milliseconds: what would be less is nothing.
const SHORTEST_GATHERING: Duration = Duration::from_millis(1);

impl Default for Times {
    fn default() -> Times {
        Times {
            beat: Duration::from_secs(5),
            patience: Duration::from_secs(10),
            gathering: Duration::from_micros(10),
            longest_gathering: Duration::from_millis(20),
        }
    }
}

/// Tells a watcher, who has the table `known` if any, everything that it lacks; then every change, until it goes away, is too slow, or
/// this manager stops.
pub fn begin(leading: &Leading, known: Option<(ClusterId, Version)>, times: Times) -> Changes {
    // One for what is told, and one that is kept for the last word.
    let (sender, changes) = mpsc::channel(2);
    let watcher = Watcher { leading: leading.clone(), sender, reading: Reading::from(known), times, last_bytes: 0 };
    leading.nursery.spawn(watcher.run());
    ReceiverStream::new(changes)
}

struct Watcher {
    leading: Leading,
    sender: mpsc::Sender<Result<Message, Status>>,
    reading: Reading,
    times: Times,
    last_bytes: usize,
}

/// Why a watch ends.
enum End {
    /// The watcher went away.
    Gone,
    /// It is told so.
    Told(Status),
}

impl Watcher {
    async fn run(mut self) {
        let metrics = Arc::clone(&self.leading.metrics);
        metrics.watchers(1);
        let _counted = OnDrop(move || metrics.watchers(-1));
        let Ok(last_word) = self.sender.clone().reserve_owned().await else { return };
        let handle = self.leading.handle.clone();
        let end = tokio::select! {
            biased;
            () = handle.stopping() => End::Told(status::stopping()),
            end = self.tell() => end,
        };
        if let End::Told(status) = end {
            last_word.send(Err(status));
        }
    }

    async fn tell(&mut self) -> End {
        let mut editions = self.leading.published.subscribe();
        let mut due = Instant::now();
        loop {
            // First room, then the news: what is told is the newest when it leaves.
            let patience = self.times.patience + Duration::from_micros(self.last_bytes as u64);
            let sender = self.sender.clone();
            let room = match timeout(patience, sender.reserve()).await {
                Ok(Ok(room)) => room,
                Ok(Err(_)) => return End::Gone,
                Err(_) => return End::Told(status::slow_watcher(patience)),
            };
            loop {
                let edition = editions.borrow_and_update().clone();
                let is_due = Instant::now() >= due;
                if let Some(edition) = edition.filter(|edition| is_due || self.reading.lacks(edition)) {
                    let message = self.reading.step_to(&edition);
                    self.last_bytes = prost::Message::encoded_len(&message);
                    room.send(Ok(message));
                    break;
                }
                tokio::select! {
                    changed = editions.changed() => {
                        if changed.is_err() {
                            return End::Told(status::stopping());
                        }
                        tokio::time::sleep(self.gathering()).await;
                    }
                    () = self.sender.closed() => return End::Gone,
                    () = tokio::time::sleep_until(due) => {}
                }
            }
            due = Instant::now() + self.times.beat;
        }
    }

    /// How long a change waits for the next one.
    fn gathering(&self) -> Duration {
        let watchers = u32::try_from(self.leading.published.watchers()).unwrap_or(u32::MAX);
        let time = self.times.gathering.saturating_mul(watchers).min(self.times.longest_gathering);
        if time < SHORTEST_GATHERING { Duration::ZERO } else { time }
    }
}

#[cfg(test)]
mod tests;
