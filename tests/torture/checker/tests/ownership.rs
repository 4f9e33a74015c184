//! P3 and P4.

use super::{Promise, green, red};

#[test]
fn two_owners_under_live_leases() {
    let first = ["100 lease a/1 until_ms=3100", "110 start a/1 #5@7"];
    let second = ["2000 lease b/2 until_ms=5000", "2010 start b/2 #5@8", "2500 stop b/2 #5@8"];
    red(Promise::OneOwner, "two owners under live leases for 0.490 s", &[&first[..], &second, &["2900 stop a/1 #5@7"]].concat());
    green(&[&first[..], &second, &["2005 stop a/1 #5@7"]].concat());
}

#[test]
fn an_owner_whose_lease_is_over_is_no_owner() {
    let frozen = ["90 fault kind=freeze_executor target=a phase=begin", "6000 fault kind=freeze_executor target=a phase=end"];
    let first = ["50 lease a/1 until_ms=3050", "60 start a/1 #5@7", "6010 fenced a/1 #5@7"];
    let second = |at: u64| {
        let until = at + 4000;
        [format!("{at} lease b/2 until_ms={until}"), format!("{at} start b/2 #5@8"), format!("{} stop b/2 #5@8", at + 500)]
    };
    let with = |at: u64| {
        let second = second(at);
        [&frozen[..], &first, &second.each_ref().map(String::as_str)].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = |at: u64| with(at);
    let late = lines(3060);
    green(&late.iter().map(String::as_str).collect::<Vec<_>>());
    let early = lines(3040);
    red(Promise::OneOwner, "two owners", &early.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn a_renewed_lease_covers_on() {
    let lines = |renewal: &'static str| {
        [
            "100 lease a/1 until_ms=3100",
            "110 start a/1 #5@7",
            renewal,
            "3200 lease b/2 until_ms=6200",
            "3210 start b/2 #5@8",
            "3300 stop b/2 #5@8",
            "3400 stop a/1 #5@7",
        ]
    };
    red(Promise::OneOwner, "two owners", &lines("1100 lease a/1 until_ms=4100"));
    green(&lines("1100 lease c/3 until_ms=4100"));
}

/// It was over in between, so what was worked on under the one before is not covered by it.
#[test]
fn a_lease_after_one_that_was_over_covers_nothing_of_before() {
    let lines = |renewal: &'static str| {
        [
            "90 fault kind=freeze_executor target=a phase=begin",
            "100 lease a/1 until_ms=3100",
            "110 start a/1 #5@7",
            renewal,
            "3300 lease b/2 until_ms=6200",
            "3310 start b/2 #5@8",
            "3400 stop b/2 #5@8",
            "3500 fault kind=freeze_executor target=a phase=end",
            "3600 fenced a/1 #5@7",
        ]
    };
    green(&lines("3200 lease a/1 until_ms=6200"));
    red(Promise::OneOwner, "two owners", &lines("3090 lease a/1 until_ms=6090"));
}

#[test]
fn a_shard_that_is_being_stopped_keeps_the_lease_that_it_had() {
    let lines = |stopping: &'static str| {
        [
            "100 lease a/1 until_ms=3100",
            "110 start a/1 #5@7",
            stopping,
            "1100 lease a/1 until_ms=4100",
            "2000 lease a/1 until_ms=5000",
            "3200 lease b/2 until_ms=6200",
            "3210 start b/2 #5@8",
            "3300 stop b/2 #5@8",
            "3400 fenced a/1 #5@7",
        ]
    };
    green(&lines("1150 stopping a/1 #5@7"));
    red(Promise::OneOwner, "two owners", &lines("2950 stopping a/1 #5@7"));
}

#[test]
fn a_process_that_is_gone_holds_nothing() {
    let lines = |ended: &'static str| {
        [
            "100 lease a/1 until_ms=3100",
            "110 start a/1 #5@7",
            ended,
            "600 lease a/2 until_ms=3600",
            "610 start a/2 #5@8",
            "700 stop a/2 #5@8",
        ]
    };
    green(&lines("500 ended a/1"));
    red(Promise::OneOwner, "two owners", &[&lines("650 ended a/1")[..]].concat());
}

#[test]
fn a_shard_that_is_started_twice() {
    let lease = "100 lease a/1 until_ms=3100";
    red(Promise::OneOwner, "what it has not ended", &[lease, "110 start a/1 #5@7", "120 start a/1 #5@8", "130 stop a/1 #5@8"]);
    green(&[lease, "110 start a/1 #5@7", "115 stop a/1 #5@7", "120 start a/1 #5@8", "130 stop a/1 #5@8"]);
}

#[test]
fn over_a_wiped_store_two_owners_are_told_apart_by_their_epochs() {
    let lines = |wiped: &'static str, epoch: &'static str| {
        [
            wiped,
            "1005 phase name=normal",
            "100 lease a/1 until_ms=3100",
            "110 start a/1 #5@7",
            "2000 lease b/2 until_ms=5000",
            epoch,
            "2900 stop a/1 #5@7",
        ]
    };
    green(&lines("1000 phase name=store_wiped", "2010 start b/2 #5@9"));
    red(Promise::OneOwner, "two owners", &lines("1000 phase name=healing", "2010 start b/2 #5@9"));
    let same = [&lines("1000 phase name=store_wiped", "2010 start b/2 #5@7")[..], &["2200 stop b/2 #5@7"]].concat();
    let report = super::report(&same);
    let broken: Vec<Promise> = report.violations.iter().map(|it| it.promise).collect();
    assert_eq!(broken, [Promise::OneOwner, Promise::EpochsOnlyGrow], "{report}");
}

#[test]
fn once_the_leases_of_before_are_over_a_wiped_store_excuses_nothing() {
    let lines = [
        "1000 phase name=store_wiped",
        "1005 phase name=normal",
        "9000 lease a/1 until_ms=12000",
        "9010 start a/1 #5@7",
        "9100 lease b/2 until_ms=12000",
        "9110 start b/2 #5@9",
        "9200 stop b/2 #5@9",
        "9300 stop a/1 #5@7",
    ];
    red(Promise::OneOwner, "two owners", &lines);
}

#[test]
fn an_epoch_that_does_not_grow() {
    let lines = |second: &'static str| {
        ["100 lease a/1 until_ms=3100", "110 start a/1 #5@7", "200 stop a/1 #5@7", "300 lease b/2 until_ms=3300", second]
    };
    red(Promise::EpochsOnlyGrow, "at epoch 6, which a (1) had at 7", &lines("310 start b/2 #5@6"));
    red(Promise::EpochsOnlyGrow, "at epoch 7, which a (1) had at 7", &lines("310 start b/2 #5@7"));
    green(&lines("310 start b/2 #5@8").iter().copied().chain(["400 stop b/2 #5@8"]).collect::<Vec<_>>());
}

#[test]
fn the_same_incarnation_may_start_again_at_its_epoch() {
    let lines =
        ["100 lease a/1 until_ms=3100", "110 start a/1 #5@7", "200 stop a/1 #5@7", "310 start a/1 #5@7", "320 stop a/1 #5@7"];
    green(&lines);
    let another = [
        "100 lease a/1 until_ms=3100",
        "110 start a/1 #5@7",
        "200 stop a/1 #5@7",
        "300 lease a/2 until_ms=3300",
        "310 start a/2 #5@7",
        "320 stop a/2 #5@7",
    ];
    red(Promise::EpochsOnlyGrow, "which a (1) had at 7", &another);
}

#[test]
fn a_start_after_a_pause_that_outlasted_the_lease_is_the_storages_business() {
    let lines = |lease: &'static str| {
        [
            "20 fault kind=freeze_executor target=a phase=begin",
            "7000 fault kind=freeze_executor target=a phase=end",
            lease,
            "4000 lease b/2 until_ms=9000",
            "4010 start b/2 #5@8",
            "5000 stop b/2 #5@8",
            "7001 start a/1 #5@7",
            "7002 fenced a/1 #5@7",
        ]
    };
    green(&lines("10 lease a/1 until_ms=3010"));
    red(Promise::EpochsOnlyGrow, "at epoch 7, which b (2) had at 8", &lines("6000 lease a/1 until_ms=9000"));
}

#[test]
fn who_is_awake_ends_its_work_with_its_lease() {
    let lines = |end: &'static str, more: &[&'static str]| {
        [&["100 lease a/1 until_ms=3100", "110 start a/1 #5@7", end][..], more].concat()
    };
    red(Promise::OneOwner, "after its lease was over", &lines("6000 stop a/1 #5@7", &[]));
    green(&lines("4000 fenced a/1 #5@7", &[]));
    let frozen =
        ["200 fault kind=freeze_executor target=a#2 phase=begin", "9000 fault kind=freeze_executor target=a#2 phase=end"];
    green(&lines("9500 fenced a/1 #5@7", &frozen));
    red(Promise::OneOwner, "after its lease was over", &lines("14000 fenced a/1 #5@7", &frozen));
    let other = ["200 fault kind=freeze_executor target=b phase=begin", "9000 fault kind=freeze_executor target=b phase=end"];
    red(Promise::OneOwner, "after its lease was over", &lines("9500 fenced a/1 #5@7", &other));
    green(&lines("9500 fenced a/1 #5@7", &["9500 gap party=program from_ms=3000 to_ms=9400 why=late"]));
}

#[test]
fn a_table_that_names_another_owner_while_the_one_before_is_covered() {
    let lines = |table: &'static str| ["100 lease a/1 until_ms=3100", "110 start a/1 #5@7", table, "2900 stop a/1 #5@7"];
    let says = "shard 5 belongs to b at epoch 8";
    red(Promise::OneOwner, says, &lines("2000 state v1.9 cluster_id=c owners=5:b:8 executors=a:active:1,y:drained:8,z:active:9"));
    green(&lines("2950 state v1.9 cluster_id=c owners=5:b:8 executors=a:active:1,y:drained:8,z:active:9"));
    // Read before the shard came back to it.
    green(&lines("2000 state v1.9 cluster_id=c owners=5:b:6 executors=a:active:1,y:drained:8,z:active:9"));
    green(&lines("2000 state v1.9 cluster_id=c owners=5:-:8 executors=a:active:1,y:drained:8,z:active:9"));
}
