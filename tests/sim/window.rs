//! What a leader shows its readers: the real editions and steps, told to each in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use shard_manager::assignment::command::Snapshot;
use shard_manager::published::{Edition, Published, Reading};
use shard_manager::types::{BootInstant, ClusterId, Version};

use crate::context::{Context, Message, Node};

/// A reader is told this often at least.
const BEAT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Window {
    published: Published,
    watchers: BTreeMap<usize, Watcher>,
}

struct Watcher {
    stream: u64,
    place: u64,
    reading: Reading,
    due: BootInstant,
}

impl Window {
    pub fn publish(&self, snapshot: Snapshot) {
        self.published.publish(snapshot);
    }

    pub fn newest(&self) -> Option<Arc<Edition>> {
        self.published.current()
    }

    pub fn snapshot(&self) -> Option<Snapshot> {
        self.newest().map(|edition| edition.snapshot.clone())
    }

    /// What somebody is told who comes with nothing.
    pub fn whole(&self) -> Option<Vec<u8>> {
        self.newest().map(|edition| Reading::from(None).step_to(&edition).encode_to_vec())
    }

    /// A reader has one watch: the one before it has dropped.
    pub fn open(&mut self, reader: usize, stream: u64, known: Option<(ClusterId, Version)>, now: BootInstant) {
        self.watchers.insert(reader, Watcher { stream, place: 0, reading: Reading::from(known), due: now });
    }

    /// Tells everybody what they lack; when somebody is to be told again.
    pub fn tell(&mut self, at: usize, now: BootInstant, context: &mut Context) -> Option<BootInstant> {
        let edition = self.newest()?;
        for (reader, watcher) in &mut self.watchers {
            if watcher.due <= now || watcher.reading.lacks(&edition) {
                let what = Some(watcher.reading.step_to(&edition).encode_to_vec());
                let told = Message::Told { stream: watcher.stream, place: watcher.place, what };
                context.send(Node::Replica(at), Node::Reader(*reader), told);
                watcher.place += 1;
                watcher.due = now.after(BEAT);
            }
        }
        self.watchers.values().map(|watcher| watcher.due).min()
    }
}
