//! Parts of tests that run in a process of their own: because they may crash, or because they are to be killed.
//!
//! This binary runs itself again with [`ROLE`] set, and asks for the one test below.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Names what a child is to do.
const ROLE: &str = "STORE_TEST_ROLE";
/// The path that it is to do it with.
const PATH: &str = "STORE_TEST_PATH";
/// Begins the lines on standard output that are meant for the parent.
const MARK: &str = "child: ";

#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = std::path::PathBuf::from(std::env::var(PATH).unwrap_or_default());
    match role.as_str() {
        "codec" => crate::codec::child(),
        "commit" => crate::crash::child(&path),
        "flipped_file" => crate::crash::flipped_file_child(&path),
        "read_only" => crate::sqlite::read_only_child(&path),
        "lead" => crate::host::child(&path),
        "lead_shortly" => crate::standby::leading_child(&path, false),
        "lead_in_commit" => crate::standby::leading_child(&path, true),
        "look_at_cell" => crate::standby::looking_child(&path),
        "stand_by" => crate::standby::waiting_child(&path),
        _ => panic!("there is no role {role:?}"),
    }
}

/// A child with its output. Killed and reaped when dropped.
pub struct Process {
    pub child: Child,
    lines: Box<dyn Iterator<Item = String>>,
}

impl Process {
    pub fn start(role: &str, path: &Path) -> Process {
        Process::run(Command::new(std::env::current_exe().unwrap()), role, path)
    }

    /// As a user to whom file permissions mean something: another one, if we are root.
    pub fn start_as_nobody(role: &str, path: &Path) -> Process {
        if !rustix::process::geteuid().is_root() {
            return Process::start(role, path);
        }
        // Where this binary lies may not be open to everybody.
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("store");
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(&copy);
        command.uid(65534).gid(65534).current_dir("/");
        let process = Process::run(command, role, path);
        // It runs: the copy is no longer needed by its name.
        drop(directory);
        process
    }

    fn run(mut command: Command, role: &str, path: &Path) -> Process {
        command.args(["--exact", "child::child", "--nocapture"]).env(ROLE, role).env(PATH, path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let lines = lines.filter_map(|line| Some(line.ok()?.split_once(MARK)?.1.to_owned()));
        Process { child, lines: Box::new(lines) }
    }

    /// The next thing that the child says; `None` once it ended.
    pub fn line(&mut self) -> Option<String> {
        self.lines.next()
    }

    /// SIGKILL. What it said before can still be read.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Says something to the parent.
pub fn say(line: impl std::fmt::Display) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    // The harness may have begun a line already.
    writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush()).unwrap();
}

/// Waits until the parent is gone or closes our input.
pub fn wait_for_parent() {
    std::io::stdin().lock().read_line(&mut String::new()).ok();
}
