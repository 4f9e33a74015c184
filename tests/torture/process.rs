//! A process of a run, with what it says in a file.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::child::{ROLE, Role};

/// Killed and waited for when dropped, stopped or not. It stays in the test's process group, which a test runner kills where a test hangs.
pub struct Process {
    child: Child,
    ended: Option<ExitStatus>,
}

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shard-manager"));
    // What the tests' own environment says is no concern of the processes.
    for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("SHARD_MANAGER__")) {
        command.env_remove(key);
    }
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// Runs a command of the binary to its end.
pub async fn run(arguments: Vec<String>) -> Output {
    tokio::task::spawn_blocking(move || binary().args(arguments).output()).await.unwrap().unwrap()
}

impl Process {
    /// A replica. Its log grows over restarts.
    pub fn replica(directory: &Path, name: &str, settings: &[String]) -> Process {
        let mut command = binary();
        command.arg("serve").args(settings.iter().flat_map(|setting| ["--set", setting]));
        Process::begin(directory, name, command)
    }

    /// This very program, which does one thing only.
    pub fn role(directory: &Path, name: &str, role: &Role) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child::child", "--nocapture", "--test-threads=1"]);
        // It ends when nobody holds the other end of the pipe any more.
        command.env(ROLE, serde_json::to_string(role).unwrap()).stdin(Stdio::piped());
        Process::begin(directory, name, command)
    }

    fn begin(directory: &Path, name: &str, mut command: Command) -> Process {
        let log = File::options().create(true).append(true).open(directory.join(format!("{name}.log"))).unwrap();
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Process { child, ended: None }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap();
        }
        self.ended
    }

    /// Nothing happens where it has ended.
    pub fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            // It may end at this very moment; until it is waited for, its id is nobody else's.
            kill_process(Pid::from_child(&self.child), signal).ok();
        }
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) -> ExitStatus {
        self.child.kill().ok();
        let status = self.child.wait().unwrap();
        *self.ended.get_or_insert(status)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
