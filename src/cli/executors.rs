//! `executors`: which there are, and how they are.

use std::process::ExitCode;
use std::time::Duration;

use humantime_serde::re::humantime::format_duration;
use serde::Serialize;

use super::Error;
use super::manager::{self, Managers};
use super::output::{self, Format};
use crate::rpc::{self, ListExecutorsRequest};

/// See the module.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    managers: Managers,
    #[command(flatten)]
    format: Format,
}

/// One entry of what `executors --json` prints.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Executor {
    id: String,
    incarnation: u64,
    endpoint: String,
    state: String,
    weight: u32,
    shards: u32,
    stopping: u32,
    starting: u32,
    lease_remaining_ms: u64,
}

impl From<rpc::Executor> for Executor {
    fn from(executor: rpc::Executor) -> Executor {
        let rpc::Executor { id, incarnation, endpoint, state, weight, shards, lease_remaining_ms, stopping, starting } = executor;
        Executor { id, incarnation, endpoint, state, weight, shards, stopping, starting, lease_remaining_ms }
    }
}

pub(super) async fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let executors: Vec<Executor> = list(&arguments.managers).await?.into_iter().map(Executor::from).collect();
    let printed = if arguments.format.json { output::print_json(&executors) } else { output::print(&as_text(&executors)) };
    Ok(printed?)
}

/// What the leader knows of its executors.
pub(super) async fn list(managers: &Managers) -> Result<Vec<rpc::Executor>, manager::Error> {
    let question = async |channel| manager::admin(channel).list_executors(ListExecutorsRequest {}).await;
    Ok(managers.ask(question).await?.executors)
}

pub(super) fn as_text(executors: &[Executor]) -> String {
    if executors.is_empty() {
        return "no executor is registered".to_owned();
    }
    let mut table = output::table(["ID", "STATE", "SHARDS", "WEIGHT", "LEASE LEFT", "ENDPOINT", "INCARNATION"]);
    for executor in executors {
        // Tenths of a second are as much as a person can use of a number that runs down while it is read.
        let left = Duration::from_millis(executor.lease_remaining_ms / 100 * 100);
        table.add_row([
            executor.id.clone(),
            executor.state.clone(),
            executor.shards.to_string(),
            executor.weight.to_string(),
            format_duration(left).to_string(),
            executor.endpoint.clone(),
            executor.incarnation.to_string(),
        ]);
    }
    output::text(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executors() -> Vec<Executor> {
        let executor = |id: &str, incarnation, state: &str, shards, lease_remaining_ms| {
            let (id, endpoint, state) = (id.to_owned(), "http://127.0.0.1:7001".to_owned(), state.to_owned());
            Executor::from(rpc::Executor {
                id,
                incarnation,
                endpoint,
                state,
                weight: 1,
                shards,
                lease_remaining_ms,
                ..rpc::Executor::default()
            })
        };
        vec![executor("orders-0", u64::MAX, "active", 512, 29_876), executor("orders-1", 5, "lapsed", 0, 0)]
    }

    #[test]
    fn programs_get_the_promised_shape() {
        let json = serde_json::to_value(&executors()[..1]).unwrap();
        let expected = serde_json::json!([{
            "id": "orders-0", "incarnation": u64::MAX, "endpoint": "http://127.0.0.1:7001", "state": "active", "weight": 1,
            "shards": 512, "stopping": 0, "starting": 0, "lease_remaining_ms": 29_876,
        }]);
        assert_eq!(json, expected);
    }

    #[test]
    fn people_get_aligned_columns() {
        let expected = "\
ID        STATE   SHARDS  WEIGHT  LEASE LEFT  ENDPOINT               INCARNATION
orders-0  active  512     1       29s 800ms   http://127.0.0.1:7001  18446744073709551615
orders-1  lapsed  0       1       0s          http://127.0.0.1:7001  5";
        assert_eq!(as_text(&executors()), expected);
        assert_eq!(as_text(&[]), "no executor is registered");
    }
}
