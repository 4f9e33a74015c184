//! Many at once.

use std::time::{Duration, Instant};

use crate::harness::{Cluster, Fake, PATIENCE, poll_until};

/// Case 28: 150 executors register at the same moment. All are acknowledged, in few commits, and all of it is durable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_executors_register_at_once() {
    let mut cluster = Cluster::start(&["executors.lease_ttl=10s"]).await;
    let before = cluster.table().await;
    let begun = Instant::now();
    let registrations: Vec<_> = (0..150)
        .map(|number| {
            let mut fake = Fake::new(&cluster.manager, &format!("executor-{number}"), number + 1);
            tokio::spawn(async move { fake.register().await.map(|answer| answer.version.unwrap()) })
        })
        .collect();
    for registration in registrations {
        let version = registration.await.unwrap().unwrap();
        assert!(version.revision > before.revision);
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    // Group commit. Fewer than a third would be enough to show it; the grants that follow are among these, too.
    let commits = cluster.table().await.revision - before.revision;
    assert!(commits < 50, "{commits} commits");

    cluster.manager.restart().await;
    let mut ids: Vec<String> = cluster.executors().await.into_iter().map(|it| it.id).collect();
    let mut expected: Vec<String> = (0..150).map(|number| format!("executor-{number}")).collect();
    ids.sort();
    expected.sort();
    assert_eq!(ids, expected);
    // Nobody renews: within a lease they are all gone, in few commits, too.
    poll_until("they lapsed", Duration::from_secs(13), async || cluster.executors().await.is_empty().then_some(())).await;
    let a = cluster.executor("a").await;
    cluster.at_rest_within(&["a"], PATIENCE).await;
    drop(a);
}
