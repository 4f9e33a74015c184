//! What a client takes from a manager: answers, commands, tables and steps from one to the next.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use shard_manager::client::cache::Cache;
use shard_manager::client::wire;
use shard_manager::rpc::{ApplyAssignmentRequest, LeaseAnswer, WatchRoutingTableResponse};
use shard_manager::types::{BootInstant, ShardId};

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 3 {
        0 => {
            let _ = LeaseAnswer::decode(bytes).map(|answer| wire::answer(&answer));
        }
        1 => {
            let _ = ApplyAssignmentRequest::decode(bytes).map(|request| wire::push(&request));
        }
        _ => {
            let mut cache = Cache::default();
            let mut rest = bytes;
            while let Some((length, more)) = rest.split_first_chunk::<2>() {
                let (message, after) = more.split_at(more.len().min(usize::from(u16::from_be_bytes(*length))));
                rest = after;
                let Ok(message) = WatchRoutingTableResponse::decode(message) else { continue };
                let before = cache.table().cloned();
                if cache.take(BootInstant::default(), None, &message).is_err() {
                    assert_eq!(cache.table(), before.as_ref(), "what is refused changes nothing");
                }
                if let Some(table) = cache.table() {
                    (0..table.number_of_shards().min(64)).for_each(|shard| drop(cache.known(ShardId(shard))));
                    assert!(table.routes().count() <= table.number_of_shards() as usize);
                }
            }
        }
    }
});
