//! P2: what a manager acknowledged is in every later state, until something later undid it.

use std::collections::{BTreeMap, HashMap};

use super::circumstances::Circumstances;
use super::history::{Asked, Event, History, Incarnation, Outcome, Version};
use super::{Promise, Report};

/// What a leader told of itself.
struct Told<'a> {
    line: usize,
    at: u64,
    cluster: &'a str,
    version: Version,
    owners: &'a [(u32, Option<String>, u64)],
    executors: &'a BTreeMap<String, Vec<(String, u64)>>,
}

/// What an operator asked of one executor.
struct Wish<'a> {
    kind: &'a str,
    line: usize,
    at: u64,
    /// `None`: it may have happened, and may still.
    outcome: Option<&'a Outcome>,
    answered: Option<(usize, u64)>,
}

/// How long an ask that was not answered may still be under way.
const UNDER_WAY: u64 = 60_000_000_000;

pub fn check(history: &History, circumstances: &Circumstances, report: &mut Report) {
    let states: Vec<Told> = history
        .events()
        .filter_map(|(line, at, event)| match event {
            Event::State { cluster, version, owners, executors } => {
                Some(Told { line, at, cluster, version: *version, owners, executors })
            }
            _ => None,
        })
        .collect();
    let clusters = Clusters::of(history);
    let compared = wishes(history, &states, &clusters, report)
        + registrations(history, &states, &clusters, circumstances, report)
        + moves(history, &states, &clusters, report);
    report.count("acknowledgements compared with a later state", compared);
    if compared == 0 {
        report.not_measured.push("P2: nothing acknowledged could be compared with a later state".to_owned());
    }
}

/// Which cluster a term belongs to: as it was seen, or by those before and after it, since terms grow from cluster to cluster too.
pub struct Clusters<'a>(BTreeMap<u64, &'a str>);

impl<'a> Clusters<'a> {
    pub fn of(history: &'a History) -> Clusters<'a> {
        let mut clusters = BTreeMap::new();
        for (_, _, event) in history.events() {
            if let Event::State { cluster, version, .. }
            | Event::Seen { cluster, version, .. }
            | Event::Stored { cluster, version, .. } = event
            {
                clusters.insert(version.0, cluster.as_str());
            }
        }
        Clusters(clusters)
    }

    pub fn get(&self, term: u64) -> Option<&'a str> {
        let before = self.0.range(..=term).next_back()?;
        let after = self.0.range(term..).next()?;
        (before.1 == after.1).then_some(*before.1)
    }
}

fn admin<'a>(history: &'a History) -> Vec<(&'a Asked, Wish<'a>)> {
    let outcomes: HashMap<&str, (usize, u64, &'a Outcome)> = history
        .events()
        .filter_map(|(line, at, event)| match event {
            Event::Outcome { id, outcome } => Some((id.as_str(), (line, at, outcome))),
            _ => None,
        })
        .collect();
    let ask = |(line, at, event): (usize, u64, &'a Event)| match event {
        Event::Ask { id, asked: asked @ Asked::Admin { kind, .. } } => {
            let found = outcomes.get(id.as_str());
            let outcome = found.map(|(_, _, outcome)| *outcome).filter(|outcome| **outcome != Outcome::Unknown);
            let wish = Wish { kind, line, at, outcome, answered: found.map(|(line, at, _)| (*line, *at)) };
            Some((asked, wish))
        }
        _ => None,
    };
    history.events().filter_map(ask).collect()
}

/// Drains, cordons and removals, and what takes them back.
fn wishes(history: &History, states: &[Told], clusters: &Clusters, report: &mut Report) -> u64 {
    let mut by_executor: HashMap<&str, Vec<Wish>> = HashMap::new();
    for (asked, wish) in admin(history) {
        if let Asked::Admin { executor: Some(executor), kind, .. } = asked
            && kind != "move"
        {
            by_executor.entry(executor).or_default().push(wish);
        }
    }
    let mut compared = 0;
    for (executor, wishes) in &by_executor {
        for (index, wish) in wishes.iter().enumerate() {
            let (Some(Outcome::Acknowledged { version: Some(version), .. }), Some((answered, _))) = (wish.outcome, wish.answered)
            else {
                continue;
            };
            let Some(cluster) = clusters.get(version.0) else { continue };
            // What was asked later may be in a state already; so may what was asked shortly before, without an answer.
            let doubt = wishes[..index].iter().any(|it| it.outcome.is_none() && it.at + UNDER_WAY > wish.at);
            let next = wishes.get(index + 1).map_or(u64::MAX, |next| next.at);
            if doubt {
                continue;
            }
            let later = states.iter().filter(|it| it.cluster == cluster && it.version >= *version && it.at < next);
            for state in later {
                compared += 1;
                if is_kept(wish.kind, state.executors.get(*executor)) {
                    continue;
                }
                let how = state.executors.get(*executor).map_or("absent".to_owned(), |it| format!("{it:?}"));
                let what = format!(
                    "{} {executor} was acknowledged at {version:?}, and in the state of {:?} it is {how}",
                    wish.kind, state.version
                );
                report.violated(Promise::DurableBeforeVisible, [wish.line, answered, state.line], None, what);
                break;
            }
        }
    }
    compared
}

/// Whether an executor is as an operator wished; several processes of one id may be known.
fn is_kept(kind: &str, executor: Option<&Vec<(String, u64)>>) -> bool {
    let any = |states: &[&str]| executor.is_some_and(|it| it.iter().any(|(state, _)| states.contains(&state.as_str())));
    match kind {
        "drain" => any(&["draining", "drained", "lapsed", "removing", "removed"]),
        "cordon" => any(&["cordoned", "draining", "drained", "lapsed", "removing", "removed"]),
        // A leaving executor drains by its own wish.
        "uncordon" => !any(&["cordoned"]),
        "remove" => any(&["removing", "removed", "lapsed"]),
        "admit" => !any(&["removing", "removed"]),
        _ => true,
    }
}

/// Who was registered is known for as long as its lease lasts: a manager counts longer than an executor does.
fn registrations(
    history: &History,
    states: &[Told],
    clusters: &Clusters,
    circumstances: &Circumstances,
    report: &mut Report,
) -> u64 {
    /// An executor that leaves says so before its process ends.
    const FAREWELL: u64 = 15_000_000_000;
    let mut leases: HashMap<&Incarnation, Vec<(u64, u64)>> = HashMap::new();
    let mut ends: HashMap<&Incarnation, u64> = HashMap::new();
    for (_, at, event) in history.events() {
        match event {
            Event::Lease { who, until_ns } => leases.entry(who).or_default().push((at, *until_ns)),
            Event::Ended { who } => {
                ends.insert(who, at);
            }
            _ => {}
        }
    }
    // A removal, whatever came of it, may end what the executor's own clock goes on counting.
    let removals: Vec<(&str, u64)> = admin(history)
        .into_iter()
        .filter_map(|(asked, wish)| match asked {
            Asked::Admin { kind, executor: Some(executor), .. } if kind == "remove" => Some((executor.as_str(), wish.at)),
            _ => None,
        })
        .collect();
    let mut compared = 0;
    for (line, at, event) in history.events() {
        let Event::Registered { who, version: Some(version) } = event else { continue };
        let removed = removals.iter().filter(|(executor, asked)| *executor == who.executor && *asked > at);
        let removed = removed.map(|(_, asked)| *asked).min().unwrap_or(u64::MAX);
        let Some(cluster) = clusters.get(version.0) else { continue };
        let lives = |state: &&Told| {
            let lease = leases.get(who).and_then(|it| it.iter().take_while(|(noted, _)| *noted < state.at).last());
            let ends = ends.get(who).copied().unwrap_or(u64::MAX);
            lease.is_some_and(|(_, until)| *until > state.at) && ends > state.at.saturating_add(FAREWELL)
        };
        let later = states.iter().filter(|it| it.cluster == cluster && it.version >= *version && it.at >= at);
        for state in later.filter(lives).filter(|it| it.at < removed && !circumstances.is_wiped(it.at)) {
            compared += 1;
            // Another incarnation there is one that replaced it.
            if state.executors.get(&who.executor).is_none_or(Vec::is_empty) {
                let what =
                    format!("{who} was registered at {version:?}, and the state of {:?} knows none of its id", state.version);
                report.violated(Promise::DurableBeforeVisible, [line, state.line], None, what);
                break;
            }
        }
    }
    compared
}

/// A shard whose move was acknowledged does not stay where it was, at the same epoch.
fn moves(history: &History, states: &[Told], clusters: &Clusters, report: &mut Report) -> u64 {
    let mut compared = 0;
    for (asked, wish) in admin(history) {
        let (Asked::Admin { kind, shards, to, .. }, Some((answered, acknowledged_at))) = (asked, wish.answered) else { continue };
        let Some(Outcome::Acknowledged { version: Some(version), .. }) = wish.outcome.filter(|_| kind == "move") else {
            continue;
        };
        let Some(cluster) = clusters.get(version.0) else { continue };
        let of_cluster = || states.iter().filter(|it| it.cluster == cluster);
        for shard in shards {
            let owner = |state: &Told| {
                state.owners.iter().find(|(it, _, _)| it == shard).map(|(_, owner, epoch)| (owner.clone(), *epoch))
            };
            let Some((Some(before), epoch)) = of_cluster().rfind(|it| it.version < *version).and_then(owner) else {
                continue;
            };
            if to.as_ref().is_none_or(|to| *to == before) {
                continue;
            }
            let late = acknowledged_at + history.run.bound_ns;
            let Some(state) = of_cluster().find(|it| it.version >= *version && it.at > late) else { continue };
            compared += 1;
            if owner(state) == Some((Some(before.clone()), epoch)) {
                let what = format!(
                    "the move of shard {shard} was acknowledged at {version:?}, and by the state of {:?} {before} has it still, at epoch {epoch}",
                    state.version
                );
                report.violated(Promise::DurableBeforeVisible, [wish.line, answered, state.line], Some(*shard), what);
            }
        }
    }
    compared
}
