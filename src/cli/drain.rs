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
    let answer = arguments.ask(call).await;
    if !waiting.wait {
        let answer = answer?;
        return arguments.print("draining", "is being drained; `shard-manager uncordon` ends that", &answer);
    }
    let answer = waiting.acknowledged(answer)?;
    arguments.wait_until_empty(waiting, &DRAIN, answer.is_some()).await?;
    arguments.print("drained", "has no shard left", &answer.unwrap_or_default())
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
    let answer = arguments.asking.managers.change(call).await;
    if !waiting.wait {
        let answer = answer?;
        let meaning = if dead {
            "is removed, and its shards are free; `shard-manager admit` lets it come back"
        } else {
            "is to be removed: once its shards have left, its id is barred; `shard-manager admit` takes that back"
        };
        return arguments.print(if dead { "removed" } else { "removing" }, meaning, &answer);
    }
    let answer = waiting.acknowledged(answer)?;
    arguments.wait_until_empty(waiting, &REMOVAL, answer.is_some()).await?;
    let meaning = "is removed and has no shard left; `shard-manager admit` lets it come back";
    arguments.print("removed", meaning, &answer.unwrap_or_default())
}

impl ChangeArguments {
    async fn ask(
        &self,
        call: impl AsyncFn(Channel, ChangeExecutorRequest) -> Result<Response<ChangeExecutorResponse>, Status>,
    ) -> Result<ChangeExecutorResponse, manager::Error> {
        let change =
            ChangeExecutorRequest { executor_id: self.id.to_string(), asked_by: asked_by(), reason: self.asking.reason.clone() };
        self.asking.managers.change(async |channel| call(channel, change.clone()).await).await
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

    /// Until nothing of the id has a shard any more and the wish has come true. A wish that was `acknowledged`, or seen in force, and is not
    /// in force any more was taken back: nothing is left to wait for.
    async fn wait_until_empty(&self, waiting: WaitArguments, wish: &Wish, acknowledged: bool) -> Result<(), Error> {
        let id = self.id.as_str();
        let managers = self.asking.managers.once();
        let undone = format!("executor {id} was not {}", wish.done);
        let goes_on = wish.goes_on.to_owned();
        let (mut most, mut in_force) = (0, acknowledged);
        let look = async || {
            let stand = stand(&executors::list(&managers).await?, id, wish);
            in_force |= !matches!(stand, Stand::NotInForce(_));
            Ok(match stand {
                Stand::Over => Seen::Over(None),
                Stand::NotInForce(how) if in_force => Seen::Over(Some(how)),
                Stand::NotInForce(_) => Seen::Goes(format!("executor {id}: {} is not in force yet", wish.name)),
                Stand::Left(left) => {
                    most = most.max(left.shards);
                    Seen::Goes(left.progress(id, most))
                }
            })
        };
        let waiting = Waiting { managers: &self.asking.managers, timeout: waiting.timeout, undone, goes_on };
        match waiting.until(look).await? {
            None => Ok(()),
            Some(how) => {
                Err(Error::Undone(format!("executor {id} was not {}: {} is not in force any more, {how}", wish.done, wish.name)))
            }
        }
    }
}

/// What is waited for, and how it shows.
struct Wish {
    name: &'static str,
    /// The state of an executor on its way there.
    going: &'static str,
    /// Its state in the end.
    done: &'static str,
    /// Whether one that is away and owns nothing has come there.
    away_is_done: bool,
    goes_on: &'static str,
}

const DRAIN: Wish = Wish {
    name: "the drain",
    going: "draining",
    done: "drained",
    away_is_done: true,
    goes_on: "the drain stays in force until `shard-manager uncordon`",
};

const REMOVAL: Wish = Wish {
    name: "the removal",
    going: "removing",
    done: "removed",
    away_is_done: false,
    goes_on: "the removal goes on until `shard-manager admit`",
};

/// How far a wish is.
#[derive(Debug, PartialEq, Eq)]
enum Stand {
    Over,
    Left(Left),
    /// How the executor is instead.
    NotInForce(String),
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

/// An id may stand for several incarnations, of which the older ones are on their way out and lapsed. The shards of all of them count; the
/// one that is not lapsed shows which wish is in force, and where there is none, a record that nobody needed would be gone.
fn stand(executors: &[rpc::Executor], id: &str, wish: &Wish) -> Stand {
    let ours: Vec<&rpc::Executor> = executors.iter().filter(|executor| executor.id == id).collect();
    let is = |state: &str| ours.iter().any(|executor| executor.state == state);
    if !is(wish.going) && !is(wish.done) {
        match ours.iter().find(|executor| executor.state != "lapsed") {
            Some(other) => return Stand::NotInForce(format!("it is {}", other.state)),
            None if ours.is_empty() => return Stand::NotInForce("it is not known any more".to_owned()),
            None => {}
        }
    }
    let sum = |count: fn(&rpc::Executor) -> u32| ours.iter().map(|executor| count(executor)).sum();
    let left = Left { shards: sum(|it| it.shards), stopping: sum(|it| it.stopping) };
    let is_done = is(wish.done) || (wish.away_is_done && !is(wish.going));
    if left.shards == 0 && is_done { Stand::Over } else { Stand::Left(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executor(id: &str, state: &str, shards: u32, stopping: u32) -> rpc::Executor {
        rpc::Executor { id: id.into(), state: state.into(), shards, stopping, ..rpc::Executor::default() }
    }

    fn left(shards: u32, stopping: u32) -> Stand {
        Stand::Left(Left { shards, stopping })
    }

    fn not_in_force(how: &str) -> Stand {
        Stand::NotInForce(how.to_owned())
    }

    #[test]
    fn a_drain_is_done_when_no_incarnation_has_a_shard_left() {
        let stand = |executors: &[rpc::Executor]| stand(executors, "a", &DRAIN);
        let others = executor("b", "active", 9, 4);
        assert_eq!(stand(&[others.clone(), executor("a", "draining", 3, 2)]), left(3, 2));
        assert_eq!(stand(&[others, executor("a", "drained", 0, 0)]), Stand::Over);
        assert_eq!(stand(&[executor("a", "lapsed", 2, 0), executor("a", "drained", 0, 0)]), left(2, 0));
        assert_eq!(stand(&[executor("a", "lapsed", 0, 0)]), Stand::Over, "it is away and owns nothing");
        assert_eq!(stand(&[executor("a", "draining", 0, 0)]), left(0, 0), "not settled yet");
    }

    #[test]
    fn a_wish_that_was_taken_back_has_not_come_true() {
        let others = executor("b", "active", 9, 4);
        for (wish, other) in [(&DRAIN, "removing"), (&DRAIN, "removed"), (&REMOVAL, "draining"), (&REMOVAL, "drained")] {
            for state in [other, "active", "suspect", "cordoned"] {
                let seen = stand(&[others.clone(), executor("a", state, 0, 0)], "a", wish);
                assert_eq!(seen, not_in_force(&format!("it is {state}")), "{}", wish.name);
            }
            assert_eq!(stand(std::slice::from_ref(&others), "a", wish), not_in_force("it is not known any more"));
        }
    }

    #[test]
    fn a_removal_is_done_when_the_id_is_barred() {
        let stand = |executors: &[rpc::Executor]| stand(executors, "a", &REMOVAL);
        assert_eq!(stand(&[executor("a", "removing", 0, 0)]), left(0, 0));
        assert_eq!(stand(&[executor("a", "lapsed", 0, 0)]), left(0, 0), "its end is not durable yet");
        assert_eq!(stand(&[executor("a", "removed", 0, 0), executor("a", "lapsed", 2, 1)]), left(2, 1));
        assert_eq!(stand(&[executor("a", "removed", 0, 0)]), Stand::Over);
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
