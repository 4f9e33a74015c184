//! The storage that all executors write to. It compares epochs, for each shard, in the same step that writes, and writes down what it did.
//! It is never broken itself; what lies between it and executors is.
//!
//! One request is one line of JSON over a connection of its own, and so is the answer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::history::Part;
use crate::settings::LEASE;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_millis(800);
/// How long a request that nobody waits for any more may still be on its way: as networks do, it may arrive when its sender has given up.
const LINGER: Duration = LEASE.saturating_mul(3);

/// What an executor asks for, always as the owner of a shard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    pub shard: u32,
    pub epoch: u64,
    pub executor: String,
    pub incarnation: u64,
    /// Nothing is written where there is none: from now on, lower epochs are refused.
    pub write: Option<Write>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Write {
    pub key: String,
    pub value: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Done,
    /// Somebody came with this higher epoch before. Nothing was changed.
    Fenced {
        seen: u64,
    },
}

/// Serves until it is killed.
pub async fn serve(listen: SocketAddr, part: &Path) -> i32 {
    let listener = TcpListener::bind(listen).await.unwrap();
    let (part, fences) = (Part::create(part), Arc::new(Mutex::new(HashMap::new())));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (part, fences) = (part.clone(), Arc::clone(&fences));
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            // A request that was cut off on its way was not made.
            if stream.read_line(&mut line).await.is_ok()
                && let Ok(request) = serde_json::from_str(&line)
            {
                let answer = answer(&fences, &part, request);
                stream.write_all(format!("{}\n", serde_json::to_string(&answer).unwrap()).as_bytes()).await.ok();
                // Who asked closes the connection: what is on its way through a proxy would be lost otherwise.
                stream.read_line(&mut line).await.ok();
            }
        });
    }
}

fn answer(fences: &Mutex<HashMap<u32, u64>>, part: &Part, request: Request) -> Answer {
    // Held until it is written down: the order of the lines is the order of what was done.
    let mut fences = fences.lock().unwrap_or_else(PoisonError::into_inner);
    let Request { shard, epoch, executor, incarnation, write } = request;
    let fence = fences.entry(shard).or_insert(0);
    if epoch < *fence {
        let seen = *fence;
        let fields = json!({"shard": shard, "epoch": epoch, "seen": seen, "executor": executor, "incarnation": incarnation});
        part.note("storage", "refused", fields);
        return Answer::Fenced { seen };
    }
    *fence = epoch;
    let mut fields = json!({"shard": shard, "epoch": epoch, "executor": executor, "incarnation": incarnation});
    match write {
        None => part.note("storage", "raised", fields),
        Some(Write { key, value }) => {
            fields["key"] = key.into();
            fields["value"] = value.into();
            part.note("storage", "written", fields);
        }
    }
    Answer::Done
}

/// Asks once. `None`: it may have been done, or be done later.
pub async fn ask(storage: SocketAddr, request: &Request) -> Option<Answer> {
    let line = format!("{}\n", serde_json::to_string(request).unwrap());
    let (answered, answer) = oneshot::channel();
    tokio::spawn(timeout(LINGER, async move {
        let mut stream = BufReader::new(TcpStream::connect(storage).await.ok()?);
        stream.write_all(line.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_line(&mut answer).await.ok()?;
        answered.send(serde_json::from_str::<Answer>(&answer).ok()?).ok()
    }));
    timeout(PATIENCE, answer).await.ok()?.ok()
}
