//! P1, P2 and P7: (term, revision), as readers, operators and the store itself see it.
//!
//! Each leadership begins with a commit of its own. So whatever is seen of an earlier term lies below everything that is seen of a later
//! one: a version above that was either told and never durable (P2), or written by a leader that had been replaced (P1).

use std::collections::{BTreeMap, HashMap, HashSet};

use super::asks::Clusters;
use super::history::{Event, History, Outcome, Version};
use super::{Promise, Report};

pub fn check(history: &History, report: &mut Report) {
    terms(history, report);
    stored(history, report);
    readers(history, report);
    contents(history, report);
}

/// Of one term: its lowest and its highest revision, each with its line, and whether the highest was seen in the store.
#[derive(Clone, Copy)]
struct Span {
    lowest: (u64, usize),
    highest: (u64, usize),
}

fn terms(history: &History, report: &mut Report) {
    let known = Clusters::of(history);
    let mut spans: BTreeMap<(&str, u64), Span> = BTreeMap::new();
    let mut durable: HashSet<(&str, Version)> = HashSet::new();
    let mut take = |cluster, (term, revision): Version, line| {
        let span = spans.entry((cluster, term)).or_insert(Span { lowest: (revision, line), highest: (revision, line) });
        span.lowest = span.lowest.min((revision, line));
        if revision > span.highest.0 {
            span.highest = (revision, line);
        }
    };
    for (line, _, event) in history.events() {
        match event {
            Event::State { cluster, version, .. } | Event::Seen { cluster, version, .. } => {
                take(cluster.as_str(), *version, line)
            }
            Event::Stored { cluster, version, .. } => {
                durable.insert((cluster, *version));
                take(cluster, *version, line);
            }
            Event::Outcome { outcome: Outcome::Acknowledged { version: Some(version), .. }, .. }
            | Event::Registered { version: Some(version), .. } => {
                if let Some(cluster) = known.get(version.0) {
                    take(cluster, *version, line);
                }
            }
            _ => {}
        }
    }
    report.count("terms seen", spans.len() as u64);
    let mut before: Option<(&str, u64, Span)> = None;
    for (&(cluster, term), span) in &spans {
        if let Some((of, earlier, highest)) = before.filter(|(of, _, _)| *of == cluster) {
            if span.lowest.0 <= highest.highest.0 {
                let is_durable = durable.contains(&(of, (earlier, highest.highest.0)));
                let promise = if is_durable { Promise::Fenced } else { Promise::DurableBeforeVisible };
                let how =
                    if is_durable { "was written after it was replaced" } else { "was shown and is not what was built upon" };
                let what = format!(
                    "term {term} was seen at revision {}, so revision {} of the earlier term {earlier} {how}",
                    span.lowest.0, highest.highest.0
                );
                report.violated(promise, [span.lowest.1, highest.highest.1], None, what);
            }
            let higher = if highest.highest.0 > span.highest.0 { highest.highest } else { span.highest };
            before = Some((cluster, term, Span { highest: higher, ..*span }));
        } else {
            before = Some((cluster, term, *span));
        }
    }
}

/// Under a fence only its holder writes, and its first write has a term of its own: never one that was there under another fence.
fn stored(history: &History, report: &mut Report) {
    let mut fences: HashMap<(&str, u64), u64> = HashMap::new();
    let mut before: Option<(&str, u64, Version, usize)> = None;
    for (line, _, event) in history.events() {
        let Event::Stored { cluster, version, fence } = event else { continue };
        if let Some((_, held, old, earlier)) = before.filter(|(of, _, _, _)| of == cluster) {
            let (term, revision) = *version;
            if *version < old || revision < old.1 {
                let what = format!("the store has {version:?} after {old:?} (fences {fence} and {held})");
                report.violated(Promise::Fenced, [earlier, line], None, what);
            }
            let first = fences.get(&(cluster.as_str(), term)).copied().unwrap_or(*fence);
            if held == *fence && revision > old.1 && first != *fence {
                let what = format!(
                    "revision {revision} is of term {term}, which was there under fence {first}; it was written while {fence} led, \
                     after revision {}",
                    old.1
                );
                report.violated(Promise::Fenced, [earlier, line], None, what);
            }
        }
        if *fence != 0 {
            fences.entry((cluster, version.0)).or_insert(*fence);
        }
        before = Some((cluster, *fence, *version, line));
    }
    if before.is_none() {
        report.notes.push("no `stored` lines: P1 is seen only where a late write is built upon or shown".to_owned());
    }
}

fn readers(history: &History, report: &mut Report) {
    let mut seen: HashMap<&str, (&str, Version, usize)> = HashMap::new();
    let mut left: HashMap<(&str, &str), usize> = HashMap::new();
    for (line, _, event) in history.events() {
        let Event::Seen { reader, cluster, version, .. } = event else { continue };
        if let Some((of, before, earlier)) = seen.get(reader.as_str()).copied() {
            if of == cluster && *version < before {
                let what = format!("{reader} shows {version:?} after {before:?}");
                report.violated(Promise::ReadersNeverGoBack, [earlier, line], None, what);
            }
            if of != cluster {
                left.insert((reader, of), earlier);
                if let Some(earlier) = left.get(&(reader.as_str(), cluster.as_str())) {
                    let what = format!("{reader} returns to cluster {cluster}, which it left");
                    report.violated(Promise::ReadersNeverGoBack, [*earlier, line], None, what);
                }
            }
        }
        seen.insert(reader, (cluster, *version, line));
    }
    if seen.is_empty() {
        report.not_measured.push("P7: no reader saw a table".to_owned());
    }
}

/// One version has one content.
fn contents(history: &History, report: &mut Report) {
    type Owners = Vec<(u32, Option<String>, u64)>;
    let mut owners: HashMap<(&str, Version), (&Owners, usize)> = HashMap::new();
    let mut unowned: HashMap<(&str, Version), (u64, usize)> = HashMap::new();
    for (line, _, event) in history.events() {
        match event {
            Event::State { cluster, version, owners: these, .. } => {
                let (first, at) = *owners.entry((cluster, *version)).or_insert((these, line));
                if first != these {
                    let what = format!("the state of {version:?} was told in two ways");
                    report.violated(Promise::DurableBeforeVisible, [at, line], None, what);
                }
            }
            Event::Seen { cluster, version, unowned: Some(these), reader } => {
                let (first, at) = *unowned.entry((cluster, *version)).or_insert((*these, line));
                if first != *these {
                    let what =
                        format!("{reader} sees {these} shards without an owner at {version:?}, and another reader {first}");
                    report.violated(Promise::DurableBeforeVisible, [at, line], None, what);
                }
            }
            _ => {}
        }
    }
}
