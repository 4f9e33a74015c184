//! The rules, each with the check that looks at it. docs/executors.md explains them under the same ids.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::play::{Play, Verdict};
use super::record::Entry;
use super::{claims, commands, leases, lives};

/// A check that plays.
pub type Scene = for<'a> fn(&'a mut Play) -> Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;
/// A check of everything that was said in a run, under this lease.
pub type Reading = fn(&[Entry], Duration) -> Verdict;

/// One rule.
pub struct Rule {
    pub id: &'static str,
    pub demands: &'static str,
    /// How the check brings it about.
    pub provoked: &'static str,
    pub scene: Option<Scene>,
    pub reading: Option<Reading>,
    /// Why it cannot be seen from outside, and how to look at it all the same.
    pub hidden: Option<&'static str>,
}

impl Rule {
    /// Whether it counts for the exit code where it was not observed.
    pub fn is_required(&self) -> bool {
        self.hidden.is_none()
    }
}

/// The order in which scenes are played: first what needs a new process, last what ends one.
pub const ORDER: [&str; 15] = ["E1", "E10", "E17", "E7", "E4", "E5", "E6", "E15", "E3", "E18", "E9", "E11", "E13", "E14", "E12"];
/// Played after the process was started again.
pub const LAST: &str = "E16";

const RULE: Rule = Rule { id: "", demands: "", provoked: "", scene: None, reading: None, hidden: None };

/// All of them.
pub const RULES: [Rule; 19] = [
    Rule {
        id: "E1",
        demands: "registers with its id, an incarnation of its own, endpoint and weight; starts nothing before the answer; its lease counts from sending",
        provoked: "the first registration is answered late, and nothing after it",
        scene: Some(|play| Box::pin(leases::registers(play))),
        reading: Some(|entries, _| leases::incarnations(entries)),
        ..RULE
    },
    Rule {
        id: "E2",
        demands: "renews at a third of the lease, from the moment it was granted",
        provoked: "every answered call of the run",
        reading: Some(leases::renews_in_time),
        ..RULE
    },
    Rule {
        id: "E3",
        demands: "every renewal and every answer to a command carries its mark, which never goes back",
        provoked: "a command raises the mark while renewals stay unanswered; and every message of the run",
        scene: Some(|play| Box::pin(claims::carries_its_mark(play))),
        reading: Some(|entries, _| claims::marks(entries)),
        ..RULE
    },
    Rule {
        id: "E4",
        demands: "refuses a command below its mark with STALE_TERM, and holds nothing because of it",
        provoked: "a new term; then commands of a lower revision and of a lower term",
        scene: Some(|play| Box::pin(commands::stale(play))),
        ..RULE
    },
    Rule {
        id: "E5",
        demands: "refuses a command for another incarnation or executor with WRONG_INCARNATION",
        provoked: "commands for both",
        scene: Some(|play| Box::pin(commands::foreign_address(play))),
        ..RULE
    },
    Rule {
        id: "E6",
        demands: "refuses a command of another cluster with WRONG_CLUSTER; mark and holdings do not move",
        provoked: "a command of another cluster at a far higher term",
        scene: Some(|play| Box::pin(commands::foreign_cluster(play))),
        ..RULE
    },
    Rule {
        id: "E7",
        demands: "a command is the whole assignment; its answer comes within wait_ms and says everything that is held; again, it changes nothing",
        provoked: "a command that takes one shard away and adds one, three times, while renewals stay unanswered",
        scene: Some(|play| Box::pin(commands::whole_assignment(play))),
        ..RULE
    },
    Rule {
        id: "E8",
        demands: "stops a shard before it stops saying that it holds it",
        hidden: Some(
            "only the executor sees its own work: let a shard take a second to stop, and watch that the claim keeps it as long",
        ),
        ..RULE
    },
    Rule {
        id: "E9",
        demands: "a command extends no lease; without a lease commands are refused with LEASE_OVER",
        provoked: "commands while renewals stay unanswered, until after the lease",
        scene: Some(|play| Box::pin(leases::commands_extend_nothing(play))),
        ..RULE
    },
    Rule {
        id: "E10",
        demands: "claims are exact: in full after a change and where claim_wanted, else by the documented digest",
        provoked: "claim_wanted, until after the lease; a change while renewals stay unanswered; and every renewal of the run",
        scene: Some(|play| Box::pin(claims::claims(play))),
        reading: Some(|entries, _| claims::digests(entries)),
        ..RULE
    },
    Rule {
        id: "E11",
        demands: "stops everything by itself when its lease is over",
        provoked: "no call is answered for longer than the lease",
        scene: Some(|play| Box::pin(leases::fences_itself(play))),
        ..RULE
    },
    Rule {
        id: "E12",
        demands: "SUPERSEDED: stops everything for good, deregisters and does not register again",
        provoked: "a renewal is refused so",
        scene: Some(|play| Box::pin(lives::superseded(play))),
        ..RULE
    },
    Rule {
        id: "E13",
        demands: "UNKNOWN_EXECUTOR: stops everything, registers as a new incarnation, naming its cluster and mark",
        provoked: "a renewal is refused so, twice; a command right after",
        scene: Some(|play| Box::pin(lives::unknown(play))),
        ..RULE
    },
    Rule {
        id: "E14",
        demands: "WRONG_CLUSTER to its own call: stops everything, registers as a new incarnation, naming the cluster it came from",
        provoked: "the manager becomes another cluster twice: by a refusal, and by an answer that names it",
        scene: Some(|play| Box::pin(lives::other_cluster(play))),
        ..RULE
    },
    Rule {
        id: "E15",
        demands: "takes up a shard at a higher epoch, and never one at a lower",
        provoked: "commands with both",
        scene: Some(|play| Box::pin(commands::other_epochs(play))),
        ..RULE
    },
    Rule {
        id: "E16",
        demands: "ends in order: asks to leave, goes on until its shards are gone, deregisters",
        provoked: "somebody ends the process",
        scene: Some(|play| Box::pin(lives::leaves(play))),
        ..RULE
    },
    Rule {
        id: "E17",
        demands: "serves grpc.health.v1, SERVING while it works",
        provoked: "a probe",
        scene: Some(|play| Box::pin(commands::health(play))),
        ..RULE
    },
    Rule {
        id: "E18",
        demands: "an answer below its mark renews nothing",
        provoked: "renewals are answered at a lower revision, with another assignment, until after the lease",
        scene: Some(|play| Box::pin(leases::old_answers_renew_nothing(play))),
        ..RULE
    },
    Rule {
        id: "E19",
        demands: "reports the epochs for which its storage refused it",
        provoked: "every renewal of the run",
        reading: Some(|entries, _| claims::storage_epochs(entries)),
        hidden: Some("only its storage refuses an epoch"),
        ..RULE
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_page_says_how_each_rule_is_provoked() {
        let page = include_str!("../../../docs/executors.md");
        for rule in &RULES {
            let provoked = if rule.provoked.is_empty() { "not observable here" } else { rule.provoked };
            let row = format!("| {} | {provoked} |", rule.id);
            assert!(page.contains(&row), "docs/executors.md lacks the row {row}");
        }
    }

    #[test]
    fn every_rule_has_a_check_or_says_why_not_and_every_scene_is_played() {
        for (index, rule) in RULES.iter().enumerate() {
            assert_eq!(rule.id, format!("E{}", index + 1));
            assert!(rule.scene.is_some() || rule.reading.is_some() || rule.hidden.is_some(), "{}", rule.id);
        }
        let scenes: BTreeSet<&str> = RULES.iter().filter(|rule| rule.scene.is_some()).map(|rule| rule.id).collect();
        assert_eq!(ORDER.into_iter().chain([LAST]).collect::<BTreeSet<_>>(), scenes);
    }
}
