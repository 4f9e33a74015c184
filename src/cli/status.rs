//! `status`: how the leader and its cluster are, or with `--http` how any replica is.

use std::process::ExitCode;
use std::time::Duration;

use humantime_serde::re::humantime::format_duration;
use serde::Serialize;
use serde_json::Value;

use super::manager::{self, Managers};
use super::output::{self, Format};
use super::{Error, http};
use crate::clock;
use crate::rpc::{GetStatusRequest, GetStatusResponse};

/// See the module.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    managers: Managers,
    #[command(flatten)]
    format: Format,
    /// Exit with 1 if the invariant checker finds anything wrong
    #[arg(long)]
    check: bool,
    /// Ask this replica's HTTP server instead, which a standby has too
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["check", "addresses"])]
    http: Option<String>,
}

/// What `status --json` prints.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Status {
    role: String,
    term: u64,
    revision: u64,
    cluster_id: String,
    number_of_shards: u32,
    executors: u32,
    unassigned: u32,
    releasing: u32,
    violations: Vec<String>,
    notes: Vec<String>,
    lease_ttl_ms: u64,
    leader: String,
    leader_since: u64,
    manager_version: String,
    /// `None` where rebalancing is not paused.
    rebalancing_paused_until_ms: Option<u64>,
}

impl From<GetStatusResponse> for Status {
    fn from(answer: GetStatusResponse) -> Status {
        let version = answer.version.unwrap_or_default();
        Status {
            role: answer.role,
            term: version.term,
            revision: version.revision,
            cluster_id: answer.cluster_id,
            number_of_shards: answer.number_of_shards,
            executors: answer.executors,
            unassigned: answer.unassigned,
            releasing: answer.releasing,
            violations: answer.violations,
            notes: answer.notes,
            lease_ttl_ms: answer.lease_ttl_ms,
            leader: answer.leader,
            leader_since: answer.leader_since,
            manager_version: answer.manager_version,
            rebalancing_paused_until_ms: Some(answer.rebalancing_paused_until_ms).filter(|until| *until > 0),
        }
    }
}

pub(super) async fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    if let Some(address) = arguments.http {
        let answer = http::get_json(&address, "/status").await?;
        let printed = if arguments.format.json { output::print_json(&answer) } else { output::print(&flat_text(&answer)) };
        return Ok(printed?);
    }
    let question = async |channel| manager::admin(channel).get_status(GetStatusRequest {}).await;
    let status = Status::from(arguments.managers.ask(question).await?);
    let printed = if arguments.format.json {
        output::print_json(&status)
    } else {
        output::print(&as_text(&status, clock::unix_ms() / 1000))
    }?;
    Ok(if arguments.check && !status.violations.is_empty() { ExitCode::FAILURE } else { printed })
}

pub(super) fn as_text(status: &Status, unix_seconds: u64) -> String {
    let seconds = |seconds| format_duration(Duration::from_secs(seconds)).to_string();
    let mut pairs = vec![
        ("role", status.role.clone()),
        ("leader", status.leader.clone()),
        ("leading for", seconds(unix_seconds.saturating_sub(status.leader_since))),
        ("version", status.manager_version.clone()),
        ("cluster", status.cluster_id.clone()),
        ("term", status.term.to_string()),
        ("revision", status.revision.to_string()),
        ("shards", format!("{} ({} unassigned, {} releasing)", status.number_of_shards, status.unassigned, status.releasing)),
        ("executors", status.executors.to_string()),
        ("lease", format_duration(Duration::from_millis(status.lease_ttl_ms)).to_string()),
        ("violations", status.violations.len().to_string()),
    ];
    if let Some(until) = status.rebalancing_paused_until_ms {
        pairs.insert(pairs.len() - 1, ("rebalancing", format!("paused until {}", clock::text(until))));
    }
    pairs.extend(status.violations.iter().map(|violation| ("  violation", violation.clone())));
    pairs.extend(status.notes.iter().map(|note| ("  note", note.clone())));
    output::pairs(pairs.into_iter().map(|(name, value)| (name.to_owned(), value)))
}

/// Any JSON as lines of names and values; what is nested stays JSON.
fn flat_text(value: &Value) -> String {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        Value::Object(fields) => output::pairs(fields.iter().map(|(name, value)| (name.clone(), plain(value)))),
        other => plain(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::Version;

    fn status() -> Status {
        Status::from(GetStatusResponse {
            role: "leader".into(),
            cluster_id: "c".into(),
            version: Some(Version { term: 7, revision: 9 }),
            number_of_shards: 16,
            executors: 3,
            unassigned: 2,
            releasing: 1,
            violations: vec!["shard 3 is owned twice".into()],
            notes: vec!["nobody is eligible".into()],
            lease_ttl_ms: 1500,
            leader_since: 1000,
            manager_version: "0.1.0".into(),
            leader: "host, pid 4711".into(),
            rebalancing_paused_until_ms: 0,
        })
    }

    #[test]
    fn programs_get_every_promised_field() {
        let json = serde_json::to_value(status()).unwrap();
        assert_eq!(json["role"], "leader");
        assert_eq!(json["term"], 7);
        assert_eq!(json["revision"], 9);
        assert_eq!(json["cluster_id"], "c");
        assert_eq!(json["number_of_shards"], 16);
        assert_eq!(json["executors"], 3);
        assert_eq!(json["unassigned"], 2);
        assert_eq!(json["violations"], serde_json::json!(["shard 3 is owned twice"]));
    }

    #[test]
    fn people_get_aligned_lines() {
        let expected = "\
role         leader
leader       host, pid 4711
leading for  1m 5s
version      0.1.0
cluster      c
term         7
revision     9
shards       16 (2 unassigned, 1 releasing)
executors    3
lease        1s 500ms
violations   1
  violation  shard 3 is owned twice
  note       nobody is eligible";
        assert_eq!(as_text(&status(), 1065), expected);
    }

    #[test]
    fn a_pause_of_rebalancing_is_seen() {
        let status = Status { rebalancing_paused_until_ms: Some(1_700_000_000_000), ..status() };
        let text = as_text(&status, 1065);
        assert!(text.contains("\nrebalancing  paused until 2023-11-14T22:13:20.000Z\nviolations   1\n"), "{text}");
    }

    #[test]
    fn any_replicas_answer_becomes_lines() {
        let json = serde_json::json!({ "role": "standby", "term": 3, "leader": null, "list": [1] });
        assert_eq!(flat_text(&json), "leader  null\nlist    [1]\nrole    standby\nterm    3");
    }
}
