//! To be written.

use tokio_util::sync::CancellationToken;

use crate::config::Config;

/// How the manager is run.
pub enum Deployment {
    /// As a process of its own.
    Standalone {
        /// Ends it.
        shutdown: CancellationToken,
    },
    /// Inside another process.
    Embedded {
        /// Ends it.
        shutdown: CancellationToken,
    },
}

/// Why it ended.
#[derive(Debug, thiserror::Error)]
#[error("not written yet")]
pub struct Error;

impl Error {
    /// Of the process.
    pub fn exit_code(&self) -> u8 {
        6
    }
}

/// Waits until it is asked to stop.
pub async fn run(_config: Config, deployment: Deployment) -> Result<(), Error> {
    let (Deployment::Standalone { shutdown } | Deployment::Embedded { shutdown }) = deployment;
    shutdown.cancelled().await;
    Ok(())
}
