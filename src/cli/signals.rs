//! SIGTERM and SIGINT: the first asks, the second insists.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// So soon after the first a signal is no second one: `timeout`, and some shells, send theirs to the process and to its group.
const ECHO: Duration = Duration::from_millis(500);

/// The exit code after a second signal.
const INSISTED: i32 = 130;

/// Waits for one of the two; which.
pub(super) async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

/// Waits, from the first signal on, for another one that is no echo of it; which.
pub(super) async fn second(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    let first = Instant::now();
    loop {
        let name = either(terminate, interrupt).await;
        if first.elapsed() > ECHO {
            return name;
        }
    }
}

/// From when this returns, the first of either signal cancels the token and a second one, half a second later or more, ends the process at
/// once with exit code 130.
pub(super) fn install() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let shutdown = CancellationToken::new();
    let asked = shutdown.clone();
    tokio::spawn(async move {
        let name = either(&mut terminate, &mut interrupt).await;
        tracing::info!("{name}: stopping in order; a second signal ends the process at once");
        asked.cancel();
        let name = second(&mut terminate, &mut interrupt).await;
        tracing::warn!("second signal, {name}: ending at once, nothing is released");
        std::process::exit(INSISTED);
    });
    Ok(shutdown)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

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
            // The echo of the first one insists on nothing.
            kill_process(pid, second).unwrap();
            let echoed = Instant::now();
            while echoed.elapsed() < Duration::from_millis(200) {
                assert_eq!(child.try_wait().unwrap(), None, "{first:?}, {second:?}");
            }
            let deadline = Instant::now() + Duration::from_secs(20);
            let ended = loop {
                if let Some(ended) = child.try_wait().unwrap() {
                    break ended;
                }
                assert!(Instant::now() < deadline, "{first:?}, {second:?}: it goes on");
                // Gone between the look and the signal, perhaps.
                let _ = kill_process(pid, second);
                std::thread::sleep(Duration::from_millis(50));
            };
            assert_eq!(ended.code(), Some(130), "{first:?}, {second:?}");
        }
    }
}
