//! What is written down while a run goes on: lines of JSON, of several parties in several files, which become one.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

/// A file of one process. Each line is written whole by one system call: a process that is killed leaves what it had said.
#[derive(Clone)]
pub struct Part(Arc<Mutex<File>>);

/// Nanoseconds of CLOCK_BOOTTIME, by which all parties compare.
pub fn now_ns() -> u64 {
    u64::try_from(shard_manager::clock::now().0.as_nanos()).unwrap()
}

impl Part {
    /// A new one.
    pub fn create(path: &Path) -> Part {
        let file = File::options().create_new(true).append(true).open(path);
        Part(Arc::new(Mutex::new(file.unwrap_or_else(|error| panic!("{}: {error}", path.display())))))
    }

    /// Notes an event with its fields, as of now; `by` says whose word it is.
    pub fn note(&self, by: &str, event: &str, fields: Value) {
        self.note_while(by, event, || fields);
    }

    /// The same, with fields that come of something which nobody else of this process does meanwhile.
    pub fn note_while(&self, by: &str, event: &str, act: impl FnOnce() -> Value) {
        let file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fields = act();
        append(&file, now_ns(), by, event, fields);
    }

    /// The same, of an event that somebody else has given a time.
    pub fn note_at(&self, at_ns: u64, by: &str, event: &str, fields: Value) {
        append(&self.0.lock().unwrap_or_else(PoisonError::into_inner), at_ns, by, event, fields);
    }
}

fn append(mut file: &File, at_ns: u64, by: &str, event: &str, fields: Value) {
    let mut line = fields;
    line["at_ns"] = at_ns.into();
    line["by"] = by.into();
    line["event"] = event.into();
    let mut bytes = serde_json::to_vec(&line).unwrap();
    bytes.push(b'\n');
    assert_eq!(file.write(&bytes).unwrap(), bytes.len(), "a line of the history was cut off");
}

/// Where the parts of a run lie.
pub fn parts(directory: &Path) -> PathBuf {
    directory.join("parts")
}

/// Lines of a part that are whole.
pub fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Puts all parts together, in the order of their times; the line `run` comes first. A part whose last line was cut off is a gap.
pub fn merge(directory: &Path) -> (PathBuf, Vec<Value>) {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(parts(directory)).unwrap() {
        let path = entry.unwrap().path();
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        let mut last = 0;
        for line in text.lines() {
            if let Ok(value) = serde_json::from_str::<Value>(line) {
                last = at_ns(&value);
                all.push(value);
            } else {
                let party = path.file_stem().unwrap_or_default().to_string_lossy();
                let why = "a line was cut off";
                all.push(json!({"at_ns": last, "by": "program", "event": "gap", "party": party, "from_ns": last, "to_ns": last, "why": why}));
            }
        }
    }
    all.sort_by_key(|line| (line["event"] != "run", at_ns(line)));
    let path = directory.join("history.jsonl");
    let mut file = BufWriter::new(File::create(&path).unwrap());
    for line in &all {
        writeln!(file, "{line}").unwrap();
    }
    file.flush().unwrap();
    (path, all)
}

fn at_ns(line: &Value) -> u64 {
    line["at_ns"].as_u64().unwrap_or(0)
}
