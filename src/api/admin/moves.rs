//! Shards that an operator moves.

use tonic::{Request, Status};
use tracing::info;

use super::{asker, outcome, peer};
use crate::api::{Invalid, Leading, cut, invalid, named_executor, status};
use crate::assignment::command::Answer;
use crate::assignment::event::Demand;
use crate::coordinator::Call;
use crate::rpc;
use crate::types::ShardId;

/// So many shards are named in the log.
const NAMED: usize = 16;

pub async fn move_shards(leading: &Leading, request: Request<rpc::MoveShardsRequest>) -> Result<rpc::MoveShardsResponse, Status> {
    let peer = peer(&request);
    let rpc::MoveShardsRequest { shards, to_executor_id, asked_by, reason } = request.into_inner();
    let (to, count, asked_by) = (cut(&to_executor_id), shards.len(), asker(&asked_by));
    info!(to, count, shards = named(&shards), asked_by, reason = cut(&reason), peer, "an operator moves shards");
    let answer = make(leading, shards, &to_executor_id).await;
    info!(to, count, asked_by, outcome = outcome(&answer), "a move that an operator asked for");
    answer
}

async fn make(leading: &Leading, shards: Vec<u32>, to: &str) -> Result<rpc::MoveShardsResponse, Status> {
    let to = named_executor("to_executor_id", to)?;
    let shards = ascending(shards, leading.number_of_shards)?;
    match leading.handle.call(Call::Demand(Demand::Move { shards, to })).await? {
        Answer::Moving(version, moving) => Ok(rpc::MoveShardsResponse { version: Some(version.into()), moving }),
        _ => Err(status::unexpected()),
    }
}

/// Each once, ascending, and all of them known.
fn ascending(mut shards: Vec<u32>, number_of_shards: u32) -> Result<Vec<ShardId>, Invalid> {
    if shards.is_empty() {
        return Err(invalid("shards", "none is named: it takes at least one"));
    }
    shards.sort_unstable();
    if let Some(twice) = shards.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(invalid("shards", format!("{} is named twice: each may be named once", twice[0])));
    }
    if let Some(unknown) = shards.last().filter(|shard| **shard >= number_of_shards) {
        return Err(invalid("shards", format!("{unknown} is refused: shards are 0 to {}", number_of_shards.saturating_sub(1))));
    }
    Ok(shards.into_iter().map(ShardId).collect())
}

fn named(shards: &[u32]) -> String {
    let few: Vec<String> = shards.iter().take(NAMED).map(ToString::to_string).collect();
    format!("{}{}", few.join(", "), if shards.len() > NAMED { ", ..." } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_known_and_named_once() {
        assert_eq!(ascending(vec![3, 0, 2], 4).unwrap(), [0, 2, 3].map(ShardId));
        let refused = |shards: &[u32]| ascending(shards.to_vec(), 4).unwrap_err().to_string();
        assert!(refused(&[]).contains("none is named"));
        assert!(refused(&[1, 2, 1]).contains("1 is named twice"));
        assert!(refused(&[1, 4]).contains("4 is refused: shards are 0 to 3"));
    }
}
