//! How a shard is, and why, in sentences: each situation, and what is said of it.

use std::time::Duration;

use uuid::Uuid;

use super::leadership::successor;
use super::rig::*;
use crate::assignment::command::{Answer, Explanation};
use crate::assignment::event::{Demand, Event, Question, Registration};
use crate::assignment::record::Wish;
use crate::types::{ClusterId, ShardId};

fn explain(rig: &mut Rig, shard: u32) -> Explanation {
    let request = rig.request();
    let commands = rig.step(Event::Ask(request, Question::Explain(ShardId(shard))));
    match &replies(&commands)[..] {
        [Ok(Answer::Explanation(explanation))] => explanation.clone(),
        other => panic!("{other:?}"),
    }
}

/// A situation of shard 0, and what must be said of it.
struct Case {
    what: &'static str,
    arrange: fn() -> Rig,
    history: &'static [&'static str],
    waits_for: &'static [&'static str],
    destination: Option<&'static str>,
}

fn deaf(rig: &mut Rig, name: &str) {
    rig.executors.get_mut(name).expect("known").deaf = true;
}

/// `a` owns both of two shards.
fn one() -> Rig {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    rig
}

/// `a` owns shard 0 and 1, `b` has the others.
fn two() -> Rig {
    let mut rig = Rig::new(4);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE);
    rig
}

fn pause(rig: &mut Rig) {
    let request = rig.request();
    let pause = Demand::Pause { length: Duration::from_secs(1800), by: "me@host".into(), reason: "a game is on".into() };
    rig.step(Event::Demand(request, pause));
    rig.settle();
}

/// The lease of `a` is over, and its end is drafted.
fn lapsed() -> Rig {
    let mut rig = two();
    deaf(&mut rig, "a");
    rig.pass(LEASE + MARGIN - SETTLE - TICK);
    rig.turn_until_commit();
    rig
}

const CASES: &[Case] = &[
    Case {
        what: "nobody is there",
        arrange: || Rig::new(2),
        history: &["nobody has ever owned it"],
        waits_for: &["no executor is registered: start one"],
        destination: None,
    },
    Case {
        what: "the port is not open",
        arrange: || {
            let mut rig = Rig::starting(settings(), takeover(2, TERM), None);
            rig.turn();
            rig.commit();
            rig
        },
        history: &["nobody has ever owned it"],
        waits_for: &["this leader has just begun: executors cannot reach it yet"],
        destination: None,
    },
    Case {
        what: "joins are gathered",
        arrange: || {
            let mut rig = Rig::new(2);
            rig.join("a", 11);
            rig.pass(TICK * 2);
            rig
        },
        history: &["nobody has ever owned it"],
        waits_for: &["joins are being gathered for another 0.3 s"],
        destination: Some("a"),
    },
    Case {
        what: "its grant is being written",
        arrange: || {
            let mut rig = Rig::new(2);
            rig.join("a", 11);
            rig.turn_until_commit();
            rig
        },
        history: &["nobody has ever owned it"],
        waits_for: &["the store to take the commit that grants it to a"],
        destination: Some("a"),
    },
    Case {
        what: "it is not started yet",
        arrange: || {
            let mut rig = Rig::new(2);
            rig.join("a", 11);
            rig.turn_until_commit();
            rig.commit();
            deaf(&mut rig, "a");
            rig.pass(LEASE / 5);
            let mut a = rig.executors["a"].clone();
            a.mark = rig.version();
            rig.renew(rig.renewal(&a));
            rig
        },
        history: &["granted to a at epoch 1000, 2 s ago; it never had an owner before"],
        waits_for: &["a has 8.2 s left to start it (command sent, not admitted yet); after that it goes to somebody else"],
        destination: None,
    },
    Case {
        what: "it is served",
        arrange: || {
            let mut rig = one();
            rig.pass(LEASE * 60);
            rig
        },
        history: &["granted to a at epoch 1000, 10 min ago; it never had an owner before"],
        waits_for: &[],
        destination: None,
    },
    Case {
        what: "its owner is silent",
        arrange: || {
            let mut rig = one();
            deaf(&mut rig, "a");
            rig.pass(Duration::from_secs(7));
            rig
        },
        history: &["granted to a at epoch 1000, 7 s ago; it never had an owner before"],
        waits_for: &[
            "a has not renewed its lease for 7.5 s: unless it does, the lease ends in 2.7 s, and the shard goes to another",
        ],
        destination: None,
    },
    Case {
        what: "its owner's lease is over, and that is being written",
        arrange: lapsed,
        history: &["granted to a at epoch 1000, 10 s ago; it never had an owner before"],
        waits_for: &["the store to take the commit that grants it to b"],
        destination: Some("b"),
    },
    Case {
        what: "its owner's lease is over, and the store does not take that in",
        arrange: || {
            let mut rig = lapsed();
            rig.step(Event::CommitFailed);
            rig.now = rig.now.after(Duration::from_millis(50));
            rig
        },
        history: &["granted to a at epoch 1000, 10 s ago; it never had an owner before"],
        waits_for: &[
            "the store has taken no commit for 0 s: nothing changes until it does; look at the store",
            "the lease of a is over: it is free once the store has taken that in",
        ],
        destination: None,
    },
    Case {
        what: "its owner died, and another one got it",
        arrange: || {
            let mut rig = lapsed();
            rig.commit();
            rig.settle();
            rig.pass(Duration::from_secs(12));
            rig
        },
        history: &["granted to b at epoch 1001, 12 s ago, after a, whose lease ended"],
        waits_for: &[],
        destination: None,
    },
    Case {
        what: "its owner died, and there is nobody else",
        arrange: || {
            let mut rig = one();
            deaf(&mut rig, "a");
            rig.pass(Duration::from_secs(20));
            rig
        },
        history: &["a owned it until 10 s ago: its lease ended"],
        waits_for: &["no executor is registered: start one"],
        destination: None,
    },
    Case {
        what: "everybody is cordoned",
        arrange: || {
            let mut rig = Rig::new(2);
            for (name, incarnation) in [("a", 11), ("b", 21), ("c", 31)] {
                rig.join(name, incarnation);
                rig.wish(name, if name == "c" { Wish::Drain } else { Wish::Cordon });
            }
            rig.settle();
            rig.pass(SETTLE * 2);
            rig
        },
        history: &["nobody has ever owned it"],
        waits_for: &[
            "no executor can take shards: 2 are cordoned, 1 is drained; start another one, or let one of these take shards again",
        ],
        destination: None,
    },
    Case {
        what: "its owner is drained and does not stop it",
        arrange: || {
            let mut rig = two();
            deaf(&mut rig, "a");
            rig.wish("a", Wish::Drain);
            rig.settle();
            rig.pass(Duration::from_secs(4));
            rig
        },
        history: &[
            "granted to a at epoch 1000, 4 s ago; it never had an owner before",
            "a was told to stop it: it is drained, or it leaves",
        ],
        waits_for: &["a to stop it: confirmed by its answer, or in 6.2 s when its lease on it ends"],
        destination: Some("b"),
    },
    Case {
        what: "its owner is told to stop it, once that is written",
        arrange: || {
            let mut rig = two();
            rig.wish("a", Wish::Drain);
            rig.turn();
            rig
        },
        history: &["granted to a at epoch 1000, 0 s ago; it never had an owner before"],
        waits_for: &["the store to take the commit by which its owner is told to stop it"],
        destination: Some("b"),
    },
    Case {
        what: "its owner was drained",
        arrange: || {
            let mut rig = two();
            rig.wish("a", Wish::Drain);
            rig.settle();
            rig
        },
        history: &["granted to b at epoch 1001, 0 s ago, after a, which was drained or left"],
        waits_for: &[],
        destination: None,
    },
    Case {
        what: "its owner is drained, and there is nobody else",
        arrange: || {
            let mut rig = one();
            rig.wish("a", Wish::Drain);
            rig.settle();
            rig
        },
        history: &["granted to a at epoch 1000, 0 s ago; it never had an owner before"],
        waits_for: &[
            "a is to give it up, but no executor can take shards: 1 is draining; start another one, or let one of these take shards \
             again",
        ],
        destination: None,
    },
    Case {
        what: "it would move, and rebalancing is paused",
        arrange: || {
            let mut rig = one();
            pause(&mut rig);
            rig.join("b", 21);
            rig.pass(SETTLE);
            rig
        },
        history: &["granted to a at epoch 1000, 1 s ago; it never had an owner before"],
        waits_for: &[
            "pinned: it would move to b for balance, but rebalancing is paused until Thu 00:30:01 UTC (another 29 min): asked by \
             me@host: a game is on",
        ],
        destination: Some("b"),
    },
    Case {
        what: "it would move, and joins are gathered",
        arrange: || {
            let mut rig = one();
            rig.join("b", 21);
            rig.pass(TICK);
            rig
        },
        history: &["granted to a at epoch 1000, 0 s ago; it never had an owner before"],
        waits_for: &["pinned: it would move to b for balance, but joins are being gathered for another 0.4 s"],
        destination: Some("b"),
    },
    Case {
        what: "it was moved for balance",
        arrange: || {
            let mut rig = one();
            rig.join("b", 21);
            rig.pass(SETTLE);
            rig
        },
        history: &["granted to b at epoch 1001, 0 s ago, after a, for balance"],
        waits_for: &[],
        destination: None,
    },
    Case {
        what: "a new leader, which has heard from nobody",
        arrange: || {
            let mut next = successor(&two(), settings(), TERM + 7);
            next.open();
            deaf(&mut next, "a");
            next.pass(Duration::from_secs(3));
            next
        },
        history: &["held by a at epoch 1000 since before this leader's time, which began 3 s ago (term 1007)"],
        waits_for: &["a has not spoken to this leader yet: it loses its shards unless it does within 7.2 s"],
        destination: None,
    },
    Case {
        what: "a new leader found it without an owner",
        arrange: || {
            let mut rig = one();
            rig.deregister("a", 11);
            rig.settle();
            let mut next = successor(&rig, settings(), TERM + 7);
            next.open();
            next.settle();
            next
        },
        history: &["nobody owned it when this leader began, 0 s ago (term 1007); its last epoch was 1000"],
        waits_for: &["no executor is registered: start one"],
        destination: None,
    },
    Case {
        what: "a new leader granted it",
        arrange: || {
            let mut rig = one();
            rig.deregister("a", 11);
            rig.settle();
            let mut next = successor(&rig, settings(), TERM + 7);
            next.open();
            next.join("b", 21);
            next.pass(SETTLE);
            next
        },
        history: &["granted to b at epoch 1007, 0 s ago; it had no owner when this leader began"],
        waits_for: &[],
        destination: None,
    },
    Case {
        what: "an executor came from another cluster",
        arrange: || {
            let mut rig = Rig::new(2);
            let before = Some((ClusterId(Uuid::from_u128(9)), version(3, 3)));
            rig.register(Registration { before, ..rig.registration("a", 11, "http://a-11:1") });
            rig.settle();
            rig.pass(Duration::from_secs(6));
            rig
        },
        history: &["nobody has ever owned it"],
        waits_for: &["nothing is granted for another 4.2 s: an executor came from another cluster, whose leases may still run"],
        destination: None,
    },
    Case {
        what: "a new process of its owner waits for the old one",
        arrange: || {
            let mut rig = one();
            deaf(&mut rig, "a");
            let a = rig.registration("a", 12, "http://elsewhere:1");
            rig.register(a);
            rig.settle();
            rig.pass(Duration::from_secs(2));
            rig
        },
        history: &[
            "granted to a at epoch 1000, 2 s ago; it never had an owner before",
            "a was told to stop it: a newer process took its place",
        ],
        waits_for: &["a to stop it: confirmed by its answer, or in 8.2 s when its lease on it ends"],
        destination: Some("a"),
    },
    Case {
        what: "a new process of its owner took it over",
        arrange: || {
            let mut rig = Rig::new(2);
            rig.join_at("a", 11, "http://10.0.0.1:1");
            rig.pass(SETTLE);
            rig.join_at("a", 12, "http://10.0.0.1:1");
            rig
        },
        history: &["granted to a at epoch 1001, 0 s ago, after an earlier process of it"],
        waits_for: &[],
        destination: None,
    },
    Case {
        what: "its first owner did not start it",
        arrange: || {
            let mut rig = Rig::new(2);
            pause(&mut rig);
            rig.join("a", 11);
            rig.turn_until_commit();
            rig.commit();
            deaf(&mut rig, "a");
            let mut a = rig.executors["a"].clone();
            a.mark = rig.version();
            let begin = rig.now;
            rig.join("b", 21);
            while rig.now < begin.after(LEASE + MARGIN) {
                rig.renew(rig.renewal(&a));
                rig.pass(TICK);
                a.mark = rig.version();
            }
            rig.renew(rig.renewal(&a));
            rig.pass(TICK);
            rig
        },
        history: &["granted to b at epoch 1001, 0 s ago, after a, which had not started it in time"],
        waits_for: &[],
        destination: None,
    },
    Case {
        what: "a higher epoch was seen",
        arrange: || {
            let mut rig = one();
            let a = rig.executors["a"].clone();
            let renewal = rig.renewal(&a);
            rig.renew(crate::assignment::event::Renewal { storage_epochs: held(&[(0, 5000)]), ..renewal });
            rig.settle();
            rig
        },
        history: &["granted to a at epoch 5001, 0 s ago, in place of a lower one: an epoch above the recorded one was seen"],
        waits_for: &[],
        destination: None,
    },
    Case {
        what: "the leader is not sure to lead",
        arrange: || {
            let mut rig = Rig::new(2);
            rig.engine.believe_until(rig.now);
            rig
        },
        history: &["nobody has ever owned it"],
        waits_for: &[
            "this manager is not sure to lead any more: nothing changes until it is, or until another one leads",
            "no executor is registered: start one",
        ],
        destination: None,
    },
];

#[test]
fn every_situation_has_its_sentences() {
    let mut wrong = Vec::new();
    for Case { what, arrange, history, waits_for, destination } in CASES {
        let mut rig = arrange();
        let found = explain(&mut rig, 0);
        let destination = destination.map(id);
        if found.history != *history || found.waits_for != *waits_for || found.destination != destination {
            wrong.push(format!("{what}:\n {:#?}\n {:#?}\n {:?}", found.history, found.waits_for, found.destination));
        }
    }
    assert!(wrong.is_empty(), "{} of {} are told otherwise:\n{}", wrong.len(), CASES.len(), wrong.join("\n"));
}

#[test]
fn since_is_when_the_grant_was_made_and_nothing_else() {
    let mut rig = two();
    assert_eq!(explain(&mut rig, 0).since_unix_ms, Some(TERM), "half a second ago, told to the second");
    rig.pass(Duration::from_secs(30));
    assert_eq!(explain(&mut rig, 0).since_unix_ms, Some(TERM), "nothing of what came since");
    rig.wish("a", Wish::Drain);
    deaf(&mut rig, "a");
    rig.settle();
    assert_eq!(explain(&mut rig, 0).since_unix_ms, Some(TERM), "it still owns it");
    rig.pass(LEASE + MARGIN);
    let b = explain(&mut rig, 0);
    assert_eq!((rig.owners()[0].as_str(), b.since_unix_ms), ("b=1001", Some(TERM + 40_000)));
    let mut next = successor(&rig, settings(), TERM + 7);
    next.open();
    assert_eq!(explain(&mut next, 0).since_unix_ms, None, "it was granted before this leader's time");
    assert_eq!(explain(&mut Rig::new(1), 0).since_unix_ms, None, "nobody owns it");
}
