//! `executor`: a small real executor on the client library, for trying things out and for tests.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::{journal, output, signals};
use crate::client::{Error, ExecutorSession, ShardGrant, ShardHost, StartError};
use crate::types::ExecutorId;

/// Bad arguments, found when they are used.
const USAGE: u8 = 2;
/// A newer process took over under this id.
const SUPERSEDED: u8 = 5;
/// The session ended unasked.
const FAILED: u8 = 6;
/// A second signal.
const SECOND_SIGNAL: u8 = 130;

/// Runs a small executor: it owns shards and does nothing with them.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The executor's stable name; no other process may use it.
    #[arg(long, value_name = "ID")]
    pub id: ExecutorId,
    /// Addresses of managers, as host:port or http://host:port; repeatable, or separated by commas.
    #[arg(long, value_name = "URL", value_delimiter = ',', num_args = 1.., default_value = "http://127.0.0.1:9092")]
    pub manager: Vec<String>,
    /// Where to serve the manager's commands; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))]
    pub listen: SocketAddr,
    /// Where the manager reaches this process, as host:port or http://host:port. Default: the address listened on.
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<String>,
    /// The share of the shards, relative to other executors.
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub weight: u32,
    /// How long the work on a shard goes on after it was told to stop, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub stop_delay: u64,
    /// How long to let the manager move the shards away when told to end by SIGTERM or SIGINT, e.g. 30, 30s, 500ms.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub leave_timeout: Duration,
    /// When told to end by SIGTERM or SIGINT, stop the shards but give none away: the next process of this id at the same address goes
    /// on with them, if it comes before the lease is over.
    #[arg(long, conflicts_with = "leave_timeout")]
    pub keep_shards: bool,
    /// Append here, as JSON lines, what happens to every shard.
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
}

/// Seconds, or milliseconds with `ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let refused = || format!("{text:?} is no time: it must be like 30, 30s or 500ms");
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, Duration::from_millis(1)),
        None => (text.strip_suffix('s').unwrap_or(text), Duration::from_secs(1)),
    };
    let number: u32 = number.trim().parse().map_err(|_| refused())?;
    Ok(unit * number)
}

/// Does nothing with a shard until it is cancelled, and then for a while longer.
struct Idle {
    stop_delay: Duration,
}

impl ShardHost for Idle {
    async fn run(&self, grant: ShardGrant) {
        grant.cancelled().await;
        if !self.stop_delay.is_zero() {
            tokio::time::sleep(self.stop_delay).await;
        }
    }
}

/// Runs `executor` until a signal or the session's end. Needs a tokio runtime and a tracing subscriber.
///
/// Exit codes: 0 asked to stop, 2 unusable arguments, 5 superseded, 6 the session failed, 130 second signal.
pub async fn run(arguments: Arguments) -> ExitCode {
    let (mut terminate, mut interrupt) = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(error), _) | (_, Err(error)) => return fail(FAILED, &format!("cannot watch for signals: {error}")),
    };
    let mut builder =
        ExecutorSession::builder(arguments.id.clone(), Idle { stop_delay: Duration::from_millis(arguments.stop_delay) })
            .managers(&arguments.manager)
            .listen(arguments.listen)
            .weight(arguments.weight);
    if let Some(address) = &arguments.advertise {
        builder = builder.advertise(address);
    }
    if let Some(path) = &arguments.journal {
        builder = match journal::Writer::open(path) {
            Ok(writer) => builder.observer(writer),
            Err(error) => return fail(USAGE, &format!("cannot open the journal {}: {error}", path.display())),
        };
    }
    let mut session = match builder.start().await {
        Ok(session) => session,
        Err(error) => return fail(USAGE, &start_error(&error)),
    };
    // A reader of our output that went away is no reason to stop.
    let _ = writeln!(
        std::io::stdout(),
        "executor {} listens on {}, advertised as {}",
        arguments.id,
        session.local_addr(),
        session.endpoint()
    );

    tokio::select! {
        end = session.ended() => return exit_code(end),
        _ = signals::either(&mut terminate, &mut interrupt) => {}
    }
    if arguments.keep_shards {
        tracing::info!(executor = %arguments.id, "asked to stop; the shards stay this executor's until its lease is over");
        session.begin_restart();
    } else {
        tracing::info!(executor = %arguments.id, timeout = ?arguments.leave_timeout, "asked to stop; leaving");
        session.begin_leave(arguments.leave_timeout);
    }
    tokio::select! {
        end = session.ended() => exit_code(end),
        _ = signals::second(&mut terminate, &mut interrupt) => {
            fail(SECOND_SIGNAL, "second signal: ending at once")
        }
    }
}

fn exit_code(end: Result<(), Error>) -> ExitCode {
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ Error::Superseded { .. }) => fail(SUPERSEDED, &error.to_string()),
        Err(error) => {
            let message = output::with_causes(&error);
            tracing::error!(error = message, "the executor ends unasked");
            fail(FAILED, &message)
        }
    }
}

fn start_error(error: &StartError) -> String {
    match error {
        // These show their source in their own text.
        StartError::Manager(_) | StartError::Advertise(_) => error.to_string(),
        StartError::Unreachable { .. } => format!("{error} (--advertise)"),
        _ => output::with_causes(error),
    }
}

fn fail(code: u8, message: &str) -> ExitCode {
    eprintln!("error: {message}");
    ExitCode::from(code)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(arguments: &[&str]) -> Result<Arguments, String> {
        let all = ["executor"].iter().chain(arguments);
        Command::try_parse_from(all).map(|command| command.arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_have_the_documented_defaults() {
        let arguments = parse(&["--id", "e"]).unwrap();
        assert_eq!(arguments.manager, ["http://127.0.0.1:9092"]);
        assert_eq!((arguments.listen.to_string().as_str(), arguments.advertise), ("127.0.0.1:0", None));
        assert_eq!((arguments.weight, arguments.stop_delay, arguments.leave_timeout), (1, 0, Duration::from_secs(10)));
    }

    #[test]
    fn managers_are_repeated_or_separated_by_commas() {
        let arguments = parse(&["--manager", "a:1,b:1", "--id", "e", "--manager", "c:1", "--leave-timeout", "500ms"]).unwrap();
        assert_eq!(
            (arguments.manager, arguments.leave_timeout),
            (vec!["a:1".into(), "b:1".into(), "c:1".into()], Duration::from_millis(500))
        );
    }

    #[test]
    fn bad_values_are_refused_with_the_value_and_the_rule() {
        assert!(parse(&["--id", "a b"]).unwrap_err().contains("executor id \"a b\" is refused"));
        assert!(parse(&["--id", "e", "--weight", "0"]).unwrap_err().contains("0 is not in 1..=1000"));
        assert!(parse(&["--id", "e", "--leave-timeout", "soon"]).unwrap_err().contains("it must be like 30, 30s or 500ms"));
    }
}
