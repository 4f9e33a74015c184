//! An operator with the command line: asks the leader of the moment, once, and notes what it was told.

use std::net::SocketAddr;
use std::process::Output;

use serde_json::{Value, json};

use crate::client::Ids;
use crate::history::Part;
use crate::process;
use crate::watch::{self, Leaders};

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct Operator {
    pub part: Part,
    pub ids: Ids,
    pub leaders: Leaders,
    pub managers: Vec<SocketAddr>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Acknowledged,
    /// Surely not done.
    Refused,
    Unknown,
}

impl Operator {
    /// One of `drain`, `uncordon`, `cordon`, `remove`, `admit`.
    pub async fn ask(&self, kind: &str, executor: &str) -> Outcome {
        self.command(kind, &[executor], json!({"executor": executor})).await
    }

    /// Moves a shard.
    pub async fn move_to(&self, shard: u32, executor: &str) -> Outcome {
        self.command("move", &[&shard.to_string(), "--to", executor], json!({"shards": [shard], "to": executor})).await
    }

    /// Asks the leader to let another one lead. Nothing of the state changes, so no history has it.
    pub async fn step_down(&self) -> Outcome {
        match self.leaders.current() {
            Some(leader) => outcome(&self.run(leader, "step-down", &[]).await),
            None => Outcome::Unknown,
        }
    }

    async fn run(&self, leader: usize, command: &str, arguments: &[&str]) -> Output {
        let address = self.managers[leader].to_string();
        let all = [&[command][..], arguments, &["--json", "--manager", &address]].concat();
        process::run(all.into_iter().map(str::to_owned).collect()).await
    }

    async fn command(&self, kind: &str, arguments: &[&str], mut fields: Value) -> Outcome {
        let Some(leader) = self.leaders.current() else { return Outcome::Unknown };
        let id = self.ids.next();
        fields["id"] = id.into();
        fields["kind"] = kind.into();
        self.part.note("operator", "ask", fields);
        let output = self.run(leader, kind, arguments).await;
        let outcome = outcome(&output);
        match outcome {
            Outcome::Acknowledged => {
                let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
                let (term, revision) = (&answer["term"], &answer["revision"]);
                self.part.note("operator", "acknowledged", json!({"id": id, "term": term, "revision": revision}));
            }
            Outcome::Refused => {
                let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                self.part.note("operator", "refused_ask", json!({"id": id, "reason": reason}));
            }
            Outcome::Unknown => self.part.note("operator", "unknown", json!({"id": id})),
        }
        outcome
    }

    /// Until it is acknowledged, or surely not done.
    pub async fn insist(&self, kind: &str, executor: &str) {
        while self.ask(kind, executor).await == Outcome::Unknown {
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        watch::state(&self.part, &self.managers).await;
    }
}

fn outcome(output: &Output) -> Outcome {
    let said = String::from_utf8_lossy(&output.stderr);
    match () {
        () if output.status.success() => Outcome::Acknowledged,
        // The leader's own word, save where it does not know itself.
        () if said.contains(" refused: ") && !said.contains("STORE_UNAVAILABLE") => Outcome::Refused,
        () if said.contains("Connection refused") => Outcome::Refused,
        () => Outcome::Unknown,
    }
}
