//! P8.

use super::{Promise, green, red};

#[test]
fn two_managers_that_lead() {
    let lines = |until: &'static str| {
        [
            "100 scrape manager=m is_leader=1 v1.4",
            until,
            "1000 scrape manager=n is_leader=1 v2.5",
            "3000 scrape manager=n is_leader=1 v2.5",
        ]
    };
    red(
        Promise::HonestEnds,
        "m (term 1) and n (term 2) both say that they lead, for 2.000 s",
        &lines("3100 scrape manager=m is_leader=1 v1.4"),
    );
    green(&lines("1500 scrape manager=m is_leader=1 v1.4"));
    green(&lines("3100 scrape manager=m is_leader=0 v0.0"));
}

#[test]
fn a_manager_that_was_silent_in_between_says_nothing_of_that_time() {
    let lines = [
        "100 scrape manager=m is_leader=1 v1.4",
        "600 silent manager=m",
        "1000 scrape manager=n is_leader=1 v2.5",
        "3000 scrape manager=n is_leader=1 v2.5",
        "3100 scrape manager=m is_leader=1 v1.4",
    ];
    green(&lines);
}

#[test]
fn what_was_not_observed_is_excused() {
    let lines = [
        "100 scrape manager=m is_leader=1 v1.4",
        "3100 scrape manager=m is_leader=1 v1.4",
        "1000 scrape manager=n is_leader=1 v2.5",
        "3000 scrape manager=n is_leader=1 v2.5",
        "3000 gap party=scraper from_ms=1000 to_ms=2900 why=late",
    ];
    green(&lines);
}

#[test]
fn terms_of_leaders_grow() {
    let lines = |second: [&'static str; 2]| {
        [&["100 scrape manager=n is_leader=1 v2.4", "500 scrape manager=n is_leader=0 v0.0"][..], &second].concat()
    };
    let says = "k leads under term 1, after n under term 2";
    red(Promise::HonestEnds, says, &lines(["600 scrape manager=k is_leader=1 v1.5", "1900 scrape manager=k is_leader=1 v1.6"]));
    let says = "k leads under term 2, after n under term 2";
    red(Promise::HonestEnds, says, &lines(["600 scrape manager=k is_leader=1 v2.5", "700 scrape manager=k is_leader=0 v0.0"]));
    green(&lines(["600 scrape manager=k is_leader=1 v3.5", "1900 scrape manager=k is_leader=1 v3.6"]));
    // It has won, and its first commit is under way.
    green(&lines(["600 scrape manager=k is_leader=1 v0.0", "1900 scrape manager=k is_leader=1 v3.6"]));
    // It was frozen, and is asked before it knows.
    green(&lines(["600 scrape manager=k is_leader=1 v1.5", "700 scrape manager=k is_leader=0 v0.0"]));
}
