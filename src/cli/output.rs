//! Results to standard output, everything else to standard error; neither may bring the process down by being closed.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use comfy_table::{Table, presets};
use serde::Serialize;

pub(super) use crate::backend::with_causes;

/// Whether results are for people or for programs.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Format {
    /// Print JSON for programs instead of text for people
    #[arg(long)]
    pub(super) json: bool,
}

/// Prints a result. A reader that went away, as `head` does, has what it wanted: that is no failure.
pub(super) fn print(text: &str) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        result => result.map(|()| ExitCode::SUCCESS),
    }
}

/// Prints a result as JSON.
pub(super) fn print_json(value: &impl Serialize) -> io::Result<ExitCode> {
    print(&json(value)?)
}

/// As programs get it.
pub(super) fn json(value: &impl Serialize) -> io::Result<String> {
    Ok(serde_json::to_string(value)?)
}

/// Says something to whoever watches. Nobody may.
pub(super) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Whether standard error takes colours: a terminal, unless `NO_COLOR` says otherwise.
pub(super) fn takes_colours() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Standard error for log lines. `tracing-subscriber` reports a failed write by `eprintln!`, which panics where standard error is
/// closed; here a failed write is swallowed.
#[derive(Default)]
pub(super) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().lock().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A table with these headings, aligned by spaces.
pub(super) fn table<const N: usize>(headings: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headings);
    table
}

/// Names and values, one pair per line.
pub(super) fn pairs(pairs: impl IntoIterator<Item = (String, String)>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.add_rows(pairs.into_iter().map(|(name, value)| [name, value]));
    text(&table)
}

/// The table as lines without blanks at their ends or a margin before them.
pub(super) fn text(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned()).collect();
    lines.join("\n")
}
