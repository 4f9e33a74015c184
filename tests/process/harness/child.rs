//! A process of the real binary: signals, exit codes, and what it printed.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, poll_until};

/// Killed and waited for when dropped, frozen or not. After a failure everything that it printed is shown.
///
/// Children stay in the test's process group, which the test runner kills where a test hangs.
pub struct Child {
    name: String,
    process: std::process::Child,
    printed: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
}

fn binary() -> Command {
    program(Path::new(env!("CARGO_BIN_EXE_shard-manager")))
}

fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    // What the tests' own environment says is no concern of the processes.
    for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("SHARD_MANAGER__")) {
        command.env_remove(key);
    }
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// An example's program, beside the directory of the tests' own. Cargo builds examples whenever it builds all tests, but not for a
/// single test binary.
fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    let changed = |path: &Path| std::fs::metadata(path).and_then(|it| it.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let sources = [source.join(format!("{name}.rs"))]
        .into_iter()
        .chain(std::fs::read_dir(source.join(name)).into_iter().flatten().map(|entry| entry.unwrap().path()));
    let newest = sources.map(|source| changed(&source)).max().unwrap();
    assert!(changed(&path) >= newest, "{} is missing or old: run cargo build --examples", path.display());
    path
}

/// Runs a command of the binary to its end.
pub async fn run(arguments: &[&str]) -> Output {
    let mut command = binary();
    command.args(arguments);
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

impl Child {
    /// Starts the binary; `name` is for people.
    pub fn spawn(name: &str, arguments: &[String]) -> Child {
        Child::begin(name, binary().args(arguments))
    }

    /// Starts an example, which logs everything that it has to say itself.
    pub fn spawn_example(name: &str, program_name: &str, arguments: &[&str]) -> Child {
        let filter = format!("info,{program_name}=debug");
        Child::begin(name, program(&example(program_name)).args(arguments).env("RUST_LOG", filter))
    }

    fn begin(name: &str, command: &mut Command) -> Child {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let printed = Arc::new(Mutex::new(Vec::new()));
        let readers = vec![
            read(process.stdout.take().unwrap(), Arc::clone(&printed)),
            read(process.stderr.take().unwrap(), Arc::clone(&printed)),
        ];
        Child { name: name.to_owned(), process, printed, readers }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Every line of both streams so far.
    pub fn printed(&self) -> Vec<String> {
        self.printed.lock().unwrap().clone()
    }

    /// The word after `marker` in the first line that has it, once there is one; fails where the process ends before.
    pub async fn announced(&mut self, marker: &str) -> String {
        let what = format!("{} says {marker:?}", self.name);
        poll_until(&what, PATIENCE, async || {
            let ended = self.process.try_wait().unwrap();
            let word = self.said(marker);
            assert!(word.is_some() || ended.is_none(), "{} ended with {ended:?} before it said {marker:?}", self.name);
            word
        })
        .await
    }

    /// The word after `marker` in the first line that has it.
    pub fn said(&self, marker: &str) -> Option<String> {
        let printed = self.printed.lock().unwrap();
        let rest = printed.iter().find_map(|line| line.split_once(marker))?.1;
        Some(rest.split([' ', ',']).find(|word| !word.is_empty()).unwrap_or_default().to_owned())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// SIGSTOP: it returns once no thread of the process runs any more.
    pub async fn freeze(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.pid());
        poll_until("the process is stopped", PATIENCE, async || {
            let text = std::fs::read_to_string(&stat).unwrap();
            text.rsplit(") ").next().unwrap().starts_with('T').then_some(())
        })
        .await;
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// The exit code, `None` for a death by signal; fails where the process does not end in time.
    pub async fn exit_code(&mut self, within: Duration) -> Option<i32> {
        let what = format!("{} ends", self.name);
        let status = poll_until(&what, within, async || self.process.try_wait().unwrap()).await;
        // What it said last is there to be read.
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        status.code()
    }

    /// SIGTERM; the exit code and how long it took.
    pub async fn stop(&mut self, within: Duration) -> (Option<i32>, Duration) {
        let asked = Instant::now();
        self.signal(Signal::TERM);
        (self.exit_code(within).await, asked.elapsed())
    }
}

fn read(stream: impl Read + Send + 'static, printed: Arc<Mutex<Vec<String>>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            printed.lock().unwrap().push(line);
        }
    })
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended, and been waited for, already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let printed = self.printed.lock().unwrap();
            let skipped = printed.len().saturating_sub(200);
            println!("---- {}, last lines ({skipped} left out) ----", self.name);
            printed.iter().skip(skipped).for_each(|line| println!("{line}"));
        }
    }
}
