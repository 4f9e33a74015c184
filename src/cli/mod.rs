//! The command line: `serve`, the commands that talk to a running manager, and a small real executor for trying things out.
//!
//! Results go to standard output, as a table for people or, with `--json`, as JSON for programs; everything else goes to standard
//! error. Exit codes: 0 done, 1 not done (no manager answers, it refuses, a check found something, the time for waiting is over), 2 usage
//! or configuration, 130 interrupted while waiting; those of `serve` stand in `docs/operations.md`, those of `export` and `import` in
//! `docs/moving.md`, those of `conformance` in its help.

#[cfg(any(test, shard_manager_fuzzing))]
pub(crate) mod answers;
mod asker;
mod config;
mod conformance;
mod drain;
pub mod executor;
mod executors;
mod explain;
mod export;
mod http;
mod import;
pub mod journal;
mod logging;
mod manager;
mod moves;
mod output;
mod plan;
mod rebalance;
mod serve;
mod signals;
mod status;
mod step_down;
mod table;
mod wait;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{LogFormat, Sources};

/// Decides which executor process owns which shard of a sharded stateful system.
#[derive(Debug, Parser)]
#[command(name = "shard-manager", version, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a manager
    Serve(SourceArguments),
    /// Check or show the configuration that `serve` would run with
    #[command(subcommand)]
    Config(config::Command),
    /// How the manager and its cluster are
    Status(status::Arguments),
    /// Who owns which shard
    Table(table::Arguments),
    /// Which executors there are, and how they are
    Executors(executors::Arguments),
    /// Move every shard away from an executor and let none come, until it is uncordoned
    Drain(drain::DrainArguments),
    /// Let no new shard come to an executor; what is there stays
    Cordon(drain::ChangeArguments),
    /// End a cordon or a drain
    Uncordon(drain::ChangeArguments),
    /// Move every shard away from an executor, then bar its id until it is admitted again
    Remove(drain::RemoveArguments),
    /// Take a removal back, whether it is under way or over
    Admit(drain::ChangeArguments),
    /// Move shards to an executor, within the bounds of the balance
    Move(moves::Arguments),
    /// Let no shard move for balance for a while
    #[command(subcommand)]
    Rebalance(rebalance::Command),
    /// What would move if executors joined, left or were drained; nothing is done
    Plan(plan::Arguments),
    /// Who owns a shard, since when, why there, and what it waits for
    Explain(explain::Arguments),
    /// Let another replica lead; where nobody waits, the same one leads again
    StepDown(asker::Asking),
    /// Take the state out of its store and seal the store, so that the cluster can go on in another one
    Export(export::Arguments),
    /// Put an exported state into an empty store
    Import(import::Arguments),
    /// Run an executor that owns shards and does nothing with them
    Executor(executor::Arguments),
    /// Play a manager against an executor, and say which rules for executors it breaks
    Conformance(conformance::Arguments),
    /// Look into the journals that executors write
    #[command(subcommand)]
    Journal(Journal),
}

#[derive(Debug, Subcommand)]
enum Journal {
    /// Look for overlapping ownership, epochs that do not grow and shards without an owner
    Check(journal::Arguments),
}

/// Where the configuration comes from; also read from SHARD_MANAGER__SECTION__KEY variables.
#[derive(Clone, Debug, clap::Args)]
struct SourceArguments {
    /// A TOML file; every key is optional
    #[arg(long = "config", value_name = "FILE")]
    file: Option<std::path::PathBuf>,
    /// Override one key, e.g. grpc.listen=127.0.0.1:0; may be repeated, and overrides the environment and the file
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
}

impl SourceArguments {
    /// The configuration, where it came from, and what is allowed but probably not meant.
    fn load(self) -> Result<(crate::config::Config, crate::config::Provenance, Vec<String>), crate::config::Error> {
        let env = crate::config::environment()?;
        let sources = Sources { file: self.file, env, sets: self.sets };
        let (config, provenance) = crate::config::Config::load(&sources)?;
        let warnings = [sources.warnings(), config.warnings()].concat();
        Ok((config, provenance, warnings))
    }
}

/// Why a command failed. Each is shown on standard error as it is.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] crate::config::Error),
    /// The store cannot be reached as the configuration says.
    #[error(transparent)]
    Store(#[from] crate::backend::settings::Invalid),
    /// No manager did what was asked.
    #[error(transparent)]
    Manager(#[from] manager::Error),
    /// The HTTP endpoint of a replica did not answer as it should.
    #[error(transparent)]
    Http(#[from] http::Error),
    /// The manager's answer contradicts itself.
    #[error("the manager's answer makes no sense: {0}")]
    Nonsense(String),
    /// The result cannot be written.
    #[error("cannot write to standard output")]
    Output(#[from] std::io::Error),
    /// The process cannot be set up.
    #[error("cannot {what}")]
    Process { what: &'static str, source: std::io::Error },
    /// The port is taken, or not ours to open.
    #[error("cannot listen on {listen}")]
    Listen { listen: std::net::SocketAddr, source: std::io::Error },
    /// What was waited for did not happen in time.
    #[error("{0}")]
    TimedOut(String),
    /// What was waited for is over, and came out otherwise.
    #[error("{0}")]
    Undone(String),
    /// Somebody did not want to wait any longer.
    #[error("{0}")]
    Interrupted(String),
}

impl Error {
    fn exit_code(&self) -> ExitCode {
        match self {
            Error::Config(_) | Error::Store(_) => ExitCode::from(2),
            Error::Interrupted(_) | Error::Manager(manager::Error::Interrupted) => ExitCode::from(130),
            _ => ExitCode::FAILURE,
        }
    }
}

/// Does what the command line asks, and says how the process should end.
pub async fn run(arguments: Arguments) -> ExitCode {
    let result = match arguments.command {
        Command::Serve(arguments) => serve::run(arguments).await,
        Command::Config(command) => config::run(command),
        Command::Status(arguments) => status::run(arguments).await,
        Command::Table(arguments) => table::run(arguments).await,
        Command::Executors(arguments) => executors::run(arguments).await,
        Command::Drain(arguments) => drain::drain(arguments).await,
        Command::Cordon(arguments) => drain::cordon(arguments).await,
        Command::Uncordon(arguments) => drain::uncordon(arguments).await,
        Command::Remove(arguments) => drain::remove(arguments).await,
        Command::Admit(arguments) => drain::admit(arguments).await,
        Command::Move(arguments) => moves::run(arguments).await,
        Command::Rebalance(command) => rebalance::run(command).await,
        Command::Plan(arguments) => plan::run(arguments).await,
        Command::Explain(arguments) => explain::run(arguments).await,
        Command::StepDown(arguments) => step_down::run(arguments).await,
        Command::Export(arguments) => export::run(arguments).await,
        Command::Import(arguments) => import::run(arguments).await,
        Command::Executor(arguments) => {
            logging::start(LogFormat::Text, &std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()));
            Ok(executor::run(arguments).await)
        }
        Command::Conformance(arguments) => conformance::run(arguments).await,
        Command::Journal(Journal::Check(arguments)) => Ok(journal::run(&arguments)),
    };
    result.unwrap_or_else(|error| {
        output::say(&format!("error: {}", output::with_causes(&error)));
        error.exit_code()
    })
}

/// Says that no runtime could be started, and how the process should end.
pub fn no_runtime(error: &std::io::Error) -> ExitCode {
    output::say(&format!("error: cannot start the runtime: {error}"));
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
