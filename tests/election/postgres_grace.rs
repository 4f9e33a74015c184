//! PostgreSQL: a grace that a takeover owes (L8) is owed until it is over, whoever leads meanwhile; and a row is over that nobody
//! renews, whatever it says.

use std::time::{Duration, Instant};

use crate::postgres_rig::{Candidate, number, row};
use crate::support::etcd::eventually;
use crate::support::postgres::Postgres;

const TTL: Duration = Duration::from_secs(3);

/// What a database's clock that jumps looks like to everybody; the leader does not know.
const JUMP: &str = "UPDATE managers.leader SET expires_at = clock_timestamp() - interval '1 second'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grace_is_inherited_from_a_leader_that_gave_up_in_order_before_it_was_over() {
    let postgres = Postgres::start().await;
    let first = Candidate::new("first", &postgres, TTL * 2).wins().await;
    postgres.execute(JUMP).await;
    let second = Candidate::new("second", &postgres, TTL).wins().await;
    assert_eq!(second.takeover_grace(), TTL * 2);
    second.release().await.unwrap();
    // Nor does a third one forget it that hardly led.
    for name in ["third", "fourth"] {
        let began = Instant::now();
        let next = Candidate::new(name, &postgres, TTL).wins().await;
        assert!(began.elapsed() < Duration::from_secs(1), "it is free at once all the same: {:?}", began.elapsed());
        assert_eq!(next.takeover_grace(), TTL * 2, "{name}");
        next.release().await.unwrap();
    }
    // It ends with one who led for as long.
    let last = Candidate::new("last", &postgres, TTL).wins().await;
    tokio::time::sleep(TTL * 2).await;
    last.release().await.unwrap();
    let next = Candidate::new("next", &postgres, TTL).wins().await;
    assert_eq!((number(&next), next.takeover_grace()), (6, Duration::ZERO));
    drop(first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grace_is_inherited_from_a_leader_of_a_smaller_ttl_that_died_before_it_was_over() {
    let postgres = Postgres::start().await;
    let first = Candidate::new("first", &postgres, TTL * 2).wins().await;
    postgres.execute(JUMP).await;
    let second = Candidate::new("second", &postgres, Duration::from_secs(2)).wins().await;
    let ttl = async || postgres.column("SELECT ttl_ms FROM managers.leader").await.remove(0);
    assert_eq!(ttl().await, "6000");
    postgres.execute(JUMP).await;
    let third = Candidate::new("third", &postgres, Duration::from_secs(2)).wins().await;
    assert_eq!(third.takeover_grace(), TTL * 2);
    // Once it is over, the row says what its leader's own successor owes.
    eventually("the own TTL in the row", async || (ttl().await == "2000").then_some(())).await;
    postgres.execute(JUMP).await;
    let next = Candidate::new("next", &postgres, TTL).wins().await;
    assert_eq!(next.takeover_grace(), Duration::from_secs(2));
    drop((first, second, third));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grace_is_inherited_over_a_row_that_was_deleted_and_over_a_campaign_that_may_have_won() {
    let postgres = Postgres::start().await;
    let first = Candidate::new("first", &postgres, TTL).wins().await;
    postgres.execute("DELETE FROM managers.leader").await;
    let second = Candidate::new("second", &postgres, TTL).wins().await;
    assert_eq!(second.takeover_grace(), TTL);
    second.release().await.unwrap();

    // A take that is asked for while a commit holds the row; nobody hears its answer.
    let mut client = postgres.client().await;
    sqlx::raw_sql("BEGIN; SELECT 1 FROM managers.leader FOR KEY SHARE").execute(&mut client).await.unwrap();
    let standing = Candidate::new("third", &postgres, Duration::from_secs(30)).stands();
    eventually("one that waits for the row", async || {
        let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        (!postgres.column(waiting).await.is_empty()).then_some(())
    })
    .await;
    // Before the row is free: else it may win first.
    standing.shutdown.cancel();
    let stopping = tokio::spawn(standing.stops());
    sqlx::raw_sql("COMMIT").execute(&mut client).await.unwrap();
    stopping.await.unwrap();
    eventually("a free row", async || row(&postgres).await.filter(|(.., is_over)| *is_over)).await;
    let next = Candidate::new("next", &postgres, TTL).wins().await;
    assert!(next.takeover_grace() >= TTL, "{:?}", next.takeover_grace());
    drop(first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_lasts_for_days_or_for_ever_is_taken_where_nobody_renews_it() {
    let postgres = Postgres::start().await;
    Candidate::new("first", &postgres, TTL).wins().await.release().await.unwrap();
    for end in ["clock_timestamp() + interval '1 day'", "'infinity'"] {
        postgres.execute("DELETE FROM managers.leader").await;
        let made = "INSERT INTO managers.leader VALUES (1, 7, '\\x00000000000000000000000000000000', 'gone', 3000, ";
        postgres.execute(&format!("{made}{end})")).await;
        let began = Instant::now();
        let leader = Candidate::new("next", &postgres, TTL).wins().await;
        let took = began.elapsed();
        assert!((TTL..TTL * 2).contains(&took), "{end}: {took:?}");
        assert_eq!((number(&leader), leader.takeover_grace()), (8, TTL), "{end}");
        leader.release().await.unwrap();
    }
    // But not where somebody does, although the row says something else each time.
    let mut leader = Candidate::new("leader", &postgres, TTL).wins().await;
    let standing = Candidate::new("second", &postgres, TTL).waits(&postgres, "leader").await;
    postgres.execute("UPDATE managers.leader SET expires_at = 'infinity'").await;
    crate::postgres_rig::assert_held_for(&postgres, &mut leader, TTL * 2).await;
    assert!(!standing.task.is_finished());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_row_that_cannot_be_taken_is_asked_for_in_turns_with_pauses() {
    let postgres = Postgres::start().await;
    Candidate::new("first", &postgres, TTL).wins().await.release().await.unwrap();
    let trigger = "CREATE SEQUENCE public.asked; CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM nextval('public.asked'); RETURN NULL; END $$; \
         CREATE TRIGGER no BEFORE UPDATE ON managers.leader FOR EACH ROW EXECUTE FUNCTION public.no()";
    let second = Candidate::new("second", &postgres, TTL);
    // It looked at the tables before they changed.
    second.wins().await.release().await.unwrap();
    postgres.execute(trigger).await;
    let standing = second.stands();
    let asked = async || postgres.column("SELECT last_value FROM public.asked").await[0].parse::<i64>().unwrap();
    let began = Instant::now();
    eventually("some takes", async || (asked().await >= 5).then_some(())).await;
    let (times, took) = (asked().await, began.elapsed());
    assert!(took >= Duration::from_millis(300), "{times} times within {took:?}");
    postgres.execute("DROP TRIGGER no ON managers.leader").await;
    standing.wins().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_whose_tables_were_dropped_says_so_and_asks_for_them_no_more() {
    let postgres = Postgres::start().await;
    let leader = Candidate::new("first", &postgres, TTL).wins().await;
    let standing = Candidate::new("second", &postgres, TTL).waits(&postgres, "first").await;
    postgres.execute("DROP SCHEMA managers CASCADE").await;
    let ended = tokio::time::timeout(TTL * 2, standing.task).await.expect("an end in time").unwrap();
    let Err(shard_manager::election::Error::Displaced(what)) = ended else { panic!("{:?}", ended.map(drop)) };
    assert!(what.contains("the schema managers of"), "{what}");
    drop(leader);
}
