//! The real binary against a scripted manager: finding the leader, refusals, waiting for a drain.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use shard_manager::rpc::shard_manager_admin_server::{ShardManagerAdmin, ShardManagerAdminServer};
use shard_manager::rpc::{
    self, ChangeExecutorRequest, ChangeExecutorResponse, Executor, GetStatusRequest, GetStatusResponse, ListExecutorsRequest,
    ListExecutorsResponse, Version, reason,
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

/// Knows one executor, `a`; its states are told one per call, the last for ever.
#[derive(Clone, Default)]
struct Script {
    states: Arc<Mutex<VecDeque<(&'static str, u32)>>>,
    violations: Vec<String>,
    asked: Arc<Mutex<Vec<ChangeExecutorRequest>>>,
    refuses_with: Option<(Code, &'static str)>,
    /// So many calls more are answered with `NOT_READY`, as during a change of leaders.
    not_ready_for: Arc<Mutex<u32>>,
    /// Cancelled by the first change that is asked for, which is never answered.
    cuts_changes: Option<CancellationToken>,
}

impl Script {
    async fn change(&self, request: Request<ChangeExecutorRequest>) -> Result<Response<ChangeExecutorResponse>, Status> {
        self.cut().await;
        self.refuse()?;
        let request = request.into_inner();
        if request.executor_id != "a" {
            let message = format!("executor {} is not registered", request.executor_id);
            return Err(rpc::refusal(Code::NotFound, reason::UNKNOWN_EXECUTOR, message, &[]));
        }
        self.asked.lock().unwrap().push(request);
        Ok(Response::new(ChangeExecutorResponse { version: Some(Version { term: 7, revision: 9 }) }))
    }

    /// The end of the connection, where one is scripted.
    async fn cut(&self) {
        if let Some(cut) = &self.cuts_changes {
            cut.cancel();
            std::future::pending::<()>().await;
        }
    }

    fn refuse(&self) -> Result<(), Status> {
        let mut left = self.not_ready_for.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            return Err(rpc::refusal(Code::Unavailable, reason::NOT_READY, "not yet", &[]));
        }
        self.refuses_with.map_or(Ok(()), |(code, reason)| Err(rpc::refusal(code, reason, "not now", &[])))
    }
}

#[tonic::async_trait]
impl ShardManagerAdmin for Script {
    async fn get_status(&self, _: Request<GetStatusRequest>) -> Result<Response<GetStatusResponse>, Status> {
        self.refuse()?;
        let (role, violations) = ("leader".to_owned(), self.violations.clone());
        Ok(Response::new(GetStatusResponse { role, violations, number_of_shards: 16, ..GetStatusResponse::default() }))
    }

    async fn list_executors(&self, _: Request<ListExecutorsRequest>) -> Result<Response<ListExecutorsResponse>, Status> {
        let mut states = self.states.lock().unwrap();
        let (state, shards) = if states.len() > 1 { states.pop_front() } else { states.front().copied() }.unwrap();
        let executor = Executor { id: "a".to_owned(), state: state.to_owned(), shards, ..Executor::default() };
        Ok(Response::new(ListExecutorsResponse { version: None, executors: vec![executor] }))
    }

    async fn drain_executor(&self, request: Request<ChangeExecutorRequest>) -> Result<Response<ChangeExecutorResponse>, Status> {
        self.change(request).await
    }

    async fn cordon_executor(&self, request: Request<ChangeExecutorRequest>) -> Result<Response<ChangeExecutorResponse>, Status> {
        self.change(request).await
    }

    async fn uncordon_executor(
        &self,
        request: Request<ChangeExecutorRequest>,
    ) -> Result<Response<ChangeExecutorResponse>, Status> {
        self.change(request).await
    }

    async fn remove_executor(
        &self,
        request: Request<rpc::RemoveExecutorRequest>,
    ) -> Result<Response<ChangeExecutorResponse>, Status> {
        let rpc::RemoveExecutorRequest { executor_id, asked_by, reason, .. } = request.into_inner();
        self.change(Request::new(ChangeExecutorRequest { executor_id, asked_by, reason })).await
    }

    async fn admit_executor(&self, request: Request<ChangeExecutorRequest>) -> Result<Response<ChangeExecutorResponse>, Status> {
        self.change(request).await
    }

    async fn move_shards(&self, _: Request<rpc::MoveShardsRequest>) -> Result<Response<rpc::MoveShardsResponse>, Status> {
        Err(Status::unimplemented("not part of this script"))
    }

    async fn plan_change(&self, _: Request<rpc::PlanChangeRequest>) -> Result<Response<rpc::PlanChangeResponse>, Status> {
        Err(Status::unimplemented("not part of this script"))
    }

    async fn explain_shard(&self, _: Request<rpc::ExplainShardRequest>) -> Result<Response<rpc::ExplainShardResponse>, Status> {
        Err(Status::unimplemented("not part of this script"))
    }

    async fn pause_rebalancing(
        &self,
        _: Request<rpc::PauseRebalancingRequest>,
    ) -> Result<Response<rpc::PauseRebalancingResponse>, Status> {
        Err(Status::unimplemented("not part of this script"))
    }

    async fn resume_rebalancing(
        &self,
        _: Request<rpc::ResumeRebalancingRequest>,
    ) -> Result<Response<rpc::ResumeRebalancingResponse>, Status> {
        self.cut().await;
        Err(Status::unimplemented("not part of this script"))
    }

    async fn step_down(&self, request: Request<rpc::StepDownRequest>) -> Result<Response<rpc::StepDownResponse>, Status> {
        self.cut().await;
        self.refuse()?;
        Ok(Response::new(rpc::StepDownResponse { leader: format!("process 7, told {:?}", request.into_inner().reason) }))
    }
}

async fn serve(script: Script) -> String {
    let incoming = tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap().to_string();
    let server = tonic::transport::Server::builder().add_service(ShardManagerAdminServer::new(script));
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

async fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let binary = env!("CARGO_BIN_EXE_shard-manager");
    let mut command = Command::new(binary);
    command.args(arguments).stdin(Stdio::null());
    let Output { status, stdout, stderr } = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn states(states: &[(&'static str, u32)]) -> Arc<Mutex<VecDeque<(&'static str, u32)>>> {
    Arc::new(Mutex::new(states.iter().copied().collect()))
}

/// An address where nobody listens: it was free a moment ago.
fn nobody() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[tokio::test]
async fn whoever_does_not_lead_is_passed_over() {
    let starting = serve(Script { refuses_with: Some((Code::Unavailable, reason::NOT_READY)), ..Script::default() }).await;
    let leader = serve(Script::default()).await;
    let all = format!("{},{starting}", nobody());
    let (code, stdout, stderr) = run(&["status", "--json", "--manager", &all, "--manager", &leader]).await;
    assert_eq!(code, Some(0), "{stderr}");
    let status: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&status["role"], &status["number_of_shards"]), (&"leader".into(), &16.into()));

    let (code, stdout, stderr) = run(&["status", "--manager", &all]).await;
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (Some(1), "", 1), "{stderr}");
    assert!(
        stderr.contains("Connection refused") && stderr.contains(&format!("http://{starting}: not now (NOT_READY)")),
        "{stderr}"
    );
}

#[tokio::test]
async fn status_check_fails_where_an_invariant_does() {
    let sound = serve(Script::default()).await;
    assert_eq!(run(&["status", "--check", "--manager", &sound]).await.0, Some(0));
    let unsound = serve(Script { violations: vec!["shard 3 is owned twice".to_owned()], ..Script::default() }).await;
    let (code, stdout, _) = run(&["status", "--check", "--manager", &unsound]).await;
    assert_eq!(code, Some(1));
    assert!(stdout.contains("shard 3 is owned twice"), "{stdout}");
    assert_eq!(run(&["status", "--manager", &unsound]).await.0, Some(0));
}

#[tokio::test]
async fn a_refusal_of_the_leader_is_final() {
    let (first, second) = (Script::default(), Script::default());
    let all = format!("{},{}", serve(first).await, serve(second.clone()).await);
    for command in ["drain", "cordon", "uncordon"] {
        let (code, stdout, stderr) = run(&[command, "b", "--manager", &all]).await;
        assert_eq!((code, stdout.as_str()), (Some(1), ""));
        assert!(stderr.contains("executor b is not registered (UNKNOWN_EXECUTOR); `shard-manager executors`"), "{stderr}");
    }
    assert!(second.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_drain_is_asked_for_with_its_reason_and_waited_for() {
    let script =
        Script { states: states(&[("draining", 5), ("draining", 2), ("draining", 2), ("drained", 0)]), ..Script::default() };
    let leader = serve(script.clone()).await;
    let (code, stdout, stderr) = run(&["drain", "a", "--manager", &leader, "--wait", "--reason", "new disk", "--json"]).await;
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout, "{\"executor\":\"a\",\"done\":\"drained\",\"term\":7,\"revision\":9}\n");
    assert_eq!(stderr, "executor a: 5 of 5 shards left\nexecutor a: 2 of 5 shards left\n");
    assert_eq!(script.asked.lock().unwrap()[0].reason, "new disk");
}

#[tokio::test]
async fn waiting_for_a_drain_ends_at_its_time_out() {
    let leader = serve(Script { states: states(&[("draining", 2)]), ..Script::default() }).await;
    let (code, stdout, stderr) = run(&["drain", "a", "--manager", &leader, "--wait", "--timeout", "300ms"]).await;
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(
        stderr
            .contains("executor a was not drained within 300ms: executor a: 2 of 2 shards left; the drain stays in force until"),
        "{stderr}"
    );
}

#[tokio::test]
async fn whoever_steps_down_is_named() {
    let leader = serve(Script::default()).await;
    let (code, stdout, stderr) = run(&["step-down", "--manager", &leader, "--reason", "upgrade"]).await;
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.starts_with("process 7, told \"upgrade\" steps down"), "{stdout}");
}

/// There is a moment without a leader: nobody has to ask twice because of that.
#[tokio::test]
async fn a_leader_that_comes_a_moment_later_is_found() {
    for command in [&["status"][..], &["drain", "a"], &["step-down"]] {
        let script = Script { not_ready_for: Arc::new(Mutex::new(3)), ..Script::default() };
        let leader = serve(script.clone()).await;
        let (code, _, stderr) = run(&[command, &["--manager", &leader]].concat()).await;
        assert_eq!((code, stderr.as_str(), *script.not_ready_for.lock().unwrap()), (Some(0), "", 0), "{command:?}");
    }
}

/// Whoever is stopped takes connections, since the kernel does, and says nothing. What is asked of it may take effect when it wakes.
#[tokio::test]
async fn a_manager_that_says_nothing_is_asked_for_no_change() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (frozen, next) = (silent.local_addr().unwrap().to_string(), Script::default());
    let leader = serve(next.clone()).await;
    let (code, _, stderr) = run(&["drain", "a", "--manager", &frozen, "--manager", &leader]).await;
    assert_eq!((code, stderr.as_str(), next.asked.lock().unwrap().len()), (Some(0), "", 1));
    let (code, stdout, stderr) = run(&["drain", "a", "--manager", &frozen]).await;
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    let says = format!("error: no manager answered as leader: http://{frozen}: it said nothing for 3s; is one running there?");
    assert!(stderr.starts_with(&says), "{stderr}");
}

/// Takes connections and closes each once something was said on it, so that nobody knows what became of it.
async fn closes_every_connection() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            connection.readable().await.unwrap();
        }
    });
    address
}

/// A leader that vanishes the moment it is asked for a change, so that nobody knows what became of it.
async fn vanishes_when_asked() -> String {
    let gone = CancellationToken::new();
    let leader = serve(Script { cuts_changes: Some(gone.clone()), ..Script::default() }).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(gone.run_until_cancelled_owned(async move {
        while let Ok((mut caller, _)) = listener.accept().await {
            let mut leader = tokio::net::TcpStream::connect(&leader).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut caller, &mut leader).await;
        }
    }));
    address
}

/// It may have taken effect: sent on to the next manager, it might come in force after somebody took it back.
#[tokio::test]
async fn a_change_whose_outcome_is_unknown_is_asked_of_nobody_else() {
    let next = Script { states: states(&[("active", 5), ("draining", 2), ("drained", 0)]), ..Script::default() };
    let leader = serve(next.clone()).await;
    for command in [&["drain", "a"][..], &["remove", "a"], &["rebalance", "resume"], &["step-down"]] {
        let broken = vanishes_when_asked().await;
        let all = format!("{broken},{leader}");
        let (code, stdout, stderr) = run(&[command, &["--manager", &all]].concat()).await;
        assert_eq!((code, stdout.as_str(), stderr.lines().count()), (Some(1), "", 1), "{command:?}: {stderr}");
        assert!(stderr.starts_with(&format!("error: http://{broken} did not say what came of it: ")), "{stderr}");
        assert!(stderr.contains("; it may take effect all the same: look before you ask again"), "{stderr}");
        assert!(!stderr.contains("transport error"), "the innermost cause is named: {stderr}");
    }
    assert!(next.asked.lock().unwrap().is_empty());
    let all = format!("{},{leader}", closes_every_connection().await);
    assert_eq!(run(&["status", "--manager", &all]).await.0, Some(0), "a question may be asked of anybody");

    // Whoever waits for it goes on waiting, and sees that it came in force after all.
    let all = format!("{},{leader}", vanishes_when_asked().await);
    let (code, stdout, stderr) = run(&["drain", "a", "--wait", "--timeout", "30s", "--manager", &all]).await;
    assert_eq!((code, stdout.as_str()), (Some(0), "executor a has no shard left\n"), "{stderr}");
    let seen: Vec<&str> = stderr.lines().collect();
    assert!(seen[0].starts_with("still waiting: ") && seen[0].contains("it may take effect all the same"), "{stderr}");
    assert_eq!(seen[1..], ["executor a: the drain is not in force yet", "executor a: 2 of 2 shards left"]);
    assert!(next.asked.lock().unwrap().is_empty(), "it was not asked for again");
}

/// It went on waiting for what nobody wanted any more, and said in the end that it was done.
#[tokio::test]
async fn a_wish_that_was_taken_back_ends_the_waiting() {
    for (command, seen, says) in [
        (
            "drain",
            [("draining", 2), ("active", 2)],
            "executor a was not drained: the drain is not in force any more, it is active",
        ),
        (
            "remove",
            [("removing", 2), ("active", 0)],
            "executor a was not removed: the removal is not in force any more, it is active",
        ),
        (
            "drain",
            [("draining", 2), ("removed", 0)],
            "executor a was not drained: the drain is not in force any more, it is removed",
        ),
    ] {
        let leader = serve(Script { states: states(&seen), ..Script::default() }).await;
        let (code, stdout, stderr) = run(&[command, "a", "--wait", "--timeout", "20s", "--manager", &leader]).await;
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{command}: {stderr}");
        assert_eq!(stderr, format!("executor a: 2 of 2 shards left\nerror: {says}\n"));
    }
}

/// Ctrl-C before there was an answer: it said nothing, and nobody knew what stands.
#[tokio::test]
async fn an_interrupt_before_the_answer_says_what_may_have_happened() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_shard-manager"));
    command.args(["drain", "a", "--wait", "--manager", &address]).stdin(Stdio::null()).stderr(Stdio::piped());
    // It ends by itself once it has waited for an answer for long enough, whatever becomes of this test.
    let child = command.spawn().unwrap();
    let (connection, _) = silent.accept().await.unwrap();
    // It speaks only after it has begun to listen for signals.
    connection.readable().await.unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    let output = tokio::task::spawn_blocking(|| child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, "error: interrupted before a manager answered: what was asked may take effect all the same\n");
}
