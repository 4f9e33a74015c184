//! docs/performance.md and bench.json tell of the same run, and neither was edited by hand.
#![allow(clippy::unwrap_used)]

use std::path::Path;

#[allow(dead_code)]
#[path = "../benches/manager/page.rs"]
mod page;

use page::{Reach, Record};

fn read(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

#[test]
fn the_page_is_the_one_that_the_record_makes() {
    let record: Record = serde_json::from_str(&read("bench.json")).unwrap();
    assert_eq!(page::page(&record), read("docs/performance.md"), "`make bench` writes both");
    let choosing = read("docs/choosing-a-store.md");
    assert_eq!(page::choosing(&record, &choosing), choosing, "`make bench` writes its figures");
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
