//! A caller of the sharded counter (`examples/counter/`): increments keys, whoever owns them at the moment, and says how often it was told
//! that it worked. Until SIGTERM or Ctrl-C.
//!
//! ```sh
//! cargo run --example counter_client -- --keys 8
//! ```

use std::error::Error;
use std::time::Duration;

use clap::Parser as _;
use shard_manager::client::{NotOwner, Router};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// How long a shard may be without an owner before that is worth a line.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pauses between attempts grow from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Between two increments of a key.
const PACE: Duration = Duration::from_millis(20);
/// An answer that takes longer does not come.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Increments counters until it is asked to stop.
#[derive(clap::Parser)]
struct Arguments {
    /// Where managers may be, as host:port, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:9092")]
    manager: Vec<String>,
    /// How many keys: key-0, key-1 and so on.
    #[arg(long, default_value_t = 8)]
    keys: u32,
}

/// What became of one attempt.
enum Outcome {
    /// The owner said that it counted.
    Acknowledged,
    /// It did not count, for sure: it may be tried again.
    NotDone,
    /// It may have counted. Trying again might count twice, which is for the application to know: this one does not.
    Unknown,
}

#[derive(Default)]
struct Tally {
    acknowledged: u64,
    unknown: u64,
}

#[derive(Clone)]
struct Caller {
    /// Clones share the table.
    router: Router,
    http: reqwest::Client,
    stop: CancellationToken,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let router = Router::start(&arguments.manager)?;
    let http = reqwest::Client::builder().timeout(TIMEOUT).build()?;
    let caller = Caller { router, http, stop: CancellationToken::new() };

    let mut keys = JoinSet::new();
    for number in 0..arguments.keys {
        keys.spawn(caller.clone().count(format!("key-{number}")));
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    caller.stop.cancel();
    while let Some(counted) = keys.join_next().await {
        let (key, Tally { acknowledged, unknown }) = counted?;
        println!("{key} acknowledged {acknowledged} unknown {unknown}");
    }
    Ok(())
}

impl Caller {
    /// Increments one key over and over.
    async fn count(self, key: String) -> (String, Tally) {
        let mut tally = Tally::default();
        let mut pause = FIRST_PAUSE;
        while !self.stop.is_cancelled() {
            match self.increment(&key).await {
                Outcome::Acknowledged => tally.acknowledged += 1,
                Outcome::Unknown => tally.unknown += 1,
                Outcome::NotDone => {
                    // An owner that died stays the owner until its lease is over: patience, and not a storm of calls.
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            }
            pause = FIRST_PAUSE;
            sleep(PACE).await;
        }
        (key, tally)
    }

    /// One attempt.
    async fn increment(&self, key: &str) -> Outcome {
        // Out of memory, at once, save where the shard has no owner or the route is in doubt.
        let route = match self.router.route_of(key.as_bytes(), PATIENCE).await {
            Ok(route) => route,
            Err(reason) => {
                eprintln!("{key}: {reason}; the table is {:?} old", self.router.age());
                return Outcome::NotDone;
            }
        };
        let called = self.http.post(format!("{}/counters/{key}", route.owner.endpoint)).send().await;
        match called {
            Ok(answer) if answer.status().is_success() => Outcome::Acknowledged,
            Ok(answer) if answer.status() == reqwest::StatusCode::MISDIRECTED_REQUEST => {
                // Whoever is named at a higher epoch is tried next; else a manager is asked.
                let refusal = Status::from_header_map(answer.headers()).and_then(|status| NotOwner::of(&status));
                self.router.invalidate(&route, refusal.as_ref());
                Outcome::NotDone
            }
            Ok(answer) if answer.status() == reqwest::StatusCode::SERVICE_UNAVAILABLE => Outcome::NotDone,
            Ok(_) => Outcome::Unknown,
            Err(error) => {
                // Nobody is there, or does not answer: the manager may know of a new owner.
                self.router.invalidate(&route, None);
                if error.is_connect() { Outcome::NotDone } else { Outcome::Unknown }
            }
        }
    }
}
