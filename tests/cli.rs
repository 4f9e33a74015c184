//! The real binary: usage, exit codes, what goes to which stream.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output, Stdio};

fn shard_manager(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shard-manager"));
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SHARD_MANAGER__")) {
        command.env_remove(name);
    }
    command
}

fn output(arguments: &[&str]) -> Output {
    shard_manager(arguments).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn help_is_no_failure_and_wrong_usage_is_two() {
    let help = output(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for command in
        ["serve", "config", "status", "table", "executors", "drain", "cordon", "uncordon", "executor", "conformance", "journal"]
    {
        assert!(stdout(&help).contains(&format!("\n  {command} ")), "{command} is not in {}", stdout(&help));
    }
    let wrong: &[&[&str]] = &[
        &[],
        &["no-such-command"],
        &["table", "--no-such-flag"],
        &["drain"],
        &["conformance", "--lease", "900ms"],
        &["conformance", "--executor", "nowhere at all"],
        &["drain", "no executor id"],
        &["drain", "a", "--timeout", "5s"],
        &["drain", "a", "--wait", "--timeout", "soon"],
        &["status", "--manager", "https://host:1"],
        &["journal", "check", "--number-of-shards", "0", "journal"],
        &["journal", "check", "--number-of-shards", "4294967295", "journal"],
        &["rebalance", "pause", "--for", "8d"],
        &["status", "--check", "--http", "127.0.0.1:1"],
        &["status", "--manager", "127.0.0.1:1", "--http", "127.0.0.1:1"],
    ];
    for arguments in wrong {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty() && !stderr(&output).is_empty(), "{arguments:?}");
    }
}

#[test]
fn config_check_says_what_is_wrong_with_exit_code_two() {
    let fine = output(&["config", "check", "--set", "number_of_shards=12"]);
    assert_eq!((fine.status.code(), stdout(&fine)), (Some(0), "the configuration is valid\n"));
    let wrong = output(&["config", "check", "--set", "number_of_shards=0", "--set", "executors.settle_time=1m"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("number_of_shards = 0") && stderr(&wrong).contains("settle_time = 1m"), "{}", stderr(&wrong));
    let url = "persistence.postgres.url=postgres://user:hunter2@127.0.0.1:x/db";
    let unreadable = output(&["config", "check", "--set", url]);
    let says = String::from_utf8(unreadable.stderr).unwrap();
    assert!(says.contains("persistence.postgres.url = postgres://user:***@127.0.0.1:x/db is refused: "), "{says}");
    assert_eq!(unreadable.status.code(), Some(2));
    let missing = output(&["config", "check", "--config", "/no/such/file"]);
    assert_eq!(missing.status.code(), Some(2));
    let etcd = ["--set", "persistence.type=etcd", "--set", "persistence.etcd.endpoints=http://a:2379"];
    let warned = output(&[&["config", "check", "--set", "executors.lease_ttl=3s"], &etcd[..]].concat());
    assert_eq!(warned.status.code(), Some(0));
    assert!(stderr(&warned).starts_with("warning: executors.lease_ttl = 3s"), "{}", stderr(&warned));
    let warned = shard_manager(&["config", "check"]).env("SHARD_MANAGER_EXECUTORS__LEASE_TTL", "3s").output().unwrap();
    assert_eq!(warned.status.code(), Some(0));
    let warning = "warning: environment variable SHARD_MANAGER_EXECUTORS__LEASE_TTL sets nothing";
    assert!(stderr(&warned).starts_with(warning), "{}", stderr(&warned));
}

#[test]
fn a_variable_that_is_not_utf8_is_named() {
    use std::os::unix::ffi::OsStringExt;
    let bytes = std::ffi::OsString::from_vec(vec![b'/', 0xff]);
    let output = shard_manager(&["config", "check"]).env("SHARD_MANAGER__PERSISTENCE__SQLITE__PATH", bytes).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("SHARD_MANAGER__PERSISTENCE__SQLITE__PATH is refused"), "{}", stderr(&output));
}

#[test]
fn config_show_gives_values_and_origins_and_no_secret() {
    let show = |json: &[&str]| {
        let arguments = [&["config", "show", "--set", "leadership.lease_ttl=3s"], json].concat();
        let mut command = shard_manager(&arguments);
        command.env("SHARD_MANAGER__PERSISTENCE__POSTGRES__URL", "postgres://me:hunter2@db/x");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(!stdout(&output).contains("hunter2"), "{}", stdout(&output));
        stdout(&output).to_owned()
    };
    let json: serde_json::Value = serde_json::from_str(&show(&["--json"])).unwrap();
    assert_eq!(json["leadership.lease_ttl"], serde_json::json!({ "value": "3s", "origin": "--set" }));
    assert_eq!(json["persistence.request_timeout"]["value"], "1s 500ms");
    assert_eq!(json["persistence.postgres.url"]["value"], "postgres://me:***@db/x");
    assert_eq!(json["persistence.postgres.url"]["origin"], "environment variable SHARD_MANAGER__PERSISTENCE__POSTGRES__URL");
    assert_eq!(json["number_of_shards"], serde_json::json!({ "value": 1024, "origin": "default" }));
    let text = show(&[]);
    assert!(text.lines().any(|line| line.split_whitespace().eq(["number_of_shards", "1024", "default"])), "{text}");
}

#[test]
fn serve_refuses_before_anything_starts_what_it_cannot_run() {
    let wrong = output(&["serve", "--set", "grpc.listen=nowhere"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn a_manager_that_is_not_there_is_one_clear_line_and_exit_code_one() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let commands: &[&[&str]] = &[&["status"], &["table"], &["executors"], &["drain", "a"], &["cordon", "a"], &["uncordon", "a"]];
    for command in commands {
        let output = output(&[command, &["--json", "--manager", address.as_str()][..]].concat());
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        assert!(stdout(&output).is_empty(), "{command:?}");
        let message = stderr(&output);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(&address) && message.contains("Connection refused"), "{message}");
    }
    let output = output(&["status", "--http", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("Connection refused"), "{}", stderr(&output));
}

#[test]
fn a_reader_that_went_away_is_no_failure() {
    let mut child = shard_manager(&["config", "show"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = shard_manager(&["config", "show"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write to standard output"), "{}", stderr(&output));
}
