//! P6: once everything is healed, every shard has an owner within the bound. And whether what was to be tried was tried at all.

use std::collections::BTreeMap;

use super::circumstances::Circumstances;
use super::history::{Event, History};
use super::ownership::Shards;
use super::{Promise, Report, seconds};

pub fn check(history: &History, circumstances: &Circumstances, shards: &Shards, report: &mut Report) {
    faults(history, report);
    let first = |wanted: Event| history.events().find(|(_, _, event)| **event == wanted);
    let last = |wanted: Event| history.events().filter(|(_, _, event)| **event == wanted).last();
    let Some((healed_line, healed, _)) = last(Event::Healed) else {
        report.not_measured.push("P6: the run did not come to its healing".to_owned());
        return;
    };
    let bound = history.run.bound_ns + circumstances.unobserved((healed, healed + history.run.bound_ns));
    let by = healed + bound;
    match first(Event::Rest).filter(|(_, at, _)| *at >= healed) {
        Some((line, at, _)) if at > by => {
            let what = format!(
                "every shard had an owner {} after the last fault, the bound is {}",
                seconds(at - healed),
                seconds(bound)
            );
            report.violated(Promise::NoOrphanForEver, [healed_line, line], None, what);
        }
        Some(_) => {}
        None if history.end_ns() < by => {
            let after = seconds(history.end_ns() - healed);
            report
                .not_measured
                .push(format!("P6: the history ends {after} after the last fault, before the bound and before rest"));
            return;
        }
        None => {
            let what = format!("not every shard had an owner {} after the last fault, the bound", seconds(bound));
            report.violated(Promise::NoOrphanForEver, [healed_line], None, what);
        }
    }
    // What the program saw in a table has to be true of executors.
    let serves = |shard: &u32| {
        let works = shards.get(shard).into_iter().flatten();
        works.into_iter().any(|work| work.from <= by && work.covered_until > healed)
    };
    let orphans: Vec<u32> = (0..history.run.number_of_shards).filter(|shard| !serves(shard)).collect();
    if !orphans.is_empty() {
        let what =
            format!("no executor worked on shards {orphans:?} between the last fault and the bound, {} later", seconds(bound));
        report.violated(Promise::NoOrphanForEver, [healed_line], orphans.first().copied(), what);
    }
}

fn faults(history: &History, report: &mut Report) {
    let mut times: BTreeMap<&str, u64> = history.run.kinds_expected.iter().map(|kind| (kind.as_str(), 0)).collect();
    for (_, _, event) in history.events() {
        if let Event::Fault { kind, begins: true, .. } = event {
            *times.entry(kind).or_default() += 1;
        }
    }
    for (kind, times) in times {
        if times == 0 {
            report.not_measured.push(format!("fault {kind}: it never happened"));
        }
    }
}
