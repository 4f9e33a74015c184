//! The real command, and somebody who starts and ends executors as it asks.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::executor::Executor;
use crate::flaw::Flaw;

/// Longer than any run.
const PATIENCE: Duration = Duration::from_secs(180);

/// What a run says.
pub struct Report {
    pub code: i32,
    pub json: Value,
    /// Standard error.
    pub said: Vec<String>,
}

/// What is not as it should be.
impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "exit code {}, broken {:?}, not observed {:?}", self.code, self.rules("broken"), self.rules("not_observed"))?;
        for line in self.json["rules"].as_array().unwrap().iter().filter(|line| line["verdict"] != "kept") {
            writeln!(f, "  {} {}: {}", line["rule"], line["verdict"], line["detail"])?;
        }
        self.said.iter().try_for_each(|line| writeln!(f, "  | {line}"))
    }
}

impl Report {
    pub fn rules(&self, verdict: &str) -> Vec<&str> {
        let rules = self.json["rules"].as_array().unwrap().iter();
        rules.filter(|line| line["verdict"] == verdict).map(|line| line["rule"].as_str().unwrap()).collect()
    }

    pub fn detail(&self, rule: &str) -> &str {
        let mut rules = self.json["rules"].as_array().unwrap().iter();
        rules.find(|line| line["rule"] == rule).unwrap()["detail"].as_str().unwrap_or_default()
    }
}

/// Ends it also after a panic.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command; `act` hears every line that it says.
pub async fn play(arguments: &[&str], mut act: impl AsyncFnMut(&str)) -> Report {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shard-manager"));
    command.args(["conformance", "--listen", "127.0.0.1:0", "--json"]).args(arguments);
    let mut child = Child(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let (lines, mut heard) = mpsc::unbounded_channel();
    let (mut stdout, stderr) = (child.0.stdout.take().unwrap(), child.0.stderr.take().unwrap());
    std::thread::spawn(move || BufReader::new(stderr).lines().map_while(Result::ok).all(|line| lines.send(line).is_ok()));
    let output = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        text
    });
    let deadline = Instant::now() + PATIENCE;
    let mut said = Vec::new();
    while let Some(line) =
        tokio::time::timeout_at(deadline.into(), heard.recv()).await.unwrap_or_else(|_| panic!("no end in sight: {said:?}"))
    {
        act(&line).await;
        said.push(line);
    }
    let code = child.0.wait().unwrap().code().unwrap();
    let text = output.await.unwrap();
    let json = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?} {said:?}"));
    Report { code, json, said }
}

/// The address in its first line.
pub fn manager(line: &str) -> Option<&str> {
    line.strip_prefix("listening as a manager on ")?;
    Some(line.split("manager address ").nth(1)?.split(';').next().unwrap())
}

/// A run with executors that have this flaw, started and ended as asked.
pub async fn with(flaw: Flaw, arguments: &[&str]) -> Report {
    let (mut executor, mut address) = (None, String::new());
    play(arguments, async |line| {
        if let Some(manager) = manager(line) {
            address = manager.to_owned();
            executor = Some(Executor::start(&address, flaw).await);
        } else if line.starts_with("start the executor again") {
            // The one before is gone first.
            drop(executor.take());
            executor = Some(Executor::start(&address, flaw).await);
        } else if line.starts_with("end the executor now") {
            executor.as_ref().unwrap().leave();
        }
    })
    .await
}

/// A run with processes of the real executor.
pub async fn with_real_executors(arguments: &[&str]) -> Report {
    let (mut process, mut address) = (None, String::new());
    let start = |address: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shard-manager"));
        command.args(["executor", "--id", "real", "--manager", address]);
        Child(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    };
    let report = play(arguments, async |line| {
        if let Some(manager) = manager(line) {
            address = manager.to_owned();
            process = Some(start(&address));
        } else if line.starts_with("start the executor again") {
            let mut superseded: Child = process.take().unwrap();
            assert_eq!(superseded.0.wait().unwrap().code(), Some(5), "it was told so");
            process = Some(start(&address));
        } else if line.starts_with("end the executor now") {
            kill_process(Pid::from_child(&process.as_ref().unwrap().0), Signal::TERM).unwrap();
        }
    })
    .await;
    if report.code == 0 {
        assert_eq!(process.unwrap().0.wait().unwrap().code(), Some(0), "it left in order");
    }
    report
}
