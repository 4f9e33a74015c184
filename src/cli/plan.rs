//! `plan`: what would move, if.

use std::process::ExitCode;
use std::str::FromStr;

use serde::Serialize;

use super::Error;
use super::manager::{self, Managers};
use super::output::{self, Format};
use crate::rpc::{NOBODY, NewExecutor, PlanChangeRequest, PlanChangeResponse};
use crate::types::{ExecutorId, MAX_WEIGHT};

/// So many rows of moves are shown where not all are asked for.
pub(super) const SAMPLE: usize = 10;

/// See the module.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// What if this executor joined; may be repeated
    #[arg(long, value_name = "ID[=WEIGHT]")]
    join: Vec<Newcomer>,
    /// What if this executor left, or died; may be repeated
    #[arg(long, value_name = "ID")]
    leave: Vec<ExecutorId>,
    /// What if this executor was drained; may be repeated
    #[arg(long, value_name = "ID")]
    drain: Vec<ExecutorId>,
    /// Show every move, not only the first few
    #[arg(long)]
    shards: bool,
    #[command(flatten)]
    managers: Managers,
    #[command(flatten)]
    format: Format,
}

/// An executor that is thought of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Newcomer {
    id: ExecutorId,
    weight: u32,
}

impl FromStr for Newcomer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (id, weight) = text.split_once('=').unwrap_or((text, "1"));
        let id = id.parse().map_err(|error: crate::types::InvalidExecutorId| error.to_string())?;
        let weight = weight.parse().ok().filter(|weight| (1..=MAX_WEIGHT).contains(weight));
        let weight = weight.ok_or_else(|| format!("the weight of {id} must be 1 to {MAX_WEIGHT}"))?;
        Ok(Newcomer { id, weight })
    }
}

/// What `plan --json` prints.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Plan {
    term: u64,
    revision: u64,
    executors: Vec<Executor>,
    placed: u32,
    evacuated: u32,
    balance: u32,
    /// Shards that nobody would own.
    unplaced: u32,
    moves: Vec<Move>,
    notes: Vec<String>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Executor {
    id: String,
    before: u32,
    after: u32,
    /// Between these it rests; `None` where it would take no shards.
    bounds: Option<[u32; 2]>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Move {
    shard: u32,
    from: Option<String>,
    to: String,
}

pub(super) async fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let Arguments { join, leave, drain, shards, managers, format } = arguments;
    let ids = |ids: Vec<ExecutorId>| ids.iter().map(ToString::to_string).collect();
    let join = join.into_iter().map(|it| NewExecutor { executor_id: it.id.to_string(), weight: it.weight });
    let request = PlanChangeRequest { join: join.collect(), leave: ids(leave), drain: ids(drain) };
    let answer = managers.ask(async |channel| manager::admin(channel).plan_change(request.clone()).await).await?;
    let plan = Plan::read(answer)?;
    let most = if shards { usize::MAX } else { SAMPLE };
    let printed = if format.json { output::print_json(&plan) } else { output::print(&as_text(&plan, most)) };
    Ok(printed?)
}

impl Plan {
    /// Refuses arrays that do not fit together.
    pub(super) fn read(answer: PlanChangeResponse) -> Result<Plan, Error> {
        let PlanChangeResponse { version, executors, shards, from, to, notes, placed, evacuated, balance, unplaced } = answer;
        if shards.len() != from.len() || shards.len() != to.len() {
            let (shards, from, to) = (shards.len(), from.len(), to.len());
            return Err(Error::Nonsense(format!("{shards} shards move, but from {from} places and to {to}")));
        }
        let name = |at: u32| {
            let executor = executors.get(at as usize).map(|executor| executor.executor_id.clone());
            executor.ok_or_else(|| Error::Nonsense(format!("executor {at} is named, there are {}", executors.len())))
        };
        let mut moves = Vec::with_capacity(shards.len());
        for ((&shard, &from), &to) in shards.iter().zip(&from).zip(&to) {
            let from = if from == NOBODY { None } else { Some(name(from)?) };
            moves.push(Move { shard, from, to: name(to)? });
        }
        let executor = |it: &crate::rpc::PlannedExecutor| Executor {
            id: it.executor_id.clone(),
            before: it.shards_before,
            after: it.shards_after,
            bounds: Some([it.lower_bound, it.upper_bound]).filter(|bounds| *bounds != [0, 0]),
        };
        let version = version.unwrap_or_default();
        let executors = executors.iter().map(executor).collect();
        Ok(Plan { term: version.term, revision: version.revision, executors, placed, evacuated, balance, unplaced, moves, notes })
    }
}

pub(super) fn as_text(plan: &Plan, most: usize) -> String {
    let mut executors = output::table(["EXECUTOR", "BEFORE", "AFTER", "BOUNDS"]);
    for Executor { id, before, after, bounds } in &plan.executors {
        let bounds = bounds.map_or_else(|| "-".to_owned(), |[lower, upper]| format!("{lower}-{upper}"));
        executors.add_row([id.clone(), before.to_string(), after.to_string(), bounds]);
    }
    let Plan { placed, evacuated, balance, .. } = plan;
    let count = plan.moves.len();
    let mut parts = vec![
        output::text(&executors),
        format!(
            "shards that would move: {count} ({placed} that nobody owns, {evacuated} off executors that go, {balance} for balance)"
        ),
    ];
    if plan.unplaced > 0 {
        parts.push(format!("shards that would have no owner: {}", plan.unplaced));
    }
    if count > 0 {
        parts.push(moves(&plan.moves, most));
    }
    if !plan.notes.is_empty() {
        parts.push(output::pairs(plan.notes.iter().map(|note| ("note".to_owned(), note.clone()))));
    }
    parts.join("\n\n")
}

/// One line per run of shards that move from one executor to another.
fn moves(moves: &[Move], most: usize) -> String {
    let mut table = output::table(["SHARDS", "COUNT", "FROM", "TO"]);
    let follows = |a: &Move, b: &Move| a.from == b.from && a.to == b.to && a.shard.checked_add(1) == Some(b.shard);
    let mut shown = 0;
    for run in moves.chunk_by(follows).take(most) {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let shards = if first.shard == last.shard { first.shard.to_string() } else { format!("{}-{}", first.shard, last.shard) };
        let from = first.from.clone().unwrap_or_else(|| "-".to_owned());
        table.add_row([shards, run.len().to_string(), from, first.to.clone()]);
        shown += run.len();
    }
    let mut text = output::text(&table);
    if shown < moves.len() {
        text.push_str(&format!("\nand {} more: --shards shows all", moves.len() - shown));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::{PlannedExecutor, Version};

    fn answer() -> PlanChangeResponse {
        let executor = |id: &str, shards_before, shards_after, lower_bound, upper_bound| PlannedExecutor {
            executor_id: id.into(),
            shards_before,
            shards_after,
            lower_bound,
            upper_bound,
        };
        PlanChangeResponse {
            version: Some(Version { term: 7, revision: 9 }),
            executors: vec![executor("a", 5, 3, 2, 4), executor("b", 2, 0, 0, 0), executor("c", 0, 5, 2, 4)],
            shards: vec![1, 2, 3, 5, 7],
            from: vec![0, 0, 1, 1, NOBODY],
            to: vec![2; 5],
            notes: vec!["8 shards stay".into()],
            placed: 1,
            evacuated: 2,
            balance: 2,
            unplaced: 0,
        }
    }

    /// 4294967295 has no next one. No shard has that number, but an answer may.
    #[test]
    fn the_last_of_all_numbers_ends_a_run() {
        let shards = vec![3, u32::MAX - 1, u32::MAX, u32::MAX, 0];
        let text = as_text(&Plan::read(PlanChangeResponse { shards, from: vec![0; 5], to: vec![1; 5], ..answer() }).unwrap(), 9);
        assert!(text.contains("4294967294-4294967295  2"), "{text}");
    }

    #[test]
    fn people_see_before_and_after_and_a_few_of_the_moves() {
        let expected = "\
EXECUTOR  BEFORE  AFTER  BOUNDS
a         5       3      2-4
b         2       0      -
c         0       5      2-4

shards that would move: 5 (1 that nobody owns, 2 off executors that go, 2 for balance)

SHARDS  COUNT  FROM  TO
1-2     2      a     c
3       1      b     c
and 2 more: --shards shows all

note  8 shards stay";
        let plan = Plan::read(answer()).unwrap();
        assert_eq!(as_text(&plan, 2), expected);
        assert!(as_text(&plan, usize::MAX).contains("\n7       1      -     c\n\nnote"));
    }

    #[test]
    fn programs_get_the_promised_shape() {
        let json = serde_json::to_value(Plan::read(answer()).unwrap()).unwrap();
        assert_eq!(json["executors"][0], serde_json::json!({ "id": "a", "before": 5, "after": 3, "bounds": [2, 4] }));
        assert_eq!(json["executors"][1]["bounds"], serde_json::Value::Null);
        assert_eq!(json["moves"][4], serde_json::json!({ "shard": 7, "from": null, "to": "c" }));
        assert_eq!((&json["placed"], &json["evacuated"], &json["balance"]), (&1.into(), &2.into(), &2.into()));
    }

    #[test]
    fn shards_that_nobody_would_own_are_counted() {
        let plan = Plan::read(PlanChangeResponse { unplaced: 12, ..answer() }).unwrap();
        let text = as_text(&plan, 2);
        assert!(text.contains("for balance)\n\nshards that would have no owner: 12\n\nSHARDS"), "{text}");
        assert_eq!(serde_json::to_value(plan).unwrap()["unplaced"], 12);
        assert!(!as_text(&Plan::read(answer()).unwrap(), 2).contains("no owner"));
    }

    #[test]
    fn an_answer_that_does_not_fit_together_is_refused() {
        let message = |answer| Plan::read(answer).unwrap_err().to_string();
        assert!(message(PlanChangeResponse { to: vec![2], ..answer() }).contains("5 shards move, but from 5 places and to 1"));
        assert!(message(PlanChangeResponse { to: vec![3; 5], ..answer() }).contains("executor 3 is named, there are 3"));
    }

    #[test]
    fn a_newcomer_has_a_weight() {
        let newcomer = |text: &str| text.parse::<Newcomer>();
        let id: ExecutorId = "d".parse().unwrap();
        assert_eq!(newcomer("d"), Ok(Newcomer { id: id.clone(), weight: 1 }));
        assert_eq!(newcomer("d=7"), Ok(Newcomer { id, weight: 7 }));
        for (text, says) in [("d=0", "1 to 1000"), ("d=x", "1 to 1000"), ("d=1001", "1 to 1000"), ("a b", "executor id")] {
            assert!(newcomer(text).unwrap_err().contains(says), "{text}");
        }
    }
}
