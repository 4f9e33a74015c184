//! Shards that an operator moves.

use tonic::{Request, Status};

use crate::api::Leading;
use crate::rpc;

pub async fn move_shards(_: &Leading, _: Request<rpc::MoveShardsRequest>) -> Result<rpc::MoveShardsResponse, Status> {
    Err(Status::unimplemented("not built yet"))
}
