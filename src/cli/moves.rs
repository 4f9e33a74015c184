//! `move`: shards go where an operator wants them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::str::FromStr;

use serde::Serialize;

use super::asker::asked_by;
use super::manager::{self, Managers};
use super::output::{self, Format};
use super::table::{self, State, Table};
use super::wait::{Seen, WaitArguments, Waiting};
use super::{Error, executors};
use crate::rpc::{self, MoveShardsRequest};
use crate::types::{ExecutorId, MAX_SHARDS};

/// Of `move`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Shards, such as 7 or 3-5
    #[arg(value_name = "SHARD", required = true)]
    shards: Vec<Range>,
    /// The id of the executor that is to have them
    #[arg(long, value_name = "ID")]
    to: ExecutorId,
    /// Why, for the manager's log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    waiting: WaitArguments,
    #[command(flatten)]
    managers: Managers,
    #[command(flatten)]
    format: Format,
}

/// A shard, or several in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    last: u32,
}

/// Text that names no shards.
#[derive(Debug, thiserror::Error)]
enum InvalidRange {
    #[error("it takes a shard, such as 7, or the first and the last of several, such as 3-5")]
    Form,
    #[error("it ends before it begins")]
    Backwards,
    #[error("shards are below {MAX_SHARDS}")]
    TooHigh,
}

impl FromStr for Range {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| InvalidRange::Form);
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (number(first)?, number(last)?);
        match (first, last) {
            (_, MAX_SHARDS..) => Err(InvalidRange::TooHigh),
            _ if last < first => Err(InvalidRange::Backwards),
            _ => Ok(Range { first, last }),
        }
    }
}

/// What `move --json` prints.
#[derive(Debug, PartialEq, Serialize)]
struct Done<'a> {
    to: &'a str,
    done: &'static str,
    moving: u32,
    term: u64,
    revision: u64,
}

pub(super) async fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    // Named twice is named.
    let shards: BTreeSet<u32> = arguments.shards.iter().flat_map(|range| range.first..=range.last).collect();
    let request = MoveShardsRequest {
        shards: shards.iter().copied().collect(),
        to_executor_id: arguments.to.to_string(),
        asked_by: asked_by(),
        reason: arguments.reason.clone(),
    };
    let call = async |channel| manager::admin(channel).move_shards(request.clone()).await;
    let answer = arguments.managers.change(call).await;
    let to = arguments.to.as_str();
    if !arguments.waiting.wait {
        let answer = answer?;
        let moving = answer.moving;
        let meaning = match moving {
            0 => format!("every one of these shards is at executor {to}, or on its way there, already"),
            1 => format!("1 shard moves to executor {to}"),
            moving => format!("{moving} shards move to executor {to}"),
        };
        return arguments.print("moving", &meaning, &answer);
    }
    let waiting = Waiting {
        managers: &arguments.managers,
        timeout: arguments.waiting.timeout,
        undone: format!("not every shard was at executor {to}"),
        goes_on: "the move goes on".to_owned(),
    };
    let answer = arguments.waiting.acknowledged(answer)?;
    let managers = arguments.managers.once();
    let (acknowledged, mut last_term) = (answer.is_some(), 0);
    let look = async || {
        let table = table::get(&managers).await?;
        last_term = table.term;
        let executors = executors::list(&managers).await?;
        let starting = executors.iter().filter(|it| it.id == to).map(|it| it.starting).fold(0, u32::saturating_add);
        Ok(match look(&table, starting, &shards, to) {
            // It may begin yet.
            Seen::Over(astray) if !acknowledged && !astray.is_empty() => {
                Seen::Goes(format!("{} of {} shards elsewhere", count(&astray), shards.len()))
            }
            seen => seen,
        })
    };
    let astray = waiting.until(look).await?;
    let answer = answer.unwrap_or_default();
    if !astray.is_empty() {
        let first_term = answer.version.unwrap_or_default().term;
        return Err(Error::Undone(told_astray(&astray, to, (first_term, last_term))));
    }
    arguments.print("moved", &format!("every one of these shards is at executor {to}, which has started it"), &answer)
}

impl Arguments {
    fn print(&self, done: &'static str, meaning: &str, answer: &rpc::MoveShardsResponse) -> Result<ExitCode, Error> {
        let version = answer.version.unwrap_or_default();
        let (to, moving) = (self.to.as_str(), answer.moving);
        let printed = if self.format.json {
            output::print_json(&Done { to, done, moving, term: version.term, revision: version.revision })
        } else {
            output::print(meaning)
        };
        Ok(printed?)
    }
}

/// Where the shards are. Over once all of them rest: those that rest elsewhere, by who has them. The executor may be `starting` others.
fn look(table: &Table, starting: u32, shards: &BTreeSet<u32>, to: &str) -> Seen<BTreeMap<String, Vec<u32>>> {
    let (mut there, mut free) = (0, 0);
    let mut stopping: BTreeMap<&str, u32> = BTreeMap::new();
    let mut astray: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for &shard in shards {
        let Some(found) = table.shards.get(shard as usize) else { continue };
        match (found.state, found.executor.as_deref()) {
            (State::Held, Some(owner)) if owner == to => there += 1,
            (State::Held, Some(owner)) => astray.entry(owner.to_owned()).or_default().push(shard),
            (State::Releasing, Some(owner)) => *stopping.entry(owner).or_default() += 1,
            _ => free += 1,
        }
    }
    if free == 0 && stopping.is_empty() && (starting == 0 || there == 0) {
        return Seen::Over(astray);
    }
    let mut progress = format!("{there} of {} shards at executor {to}", shards.len());
    for (owner, count) in stopping {
        progress += &format!(", {count} being stopped by {owner}");
    }
    if free > 0 {
        progress += &format!(", {free} without an owner");
    }
    if starting > 0 {
        progress += &format!(", {starting} not seen to run there yet");
    }
    if !astray.is_empty() {
        progress += &format!(", {} elsewhere", count(&astray));
    }
    Seen::Goes(progress)
}

fn count(astray: &BTreeMap<String, Vec<u32>>) -> usize {
    astray.values().map(Vec::len).sum()
}

/// Where they are, and why: a new term is that of another leader, or of one that has begun anew, which knows nothing of moves by hand.
fn told_astray(astray: &BTreeMap<String, Vec<u32>>, to: &str, (first_term, last_term): (u64, u64)) -> String {
    let places: Vec<String> = astray
        .iter()
        .map(|(owner, shards)| {
            let shards: Vec<String> = shards.iter().map(ToString::to_string).collect();
            let noun = if shards.len() == 1 { "shard" } else { "shards" };
            format!("{noun} {} at executor {owner}", shards.join(", "))
        })
        .collect();
    let (places, not_there) = (places.join("; "), format!("not every shard is at executor {to}"));
    if first_term == last_term {
        format!("{not_there}, which went away or did not start them: {places}")
    } else {
        format!(
            "{not_there}: the leader changed meanwhile (term {first_term}, then {last_term}), and forgot where shards on their way were to \
             go; ask again: {places}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::{NOBODY, Owner, RoutingTable, Version};

    #[test]
    fn shards_are_named_alone_and_in_rows() {
        let range = |first, last| Some(Range { first, last });
        assert_eq!("7".parse::<Range>().ok(), range(7, 7));
        assert_eq!("3-5".parse::<Range>().ok(), range(3, 5));
        for (text, rule) in [("", "takes a shard"), ("a", "takes a shard"), ("3-", "takes a shard"), ("-3", "takes a shard")] {
            assert!(text.parse::<Range>().unwrap_err().to_string().contains(rule), "{text}");
        }
        assert!("5-3".parse::<Range>().unwrap_err().to_string().contains("ends before it begins"));
        assert!("4194304".parse::<Range>().unwrap_err().to_string().contains("below 4194304"));
    }

    /// Shards 0 and 1 at a, 2 at b; 3 leaves a, 4 is nobody's, 5 is at c.
    fn table() -> Table {
        let owner = |id: &str| Owner { executor_id: id.into(), incarnation: 1, endpoint: "http://h:1".into() };
        let answer = RoutingTable {
            cluster_id: "c".into(),
            version: Some(Version { term: 7, revision: 9 }),
            number_of_shards: 6,
            owners: vec![owner("a"), owner("b"), owner("c")],
            owner: vec![0, 0, 1, 0, NOBODY, 2],
            epochs: vec![70; 6],
            releasing: vec![3],
        };
        Table::read(answer).unwrap()
    }

    #[test]
    fn progress_says_where_the_shards_are_and_what_they_wait_for() {
        let seen = |shards: &[u32], starting, to| look(&table(), starting, &shards.iter().copied().collect(), to);
        let goes = |text: &str| Seen::Goes(text.to_owned());
        assert_eq!(
            seen(&[0, 2, 3, 4, 5], 1, "b"),
            goes(
                "1 of 5 shards at executor b, 1 being stopped by a, 1 without an owner, 1 not seen to run there yet, 2 elsewhere"
            )
        );
        assert_eq!(seen(&[0, 1], 2, "a"), goes("2 of 2 shards at executor a, 2 not seen to run there yet"));
        assert_eq!(seen(&[0, 1], 0, "a"), Seen::Over(BTreeMap::new()));
    }

    #[test]
    fn shards_that_ended_elsewhere_are_named() {
        let Seen::Over(astray) = look(&table(), 3, &[0, 1, 5].into(), "b") else { panic!("all of them rest") };
        assert_eq!(
            told_astray(&astray, "b", (7, 7)),
            "not every shard is at executor b, which went away or did not start them: shards 0, 1 at executor a; shard 5 at executor c"
        );
    }

    #[test]
    fn a_move_that_a_change_of_leader_made_forgotten_is_not_blamed_on_the_executor() {
        let Seen::Over(astray) = look(&table(), 3, &[0].into(), "b") else { panic!("all of them rest") };
        assert_eq!(
            told_astray(&astray, "b", (7, 9)),
            "not every shard is at executor b: the leader changed meanwhile (term 7, then 9), and forgot where shards on their way were to \
             go; ask again: shard 0 at executor a"
        );
    }
}
