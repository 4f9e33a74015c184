//! SIGTERM and SIGINT: the first asks, the second insists.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code after a second signal.
const INSISTED: i32 = 130;

/// From when this returns, the first of either signal cancels the token and a second ends the process at once with exit code 130.
pub(super) fn install() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let shutdown = CancellationToken::new();
    let asked = shutdown.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let name = next().await;
        tracing::info!("{name}: stopping in order; a second signal ends the process at once");
        asked.cancel();
        let name = next().await;
        tracing::warn!("second signal, {name}: ending at once, nothing is released");
        std::process::exit(INSISTED);
    });
    Ok(shutdown)
}
