//! `drain`, `cordon` and `uncordon`: what an operator wants of one executor id.

use std::process::ExitCode;
use std::time::Duration;

use humantime_serde::re::humantime::{format_duration, parse_duration};
use serde::Serialize;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::asker::asked_by;
use super::manager::{self, Managers};
use super::output::{self, Format};
use super::{Error, executors};
use crate::rpc::{self, ChangeExecutorRequest, ChangeExecutorResponse, GetStatusRequest};
use crate::types::ExecutorId;

/// How often `drain --wait` looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How long nothing may change before `drain --wait` asks the manager why, and how often it asks again.
const SILENCE: Duration = Duration::from_secs(5);

/// Of `cordon` and `uncordon`, and of `drain` among others.
#[derive(Debug, clap::Args)]
pub(super) struct ChangeArguments {
    /// The executor's id
    #[arg(value_name = "ID")]
    id: ExecutorId,
    /// Why, for the manager's log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    managers: Managers,
    #[command(flatten)]
    format: Format,
}

/// Of `drain`.
#[derive(Debug, clap::Args)]
pub(super) struct DrainArguments {
    #[command(flatten)]
    change: ChangeArguments,
    /// Wait until the executor has no shard left
    #[arg(long)]
    wait: bool,
    /// How long to wait, such as 90s or 5m; the drain stays in force afterwards
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration, requires = "wait")]
    timeout: Duration,
}

/// What these commands print with `--json`.
#[derive(Debug, PartialEq, Serialize)]
struct Done<'a> {
    executor: &'a str,
    done: &'static str,
    term: u64,
    revision: u64,
}

pub(super) async fn cordon(arguments: ChangeArguments) -> Result<ExitCode, Error> {
    let call = async |channel: Channel, change| manager::admin(channel).cordon_executor(change).await;
    let answer = arguments.ask(call).await?;
    arguments.print("cordoned", "gets no new shards; `shard-manager uncordon` ends that", answer)
}

pub(super) async fn uncordon(arguments: ChangeArguments) -> Result<ExitCode, Error> {
    let call = async |channel: Channel, change| manager::admin(channel).uncordon_executor(change).await;
    let answer = arguments.ask(call).await?;
    arguments.print("uncordoned", "may get shards again", answer)
}

pub(super) async fn drain(arguments: DrainArguments) -> Result<ExitCode, Error> {
    let DrainArguments { change: arguments, wait, timeout } = arguments;
    let call = async |channel: Channel, change| manager::admin(channel).drain_executor(change).await;
    let answer = arguments.ask(call).await?;
    if !wait {
        return arguments.print("draining", "is being drained; `shard-manager uncordon` ends that", answer);
    }
    match tokio::time::timeout(timeout, arguments.wait_until_drained()).await {
        Ok(result) => result?,
        Err(_) => return Err(Error::TimedOut(arguments.not_drained(timeout).await)),
    }
    arguments.print("drained", "has no shard left", answer)
}

impl ChangeArguments {
    async fn ask(
        &self,
        call: impl AsyncFn(Channel, ChangeExecutorRequest) -> Result<Response<ChangeExecutorResponse>, Status>,
    ) -> Result<ChangeExecutorResponse, manager::Error> {
        let change =
            ChangeExecutorRequest { executor_id: self.id.to_string(), asked_by: asked_by(), reason: self.reason.clone() };
        self.managers.ask(async |channel| call(channel, change.clone()).await).await
    }

    fn print(&self, done: &'static str, meaning: &str, answer: ChangeExecutorResponse) -> Result<ExitCode, Error> {
        let version = answer.version.unwrap_or_default();
        let executor = self.id.as_str();
        let printed = if self.format.json {
            output::print_json(&Done { executor, done, term: version.term, revision: version.revision })
        } else {
            output::print(&format!("executor {executor} {meaning}"))
        };
        Ok(printed?)
    }

    /// Looks again and again, and says what changes, or why nothing does. A manager that goes away and comes back is waited for.
    async fn wait_until_drained(&self) -> Result<(), manager::Error> {
        let (mut said, mut noted) = (String::new(), Vec::new());
        let mut ask_why_at = Instant::now() + SILENCE;
        loop {
            let progress = match executors::list(&self.managers).await {
                Ok(executors) => match progress(&executors, self.id.as_str()) {
                    Progress::Done => return Ok(()),
                    Progress::Left(shards) => format!("executor {}: {shards} shards left", self.id),
                },
                Err(error) if error.is_passing() => format!("still waiting: {error}"),
                Err(error) => return Err(error),
            };
            if progress != said {
                output::say(&progress);
                said = progress;
                ask_why_at = Instant::now() + SILENCE;
            } else if Instant::now() >= ask_why_at {
                // Where it does not answer just now, the next look says so.
                if let Ok(notes) = self.notes().await
                    && notes != noted
                {
                    notes.iter().for_each(|note| output::say(&format!("the manager says: {note}")));
                    noted = notes;
                }
                ask_why_at = Instant::now() + SILENCE;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Why the manager does not do more.
    async fn notes(&self) -> Result<Vec<String>, manager::Error> {
        let question = async |channel| manager::admin(channel).get_status(GetStatusRequest {}).await;
        Ok(self.managers.ask(question).await?.notes)
    }

    async fn not_drained(&self, waited: Duration) -> String {
        let left = match executors::list(&self.managers).await.map(|executors| progress(&executors, self.id.as_str())) {
            Ok(Progress::Left(shards)) => format!("{shards} shards are left"),
            Ok(Progress::Done) => "the last shard left just now".to_owned(),
            Err(error) => error.to_string(),
        };
        let waited = format_duration(waited);
        format!(
            "executor {} was not drained within {waited}: {left}; the drain stays in force until `shard-manager uncordon`",
            self.id
        )
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    /// Drained, or gone.
    Done,
    /// So many shards still name it as their owner.
    Left(u32),
}

/// An id may stand for several incarnations, of which the older ones are on their way out: all of them count.
fn progress(executors: &[rpc::Executor], id: &str) -> Progress {
    let ours = executors.iter().filter(|executor| executor.id == id);
    let finished = |executor: &rpc::Executor| executor.shards == 0 && matches!(executor.state.as_str(), "drained" | "lapsed");
    let left: Vec<u32> = ours.filter(|executor| !finished(executor)).map(|executor| executor.shards).collect();
    if left.is_empty() { Progress::Done } else { Progress::Left(left.iter().sum()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executor(id: &str, state: &str, shards: u32) -> rpc::Executor {
        rpc::Executor { id: id.into(), state: state.into(), shards, ..rpc::Executor::default() }
    }

    #[test]
    fn a_drain_is_done_when_no_incarnation_has_a_shard_left() {
        let others = executor("b", "active", 9);
        assert_eq!(progress(&[others.clone(), executor("a", "draining", 3)], "a"), Progress::Left(3));
        assert_eq!(progress(&[others.clone(), executor("a", "drained", 0)], "a"), Progress::Done);
        assert_eq!(progress(&[others], "a"), Progress::Done, "it is gone");
        assert_eq!(progress(&[executor("a", "lapsed", 2), executor("a", "drained", 0)], "a"), Progress::Left(2));
        assert_eq!(progress(&[executor("a", "lapsed", 0)], "a"), Progress::Done, "it is away and owns nothing");
        assert_eq!(progress(&[executor("a", "draining", 0)], "a"), Progress::Left(0), "not settled yet");
    }
}
