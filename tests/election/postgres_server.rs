//! The server that the other tests lean on does what its verbs say.

use std::time::{Duration, Instant};

use sqlx::Connection;

use crate::support::etcd::eventually;
use crate::support::postgres::Postgres;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_stops_dies_and_comes_back_with_its_data() {
    let mut postgres = Postgres::start().await;
    postgres.execute("CREATE TABLE kept (it int); INSERT INTO kept VALUES (1)").await;
    let mut client = postgres.client().await;
    postgres.kill();
    assert!(client.ping().await.is_err(), "a session of a server that was killed");
    postgres.start_again().await;
    assert_eq!(postgres.column("SELECT it FROM kept").await, ["1"]);
    let stopping = Instant::now();
    postgres.stop();
    assert!(stopping.elapsed() < Duration::from_secs(5), "{:?}", stopping.elapsed());
    postgres.start_again().await;
    assert_eq!(postgres.column("SELECT it FROM kept").await, ["1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_paused_answers_nobody_until_it_goes_on() {
    let postgres = Postgres::start().await;
    let mut client = postgres.client().await;
    postgres.pause();
    assert!(tokio::time::timeout(Duration::from_millis(300), client.ping()).await.is_err());
    assert!(tokio::time::timeout(Duration::from_millis(300), postgres.client()).await.is_err());
    postgres.go_on();
    postgres.client().await.ping().await.unwrap();
    let mut other = postgres.client().await;
    assert!(postgres.terminate_backends("te%").await >= 1);
    eventually("the end of the session", async || other.ping().await.is_err().then_some(())).await;
}
