//! P6.

use super::{Promise, QUIET, RUN, Verdict, report_of};

fn report(lines: &[&str]) -> super::Report {
    report_of(&[&[RUN], &QUIET[..], lines].concat())
}

#[test]
fn shards_that_have_no_owner_within_the_bound() {
    let late = report(&["2500 lease z/9 until_ms=60000", "10100 rest"]).to_string();
    assert!(late.contains("every shard had an owner 10.086 s after the last fault, the bound is 10.000 s"), "{late}");
    let never = report(&["2500 lease z/9 until_ms=60000", "10100 silent manager=m"]).to_string();
    assert!(never.contains("VIOLATION of P6 No orphan for ever: not every shard had an owner"), "{never}");
    let in_time = report(&["2500 lease z/9 until_ms=60000", "9000 rest"]);
    assert_eq!(in_time.verdict(), Verdict::Passed, "{in_time}");
}

#[test]
fn what_was_not_observed_makes_the_bound_longer() {
    let report =
        report(&["2500 lease z/9 until_ms=60000", "5000 gap party=program from_ms=4000 to_ms=5000 why=late", "10100 rest"]);
    assert_eq!(report.verdict(), Verdict::Passed, "{report}");
}

#[test]
fn a_table_that_is_full_while_no_executor_works() {
    let lines = ["13 stop z/9 #0@1", "100 rest"];
    let report = report(&lines);
    assert!(report.to_string().contains("no executor worked on shards [0]"), "{report}");
    assert_eq!(report.violations.len(), 1, "{report}");
    assert_eq!(report.violations[0].promise, Promise::NoOrphanForEver);
}

#[test]
fn a_history_that_ends_before_the_bound_was_not_measured() {
    let report = report(&["50 silent manager=m"]);
    assert_eq!(report.verdict(), Verdict::NotMeasured, "{report}");
    let report = report_of(&[&[RUN], &QUIET[..15]].concat());
    assert!(report.not_measured.iter().any(|it| it.contains("did not come to its healing")), "{report}");
}
