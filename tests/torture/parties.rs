//! Replicas and executors: processes that are ended in many ways, and started again for as long as they are wanted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::child::{self, Role};
use crate::executor::SUPERSEDED;
use crate::history::{Part, lines, parts};
use crate::link::Link;
use crate::process::Process;
use crate::support::free_address;

/// Between the end of a process that ended unasked and its next start, as a service manager pauses.
const PAUSE: Duration = Duration::from_millis(300);

/// What all parties share.
pub struct Stage {
    pub directory: PathBuf,
    pub program: Part,
    /// gRPC of every replica.
    pub managers: Vec<SocketAddr>,
    pub storage: SocketAddr,
    pub seed: u64,
    /// How many executors' processes there were.
    pub started: usize,
    /// Ends that no process should come to, and how often each was.
    pub odd_ends: BTreeMap<String, usize>,
}

impl Stage {
    /// Somebody's process has ended: noted, and remembered where it should not have ended so.
    fn ended(&mut self, party: &str, status: ExitStatus, was_asked: bool, fine: &[i32]) {
        use std::os::unix::process::ExitStatusExt;
        let (code, signal) = (status.code(), status.signal());
        self.program.note("program", "exited", json!({"party": party, "code": code, "signal": signal, "asked": was_asked}));
        // Processes are killed by the nemesis, and a leader that hangs by a standby.
        let is_fine = match code {
            Some(0) => was_asked,
            Some(code) => fine.contains(&code),
            // One that has just begun does not listen to SIGTERM and SIGINT yet.
            None => signal == Some(9) || (was_asked && matches!(signal, Some(2 | 15))),
        };
        if !is_fine {
            let asked = if was_asked { "asked to" } else { "unasked" };
            let end = format!("{party} ended with {status}, {asked}: {}", self.last_words(party));
            self.odd_end(end);
        }
    }

    /// What should not be.
    pub fn odd_end(&mut self, what: String) {
        *self.odd_ends.entry(what).or_default() += 1;
    }

    /// The last line of a party's log: of a manager, the error that it ended with.
    fn last_words(&self, party: &str) -> String {
        let log = std::fs::read(self.directory.join(format!("{party}.log"))).unwrap_or_default();
        let words = String::from_utf8_lossy(&log).lines().rfind(|line| !line.trim().is_empty()).map(str::to_owned);
        words.unwrap_or_else(|| "no log".to_owned())
    }
}

/// A manager's process, behind a link of its own to the store.
pub struct Replica {
    pub name: String,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub store: Link,
    pub wanted: bool,
    settings: Vec<String>,
    process: Option<Process>,
    was_asked: bool,
    not_before: Instant,
}

impl Replica {
    /// Not started yet.
    pub fn new(name: String, grpc: SocketAddr, http: SocketAddr, store: Link, mut settings: Vec<String>) -> Replica {
        settings.extend([format!("grpc.listen={grpc}"), format!("http.listen={http}")]);
        let not_before = Instant::now();
        Replica { name, grpc, http, store, wanted: true, settings, process: None, was_asked: false, not_before }
    }

    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    pub fn signal(&mut self, signal: Signal) {
        if let Some(process) = &mut self.process {
            self.was_asked |= signal == Signal::TERM;
            process.signal(signal);
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self, stage: &mut Stage) {
        if let Some(mut process) = self.process.take() {
            let status = process.kill();
            stage.ended(&self.name, status, self.was_asked, &[3, 4]);
        }
    }

    /// Notes its end, and starts it where it is wanted. 3 and 4 are a lost store and a lost leadership.
    pub fn look_after(&mut self, stage: &mut Stage) {
        if let Some(status) = self.process.as_mut().and_then(Process::ended) {
            self.process = None;
            stage.ended(&self.name, status, self.was_asked, &[3, 4]);
            self.not_before = Instant::now() + if self.was_asked { Duration::ZERO } else { PAUSE };
        }
        if self.process.is_none() && self.wanted && Instant::now() >= self.not_before {
            self.was_asked = false;
            let process = Process::replica(&stage.directory, &self.name, &self.settings);
            stage.program.note("program", "began", json!({"party": self.name, "pid": process.pid()}));
            self.process = Some(process);
        }
    }
}

/// Where an executor's process is found, and by which ways it finds others. A process at the same place is proof that the one before is
/// gone.
pub struct Place {
    listen: SocketAddr,
    /// To every replica.
    pub calls: Link,
    pub storage: Link,
    /// From the leader, and from the client.
    pub commands: Link,
}

impl Place {
    pub async fn new(stage: &Stage) -> Place {
        let listen = free_address();
        let (calls, storage) = (Link::to(&stage.managers).await, Link::to(&[stage.storage]).await);
        Place { listen, calls, storage, commands: Link::to(&[listen]).await }
    }

    pub fn links(&self) -> [&Link; 3] {
        [&self.calls, &self.storage, &self.commands]
    }
}

/// A process, with what it writes down.
struct Body {
    process: Process,
    part: PathBuf,
    was_asked: bool,
}

impl Body {
    fn start(stage: &mut Stage, id: &str, place: &Place) -> Body {
        stage.started += 1;
        let name = format!("{id}-{}", stage.started);
        let part = parts(&stage.directory).join(format!("{name}.jsonl"));
        let told = child::Executor {
            id: id.to_owned(),
            listen: place.listen,
            advertise: place.commands.addresses()[0],
            managers: place.calls.addresses(),
            storage: place.storage.addresses()[0],
            part: part.clone(),
            name: name.clone(),
            seed: stage.seed,
        };
        let process = Process::role(&stage.directory, &name, &Role::Executor(told));
        stage.program.note("program", "began", json!({"party": name, "pid": process.pid()}));
        Body { process, part, was_asked: false }
    }

    fn name(&self) -> String {
        self.part.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Once it has ended: everything that it held has ended with it.
    fn bury(&mut self, stage: &mut Stage, status: ExitStatus) {
        stage.ended(&self.name(), status, self.was_asked, &[SUPERSEDED]);
        for (executor, incarnation) in incarnations(&self.part) {
            stage.program.note("program", "ended", json!({"executor": executor, "incarnation": incarnation}));
        }
    }
}

/// All that a process was, in its order.
fn incarnations(part: &Path) -> Vec<(Value, Value)> {
    let mut all: Vec<_> = lines(part).iter().map(|line| (line["executor"].clone(), line["incarnation"].clone())).collect();
    all.dedup();
    all
}

/// An executor's id, with its process, and at times a second one.
pub struct Seat {
    pub id: String,
    pub wanted: bool,
    pub place: Place,
    body: Option<Body>,
    second: Option<(Place, Body)>,
    not_before: Instant,
}

impl Seat {
    /// Not started yet.
    pub async fn new(stage: &Stage, id: String, wanted: bool) -> Seat {
        Seat { id, wanted, place: Place::new(stage).await, body: None, second: None, not_before: Instant::now() }
    }

    pub fn is_up(&self) -> bool {
        self.body.is_some()
    }

    /// Not one of those that are always there.
    pub fn is_guest(&self) -> bool {
        self.id.starts_with('g')
    }

    /// It leaves, and does not come back.
    pub fn ask_to_stop(&mut self) {
        self.wanted = false;
        self.signal(Signal::TERM);
    }

    pub fn signal(&mut self, signal: Signal) {
        for body in self.body.iter_mut().chain(self.second.as_mut().map(|(_, body)| body)) {
            body.was_asked |= signal == Signal::TERM || signal == Signal::INT;
            body.process.signal(signal);
        }
    }

    /// SIGKILL of every process of it.
    pub fn kill(&mut self, stage: &mut Stage) {
        for mut body in self.body.take().into_iter().chain(self.second.take().map(|(_, body)| body)) {
            let status = body.process.kill();
            body.bury(stage, status);
        }
    }

    /// Another process under the same id, at another place.
    pub async fn double(&mut self, stage: &mut Stage) {
        let place = Place::new(stage).await;
        let body = Body::start(stage, &self.id, &place);
        self.second = Some((place, body));
    }

    /// One process is left: the newer one, if it is there.
    pub fn settle(&mut self, stage: &mut Stage) {
        self.look_after(stage);
        if let Some((place, body)) = self.second.take() {
            self.kill(stage);
            (self.place, self.body) = (place, Some(body));
        }
    }

    /// Notes ends, and starts it where it is wanted.
    pub fn look_after(&mut self, stage: &mut Stage) {
        if let Some((_, body)) = &mut self.second
            && let Some(status) = body.process.ended()
        {
            body.bury(stage, status);
            self.second = None;
        }
        if let Some(body) = &mut self.body
            && let Some(status) = body.process.ended()
        {
            body.bury(stage, status);
            self.not_before = Instant::now() + if body.was_asked { Duration::ZERO } else { PAUSE };
            self.body = None;
            if let Some((place, body)) = self.second.take() {
                (self.place, self.body) = (place, Some(body));
            }
        }
        if self.body.is_none() && self.wanted && Instant::now() >= self.not_before {
            self.body = Some(Body::start(stage, &self.id, &self.place));
        }
    }
}

/// Ports were drawn, and sometimes a process came back to find its own taken by another test.
#[test]
fn an_address_is_given_once() {
    let all: std::collections::BTreeSet<_> = (0..400).map(|_| free_address()).collect();
    assert_eq!(all.len(), 400);
}
