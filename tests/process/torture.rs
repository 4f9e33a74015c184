//! Everything at once, by a seed: what scenarios break one at a time is broken in any order here, and healed at the end.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::harness::{Cluster, Direction, Executor, PATIENCE, Proxy, free_address, poll_until, window};

const L: Duration = Duration::from_secs(1);
const STEPS: usize = 30;
const IDS: [&str; 4] = ["a", "b", "c", "d"];

/// An executor behind two proxies, on a port of its own.
struct Member {
    process: Executor,
    listen: String,
    /// From the executor to the manager.
    calls: Proxy,
    /// From the manager to the executor.
    commands: Proxy,
    is_frozen: bool,
}

#[derive(Clone, Copy, Debug)]
enum Blow {
    KillExecutor,
    KillExecutorAndMovePort,
    FreezeExecutor,
    ThawExecutor,
    ReplaceExecutor,
    HoldCalls,
    HoldAnswers,
    HoldCommands,
    DropAll,
    Restore,
    KillManager,
    FreezeManager,
    Drain,
    Uncordon,
    Nothing,
}

const BLOWS: [Blow; 15] = [
    Blow::KillExecutor,
    Blow::KillExecutorAndMovePort,
    Blow::FreezeExecutor,
    Blow::ThawExecutor,
    Blow::ReplaceExecutor,
    Blow::HoldCalls,
    Blow::HoldAnswers,
    Blow::HoldCommands,
    Blow::DropAll,
    Blow::Restore,
    Blow::KillManager,
    Blow::FreezeManager,
    Blow::Drain,
    Blow::Uncordon,
    Blow::Nothing,
];

impl Member {
    async fn start(cluster: &mut Cluster, id: &str) -> Member {
        let listen = free_address();
        let (calls, commands) = (Proxy::to(cluster.manager.grpc).await, Proxy::to(listen).await);
        let process = Member::process(cluster, id, &listen.to_string(), &calls, &commands).await;
        Member { process, listen: listen.to_string(), calls, commands, is_frozen: false }
    }

    async fn process(cluster: &mut Cluster, id: &str, listen: &str, calls: &Proxy, commands: &Proxy) -> Executor {
        let (manager, advertise) = (calls.address.to_string(), commands.address.to_string());
        let arguments = ["--listen", listen, "--manager", &manager, "--advertise", &advertise, "--stop-delay", "50"];
        cluster.executor_with(id, &arguments).await
    }

    fn thaw(&mut self) {
        self.process.child.thaw();
        self.is_frozen = false;
    }

    fn restore(&mut self) {
        self.calls.restore();
        self.commands.restore();
    }
}

async fn strike(cluster: &mut Cluster, member: &mut Member, blow: Blow, pause: Duration) {
    let id = member.process.id.clone();
    let address = cluster.manager.grpc.to_string();
    match blow {
        Blow::KillExecutor => {
            // At the same endpoint, which proves that the old process is gone.
            member.process.bury();
            member.process = Member::process(cluster, &id, &member.listen, &member.calls, &member.commands).await;
            member.is_frozen = false;
        }
        Blow::KillExecutorAndMovePort => {
            member.process.child.kill();
            *member = Member::start(cluster, &id).await;
        }
        Blow::FreezeExecutor => {
            member.process.child.freeze().await;
            member.is_frozen = true;
        }
        Blow::ThawExecutor => member.thaw(),
        Blow::ReplaceExecutor => {
            // The older one is still there, frozen or not, until it is told or killed by the harness much later.
            let older = std::mem::replace(member, Member::start(cluster, &id).await);
            window(pause).await;
            older.process.child.thaw();
            older.calls.restore();
            window(pause).await;
        }
        Blow::HoldCalls => member.calls.hold(Direction::Requests),
        Blow::HoldAnswers => member.calls.hold(Direction::Answers),
        Blow::HoldCommands => member.commands.black_hole(),
        Blow::DropAll => {
            member.calls.drop_all();
            member.commands.drop_all();
        }
        Blow::Restore => member.restore(),
        Blow::KillManager => {
            cluster.manager.child.kill();
            window(pause).await;
            cluster.manager.restart().await;
        }
        Blow::FreezeManager => {
            cluster.manager.child.freeze().await;
            window(pause).await;
            cluster.manager.child.thaw();
        }
        // It may not be known at the moment, or not in time.
        Blow::Drain => drop(crate::harness::run(&["drain", &id, "--manager", &address]).await),
        Blow::Uncordon => drop(crate::harness::run(&["uncordon", &id, "--manager", &address]).await),
        Blow::Nothing => window(pause).await,
    }
}

async fn torture(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut cluster =
        Cluster::start(&["executors.lease_ttl=1s", "executors.probe_interval=500ms", "executors.probe_timeout=200ms"]).await;
    let mut members = Vec::new();
    for id in IDS {
        members.push(Member::start(&mut cluster, id).await);
    }
    for step in 0..STEPS {
        let (blow, at) = (*BLOWS.choose(&mut random).unwrap(), random.random_range(0..IDS.len()));
        let pause = L.mul_f64(random.random_range(0.0..1.6));
        println!("seed {seed}, step {step} at {}: {blow:?} {} {pause:?}", crate::harness::boot_ns(), IDS[at]);
        strike(&mut cluster, &mut members[at], blow, pause).await;
        window(L.mul_f64(random.random_range(0.0..0.6))).await;
    }
    let address = cluster.manager.grpc.to_string();
    for member in &mut members {
        member.thaw();
        member.restore();
    }
    println!("seed {seed}, healed at {}", crate::harness::boot_ns());
    for id in IDS {
        poll_until("it is uncordoned", PATIENCE, async || {
            let output = crate::harness::run(&["uncordon", id, "--manager", &address]).await;
            output.status.success().then_some(())
        })
        .await;
    }
    let table = cluster.at_rest(&IDS).await;
    let status = cluster.manager.json(&["status"]).await;
    assert_eq!(status["violations"], serde_json::json!([]));
    for member in &members {
        let (id, epochs) = (&member.process.id, member.process.holds());
        let granted = table.of(id).into_iter().map(|shard| (shard, table.shards[shard as usize].epoch)).collect();
        assert_eq!(epochs, granted, "what {id} runs is what it was granted");
    }
    cluster.check_safety();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_broken_in_one_order() {
    torture(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_broken_in_another_order() {
    torture(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_broken_in_yet_another_order() {
    torture(3).await;
}
