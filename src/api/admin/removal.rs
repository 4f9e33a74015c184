//! Executors that leave the cluster for good, and come back.

use tonic::{Request, Status};
use tracing::{info, warn};

use super::{asker, outcome, peer};
use crate::api::{Leading, cut, executor_id, status};
use crate::assignment::command::Answer;
use crate::assignment::event::Demand;
use crate::coordinator::Call;
use crate::rpc;
use crate::types::ExecutorId;

pub async fn remove(
    leading: &Leading,
    request: Request<rpc::RemoveExecutorRequest>,
) -> Result<rpc::ChangeExecutorResponse, Status> {
    let peer = peer(&request);
    let rpc::RemoveExecutorRequest { executor_id: id, dead, asked_by, reason } = request.into_inner();
    let (executor, asked_by, reason) = (cut(&id), asker(&asked_by), cut(&reason));
    if dead {
        // Somebody's word stands for a proof (P3).
        warn!(executor, asked_by, reason, peer, "an operator says that an executor's process is gone, and removes it");
    } else {
        info!(executor, asked_by, reason, peer, "an operator removes an executor");
    }
    let answer = make(leading, &id, |id| Demand::Remove { id, dead }).await;
    info!(executor, dead, asked_by, outcome = outcome(&answer), "a removal that an operator asked for");
    answer
}

pub async fn admit(
    leading: &Leading,
    request: Request<rpc::ChangeExecutorRequest>,
) -> Result<rpc::ChangeExecutorResponse, Status> {
    let peer = peer(&request);
    let rpc::ChangeExecutorRequest { executor_id: id, asked_by, reason } = request.into_inner();
    let (executor, asked_by, reason) = (cut(&id), asker(&asked_by), cut(&reason));
    info!(executor, asked_by, reason, peer, "an operator takes a removal back");
    let answer = make(leading, &id, Demand::Admit).await;
    info!(executor, asked_by, outcome = outcome(&answer), "an end of a removal that an operator asked for");
    answer
}

async fn make(
    leading: &Leading,
    id: &str,
    demand: impl FnOnce(ExecutorId) -> Demand,
) -> Result<rpc::ChangeExecutorResponse, Status> {
    match leading.handle.call(Call::Demand(demand(executor_id(id)?))).await? {
        Answer::Current(version) => Ok(rpc::ChangeExecutorResponse { version: Some(version.into()) }),
        _ => Err(status::unexpected()),
    }
}
