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
    let asked = "an operator asked to pause rebalancing";
    let length =
        length(length_ms).inspect_err(|refused| info!(length_ms, asked_by = by, reason, peer, outcome = %refused, "{asked}"))?;
    let demand = Demand::Pause { length, by: by.clone(), reason: reason.clone() };
    let answer = leading.handle.call(Call::Demand(demand)).await;
    info!(?length, asked_by = by, reason, peer, outcome = outcome(&answer), "{asked}");
    match answer? {
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
    let answer = leading.handle.call(Call::Demand(Demand::Resume)).await;
    let (by, reason) = (asker(&by), cut(&reason));
    info!(asked_by = by, reason, peer, outcome = outcome(&answer), "an operator asked to resume rebalancing");
    match answer? {
        Answer::Current(version) => Ok(rpc::ResumeRebalancingResponse { version: Some(version.into()) }),
        _ => Err(status::unexpected()),
    }
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
