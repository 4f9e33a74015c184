//! `make bench`: what the real binary takes, against the least that the same job could have taken in the same run.
//!
//! Writes `bench.json`, `docs/performance.md` and the figures in `docs/choosing-a-store.md` and `docs/guarantees.md`; with `BENCH_RUNS` or `BENCH_ONLY` only
//! below `target/bench/`, because a page that tells of half a run misleads. Nothing here asserts a time.
#![allow(clippy::unwrap_used)]

mod bare;
mod bounds;
mod cell;
mod cluster;
mod commits;
mod core;
mod crowd;
mod guarantees;
mod handover;
mod host;
mod memory;
mod moves;
mod page;
mod rolling;
mod serving;
mod site;
#[path = "../../tests/support/mod.rs"]
mod support;
mod trial;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::page::{Figure, Machine, Record};
use crate::site::Ground;
use crate::support::etcd::Etcd;
use crate::support::postgres::Postgres;

/// Hand-overs of each kind in a whole run.
const RUNS: usize = 50;
/// How long an idle cluster is looked at in a whole run.
const IDLE: Duration = Duration::from_secs(60);
const PARTS: [&str; 17] = [
    "hand-over",
    "crash",
    "hang",
    "managers",
    "commits",
    "idle",
    "kill",
    "executors",
    "registrations",
    "handoff",
    "watchers",
    "tables",
    "renewals",
    "memory",
    "cell",
    "core",
    "bounds",
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, argument, directory, address] = &arguments[..]
        && argument == bare::ARGUMENT
    {
        return bare::serve(Path::new(directory), address.parse().unwrap());
    }
    if arguments.iter().any(|argument| argument == PAGES) {
        return write_pages(&serde_json::from_str(&fs::read_to_string(place("bench.json", true)).unwrap()).unwrap(), true);
    }
    let runs = std::env::var("BENCH_RUNS").map_or(RUNS, |runs| runs.parse().expect("BENCH_RUNS takes a number above 0"));
    let only = std::env::var("BENCH_ONLY").unwrap_or_default();
    let only: Vec<&str> = only.split(',').filter(|part| !part.is_empty()).collect();
    for part in &only {
        assert!(PARTS.contains(part), "BENCH_ONLY takes some of {PARTS:?}, not {part:?}");
    }
    let is_whole = only.is_empty() && runs >= RUNS;
    let parts = PARTS.into_iter().filter(|part| only.is_empty() || only.contains(part));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let record = runtime.block_on(run(parts, runs));

    fs::create_dir_all(scratch()).unwrap();
    let json = place("bench.json", is_whole);
    fs::write(&json, serde_json::to_string_pretty(&record).unwrap() + "\n").unwrap();
    write_pages(&record, is_whole);
    println!("{}\nwritten to {}", page::page(&record), json.parent().unwrap().display());
}

/// As an argument: measures nothing, and makes the pages anew from bench.json, after a change to what makes them.
const PAGES: &str = "pages";

/// Makes a page out of a record, and of the page as it was.
type Make = fn(&Record, &str) -> String;

/// Every page that has figures.
fn write_pages(record: &Record, is_whole: bool) {
    let make: [(&str, Make); 3] = [
        ("docs/performance.md", |record, _| page::page(record)),
        ("docs/choosing-a-store.md", page::choosing),
        ("docs/guarantees.md", guarantees::guarantees),
    ];
    for (file, make) in make {
        let before = fs::read_to_string(place(file, true)).unwrap();
        fs::write(place(file, is_whole), make(record, &before)).unwrap();
    }
}

/// Where a file is written to: to its own place only from a whole run.
fn place(file: &str, is_whole: bool) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    if is_whole { repository.join(file) } else { scratch().join(Path::new(file).file_name().unwrap()) }
}

fn scratch() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench")
}

async fn run(parts: impl Iterator<Item = &'static str>, runs: usize) -> Record {
    let before = load();
    let mut figures: Vec<Figure> = Vec::new();
    for part in parts {
        eprintln!("{part} ...");
        figures.extend(match part {
            "hand-over" => {
                let [etcd, postgres, host] = grounds().await;
                vec![
                    handover::graceful(etcd, runs).await,
                    handover::graceful(postgres, runs).await,
                    handover::graceful(host, runs).await,
                ]
            }
            "crash" => {
                let [etcd, postgres, host] = grounds().await;
                vec![handover::crash(etcd, runs).await, handover::crash(postgres, runs).await, handover::crash(host, runs).await]
            }
            "hang" => vec![handover::hang(runs.min(20)).await],
            "commits" => commits::all().await,
            "idle" => vec![handover::idle(if runs < RUNS { IDLE / 10 } else { IDLE }).await],
            "cell" => cell::all(),
            "managers" => rolling::managers(runs.min(RUNS).div_ceil(10)).await,
            "kill" => host::kill(runs).await,
            "executors" => rolling::executors(runs.min(RUNS).div_ceil(10)).await,
            "registrations" => host::registrations(runs.min(10)).await,
            "handoff" => moves::handoff(runs).await,
            "watchers" => moves::watchers(runs).await,
            "tables" => serving::tables(runs.min(10)).await,
            "renewals" => serving::renewals(runs.min(10)).await,
            "memory" => memory::all().await,
            "bounds" => bounds::all(runs).await,
            _ => core::all(),
        });
    }
    let machine = Machine {
        date: output("date", &["--utc", "+%F %H:%M UTC"]),
        commit: output("git", &["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"]),
        processor: field("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().unwrap().get(),
        memory: memory(),
        kernel: output("uname", &["-sr"]),
        disk: output("findmnt", &["--noheadings", "--output", "FSTYPE", "--target", &std::env::temp_dir().to_string_lossy()]),
        rustc: output("rustc", &["--version"]),
        etcd: etcd_version(),
        postgres: output(support::postgres::program("postgres"), &["--version"]).replace("postgres (PostgreSQL) ", ""),
        sqlite: commits::sqlite_version().await,
        load: [before, load()],
    };
    Record { machine, figures }
}

async fn grounds() -> [Ground; 3] {
    [Ground::Etcd(Etcd::single().await), Ground::Postgres(Postgres::start().await), Ground::Host]
}

/// The first line that a program says; a word of excuse where there is none.
fn output(program: impl AsRef<OsStr>, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let said = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let first = said.as_deref().and_then(|said| said.lines().next()).unwrap_or_default().trim().to_owned();
    if first.is_empty() { "not known".to_owned() } else { first }
}

/// Of the server that was measured.
fn etcd_version() -> String {
    let program = std::env::var_os("ETCD_BIN_DIR").map_or("etcd".into(), |directory| PathBuf::from(directory).join("etcd"));
    let said = output(&program, &["--version"]);
    said.trim_start_matches("etcd Version:").trim().to_owned()
}

/// From a file of lines `name : value`.
fn field(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let value = text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name);
    value.map_or("not known".to_owned(), |(_, value)| value.trim().to_owned())
}

fn memory() -> String {
    let kilobytes = field("/proc/meminfo", "MemTotal");
    let number: Option<f64> = kilobytes.strip_suffix(" kB").and_then(|number| number.parse().ok());
    number.map_or(kilobytes, |number| format!("{:.1} GiB", number / 1024.0 / 1024.0))
}

/// The mean of one minute.
fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default()
}
