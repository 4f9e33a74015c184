//! `drain`, `cordon`, `uncordon`, `remove` and `admit`: what an operator wants of one executor id.

use std::process::ExitCode;

use serde::Serialize;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::asker::{Asking, asked_by};
use super::manager;
use super::output;
use super::wait::{Seen, WaitArguments, Waiting};
use super::{Error, executors};
use crate::rpc::{self, ChangeExecutorRequest, ChangeExecutorResponse, RemoveExecutorRequest};
use crate::types::ExecutorId;

/// Of `cordon`, `uncordon` and `admit`, and of the others among others.
#[derive(Debug, clap::Args)]
pub(super) struct ChangeArguments {
    /// The executor's id
    #[arg(value_name = "ID")]
    id: ExecutorId,
    #[command(flatten)]
    asking: Asking,
}

/// Of `drain`.
#[derive(Debug, clap::Args)]
pub(super) struct DrainArguments {
    #[command(flatten)]
    change: ChangeArguments,
    #[command(flatten)]
    waiting: WaitArguments,
}

/// Of `remove`.
#[derive(Debug, clap::Args)]
pub(super) struct RemoveArguments {
    #[command(flatten)]
    change: ChangeArguments,
    /// My word that its process is gone and nothing of it runs any more: its shards are free at once
    #[arg(long)]
    dead: bool,
    #[command(flatten)]
    waiting: WaitArguments,
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
    arguments.print("cordoned", "gets no new shards; `shard-manager uncordon` ends that", &answer)
}

pub(super) async fn uncordon(arguments: ChangeArguments) -> Result<ExitCode, Error> {
    let call = async |channel: Channel, change| manager::admin(channel).uncordon_executor(change).await;
    let answer = arguments.ask(call).await?;
    arguments.print("uncordoned", "may get shards again", &answer)
}

pub(super) async fn admit(arguments: ChangeArguments) -> Result<ExitCode, Error> {
    let call = async |channel: Channel, change| manager::admin(channel).admit_executor(change).await;
    let answer = arguments.ask(call).await?;
    arguments.print("admitted", "is not removed any more: it may register, and get shards, again", &answer)
}

pub(super) async fn drain(arguments: DrainArguments) -> Result<ExitCode, Error> {
    let DrainArguments { change: arguments, waiting } = arguments;
    let call = async |channel: Channel, change| manager::admin(channel).drain_executor(change).await;
    let answer = arguments.ask(call).await?;
    if !waiting.wait {
        return arguments.print("draining", "is being drained; `shard-manager uncordon` ends that", &answer);
    }
    let goes_on = "the drain stays in force until `shard-manager uncordon`";
    arguments.wait_until_empty(waiting, "drained", &["drained", "lapsed"], goes_on).await?;
    arguments.print("drained", "has no shard left", &answer)
}

pub(super) async fn remove(arguments: RemoveArguments) -> Result<ExitCode, Error> {
    let RemoveArguments { change: arguments, dead, waiting } = arguments;
    let change = RemoveExecutorRequest {
        executor_id: arguments.id.to_string(),
        dead,
        asked_by: asked_by(),
        reason: arguments.asking.reason.clone(),
    };
    let call = async |channel: Channel| manager::admin(channel).remove_executor(change.clone()).await;
    let answer = arguments.asking.managers.ask(call).await?;
    if !waiting.wait {
        let meaning = if dead {
            "is removed, and its shards are free; `shard-manager admit` lets it come back"
        } else {
            "is being removed: its shards leave, then its id is barred; `shard-manager admit` takes that back"
        };
        return arguments.print(if dead { "removed" } else { "removing" }, meaning, &answer);
    }
    let goes_on = "the removal goes on until `shard-manager admit`";
    arguments.wait_until_empty(waiting, "removed", &["removed", "lapsed"], goes_on).await?;
    arguments.print("removed", "is removed and has no shard left; `shard-manager admit` lets it come back", &answer)
}

impl ChangeArguments {
    async fn ask(
        &self,
        call: impl AsyncFn(Channel, ChangeExecutorRequest) -> Result<Response<ChangeExecutorResponse>, Status>,
    ) -> Result<ChangeExecutorResponse, manager::Error> {
        let change =
            ChangeExecutorRequest { executor_id: self.id.to_string(), asked_by: asked_by(), reason: self.asking.reason.clone() };
        self.asking.managers.ask(async |channel| call(channel, change.clone()).await).await
    }

    fn print(&self, done: &'static str, meaning: &str, answer: &ChangeExecutorResponse) -> Result<ExitCode, Error> {
        let version = answer.version.unwrap_or_default();
        let executor = self.id.as_str();
        let printed = if self.asking.format.json {
            output::print_json(&Done { executor, done, term: version.term, revision: version.revision })
        } else {
            output::print(&format!("executor {executor} {meaning}"))
        };
        Ok(printed?)
    }

    /// Until nothing of the id has a shard any more and all of it is in one of these states.
    async fn wait_until_empty(&self, waiting: WaitArguments, done: &str, states: &[&str], goes_on: &str) -> Result<(), Error> {
        let (undone, goes_on) = (format!("executor {} was not {done}", self.id), goes_on.to_owned());
        let waiting = Waiting { managers: &self.asking.managers, timeout: waiting.timeout, undone, goes_on };
        let mut most = 0;
        let look = async || {
            let executors = executors::list(&self.asking.managers).await?;
            Ok(match left(&executors, self.id.as_str(), states) {
                None => Seen::Over(()),
                Some(left) => {
                    most = most.max(left.shards);
                    Seen::Goes(left.progress(self.id.as_str(), most))
                }
            })
        };
        waiting.until(look).await
    }
}

/// What still names an id as its owner.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    shards: u32,
    /// Of these, those that it was told to stop.
    stopping: u32,
}

impl Left {
    /// `most` is how many there were at the most.
    fn progress(&self, id: &str, most: u32) -> String {
        let Left { shards, stopping } = self;
        let stopping = if *stopping > 0 { format!(", {stopping} of them being stopped by it") } else { String::new() };
        format!("executor {id}: {shards} of {most} shards left{stopping}")
    }
}

/// `None` where it is over. An id may stand for several incarnations, of which the older ones are on their way out: all of them count.
fn left(executors: &[rpc::Executor], id: &str, states: &[&str]) -> Option<Left> {
    let ours = executors.iter().filter(|executor| executor.id == id);
    let over = |executor: &rpc::Executor| executor.shards == 0 && states.contains(&executor.state.as_str());
    let left: Vec<&rpc::Executor> = ours.filter(|executor| !over(executor)).collect();
    let sum = |count: fn(&rpc::Executor) -> u32| left.iter().map(|executor| count(executor)).sum();
    (!left.is_empty()).then(|| Left { shards: sum(|it| it.shards), stopping: sum(|it| it.stopping) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executor(id: &str, state: &str, shards: u32, stopping: u32) -> rpc::Executor {
        rpc::Executor { id: id.into(), state: state.into(), shards, stopping, ..rpc::Executor::default() }
    }

    #[test]
    fn a_drain_is_done_when_no_incarnation_has_a_shard_left() {
        let left = |executors: &[rpc::Executor]| left(executors, "a", &["drained", "lapsed"]).map(|it| (it.shards, it.stopping));
        let others = executor("b", "active", 9, 4);
        assert_eq!(left(&[others.clone(), executor("a", "draining", 3, 2)]), Some((3, 2)));
        assert_eq!(left(&[others.clone(), executor("a", "drained", 0, 0)]), None);
        assert_eq!(left(&[others]), None, "it is gone");
        assert_eq!(left(&[executor("a", "lapsed", 2, 0), executor("a", "drained", 0, 0)]), Some((2, 0)));
        assert_eq!(left(&[executor("a", "lapsed", 0, 0)]), None, "it is away and owns nothing");
        assert_eq!(left(&[executor("a", "draining", 0, 0)]), Some((0, 0)), "not settled yet");
        assert_eq!(left(&[executor("a", "removed", 0, 0)]), Some((0, 0)), "that is something else");
    }

    #[test]
    fn progress_says_how_many_of_how_many_and_what_they_wait_for() {
        assert_eq!(Left { shards: 5, stopping: 0 }.progress("a", 7), "executor a: 5 of 7 shards left");
        assert_eq!(
            Left { shards: 5, stopping: 2 }.progress("a", 7),
            "executor a: 5 of 7 shards left, 2 of them being stopped by it"
        );
    }
}
