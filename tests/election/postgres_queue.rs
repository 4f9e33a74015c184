//! PostgreSQL, from the first attempt to the win: what goes wrong while somebody waits.

use std::time::{Duration, Instant};

use shard_manager::election::postgres::{Options, PostgresElection};
use shard_manager::election::{Candidacy, Election, Error, Patience, Pulse};
use tokio_util::sync::CancellationToken;

use crate::postgres_rig::{Candidate, OURS, left_ms, listeners, number, row, server, server_of};
use crate::rig::lost;
use crate::support::etcd::eventually;
use crate::support::postgres::Postgres;
use crate::support::proxy::Proxy;

const TTL: Duration = Duration::from_secs(3);

/// Longer than any hand-over may take that was announced, shorter than any that was not.
const PROMPT: Duration = Duration::from_millis(700);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_replica_wins_at_once_and_a_second_one_waits_longer_than_the_lease() {
    let postgres = Postgres::start().await;
    let first = Candidate::new("first", &postgres, TTL);
    let began = Instant::now();
    let leader = first.wins().await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!((number(&leader), first.failures()), (1, 0));

    let second = Candidate::new("second", &postgres, TTL);
    let standing = second.waits(&postgres, "first").await;
    tokio::time::sleep(TTL * 2).await;
    assert!(!standing.task.is_finished());
    assert_eq!(row(&postgres).await, Some((1, "first".to_owned(), false)));
    leader.release().await.unwrap();
    let leader = standing.wins().await;
    assert_eq!((number(&leader), second.failures(), leader.takeover_grace()), (2, 0, Duration::ZERO));
    assert_eq!(row(&postgres).await, Some((2, "second".to_owned(), false)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_one_that_must_not_wait_fails_at_once_and_names_the_holder() {
    let postgres = Postgres::start().await;
    let hasty = || Candidate::with("hasty", server(&postgres, postgres.address, TTL / 2), TTL, Patience::FailAtOnce);
    let leader = Candidate::new("first", &postgres, TTL).wins().await;
    let began = Instant::now();
    let Err(Error::HeldElsewhere { what, holder }) = hasty().campaigns().await else { panic!("it does not lead") };
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(holder == "first" && what.contains("managers"), "{what} {holder}");
    leader.release().await.unwrap();
    let leader = hasty().wins().await;
    assert_eq!(number(&leader), 2);

    // Nobody listens there: no waiting for that either.
    let nowhere = server(&postgres, crate::support::free_address(), TTL / 2);
    let unreachable = Candidate::with("hasty", nowhere, TTL, Patience::FailAtOnce);
    assert!(matches!(unreachable.campaigns().await, Err(Error::Store { .. })));
    assert_eq!(unreachable.failures(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_race_for_a_row_that_is_over_never_both_win() {
    let postgres = Postgres::start().await;
    let candidates: Vec<Candidate> = ["first", "second"]
        .map(|name| Candidate::with(name, server(&postgres, postgres.address, TTL / 2), TTL, Patience::FailAtOnce))
        .into();
    let mut client = postgres.client().await;
    let mut wins = [0, 0];
    for round in 1..=1000 {
        let (a, b) = tokio::join!(candidates[0].campaigns(), candidates[1].campaigns());
        let (won, leader) = match (a, b) {
            (Ok(leader), Err(Error::HeldElsewhere { .. })) => (0, leader),
            (Err(Error::HeldElsewhere { .. }), Ok(leader)) => (1, leader),
            other => panic!("round {round}: {:?}", (other.0.map(|_| ()), other.1.map(|_| ()))),
        };
        assert_eq!(number(&leader), round);
        wins[won] += 1;
        leader.release().await.unwrap();
        // Not given up: run out.
        let expire = "UPDATE managers.leader SET expires_at = clock_timestamp()";
        sqlx::query(expire).execute(&mut client).await.unwrap();
    }
    println!("won by each: {wins:?}");
    assert!(wins.iter().all(|wins| *wins > 0), "{wins:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_is_followed_as_soon_as_its_row_is_over_and_with_grace() {
    let postgres = Postgres::start().await;
    let proxy = Proxy::to(postgres.address).await;
    let mut leader = Candidate::at("first", &postgres, proxy.address, TTL).wins().await;
    let standing = Candidate::new("second", &postgres, Duration::from_secs(2)).waits(&postgres, "first").await;
    proxy.black_hole();
    let left = Duration::from_millis(left_ms(&postgres).await.unsigned_abs());
    let cut = Instant::now();
    let lost_first = async {
        lost(&mut leader).await;
        Instant::now()
    };
    let (lost_at, (won_at, second)) = tokio::join!(lost_first, async {
        let leader = standing.wins().await;
        (Instant::now(), leader)
    });
    assert!(lost_at <= won_at, "the old one stopped before the new one began");
    // Not a poll later: it slept until the row's end.
    assert!(won_at - cut < left + Duration::from_millis(300), "{:?} of {left:?}", won_at - cut);
    assert_eq!(second.takeover_grace(), TTL, "the grace is the old leader's TTL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_over_is_taken_at_once_by_the_same_identity_too() {
    let postgres = Postgres::start().await;
    let leader = Candidate::new("same", &postgres, TTL).wins().await;
    postgres.execute("UPDATE managers.leader SET expires_at = clock_timestamp() - interval '1 hour'").await;
    let began = Instant::now();
    let again = Candidate::new("same", &postgres, TTL).wins().await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!((number(&leader), number(&again)), (1, 2));
    // The one before gives back what it has not any more: nothing happens.
    leader.release().await.unwrap();
    assert_eq!(row(&postgres).await, Some((2, "same".to_owned(), false)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_takes_milliseconds_and_a_lost_wake_up_a_third_of_a_ttl() {
    let ttl = Duration::from_secs(9);
    let postgres = Postgres::start().await;
    let proxy = Proxy::to(postgres.address).await;
    let mut leader = Candidate::new("0", &postgres, ttl).wins().await;
    let mut took = Vec::new();
    for round in 1..=20 {
        let standing = Candidate::new(&round.to_string(), &postgres, ttl).waits(&postgres, &(round - 1).to_string()).await;
        let began = Instant::now();
        leader.release().await.unwrap();
        leader = standing.wins().await;
        took.push(began.elapsed());
        assert!(took[round - 1] < PROMPT, "{took:?}");
        eventually("the listener is gone", async || (listeners(&postgres).await == 0).then_some(())).await;
    }
    took.sort();
    println!("hand-over, from the release to the win: median {:?}, longest {:?}", took[10], took[19]);

    // The network forgets the standby's connections while nothing is said on them.
    let deaf = Candidate::at("deaf", &postgres, proxy.address, ttl);
    let standing = deaf.waits(&postgres, "20").await;
    proxy.forget_connections();
    let began = Instant::now();
    leader.release().await.unwrap();
    standing.wins().await;
    // A third of a TTL until it asks, half a TTL until it gives up asking, and a new attempt.
    assert!(began.elapsed() < ttl / 3 + ttl / 2 + Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_breaks_is_replaced_and_nothing_that_was_said_meanwhile_is_missed() {
    let ttl = Duration::from_secs(9);
    let postgres = Postgres::start().await;
    let leader = Candidate::new("first", &postgres, ttl).wins().await;
    let second = Candidate::new("second", &postgres, ttl);
    let standing = second.waits(&postgres, "first").await;
    assert_eq!(postgres.terminate_backends("shard-manager waiting").await, 1);
    let began = Instant::now();
    leader.release().await.unwrap();
    let leader = standing.wins().await;
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    assert_eq!(second.failures(), 1);

    let third = Candidate::new("third", &postgres, ttl);
    let standing = third.waits(&postgres, "second").await;
    assert_eq!(postgres.terminate_backends("shard-manager waiting").await, 1);
    eventually("a new listener", async || (third.failures() == 1 && listeners(&postgres).await == 1).then_some(())).await;
    let began = Instant::now();
    leader.release().await.unwrap();
    standing.wins().await;
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_ends_a_campaign_leaves_the_row_free() {
    let postgres = Postgres::start().await;
    Candidate::new("first", &postgres, TTL).wins().await.release().await.unwrap();
    // A campaign is dropped at every moment from before it connects to after the win.
    let reached = server(&postgres, postgres.address, Duration::from_secs(15));
    for step in 0..100 {
        let candidate = Candidate::with("hasty", reached.clone(), Duration::from_secs(30), Patience::Wait);
        let moment = Duration::from_micros(500 * step);
        let _ = tokio::time::timeout(moment, candidate.election.campaign(&CancellationToken::new())).await;
    }
    // What is still under way may take the row and give it back; then it is free, and nobody is there who could take it.
    let ours = format!("SELECT pid FROM pg_stat_activity WHERE application_name LIKE '{OURS}'");
    eventually("no session of ours", async || postgres.column(&ours).await.is_empty().then_some(())).await;
    let free = async || row(&postgres).await.filter(|(.., is_over)| *is_over);
    let (number_before, ..) = eventually("a free row", free).await;
    assert!(number_before > 5, "of 100 campaigns that were dropped, {} had got the row", number_before - 1);

    // Asked to stop while the row is being taken: it waits behind a commit.
    let mut client = postgres.client().await;
    sqlx::raw_sql("BEGIN; SELECT 1 FROM managers.leader FOR KEY SHARE").execute(&mut client).await.unwrap();
    let standing = Candidate::new("second", &postgres, Duration::from_secs(30)).stands();
    eventually("one that waits for the row", async || {
        let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        (!postgres.column(waiting).await.is_empty()).then_some(())
    })
    .await;
    // The commit outlasts that. What waits behind it must not take the row afterwards, when nobody is there any more to renew it.
    standing.stops().await;
    sqlx::raw_sql("COMMIT").execute(&mut client).await.unwrap();
    eventually("no session of ours", async || postgres.column(&ours).await.is_empty().then_some(())).await;
    assert_eq!(row(&postgres).await.map(|(number, _, is_over)| (number, is_over)), Some((number_before, true)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_asked_to_stop_does_so_wherever_it_is() {
    let postgres = Postgres::start().await;
    let nowhere = crate::support::free_address();
    for pause in [0, 100, 700] {
        let standing = Candidate::at("first", &postgres, nowhere, Duration::from_secs(10)).stands();
        tokio::time::sleep(Duration::from_millis(pause)).await;
        standing.stops().await;
    }
    let proxy = Proxy::to(postgres.address).await;
    let _leader = Candidate::new("first", &postgres, Duration::from_secs(10)).wins().await;
    for black_hole in [false, true] {
        let second = Candidate::at("second", &postgres, proxy.address, Duration::from_secs(10));
        let standing = second.waits(&postgres, "first").await;
        if black_hole {
            proxy.black_hole();
        }
        standing.stops().await;
    }
    let token = CancellationToken::new();
    token.cancel();
    let third = Candidate::at("third", &postgres, nowhere, TTL);
    assert!(matches!(third.election.campaign(&token).await, Err(Error::Cancelled)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_comes_later_or_hangs_is_waited_for() {
    let mut postgres = Postgres::start().await;
    postgres.stop();
    let first = Candidate::new("first", &postgres, TTL);
    let standing = first.stands();
    eventually("two failures", async || (first.failures() >= 2).then_some(())).await;
    postgres.start_again().await;
    let leader = standing.wins().await;

    let second = Candidate::new("second", &postgres, TTL);
    let standing = second.waits(&postgres, "first").await;
    postgres.pause();
    eventually("two failures", async || (second.failures() >= 2).then_some(())).await;
    assert_eq!(*second.election.leader().unwrap().borrow(), None, "who led may be gone by now");
    postgres.go_on();
    drop(leader);
    standing.wins().await;
}

#[test]
fn a_ttl_that_cannot_be_kept_is_refused() {
    for (ttl, request_timeout) in [(1000, 100), (1500, 100), (2500, 100), (2000, 1001), (0, 100)] {
        let options = Options {
            ttl: Duration::from_millis(ttl),
            candidacy: Candidacy {
                holder: "first".to_owned(),
                pulse: Pulse::new(),
                patience: Patience::Wait,
                announce_every: Duration::from_secs(30),
                on_failure: std::sync::Arc::new(|| {}),
            },
        };
        let server = server_of("postgres://127.0.0.1:1/none".to_owned(), Duration::from_millis(request_timeout));
        let refused = PostgresElection::new(server, options).unwrap_err().to_string();
        assert!(refused.contains("leadership.lease_ttl = ") && refused.contains("whole seconds, at least 2s"), "{refused}");
    }
}
