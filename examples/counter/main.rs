//! A sharded counter: a small executor that keeps every rule. docs/executors.md goes through it step by step.
//!
//! Every key has a counter, and every key belongs to a shard. Whoever owns the shard counts, in a SQLite file that all executors share.
//! With a manager running (`cargo run -- serve`):
//!
//! ```sh
//! cargo run --example counter -- --id a --listen 127.0.0.1:7001 --storage counters.db
//! curl -X POST http://127.0.0.1:7001/counters/apples
//! ```

mod counters;
mod http;
mod storage;

use std::error::Error;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser as _;
use shard_manager::client::{ExecutorSession, Router};
use shard_manager::types::ExecutorId;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use counters::Counters;
use storage::Storage;

/// How long the manager has to move the shards away when this process is asked to end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A sharded counter.
#[derive(clap::Parser)]
struct Arguments {
    /// The executor's stable name; no other process may use it.
    #[arg(long)]
    id: ExecutorId,
    /// Where managers may be, as host:port, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:9092")]
    manager: Vec<String>,
    /// Where to serve the manager and callers; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where both of them reach this very process, as host:port. Default: the address listened on.
    #[arg(long)]
    advertise: Option<String>,
    /// The storage: a file that all executors share.
    #[arg(long)]
    storage: PathBuf,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let stderr = std::io::stderr;
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(stderr().is_terminal()).with_writer(stderr).init();
    run(Arguments::parse()).await
}

async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    // Before the session begins, so that no signal is missed that comes while it does.
    let mut terminate = signal(SignalKind::terminate())?;
    let counters = Counters::new(Storage::open(&arguments.storage).await?);
    // An executor is a caller too: it wants to know who owns what it does not own itself.
    let router = Router::start(&arguments.manager)?;

    let mut builder = ExecutorSession::builder(arguments.id, counters.clone())
        .managers(&arguments.manager)
        .listen(arguments.listen)
        .serve(http::routes(counters, router));
    if let Some(address) = arguments.advertise {
        builder = builder.advertise(address);
    }
    let mut session = builder.start().await?;
    println!("listens on {}", session.local_addr());

    tokio::select! {
        // Unasked: a newer process has our id, or the manager refuses us. Every shard has stopped by now, and starting again at once
        // would only take the id back from the newer one.
        end = session.ended() => return Ok(end?),
        _ = terminate.recv() => {}
    }
    // Callers are served on, while the manager gives one shard after the other to somebody else.
    session.leave(LEAVE_TIMEOUT).await?;
    Ok(())
}
