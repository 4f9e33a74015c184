//! `rebalance`: lets no shard move for balance for a while.

use std::process::ExitCode;
use std::time::Duration;

use humantime_serde::re::humantime::{format_duration, parse_duration};
use serde::Serialize;

use super::Error;
use super::asker::{Asking, asked_by};
use super::manager::{self, Managers};
use super::output::{self, Format};
use crate::assignment::event::PAUSE_LENGTHS;
use crate::clock;
use crate::rpc::{GetStatusRequest, PauseRebalancingRequest, ResumeRebalancingRequest};

/// See the module.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Let no shard move for balance; shards without an owner, drains and removals go on
    Pause(PauseArguments),
    /// End such a pause at once
    Resume(Asking),
    /// Whether there is such a pause, until when, and why
    Status(StatusArguments),
}

/// Of `rebalance pause`.
#[derive(Debug, clap::Args)]
pub(super) struct PauseArguments {
    /// How long, such as 30m or 2h: 1s to 7days. It ends by itself, and survives a change of leader
    #[arg(long = "for", value_name = "DURATION", value_parser = pause_length)]
    length: Duration,
    #[command(flatten)]
    asking: Asking,
}

/// A length of time within the rule of pauses.
fn pause_length(text: &str) -> Result<Duration, String> {
    let length = parse_duration(text).map_err(|error| error.to_string())?;
    if PAUSE_LENGTHS.contains(&length) { Ok(length) } else { Err("a pause lasts 1s to 7days".to_owned()) }
}

/// Of `rebalance status`.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    managers: Managers,
    #[command(flatten)]
    format: Format,
}

/// What these commands print with `--json`.
#[derive(Debug, PartialEq, Serialize)]
struct State {
    paused: bool,
    /// In milliseconds since 1970, by the manager's clock; `None` where it is not paused.
    until_unix_ms: Option<u64>,
    term: u64,
    revision: u64,
    /// What the manager says of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

pub(super) async fn run(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Pause(arguments) => pause(arguments).await,
        Command::Resume(arguments) => resume(arguments).await,
        Command::Status(arguments) => status(arguments).await,
    }
}

async fn pause(arguments: PauseArguments) -> Result<ExitCode, Error> {
    let PauseArguments { length, asking: Asking { reason, managers, format } } = arguments;
    let length_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let request = PauseRebalancingRequest { length_ms, asked_by: asked_by(), reason };
    let answer = managers.change(async |channel| manager::admin(channel).pause_rebalancing(request.clone()).await).await?;
    let version = answer.version.unwrap_or_default();
    let until = Some(answer.until_ms);
    let state = State { paused: true, until_unix_ms: until, term: version.term, revision: version.revision, notes: Vec::new() };
    let text = format!(
        "nothing moves for balance until {}, in {}; `shard-manager rebalance resume` ends that",
        clock::text(answer.until_ms),
        format_duration(length)
    );
    print(&format, &state, &text)
}

async fn resume(asking: Asking) -> Result<ExitCode, Error> {
    let Asking { reason, managers, format } = asking;
    let request = ResumeRebalancingRequest { asked_by: asked_by(), reason };
    let answer = managers.change(async |channel| manager::admin(channel).resume_rebalancing(request.clone()).await).await?;
    let version = answer.version.unwrap_or_default();
    let state = State { paused: false, until_unix_ms: None, term: version.term, revision: version.revision, notes: Vec::new() };
    print(&format, &state, "shards move for balance")
}

async fn status(arguments: StatusArguments) -> Result<ExitCode, Error> {
    let question = async |channel| manager::admin(channel).get_status(GetStatusRequest {}).await;
    let answer = arguments.managers.ask(question).await?;
    let until = Some(answer.rebalancing_paused_until_ms).filter(|until| *until > 0);
    let version = answer.version.unwrap_or_default();
    let notes: Vec<String> = answer.notes.into_iter().filter(|note| note.starts_with("rebalancing is paused")).collect();
    let text = match (until, notes.first()) {
        (None, _) => "shards move for balance".to_owned(),
        (Some(_), Some(note)) => note.clone(),
        (Some(until), None) => format!("rebalancing is paused until {}", clock::text(until)),
    };
    let state = State { paused: until.is_some(), until_unix_ms: until, term: version.term, revision: version.revision, notes };
    print(&arguments.format, &state, &text)
}

fn print(format: &Format, state: &State, text: &str) -> Result<ExitCode, Error> {
    let printed = if format.json { output::print_json(state) } else { output::print(text) };
    Ok(printed?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_that_is_too_long_is_refused_before_a_manager_is_asked() {
        assert_eq!(pause_length("7days"), Ok(Duration::from_secs(7 * 86_400)));
        for text in ["8d", "999ms", "0s"] {
            assert_eq!(pause_length(text), Err("a pause lasts 1s to 7days".to_owned()), "{text}");
        }
    }
}
