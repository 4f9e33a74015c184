//! bench.json and what was made from it tell of the same run, and nothing of it was edited by hand.
#![allow(clippy::unwrap_used)]

use std::path::Path;

#[allow(dead_code)]
#[path = "../benches/manager/guarantees.rs"]
mod guarantees;
#[allow(dead_code)]
#[path = "../benches/manager/page.rs"]
mod page;

use guarantees::{DISTURBANCE, ROWS, Row, Seen};
use page::{Figure, Reach, Record};

fn read(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

#[test]
fn the_page_is_the_one_that_the_record_makes() {
    let record: Record = serde_json::from_str(&read("bench.json")).unwrap();
    assert_eq!(page::page(&record), read("docs/performance.md"), "`make bench` writes both");
    let choosing = read("docs/choosing-a-store.md");
    assert_eq!(page::choosing(&record, &choosing), choosing, "`make bench` writes its figures");
    let promised = read("docs/guarantees.md");
    assert_eq!(guarantees::guarantees(&record, &promised), promised, "`make bench` writes what it saw of the bounds");
}

/// What is measured is what is promised, and all of it.
#[test]
fn every_bound_of_the_page_is_among_those_that_are_measured() {
    let page = read("docs/guarantees.md");
    let (_, bounds) = page.split_once("\n## Bounds\n").unwrap();
    let (_, table) = bounds.split_once("| what happened | bound | why |\n| --- | --- | --- |\n").unwrap();
    let promised: Vec<String> = table
        .lines()
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.split('|').skip(1).take(2).map(str::trim).collect::<Vec<_>>().join(": "))
        .collect();
    let measured: Vec<String> = ROWS.iter().map(|Row { what, bound, .. }| format!("{what}: {bound}")).collect();
    assert_eq!(promised, measured);
}

#[test]
fn a_bound_that_was_not_kept_is_shown_as_such() {
    let json = read("bench.json");
    let table = |figures: Vec<Figure>| {
        let record = Record { figures, ..serde_json::from_str(&json).unwrap() };
        let page = guarantees::guarantees(&record, &read("docs/guarantees.md"));
        move |what: &str, bound: &str| {
            let row = format!("| {what} | {bound} | ");
            page.lines().filter_map(|line| line.strip_prefix(&row)).next_back().unwrap().to_owned()
        }
    };
    assert!(!read("docs/guarantees.md").contains("not measured yet"), "`make bench` measures all of them");
    let nothing = table(Vec::new());
    for Row { what, bound, .. } in &ROWS {
        assert!(nothing(what, bound).ends_with("| not measured yet | – |"), "{what}");
    }
    for Row { what, bound, ms, figures, seen } in &ROWS {
        let kept = |name: &&str, above: f64| match seen {
            Seen::Time => Figure::new(name, "").times(vec![0.0, ms + above]),
            Seen::Undisturbed => Figure::new(name, "").times(vec![1.0, 2.0]).reach(DISTURBANCE, 0.0, above.max(0.0)),
        };
        let runs = 2 * figures.len();
        let (within, above) = (figures.iter().map(|it| kept(it, 0.0)), figures.iter().map(|it| kept(it, 2000.0)));
        let (within, above) = (table(within.collect())(what, bound), table(above.collect())(what, bound));
        assert!(!within.contains("**") && within.ends_with(&format!("| {runs} |")), "{what}: {within}");
        assert!(above.contains("| **") && above.ends_with(&format!("| {runs} |")), "{what}: {above}");
    }
}

#[test]
fn what_is_derived_follows_from_what_was_measured() {
    let record: Record = serde_json::from_str(&read("bench.json")).unwrap();
    assert!(!record.figures.is_empty());
    for figure in &record.figures {
        let name = &figure.name;
        for summary in figure.measured.iter().chain(figure.floor.iter().map(|floor| &floor.measured)) {
            assert!(summary.runs > 0 && summary.min <= summary.median, "{name}: {summary:?}");
            assert!(summary.median <= summary.p99 && summary.p99 <= summary.max, "{name}: {summary:?}");
        }
        let ratio = figure.measured.zip(figure.floor.as_ref()).map(|(own, floor)| own.median / floor.measured.median);
        assert_eq!(figure.ratio.is_some(), ratio.is_some(), "{name}");
        if let (Some(said), Some(ratio)) = (figure.ratio, ratio) {
            // Both medians are rounded.
            assert!((said - ratio).abs() <= 0.01 * ratio, "{name}: {said} is not {ratio}");
        }
        for Reach { rule, at_most, found, met } in &figure.reach {
            assert_eq!(*met, found <= at_most, "{name}: {rule}");
        }
    }
}
