//! What managers are asked: each RPC's request, as bytes, up to the coordinator, which is away. No answer but a refusal may come back, and
//! it says why.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use shard_manager::api::nursery::Nursery;
use shard_manager::api::{Leading, admin, manager};
use shard_manager::coordinator::Handle;
use shard_manager::metrics::Metrics;
use shard_manager::published::Published;
use shard_manager::rpc::ready::shard_manager_server::ShardManager;
use shard_manager::rpc::shard_manager_admin_server::ShardManagerAdmin;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

thread_local! {
    static CALLED: (tokio::runtime::Runtime, Leading) = {
        let (handle, _) = Handle::new(CancellationToken::new(), Duration::from_secs(1));
        let leading = Leading {
            handle,
            published: Arc::new(Published::default()),
            metrics: Arc::new(Metrics::new().expect("metrics")),
            number_of_shards: 64,
            identity: "fuzz".to_owned(),
            nursery: Nursery::default(),
            step_down: CancellationToken::new(),
        };
        (tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"), leading)
    };
}

fn refused<T>(answer: Result<T, Status>) {
    if let Err(status) = answer {
        assert!(!status.message().is_empty(), "a refusal says why: {status:?}");
    }
}

macro_rules! ask {
    ($runtime:expr, $service:expr, $call:ident, $bytes:expr) => {
        if let Ok(request) = Message::decode($bytes) {
            refused($runtime.block_on($service.$call(Request::new(request))))
        }
    };
}

fuzz_target!(|data: &[u8]| {
    let Some((call, bytes)) = data.split_first() else { return };
    CALLED.with(|(runtime, leading)| {
        let (manager, admin) = (manager::Service(leading.clone()), admin::Service(leading.clone()));
        match call % 17 {
            0 => ask!(runtime, manager, register, bytes),
            1 => ask!(runtime, manager, renew_lease, bytes),
            2 => ask!(runtime, manager, deregister, bytes),
            3 => ask!(runtime, manager, get_routing_table, bytes),
            4 => ask!(runtime, manager, watch_routing_table, bytes),
            5 => ask!(runtime, admin, get_status, bytes),
            6 => ask!(runtime, admin, list_executors, bytes),
            7 => ask!(runtime, admin, drain_executor, bytes),
            8 => ask!(runtime, admin, cordon_executor, bytes),
            9 => ask!(runtime, admin, uncordon_executor, bytes),
            10 => ask!(runtime, admin, remove_executor, bytes),
            11 => ask!(runtime, admin, admit_executor, bytes),
            12 => ask!(runtime, admin, move_shards, bytes),
            13 => ask!(runtime, admin, plan_change, bytes),
            14 => ask!(runtime, admin, explain_shard, bytes),
            15 => ask!(runtime, admin, pause_rebalancing, bytes),
            _ => ask!(runtime, admin, resume_rebalancing, bytes),
        }
    });
});
