//! Executors that leave the cluster for good, and come back.

use tonic::{Request, Status};

use crate::api::Leading;
use crate::rpc;

pub async fn remove(_: &Leading, _: Request<rpc::RemoveExecutorRequest>) -> Result<rpc::ChangeExecutorResponse, Status> {
    Err(Status::unimplemented("not built yet"))
}

pub async fn admit(_: &Leading, _: Request<rpc::ChangeExecutorRequest>) -> Result<rpc::ChangeExecutorResponse, Status> {
    Err(Status::unimplemented("not built yet"))
}
