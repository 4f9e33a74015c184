//! Leadership on one host: one process per database file.
//!
//! The lock is `flock` on a file beside the database, found by the database's real name, so that symbolic links meet. The kernel
//! drops it when its holder dies, however that dies. What fences is not the lock but the number that each leadership draws in the
//! database: somebody who gets around the lock (by deleting its file) takes the leadership over, and does not share it.
//!
//! The text in the file is for people. It may be stale in a file that nobody has locked. The file is never deleted: somebody else
//! may have opened it already, and two files of that name would be two locks.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{Belief, Election, Error, Holder, Leadership, Lost};
use crate::backend::Fence;
use crate::backend::sqlite::{Database, Identity, leader_file};
use crate::types::Token;

/// How often a leader looks whether its files are still the ones at their paths.
const LOOK_EVERY: Duration = Duration::from_secs(1);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Campaigns for the one leadership of a database file. It cannot be waited for.
#[derive(Clone, Debug)]
pub struct HostElection {
    database: Arc<Database>,
    holder: String,
}

impl HostElection {
    /// `holder` describes this process to people who ask who leads; it is one line.
    pub fn new(database: Arc<Database>, holder: impl Into<String>) -> HostElection {
        HostElection { database, holder: holder.into() }
    }
}

#[async_trait::async_trait]
impl Election for HostElection {
    async fn campaign(&self, shutdown: &CancellationToken) -> Result<Leadership, Error> {
        if shutdown.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let path = leader_file(self.database.path());
        let (locked, holder) = (path.clone(), self.holder.clone());
        let lock = tokio::task::spawn_blocking(move || Lock::take(locked, &holder)).await;
        let lock = match lock.map_err(io::Error::other).and_then(|lock| lock) {
            Ok(Ok(lock)) => lock,
            Ok(Err(holder)) => {
                let what = format!("the leadership of {} (lock file {})", self.database.path().display(), path.display());
                return Err(Error::HeldElsewhere { what, holder });
            }
            Err(error) => {
                let source = format!("{}: {error}", path.display()).into();
                return Err(Error::Store { what: "locking the file beside the database", source });
            }
        };

        let token = Token::draw();
        let drawn = tokio::select! {
            drawn = self.database.draw_leadership(token, &self.holder) => drawn,
            () = shutdown.cancelled() => return Err(Error::Cancelled),
        };
        let number = drawn.map_err(|error| Error::Store { what: "drawing a leadership number", source: error.into() })?;

        let (lose, lost) = oneshot::channel();
        let watch =
            AbortOnDropHandle::new(tokio::spawn(watch(Arc::clone(&self.database), lock.path.clone(), lock.identity, lose)));
        let fence = Fence::Sql { number, token };
        Ok(Leadership::new(fence, Belief::WhileAlive, lost, Box::new(HostHolder { lock, watch })))
    }
}

struct HostHolder {
    lock: Lock,
    watch: AbortOnDropHandle<()>,
}

#[async_trait::async_trait]
impl Holder for HostHolder {
    async fn release(self: Box<Self>) -> Result<(), BoxError> {
        let HostHolder { lock, watch } = *self;
        drop(watch);
        let path = lock.path.clone();
        let released = tokio::task::spawn_blocking(move || lock.release()).await?;
        released.map_err(|error| format!("{}: {error}", path.display()).into())
    }
}

/// Says so when the database or the lock's file is no longer the one at its path: then the next process would lead beside this one.
async fn watch(database: Arc<Database>, lock: PathBuf, identity: Identity, lose: oneshot::Sender<Lost>) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    loop {
        ticks.tick().await;
        if let Some(reason) = database.displaced().or_else(|| identity.displaced(&lock)) {
            // Nobody may be listening any more.
            lose.send(Lost::Taken(reason)).ok();
            return;
        }
    }
}

/// The locked file. Dropped, it is unlocked.
struct Lock {
    path: PathBuf,
    file: File,
    identity: Identity,
}

impl Lock {
    /// Locks the file at `path`, or says who has it.
    fn take(path: PathBuf, holder: &str) -> io::Result<Result<Lock, String>> {
        loop {
            let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Err(holder_of(&mut file))),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let identity = Identity::from(&file.metadata()?);
            if identity.displaced(&path).is_some() {
                // Deleted or replaced between opening and locking it.
                continue;
            }
            file.set_len(0)?;
            writeln!(file, "{}\n{}", std::process::id(), holder.lines().next().unwrap_or_default())?;
            return Ok(Ok(Lock { path, file, identity }));
        }
    }

    fn release(self) -> io::Result<()> {
        self.file.set_len(0)?;
        Ok(flock(&self.file, FlockOperation::Unlock)?)
    }
}

/// Who has locked the file, by what they wrote into it.
fn holder_of(file: &mut File) -> String {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).and_then(|_| file.take(1000).read_to_string(&mut text)).ok();
    let mut lines = text.lines();
    match lines.next().and_then(|pid| pid.parse::<u32>().ok()) {
        Some(pid) => match lines.next().unwrap_or_default() {
            "" => format!("process {pid}"),
            description => format!("process {pid} ({description})"),
        },
        None => "another process that has not written down its pid yet".to_owned(),
    }
}
