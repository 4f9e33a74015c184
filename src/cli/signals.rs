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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process};

    const INSIDE: &str = "SIGNALS_TEST_INSIDE";

    /// What the other test runs as a process of its own: stops for no first signal.
    #[tokio::test]
    async fn inside() {
        if std::env::var_os(INSIDE).is_some() {
            let shutdown = super::install().unwrap();
            println!("\ninstalled");
            shutdown.cancelled().await;
            println!("asked");
            std::future::pending().await
        }
    }

    #[test]
    fn the_first_signal_asks_and_the_second_ends_the_process_with_130() {
        for (first, second) in [(Signal::TERM, Signal::INT), (Signal::INT, Signal::TERM), (Signal::TERM, Signal::TERM)] {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "cli::signals::tests::inside", "--nocapture"])
                .env(INSIDE, "yes")
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let pid = Pid::from_child(&child);
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
            assert!(lines.any(|line| line == "installed"));
            kill_process(pid, first).unwrap();
            assert!(lines.any(|line| line == "asked"), "{first:?} cancels the token");
            kill_process(pid, second).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(130), "{first:?}, {second:?}");
        }
    }
}
