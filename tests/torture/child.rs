//! Parts of a run that are processes of their own: executors, which are to be killed, and the storage that they write to.
//!
//! This binary runs itself again with [`ROLE`] set, and asks for the one test below.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{executor, storage};

/// Says what a child is to do, as JSON.
pub const ROLE: &str = "TORTURE_ROLE";

#[derive(Debug, Serialize, Deserialize)]
pub enum Role {
    Executor(Executor),
    Storage { listen: SocketAddr, part: PathBuf },
}

/// What an executor's process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Executor {
    pub id: String,
    pub listen: SocketAddr,
    pub advertise: SocketAddr,
    pub managers: Vec<SocketAddr>,
    pub storage: SocketAddr,
    /// What it writes down, and by what name.
    pub part: PathBuf,
    pub name: String,
    /// Draws how long shards take to stop.
    pub seed: u64,
}

#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // No orphan outlives its parent, however that one ends.
    std::thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        std::process::exit(1);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let code = match serde_json::from_str(&role).unwrap() {
        Role::Executor(told) => runtime.block_on(executor::run(told)),
        Role::Storage { listen, part } => runtime.block_on(storage::serve(listen, &part)),
    };
    std::process::exit(code);
}
