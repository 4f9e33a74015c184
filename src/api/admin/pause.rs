//! Rebalancing, paused and resumed.

use tonic::{Request, Status};

use crate::api::Leading;
use crate::rpc;

pub async fn pause(_: &Leading, _: Request<rpc::PauseRebalancingRequest>) -> Result<rpc::PauseRebalancingResponse, Status> {
    Err(Status::unimplemented("not built yet"))
}

pub async fn resume(_: &Leading, _: Request<rpc::ResumeRebalancingRequest>) -> Result<rpc::ResumeRebalancingResponse, Status> {
    Err(Status::unimplemented("not built yet"))
}
