//! A caller's router, with scripted managers on the other side.

use std::sync::Arc;
use std::time::Duration;

use shard_manager::client::{NotOwner, Route, Router};
use shard_manager::types::{Epoch, ShardId};

use crate::fake::{Manager, eventually};

/// Refusals that name a newer owner need no question to a manager. They came faster than a silent manager is given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_says_nothing_is_left_also_while_executors_refuse() {
    let (silent, other) = (Manager::start(3000, &[]).await, Manager::start(3000, &[]).await);
    let router = Router::start([silent.address.to_string(), other.address.to_string()]).unwrap();
    let route = router.route(ShardId(0), Duration::from_secs(10)).await.unwrap();
    let refuse = || {
        let known = router.not_owner(ShardId(0)).current.unwrap_or_else(|| route.clone());
        let age = u64::try_from(router.age().unwrap().as_millis()).unwrap();
        let named = Route { epoch: Epoch(known.epoch.0 + 1 + age), owner: Arc::clone(&known.owner), ..known };
        router.invalidate(&route, Some(&NotOwner { shard: ShardId(0), current: Some(named) }));
        other.watches() > 0
    };
    eventually("a question to the other manager", refuse).await;
    assert_eq!(silent.watches(), 1);
}
