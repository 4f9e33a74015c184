//! Registering, renewing, leaving, and what operators want.

use super::rig::*;
use crate::assignment::command::{Answer, Command, ExecutorState, LeaseAnswer, Notice, Peer, Refusal};
use crate::assignment::event::{Claim, Event, Renewal};
use crate::assignment::record::{Standing, Wish};
use crate::holdings::Holdings;
use crate::types::{ClusterId, Incarnation, Slot, Version};
use uuid::Uuid;

#[test]
fn p2_a_registration_is_answered_only_out_of_its_commit() {
    let mut rig = Rig::new(2);
    assert_eq!(rig.register(rig.registration("a", 11, "http://10.0.0.1:1")), [], "nothing yet");
    let commands = rig.turn();
    assert_eq!(kinds(&commands), ["commit"]);
    assert_eq!(rig.turn(), [], "one commit at a time");

    let commands = rig.commit();
    let answer = LeaseAnswer {
        cluster_id: cluster(),
        version: version(TERM, 2),
        number_of_shards: 2,
        lease_ttl: LEASE,
        assignment: Some(Holdings::default()),
        claim_wanted: false,
    };
    let Some((Command::Publish(snapshot), rest)) = commands.split_first() else { panic!("{commands:?}") };
    assert_eq!(snapshot.version, version(TERM, 2));
    let peer = Peer { slot: Slot(0), id: id("a"), incarnation: Incarnation(11), endpoint: "http://10.0.0.1:1".into() };
    let joined =
        Notice::Joined { id: id("a"), incarnation: Incarnation(11), endpoint: "http://10.0.0.1:1".into(), replaces: None };
    let request = crate::assignment::event::RequestId(1);
    assert_eq!(
        rest,
        [Command::Connect(peer), Command::Reply(request, Ok(Answer::Lease(answer))), Command::Notice(joined)],
        "and no empty assignment is sent for nothing"
    );
}

#[test]
fn a_commit_that_fails_leaves_memory_as_it_was_and_tells_who_waited() {
    let mut rig = Rig::new(2);
    rig.register(rig.registration("a", 11, "http://10.0.0.1:1"));
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    let commands = rig.step(Event::CommitFailed);
    assert_eq!(replies(&commands), [Err(Refusal::StoreUnavailable)]);
    assert_eq!(commands.len(), 1, "nothing else is said: {commands:?}");
    assert_eq!(rig.overview().executors, []);

    rig.register(rig.registration("a", 11, "http://10.0.0.1:1"));
    assert_eq!(rig.turn(), [], "not again at once");
    assert_eq!(rig.engine.next_turn(), rig.now.after(std::time::Duration::from_millis(100)));
    rig.now = rig.engine.next_turn();
    assert_eq!(kinds(&rig.turn()), ["commit"], "but soon");
    assert!(matches!(&replies(&rig.commit())[..], [Ok(Answer::Lease(_))]));
}

#[test]
fn the_same_registration_twice_gives_the_same_epochs_and_writes_nothing() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    let owners = rig.owners();
    let revision = rig.revision;
    rig.register(rig.registration("a", 11, "http://a-11:1"));
    let commands = rig.turn();
    let [Ok(Answer::Lease(answer))] = &replies(&commands)[..] else { panic!("{commands:?}") };
    assert_eq!(answer.assignment.as_ref().map(Holdings::len), Some(2));
    assert_eq!(kinds(&commands), ["reply"]);
    assert_eq!((rig.owners(), rig.revision), (owners, revision));
}

#[test]
fn renewals_are_answered_at_once_and_write_nothing() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    rig.settle();
    let revision = rig.revision;
    let renewal = rig.renewal(&rig.executors["a"].clone());
    let commands = rig.renew(renewal.clone());
    let [Ok(Answer::Lease(answer))] = &replies(&commands)[..] else { panic!("{commands:?}") };
    assert_eq!((answer.version, answer.assignment.as_ref(), answer.claim_wanted), (rig.version(), None, false));
    assert_eq!(rig.turn(), []);

    let digest = Claim::Digest(rig.executors["a"].held.digest());
    let commands = rig.renew(Renewal { claim: digest, ..renewal.clone() });
    assert!(
        matches!(&replies(&commands)[..], [Ok(Answer::Lease(answer))] if answer.assignment.is_none() && !answer.claim_wanted)
    );
    let commands = rig.renew(Renewal { claim: Claim::Digest(4711), ..renewal });
    assert!(matches!(&replies(&commands)[..], [Ok(Answer::Lease(answer))] if answer.assignment.is_some() && answer.claim_wanted));
    rig.pass(LEASE * 5);
    assert_eq!(rig.revision, revision, "an idle cluster writes nothing");
}

#[test]
fn what_is_asked_while_a_commit_is_in_flight_goes_into_the_next_one_together() {
    let mut rig = Rig::new(2);
    rig.register(rig.registration("a", 11, "http://10.0.0.1:1"));
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    for (name, incarnation) in [("b", 21), ("c", 31), ("d", 41)] {
        assert_eq!(rig.register(rig.registration(name, incarnation, &format!("http://{name}:1"))), []);
        assert_eq!(rig.turn(), []);
    }
    assert_eq!(replies(&rig.commit()).len(), 1);
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    assert_eq!(replies(&rig.commit()).len(), 3);
}

#[test]
fn a_caller_of_another_cluster_or_of_no_registration_is_refused() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    let renewal = rig.renewal(&rig.executors["a"].clone());
    let foreign = ClusterId(Uuid::from_u128(9));
    let commands = rig.renew(Renewal { cluster_id: foreign, ..renewal.clone() });
    assert_eq!(replies(&commands), [Err(Refusal::WrongCluster { named: foreign, actual: cluster() })]);
    let commands = rig.renew(Renewal { id: id("b"), ..renewal });
    assert_eq!(replies(&commands), [Err(Refusal::UnknownExecutor { id: id("b") })]);
}

#[test]
fn l13_a_new_incarnation_at_the_same_address_goes_on_at_once_with_the_same_shards_at_higher_epochs() {
    let mut rig = Rig::new(4);
    rig.join_at("a", 11, "http://10.0.0.1:1");
    rig.join_at("b", 21, "http://10.0.0.2:1");
    rig.pass(SETTLE);
    let before = rig.owners();
    let commands = rig.join_at("a", 12, "http://10.0.0.1:1");
    let moved = notices(&commands).iter().any(|notice| matches!(notice, Notice::Moved { .. }));
    assert!(!moved, "{commands:?}");
    let expected: Vec<String> =
        before.iter().map(|owner| owner.replace(&format!("a={TERM}"), &format!("a={}", TERM + 1))).collect();
    assert_eq!(rig.owners(), expected, "no move, and epochs of a's shards alone have grown");
    assert_eq!(rig.state().executors().count(), 2, "the old incarnation has left the state");
}

#[test]
fn l13_a_new_incarnation_elsewhere_waits_until_the_old_one_confirmed() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    let mut old = rig.executors["a"].clone();
    rig.join("a", 12);
    assert_eq!(rig.owners(), [format!("~a={TERM}"), format!("~a={TERM}")], "asked back, nothing granted");

    let commands = rig.renew(rig.renewal(&old));
    assert_eq!(replies(&commands), [Err(Refusal::Superseded { id: id("a"), incarnation: Incarnation(11) })]);
    assert_eq!(kinds(&rig.settle()), Vec::<&str>::new(), "it still holds them");

    // It has heard of the release, stopped, and says so; refused all the same, but believed.
    old.mark = rig.version();
    old.held = Holdings::default();
    rig.renew(rig.renewal(&old));
    rig.settle();
    assert_eq!(rig.owners(), [format!("a={}", TERM + 1), format!("a={}", TERM + 1)]);
    assert_eq!(rig.state().executors().count(), 2, "the old record stays while its lease runs");
    rig.pass(LEASE + MARGIN);
    assert_eq!(rig.state().executors().count(), 1);
}

#[test]
fn l13_a_new_incarnation_elsewhere_gets_the_shards_when_the_old_lease_ends() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    rig.join("a", 12);
    // The old process renewed last within the second before.
    rig.pass(LEASE - std::time::Duration::from_secs(1));
    assert_eq!(rig.owners(), [format!("~a={TERM}"), format!("~a={TERM}")]);
    rig.pass(std::time::Duration::from_secs(1) + MARGIN);
    assert_eq!(rig.owners(), [format!("a={}", TERM + 1), format!("a={}", TERM + 1)]);
}

#[test]
fn l13_with_exclusive_ids_nothing_waits() {
    let mut rig = Rig::with(crate::assignment::event::Settings { exclusive_ids: true, ..settings() }, 2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    rig.join("a", 12);
    assert_eq!(rig.owners(), [format!("a={}", TERM + 1), format!("a={}", TERM + 1)]);
}

#[test]
fn l13_late_words_of_an_old_incarnation_have_no_effect() {
    let mut rig = Rig::new(2);
    rig.join_at("a", 11, "http://10.0.0.1:1");
    rig.pass(SETTLE);
    rig.join_at("a", 12, "http://10.0.0.1:1");
    let owners = rig.owners();
    rig.register(rig.registration("a", 11, "http://10.0.0.1:1"));
    let refusal = Refusal::Superseded { id: id("a"), incarnation: Incarnation(11) };
    assert_eq!(replies(&rig.settle()), [Err(refusal.clone())]);
    rig.deregister("a", 11);
    let commands = rig.settle();
    assert!(matches!(&replies(&commands)[..], [Ok(Answer::Current(_))]), "gone already: {commands:?}");
    assert_eq!(rig.owners(), owners);

    // For ever: also after the new incarnation has left.
    rig.deregister("a", 12);
    rig.settle();
    rig.register(rig.registration("a", 11, "http://10.0.0.1:1"));
    assert_eq!(replies(&rig.settle()), [Err(refusal)]);
    // One that merely ended is told to come back as a new one.
    rig.register(rig.registration("a", 12, "http://10.0.0.1:1"));
    assert_eq!(replies(&rig.settle()), [Err(Refusal::UnknownExecutor { id: id("a") })]);
}

#[test]
fn who_leaves_is_drained_first_and_then_leaves_the_state() {
    let mut rig = Rig::new(4);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE);
    let renewal = Renewal { leaving: true, ..rig.renewal(&rig.executors["a"].clone()) };
    rig.renew(renewal);
    rig.settle();
    assert_eq!((rig.count("a"), rig.count("b")), (0, 4));
    let state = rig.overview().executors.iter().find(|it| it.id == id("a")).map(|it| it.state);
    assert_eq!(state, Some(ExecutorState::Drained));
    rig.deregister("a", 11);
    rig.settle();
    assert_eq!(rig.state().executors().count(), 1);
}

#[test]
fn the_last_one_out_keeps_its_shards_until_it_deregisters() {
    let mut rig = Rig::new(4);
    rig.join("a", 11);
    rig.pass(SETTLE);
    let renewal = Renewal { leaving: true, ..rig.renewal(&rig.executors["a"].clone()) };
    rig.renew(renewal);
    rig.settle();
    assert_eq!(rig.count("a"), 4, "nobody can take them");
    rig.deregister("a", 11);
    rig.settle();
    assert_eq!(rig.owners(), ["-"; 4]);
}

#[test]
fn an_operators_drain_belongs_to_the_id_and_survives_its_processes() {
    let mut rig = Rig::new(4);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE);
    rig.wish("a", Wish::Drain);
    let commands = rig.settle();
    assert!(matches!(&replies(&commands)[..], [Ok(Answer::Current(_))]));
    assert_eq!((rig.count("a"), rig.count("b")), (0, 4));

    rig.executors.get_mut("a").expect("a").deaf = true;
    let commands = rig.pass(LEASE + MARGIN + SETTLE);
    assert!(commands.contains(&Command::Disconnect(Slot(0))), "nobody is there to talk to");
    assert_eq!(rig.overview().executors[0].state, ExecutorState::Lapsed, "away, and remembered for the wish");
    rig.join("a", 12);
    rig.pass(SETTLE * 2);
    assert_eq!(rig.count("a"), 0, "drained still");
    assert_eq!(rig.overview().executors.len(), 2);
    rig.wish("a", Wish::None);
    rig.pass(CALM);
    assert_eq!((rig.count("a"), rig.count("b")), (2, 2));
}

#[test]
fn a_cordoned_executor_keeps_what_it_has_and_gets_nothing() {
    let mut rig = Rig::new(4);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE);
    rig.wish("a", Wish::Cordon);
    rig.settle();
    assert_eq!((rig.count("a"), rig.count("b")), (2, 2));
    rig.executors.get_mut("b").expect("b").deaf = true;
    rig.pass(LEASE * 2);
    assert_eq!(rig.owners().iter().filter(|owner| *owner == "-").count(), 2);
    let commands = rig.wish("nobody", Wish::Cordon);
    assert_eq!(commands, []);
    assert_eq!(replies(&rig.settle()), [Err(Refusal::UnknownExecutor { id: id("nobody") })]);
}

#[test]
fn l12_who_comes_from_another_cluster_holds_all_grants_back_for_a_lease() {
    let mut rig = Rig::new(2);
    let before = Some((ClusterId(Uuid::from_u128(9)), version(77, 7)));
    let registration = crate::assignment::event::Registration { before, ..rig.registration("a", 11, "http://10.0.0.1:1") };
    rig.register(registration);
    let commands = rig.settle();
    assert!(
        notices(&commands)
            .iter()
            .any(|it| matches!(it, Notice::ForeignCluster { held_back, .. } if *held_back == LEASE + MARGIN))
    );
    let executor = Executor {
        id: id("a"),
        incarnation: Incarnation(11),
        mark: Version::default(),
        held: Holdings::default(),
        slot: None,
        deaf: false,
        leaving: false,
    };
    rig.executors.insert("a", executor);
    rig.pass(LEASE);
    assert_eq!(rig.owners(), ["-", "-"]);
    rig.pass(MARGIN + SETTLE);
    assert_eq!(rig.count("a"), 2);
}

#[test]
fn an_executor_without_shards_that_dies_leaves_the_state_too() {
    let mut rig = Rig::new(1);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE);
    rig.executors.get_mut("b").expect("b").deaf = true;
    assert_eq!(rig.count("b"), 0);
    rig.pass(LEASE * 2);
    let left: Vec<&str> = rig.state().executors().map(|(_, record)| record.id.as_str()).collect();
    assert_eq!(left, ["a"]);
    assert!(rig.state().executors().all(|(_, record)| record.standing == Standing::Present));
}

#[test]
fn who_registered_and_was_superseded_in_one_draft_gets_no_lease() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.register(rig.registration("a", 11, "http://a-11:1"));
    rig.register(rig.registration("a", 12, "http://elsewhere:1"));
    let commands = rig.settle();
    let superseded = Refusal::Superseded { id: id("a"), incarnation: Incarnation(11) };
    assert!(matches!(&replies(&commands)[..], [Err(refusal), Ok(Answer::Lease(_))] if *refusal == superseded), "{commands:?}");
}

#[test]
fn calls_do_not_pile_up_without_bound_while_the_store_takes_nothing() {
    let mut rig = Rig::new(2);
    rig.register(rig.registration("a", 11, "http://10.0.0.1:1"));
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    let refused = (0..20_000u64).filter(|at| {
        let commands = rig.register(rig.registration(&format!("e{at}"), 11, "http://e:1"));
        replies(&commands) == [Err(Refusal::StoreUnavailable)]
    });
    assert_eq!(refused.count(), 20_000 - 16_384);
}

#[test]
fn a_name_proves_nothing_about_the_process_that_answered_to_it_before() {
    let mut rig = Rig::new(2);
    rig.join_at("a", 11, "http://pod-1.executors:7000");
    rig.pass(SETTLE);
    rig.join_at("a", 12, "http://pod-1.executors:7000");
    assert_eq!(rig.owners(), [format!("~a={TERM}"), format!("~a={TERM}")]);
}

#[test]
fn an_executor_that_crashes_over_and_over_does_not_keep_its_shards_from_the_others() {
    for endpoint in [Some("http://10.0.0.9:1"), None] {
        let mut rig = Rig::new(8);
        for (name, incarnation) in [("a", 11), ("b", 21), ("d", 41)] {
            rig.join(name, incarnation);
        }
        rig.pass(SETTLE);
        assert!(rig.count("d") > 0);
        rig.executors.get_mut("d").expect("d").deaf = true;
        let mut others_by = rig.now;
        for round in 0..12 {
            let endpoint = endpoint.map_or(format!("http://10.0.0.9:{round}"), str::to_owned);
            rig.register(rig.registration("d", 100 + round, &endpoint));
            rig.settle();
            if round == 2 {
                // The last lease before the fourth restart begins here.
                others_by = rig.now.after(LEASE + MARGIN + TICK);
            }
            for _ in 0..std::time::Duration::from_secs(2).as_millis() / TICK.as_millis() {
                rig.pass(TICK);
                let is_late = round > 2 && rig.now > others_by && rig.count("a") + rig.count("b") < 8;
                assert!(!is_late, "the bound of docs/guarantees.md, in round {round}: {:?}", rig.owners());
            }
        }
        assert_eq!(rig.count("d"), 0, "{:?}", rig.owners());
        assert_eq!(rig.count("a") + rig.count("b"), 8);
        assert!(rig.overview().executors.iter().any(|it| it.id == id("d") && it.state == ExecutorState::Suspect));
        // Once it is stable it takes its share again.
        rig.join("d", 999);
        rig.pass(LEASE * 4);
        assert!(rig.count("d") >= 2, "{:?}", rig.owners());
    }
}

#[test]
fn a_store_that_takes_nothing_shows_in_every_way_that_somebody_looks() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    rig.executors.get_mut("a").expect("a").deaf = true;
    for _ in 0..150 {
        rig.now = rig.engine.next_turn();
        if kinds(&rig.turn()).contains(&"commit") {
            rig.step(Event::CommitFailed);
        }
    }
    assert_eq!(rig.engine.statistics().unserved.values().sum::<u32>(), 2, "nobody serves them, durable or not");
    let overview = rig.overview();
    assert_eq!(overview.executors[0].state, ExecutorState::Lapsed);
    assert!(overview.notes.iter().any(|note| note.contains("the store has taken no commit for")), "{:?}", overview.notes);
    // It was only slow after all.
    rig.renew_as("a").expect("its lease could not be ended, so it goes on");
    assert_eq!(rig.engine.statistics().unserved.values().sum::<u32>(), 0);
    assert_eq!(rig.overview().executors[0].state, ExecutorState::Active);
}

#[test]
fn l12_a_foreign_cluster_holds_grants_back_once_and_not_for_ever() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    for round in 0..60 {
        let before = Some((ClusterId(Uuid::from_u128(9)), version(77, 7)));
        let registration =
            crate::assignment::event::Registration { before, ..rig.registration("z", 500 + round, "http://10.0.0.3:1") };
        rig.register(registration);
        rig.pass(std::time::Duration::from_secs(1));
    }
    assert!(rig.owners().iter().all(|owner| owner != "-"), "{:?}", rig.owners());
}
