//! Shards on their way: leases that end, releases, grants, balance.

use super::rig::*;
use crate::assignment::command::{Answer, Cause, Command, Notice, Refusal};
use crate::assignment::event::{Claim, Event, Renewal, Settings};
use crate::holdings::Holdings;
use crate::types::{Epoch, Incarnation, ShardId};

#[test]
fn grants_wait_for_the_settle_time_and_are_sent_only_when_durable() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    assert_eq!(rig.owners(), ["-", "-"], "joins are gathered");
    let joined = rig.now;
    assert_eq!(kinds(&rig.turn_until_commit()), ["commit"]);
    assert_eq!(rig.now, joined.after(SETTLE), "to the moment");
    let commands = rig.commit();
    let [Command::Publish(_), Command::Send(assignment)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(*assignment.holdings, held(&[(0, TERM), (1, TERM)]));
    assert_eq!((assignment.version, assignment.incarnation), (rig.version(), Incarnation(11)));
}

#[test]
fn p3_a_shard_moves_only_after_its_owner_confirmed_and_at_a_higher_epoch() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    rig.executors.get_mut("a").expect("a").deaf = true;
    rig.join("b", 21);
    assert_eq!(kinds(&rig.turn_until_commit()), ["commit"]);
    let commands = rig.commit();
    assert_eq!(kinds(&commands), ["publish", "send"], "a is told to stop, b nothing");
    let owners = rig.owners();
    assert_eq!(owners.iter().filter(|owner| owner.starts_with('~')).count(), 1, "{owners:?}");
    assert_eq!(rig.turn(), [], "level-triggered, but nothing new");

    let kept = if owners[0].starts_with('~') { 1 } else { 0 };
    let slot = rig.executors["a"].slot.expect("connected");
    let event = Event::Applied { slot, incarnation: Incarnation(11), mark: rig.version(), held: held(&[(kept, TERM)]) };
    assert_eq!(rig.step(event), []);
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    let commands = rig.commit();
    assert_eq!(kinds(&commands), ["publish", "send", "notice"]);
    assert_eq!(notices(&commands), [Notice::Moved { cause: Cause::Rebalance, shards: 1 }]);
    assert_eq!(rig.owners()[1 - kept as usize], format!("b={}", TERM + 1));
}

#[test]
fn l1_a_renewal_that_comes_while_the_end_of_the_lease_is_being_committed_is_refused() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE);
    let a = rig.executors["a"].clone();
    rig.executors.get_mut("a").expect("a").deaf = true;
    rig.pass(LEASE - SETTLE);
    // Turn by turn up to the end of a's lease.
    let ending = loop {
        rig.now = rig.engine.next_turn();
        if rig.now.0.as_secs().is_multiple_of(2) {
            let _ = rig.renew_as("b");
        }
        let commands = rig.turn();
        if kinds(&commands) == ["commit"] {
            break commands;
        }
        assert_eq!(commands, []);
    };
    assert_eq!(ending.len(), 1);
    let commands = rig.renew(rig.renewal(&a));
    assert_eq!(replies(&commands), [Err(Refusal::LeaseEnding { id: id("a") })]);

    // Not landed: alive after all.
    rig.step(Event::CommitFailed);
    let commands = rig.renew(rig.renewal(&a));
    assert!(matches!(&replies(&commands)[..], [Ok(Answer::Lease(_))]));
    rig.now = rig.engine.next_turn();
    assert_eq!(rig.turn(), [], "and so nothing is taken from it");

    rig.pass(LEASE + MARGIN * 2);
    assert_eq!(rig.count("b"), 2);
    let commands = rig.renew(rig.renewal(&a));
    assert_eq!(replies(&commands), [Err(Refusal::UnknownExecutor { id: id("a") })]);
}

#[test]
fn l2_a_renewal_from_before_a_release_confirms_nothing() {
    let mut rig = Rig::new(1);
    rig.join("a", 11);
    // Composed before anything was granted, and delivered very late.
    let early = rig.renewal(&rig.executors["a"].clone());
    rig.pass(SETTLE);
    assert_eq!(rig.owners(), [format!("a={TERM}")]);
    rig.join("b", 21);
    rig.executors.get_mut("a").expect("a").deaf = true;
    rig.wish("a", crate::assignment::record::Wish::Drain);
    rig.now = rig.now.after(SETTLE);
    rig.settle();
    rig.pass(SETTLE);
    assert_eq!(rig.owners(), [format!("~a={TERM}")]);
    rig.renew(early.clone());
    assert_eq!(kinds(&rig.settle()), Vec::<&str>::new(), "it claims nothing, but knows nothing of the release either");
    rig.renew(Renewal { mark: rig.version(), ..early });
    rig.settle();
    assert_eq!(rig.count("b"), 1);
}

#[test]
fn l6_a_shard_that_its_owner_never_stops_is_free_a_lease_and_the_margin_after_its_release() {
    let mut rig = Rig::new(1);
    rig.join("a", 11);
    rig.pass(SETTLE);
    rig.join("b", 21);
    rig.pass(SETTLE);
    rig.executors.get_mut("a").expect("a").deaf = true;
    rig.wish("a", crate::assignment::record::Wish::Drain);
    rig.settle();
    let released_at = rig.now;
    // It renews for ever, and goes on holding the shard.
    let a = rig.executors["a"].clone();
    while rig.now < released_at.after(LEASE + MARGIN - TICK) {
        rig.now = rig.now.after(TICK);
        let commands = rig.renew(rig.renewal(&a));
        let [Ok(Answer::Lease(answer))] = &replies(&commands)[..] else { panic!("{commands:?}") };
        assert_eq!(answer.assignment, Some(Holdings::default()), "every answer lacks it");
        let _ = rig.renew_as("b");
        assert_eq!(kinds(&rig.settle()), Vec::<&str>::new());
    }
    let commands = rig.pass(TICK);
    assert!(notices(&commands).contains(&Notice::ReleaseTimedOut { shards: vec![ShardId(0)], id: id("a") }), "{commands:?}");
    assert_eq!(rig.owners(), [format!("b={}", TERM + 1)]);
}

#[test]
fn l6_a_shard_that_its_owner_never_starts_goes_to_somebody_else() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.executors.get_mut("a").expect("a").deaf = true;
    rig.pass(SETTLE);
    assert_eq!((rig.count("a"), rig.count("b")), (1, 1));
    let shard = rig.owners().iter().position(|owner| owner.starts_with('a')).expect("a has one");
    // a renews for ever and claims nothing.
    let mut all = Vec::new();
    for _ in 0..u64::try_from((LEASE + MARGIN).as_millis() / TICK.as_millis()).expect("small") + 3 {
        let mut a = rig.executors["a"].clone();
        a.mark = rig.version();
        rig.renew(rig.renewal(&a));
        all.extend(rig.pass(TICK));
    }
    let suspect_for = Some((LEASE + MARGIN) * 2);
    assert!(notices(&all).contains(&Notice::NotAdmitted { shards: vec![ShardId(shard as u32)], id: id("a"), suspect_for }));
    assert_eq!((rig.count("a"), rig.count("b")), (0, 2), "and does not come back to it");
    rig.renew(rig.renewal(&rig.executors["a"].clone()));
    rig.pass(LEASE / 2);
    assert_eq!((rig.count("a"), rig.count("b")), (0, 2));
}

#[test]
fn a_shard_that_runs_no_more_at_its_owner_counts_as_not_started() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    assert_eq!(rig.engine.statistics().unserved.values().sum::<u32>(), 0);
    let mut a = rig.executors["a"].clone();
    a.held = held(&[(0, TERM)]);
    let commands = rig.renew(rig.renewal(&a));
    assert!(
        matches!(&replies(&commands)[..], [Ok(Answer::Lease(answer))] if answer.assignment.as_ref().map(Holdings::len) == Some(2))
    );
    assert_eq!(rig.engine.statistics().unserved[&Cause::NotAdmitted], 1);
    rig.renew_as("a").expect("renewed");
    assert_eq!(rig.engine.statistics().unserved.values().sum::<u32>(), 0);
}

#[test]
fn l11_a_claim_above_the_record_raises_it_before_it_is_answered() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.pass(SETTLE);
    let owners = rig.owners();
    let (mine, others) = if owners[0].starts_with('a') { (0, 1) } else { (1, 0) };
    let claim = |pairs: &[(u32, u64)]| Claim::Full(held(pairs));

    // The owner's own claim: the record grows, and that is all.
    let renewal = rig.renewal(&rig.executors["a"].clone());
    assert_eq!(rig.renew(Renewal { claim: claim(&[(mine, 5000)]), ..renewal.clone() }), [], "not before it is durable");
    let commands = rig.settle();
    assert!(matches!(&replies(&commands)[..], [Ok(Answer::Lease(answer))] if answer.assignment.is_none()));
    assert_eq!(rig.owners()[mine as usize], "a=5000");
    rig.executors.get_mut("a").expect("a").held = held(&[(mine, 5000)]);

    // A claim on somebody else's shard: it does not move; its owner goes on above it.
    let mut pairs = vec![(mine, 5000), (others, 7000)];
    pairs.sort_unstable();
    rig.renew(Renewal { claim: claim(&pairs), mark: rig.version(), ..renewal.clone() });
    rig.settle();
    assert_eq!(rig.owners()[others as usize], "b=7001");

    // Near the end of what there is: refused, and nothing moves.
    let claimed = Claim::Full(held(&[(mine, 1 << 62)]));
    let commands = rig.renew(Renewal { claim: claimed, mark: rig.version(), ..renewal.clone() });
    assert!(matches!(&replies(&commands)[..], [Err(Refusal::InvalidArgument(_))]), "{commands:?}");
    assert_eq!(kinds(&rig.settle()), Vec::<&str>::new());

    // The word of a storage: the owner goes on above it.
    rig.renew(Renewal { storage_epochs: held(&[(mine, 9000)]), claim: claim(&[(mine, 5000)]), mark: rig.version(), ..renewal });
    rig.settle();
    assert_eq!(rig.owners()[mine as usize], "a=9001");
    assert_eq!(rig.state().shard(ShardId(others)).epoch, Epoch(7001));
}

#[test]
fn who_joins_together_or_a_second_apart_gets_a_fair_share() {
    for apart in [0, 1] {
        let mut rig = Rig::new(1024);
        rig.join("a", 11);
        rig.pass(SETTLE * 2);
        assert_eq!(rig.count("a"), 1024);
        rig.join("b", 21);
        rig.pass(std::time::Duration::from_secs(apart));
        rig.join("c", 31);
        rig.pass(SETTLE * 3);
        for name in ["a", "b", "c"] {
            assert!((307..=376).contains(&rig.count(name)), "{name} rests at {}", rig.count(name));
        }
        rig.join("d", 41);
        let moved = notices(&rig.pass(SETTLE * 3));
        assert_eq!(moved.iter().filter(|it| matches!(it, Notice::Moved { .. })).count(), 1, "one pass: {moved:?}");
    }
}

#[test]
fn when_one_dies_its_shards_are_spread_over_the_others_and_nothing_else_moves() {
    let mut rig = Rig::new(30);
    for (name, incarnation) in [("a", 11), ("b", 21), ("c", 31)] {
        rig.join(name, incarnation);
    }
    rig.pass(SETTLE);
    let before = rig.owners();
    rig.executors.get_mut("c").expect("c").deaf = true;
    let commands = rig.pass(LEASE + MARGIN * 2);
    let moves: Vec<Notice> = notices(&commands).into_iter().filter(|it| matches!(it, Notice::Moved { .. })).collect();
    assert_eq!(moves, [Notice::Moved { cause: Cause::Crash, shards: 10 }]);
    let kept = before.iter().zip(rig.owners()).filter(|(before, after)| *before == after).count();
    assert_eq!(kept, 20);
    assert_eq!((rig.count("a"), rig.count("b")), (15, 15));
}

#[test]
fn all_die_at_once_and_new_ones_come() {
    let mut rig = Rig::new(30);
    for (name, incarnation) in [("a", 11), ("b", 21)] {
        rig.join(name, incarnation);
    }
    rig.pass(SETTLE);
    rig.executors.values_mut().for_each(|it| it.deaf = true);
    rig.pass(LEASE / 2);
    rig.join("c", 31);
    rig.pass(TICK);
    rig.join("d", 41);
    rig.pass(LEASE / 2 + MARGIN * 2 + SETTLE);
    assert_eq!((rig.count("c"), rig.count("d")), (15, 15));
}

#[test]
fn a_suspect_gets_nothing_new_and_loses_nothing_and_a_majority_of_suspects_is_no_suspicion() {
    let mut rig = Rig::new(6);
    for (name, incarnation) in [("a", 11), ("b", 21), ("c", 31)] {
        rig.join(name, incarnation);
    }
    rig.pass(SETTLE);
    let probe = |rig: &mut Rig, name: &str, healthy| {
        let it = rig.executors[name].clone();
        rig.step(Event::Probed { slot: it.slot.expect("connected"), incarnation: it.incarnation, healthy })
    };
    assert_eq!(probe(&mut rig, "a", false), []);
    assert_eq!(kinds(&rig.settle()), Vec::<&str>::new(), "a probe alone moves nothing");
    rig.executors.get_mut("c").expect("c").deaf = true;
    rig.pass(LEASE + MARGIN * 2);
    assert_eq!((rig.count("a"), rig.count("b")), (2, 4), "a is suspect");
    probe(&mut rig, "b", false);
    rig.join("d", 41);
    probe(&mut rig, "d", false);
    rig.pass(CALM);
    assert!(rig.count("d") >= 2, "all are suspect: assignment goes on");
}

#[test]
fn large_changes_are_cut_into_commits_that_are_each_consistent() {
    let small = Settings { max_pages_per_commit: 4, ..settings() };
    let mut rig = Rig::with(small, 20 * 1024);
    rig.join_at("a", 11, "http://10.0.0.1:1");
    let commands = rig.pass(SETTLE * 2);
    let commits = kinds(&commands).iter().filter(|kind| **kind == "commit").count();
    assert!(commits >= 5, "{commits}");
    assert_eq!(rig.count("a"), 20 * 1024);
    for command in &commands {
        if let Command::Commit { changes, .. } = command {
            assert!(changes.shards.len() + changes.executors.len() + changes.retirees.len() <= 4);
        }
    }
    // In place, piece by piece.
    rig.join_at("a", 12, "http://10.0.0.1:1");
    rig.pass(SETTLE);
    assert_eq!(rig.count("a"), 20 * 1024);
    assert!(rig.owners().iter().all(|owner| *owner == format!("a={}", TERM + 1)));
    // And when it dies.
    rig.executors.get_mut("a").expect("a").deaf = true;
    rig.pass(LEASE * 2);
    assert_eq!(rig.state().executors().count(), 0);
}

#[test]
fn many_executors_in_one_pass() {
    let mut rig = Rig::new(600);
    let names: Vec<String> = (0..300).map(|at| format!("e{at}")).collect();
    for (at, name) in names.iter().enumerate() {
        rig.register(rig.registration(name, at as u64 + 1, &format!("http://{name}:1")));
    }
    assert_eq!(kinds(&rig.turn()), ["commit"]);
    assert_eq!(replies(&rig.commit()).len(), 300);
    assert_eq!(kinds(&rig.turn_until_commit()), ["commit"]);
    assert_eq!(kinds(&rig.commit()).iter().filter(|kind| **kind == "send").count(), 300);
    assert!(names.iter().all(|name| rig.count(name) == 2));
}

#[test]
fn an_executor_that_never_starts_anything_is_trusted_less_and_less() {
    let mut rig = Rig::new(100);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.executors.get_mut("a").expect("a").deaf = true;
    let mut taken = Vec::new();
    let begin = rig.now;
    while rig.now < begin.after(LEASE * 60) {
        // a renews for ever and claims nothing.
        let mut a = rig.executors["a"].clone();
        a.mark = rig.version();
        rig.renew(rig.renewal(&a));
        let commands = rig.pass(std::time::Duration::from_secs(1));
        let at = rig.now.since(begin).as_secs();
        taken.extend(notices(&commands).iter().filter(|it| matches!(it, Notice::NotAdmitted { .. })).map(|_| at));
    }
    assert!((3..=5).contains(&taken.len()), "running shards are not put at risk again and again: {taken:?}");
    let gaps: Vec<u64> = taken.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.windows(2).all(|pair| pair[1] > pair[0]), "{gaps:?}");
}

#[test]
fn an_executor_that_starts_and_drops_its_shards_over_and_over_does_not_keep_them() {
    let mut rig = Rig::new(100);
    rig.join("a", 11);
    rig.join("b", 21);
    rig.executors.get_mut("a").expect("a").deaf = true;
    let mut taken = Vec::new();
    let begin = rig.now;
    while rig.now < begin.after(LEASE * 60) {
        // What a has it claims each time, as one does whose work begins; and then that it holds nothing, since its work ended by itself.
        let mut a = rig.executors["a"].clone();
        a.mark = rig.version();
        if let [Ok(Answer::Lease(answer))] = &replies(&rig.renew(rig.renewal(&a)))[..]
            && let Some(assignment) = &answer.assignment
        {
            let started = Renewal { claim: Claim::Full(assignment.clone()), ..rig.renewal(&a) };
            rig.renew(started);
            rig.renew(Renewal { claim: Claim::Full(Holdings::default()), ..rig.renewal(&a) });
        }
        let commands = rig.pass(std::time::Duration::from_secs(1));
        let at = rig.now.since(begin);
        taken.extend(notices(&commands).iter().filter(|it| matches!(it, Notice::NotAdmitted { .. })).map(|_| at));
    }
    assert!(taken[0] <= SETTLE + LEASE + MARGIN + std::time::Duration::from_secs(2), "within the time of one lease: {taken:?}");
    assert!((3..=5).contains(&taken.len()), "and it is trusted less and less: {taken:?}");
    let gaps: Vec<std::time::Duration> = taken.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.windows(2).all(|pair| pair[1] > pair[0]), "{gaps:?}");
}

/// Whoever has it, its work ends at once. Nobody but the first is to blame.
#[test]
fn a_shard_that_nobody_can_run_makes_nobody_else_suspect() {
    let mut rig = Rig::new(8);
    let names = ["a", "b", "c", "d"];
    names.iter().zip(1..).for_each(|(name, incarnation)| drop(rig.join(name, incarnation)));
    rig.pass(SETTLE + LEASE + MARGIN);
    let bad = ShardId(0);
    names.iter().for_each(|name| rig.executors.get_mut(name).expect("it joined").deaf = true);
    let (mut owners, mut blamed) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        for name in names {
            let executor = Executor { mark: rig.version(), ..rig.executors[name].clone() };
            if let [Ok(Answer::Lease(answer))] = &replies(&rig.renew(rig.renewal(&executor)))[..] {
                let all = answer.assignment.clone().unwrap_or_else(|| executor.held.clone());
                let good = Holdings::from_pairs(all.iter().filter(|(shard, _)| *shard != bad));
                rig.renew(Renewal { claim: Claim::Full(all), ..rig.renewal(&executor) });
                rig.renew(Renewal { claim: Claim::Full(good.clone()), ..rig.renewal(&executor) });
                rig.executors.get_mut(name).expect("it joined").held = good;
            }
        }
        let commands = rig.pass((LEASE + MARGIN) / 8);
        for notice in notices(&commands) {
            let Notice::NotAdmitted { shards, id, suspect_for } = notice else { continue };
            assert_eq!(shards, [bad]);
            owners.push(id.clone());
            blamed.extend(suspect_for.map(|_| id));
        }
    }
    assert!(owners.len() >= 5, "it goes from one to the next: {owners:?}");
    assert_eq!(blamed.len(), 1, "{blamed:?} of {owners:?}");
}

#[test]
fn l6_who_ran_a_shard_for_the_time_of_a_lease_has_it_again_when_it_stops() {
    let mut rig = Rig::new(1);
    rig.join("a", 11);
    rig.pass(SETTLE + LEASE + MARGIN);
    rig.executors.get_mut("a").expect("a").deaf = true;
    let mut a = rig.executors["a"].clone();
    a.mark = rig.version();
    rig.renew(Renewal { claim: Claim::Full(Holdings::default()), ..rig.renewal(&a) });
    rig.join("b", 21);
    let mut waited = std::time::Duration::ZERO;
    while rig.count("b") == 0 {
        rig.renew(Renewal { claim: Claim::Full(Holdings::default()), mark: rig.version(), ..rig.renewal(&a) });
        rig.pass(TICK);
        waited += TICK;
    }
    assert!(waited >= LEASE + MARGIN && waited <= LEASE + MARGIN + TICK * 3, "{waited:?}");
}

#[test]
fn a_destination_does_not_outlive_the_incarnation_that_it_meant() {
    let mut rig = Rig::new(2);
    rig.join("a", 11);
    rig.pass(SETTLE);
    rig.join("b", 21);
    rig.pass(SETTLE);
    // a's shard is on its way to its successor when that one leaves, and its slot is given to somebody who is being drained.
    rig.executors.get_mut("a").expect("a").deaf = true;
    rig.join("a", 12);
    rig.deregister("a", 12);
    rig.settle();
    rig.join("z", 91);
    rig.wish("z", crate::assignment::record::Wish::Drain);
    rig.settle();
    rig.pass(LEASE * 2);
    assert_eq!((rig.count("z"), rig.count("b")), (0, 2));
}
