//! The checker of torture runs, on histories that are written by hand: every violation that it knows, and what is nearest to it and right.

#[path = "torture/checker/mod.rs"]
mod checker;

#[test]
fn a_file_that_is_not_there_is_a_run_that_was_not_measured() {
    let report = checker::check(std::path::Path::new("/nowhere/history.jsonl"));
    assert_eq!(report.verdict(), checker::Verdict::NotMeasured, "{report}");
}
