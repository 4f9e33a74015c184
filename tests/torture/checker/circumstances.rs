//! What excuses whom: processes that were frozen, a store that was wiped, what the program could not observe.

use super::history::{Event, History};
use super::seconds;

/// From, until.
pub type Window = (u64, u64);

const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    /// Whose process stood still, and when. The target without what stands behind `#`.
    freezes: Vec<(String, Window)>,
    /// From the moment at which the store was wiped until the leases of before are over: there only epochs protect.
    pub wiped: Vec<Window>,
    pub gaps: Vec<(String, Window, String)>,
}

impl Circumstances {
    pub fn of(history: &History) -> Circumstances {
        let run = &history.run;
        let end = history.end_ns();
        let mut it = Circumstances::default();
        let mut open: Vec<(String, String, u64)> = Vec::new();
        let mut wiping: Option<u64> = None;
        let mut wiped: Vec<Window> = Vec::new();
        let close = |it: &mut Circumstances, (kind, target, from): (String, String, u64), until: u64| {
            if kind.starts_with("freeze") {
                it.freezes.push((target.split('#').next().unwrap_or_default().to_owned(), (from, until)));
            }
            kind.contains("wipe").then_some((from, until))
        };
        for (_, at, event) in history.events() {
            match event {
                Event::Fault { kind, target, begins: true } => open.push((kind.clone(), target.clone(), at)),
                Event::Fault { kind, target, begins: false } => {
                    if let Some(index) = open.iter().rposition(|(k, t, _)| k == kind && t == target) {
                        wiped.extend(close(&mut it, open.remove(index), at));
                    }
                }
                Event::Healed => {
                    for fault in std::mem::take(&mut open) {
                        wiped.extend(close(&mut it, fault, at));
                    }
                }
                Event::Phase { name } if name == "store_wiped" => wiping = Some(wiping.unwrap_or(at)),
                Event::Phase { .. } => wiped.extend(wiping.take().map(|from| (from, at))),
                Event::Gap { party, from_ns, to_ns, why } => it.gaps.push((party.clone(), (*from_ns, *to_ns), why.clone())),
                _ => {}
            }
        }
        for fault in open {
            wiped.extend(close(&mut it, fault, end));
        }
        wiped.extend(wiping.map(|from| (from, end)));
        // The leader of before may not notice at once, and what it granted last has a lease to run.
        let after = run.leader_ttl_ns + run.lease_ttl_ns + run.margin_ns + SECOND;
        it.wiped = wiped.into_iter().map(|(from, until)| (from, until + after)).collect();
        it
    }

    /// How much of a window a party neither stood still nor went unobserved. What follows a thaw within `rest` is excused too.
    pub fn awake(&self, party: &str, (from, until): Window, rest: u64) -> u64 {
        let frozen = self.freezes.iter().filter(|(who, _)| who == party).map(|(_, (a, b))| (*a, b.saturating_add(rest)));
        let unseen = self.gaps.iter().map(|(_, (a, b), _)| (*a, b.saturating_add(rest)));
        let excused = joined(frozen.chain(unseen).collect());
        let overlap = |(a, b): &Window| (*b).min(until).saturating_sub((*a).max(from));
        until.saturating_sub(from).saturating_sub(excused.iter().map(overlap).sum())
    }

    /// Whether only epochs protect at that moment.
    pub fn is_wiped(&self, at: u64) -> bool {
        self.wiped.iter().any(|(from, until)| (*from..*until).contains(&at))
    }

    /// How much of a window was not observed.
    pub fn unobserved(&self, (from, until): Window) -> u64 {
        let gaps = joined(self.gaps.iter().map(|(_, window, _)| *window).collect());
        gaps.iter().map(|(a, b)| (*b).min(until).saturating_sub((*a).max(from))).sum()
    }

    pub fn told(&self) -> impl Iterator<Item = String> + '_ {
        self.gaps.iter().map(|(party, (from, to), why)| {
            let length = seconds(to.saturating_sub(*from));
            format!("{party} was not observed for {length} from {from} to {to} ({why}); bounds are longer by that")
        })
    }
}

/// Windows that touch are one.
fn joined(mut windows: Vec<Window>) -> Vec<Window> {
    windows.sort_unstable();
    let mut joined: Vec<Window> = Vec::new();
    for (from, until) in windows {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(until),
            _ => joined.push((from, until)),
        }
    }
    joined
}
