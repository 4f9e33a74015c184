//! A run from its beginning to its end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use shard_manager::client::Router;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::child::Role;
use crate::client::{self, Ids};
use crate::ground::Ground;
use crate::history::{self, Part};
use crate::link::Link;
use crate::nemesis::World;
use crate::operator::Operator;
use crate::parties::{Replica, Seat, Stage};
use crate::plan::plan;
use crate::process::Process;
use crate::report::Report;
use crate::settings::{self, COMMAND_TIMEOUT, LEASE, REPLICAS, SEATS, SHARDS, Settings, TTL};
use crate::stored::{Fences, Reader};
use crate::support::free_address;
use crate::watch::{self, Leaders};

/// For what has no bound of its own: the first start, and a rest that comes too late for its bound but comes.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often it is looked whether all is at rest.
const LOOK: Duration = Duration::from_millis(100);
/// How long callers go on when all is at rest.
const CALM: Duration = Duration::from_secs(2);

/// Plays a run, and judges it.
pub async fn play(settings: &Settings) -> Report {
    let directory = directory(settings);
    println!("torture: seed {}, {:?}, {:?}; in {}", settings.seed, settings.store, settings.length, directory.display());
    let program = Part::create(&history::parts(&directory).join("program.jsonl"));
    program.note("program", "run", run_line(settings));
    let (storage, listening) = storage(&directory).await;

    let mut world = world(settings, &directory, &program, listening).await;
    world.look_after();
    let mut watchers = watchers(&world).await;
    let router = Router::start(world.router.addresses().iter().map(ToString::to_string)).unwrap();
    watchers.spawn(watch::follow(program.clone(), router.clone()));
    world.phase("normal");
    assert!(at_rest(&mut world).await, "the cluster did not come up; see {}", directory.display());

    let stop = CancellationToken::new();
    let mut writers = JoinSet::new();
    for _ in 0..client::WRITERS {
        writers.spawn(client::write(program.clone(), router.clone(), world.operator.ids.clone(), stop.clone()));
    }
    world.torture(&plan(settings.seed, &settings.kinds, settings.length)).await;
    world.heal().await;
    let healed = Instant::now();
    let mut forgiving = world.forgive();
    let rests = at_rest(&mut world).await;
    let rest = rests.then(|| healed.elapsed());
    if rests {
        program.note("program", "rest", json!({}));
        world.phase("rest");
    }
    let until = Instant::now() + CALM;
    while Instant::now() < until || (!forgiving.is_empty() && healed.elapsed() < PATIENCE) {
        world.look_after();
        while forgiving.try_join_next().is_some() {}
        tokio::time::sleep(LOOK).await;
    }
    watch::state(&program, &world.operator.managers).await;

    stop.cancel();
    while writers.join_next().await.is_some() {}
    world.stop().await;
    watchers.shutdown().await;
    drop(storage);
    let World { stage, counts, missed, .. } = world;
    let (path, lines) = history::merge(&directory);
    let verdict = crate::check(&path);
    Report::new(settings, path, &lines, &counts, missed, rest, stage.odd_ends, verdict)
}

/// The given one, with a directory of this run's own in it; else a temporary one.
fn directory(settings: &Settings) -> PathBuf {
    let name = format!("torture-{:?}-{}-", settings.store, settings.seed).to_lowercase();
    let parent = settings.directory.clone().unwrap_or_else(std::env::temp_dir);
    std::fs::create_dir_all(&parent).unwrap();
    let directory = tempfile::Builder::new().prefix(&name).tempdir_in(parent).unwrap().keep();
    std::fs::create_dir(history::parts(&directory)).unwrap();
    directory
}

fn run_line(settings: &Settings) -> serde_json::Value {
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap();
    let Settings { seed, store, length, kinds, .. } = settings;
    json!({
        "seed": seed,
        "minutes": length.as_secs_f64() / 60.0,
        "store": store,
        "lease_ttl_ns": ns(LEASE),
        "margin_ns": ns(settings::margin()),
        "leader_ttl_ns": ns(TTL),
        "command_timeout_ns": ns(COMMAND_TIMEOUT),
        "number_of_shards": SHARDS,
        "bound_ns": ns(settings::bound(*store)),
        "kinds_expected": kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
    })
}

/// The storage of all executors, listening.
async fn storage(directory: &Path) -> (Process, std::net::SocketAddr) {
    let listen = free_address();
    let role = Role::Storage { listen, part: history::parts(directory).join("storage.jsonl") };
    let process = Process::role(directory, "storage", &role);
    let deadline = Instant::now() + PATIENCE;
    while tokio::net::TcpStream::connect(listen).await.is_err() {
        assert!(Instant::now() < deadline, "the storage does not listen; see {}", directory.display());
        tokio::time::sleep(LOOK).await;
    }
    (process, listen)
}

async fn world(settings: &Settings, directory: &Path, program: &Part, storage: std::net::SocketAddr) -> World {
    let ground = Ground::make(settings.store, directory).await;
    let managers: Vec<_> = (0..REPLICAS).map(|_| free_address()).collect();
    let stage = Stage {
        directory: directory.to_owned(),
        program: program.clone(),
        managers: managers.clone(),
        storage,
        seed: settings.seed,
        started: 0,
        odd_ends: BTreeMap::new(),
    };
    let mut replicas = Vec::new();
    for (at, grpc) in managers.iter().enumerate() {
        let store = Link::to(&ground.servers()).await;
        let mut told = settings::of_replicas(settings.store);
        told.extend(ground.settings(&store.addresses()));
        // Both ways to go on after a loss, and both ways to deal with a leader that hangs.
        told.push(format!("leadership.on_loss={}", if at == 0 { "standby" } else { "exit" }));
        told.push(format!("leadership.host.kill_hung={}", settings.seed.is_multiple_of(2)));
        replicas.push(Replica::new(format!("m{at}"), *grpc, free_address(), store, told));
    }
    let mut seats = Vec::new();
    for at in 0..SEATS {
        seats.push(Seat::new(&stage, format!("e{at}"), true).await);
    }
    seats.push(Seat::new(&stage, "g0".to_owned(), false).await);
    let operator = Operator { part: program.clone(), ids: Ids::default(), leaders: Leaders::default(), managers };
    let router = Link::to(&operator.managers).await;
    let (fences, quiet) = (Fences::default(), Arc::default());
    World { stage, replicas, seats, router, ground, operator, fences, quiet, counts: Default::default(), missed: 0 }
}

async fn watchers(world: &World) -> JoinSet<()> {
    let mut watchers = JoinSet::new();
    let program = &world.stage.program;
    watchers.spawn(watch::beat(program.clone()));
    watchers.spawn(watch::states(program.clone(), world.operator.managers.clone()));
    // Past every proxy.
    let reader = Reader::new(world.ground.settings(&world.ground.servers())).await;
    watchers.spawn(reader.follow(program.clone(), world.fences.clone(), Arc::clone(&world.quiet)));
    for (at, replica) in world.replicas.iter().enumerate() {
        watchers.spawn(watch::scrape(program.clone(), world.operator.leaders.clone(), at, replica.http));
        watchers.spawn(watch::read(program.clone(), at, replica.grpc));
    }
    watchers
}

/// Whether every shard is owned, in time.
async fn at_rest(world: &mut World) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        world.look_after();
        let state = watch::state(&world.stage.program, &world.operator.managers).await;
        if state.is_some_and(|state| state.is_owned && !state.executors.is_empty()) {
            return true;
        }
        tokio::time::sleep(LOOK).await;
    }
    false
}
