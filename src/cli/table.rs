//! `table`: who owns which shard.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Serialize;

use super::Error;
use super::manager::{self, Managers};
use super::output::{self, Format};
use crate::rpc::{GetRoutingTableRequest, NOBODY, RoutingTable};

/// See the module.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    managers: Managers,
    #[command(flatten)]
    format: Format,
}

/// What `table --json` prints.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Table {
    cluster_id: String,
    pub(super) term: u64,
    revision: u64,
    number_of_shards: u32,
    pub(super) shards: Vec<Shard>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Shard {
    shard: u32,
    pub(super) executor: Option<String>,
    epoch: u64,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Held,
    Releasing,
    Unassigned,
}

impl State {
    const ALL: [State; 3] = [State::Held, State::Releasing, State::Unassigned];

    fn as_str(self) -> &'static str {
        match self {
            State::Held => "held",
            State::Releasing => "releasing",
            State::Unassigned => "unassigned",
        }
    }
}

pub(super) async fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let table = get(&arguments.managers).await?;
    let printed = if arguments.format.json { output::print_json(&table) } else { output::print(&as_text(&table)) };
    Ok(printed?)
}

/// As the leader shows it.
pub(super) async fn get(managers: &Managers) -> Result<Table, Error> {
    let question = async |channel| {
        let anything = GetRoutingTableRequest { cluster_id: String::new(), known: None };
        manager::shard_manager(channel).get_routing_table(anything).await
    };
    Table::read(managers.ask(question).await?)
}

impl Table {
    /// Refuses arrays that do not fit together.
    pub(super) fn read(answer: RoutingTable) -> Result<Table, Error> {
        let number = answer.number_of_shards as usize;
        if answer.owner.len() != number || answer.epochs.len() != number {
            let (owners, epochs) = (answer.owner.len(), answer.epochs.len());
            return Err(Error::Nonsense(format!("{number} shards, but {owners} owners and {epochs} epochs")));
        }
        let mut shards = Vec::with_capacity(number);
        for (shard, (&owner, &epoch)) in (0u32..).zip(answer.owner.iter().zip(&answer.epochs)) {
            let (executor, state) = if owner == NOBODY {
                (None, State::Unassigned)
            } else {
                let executor = answer.owners.get(owner as usize).ok_or_else(|| {
                    Error::Nonsense(format!("shard {shard} belongs to owner {owner}, there are {}", answer.owners.len()))
                })?;
                let state = if answer.releasing.binary_search(&shard).is_ok() { State::Releasing } else { State::Held };
                (Some(executor.executor_id.clone()), state)
            };
            shards.push(Shard { shard, executor, epoch, state });
        }
        let version = answer.version.unwrap_or_default();
        Ok(Table {
            cluster_id: answer.cluster_id,
            term: version.term,
            revision: version.revision,
            number_of_shards: answer.number_of_shards,
            shards,
        })
    }
}

/// One line per run of shards with the same owner and state.
pub(super) fn as_text(table: &Table) -> String {
    let mut counts: BTreeMap<State, usize> = BTreeMap::new();
    for shard in &table.shards {
        *counts.entry(shard.state).or_default() += 1;
    }
    let count = |state: State| format!("{} {}", counts.get(&state).copied().unwrap_or(0), state.as_str());
    let mut runs = output::table(["SHARDS", "COUNT", "EXECUTOR", "STATE", "EPOCH"]);
    for run in table.shards.chunk_by(|a, b| a.executor == b.executor && a.state == b.state) {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let (low, high) = run.iter().fold((u64::MAX, 0), |(low, high), shard| (low.min(shard.epoch), high.max(shard.epoch)));
        runs.add_row([
            range(first.shard, last.shard),
            run.len().to_string(),
            first.executor.clone().unwrap_or_else(|| "-".to_owned()),
            first.state.as_str().to_owned(),
            range(low, high),
        ]);
    }
    format!(
        "cluster {}, term {}, revision {}\n{} shards: {}\n\n{}",
        table.cluster_id,
        table.term,
        table.revision,
        table.number_of_shards,
        State::ALL.map(count).join(", "),
        output::text(&runs)
    )
}

fn range<N: PartialEq + std::fmt::Display>(first: N, last: N) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::{Owner, Version};

    fn answer() -> RoutingTable {
        let owner = |id: &str| Owner { executor_id: id.into(), incarnation: 1, endpoint: "http://h:1".into() };
        RoutingTable {
            cluster_id: "c".into(),
            version: Some(Version { term: 7, revision: 9 }),
            number_of_shards: 6,
            owners: vec![owner("a"), owner("b")],
            owner: vec![0, 0, 1, 1, NOBODY, 0],
            epochs: vec![70, 71, 70, 70, 0, 70],
            releasing: vec![3],
        }
    }

    #[test]
    fn programs_get_the_promised_shape() {
        let json = serde_json::to_value(Table::read(answer()).unwrap()).unwrap();
        let shard = |shard: u32, executor: Option<&str>, epoch: u64, state: &str| serde_json::json!({ "shard": shard, "executor": executor, "epoch": epoch, "state": state });
        let expected = serde_json::json!({
            "cluster_id": "c", "term": 7, "revision": 9, "number_of_shards": 6,
            "shards": [
                shard(0, Some("a"), 70, "held"),
                shard(1, Some("a"), 71, "held"),
                shard(2, Some("b"), 70, "held"),
                shard(3, Some("b"), 70, "releasing"),
                shard(4, None, 0, "unassigned"),
                shard(5, Some("a"), 70, "held"),
            ],
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn people_get_runs_of_shards() {
        let expected = "\
cluster c, term 7, revision 9
6 shards: 4 held, 1 releasing, 1 unassigned

SHARDS  COUNT  EXECUTOR  STATE       EPOCH
0-1     2      a         held        70-71
2       1      b         held        70
3       1      b         releasing   70
4       1      -         unassigned  0
5       1      a         held        70";
        assert_eq!(as_text(&Table::read(answer()).unwrap()), expected);
    }

    #[test]
    fn a_table_that_does_not_fit_together_is_refused() {
        let message = |answer| Table::read(answer).unwrap_err().to_string();
        assert!(message(RoutingTable { owner: vec![0], ..answer() }).contains("6 shards, but 1 owners and 6 epochs"));
        assert!(message(RoutingTable { number_of_shards: 7, ..answer() }).contains("7 shards"));
        assert!(message(RoutingTable { owners: Vec::new(), ..answer() }).contains("shard 0 belongs to owner 0, there are 0"));
    }
}
