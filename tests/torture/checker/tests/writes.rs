//! The executors' storage.

use super::{Promise, green, red};

const OWNED: [&str; 6] = [
    "20 lease a/1 until_ms=3020",
    "21 start a/1 #5@7",
    "22 stop a/1 #5@7",
    "30 lease b/2 until_ms=3030",
    "31 start b/2 #5@8",
    "900 stop b/2 #5@8",
];
const ASK: &str = "40 ask id=i kind=write shard=5 key=k value=i";
const WRITTEN: &str = "41 written b/2 #5@8 key=k value=i";

#[track_caller]
fn red_beside(says: &str, lines: &[&str]) {
    red(Promise::StorageIsSafe, says, &[&OWNED[..], lines].concat());
}

#[track_caller]
fn green_beside(lines: &[&str]) {
    green(&[&OWNED[..], lines].concat());
}

#[test]
fn an_acknowledged_write_that_is_not_there() {
    red_beside("was acknowledged and is not in the storage", &[ASK, "42 acknowledged id=i epoch=8 executor=b"]);
    green_beside(&[ASK, WRITTEN, "42 acknowledged id=i epoch=8 executor=b"]);
}

#[test]
fn an_acknowledgement_before_the_write_or_of_another() {
    let says = "is there otherwise than it was acknowledged";
    red_beside(says, &[ASK, "42 written b/2 #5@8 key=k value=i", "41 acknowledged id=i epoch=8 executor=b"]);
    red_beside(says, &[ASK, WRITTEN, "42 acknowledged id=i epoch=7 executor=b"]);
    red_beside(says, &[ASK, WRITTEN, "42 acknowledged id=i epoch=8 executor=a"]);
}

#[test]
fn a_write_that_is_there_twice() {
    red_beside("2 times", &[ASK, WRITTEN, "42 acknowledged id=i epoch=8", "43 written b/2 #5@8 key=k value=i"]);
    red_beside("2 times", &[ASK, WRITTEN, "42 unknown id=i", "43 written b/2 #5@8 key=k value=i"]);
}

#[test]
fn without_an_answer_it_may_have_happened_or_not() {
    green_beside(&[ASK, WRITTEN, "42 unknown id=i"]);
    green_beside(&[ASK, "42 unknown id=i"]);
    green_beside(&[ASK, WRITTEN]);
    green_beside(&[ASK]);
    // Later than the caller gave up.
    green_beside(&[ASK, "42 unknown id=i", "60 written b/2 #5@8 key=k value=i"]);
}

#[test]
fn a_write_that_was_refused_and_is_there() {
    red_beside("was refused and is in the storage", &[ASK, WRITTEN, "42 refused_ask id=i reason=NOT_OWNER"]);
    green_beside(&[ASK, "42 refused_ask id=i reason=NOT_OWNER"]);
}

#[test]
fn a_write_that_nobody_asked_for() {
    red_beside("nobody asked for it", &[WRITTEN]);
}

#[test]
fn a_write_below_an_epoch_that_wrote() {
    let late = [ASK, WRITTEN, "50 ask id=j kind=write shard=5 key=k value=j", "51 written a/1 #5@7 key=k value=j"];
    red_beside("wrote at epoch 7 after b (2) wrote at 8", &late);
    let refused = [
        ASK,
        WRITTEN,
        "50 ask id=j kind=write shard=5 key=k value=j",
        "51 refused a/1 #5@7 seen=8",
        "52 refused_ask id=j reason=x",
    ];
    green_beside(&refused);
    // The new one has not written yet: the storage cannot know.
    green_beside(&[ASK, "41 written a/1 #5@7 key=k value=i"]);
}

#[test]
fn one_epoch_of_two_incarnations() {
    let lines = [
        "32 start a/1 #6@9",
        "33 stop a/1 #6@9",
        "50 ask id=j kind=write shard=6 key=k value=j",
        "51 ask id=h kind=write shard=6 key=k value=h",
    ];
    let writes = ["52 written a/1 #6@9 key=k value=j", "53 written b/2 #6@9 key=k value=h"];
    let report = super::report(&[&OWNED[..], &lines, &writes, &["34 start b/2 #6@9", "60 stop b/2 #6@9"]].concat());
    assert!(report.to_string().contains("b (2) and a (1) wrote at one epoch, 9"), "{report}");
    assert!(report.violations.iter().all(|it| it.promise == Promise::EpochsOnlyGrow), "{report}");
}

#[test]
fn a_write_by_somebody_who_had_not_started_the_shard() {
    red_beside("at which it had not started it", &[ASK, "41 written c/3 #5@9 key=k value=i"]);
    red_beside("at which it had not started it", &[ASK, "25 written b/2 #5@8 key=k value=i"]);
    red_beside("at which it had not started it", &[ASK, "41 written b/2 #5@9 key=k value=i"]);
}
