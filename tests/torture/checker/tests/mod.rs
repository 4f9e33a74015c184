//! Histories that are written by hand. Times are milliseconds; leases last 3 s, leaderships 2 s, and the bound is 10 s.
//!
//! `1000 start a/1 #7@5` is a line at 1 s by incarnation 1 of executor `a` about shard 7 at epoch 5; `v3.57` is term 3, revision 57.

mod asks;
mod managers;
mod ownership;
mod recovery;
mod versions;
mod writes;

use serde_json::{Map, Value, json};

use super::{Promise, Report, Verdict, check_text};

const RUN: &str = "0 run seed=9 store=etcd lease_ttl_ms=3000 margin_ms=130 leader_ttl_ms=2000 command_timeout_ms=1000 number_of_shards=1 bound_ms=10000";

/// A run in which nothing is wrong and everything is looked at; shard 0 belongs to `z`.
const QUIET: [&str; 16] = [
    "1 joined z/9 cluster_id=c",
    "1 registered z/9 v1.1",
    "1 lease z/9 until_ms=3001",
    "2 start z/9 #0@1",
    "3 ask id=q kind=write shard=0 key=k value=q",
    "4 written z/9 #0@1 key=k value=q",
    "5 acknowledged id=q epoch=1 executor=z",
    "6 ask id=d kind=drain executor=y",
    "7 acknowledged id=d v1.2",
    "8 state v1.3 cluster_id=c owners=0:z:1 executors=z:active:9,y:drained:8",
    "9 seen reader=r cluster_id=c v1.3 unowned=0",
    "10 stored cluster_id=c v1.3 fence=4",
    "11 scrape manager=m is_leader=1 v1.3",
    "12 fault kind=kill target=m phase=begin",
    "13 fault kind=kill target=m phase=end",
    "14 healed",
];

fn number(text: &str) -> Value {
    text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number))
}

/// See the module.
fn line(text: &str) -> String {
    let mut fields = Map::new();
    let mut words = text.split_whitespace();
    let at: u64 = words.next().and_then(|at| at.parse().ok()).expect("a line begins with its time");
    fields.insert("at_ns".to_owned(), json!(at * 1_000_000));
    fields.insert("event".to_owned(), json!(words.next().expect("then comes the event")));
    for word in words {
        if let Some((key, value)) = word.split_once('=') {
            let value = match key {
                "owners" => owners(value),
                "executors" => executors(value),
                "kinds_expected" => json!(value.split(',').collect::<Vec<_>>()),
                _ => number(value),
            };
            match key.strip_suffix("_ms") {
                Some(key) => fields.insert(format!("{key}_ns"), json!(value.as_u64().expect("milliseconds") * 1_000_000)),
                None => fields.insert(key.to_owned(), value),
            };
            continue;
        }
        let (kind, rest) = word.split_at(1);
        let pair = match kind {
            "#" => rest.split_once('@').map(|pair| (["shard", "epoch"], pair)),
            "v" => rest.split_once('.').map(|pair| (["term", "revision"], pair)),
            _ => word.split_once('/').map(|pair| (["executor", "incarnation"], pair)),
        };
        let (names, (one, other)) = pair.unwrap_or_else(|| panic!("`{word}` of `{text}` is nothing"));
        fields.insert(names[0].to_owned(), number(one));
        fields.insert(names[1].to_owned(), number(other));
    }
    Value::Object(fields).to_string()
}

/// `7:a:5,8:-:4`
fn owners(text: &str) -> Value {
    let owner = |name: &str| if name == "-" { Value::Null } else { json!(name) };
    let parts = text.split(',').map(|part| part.split(':').collect::<Vec<_>>());
    parts.map(|part| json!([number(part[0]), owner(part[1]), number(part[2])])).collect()
}

/// `a:active:1,b:drained:2`
fn executors(text: &str) -> Value {
    let parts = text.split(',').map(|part| part.split(':').collect::<Vec<_>>());
    parts.map(|part| json!({"executor": part[0], "state": part[1], "incarnation": number(part[2])})).collect()
}

fn report_of(lines: &[&str]) -> Report {
    let lines: Vec<String> = lines.iter().map(|text| line(text)).collect();
    check_text(&lines.join("\n"))
}

/// The report on these lines beside a quiet run.
fn report(lines: &[&str]) -> Report {
    let renewed = "2500 lease z/9 until_ms=600000";
    let rest = "15 rest";
    report_of(&[&[RUN], &QUIET[..], &[rest, renewed], lines].concat())
}

#[track_caller]
fn green(lines: &[&str]) {
    let report = report(lines);
    assert!(report.violations.is_empty(), "nothing is wrong here:\n{report}");
}

/// Exactly one promise is broken, and its report says this.
#[track_caller]
fn red(promise: Promise, says: &str, lines: &[&str]) {
    let report = report(lines);
    let broken: Vec<Promise> = report.violations.iter().map(|violation| violation.promise).collect();
    assert!(!broken.is_empty() && broken.iter().all(|it| *it == promise), "{promise} is broken, and nothing else:\n{report}");
    let text = report.to_string();
    assert!(text.contains(says), "it says `{says}`:\n{report}");
    assert!(text.contains("seed 9") && text.contains(&format!("VIOLATION of {promise}")), "{report}");
}

#[test]
fn a_file_that_is_not_there_is_a_run_that_was_not_measured() {
    let report = super::check(std::path::Path::new("/nowhere/history.jsonl"));
    assert_eq!(report.verdict(), Verdict::NotMeasured, "{report}");
}

#[test]
fn a_quiet_run_passes() {
    let report = report(&[]);
    assert_eq!(report.verdict(), Verdict::Passed, "{report}");
    assert_eq!(report.counts.get("writes acknowledged"), Some(&1), "{report}");
}

#[test]
fn a_run_in_which_an_expected_fault_never_happened_is_not_measured() {
    let run = format!("{RUN} kinds_expected=kill,split");
    let with = |more: &[&str]| report_of(&[&[&*run], &QUIET[..], &["15 rest"], more].concat());
    let report = with(&[]);
    assert_eq!(
        (report.verdict(), &report.not_measured[..]),
        (Verdict::NotMeasured, &["fault split: it never happened".to_owned()][..])
    );
    assert_eq!(with(&["20 fault kind=split target=m phase=begin"]).verdict(), Verdict::Passed);
}

#[test]
fn a_check_that_had_nothing_to_look_at_is_not_measured() {
    let report = report_of(&[RUN, "10 healed", "11 rest"]);
    assert_eq!(report.verdict(), Verdict::Violated, "no executor ever worked: {report}");
    for what in ["P2", "P3", "P7", "P8", "storage"] {
        assert!(report.not_measured.iter().any(|it| it.starts_with(what)), "{what}: {report}");
    }
}

#[test]
fn a_line_that_was_cut_off_is_told_and_the_rest_is_read() {
    let mut lines: Vec<String> = [&[RUN], &QUIET[..], &["15 rest"]].concat().iter().map(|text| line(text)).collect();
    lines.push("{\"at_ns\":16000000,\"event\":\"sta".to_owned());
    lines.push(line("17 sneezed a/1"));
    let report = check_text(&lines.join("\n"));
    assert_eq!(report.verdict(), Verdict::Passed, "{report}");
    assert!(report.notes.iter().any(|note| note.starts_with("line 19")), "{report}");
    assert!(report.notes.iter().any(|note| note.contains("sneezed")), "{report}");
}

#[test]
fn a_history_without_its_first_line_is_told() {
    let report = report_of(&QUIET);
    assert!(report.notes.iter().any(|note| note.contains("no `run` line")), "{report}");
}

#[test]
fn parts_in_any_order_are_one_history() {
    let mut lines: Vec<&str> = [&[RUN], &QUIET[..], &["15 rest"]].concat();
    lines.reverse();
    let report = report_of(&lines);
    assert_eq!(report.verdict(), Verdict::Passed, "{report}");
}

#[test]
fn the_history_around_a_violation_is_shown_and_the_line_that_shows_it_marked() {
    let lines = [
        "100 lease a/1 until_ms=3100",
        "101 start a/1 #5@7",
        "102 stop a/1 #5@7",
        "103 lease b/2 until_ms=3100",
        "104 start b/2 #5@7",
        "105 stop b/2 #5@7",
    ];
    let text = report(&lines).to_string();
    assert!(text.contains("  > {\"at_ns\":104000000"), "{text}");
    assert!(text.contains("    {\"at_ns\":103000000"), "{text}");
    assert!(!text.contains("\"at_ns\":2000000,"), "of another shard: {text}");
}

#[test]
fn gaps_are_told() {
    let report = report(&["20 gap party=nemesis from_ms=16 to_ms=20 why=late"]);
    assert!(report.to_string().contains("GAP nemesis"), "{report}");
}
