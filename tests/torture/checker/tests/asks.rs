//! P2: acknowledgements.

use super::{Promise, green, red};

const DRAIN: [&str; 2] = ["100 ask id=1 kind=drain executor=a", "110 acknowledged id=1 v2.20"];

fn state(at: u64, version: &str, a: &str) -> String {
    format!("{at} state {version} cluster_id=c owners=0:z:1 executors={a}y:drained:8,z:active:9")
}

#[track_caller]
fn drained(lines: &[&str], state: &str, is_right: bool) {
    let lines = [&DRAIN[..], lines, &[state]].concat();
    if is_right { green(&lines) } else { red(Promise::DurableBeforeVisible, "drain a was acknowledged at (2, 20)", &lines) }
}

#[test]
fn a_drain_that_a_later_state_does_not_know() {
    drained(&[], &state(200, "v3.21", "a:active:1,"), false);
    drained(&[], &state(200, "v2.20", "a:cordoned:1,"), false);
    drained(&[], &state(200, "v3.21", ""), false);
    drained(&[], &state(200, "v3.21", "a:draining:1,"), true);
    drained(&[], &state(200, "v3.21", "a:lapsed:1,a:drained:2,"), true);
}

#[test]
fn a_state_of_before_or_of_another_cluster_need_not_know_it() {
    drained(&[], &state(200, "v2.19", "a:active:1,"), true);
    // The store was wiped meanwhile: nobody was seen to know of term 2 but the cluster of before.
    let other = "200 state v9.1 cluster_id=d owners=0:z:1 executors=a:active:1";
    drained(&[&state(105, "v2.19", "a:active:1,")], other, true);
}

#[test]
fn what_was_asked_later_may_have_undone_it() {
    let active = state(300, "v3.25", "a:active:1,");
    drained(&["250 ask id=2 kind=uncordon executor=a", "260 acknowledged id=2 v2.22"], &active, true);
    drained(&["250 ask id=2 kind=uncordon executor=a", "260 unknown id=2"], &active, true);
    drained(&["250 ask id=2 kind=uncordon executor=b", "260 acknowledged id=2 v2.22"], &active, false);
    // Nobody knows when it arrives.
    drained(&["90 ask id=2 kind=uncordon executor=a", "95 unknown id=2"], &active, true);
    drained(&["90 ask id=2 kind=uncordon executor=a", "95 refused_ask id=2"], &active, false);
}

#[test]
fn cordons_and_what_takes_them_back() {
    let ask = |kind: &str| format!("100 ask id=1 kind={kind} executor=a");
    let check = |kind: &str, a: &str, is_right: bool| {
        let (ask, state) = (ask(kind), state(200, "v3.21", a));
        let lines = [&*ask, "110 acknowledged id=1 v2.20", &*state];
        if is_right { green(&lines) } else { red(Promise::DurableBeforeVisible, kind, &lines) }
    };
    check("cordon", "a:cordoned:1,", true);
    check("cordon", "a:active:1,", false);
    check("uncordon", "a:active:1,", true);
    check("uncordon", "a:cordoned:1,", false);
    check("remove", "a:removing:1,", true);
    check("remove", "a:active:1,", false);
    check("admit", "a:active:1,", true);
    check("admit", "a:removed:1,", false);
}

#[test]
fn a_registration_that_a_later_state_does_not_know() {
    let lines = |state: &'static str, more: &[&'static str]| {
        [&["100 lease a/1 until_ms=3100", "101 registered a/1 v2.20", state][..], more].concat()
    };
    let without = "2000 state v3.21 cluster_id=c owners=0:z:1 executors=y:drained:8,z:active:9";
    let known = "150 seen reader=r cluster_id=c v2.20";
    red(Promise::DurableBeforeVisible, "a (1) was registered at (2, 20)", &lines(without, &[known]));
    green(&lines("2000 state v3.21 cluster_id=c owners=0:z:1 executors=a:active:1,y:drained:8,z:active:9", &[known]));
    // Another process of its id has taken its place.
    green(&lines("2000 state v3.21 cluster_id=c owners=0:z:1 executors=a:active:2,y:drained:8,z:active:9", &[known]));
    // Its lease is over.
    green(&lines("3200 state v3.21 cluster_id=c owners=0:z:1 executors=y:drained:8,z:active:9", &[known]));
    // It was leaving.
    green(&lines(without, &[known, "2100 ended a/1"]));
    // It was removed, whatever its own clock says, and has not come back; another one's removal is no excuse.
    green(&lines(without, &[known, "1000 ask id=1 kind=remove executor=a", "1010 unknown id=1"]));
    let other = [known, "1000 ask id=1 kind=remove executor=b", "1010 unknown id=1"];
    red(Promise::DurableBeforeVisible, "a (1) was registered at (2, 20)", &lines(without, &other));
    // Over a wiped store nobody is known.
    green(&lines(
        without,
        &[known, "1500 fault kind=store_wipe target=store phase=begin", "1600 fault kind=store_wipe target=store phase=end"],
    ));
}

#[test]
fn a_move_that_was_forgotten() {
    let lines = |at: u64, owner: &str| {
        [
            "100 state v2.19 cluster_id=c owners=0:z:1,5:a:7 executors=a:active:1,y:drained:8,z:active:9".to_owned(),
            "110 ask id=1 kind=move to=b".to_owned(),
            "120 acknowledged id=1 v2.20".to_owned(),
            format!("{at} state v2.30 cluster_id=c owners=0:z:1,5:{owner} executors=a:active:1,y:drained:8,z:active:9"),
        ]
    };
    let check = |at: u64, owner: &str| {
        let lines = lines(at, owner).map(|text| super::line(&text));
        let ask = lines[1].replace("\"kind\"", "\"shards\":[5],\"kind\"");
        let quiet = [&[super::RUN], &super::QUIET[..], &["15 rest"]].concat().into_iter().map(super::line);
        let text: Vec<String> = quiet.chain([lines[0].clone(), ask, lines[2].clone(), lines[3].clone()]).collect();
        super::check_text(&text.join("\n"))
    };
    let report = check(11_000, "a:7");
    assert!(report.to_string().contains("the move of shard 5 was acknowledged at (2, 20)"), "{report}");
    assert!(!check(5000, "a:7").to_string().contains("the move of"), "it may take a while");
    assert!(!check(11_000, "b:8").to_string().contains("the move of"));
    assert!(!check(11_000, "a:9").to_string().contains("the move of"), "it may have come back");
}

#[test]
fn a_term_that_nobody_saw_belongs_to_the_cluster_around_it() {
    // Between clusters it is not known whose it is.
    let other = "200 state v9.1 cluster_id=d owners=0:z:1 executors=a:active:1";
    green(&[&DRAIN[..], &[other]].concat());
    red(Promise::DurableBeforeVisible, "drain a", &[&DRAIN[..], &[&state(150, "v3.21", "a:active:1,"), other]].concat());
}
