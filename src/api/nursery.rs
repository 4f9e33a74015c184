//! Tasks that end together, and the streams of one connection among them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// A gRPC connection on which nothing was answered for this long has nothing left to say. On a socket that takes bytes at all an answer is out
/// long before; the tail of a huge one to a slow peer may be cut off, and is asked for again.
const QUIET: Duration = Duration::from_millis(20);

/// Tasks that end together.
#[derive(Clone, Debug, Default)]
pub struct Nursery {
    tracker: TaskTracker,
    end: CancellationToken,
}

impl Nursery {
    /// Starts a task that ends, at its next await, when the nursery does.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let end = self.end.clone();
        self.tracker.spawn(async move {
            end.run_until_cancelled(task).await;
        });
    }

    /// Counts tasks that others start and end.
    pub fn tracker(&self) -> TaskTracker {
        self.tracker.clone()
    }

    /// A nursery whose tasks count as, and end with, tasks of this one, and which can be ended alone.
    pub(super) fn child(&self) -> Nursery {
        Nursery { tracker: self.tracker.clone(), end: self.end.child_token() }
    }

    /// Ends its tasks, without waiting, when what this returns is dropped.
    pub(super) fn end_on_drop(&self) -> DropGuard {
        self.end.clone().drop_guard()
    }

    /// Waits until every task has ended by itself. Cancel-safe.
    pub async fn idle(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Ends every task, and returns when every one has really ended, however long one of them blocks its thread.
    pub async fn shutdown(&self) {
        self.end.cancel();
        self.idle().await;
    }
}

/// The tasks that hyper starts for the streams of one HTTP/2 connection: each request, from its headers until its answer is handed over.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    nursery: Nursery,
    traffic: Arc<Mutex<Traffic>>,
}

#[derive(Debug, Default)]
struct Traffic {
    under_way: usize,
    /// When the last one ended.
    ended: Option<Instant>,
}

impl Streams {
    pub(super) fn new(nursery: Nursery) -> Streams {
        Streams { nursery, traffic: Arc::default() }
    }

    /// Whether none is under way, and none ended just now.
    pub(super) fn are_quiet(&self) -> bool {
        let traffic = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        traffic.under_way == 0 && traffic.ended.is_none_or(|ended| ended.elapsed() >= QUIET)
    }

    fn change(&self, change: impl FnOnce(&mut Traffic)) {
        change(&mut self.traffic.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, task: F) {
        self.change(|traffic| traffic.under_way += 1);
        let streams = self.clone();
        // Also where the task is dropped.
        let ended = OnDrop(move || {
            streams.change(|traffic| {
                traffic.under_way -= 1;
                traffic.ended = Some(Instant::now());
            });
        });
        self.nursery.spawn(async move {
            let _ended = ended;
            task.await;
        });
    }
}

/// Does something when a scope is left, by whatever way.
pub(super) struct OnDrop<F: Fn()>(pub(super) F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
