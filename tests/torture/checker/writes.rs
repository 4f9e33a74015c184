//! The executors' storage, which compares epochs, and what callers were told: what was acknowledged is there once, what was not answered
//! at most once, and nothing was accepted below an epoch that was there before.

use std::collections::{BTreeMap, HashMap};

use super::history::{Asked, Event, History, Incarnation, Outcome};
use super::ownership::{Shards, Work};
use super::{Promise, Report};

struct Written<'a> {
    line: usize,
    at: u64,
    who: &'a Incarnation,
    epoch: u64,
}

pub fn check(history: &History, shards: &Shards, report: &mut Report) {
    let mut written: HashMap<(u32, &str, &str), Vec<Written>> = HashMap::new();
    let mut newest: BTreeMap<u32, Written> = BTreeMap::new();
    for (line, at, event) in history.events() {
        let Event::Written { who, shard, epoch, key, value } = event else { continue };
        let this = || Written { line, at, who, epoch: *epoch };
        if let Some(before) = newest.get(shard) {
            if *epoch < before.epoch {
                let what = format!("shard {shard}: {who} wrote at epoch {epoch} after {} wrote at {}", before.who, before.epoch);
                report.violated(Promise::StorageIsSafe, [before.line, line], Some(*shard), what);
            } else if *epoch == before.epoch && who != before.who {
                let what = format!("shard {shard}: {who} and {} wrote at one epoch, {epoch}", before.who);
                report.violated(Promise::EpochsOnlyGrow, [before.line, line], Some(*shard), what);
            }
        }
        if newest.get(shard).is_none_or(|before| *epoch >= before.epoch) {
            newest.insert(*shard, this());
        }
        if !has_started(shards.get(shard), who, *epoch, at) {
            let what = format!("shard {shard}: {who} wrote at epoch {epoch}, at which it had not started it");
            report.violated(Promise::StorageIsSafe, [line], Some(*shard), what);
        }
        written.entry((*shard, key, value)).or_default().push(this());
    }
    callers(history, &mut written, report);
}

fn has_started(works: Option<&Vec<Work>>, who: &Incarnation, epoch: u64, at: u64) -> bool {
    works.is_some_and(|works| works.iter().any(|work| work.who == *who && work.epoch == epoch && work.from <= at))
}

fn callers<'a>(history: &'a History, written: &mut HashMap<(u32, &'a str, &'a str), Vec<Written<'a>>>, report: &mut Report) {
    let outcomes: HashMap<&str, (usize, u64, &Outcome)> = history
        .events()
        .filter_map(|(line, at, event)| match event {
            Event::Outcome { id, outcome } => Some((id.as_str(), (line, at, outcome))),
            _ => None,
        })
        .collect();
    let mut asks = 0;
    for (line, _, event) in history.events() {
        let Event::Ask { id, asked: Asked::Write { shard, key, value } } = event else { continue };
        asks += 1;
        let found = written.remove(&(*shard, key.as_str(), value.as_str())).unwrap_or_default();
        let lines = |found: &[Written]| found.iter().map(|it| it.line).chain([line]).collect::<Vec<_>>();
        let outcome = outcomes.get(id.as_str());
        report.count(
            match outcome {
                Some((_, _, Outcome::Acknowledged { .. })) => "writes acknowledged",
                Some((_, _, Outcome::Refused)) => "writes refused to their callers",
                _ => "writes whose callers got no answer",
            },
            1,
        );
        if found.len() > 1 {
            let what = format!("shard {shard}: {key} = {value} (ask {id}) is in the storage {} times", found.len());
            report.violated(Promise::StorageIsSafe, lines(&found), Some(*shard), what);
        }
        match outcome {
            Some(&(answered, at, Outcome::Acknowledged { epoch, executor, .. })) => {
                let fits = |it: &&Written| {
                    it.at <= at
                        && epoch.is_none_or(|epoch| epoch == it.epoch)
                        && executor.as_ref().is_none_or(|executor| *executor == it.who.executor)
                };
                if !found.iter().any(|it| fits(&it)) {
                    let how =
                        if found.is_empty() { "is not in the storage" } else { "is there otherwise than it was acknowledged" };
                    let what = format!("shard {shard}: {key} = {value} (ask {id}) was acknowledged and {how}");
                    let lines = lines(&found).into_iter().chain([answered]);
                    report.violated(Promise::StorageIsSafe, lines, Some(*shard), what);
                }
            }
            Some((answered, _, Outcome::Refused)) if !found.is_empty() => {
                let what = format!("shard {shard}: {key} = {value} (ask {id}) was refused and is in the storage");
                let lines = lines(&found).into_iter().chain([*answered]);
                report.violated(Promise::StorageIsSafe, lines, Some(*shard), what);
            }
            // Without an answer it may have happened or not.
            _ => {}
        }
    }
    if asks == 0 {
        report.not_measured.push("storage: nobody asked for a write".to_owned());
        return;
    }
    let strangers = written.iter().flat_map(|((shard, key, value), found)| found.iter().map(move |it| (shard, key, value, it)));
    for (shard, key, value, it) in strangers {
        let what = format!("shard {shard}: {key} = {value} is in the storage, and nobody asked for it");
        report.violated(Promise::StorageIsSafe, [it.line], Some(*shard), what);
    }
}
