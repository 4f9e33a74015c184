//! What operators ask, and nothing changes.

use std::collections::BTreeSet;

use tonic::{Request, Status};

use crate::api::{Invalid, Leading, cut, invalid, named_executor, status, weight};
use crate::assignment::command::{Answer, Explanation, Forecast, Prospect};
use crate::assignment::event::{Question, WhatIf};
use crate::assignment::record::ShardState;
use crate::coordinator::Call;
use crate::rpc::{self, NOBODY};
use crate::types::{ExecutorId, ShardId};

/// So many executors one question may name.
const MOST_NAMED: usize = 10_000;

pub async fn plan(leading: &Leading, request: Request<rpc::PlanChangeRequest>) -> Result<rpc::PlanChangeResponse, Status> {
    let what_if = what_if(&request.into_inner())?;
    match leading.handle.call(Call::Ask(Question::Plan(what_if))).await? {
        Answer::Forecast(forecast) => Ok(forecast.into()),
        _ => Err(status::unexpected()),
    }
}

pub async fn explain(leading: &Leading, request: Request<rpc::ExplainShardRequest>) -> Result<rpc::ExplainShardResponse, Status> {
    let shard = shard(request.into_inner().shard, leading.number_of_shards)?;
    match leading.handle.call(Call::Ask(Question::Explain(shard))).await? {
        Answer::Explanation(explanation) => Ok(explanation.into()),
        _ => Err(status::unexpected()),
    }
}

fn shard(number: u32, number_of_shards: u32) -> Result<ShardId, Invalid> {
    if number < number_of_shards {
        return Ok(ShardId(number));
    }
    Err(invalid("shard", format!("{number} is refused: there are {number_of_shards} shards, counted from 0")))
}

/// Every id stands in one of the lists only, and once.
fn what_if(request: &rpc::PlanChangeRequest) -> Result<WhatIf, Invalid> {
    let rpc::PlanChangeRequest { join, leave, drain } = request;
    let named = join.len() + leave.len() + drain.len();
    if named > MOST_NAMED {
        return Err(invalid("join", format!("{named} executors are named: one question takes {MOST_NAMED}")));
    }
    let mut seen: BTreeSet<ExecutorId> = BTreeSet::new();
    let mut once = |field: &'static str, text: &str| {
        let id = named_executor(field, text)?;
        if seen.insert(id.clone()) {
            return Ok(id);
        }
        Err(invalid(field, format!("{:?} is refused: an executor stands in one of join, leave and drain, and once", cut(text))))
    };
    let mut what_if = WhatIf::default();
    for executor in join {
        what_if.join.push((once("join", &executor.executor_id)?, weight(executor.weight)?));
    }
    for id in leave {
        what_if.leave.push(once("leave", id)?);
    }
    for id in drain {
        what_if.drain.push(once("drain", id)?);
    }
    Ok(what_if)
}

impl From<Forecast> for rpc::PlanChangeResponse {
    fn from(forecast: Forecast) -> Self {
        let Forecast { version, executors, moves, kinds, unplaced, notes } = forecast;
        rpc::PlanChangeResponse {
            version: Some(version.into()),
            executors: executors.into_iter().map(rpc::PlannedExecutor::from).collect(),
            shards: moves.iter().map(|it| it.shard.0).collect(),
            from: moves.iter().map(|it| it.from.unwrap_or(NOBODY)).collect(),
            to: moves.iter().map(|it| it.to).collect(),
            notes,
            placed: kinds.placed,
            evacuated: kinds.evacuated,
            balance: kinds.balance,
            unplaced,
        }
    }
}

impl From<Prospect> for rpc::PlannedExecutor {
    fn from(prospect: Prospect) -> Self {
        let Prospect { id, before, after, bounds } = prospect;
        let (lower_bound, upper_bound) = bounds.unwrap_or((0, 0));
        rpc::PlannedExecutor { executor_id: id.to_string(), shards_before: before, shards_after: after, lower_bound, upper_bound }
    }
}

impl From<Explanation> for rpc::ExplainShardResponse {
    fn from(explanation: Explanation) -> Self {
        let Explanation { snapshot, shard, since_unix_ms, history, waits_for, destination } = explanation;
        let record = snapshot.state.shard(shard);
        let state = match record.state {
            ShardState::Unassigned => "unassigned",
            ShardState::Held(_) => "held",
            ShardState::Releasing(_) => "releasing",
        };
        let owner = record.owner().and_then(|slot| snapshot.state.executor(slot));
        let owner = owner.map(|executor| rpc::Owner {
            executor_id: executor.id.to_string(),
            incarnation: executor.incarnation.0,
            endpoint: executor.endpoint.clone(),
        });
        rpc::ExplainShardResponse {
            version: Some(snapshot.version.into()),
            shard: shard.0,
            state: state.to_owned(),
            epoch: record.epoch.0,
            owner,
            since_ms: since_unix_ms.unwrap_or(0),
            history,
            waits_for,
            destination: destination.map(|id| id.to_string()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_is_named_once() {
        let new = |id: &str, weight| rpc::NewExecutor { executor_id: id.to_owned(), weight };
        let ask = |join: &[rpc::NewExecutor], leave: &[&str], drain: &[&str]| {
            let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
            what_if(&rpc::PlanChangeRequest { join: join.to_vec(), leave: ids(leave), drain: ids(drain) })
        };
        let id = |id: &str| id.parse::<ExecutorId>().unwrap();
        let asked = ask(&[new("d", 0), new("e", 5)], &["a"], &["b"]);
        assert_eq!(asked, Ok(WhatIf { join: vec![(id("d"), 1), (id("e"), 5)], leave: vec![id("a")], drain: vec![id("b")] }));
        for (join, leave, drain, says) in [
            (&[new("a", 1)][..], &["a"][..], &[][..], "leave: \"a\" is refused"),
            (&[], &["a"], &["a"], "drain: \"a\" is refused"),
            (&[new("a", 1), new("a", 2)], &[], &[], "join: \"a\" is refused"),
            (&[new("a", 1001)], &[], &[], "weight: 1001 is refused"),
            (&[], &["a b"], &[], "leave: executor id \"a b\" is refused"),
        ] {
            let refused = ask(join, leave, drain).expect_err(says).to_string();
            assert!(refused.contains(says), "{refused}");
        }
        assert!(shard(7, 8).is_ok());
        assert!(shard(8, 8).unwrap_err().to_string().contains("8 is refused: there are 8 shards"));
    }
}
