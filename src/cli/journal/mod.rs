//! What an executor writes down about itself, and the command that reads it: proof or disproof that ownership did not overlap.
//!
//! A journal is a file of JSON lines, appended, each written whole by one system call before the session goes on:
//!
//! - `{"at_ns","event":"begin","executor","incarnation"}` once for each incarnation, before the manager hears of it;
//! - `{"at_ns","event","executor","incarnation","shard","epoch"}` with event `start` (before work on a shard begins), `stop` or `fenced`
//!   (after it ended, before anybody is told);
//! - `{"at_ns","event":"lease","executor","incarnation","until_ns"}` for each lease granted or renewed.
//!
//! `at_ns` and `until_ns` are nanoseconds of CLOCK_BOOTTIME: journals of several processes on one machine compare.
//!
//! One process writes a journal at a time. A process that is started in the place of another that is gone may go on with its file, and
//! should: that is how a reader learns that the old one held nothing any more, see [`check`].

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::output;
use crate::client::{Happening, ObserverError, SessionEvent, SessionObserver};
use crate::types::{BootInstant, Epoch, MAX_SHARDS, ShardId};

pub mod check;

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When.
    pub at_ns: u64,
    /// What.
    #[serde(flatten)]
    pub entry: Entry,
    /// Who.
    pub executor: String,
    /// Which process.
    pub incarnation: u64,
}

/// See [`Line::entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Entry {
    /// This incarnation is about to register for the first time, and works on nothing.
    Begin,
    /// Work on a shard is about to begin.
    Start {
        /// Which.
        shard: u32,
        /// With this fencing token.
        epoch: u64,
    },
    /// It ended.
    Stop {
        /// Which.
        shard: u32,
        /// With this fencing token.
        epoch: u64,
    },
    /// It was ended because its lease ran out.
    Fenced {
        /// Which.
        shard: u32,
        /// With this fencing token.
        epoch: u64,
    },
    /// A lease was granted or renewed.
    Lease {
        /// It ends then.
        until_ns: u64,
    },
}

impl Line {
    /// The line that an event makes, if it makes one.
    pub fn of(event: &SessionEvent) -> Option<Line> {
        let numbers = |(ShardId(shard), Epoch(epoch)): (ShardId, Epoch)| (shard, epoch);
        let entry = match event.what {
            Happening::Started(shard, epoch) => {
                let (shard, epoch) = numbers((shard, epoch));
                Entry::Start { shard, epoch }
            }
            Happening::Stopped(shard, epoch) => {
                let (shard, epoch) = numbers((shard, epoch));
                Entry::Stop { shard, epoch }
            }
            Happening::Fenced(shard, epoch) => {
                let (shard, epoch) = numbers((shard, epoch));
                Entry::Fenced { shard, epoch }
            }
            Happening::Began => Entry::Begin,
            Happening::Leased { until } => Entry::Lease { until_ns: nanoseconds(until) },
            Happening::Joined { .. } | Happening::Superseded => return None,
        };
        let (executor, incarnation) = (event.executor_id.to_string(), event.incarnation.0);
        Some(Line { at_ns: nanoseconds(event.at), entry, executor, incarnation })
    }

    /// Whether it says something about a shard: leases alone prove nothing.
    pub fn is_about_a_shard(&self) -> bool {
        !matches!(self.entry, Entry::Begin | Entry::Lease { .. })
    }
}

fn nanoseconds(instant: BootInstant) -> u64 {
    u64::try_from(instant.0.as_nanos()).unwrap_or(u64::MAX)
}

/// Appends to a journal what a session does.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
}

/// A line that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to the journal {}", path.display())]
pub struct WriteError {
    /// Which journal.
    path: PathBuf,
    source: io::Error,
}

impl Writer {
    /// Opens a journal, or makes one. A last line that was cut off by a crash is ended, so that the next one stands alone.
    pub fn open(path: &Path) -> io::Result<Writer> {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        let content_length = file.metadata()?.len();
        if content_length > 0 && !ends_with_newline(path, content_length)? {
            file.write_all(b"\n")?;
        }
        Ok(Writer { path: path.to_owned(), file })
    }

    fn append(&mut self, line: &Line) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        match self.file.write(&bytes)? {
            written if written == bytes.len() => Ok(()),
            written => Err(io::Error::other(format!("only {written} of {} bytes were taken", bytes.len()))),
        }
    }
}

fn ends_with_newline(path: &Path, length: u64) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let mut last = [0];
    File::open(path)?.read_exact_at(&mut last, length - 1)?;
    Ok(last == *b"\n")
}

impl SessionObserver for Writer {
    fn observe(&mut self, event: &SessionEvent) -> Result<(), ObserverError> {
        if let Some(line) = Line::of(event) {
            self.append(&line).map_err(|source| WriteError { path: self.path.clone(), source })?;
        }
        Ok(())
    }
}

/// Reads the journals of executors and says whether two of them owned one shard at one time.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The journals, of all processes that took part.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// How many shards there are: one that was never owned is a violation. Default: only shards that are named are looked at.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SHARDS)))]
    pub number_of_shards: Option<u32>,
    /// A shard without an owner for longer than this is a violation.
    #[arg(long, value_name = "MS")]
    pub at_most_unowned: Option<u64>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// Runs `journal check`: exit code 0 where nothing is wrong, 1 where something is or nothing says anything about a shard, 2 where a journal
/// cannot be read.
pub fn run(arguments: &Arguments) -> ExitCode {
    let rules = check::Rules {
        number_of_shards: arguments.number_of_shards,
        at_most_unowned: arguments.at_most_unowned.map(Duration::from_millis),
    };
    let journals = match check::read(&arguments.files) {
        Ok(journals) => journals,
        Err(error) => {
            output::say(&format!("error: {error}"));
            return ExitCode::from(2);
        }
    };
    for (path, journal) in arguments.files.iter().zip(&journals) {
        if !journal.iter().any(Line::is_about_a_shard) {
            output::say(&format!("note: {} has no event of any shard", path.display()));
        }
    }
    if !journals.iter().flatten().any(Line::is_about_a_shard) {
        output::say("error: nothing to check: the journals have no event of any shard");
        return ExitCode::from(1);
    }
    let report = check::check(&journals, rules);
    let text = if arguments.json {
        serde_json::to_string_pretty(&report).map(|json| json + "\n").map_err(io::Error::from)
    } else {
        Ok(report.to_string())
    };
    if let Err(error) = text.and_then(|text| io::stdout().write_all(text.as_bytes())) {
        output::say(&format!("error: cannot write the report: {error}"));
        return ExitCode::from(2);
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::types::Incarnation;

    fn event(at: u64, what: Happening) -> SessionEvent {
        let at = BootInstant(Duration::from_nanos(at));
        SessionEvent { at, executor_id: "e".parse().unwrap(), incarnation: Incarnation(u64::MAX), what }
    }

    #[test]
    fn what_is_written_is_one_json_line_per_event_and_reads_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let mut writer = Writer::open(&path).unwrap();
        writer.observe(&event(0, Happening::Began)).unwrap();
        writer.observe(&event(1, Happening::Leased { until: BootInstant(Duration::from_nanos(90)) })).unwrap();
        writer.observe(&event(2, Happening::Started(ShardId(3), Epoch(4)))).unwrap();
        writer.observe(&event(5, Happening::Superseded)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = [
            r#"{"at_ns":0,"event":"begin","executor":"e","incarnation":18446744073709551615}"#,
            r#"{"at_ns":1,"event":"lease","until_ns":90,"executor":"e","incarnation":18446744073709551615}"#,
            r#"{"at_ns":2,"event":"start","shard":3,"epoch":4,"executor":"e","incarnation":18446744073709551615}"#,
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);

        // A killed process left half a line; the next one appends to the same file.
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        let mut writer = Writer::open(&path).unwrap();
        writer.observe(&event(6, Happening::Stopped(ShardId(3), Epoch(4)))).unwrap();
        let entries: Vec<Entry> = check::read(&[path]).unwrap().concat().into_iter().map(|line| line.entry).collect();
        assert_eq!(entries, [Entry::Begin, Entry::Lease { until_ns: 90 }, Entry::Stop { shard: 3, epoch: 4 }]);
    }

    #[test]
    fn journals_without_any_event_of_a_shard_are_no_proof() {
        let directory = tempfile::tempdir().unwrap();
        let (empty, idle, busy) = (directory.path().join("empty"), directory.path().join("idle"), directory.path().join("busy"));
        std::fs::write(&empty, "").unwrap();
        let mut writer = Writer::open(&idle).unwrap();
        writer.observe(&event(1, Happening::Leased { until: BootInstant(Duration::from_nanos(90)) })).unwrap();
        std::fs::copy(&idle, &busy).unwrap();
        Writer::open(&busy).unwrap().observe(&event(2, Happening::Started(ShardId(3), Epoch(4)))).unwrap();
        let check = |files: &[&PathBuf]| {
            let files = files.iter().copied().cloned().collect();
            run(&Arguments { files, number_of_shards: None, at_most_unowned: None, json: false })
        };
        assert_eq!(check(&[&empty]), ExitCode::from(1));
        assert_eq!(check(&[&empty, &idle]), ExitCode::from(1));
        assert_eq!(check(&[&empty, &idle, &busy]), ExitCode::SUCCESS);
    }

    #[test]
    fn a_line_that_cannot_be_written_is_an_error() {
        let mut writer = Writer::open(Path::new("/dev/full")).unwrap();
        let error = writer.observe(&event(1, Happening::Started(ShardId(3), Epoch(4)))).unwrap_err();
        assert_eq!(error.to_string(), "cannot write to the journal /dev/full");
    }
}
