//! Each kind of violation, and what only looks like one.
#![allow(clippy::unwrap_used)]

use super::*;

/// A journal's line, short: (at, incarnation, entry). Executors are named after their incarnation.
fn line((at_ns, incarnation, entry): (u64, u64, Entry)) -> Line {
    Line { at_ns, entry, executor: format!("e{incarnation}"), incarnation }
}

fn start(shard: u32, epoch: u64) -> Entry {
    Entry::Start { shard, epoch }
}

fn stop(shard: u32, epoch: u64) -> Entry {
    Entry::Stop { shard, epoch }
}

fn lease(until_ns: u64) -> Entry {
    Entry::Lease { until_ns }
}

/// Of processes that have a file each.
fn checked(lines: &[(u64, u64, Entry)], rules: Rules) -> Report {
    let mut journals: BTreeMap<u64, Journal> = BTreeMap::new();
    for line in lines.iter().copied().map(line) {
        journals.entry(line.incarnation).or_default().push(line);
    }
    check(&journals.into_values().collect::<Vec<_>>(), rules)
}

/// Lines of incarnations of one executor.
fn of_one(lines: &[(u64, u64, Entry)]) -> Journal {
    lines.iter().map(|&it| Line { executor: "e".into(), ..line(it) }).collect()
}

fn violations(lines: &[(u64, u64, Entry)]) -> Vec<Violation> {
    checked(lines, Rules::default()).violations
}

fn interval(incarnation: u64, epoch: u64, from_ns: u64, until_ns: u64) -> Interval {
    Interval { executor: format!("e{incarnation}"), incarnation, epoch, from_ns, until_ns }
}

#[test]
fn a_handoff_in_order_is_no_violation_and_counts_as_a_move() {
    let report = checked(
        &[
            (10, 1, lease(100)),
            (11, 1, start(0, 5)),
            (40, 1, stop(0, 5)),
            (10, 2, lease(100)),
            (45, 2, start(0, 6)),
            (60, 2, stop(0, 6)),
        ],
        Rules::default(),
    );
    assert_eq!(report.violations, []);
    let summary = ShardSummary { moves: 1, longest_unowned_ns: 5, total_unowned_ns: 5 };
    assert_eq!((report.shards[&0].clone(), report.incarnations), (summary, 2));
}

#[test]
fn ownership_that_overlaps_under_live_leases_is_found() {
    let found = violations(&[
        (10, 1, lease(100)),
        (11, 1, start(0, 5)),
        (50, 1, stop(0, 5)),
        (10, 2, lease(100)),
        (49, 2, start(0, 6)),
        (60, 2, stop(0, 6)),
    ]);
    assert_eq!(found, [Violation::Overlap { shard: 0, first: interval(1, 5, 11, 50), second: interval(2, 6, 49, 60) }]);
}

#[test]
fn a_killed_process_owns_until_its_last_lease_ends_and_not_longer() {
    let killed = [(10, 1, lease(100)), (11, 1, start(0, 5)), (60, 1, lease(150)), (10, 2, lease(300))];
    let with = |at| [&killed[..], &[(at, 2, start(0, 6))]].concat();
    assert_eq!(violations(&with(150)), []);
    let overlap = Violation::Overlap { shard: 0, first: interval(1, 5, 11, 150), second: interval(2, 6, 149, 300) };
    assert_eq!(violations(&with(149)), [overlap]);
}

#[test]
fn a_paused_process_owned_until_its_lease_ran_out_not_until_it_woke() {
    let found = violations(&[
        (10, 1, lease(100)),
        (11, 1, start(0, 5)),
        (400, 1, Entry::Fenced { shard: 0, epoch: 5 }),
        (410, 1, lease(500)),
        (10, 2, lease(600)),
        (120, 2, start(0, 6)),
    ]);
    assert_eq!(found, []);
}

/// A kill leaves no line. The successor's first line in the same file says that the process is gone, and the manager may hand over at
/// once where it comes back at the same endpoint.
#[test]
fn a_process_that_goes_on_with_the_file_of_one_that_was_killed_shows_that_it_is_gone() {
    let killed = of_one(&[(10, 1, lease(100)), (11, 1, start(0, 5)), (12, 1, start(1, 5)), (13, 1, stop(1, 5))]);
    let again = of_one(&[(40, 2, lease(140)), (41, 2, start(0, 6)), (42, 2, start(1, 6))]);
    let report = check(&[[&killed[..], &again].concat()], Rules::default());
    assert_eq!(report.violations, []);
    let summary = ShardSummary { moves: 0, longest_unowned_ns: 1, total_unowned_ns: 1 };
    assert_eq!(report.shards[&0], summary, "owned until its successor came, and that is no move");

    let one = |incarnation, epoch, from_ns, until_ns| Interval {
        executor: "e".into(),
        ..interval(incarnation, epoch, from_ns, until_ns)
    };
    let overlap = Violation::Overlap { shard: 0, first: one(1, 5, 11, 100), second: one(2, 6, 41, 140) };
    let report = check(&[killed.clone(), again.clone()], Rules::default());
    assert_eq!(report.violations, [overlap], "in a file of its own it says nothing about the old one");

    let other = vec![line((10, 3, lease(200))), line((39, 3, start(0, 6)))];
    let report = check(&[[&killed[..], &again[..1]].concat(), other], Rules::default());
    let overlap = Violation::Overlap { shard: 0, first: one(1, 5, 11, 40), second: interval(3, 6, 39, 200) };
    assert_eq!(report.violations, [overlap], "it owned until then");

    let woken = of_one(&[(50, 1, lease(100))]);
    let report = check(&[[&killed[..], &again, &woken].concat()], Rules::default());
    let overlap = Violation::Overlap { shard: 0, first: one(1, 5, 11, 100), second: one(2, 6, 41, 140) };
    assert_eq!(report.violations, [overlap], "one that writes again was not gone");

    let begun = of_one(&[(30, 2, Entry::Begin)]);
    let other = vec![line((10, 3, lease(200))), line((31, 3, start(0, 6)))];
    let report = check(&[[&killed[..], &begun, &again[..1]].concat(), other], Rules::default());
    assert_eq!(report.violations, [], "it was gone before anybody heard of its successor");

    let stranger = vec![line((40, 2, lease(140))), line((41, 2, start(0, 6)))];
    let report = check(&[[killed, stranger].concat()], Rules::default());
    assert_eq!(report.violations.len(), 1, "another executor in the same file says nothing about it");
}

#[test]
fn a_first_grant_and_a_new_incarnation_are_no_moves_and_each_other_executor_is_one() {
    let mut journals = vec![of_one(&[(10, 1, lease(100)), (11, 1, start(0, 5)), (20, 1, stop(0, 5))])];
    journals[0].extend(of_one(&[(30, 2, lease(200)), (31, 2, start(0, 6)), (40, 2, stop(0, 6))]));
    assert_eq!(check(&journals, Rules::default()).moves(), 0);
    journals.push(vec![line((10, 3, lease(200))), line((50, 3, start(0, 7))), line((60, 3, stop(0, 7)))]);
    assert_eq!(check(&journals, Rules::default()).moves(), 1);
    journals[0].extend(of_one(&[(70, 2, start(0, 8))]));
    assert_eq!(check(&journals, Rules::default()).moves(), 2);
}

#[test]
fn an_epoch_that_does_not_grow_is_found() {
    let change = |incarnation, epoch| {
        [
            (10, 1, lease(100)),
            (11, 1, start(0, 5)),
            (20, 1, stop(0, 5)),
            (10, incarnation, lease(100)),
            (30, incarnation, start(0, epoch)),
            (40, incarnation, stop(0, epoch)),
        ]
    };
    let stuck = |incarnation, epoch| {
        vec![Violation::EpochDidNotGrow { shard: 0, highest: 5, interval: interval(incarnation, epoch, 30, 40) }]
    };
    assert_eq!(violations(&change(2, 5)), stuck(2, 5));
    assert_eq!(violations(&change(2, 4)), stuck(2, 4));
    assert_eq!(violations(&change(1, 4)), stuck(1, 4));
    assert_eq!(violations(&change(1, 5)), [], "the same incarnation may start the same epoch again");
    assert_eq!(violations(&change(2, 6)), []);
}

#[test]
fn work_without_a_lease_and_work_begun_twice_are_found() {
    let (executor, incarnation) = ("e1".to_owned(), 1);
    let found = violations(&[(10, 1, lease(20)), (20, 1, start(0, 5))]);
    assert_eq!(found, [Violation::NoLease { shard: 0, executor: executor.clone(), incarnation, at_ns: 20 }]);
    let found = violations(&[(10, 1, lease(100)), (20, 1, start(0, 5)), (30, 1, start(0, 6))]);
    assert_eq!(found, [Violation::StartedTwice { shard: 0, executor, incarnation, at_ns: 30 }]);
}

#[test]
fn an_end_without_its_beginning_is_found() {
    let ends_nothing =
        |shard, epoch, at_ns| Violation::EndsNothing { shard, epoch, executor: "e1".into(), incarnation: 1, at_ns };
    assert_eq!(violations(&[(10, 1, lease(100)), (20, 1, stop(0, 5))]), [ends_nothing(0, 5, 20)]);
    let report = checked(&[(10, 1, lease(100)), (20, 1, start(0, 5)), (30, 1, stop(0, 6))], Rules::default());
    assert_eq!(report.violations, [ends_nothing(0, 6, 30)]);
    assert!(report.shards.contains_key(&0), "it was owned all the same");
    assert!(report.to_string().contains("shard 0: ended at epoch 6, at which it had not begun, by e1 (incarnation 1) at 30"));
}

#[test]
fn epoch_0_is_none() {
    let found = violations(&[(10, 1, lease(100)), (20, 1, start(0, 0)), (30, 1, stop(0, 0))]);
    assert_eq!(found, [Violation::EpochDidNotGrow { shard: 0, highest: 0, interval: interval(1, 0, 20, 30) }]);
}

/// No violation: a process that is stopped by its machine cannot end anything. But somebody may want to know.
#[test]
fn work_that_ended_after_its_lease_is_counted() {
    let lines = [(10, 1, lease(100)), (20, 1, start(0, 5)), (21, 1, start(1, 5)), (22, 1, start(2, 5))];
    let ends = [(100, 1, stop(0, 5)), (101, 1, stop(1, 5)), (5_000_100, 1, Entry::Fenced { shard: 2, epoch: 5 })];
    let report = checked(&[&lines[..], &ends].concat(), Rules::default());
    assert_eq!((report.late, report.violations.len()), (Late { times: 2, longest_ns: 5_000_000 }, 0));
    assert!(report.to_string().contains("note: work ended after its lease 2 times, by 5.0ms at most"), "{report}");
}

#[test]
fn time_without_an_owner_is_summed_and_held_to_the_rule() {
    let lines = [
        (0, 1, lease(1_000)),
        (100, 1, start(0, 5)),
        (200, 1, stop(0, 5)),
        (0, 2, lease(100_000)),
        (2_300_000, 2, lease(9_000_000)),
        (2_300_000, 2, start(0, 6)),
        (2_300_500, 2, stop(0, 6)),
        (2_300_900, 2, lease(9_000_000)),
    ];
    let summary = ShardSummary { moves: 1, longest_unowned_ns: 2_299_800, total_unowned_ns: 2_300_200 };
    let rules = |ms| Rules { at_most_unowned: Some(Duration::from_millis(ms)), number_of_shards: None };
    assert_eq!(checked(&lines, rules(3)).violations, []);
    assert_eq!(checked(&lines, rules(3)).shards[&0], summary);
    let unowned = Violation::Unowned { shard: 0, from_ns: 200, until_ns: 2_300_000 };
    assert_eq!(checked(&lines, rules(2)).violations, [unowned]);
}

#[test]
fn a_shard_that_never_had_an_owner_is_found() {
    let rules = Rules { number_of_shards: Some(3), at_most_unowned: None };
    let lines = [(10, 1, lease(100)), (11, 1, start(1, 5))];
    assert_eq!(checked(&lines, rules).violations, [Violation::NeverOwned { shard: 0 }, Violation::NeverOwned { shard: 2 }]);
}

#[test]
fn a_line_cut_off_by_a_kill_is_left_out_and_any_other_broken_one_is_an_error() {
    let whole = serde_json::to_string(&line((10, u64::MAX, start(3, 1 << 60)))).unwrap();
    assert!(whole.contains("18446744073709551615"), "incarnations are written as numbers, in full: {whole}");
    let path = Path::new("j");
    for cut in 0..whole.len() {
        let text = format!("{whole}\n{}", &whole[..cut]);
        assert_eq!(parse(path, text.as_bytes()).unwrap().len(), 1, "cut at {cut}");
        let text = format!("{whole}\n{}\n{whole}\n", &whole[..cut]);
        assert_eq!(parse(path, text.as_bytes()).unwrap().len(), 2, "cut at {cut}, and a later process appended");
    }
    let error = parse(path, format!("{whole}\n{{\"at_ns\":1}}\n").as_bytes()).unwrap_err();
    assert!(error.to_string().starts_with("j line 2 is no line of a journal: "), "{error}");
}

/// They were taken for one process, which may own a shard twice.
#[test]
fn two_executors_that_drew_the_same_incarnation_are_two_processes() {
    let of = |executor: &str, lines: &[(u64, Entry)]| -> Journal {
        lines.iter().map(|&(at_ns, entry)| Line { at_ns, entry, executor: executor.into(), incarnation: 1 }).collect()
    };
    let journals = [of("a", &[(0, lease(90)), (1, start(0, 3))]), of("b", &[(0, lease(90)), (2, start(0, 4))])];
    let report = check(&journals, Rules::default());
    assert!(matches!(&report.violations[..], [Violation::Overlap { shard: 0, .. }]), "{report}");
    assert_eq!(report.incarnations, 2);
}
