//! What a run of `make bench` found, as `bench.json` keeps it, and the page that is made from that and from nothing else: so the two
//! cannot disagree, and a test sees to it that the page was made anew.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Everything one run found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub machine: Machine,
    pub figures: Vec<Figure>,
}

/// Where and with what it ran.
#[derive(Debug, Serialize, Deserialize)]
pub struct Machine {
    pub date: String,
    pub commit: String,
    pub processor: String,
    pub cores: usize,
    pub memory: String,
    pub kernel: String,
    /// What the directories of the stores lie on.
    pub disk: String,
    pub rustc: String,
    pub etcd: String,
    pub postgres: String,
    pub sqlite: String,
    /// Of one minute, when the run began and when it ended; the run's own work is part of the second.
    pub load: [f64; 2],
}

/// One thing that was measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figure {
    /// In one word or two.
    pub name: String,
    /// What was done, from which moment to which.
    pub how: String,
    /// Times in milliseconds; absent where only counts matter.
    pub measured: Option<Summary>,
    /// The least that it could have taken.
    pub floor: Option<Floor>,
    /// Median by median of the floor.
    pub ratio: Option<f64>,
    /// What it was to reach.
    pub reach: Vec<Reach>,
}

/// Times of many runs, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub runs: usize,
    pub min: f64,
    pub median: f64,
    pub p99: f64,
    pub max: f64,
}

/// See [`Figure::floor`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Floor {
    pub what: String,
    pub measured: Summary,
}

/// A bound, and what was found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reach {
    pub rule: String,
    pub at_most: f64,
    pub found: f64,
    pub met: bool,
}

impl Record {
    pub fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

impl Reach {
    /// Whether `found` is at most `at_most`.
    pub fn new(rule: impl Into<String>, at_most: f64, found: f64) -> Reach {
        let (at_most, found) = (rounded(at_most), rounded(found));
        Reach { rule: rule.into(), at_most, found, met: found <= at_most }
    }
}

impl Summary {
    /// Of at least one time.
    pub fn of(mut times: Vec<f64>) -> Summary {
        times.sort_by(f64::total_cmp);
        let rank = |share: f64| times[((times.len() as f64 * share).ceil() as usize).clamp(1, times.len()) - 1];
        let middle = times.len() / 2;
        let median = if times.len() % 2 == 1 { times[middle] } else { (times[middle - 1] + times[middle]) / 2.0 };
        let [min, median, p99, max] = [times[0], median, rank(0.99), times[times.len() - 1]].map(rounded);
        Summary { runs: times.len(), min, median, p99, max }
    }
}

impl Figure {
    pub fn new(name: &str, how: impl Into<String>) -> Figure {
        Figure { name: name.to_owned(), how: how.into(), measured: None, floor: None, ratio: None, reach: Vec::new() }
    }

    pub fn times(mut self, times: Vec<f64>) -> Figure {
        self.measured = Some(Summary::of(times));
        self
    }

    pub fn floor(mut self, what: &str, times: Vec<f64>) -> Figure {
        let measured = Summary::of(times);
        self.ratio = self.measured.map(|own| rounded(own.median / measured.median));
        self.floor = Some(Floor { what: what.to_owned(), measured });
        self
    }

    pub fn reach(mut self, rule: impl Into<String>, at_most: f64, found: f64) -> Figure {
        self.reach.push(Reach::new(rule, at_most, found));
        self
    }
}

/// To a tenth of a microsecond: what lies below is noise, and makes the file hard to read.
fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

/// `docs/performance.md`.
pub fn page(record: &Record) -> String {
    let mut page = String::from(HEAD);
    let machine = &record.machine;
    let [before, after] = machine.load;
    let rows = [
        ("date", machine.date.clone()),
        ("commit", machine.commit.clone()),
        ("processor", format!("{}, {} cores", machine.processor, machine.cores)),
        ("memory", machine.memory.clone()),
        ("kernel", machine.kernel.clone()),
        ("disk", machine.disk.clone()),
        ("rustc", machine.rustc.clone()),
        ("etcd", machine.etcd.clone()),
        ("PostgreSQL", machine.postgres.clone()),
        ("SQLite", machine.sqlite.clone()),
        ("load (1 min)", format!("{before} when it began, {after} when it ended, its own work included")),
    ];
    page.push_str("## The machine\n\n| | |\n| --- | --- |\n");
    for (name, value) in rows {
        line(&mut page, format_args!("| {name} | {value} |"));
    }

    page.push_str("\n## The figures\n\nTimes in milliseconds.\n\n");
    page.push_str("| figure | runs | median | p99 | max | floor, median | ratio | reached |\n");
    page.push_str("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n");
    for figure in &record.figures {
        let times = |value: fn(Summary) -> f64| figure.measured.map_or("–".to_owned(), |summary| number(value(summary)));
        let runs = figure.measured.map_or("–".to_owned(), |summary| summary.runs.to_string());
        let floor = figure.floor.as_ref().map_or("–".to_owned(), |floor| number(floor.measured.median));
        let ratio = figure.ratio.map_or("–".to_owned(), number);
        let met = match figure.reach.iter().filter(|reach| !reach.met).count() {
            _ if figure.reach.is_empty() => "–".to_owned(),
            0 => "yes".to_owned(),
            missed => format!("**no** ({missed} of {})", figure.reach.len()),
        };
        let (median, p99, max) = (times(|it| it.median), times(|it| it.p99), times(|it| it.max));
        line(&mut page, format_args!("| {} | {runs} | {median} | {p99} | {max} | {floor} | {ratio} | {met} |", figure.name));
    }
    for figure in &record.figures {
        line(&mut page, format_args!("\n### {}\n\n{}", figure.name, figure.how));
        if let Some(Floor { what, measured }) = &figure.floor {
            let (median, max) = (number(measured.median), number(measured.max));
            line(&mut page, format_args!("\nFloor: {what}. {} runs, median {median}, max {max}.", measured.runs));
        }
        if !figure.reach.is_empty() {
            page.push_str("\n| to reach | at most | found | |\n| --- | ---: | ---: | --- |\n");
        }
        for Reach { rule, at_most, found, met } in &figure.reach {
            let met = if *met { "reached" } else { "**missed**" };
            line(&mut page, format_args!("| {rule} | {} | {} | {met} |", number(*at_most), number(*found)));
        }
    }
    page.push_str(TAIL);
    page
}

/// One of the times of a figure.
type Pick = fn(Summary) -> f64;

/// What is compared between stores: a name for the row, that of the figures with their store left out, and which of their times.
const COMPARED: [(&str, &str, Pick); 5] = [
    ("a commit of one page, median", "a commit on {}", |it| it.median),
    ("the leader is asked to stop, until the next one serves, median", "hand-over on {}, asked for", |it| it.median),
    ("the same, max", "hand-over on {}, asked for", |it| it.max),
    ("the leader is killed, until the next one serves, median", "hand-over on {}, after a crash", |it| it.median),
    ("the same, max", "hand-over on {}, after a crash", |it| it.max),
];

/// Before and after the figures in `docs/choosing-a-store.md`.
const MARKS: [&str; 2] = ["<!-- figures: made by `make bench` -->\n", "<!-- end of figures -->\n"];

/// `docs/choosing-a-store.md` with the figures of this record between its marks.
pub fn choosing(record: &Record, page: &str) -> String {
    let mut figures = String::from("| milliseconds | SQLite | PostgreSQL | etcd |\n| --- | ---: | ---: | ---: |\n");
    for (row, name, value) in COMPARED {
        let found = ["SQLite", "PostgreSQL", "etcd"].map(|store| {
            let figure = record.figure(&name.replace("{}", store));
            figure.and_then(|figure| figure.measured).map_or("–".to_owned(), |summary| number(value(summary)))
        });
        line(&mut figures, format_args!("| {row} | {} |", found.join(" | ")));
    }
    between(page, MARKS, &figures)
}

/// A page with something else between its marks.
pub fn between(page: &str, marks: [&str; 2], text: &str) -> String {
    let (before, rest) = page.split_once(marks[0]).expect("the page has a mark where its figures begin");
    let (_, after) = rest.split_once(marks[1]).expect("the page has a mark where its figures end");
    format!("{before}{}{text}{}{after}", marks[0], marks[1])
}

pub fn line(page: &mut String, text: std::fmt::Arguments) {
    // Writing to a string does not fail.
    writeln!(page, "{text}").ok();
}

/// Three digits that mean something; counts as they are.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        _ if value.fract() == 0.0 => 0,
        small if small < 1.0 => 3,
        small if small < 10.0 => 2,
        small if small < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

const HEAD: &str = "# What was measured

Made by `make bench` from [bench.json](../bench.json); not to be edited. One run, on one machine, of the release build of the real binary, with
real servers of etcd and PostgreSQL, real files and executors built on the client library, all on loopback. A time says little without its machine, so each
has a *floor*: the least that the job could have taken, measured in the same run, alternating with the thing itself. The ratio of the medians is what
compares between machines.

";

const TAIL: &str = "
## What this does not show

- **A network.** Everything ran on one machine, over loopback. Each round trip to etcd costs more elsewhere, of floor and figure alike.
- **A cluster of etcd.** One server, without peers to agree with: three members make each write slower, of floor and figure alike.
- **Load of others.** Whatever else the machine did at that time is in the figures; the load says how much there was.
- **The work of executors.** Theirs did nothing with a shard. Starting and stopping real work comes on top of every move. In the figures with a
  thousand executors and more, one small server stands for all of them, and answers at once.
- **Cores.** What asks and what answers shared the machine's cores, and so did the floor. With more of them each gets more done a second; the ratio
  is what this says. Plans and tables are made on one core.
- **Memory under load.** It was looked at after everything had settled. While a million shards are granted at once it is more.
- **Readers far away.** The thousand watchers were one process that did nothing else.
- **A disk that waits.** Where fdatasync costs milliseconds, every commit does.
- **A bound.** The greatest of so many runs is what was seen, not what cannot be exceeded; bounds stand in [guarantees.md](guarantees.md#bounds), beside
  what was seen of each.

## Again

```sh
make bench                        # all of it, some twenty-five minutes; writes this page, bench.json, and the
                                  # figures of choosing-a-store.md and guarantees.md
BENCH_RUNS=5 make bench           # fewer runs: writes below target/bench/ alone
BENCH_ONLY=commits make bench     # some parts of: hand-over, crash, hang, managers, commits, idle, kill, executors,
                                  # registrations, handoff, watchers, tables, renewals, memory, cell, core, bounds
cargo bench --bench manager -- pages    # measures nothing: makes the pages anew from bench.json
```

CI asserts no time. It checks that this page is the one that bench.json makes.
";
