//! P8: how many managers say that they lead, and under which terms.

use std::collections::BTreeMap;

use super::circumstances::{Circumstances, Window};
use super::history::{Event, History};
use super::{Promise, Report, seconds};

/// For how long two may say so: a scrape or two, on a machine that is busy.
const AT_MOST: u64 = 1_000_000_000;

/// A manager said so at both ends, and no other answer came in between.
struct Spell {
    window: Window,
    term: u64,
    lines: [usize; 2],
}

pub fn check(history: &History, circumstances: &Circumstances, report: &mut Report) {
    let spells = spells(history);
    report.count("leaderships seen", spells.values().map(|spells| spells.len() as u64).sum());
    let managers: Vec<&str> = spells.keys().copied().collect();
    for (index, one) in managers.iter().enumerate() {
        for other in &managers[index + 1..] {
            for (a, b) in spells[one].iter().flat_map(|a| spells[other].iter().map(move |b| (a, b))) {
                together((one, a), (other, b), circumstances, report);
            }
        }
    }
    terms(&spells, report);
    if !history.events().any(|(_, _, event)| matches!(event, Event::Scrape { is_leader: true, .. })) {
        report.not_measured.push("P8: no manager was seen to lead".to_owned());
    }
}

fn spells(history: &History) -> BTreeMap<&str, Vec<Spell>> {
    let mut spells: BTreeMap<&str, Vec<Spell>> = BTreeMap::new();
    // Whether the last answer of a manager said that it leads.
    let mut leads: BTreeMap<&str, bool> = BTreeMap::new();
    for (line, at, event) in history.events() {
        match event {
            Event::Scrape { manager, is_leader: true, term } => {
                let goes_on = leads.insert(manager, true).unwrap_or(false);
                let spells = spells.entry(manager).or_default();
                match spells.last_mut().filter(|spell| goes_on && (spell.term == *term || spell.term == 0)) {
                    Some(spell) => {
                        spell.window.1 = at;
                        spell.lines[1] = line;
                        spell.term = *term;
                    }
                    None => spells.push(Spell { window: (at, at), term: *term, lines: [line, line] }),
                }
            }
            Event::Scrape { manager, .. } | Event::Silent { manager } => {
                leads.insert(manager, false);
            }
            _ => {}
        }
    }
    spells
}

fn together((one, a): (&str, &Spell), (other, b): (&str, &Spell), circumstances: &Circumstances, report: &mut Report) {
    let (from, until) = (a.window.0.max(b.window.0), a.window.1.min(b.window.1));
    let length = until.saturating_sub(from);
    if length > AT_MOST + circumstances.unobserved((from, until)) {
        let what =
            format!("{one} (term {}) and {other} (term {}) both say that they lead, for {}", a.term, b.term, seconds(length));
        report.violated(Promise::HonestEnds, a.lines.into_iter().chain(b.lines), None, what);
    }
}

/// A leadership that began later has a higher term.
fn terms(spells: &BTreeMap<&str, Vec<Spell>>, report: &mut Report) {
    let mut all: Vec<(&str, &Spell)> = spells
        .iter()
        .flat_map(|(manager, spells)| spells.iter().map(move |spell| (*manager, spell)))
        .filter(|(_, spell)| spell.term > 0)
        .collect();
    all.sort_by_key(|(_, spell)| spell.window);
    let mut highest: Option<(&str, &Spell)> = None;
    for (manager, spell) in all {
        if let Some((of, before)) = highest.filter(|(_, before)| spell.term <= before.term) {
            // The one that was replaced may say so once more, when it wakes up; and a manager may be silent in between.
            let is_same = of == manager && spell.term == before.term;
            let lasts = spell.window.1 - spell.window.0 > AT_MOST;
            if !is_same && (lasts || spell.term == before.term) {
                let what = format!("{manager} leads under term {}, after {of} under term {}", spell.term, before.term);
                report.violated(Promise::HonestEnds, before.lines.into_iter().chain(spell.lines), None, what);
            }
            continue;
        }
        highest = Some((manager, spell));
    }
}
