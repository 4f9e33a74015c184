//! The tasks of one leadership.

use std::collections::HashMap;

use tokio::task::{Id, JoinError, JoinSet};
use tracing::{info, warn};

use super::Error;

/// Tasks with names.
#[derive(Default)]
pub(super) struct Tasks {
    set: JoinSet<Result<(), Error>>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    pub(super) fn spawn(&mut self, name: &'static str, task: impl Future<Output = Result<(), Error>> + Send + 'static) {
        let id = self.set.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Waits until a task fails. One that ends cleanly stops nothing, unless it was the last. Cancel-safe.
    pub(super) async fn failed(&mut self) -> Error {
        while let Some(joined) = self.set.join_next_with_id().await {
            match self.outcome(joined) {
                Ok(name) => info!(task = name, "a task ended; the others go on"),
                Err(error) => return error,
            }
        }
        Error::AllEnded
    }

    /// Waits until every task has ended. What fails now is said, and changes nothing: a fence refusal while stopping is no news.
    pub(super) async fn drain(&mut self) {
        while let Some(joined) = self.set.join_next_with_id().await {
            if let Err(error) = self.outcome(joined) {
                warn!(error = &error as &dyn std::error::Error, "a task failed while the manager was stopping already");
            }
        }
    }

    /// Ends every task, and returns when every one has really ended.
    pub(super) async fn shutdown(&mut self) {
        self.set.shutdown().await;
    }

    fn outcome(&self, joined: Result<(Id, Result<(), Error>), JoinError>) -> Result<&'static str, Error> {
        let name = |id: &Id| self.names.get(id).copied().unwrap_or("task");
        match joined {
            Ok((id, Ok(()))) => Ok(name(&id)),
            Ok((_, Err(error))) => Err(error),
            Err(error) => Err(Error::Task { name: name(&error.id()), source: error.into() }),
        }
    }
}
