//! PostgreSQL, from the win to the loss: how long a leader may believe, and what the row says meanwhile.

use std::time::{Duration, Instant};

use shard_manager::clock;
use shard_manager::election::{Leadership, Lost};
use shard_manager::types::BootInstant;
use sqlx::Row;

use crate::postgres_rig::{Candidate, OURS, assert_held_for, left_ms, number, row};
use crate::rig::{SLACK, deadline, deadlines, lost};
use crate::support::etcd::eventually;
use crate::support::postgres::Postgres;
use crate::support::proxy::Proxy;

const TTL: Duration = Duration::from_secs(3);

async fn leader_behind_proxy() -> (Postgres, Proxy, Candidate, Leadership) {
    let postgres = Postgres::start().await;
    let proxy = Proxy::to(postgres.address).await;
    let candidate = Candidate::at("first", &postgres, proxy.address, TTL);
    let leader = candidate.wins().await;
    (postgres, proxy, candidate, leader)
}

/// Waits for the loss, and checks that it comes at the deadline, which is not beyond `latest`.
async fn assert_expires_by(leader: &mut Leadership, latest: BootInstant) {
    let receiver = deadlines(leader);
    let believed = deadline(leader);
    assert!(believed <= latest, "believed until {believed:?}, at most {latest:?}");
    let reason = lost(leader).await;
    let (early, late) = (believed.since(clock::now()), clock::now().since(latest));
    assert!(matches!(reason, Lost::Expired(_)), "{reason}");
    assert!(late < SLACK && early.is_zero(), "{late:?} after the deadline, {early:?} before it");
    assert_eq!(*receiver.borrow(), BootInstant::default(), "after a loss there is nothing to believe in");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_are_ended_cost_no_leadership() {
    let (postgres, proxy, _, mut leader) = leader_behind_proxy().await;
    let before = deadline(&leader);
    assert_eq!(postgres.terminate_backends(OURS).await, 1);
    assert_held_for(&postgres, &mut leader, TTL + Duration::from_secs(1)).await;
    assert!(deadline(&leader) > before);
    proxy.drop_all();
    assert_held_for(&postgres, &mut leader, TTL + Duration::from_secs(1)).await;
    assert_eq!(postgres.terminate_backends(OURS).await, 1, "one session at a time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_forgotten_by_the_network_is_replaced_within_the_deadline() {
    let (postgres, proxy, _, mut leader) = leader_behind_proxy().await;
    proxy.forget_connections();
    assert_held_for(&postgres, &mut leader, TTL * 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_restarts_within_the_ttl_costs_no_leadership() {
    let ttl = Duration::from_secs(20);
    let mut postgres = Postgres::start().await;
    let mut leader = Candidate::new("first", &postgres, ttl).wins().await;
    let began = Instant::now();
    postgres.stop();
    postgres.start_again().await;
    postgres.kill();
    postgres.start_again().await;
    assert!(began.elapsed() < ttl / 2, "this machine is too slow for the test: {:?}", began.elapsed());
    assert_held_for(&postgres, &mut leader, ttl + Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_stands_still_for_three_ttl_is_no_reason_to_believe_on() {
    let postgres = Postgres::start().await;
    let mut leader = Candidate::new("first", &postgres, TTL).wins().await;
    // Idle for half a TTL: from then on it is not a full one.
    tokio::time::sleep(TTL / 2).await;
    let stopped = clock::now();
    postgres.pause();
    assert!(deadline(&leader) > stopped, "it was renewed while nothing happened");
    assert_expires_by(&mut leader, stopped.after(TTL)).await;
    clock::sleep_until(stopped.after(TTL * 3)).await;
    postgres.go_on();
    leader.release().await.unwrap();
    let next = Candidate::new("second", &postgres, TTL).wins().await;
    assert_eq!(number(&next), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_stops_a_ttl_after_its_last_acknowledged_send() {
    let (postgres, proxy, _, mut leader) = leader_behind_proxy().await;
    let cut = clock::now();
    proxy.black_hole();
    let expiring = assert_expires_by(&mut leader, cut.after(TTL));
    // Connecting anew, again and again, extends nothing.
    let dropping = async {
        tokio::time::sleep(TTL / 2).await;
        proxy.drop_all();
    };
    tokio::join!(expiring, dropping);
    clock::sleep_until(cut.after(TTL * 3)).await;
    proxy.restore();
    proxy.drop_all();
    leader.release().await.unwrap();
    assert!(row(&postgres).await.unwrap().2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_come_late_do_not_move_the_deadline() {
    // Longer, since the first renewal takes two round trips.
    let ttl = TTL * 2;
    let postgres = Postgres::start().await;
    let proxy = Proxy::to(postgres.address).await;
    let leader = Candidate::at("first", &postgres, proxy.address, ttl).wins().await;
    let delay = Duration::from_millis(700);
    proxy.delay_answers(delay);
    // Answers that were on their way before.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut deadlines = deadlines(&leader);
    deadlines.borrow_and_update();
    for _ in 0..3 {
        deadlines.changed().await.unwrap();
        let (deadline, now) = (*deadlines.borrow_and_update(), clock::now());
        assert!(deadline <= now.after(ttl - delay), "renewed {:?} too far", deadline.since(now.after(ttl - delay)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_gone_or_another_ones_is_noticed_within_an_interval() {
    let changes = [
        ("deleted", "DELETE FROM managers.leader"),
        ("another number", "UPDATE managers.leader SET number = 7"),
        ("the same number with another token", "UPDATE managers.leader SET token = '\\x00000000000000000000000000000000'"),
        // Also what a clock that jumps forward by a minute looks like.
        ("over", "UPDATE managers.leader SET expires_at = expires_at - interval '1 minute'"),
    ];
    let postgres = Postgres::start().await;
    for (what, change) in changes {
        let mut leader = Candidate::new("first", &postgres, TTL).wins().await;
        let since = Instant::now();
        postgres.execute(change).await;
        let reason = lost(&mut leader).await;
        assert!(matches!(reason, Lost::Taken(_)), "{what}: {reason}");
        assert!(since.elapsed() < TTL / 3 + SLACK, "{what}: {:?}", since.elapsed());
        assert_eq!(deadline(&leader), BootInstant::default());
        let before = row(&postgres).await;
        leader.release().await.unwrap();
        // It is the token that says whose it is.
        if what.contains("token") {
            assert_eq!(row(&postgres).await, before, "{what}: what is another's stays as it is");
        }
        postgres.execute("DELETE FROM managers.leader").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_whose_clock_jumps_lets_in_a_successor_that_gives_the_old_leader_time() {
    let postgres = Postgres::start().await;
    let mut leader = Candidate::new("first", &postgres, TTL).wins().await;
    let second = Candidate::new("second", &postgres, TTL);
    postgres.execute("UPDATE managers.leader SET expires_at = expires_at - interval '1 minute'").await;
    let successor = second.wins().await;
    // The old one cannot know yet, and may answer; its writes are refused by the number.
    assert!(deadline(&leader) > clock::now());
    assert!(deadline(&leader) <= clock::now().after(successor.takeover_grace()));
    assert!(matches!(lost(&mut leader).await, Lost::Taken(_)));
    assert_eq!(row(&postgres).await, Some((2, "second".to_owned(), false)));

    // Backward: the row lasts longer than it should, nobody believes longer.
    postgres.execute("UPDATE managers.leader SET expires_at = expires_at + interval '1 minute'").await;
    assert!(deadline(&successor) <= clock::now().after(TTL));
    // The next renewal sets that right.
    eventually("a row that ends in time", async || (left_ms(&postgres).await <= 3000).then_some(())).await;
}

/// What the process says about time is how long, never when: its wall clock may say anything. And the deadline is CLOCK_BOOTTIME's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_statement_carries_an_instant_of_this_process() {
    let postgres = Postgres::start().await;
    // Every session logs its statements with what is bound to them.
    postgres.execute("ALTER SYSTEM SET log_statement = 'all'").await;
    postgres.execute("SELECT pg_reload_conf()").await;
    eventually("logging", async || (postgres.column("SELECT current_setting('log_statement')").await == ["all"]).then_some(()))
        .await;
    let leader = Candidate::new("first", &postgres, TTL).wins().await;
    let standing = Candidate::new("second", &postgres, TTL).waits(&postgres, "first").await;
    tokio::time::sleep(TTL / 2).await;
    leader.release().await.unwrap();
    standing.wins().await.release().await.unwrap();
    let log = postgres.log();
    let bound: Vec<&str> = log.lines().filter(|line| line.contains("DETAIL:  parameters:")).collect();
    assert!(bound.len() >= 5, "{log}");
    let duration = "'3000'";
    for line in bound {
        // Numbers of leaderships and durations have few digits, tokens are hexadecimal; an instant would have many.
        if line.contains("shard-manager preparing") {
            continue;
        }
        for value in line.split(" = ").skip(1).map(|value| value.split(", ").next().unwrap()) {
            let digits = value.chars().filter(char::is_ascii_digit).count();
            assert!(value.starts_with("'\\x") || value == duration || digits < 4, "{line}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_waits_neither_for_a_commit_nor_for_a_takeover_that_waits_for_one() {
    let postgres = Postgres::start().await;
    let mut leader = Candidate::new("first", &postgres, TTL).wins().await;
    let mut commit = postgres.client().await;
    sqlx::raw_sql("BEGIN; SELECT 1 FROM managers.leader FOR KEY SHARE").execute(&mut commit).await.unwrap();
    let mut takeover = postgres.client().await;
    let taking = tokio::spawn(async move {
        let take = "SELECT expires_at FROM managers.leader FOR UPDATE";
        sqlx::raw_sql(take).fetch_all(&mut takeover).await.map(|rows| rows.len())
    });
    eventually("a takeover that waits", async || {
        let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        (!postgres.column(waiting).await.is_empty()).then_some(())
    })
    .await;
    assert_held_for(&postgres, &mut leader, TTL * 2).await;
    // Nor does the next commit, of one who looks at the same row.
    let mut next = postgres.client().await;
    let quick = sqlx::raw_sql("BEGIN; SET LOCAL lock_timeout = '500ms'; SELECT 1 FROM managers.leader FOR KEY SHARE; COMMIT");
    quick.execute(&mut next).await.unwrap();
    assert!(!taking.is_finished());
    sqlx::raw_sql("COMMIT").execute(&mut commit).await.unwrap();
    assert_eq!(taking.await.unwrap().unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_queued_counts_from_when_it_executes_and_renews_nothing_that_is_over() {
    let ttl = Duration::from_secs(8);
    let postgres = Postgres::start().await;
    let mut leader = Candidate::new("first", &postgres, ttl).wins().await;
    let queued = async || {
        let waiting =
            "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE 'shard-manager %'";
        eventually("a renewal in the queue", async || (!postgres.column(waiting).await.is_empty()).then_some(())).await;
    };
    let mut blocker = postgres.client().await;
    sqlx::raw_sql("BEGIN; SELECT 1 FROM managers.leader FOR UPDATE").execute(&mut blocker).await.unwrap();
    queued().await;
    tokio::time::sleep(Duration::from_millis(1000)).await;
    let mut renewed = deadlines(&leader);
    renewed.borrow_and_update();
    let got = sqlx::raw_sql("ROLLBACK; SELECT clock_timestamp()::text").fetch_all(&mut blocker).await.unwrap();
    let got: String = got[0].get(0);
    let late = format!("SELECT expires_at - interval '8 seconds' - '{got}' > interval '-100 ms' FROM managers.leader");
    renewed.changed().await.unwrap();
    assert_eq!(postgres.column(&late).await, ["true"], "it counts from when it got the row");

    // Over by the time it gets the row.
    sqlx::raw_sql("BEGIN; SELECT 1 FROM managers.leader FOR UPDATE").execute(&mut blocker).await.unwrap();
    queued().await;
    sqlx::raw_sql("UPDATE managers.leader SET expires_at = clock_timestamp(); COMMIT").execute(&mut blocker).await.unwrap();
    assert!(matches!(lost(&mut leader).await, Lost::Taken(_)));
    assert!(left_ms(&postgres).await <= 0, "nor did anybody renew it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_coordinator_hangs_loses() {
    let postgres = Postgres::start().await;
    let first = Candidate::new("first", &postgres, TTL);
    let mut leader = first.wins().await;
    // Before it serves there is nothing that could hang.
    assert_held_for(&postgres, &mut leader, TTL + Duration::from_millis(500)).await;
    let until = Instant::now() + TTL + Duration::from_millis(500);
    while Instant::now() < until {
        first.pulse.beat();
        assert!(tokio::time::timeout(Duration::from_millis(50), leader.lost()).await.is_err());
    }
    let hung = Instant::now();
    let standing = Candidate::new("second", &postgres, TTL).stands();
    let reason = lost(&mut leader).await;
    assert!(matches!(reason, Lost::Expired(_)), "{reason}");
    assert!(hung.elapsed() < TTL + SLACK, "{:?}", hung.elapsed());
    leader.release().await.unwrap();
    standing.wins().await.release().await.unwrap();
    // The next campaign of the same process is not held back by how the last one ended.
    let mut leader = first.wins().await;
    assert_held_for(&postgres, &mut leader, TTL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_fails_is_told_in_time_and_one_without_release_happens_all_the_same() {
    let (postgres, proxy, _, leader) = leader_behind_proxy().await;
    proxy.black_hole();
    let since = Instant::now();
    let failure = leader.release().await.unwrap_err();
    assert!(since.elapsed() < TTL, "{failure} took {:?}", since.elapsed());
    proxy.restore();

    postgres.execute("UPDATE managers.leader SET expires_at = clock_timestamp()").await;
    let leader = Candidate::new("second", &postgres, TTL).wins().await;
    drop(leader);
    let since = Instant::now();
    eventually("a free row", async || row(&postgres).await.filter(|(.., is_over)| *is_over)).await;
    assert!(since.elapsed() < Duration::from_millis(500), "{:?}", since.elapsed());
    assert_eq!(postgres.column("SELECT isfinite(expires_at) FROM managers.leader").await, ["true"], "a grace is still owed");
}
