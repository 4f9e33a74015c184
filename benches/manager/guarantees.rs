//! The bounds of `docs/guarantees.md` beside the greatest that was seen: which figure stands for which row, and what the formula comes to
//! with the settings of the measurement.

use crate::page::{Figure, Record, between, line, number};

/// A row of the page's table of bounds.
#[derive(Debug)]
pub struct Row {
    /// What happened, as the page says it.
    pub what: &'static str,
    /// The formula, as the page says it.
    pub bound: &'static str,
    /// What the formula comes to, in milliseconds; where something is counted from, from there.
    pub ms: f64,
    /// By which figures it is measured.
    pub figures: &'static [&'static str],
    pub seen: Seen,
}

/// Where in a figure it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The longest of its times.
    Time,
    /// Executors that live kept working: [`DISTURBANCE`] is 0.
    Undisturbed,
}

/// What a figure of a hand-over calls the starts and stops that there should not have been.
pub const DISTURBANCE: &str = "starts and ends of work on a shard, as executors saw it";

/// The settings of the measurement, in milliseconds.
pub const LEASE: f64 = 2000.0;
const MARGIN: f64 = 120.0;
/// The longer L of who led before.
pub const LONGER_LEASE: f64 = 4000.0;
const LONGER_MARGIN: f64 = 140.0;
/// The L of a manager that is restarted: two thirds of it are a + r and almost a second more.
pub const RESTART_LEASE: f64 = 6000.0;
pub const SETTLE: f64 = 500.0;
/// `leadership.lease_ttl`.
pub const TTL: f64 = 2000.0;
pub const GRACE: f64 = 1000.0;
/// How long an executor takes to stop a shard, where that is measured.
pub const STOPPING: f64 = 200.0;
/// An executor's longest attempt, and the pause after it.
const ATTEMPT: f64 = LEASE / 3.0 + LEASE / 6.0;
/// What one commit and one round trip are allowed on a machine that does other things too.
pub const C: f64 = 50.0;
const R: f64 = 50.0;

/// In the page's order, all of them.
pub const ROWS: [Row; 22] = [
    time("an executor dies", "L + m + c + r, from its last renewal", LEASE + MARGIN + C + R, &["an executor dies"]),
    time(
        "it dies, and restarts at the same IP address and port",
        "c + r, from its registration",
        C + R,
        &["without an owner: restart in place"],
    ),
    time(
        "it dies, and restarts elsewhere under the same id, or advertises a name",
        "L + m + c + r, from the old process's last renewal",
        LEASE + MARGIN + C + R,
        &["without an owner: restart elsewhere"],
    ),
    time(
        "the same, with `executors.exclusive_ids = true`",
        "c + r, from its registration",
        C + R,
        &["without an owner: restart elsewhere, exclusive ids"],
    ),
    time(
        "it is restarted over and over",
        "L + m + c + r, from the last renewal before the fourth restart in a row",
        LEASE + MARGIN + C + R,
        &["without an owner: restarts over and over"],
    ),
    time(
        "the planner moves a shard, or a drain does",
        "stopping time of the shard + 2 c + 2 r",
        STOPPING + 2.0 * C + 2.0 * R,
        &["without an owner: shards move"],
    ),
    time(
        "the old owner does not stop it",
        "L + m + c + r, from the release",
        LEASE + MARGIN + C + R,
        &["without an owner: the old owner does not stop"],
    ),
    time(
        "the new owner does not start it",
        "L + m + 2 c + 2 r more, then another owner",
        LEASE + MARGIN + 4.0 * C + 4.0 * R,
        &["without an owner: the new owner does not start"],
    ),
    time(
        "new executors come to an empty cluster",
        "S + c + r, from the first one's registration",
        SETTLE + C + R,
        &["without an owner: an empty cluster"],
    ),
    time(
        "the manager is restarted",
        "0 for executors that live, while two thirds of L are above restart + a + r",
        0.0,
        &["without an owner: the manager restarts"],
    ),
    time(
        "the manager is away until leases have run out",
        "a + r, from the next leader's open port",
        ATTEMPT + R,
        &["without an owner: the manager was away"],
    ),
    undisturbed(
        "the leader is asked to stop, on etcd",
        "0 for executors that live; their calls wait for the hand-over",
        &["hand-over on etcd, asked for"],
    ),
    undisturbed(
        "the leader crashes, on etcd",
        "0 for executors that live, while two thirds of L are above T + 2s",
        &["hand-over on etcd, after a crash"],
    ),
    undisturbed(
        "the leader is asked to stop, on PostgreSQL",
        "0 for executors that live; their calls wait for the hand-over",
        &["hand-over on PostgreSQL, asked for"],
    ),
    undisturbed(
        "the leader crashes, on PostgreSQL",
        "0 for executors that live, while two thirds of L are above T + 2s",
        &["hand-over on PostgreSQL, after a crash"],
    ),
    undisturbed(
        "the leader crashes or stops, beside a standby on SQLite",
        "0 for executors that live; their calls wait for the hand-over",
        &["hand-over on SQLite, asked for", "hand-over on SQLite, after a crash"],
    ),
    undisturbed(
        "the leader hangs, beside a standby on SQLite",
        "0 for executors that live, while two thirds of L are above `leadership.host.grace` + 2s",
        &["hand-over on SQLite, after a hang"],
    ),
    time(
        "an executor dies while the manager is away",
        "L + m + c + r, from the next leader's open port",
        LEASE + MARGIN + C + R,
        &["without an owner: died while the manager was away"],
    ),
    time(
        "the same on PostgreSQL, where the leader before did not give the leadership up",
        "L + m + T + c + r, from the next leader's open port",
        LEASE + MARGIN + TTL + C + R,
        &["without an owner: died while PostgreSQL's leader was away"],
    ),
    time(
        "the same on one host, where the leader before was deposed alive",
        "L + m + `leadership.host.grace` + c + r, from the next leader's open port",
        LEASE + MARGIN + GRACE + C + R,
        &["without an owner: died while the leader hung"],
    ),
    time(
        "the same, after L was made shorter",
        "the longer L + its m + c + r, from the next leader's open port",
        LONGER_LEASE + LONGER_MARGIN + C + R,
        &["without an owner: died before L was made shorter"],
    ),
    time(
        "the store was wiped under running executors",
        "L + m + S + c + r, from the first executor that comes from the old cluster",
        LEASE + MARGIN + SETTLE + C + R,
        &["without an owner: the store was wiped"],
    ),
];

const fn time(what: &'static str, bound: &'static str, ms: f64, figures: &'static [&'static str]) -> Row {
    Row { what, bound, ms, figures, seen: Seen::Time }
}

const fn undisturbed(what: &'static str, bound: &'static str, figures: &'static [&'static str]) -> Row {
    Row { what, bound, ms: 0.0, figures, seen: Seen::Undisturbed }
}

/// Where the figures begin in `docs/guarantees.md`, and where they end.
const MARKS: [&str; 2] = ["<!-- measured bounds: made by `make bench` -->\n", "<!-- end of measured bounds -->\n"];

/// `docs/guarantees.md` with what this record saw between its marks.
pub fn guarantees(record: &Record, page: &str) -> String {
    let mut table =
        String::from("| what happened | bound | here, in ms | greatest seen | runs |\n| --- | --- | ---: | ---: | ---: |\n");
    for row in &ROWS {
        let figures: Option<Vec<&Figure>> = row.figures.iter().map(|name| record.figure(name)).collect();
        let (seen, runs) = match figures {
            Some(figures) => (seen(row, &figures), runs(&figures).to_string()),
            None => ("not measured yet".to_owned(), "–".to_owned()),
        };
        line(&mut table, format_args!("| {} | {} | {} | {seen} | {runs} |", row.what, row.bound, number(row.ms)));
    }
    between(page, MARKS, &table)
}

fn runs(figures: &[&Figure]) -> usize {
    figures.iter().filter_map(|figure| figure.measured).map(|summary| summary.runs).sum()
}

/// What stands in the table for it; bold where it is above the bound.
fn seen(row: &Row, figures: &[&Figure]) -> String {
    let longest = match row.seen {
        Seen::Time => figures.iter().filter_map(|figure| figure.measured).map(|summary| summary.max).fold(0.0, f64::max),
        Seen::Undisturbed => {
            let disturbances = figures.iter().flat_map(|figure| &figure.reach).filter(|reach| reach.rule == DISTURBANCE);
            let found: f64 = disturbances.map(|reach| reach.found).sum();
            return if found == 0.0 { "0".to_owned() } else { format!("**{} starts and stops**", number(found)) };
        }
    };
    if longest > row.ms { format!("**{}**", number(longest)) } else { number(longest) }
}

/// The row that a figure stands for.
pub fn row_of(figure: &str) -> &'static Row {
    let row = ROWS.iter().find(|row| row.figures.contains(&figure));
    row.unwrap_or_else(|| panic!("no bound is measured by {figure:?}"))
}
