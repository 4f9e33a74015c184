//! What operators ask, and nothing changes.

use tonic::{Request, Status};

use crate::api::Leading;
use crate::rpc;

pub async fn plan(_: &Leading, _: Request<rpc::PlanChangeRequest>) -> Result<rpc::PlanChangeResponse, Status> {
    Err(Status::unimplemented("not built yet"))
}

pub async fn explain(_: &Leading, _: Request<rpc::ExplainShardRequest>) -> Result<rpc::ExplainShardResponse, Status> {
    Err(Status::unimplemented("not built yet"))
}
