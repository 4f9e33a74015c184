//! A history as it lies in its file: JSON lines, written by several parties of one machine, compared by their clock.

use std::collections::BTreeMap;

use serde_json::Value;

/// (term, revision), compared in that order.
pub type Version = (u64, u64);

/// One executor's process, as the manager knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation {
    pub executor: String,
    pub number: u64,
}

/// What was asked of managers or executors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Write {
        shard: u32,
        key: String,
        value: String,
    },
    /// Of an operator: kind, of whom, and for moves which shards and where to.
    Admin {
        kind: String,
        executor: Option<String>,
        shards: Vec<u32>,
        to: Option<String>,
    },
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Acknowledged { version: Option<Version>, epoch: Option<u64>, executor: Option<String> },
    Refused,
    Unknown,
}

/// What the history says of the run as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    pub seed: u64,
    pub store: String,
    pub lease_ttl_ns: u64,
    pub margin_ns: u64,
    pub leader_ttl_ns: u64,
    pub number_of_shards: u32,
    pub bound_ns: u64,
    pub kinds_expected: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Run(Run),
    Start {
        who: Incarnation,
        shard: u32,
        epoch: u64,
    },
    Stopping {
        who: Incarnation,
        shard: u32,
        epoch: u64,
    },
    /// `stop` and `fenced`.
    Stop {
        who: Incarnation,
        shard: u32,
        epoch: u64,
    },
    Lease {
        who: Incarnation,
        until_ns: u64,
    },
    Joined {
        who: Incarnation,
        cluster: String,
    },
    Ended {
        who: Incarnation,
    },
    Registered {
        who: Incarnation,
        version: Option<Version>,
    },
    Written {
        who: Incarnation,
        shard: u32,
        epoch: u64,
        key: String,
        value: String,
    },
    StorageRefused {
        shard: u32,
        epoch: u64,
        seen: u64,
    },
    Ask {
        id: String,
        asked: Asked,
    },
    Outcome {
        id: String,
        outcome: Outcome,
    },
    State {
        cluster: String,
        version: Version,
        owners: Vec<(u32, Option<String>, u64)>,
        executors: BTreeMap<String, Vec<(String, u64)>>,
    },
    Seen {
        reader: String,
        cluster: String,
        version: Version,
        unowned: Option<u64>,
    },
    Stored {
        cluster: String,
        version: Version,
        fence: u64,
    },
    Scrape {
        manager: String,
        is_leader: bool,
        term: u64,
    },
    Silent {
        manager: String,
    },
    Fault {
        kind: String,
        target: String,
        begins: bool,
    },
    Phase {
        name: String,
    },
    Healed,
    Rest,
    Other,
    Gap {
        party: String,
        from_ns: u64,
        to_ns: u64,
        why: String,
    },
}

#[derive(Clone, Debug)]
pub struct Line {
    pub at_ns: u64,
    pub event: Event,
    pub text: String,
}

/// All lines, in the order of their time.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub lines: Vec<Line>,
    pub run: Run,
    /// Lines that are none, and why; and events that nobody here knows.
    pub unread: Vec<String>,
}

/// Lines that tell the same kind of thing, with where they stand.
pub type At<'a, T> = (usize, u64, T);

impl History {
    /// Reads a file's text. A line that was cut off, as a killed process leaves it, and one that nobody understands are told as unread.
    pub fn parse(text: &str) -> History {
        let mut history = History::default();
        let mut unknown: BTreeMap<String, u64> = BTreeMap::new();
        for (index, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            match serde_json::from_str::<Value>(text) {
                Err(error) => history.unread.push(format!("line {}: {error}: {}", index + 1, shortened(text))),
                Ok(value) => match read(&value) {
                    Ok(Some((at_ns, event))) => history.lines.push(Line { at_ns, event, text: text.to_owned() }),
                    Ok(None) => *unknown.entry(text_of(&value, "event").unwrap_or_default()).or_default() += 1,
                    Err(missing) => {
                        history.unread.push(format!("line {}: without a usable `{missing}`: {}", index + 1, shortened(text)));
                    }
                },
            }
        }
        history.lines.sort_by_key(|line| line.at_ns);
        history
            .unread
            .extend(unknown.into_iter().map(|(event, times)| format!("{times} lines with the unknown event `{event}`")));
        let run = history.lines.iter().find_map(|line| match &line.event {
            Event::Run(run) => Some(run.clone()),
            _ => None,
        });
        match run {
            Some(run) => history.run = run,
            None => history.unread.push("there is no `run` line: nothing is known of leases and bounds".to_owned()),
        }
        history
    }

    /// Every line, with its number in the order of time.
    pub fn events(&self) -> impl Iterator<Item = At<'_, &Event>> {
        self.lines.iter().enumerate().map(|(index, line)| (index, line.at_ns, &line.event))
    }

    /// When the last line was written.
    pub fn end_ns(&self) -> u64 {
        self.lines.last().map_or(0, |line| line.at_ns)
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(120).collect()
}

fn text_of(value: &Value, name: &str) -> Option<String> {
    match value.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The fields of one line; what is missing is named.
struct Fields<'a>(&'a Value);

type Missing = &'static str;

impl Fields<'_> {
    fn number(&self, name: Missing) -> Result<u64, Missing> {
        self.optional_number(name).ok_or(name)
    }

    /// Also where it was written as a string, as JSON has it of large numbers.
    fn optional_number(&self, name: Missing) -> Option<u64> {
        match self.0.get(name)? {
            Value::String(text) => text.parse().ok(),
            number => number.as_u64(),
        }
    }

    fn shard(&self) -> Result<u32, Missing> {
        self.number("shard").and_then(|shard| u32::try_from(shard).map_err(|_| "shard"))
    }

    fn text(&self, name: Missing) -> Result<String, Missing> {
        text_of(self.0, name).ok_or(name)
    }

    fn list(&self, name: Missing) -> &[Value] {
        self.0.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    fn who(&self) -> Result<Incarnation, Missing> {
        Ok(Incarnation { executor: self.text("executor")?, number: self.number("incarnation")? })
    }

    fn optional_version(&self) -> Option<Version> {
        Some((self.optional_number("term")?, self.optional_number("revision")?))
    }

    fn version(&self) -> Result<Version, Missing> {
        Ok((self.number("term")?, self.number("revision")?))
    }

    fn run(&self) -> Result<Run, Missing> {
        Ok(Run {
            seed: self.number("seed")?,
            store: self.text("store")?,
            lease_ttl_ns: self.number("lease_ttl_ns")?,
            margin_ns: self.number("margin_ns")?,
            leader_ttl_ns: self.number("leader_ttl_ns")?,
            number_of_shards: self.number("number_of_shards").and_then(|it| u32::try_from(it).map_err(|_| "number_of_shards"))?,
            bound_ns: self.number("bound_ns")?,
            kinds_expected: self.list("kinds_expected").iter().filter_map(|kind| kind.as_str().map(str::to_owned)).collect(),
        })
    }

    fn asked(&self) -> Result<Asked, Missing> {
        let kind = self.text("kind")?;
        if kind == "write" {
            return Ok(Asked::Write { shard: self.shard()?, key: self.text("key")?, value: self.text("value")? });
        }
        let shards = self.list("shards").iter().filter_map(|shard| u32::try_from(shard.as_u64()?).ok()).collect();
        Ok(Asked::Admin { kind, executor: self.text("executor").ok(), shards, to: self.text("to").ok() })
    }

    fn state(&self) -> Result<Event, Missing> {
        let owner = |entry: &Value| {
            let shard = u32::try_from(entry.get(0)?.as_u64()?).ok()?;
            Some((shard, entry.get(1)?.as_str().map(str::to_owned), entry.get(2)?.as_u64()?))
        };
        let mut executors: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
        for entry in self.list("executors") {
            let entry = Fields(entry);
            let (id, state) = (entry.text("executor")?, entry.text("state")?);
            executors.entry(id).or_default().push((state, entry.optional_number("incarnation").unwrap_or_default()));
        }
        Ok(Event::State {
            cluster: self.text("cluster_id")?,
            version: self.version()?,
            owners: self.list("owners").iter().filter_map(owner).collect(),
            executors,
        })
    }
}

/// `None` where nobody here knows the event.
fn read(value: &Value) -> Result<Option<(u64, Event)>, Missing> {
    let it = Fields(value);
    let at_ns = it.number("at_ns")?;
    let id = || it.text("id");
    let event = match it.text("event")?.as_str() {
        "run" => Event::Run(it.run()?),
        "start" => Event::Start { who: it.who()?, shard: it.shard()?, epoch: it.number("epoch")? },
        "stopping" => Event::Stopping { who: it.who()?, shard: it.shard()?, epoch: it.number("epoch")? },
        "stop" | "fenced" => Event::Stop { who: it.who()?, shard: it.shard()?, epoch: it.number("epoch")? },
        "lease" => Event::Lease { who: it.who()?, until_ns: it.number("until_ns")? },
        "joined" => Event::Joined { who: it.who()?, cluster: it.text("cluster_id")? },
        "ended" => Event::Ended { who: it.who()? },
        "registered" => Event::Registered { who: it.who()?, version: it.optional_version() },
        "written" => Event::Written {
            who: it.who()?,
            shard: it.shard()?,
            epoch: it.number("epoch")?,
            key: it.text("key")?,
            value: it.text("value")?,
        },
        "refused" => Event::StorageRefused { shard: it.shard()?, epoch: it.number("epoch")?, seen: it.number("seen")? },
        "ask" => Event::Ask { id: id()?, asked: it.asked()? },
        "acknowledged" => {
            let (version, epoch, executor) = (it.optional_version(), it.optional_number("epoch"), it.text("executor").ok());
            Event::Outcome { id: id()?, outcome: Outcome::Acknowledged { version, epoch, executor } }
        }
        "refused_ask" => Event::Outcome { id: id()?, outcome: Outcome::Refused },
        "unknown" => Event::Outcome { id: id()?, outcome: Outcome::Unknown },
        "state" => it.state()?,
        "seen" => Event::Seen {
            reader: it.text("reader")?,
            cluster: it.text("cluster_id")?,
            version: it.version()?,
            unowned: it.optional_number("unowned"),
        },
        "stored" => Event::Stored { cluster: it.text("cluster_id")?, version: it.version()?, fence: it.number("fence")? },
        "scrape" => {
            let term = it.optional_number("term").unwrap_or_default();
            Event::Scrape { manager: it.text("manager")?, is_leader: it.number("is_leader")? == 1, term }
        }
        "silent" => Event::Silent { manager: it.text("manager")? },
        "fault" => {
            let begins = match it.text("phase")?.as_str() {
                "begin" => true,
                "end" => false,
                _ => return Err("phase"),
            };
            Event::Fault { kind: it.text("kind")?, target: it.text("target").unwrap_or_default(), begins }
        }
        "phase" => Event::Phase { name: it.text("name")? },
        "healed" => Event::Healed,
        "rest" => Event::Rest,
        "gap" => Event::Gap {
            party: it.text("party")?,
            from_ns: it.number("from_ns")?,
            to_ns: it.number("to_ns")?,
            why: it.text("why").unwrap_or_default(),
        },
        // Of interest to people who read it.
        "began" | "exited" | "raised" | "superseded" => Event::Other,
        _ => return Ok(None),
    };
    Ok(Some((at_ns, event)))
}
