//! A caller's router, with scripted managers on the other side.

use std::sync::Arc;
use std::time::Duration;

use shard_manager::client::{NotOwner, Route, Router};
use shard_manager::types::{Epoch, ShardId};

use crate::fake::{Manager, eventually};
use crate::log::Log;

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

/// A watch may have gone on for hours: what counts is since when the manager is away.
#[tokio::test]
async fn the_log_says_how_long_the_manager_is_away_and_not_how_long_it_was_watched() {
    let log = Log::start();
    let manager = Manager::start(3000, &[]).await;
    let router = Router::start([manager.address.to_string()]).unwrap();
    router.route(ShardId(0), Duration::from_secs(10)).await.unwrap();
    eventually("a watch of some age", || router.age().unwrap() > Duration::from_secs(2)).await;
    manager.end_watches();
    let lost = || log.lines(&["WARN", "no manager shows its routing table"]);
    eventually("a line", || !lost().is_empty()).await;
    assert!(lost()[0].contains("ms now;") || lost()[0].contains("µs now;"), "{:?}", lost());
}
