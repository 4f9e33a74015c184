//! How managers start and end: exit codes, ports, configuration.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Child, Cluster, Manager, PATIENCE, Store, free_address, poll_until, run};

/// What a stop may take on a store that answers.
const STOP: Duration = Duration::from_secs(1);

fn place() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::Sqlite(directory.path().join("shard-manager.db"));
    (directory, store)
}

fn spawn(store: &Store, settings: &[&str]) -> Child {
    let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
    Manager::spawn(free_address(), free_address(), store, &settings)
}

/// The exit code, and everything that was said.
async fn ends(mut child: Child, within: Duration) -> (Option<i32>, String) {
    let code = child.exit_code(within).await;
    (code, child.printed().join("\n"))
}

/// SIGTERM and SIGINT, at any moment from the first one on, end it with 0 within a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_asked_to_stop_at_any_moment_of_its_start() {
    let (_directory, store) = place();
    for (at, pause) in [0, 2, 5, 10, 15, 20, 25, 30, 40, 60, 100, 200].into_iter().enumerate() {
        let child = spawn(&store, &[]);
        // Before its handlers are installed a signal is the kernel's to answer; after that, at any moment.
        poll_until("it handles signals", PATIENCE, async || handles_signals(child.pid()).then_some(())).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let asked = Instant::now();
        child.signal(if at % 2 == 0 { Signal::TERM } else { Signal::INT });
        let (code, said) = ends(child, PATIENCE).await;
        assert_eq!(code, Some(0), "after {pause} ms: {said}");
        assert!(asked.elapsed() < STOP, "after {pause} ms it took {:?}: {said}", asked.elapsed());
    }
}

/// Before that a signal is the kernel's to answer.
pub fn handles_signals(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(|mask| u64::from_str_radix(mask.trim(), 16));
    // SIGINT is 2, SIGTERM is 15.
    caught.and_then(Result::ok).is_some_and(|mask| mask & (1 << 1) != 0 && mask & (1 << 14) != 0)
}

/// A stop while executors hold connections open and renew: bounded, and they are really closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_asked_to_stop_while_executors_are_connected() {
    let mut cluster = Cluster::start(&[]).await;
    let (a, b) = (cluster.executor("a").await, cluster.executor("b").await);
    cluster.at_rest(&["a", "b"]).await;
    // One that says nothing, and one that has begun a request and does not end it.
    let silent = std::net::TcpStream::connect(cluster.manager.grpc).unwrap();
    let mut slow = std::net::TcpStream::connect(cluster.manager.http).unwrap();
    std::io::Write::write_all(&mut slow, b"GET /healthz HT").unwrap();
    poll_until("they are accepted", PATIENCE, async || {
        (cluster.manager.metric("shard_manager_grpc_connections").await >= 3.0).then_some(())
    })
    .await;
    let (code, took) = cluster.manager.child.stop(PATIENCE).await;
    assert_eq!(code, Some(0));
    assert!(took < STOP, "it took {took:?}");
    for mut stream in [silent, slow] {
        stream.set_read_timeout(Some(STOP)).unwrap();
        let mut rest = Vec::new();
        // The end of the stream or a reset, and no time-out.
        if let Err(error) = std::io::Read::read_to_end(&mut stream, &mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
    cluster.manager.restart().await;
    cluster.at_rest(&["a", "b"]).await;
    drop((a, b));
    cluster.check_safety();
}

/// As `timeout` does it: once to the process and once to its group. That is one wish, and no insisting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_asked_twice_at_once() {
    let (_directory, store) = place();
    let mut manager = Manager::start(&store, &[]).await;
    manager.child.freeze().await;
    manager.child.signal(Signal::TERM);
    manager.child.signal(Signal::INT);
    manager.child.thaw();
    let code = manager.child.exit_code(PATIENCE).await;
    assert_eq!(code, Some(0));
}

/// One leads, under whatever name the file is found: the others wait, say for whom, and end at once when they are told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_manager_is_started_on_the_same_file() {
    let mut cluster = Cluster::start(&[]).await;
    let a = cluster.executor("a").await;
    let before = cluster.at_rest(&["a"]).await;
    let link = cluster.directory.path().join("link.db");
    std::os::unix::fs::symlink(cluster.store.path(), &link).unwrap();
    for store in [cluster.store.clone(), Store::Sqlite(link)] {
        let mut second = Manager::stand(&store, &["number_of_shards=64"]).await;
        poll_until("it says who leads", PATIENCE, async || {
            second.status().await["leader"].as_str()?.contains(&cluster.manager.identity()).then_some(())
        })
        .await;
        assert!(std::net::TcpStream::connect(second.grpc).is_err(), "its gRPC port is closed");
        let begun = Instant::now();
        assert_eq!(second.stop().await, Some(0));
        assert!(begun.elapsed() < Duration::from_secs(1), "it took {:?}", begun.elapsed());
    }
    assert_eq!(cluster.table().await, before);
    assert_eq!(cluster.manager.get("/readyz").await.0, 200);
    drop(a);
}

/// The number of shards is fixed: both numbers are named, and nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_shards_is_not_the_stored_one() {
    let (_directory, store) = place();
    let mut manager = Manager::start(&store, &["number_of_shards=64"]).await;
    assert_eq!(manager.stop().await, Some(0));
    let before = std::fs::read(store.path()).unwrap();
    let (code, said) = ends(spawn(&store, &["number_of_shards=65"]), PATIENCE).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("number_of_shards is 65") && said.contains("has 64"), "{said}");
    assert!(!said.contains("elected"), "it did not campaign: {said}");
    assert_eq!(std::fs::read(store.path()).unwrap(), before);
    // Also while a live leader works on it.
    manager.restart().await;
    let (code, said) = ends(spawn(&store, &["number_of_shards=65"]), PATIENCE).await;
    assert_eq!(code, Some(2), "{said}");
    assert_eq!(manager.get("/readyz").await.0, 200);
}

/// A port that somebody has: said with address and port, exit code 6, and the leadership is free again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_is_taken() {
    let (_directory, store) = place();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for (grpc, http, what) in [(address, free_address(), "gRPC"), (free_address(), address, "HTTP")] {
        let (code, said) = ends(Manager::spawn(grpc, http, &store, &[]), PATIENCE).await;
        assert_eq!(code, Some(6), "{said}");
        assert!(said.contains(&format!("cannot listen on {address} for {what}")), "{said}");
    }
    let manager = Manager::start(&store, &[]).await;
    assert_eq!(manager.get("/readyz").await.0, 200);
}

/// Port 0 takes a free port and prints the real one, on both sides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ports_are_left_to_the_kernel() {
    let (directory, store) = place();
    let zero = "127.0.0.1:0".parse().unwrap();
    let mut child = Manager::spawn(zero, zero, &store, &[]);
    let http = child.announced("HTTP listening on ").await;
    let grpc = child.announced("gRPC listening on ").await;
    assert!(!http.ends_with(":0") && !grpc.ends_with(":0"));
    let status: serde_json::Value = reqwest::get(format!("http://{http}/status")).await.unwrap().json().await.unwrap();
    assert_eq!(status["grpc"], grpc.as_str());
    let journal = directory.path().join("a.journal");
    let executor = crate::harness::Executor::start("a", &grpc, &journal, &["--listen", "127.0.0.1:0"]).await;
    assert_ne!(executor.address.port(), 0);
    poll_until("it is registered", PATIENCE, async || (executor.lease_until() > 0).then_some(())).await;
    let output = run(&["executors", "--json", "--manager", &grpc]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("http://{}", executor.address)), "{text}");
}

/// A key that nobody knows, in every place where keys are given: exit code 2, the key, and the nearest known one; no port was opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_unknown() {
    let (directory, store) = place();
    let (code, said) = ends(spawn(&store, &["executors.leese_ttl=2s"]), PATIENCE).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("leese_ttl") && said.contains("executors.lease_ttl") && !said.contains("listening"), "{said}");
    let file = directory.path().join("config.toml");
    std::fs::write(&file, "[grpc]\nlisten_on = \"127.0.0.1:0\"\n").unwrap();
    let output = run(&["serve", "--config", file.to_str().unwrap()]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("listen_on") && said.contains("grpc.listen"), "{said}");
    for (setting, words) in [
        ("persistence.request_timeout=6s", ["6s", "10s"]),
        ("executors.lease_ttl=500ms", ["500ms", "1s"]),
        ("leadership.lease_ttl=1500ms", ["1s 500ms", "whole"]),
        ("number_of_shards=0", ["0", "4194304"]),
        ("executors.command_timeout=40s", ["40s", "30s"]),
    ] {
        let (code, said) = ends(spawn(&store, &[setting]), PATIENCE).await;
        assert_eq!(code, Some(2), "{setting}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{setting}: {words:?} in {said}");
    }
    assert!(!store.path().exists(), "nothing was made");
}

/// A place where no database can be: exit code 3 and the path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_cannot_be_opened() {
    let (directory, _) = place();
    let (missing, itself) = (directory.path().join("missing/shard-manager.db"), directory.path().to_owned());
    for path in [missing, itself] {
        let (code, said) = ends(spawn(&Store::Sqlite(path.clone()), &[]), PATIENCE).await;
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains(&path.display().to_string()), "{said}");
    }
}
