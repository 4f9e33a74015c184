//! `explain`: who owns a shard, since when, why there, and what it waits for.

use std::process::ExitCode;
use std::time::Duration;

use humantime_serde::re::humantime::format_duration;
use serde::Serialize;

use super::Error;
use super::manager::{self, Managers};
use super::output::{self, Format};
use crate::clock;
use crate::rpc::{ExplainShardRequest, ExplainShardResponse};

/// See the module.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The shard, counted from 0
    #[arg(value_name = "SHARD")]
    shard: u32,
    #[command(flatten)]
    managers: Managers,
    #[command(flatten)]
    format: Format,
}

/// What `explain --json` prints.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Explanation {
    shard: u32,
    state: String,
    epoch: u64,
    executor: Option<String>,
    incarnation: Option<u64>,
    endpoint: Option<String>,
    /// By the manager's clock; `None` where nobody owns it, or it was granted before this leader's time.
    since_unix_ms: Option<u64>,
    history: Vec<String>,
    waits_for: Vec<String>,
    destination: Option<String>,
    term: u64,
    revision: u64,
}

impl From<ExplainShardResponse> for Explanation {
    fn from(answer: ExplainShardResponse) -> Explanation {
        let version = answer.version.unwrap_or_default();
        let (executor, incarnation, endpoint) = match answer.owner {
            Some(owner) => (Some(owner.executor_id), Some(owner.incarnation), Some(owner.endpoint)),
            None => (None, None, None),
        };
        Explanation {
            shard: answer.shard,
            state: answer.state,
            epoch: answer.epoch,
            executor,
            incarnation,
            endpoint,
            since_unix_ms: Some(answer.since_ms).filter(|since| *since > 0),
            history: answer.history,
            waits_for: answer.waits_for,
            destination: Some(answer.destination).filter(|id| !id.is_empty()),
            term: version.term,
            revision: version.revision,
        }
    }
}

pub(super) async fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let request = ExplainShardRequest { shard: arguments.shard };
    let question = async |channel| manager::admin(channel).explain_shard(request).await;
    let explanation = Explanation::from(arguments.managers.ask(question).await?);
    let printed = if arguments.format.json {
        output::print_json(&explanation)
    } else {
        output::print(&as_text(&explanation, clock::unix_ms()))
    };
    Ok(printed?)
}

pub(super) fn as_text(explanation: &Explanation, unix_ms: u64) -> String {
    let Explanation { shard, state, epoch, executor, incarnation, endpoint, since_unix_ms, .. } = explanation;
    let mut pairs = vec![("shard", shard.to_string()), ("state", state.clone()), ("epoch", epoch.to_string())];
    if let (Some(executor), Some(incarnation), Some(endpoint)) = (executor, incarnation, endpoint) {
        pairs.push(("owner", format!("{executor}, incarnation {incarnation}, {endpoint}")));
        pairs.push((
            "since",
            match since_unix_ms {
                Some(since) => {
                    let ago = Duration::from_secs(unix_ms.saturating_sub(*since) / 1000);
                    format!("{}, {} ago", clock::text(*since), format_duration(ago))
                }
                None => "before this leader's time".to_owned(),
            },
        ));
    }
    pairs.extend(explanation.destination.iter().map(|id| ("goes to", id.clone())));
    pairs.extend(lines("history", &explanation.history));
    if explanation.waits_for.is_empty() {
        pairs.push(("waits for", "nothing".to_owned()));
    }
    pairs.extend(lines("waits for", &explanation.waits_for));
    output::pairs(pairs.into_iter().map(|(name, value)| (name.to_owned(), value)))
}

/// The name stands before the first line only.
fn lines(name: &'static str, lines: &[String]) -> Vec<(&'static str, String)> {
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    names.zip(lines.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::{Owner, Version};

    fn answer() -> ExplainShardResponse {
        ExplainShardResponse {
            version: Some(Version { term: 7, revision: 9 }),
            shard: 17,
            state: "releasing".into(),
            epoch: 70,
            owner: Some(Owner { executor_id: "a".into(), incarnation: 3, endpoint: "http://h:1".into() }),
            since_ms: 1_700_000_000_000,
            history: vec!["granted to a".into(), "a was told to stop it".into()],
            waits_for: vec!["a to stop it".into()],
            destination: "b".into(),
        }
    }

    #[test]
    fn people_get_sentences() {
        let expected = "\
shard      17
state      releasing
epoch      70
owner      a, incarnation 3, http://h:1
since      2023-11-14T22:13:20.000Z, 1m 5s ago
goes to    b
history    granted to a
           a was told to stop it
waits for  a to stop it";
        assert_eq!(as_text(&Explanation::from(answer()), 1_700_000_065_000), expected);
        let nobody = ExplainShardResponse { shard: 3, state: "unassigned".into(), ..ExplainShardResponse::default() };
        let expected = "shard      3\nstate      unassigned\nepoch      0\nwaits for  nothing";
        assert_eq!(as_text(&Explanation::from(nobody), 0), expected);
        let before = ExplainShardResponse { since_ms: 0, ..answer() };
        assert!(as_text(&Explanation::from(before), 0).contains("since      before this leader's time"));
    }

    #[test]
    fn programs_get_the_promised_shape() {
        let json = serde_json::to_value(Explanation::from(answer())).unwrap();
        let expected = serde_json::json!({
            "shard": 17, "state": "releasing", "epoch": 70, "executor": "a", "incarnation": 3, "endpoint": "http://h:1",
            "since_unix_ms": 1_700_000_000_000u64, "history": ["granted to a", "a was told to stop it"],
            "waits_for": ["a to stop it"], "destination": "b", "term": 7, "revision": 9,
        });
        assert_eq!(json, expected);
    }
}
