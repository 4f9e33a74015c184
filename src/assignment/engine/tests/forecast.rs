//! What would move, if: it comes true, and asking does nothing.

use super::rig::*;
use crate::assignment::command::{Answer, Forecast, Kinds, Refusal, Reply};
use crate::assignment::event::{Demand, Event, Question, WhatIf};
use crate::assignment::record::Wish;

fn ask(rig: &mut Rig, what_if: WhatIf) -> Reply {
    let request = rig.request();
    let commands = rig.step(Event::Ask(request, Question::Plan(what_if)));
    let [reply] = &replies(&commands)[..] else { panic!("{commands:?}") };
    assert_eq!(commands.len(), 1, "nothing but the answer: {commands:?}");
    reply.clone()
}

fn forecast(rig: &mut Rig, what_if: WhatIf) -> Forecast {
    match ask(rig, what_if) {
        Ok(Answer::Forecast(forecast)) => forecast,
        other => panic!("{other:?}"),
    }
}

fn join(name: &str, weight: u32) -> WhatIf {
    WhatIf { join: vec![(id(name), weight)], ..WhatIf::default() }
}

fn leave(name: &str) -> WhatIf {
    WhatIf { leave: vec![id(name)], ..WhatIf::default() }
}

fn drain(name: &str) -> WhatIf {
    WhatIf { drain: vec![id(name)], ..WhatIf::default() }
}

/// Who owns each shard.
fn owners(rig: &Rig) -> Vec<String> {
    rig.owners().iter().map(|owner| owner.split('=').next().unwrap_or_default().to_owned()).collect()
}

/// The owners of now, after a forecast.
fn after(rig: &Rig, forecast: &Forecast) -> Vec<String> {
    let mut owners = owners(rig);
    for step in &forecast.moves {
        let from = step.from.map_or("-", |at| forecast.executors[at as usize].id.as_str());
        assert_eq!(owners[step.shard.0 as usize], from);
        owners[step.shard.0 as usize] = forecast.executors[step.to as usize].id.to_string();
    }
    owners
}

/// `id before→after [lower, upper]`.
fn counts(forecast: &Forecast) -> Vec<String> {
    let bounds = |bounds: Option<(u32, u32)>| bounds.map_or("-".to_owned(), |(lower, upper)| format!("[{lower}, {upper}]"));
    let executors = forecast.executors.iter();
    executors.map(|it| format!("{} {}→{} {}", it.id, it.before, it.after, bounds(it.bounds))).collect()
}

fn three() -> Rig {
    let mut rig = Rig::new(60);
    for (name, incarnation) in [("a", 11), ("b", 21), ("c", 31)] {
        rig.join(name, incarnation);
    }
    rig.pass(SETTLE);
    rig
}

#[test]
fn an_executor_joins_as_forecast() {
    for weight in [1, 3] {
        let mut rig = three();
        let told = forecast(&mut rig, join("d", weight));
        let expected = after(&rig, &told);
        rig.join("d", 41);
        let d = crate::assignment::event::Registration { weight, ..rig.registration("d", 41, "http://d-41:1") };
        rig.register(d);
        rig.pass(SETTLE * 2);
        assert_eq!(owners(&rig), expected);
        assert_eq!(told.executors[3].after as usize, rig.count("d"));
        assert_eq!(told.kinds.balance as usize, told.moves.len());
    }
    let mut rig = three();
    assert_eq!(
        counts(&forecast(&mut rig, join("d", 1))),
        ["a 20→15 [14, 16]", "b 20→15 [14, 16]", "c 20→16 [14, 16]", "d 0→14 [14, 16]"]
    );
}

#[test]
fn an_executor_dies_as_forecast() {
    let mut rig = three();
    let told = forecast(&mut rig, leave("b"));
    assert_eq!(told.kinds, Kinds { placed: 0, evacuated: 20, balance: 0 });
    assert_eq!(counts(&told), ["a 20→30 [27, 33]", "b 20→0 -", "c 20→30 [27, 33]"]);
    let expected = after(&rig, &told);
    rig.executors.get_mut("b").expect("b").deaf = true;
    rig.pass(LEASE + MARGIN * 2);
    assert_eq!(owners(&rig), expected);
}

#[test]
fn an_executor_is_drained_as_forecast_and_another_one_comes() {
    let mut rig = three();
    let both = WhatIf { join: vec![(id("d"), 1)], ..drain("c") };
    assert_eq!(counts(&forecast(&mut rig, both)), ["a 20→20 [18, 22]", "b 20→20 [18, 22]", "c 20→0 -", "d 0→20 [18, 22]"]);
    let told = forecast(&mut rig, drain("c"));
    let expected = after(&rig, &told);
    rig.wish("c", Wish::Drain);
    rig.pass(TICK);
    assert_eq!(owners(&rig), expected);
    let told = forecast(&mut rig, WhatIf::default());
    assert_eq!((told.moves.len(), told.kinds), (0, Kinds::default()), "nothing is left to do");
}

#[test]
fn everybody_leaves() {
    let mut rig = three();
    let told = forecast(&mut rig, WhatIf { leave: vec![id("a"), id("b"), id("c")], ..WhatIf::default() });
    assert_eq!((told.moves.len(), counts(&told)), (0, vec!["a 20→0 -".into(), "b 20→0 -".into(), "c 20→0 -".into()]));
    assert_eq!(
        (told.unplaced, told.notes),
        (60, vec!["no executor can take shards".to_owned()]),
        "each of them would be nobody's"
    );
    let told = forecast(&mut rig, WhatIf { drain: vec![id("a"), id("b"), id("c")], ..WhatIf::default() });
    assert_eq!((told.unplaced, &*counts(&told)[0]), (0, "a 20→20 -"), "they stay where they are");
}

#[test]
fn during_a_pause_it_is_told_what_waits() {
    let mut rig = three();
    rig.executors.get_mut("c").expect("c").deaf = true;
    rig.pass(LEASE + MARGIN * 2);
    let request = rig.request();
    let pause = Demand::Pause { length: LEASE * 6, by: "me".into(), reason: String::new() };
    rig.step(Event::Demand(request, pause));
    rig.join("d", 41);
    let told = forecast(&mut rig, WhatIf::default());
    assert_eq!((told.kinds, told.moves.len()), (Kinds { balance: 18, ..Kinds::default() }, 18));
    let notes = told.notes.join("\n");
    assert!(notes.contains("rebalancing is paused until Thu 00:01:1"), "{notes}");
    assert!(notes.contains("(another 60 s): asked by me; moves for balance wait until then"), "{notes}");
    assert!(notes.contains("joins are being gathered for another 0.5 s"), "{notes}");
}

#[test]
fn who_is_not_there_cannot_leave_and_who_is_cannot_join() {
    let mut rig = three();
    for what_if in [leave("x"), drain("x"), WhatIf { leave: vec![id("a"), id("x")], ..WhatIf::default() }] {
        assert_eq!(ask(&mut rig, what_if), Err(Refusal::UnknownExecutor { id: id("x") }));
    }
    let refused = ask(&mut rig, WhatIf { join: vec![(id("d"), 1), (id("b"), 1)], ..WhatIf::default() });
    let Err(Refusal::NotNow(says)) = refused else { panic!("{refused:?}") };
    assert!(says.contains("executor b is known already"), "{says}");
}

#[test]
fn of_who_is_away_or_removed_it_is_said_so_whatever_would_change() {
    let mut rig = three();
    rig.wish("c", Wish::Cordon);
    rig.deregister("c", 31);
    let request = rig.request();
    rig.step(Event::Demand(request, Demand::Remove { id: id("b"), dead: false }));
    rig.settle();
    for (who, why) in [
        ("c", "executor c is away: it takes shards once it has registered"),
        ("b", "executor b was removed: `shard-manager admit b` takes that back"),
    ] {
        for what_if in [leave(who), drain(who), join(who, 1)] {
            assert_eq!(ask(&mut rig, what_if.clone()), Err(Refusal::NotNow(why.to_owned())), "{what_if:?}");
        }
    }
}

#[test]
fn before_the_port_is_open_nothing_is_forecast() {
    let mut rig = Rig::starting(settings(), takeover(4, TERM), None);
    assert_eq!(ask(&mut rig, WhatIf::default()), Err(Refusal::NotReady));
}

/// Two engines live the same life; one of them is asked at every step.
#[test]
fn asking_changes_nothing() {
    fn live(rig: &mut Rig, asked: bool) -> Vec<crate::assignment::command::Command> {
        let mut all = Vec::new();
        let question = |rig: &mut Rig| {
            if asked {
                for what_if in [WhatIf::default(), join("z", 5), leave("a"), WhatIf { join: vec![(id("y"), 1)], ..drain("a") }] {
                    let _ = ask(rig, what_if);
                }
                for shard in 0..20 {
                    let request = rig.request();
                    rig.step(Event::Ask(request, Question::Explain(crate::types::ShardId(shard))));
                }
            }
        };
        for (name, incarnation) in [("a", 11), ("b", 21), ("c", 31)] {
            all.extend(rig.join(name, incarnation));
            question(rig);
        }
        for _ in 0..10 {
            all.extend(rig.pass(TICK));
            question(rig);
        }
        rig.wish("a", Wish::Drain);
        question(rig);
        all.extend(rig.turn());
        question(rig);
        all.extend(rig.commit());
        question(rig);
        rig.executors.get_mut("b").expect("b").deaf = true;
        for _ in 0..(LEASE.as_secs() + 2) {
            all.extend(rig.pass(TICK * 10));
            question(rig);
        }
        all
    }
    let without_requests = |commands: Vec<crate::assignment::command::Command>| -> Vec<_> {
        let anonymous = |command| match command {
            crate::assignment::command::Command::Reply(_, reply) => {
                crate::assignment::command::Command::Reply(crate::assignment::event::RequestId(0), reply)
            }
            other => other,
        };
        commands.into_iter().map(anonymous).collect()
    };
    let (mut quiet, mut asked) = (Rig::new(20), Rig::new(20));
    let (expected, found) = (live(&mut quiet, false), live(&mut asked, true));
    assert_eq!(without_requests(found), without_requests(expected));
    assert_eq!((asked.state(), asked.revision), (quiet.state(), quiet.revision));
}
