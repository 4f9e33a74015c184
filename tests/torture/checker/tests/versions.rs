//! P1, P2 and P7: versions.

use super::{Promise, green, red};

#[test]
fn a_version_that_was_shown_and_is_not_what_was_built_upon() {
    let lines =
        |revision: &'static str| ["100 seen reader=r cluster_id=c v1.50", "200 seen reader=q cluster_id=c v1.51", revision];
    red(
        Promise::DurableBeforeVisible,
        "revision 51 of the earlier term 1 was shown",
        &lines("300 seen reader=r cluster_id=c v2.51"),
    );
    green(&lines("300 seen reader=r cluster_id=c v2.52"));
    // Of another cluster, after the store was wiped.
    green(&lines("300 seen reader=s cluster_id=d v2.3"));
}

#[test]
fn an_acknowledgement_counts_as_shown() {
    let lines = |next: &'static str| {
        ["90 seen reader=r cluster_id=c v1.50", "100 ask id=1 kind=cordon executor=b", "110 acknowledged id=1 v1.55", next]
    };
    red(Promise::DurableBeforeVisible, "revision 55 of the earlier term 1", &lines("300 seen reader=r cluster_id=c v2.55"));
    green(&lines("300 seen reader=r cluster_id=c v2.56"));
}

#[test]
fn a_write_of_a_leader_that_was_replaced_and_is_built_over() {
    let lines = [
        "100 stored cluster_id=c v1.50 fence=4",
        "200 stored cluster_id=c v2.51 fence=6",
        "300 stored cluster_id=c v1.52 fence=6",
    ];
    red(Promise::Fenced, "the store has (1, 52) after (2, 51)", &lines);
    green(&lines[..2]);
}

#[test]
fn a_write_of_a_leader_that_was_replaced_and_is_built_upon() {
    let lines = |third: &'static str| ["100 stored cluster_id=c v1.50 fence=4", "200 stored cluster_id=c v1.50 fence=6", third];
    red(
        Promise::Fenced,
        "revision 51 is of term 1, which was there under fence 4",
        &lines("300 stored cluster_id=c v1.51 fence=6"),
    );
    green(&lines("300 stored cluster_id=c v2.51 fence=6"));
}

#[test]
fn a_write_between_two_looks_may_be_of_the_leader_that_was_replaced_in_between() {
    green(&[
        "100 stored cluster_id=c v1.50 fence=4",
        "200 stored cluster_id=c v1.52 fence=6",
        "300 stored cluster_id=c v2.53 fence=6",
    ]);
    // A leader may raise its own term (L10).
    green(&[
        "100 stored cluster_id=c v1.50 fence=4",
        "200 stored cluster_id=c v2.51 fence=4",
        "300 stored cluster_id=c v2.52 fence=4",
    ]);
}

#[test]
fn a_reader_that_goes_back() {
    let says = "r shows (2, 60) after (2, 61)";
    red(Promise::ReadersNeverGoBack, says, &["100 seen reader=r cluster_id=c v2.61", "200 seen reader=r cluster_id=c v2.60"]);
    green(&["100 seen reader=r cluster_id=c v2.61", "200 seen reader=q cluster_id=c v2.60"]);
    green(&[
        "100 seen reader=r cluster_id=c v2.61",
        "200 seen reader=r cluster_id=d v1.1",
        "300 seen reader=r cluster_id=d v1.1",
    ]);
}

#[test]
fn a_reader_that_returns_to_a_cluster_that_it_left() {
    let lines = |reader: &'static str| ["100 seen reader=r cluster_id=c v2.61", "200 seen reader=r cluster_id=d v3.1", reader];
    red(Promise::ReadersNeverGoBack, "r returns to cluster c", &lines("300 seen reader=r cluster_id=c v2.62"));
    green(&lines("300 seen reader=q cluster_id=c v2.62"));
}

#[test]
fn one_version_with_two_contents() {
    let state = |owner: &str| format!("200 state v2.61 cluster_id=c owners=0:z:1,5:{owner} executors=z:active:9,y:drained:8");
    let (one, other) = (state("a:7"), state("b:8"));
    red(Promise::DurableBeforeVisible, "the state of (2, 61) was told in two ways", &[&one, &other]);
    green(&[&one, &one]);
    let seen = |reader: &str, unowned: u64| format!("200 seen reader={reader} cluster_id=c v2.61 unowned={unowned}");
    red(Promise::DurableBeforeVisible, "q sees 3 shards without an owner", &[&seen("r", 2), &seen("q", 3)]);
    green(&[&seen("r", 2), &seen("q", 2)]);
}
