//! An executor's process: the client library's session, with work that is worth fencing. Callers write through it into the storage.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use shard_manager::client::{
    Error, ExecutorSession, Happening, ObserverError, SessionEvent, SessionObserver, ShardGrant, ShardHost,
};
use shard_manager::types::{BootInstant, Epoch, ShardId};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::child;
use crate::history::Part;
use crate::settings::LEASE;
use crate::storage::{self, Answer, Request, Write};

/// A newer process took over under this id.
pub const SUPERSEDED: i32 = 5;
/// The session ended unasked.
pub const FAILED: i32 = 6;

/// Until SIGTERM, on which it leaves, or SIGINT, on which it ends and keeps its shards for the process that comes in its place.
pub async fn run(told: child::Executor) -> i32 {
    tracing_subscriber::fmt().with_env_filter("info").with_ansi(false).with_writer(std::io::stderr).init();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate()).unwrap(), signal(SignalKind::interrupt()).unwrap());
    let part = Part::create(&told.part);
    let work = Work {
        id: told.id.clone(),
        name: told.name,
        seed: told.seed,
        storage: told.storage,
        part: part.clone(),
        incarnation: Arc::default(),
        open: Arc::default(),
    };
    let journal = Journal { part, name: work.name.clone(), incarnation: Arc::clone(&work.incarnation) };
    let session = ExecutorSession::builder(told.id.parse().unwrap(), work.clone())
        .managers(told.managers.iter().map(ToString::to_string))
        .listen(told.listen)
        .advertise(told.advertise.to_string())
        .serve(Router::new().route("/write/{shard}/{key}/{value}", post(write)).with_state(work))
        .observer(journal)
        .start()
        .await;
    let mut session = match session {
        Ok(session) => session,
        Err(error) => {
            tracing::error!(%error, "the session did not begin");
            return FAILED;
        }
    };
    tokio::select! {
        end = session.ended() => return code(&end),
        _ = terminate.recv() => session.begin_leave(2 * LEASE),
        _ = interrupt.recv() => session.begin_restart(),
    }
    code(&session.ended().await)
}

fn code(end: &Result<(), Error>) -> i32 {
    tracing::info!(?end, "the session is over");
    match end {
        Ok(()) => 0,
        Err(Error::Superseded { .. }) => SUPERSEDED,
        Err(_) => FAILED,
    }
}

/// Writes down what the session does, before the session goes on.
struct Journal {
    part: Part,
    name: String,
    /// Of the process as the manager knows it now; the storage is told too.
    incarnation: Arc<Mutex<u64>>,
}

impl SessionObserver for Journal {
    fn observe(&mut self, event: &SessionEvent) -> Result<(), ObserverError> {
        let incarnation = event.incarnation.0;
        *self.incarnation.lock().unwrap_or_else(PoisonError::into_inner) = incarnation;
        let note = |kind: &str, mut fields: Value| {
            fields["executor"] = event.executor_id.as_str().into();
            fields["incarnation"] = incarnation.into();
            self.part.note_at(nanoseconds(event.at), &self.name, kind, fields);
        };
        let shard = |(ShardId(shard), Epoch(epoch)): (ShardId, Epoch)| json!({"shard": shard, "epoch": epoch});
        match event.what {
            Happening::Joined { cluster_id, version } => {
                note("joined", json!({"cluster_id": cluster_id.to_string()}));
                note("registered", json!({"term": version.term.0, "revision": version.revision.0}));
            }
            Happening::Began => {}
            Happening::Leased { until } => note("lease", json!({"until_ns": nanoseconds(until)})),
            Happening::Started(id, epoch) => note("start", shard((id, epoch))),
            Happening::Stopped(id, epoch) => note("stop", shard((id, epoch))),
            Happening::Fenced(id, epoch) => note("fenced", shard((id, epoch))),
            Happening::Superseded => note("superseded", json!({})),
        }
        Ok(())
    }
}

fn nanoseconds(instant: BootInstant) -> u64 {
    u64::try_from(instant.0.as_nanos()).unwrap()
}

/// The shards that are open to callers. Clones are the same.
#[derive(Clone)]
struct Work {
    id: String,
    name: String,
    seed: u64,
    storage: SocketAddr,
    part: Part,
    incarnation: Arc<Mutex<u64>>,
    open: Arc<Mutex<HashMap<u32, Shard>>>,
}

#[derive(Clone)]
struct Shard {
    grant: ShardGrant,
    incarnation: u64,
    /// Counts the calls inside.
    calls: TaskTracker,
    /// The storage has refused the grant's epoch.
    refused: CancellationToken,
}

impl Work {
    fn open<T>(&self, look: impl FnOnce(&mut HashMap<u32, Shard>) -> T) -> T {
        look(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn ask(&self, shard: &Shard, write: Option<Write>) -> Option<Answer> {
        let ShardGrant { shard: ShardId(id), epoch: Epoch(epoch), .. } = shard.grant;
        let request = Request { shard: id, epoch, executor: self.id.clone(), incarnation: shard.incarnation, write };
        let answer = storage::ask(self.storage, &request).await;
        if let Some(Answer::Fenced { seen }) = answer {
            shard.grant.report_storage_epoch(Epoch(seen));
            shard.refused.cancel();
        }
        answer
    }

    /// From here on, leases that come do not cover the shard: its owner was asked to give it back.
    fn note_stopping(&self, shard: &Shard) {
        let ShardGrant { shard: ShardId(id), epoch: Epoch(epoch), .. } = shard.grant;
        let fields = json!({"executor": self.id, "incarnation": shard.incarnation, "shard": id, "epoch": epoch});
        self.part.note(&self.name, "stopping", fields);
    }

    /// What the work on a shard takes to end.
    fn stop_time(&self, grant: &ShardGrant) -> Duration {
        let drawn = StdRng::seed_from_u64(self.seed ^ u64::from(grant.shard.0) << 32 ^ grant.epoch.0).random_range(20..400);
        Duration::from_millis(drawn)
    }

    /// Lets a call into a shard that is open.
    fn enter(&self, shard: u32) -> Option<(Shard, TaskTrackerToken)> {
        // Counted before the lock is given back: who closes the shard after that waits for this call.
        self.open(|open| open.get(&shard).map(|shard| (shard.clone(), shard.calls.token())))
    }
}

/// Keeps a shard open. Dropped, it closes the shard: also where the lease ran out and the session dropped the whole of `run`.
struct Opening<'a>(&'a Work, u32);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.open(|open| open.remove(&self.1));
    }
}

impl ShardHost for Work {
    async fn run(&self, grant: ShardGrant) {
        let incarnation = *self.incarnation.lock().unwrap_or_else(PoisonError::into_inner);
        let id = grant.shard.0;
        let shard = Shard { grant, incarnation, calls: TaskTracker::new(), refused: CancellationToken::new() };
        // The fence first: once it is up, whoever owned the shard before can write no more. To return is to be called again later.
        if self.ask(&shard, None).await != Some(Answer::Done) {
            return;
        }
        self.open(|open| open.insert(id, shard.clone()));
        let opening = Opening(self, id);
        tokio::select! {
            () = shard.grant.cancelled() => self.note_stopping(&shard),
            () = shard.refused.cancelled() => {}
        }
        drop(opening);
        shard.calls.close();
        shard.calls.wait().await;
        tokio::time::sleep(self.stop_time(&shard.grant)).await;
    }
}

/// 200 with the epoch: it is written. 421: this is not the owner. 409: the storage knows a newer owner. 500: it may have been written.
async fn write(State(work): State<Work>, Path((shard, key, value)): Path<(u32, String, u64)>) -> (StatusCode, String) {
    let Some((shard, _inside)) = work.enter(shard) else { return (StatusCode::MISDIRECTED_REQUEST, String::new()) };
    match work.ask(&shard, Some(Write { key, value })).await {
        Some(Answer::Done) => (StatusCode::OK, shard.grant.epoch.0.to_string()),
        Some(Answer::Fenced { seen }) => (StatusCode::CONFLICT, seen.to_string()),
        None => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
    }
}
