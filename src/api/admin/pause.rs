//! Rebalancing, paused and resumed.

use std::time::Duration;

use tonic::{Request, Status};
use tracing::info;

use super::{asker, outcome, peer};
use crate::api::{Invalid, Leading, cut, invalid, status};
use crate::assignment::command::Answer;
use crate::assignment::event::{Demand, PAUSE_LENGTHS};
use crate::coordinator::Call;
use crate::rpc;

pub async fn pause(
    leading: &Leading,
    request: Request<rpc::PauseRebalancingRequest>,
) -> Result<rpc::PauseRebalancingResponse, Status> {
    let peer = peer(&request);
    let rpc::PauseRebalancingRequest { length_ms, asked_by: by, reason } = request.into_inner();
    let (by, reason) = (asker(&by), cut(&reason));
    info!(length_ms, asked_by = by, reason, peer, "an operator asks to pause rebalancing");
    let answer = make(leading, length_ms, by.clone(), reason).await;
    info!(length_ms, asked_by = by, outcome = outcome(&answer), "a pause of rebalancing that an operator asked for");
    answer
}

async fn make(leading: &Leading, length_ms: u64, by: String, reason: String) -> Result<rpc::PauseRebalancingResponse, Status> {
    let demand = Demand::Pause { length: length(length_ms)?, by, reason };
    match leading.handle.call(Call::Demand(demand)).await? {
        Answer::Paused(version, until_ms) => Ok(rpc::PauseRebalancingResponse { version: Some(version.into()), until_ms }),
        _ => Err(status::unexpected()),
    }
}

pub async fn resume(
    leading: &Leading,
    request: Request<rpc::ResumeRebalancingRequest>,
) -> Result<rpc::ResumeRebalancingResponse, Status> {
    let peer = peer(&request);
    let rpc::ResumeRebalancingRequest { asked_by: by, reason } = request.into_inner();
    let (by, reason) = (asker(&by), cut(&reason));
    info!(asked_by = by, reason, peer, "an operator asks to resume rebalancing");
    let answer = match leading.handle.call(Call::Demand(Demand::Resume)).await {
        Ok(Answer::Current(version)) => Ok(rpc::ResumeRebalancingResponse { version: Some(version.into()) }),
        Ok(_) => Err(status::unexpected()),
        Err(failure) => Err(failure.into()),
    };
    info!(asked_by = by, outcome = outcome(&answer), "an end of a pause that an operator asked for");
    answer
}

fn length(milliseconds: u64) -> Result<Duration, Invalid> {
    let length = Duration::from_millis(milliseconds);
    if PAUSE_LENGTHS.contains(&length) {
        return Ok(length);
    }
    Err(invalid("length_ms", format!("{milliseconds} ms is refused: a pause lasts 1 s to 7 days, which is 1000 to 604800000")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_has_bounds_which_a_refusal_names() {
        for (milliseconds, taken) in [(999, false), (1000, true), (604_800_000, true), (604_800_001, false), (u64::MAX, false)] {
            match length(milliseconds) {
                Ok(length) => assert!(taken && length == Duration::from_millis(milliseconds)),
                Err(refused) => {
                    let said = refused.to_string();
                    assert!(!taken && said.contains(&milliseconds.to_string()) && said.contains("1 s to 7 days"), "{said}");
                }
            }
        }
    }
}
