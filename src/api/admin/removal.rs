//! Executors that leave the cluster for good, and come back.

use tonic::{Request, Status};
use tracing::{info, warn};

use super::{asker, outcome, peer};
use crate::api::{Leading, cut, executor_id, status};
use crate::assignment::command::Answer;
use crate::assignment::event::Demand;
use crate::coordinator::{Call, Failure};
use crate::rpc;

pub async fn remove(
    leading: &Leading,
    request: Request<rpc::RemoveExecutorRequest>,
) -> Result<rpc::ChangeExecutorResponse, Status> {
    let peer = peer(&request);
    let rpc::RemoveExecutorRequest { executor_id: id, dead, asked_by, reason } = request.into_inner();
    let id = executor_id(&id)?;
    let answer = leading.handle.call(Call::Demand(Demand::Remove { id: id.clone(), dead })).await;
    let (asked_by, reason, outcome) = (asker(&asked_by), cut(&reason), outcome(&answer));
    if dead {
        // Somebody's word stands for a proof (P3).
        warn!(executor = %id, asked_by, reason, peer, outcome, "an operator said that an executor's process is gone, and removes it");
    } else {
        info!(executor = %id, asked_by, reason, peer, outcome, "an operator removes an executor");
    }
    current(answer)
}

pub async fn admit(
    leading: &Leading,
    request: Request<rpc::ChangeExecutorRequest>,
) -> Result<rpc::ChangeExecutorResponse, Status> {
    let peer = peer(&request);
    let rpc::ChangeExecutorRequest { executor_id: id, asked_by, reason } = request.into_inner();
    let id = executor_id(&id)?;
    let answer = leading.handle.call(Call::Demand(Demand::Admit(id.clone()))).await;
    let (asked_by, reason, outcome) = (asker(&asked_by), cut(&reason), outcome(&answer));
    info!(executor = %id, asked_by, reason, peer, outcome, "an operator takes a removal back");
    current(answer)
}

fn current(answer: Result<Answer, Failure>) -> Result<rpc::ChangeExecutorResponse, Status> {
    match answer? {
        Answer::Current(version) => Ok(rpc::ChangeExecutorResponse { version: Some(version.into()) }),
        _ => Err(status::unexpected()),
    }
}
