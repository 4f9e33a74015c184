//! What operators read about one shard, or about why something waits: every sentence of it stands here.

use std::time::Duration;

use crate::assignment::command::Cause;
use crate::assignment::state::Pause;
use crate::types::{Epoch, ExecutorId, Term};

use super::history::Previous;

/// A length of time as people say it: `0.3 s`, `45 s`, `29 min`, `3 h 5 min`, `6 d 23 h`.
pub fn span(length: Duration) -> String {
    let seconds = length.as_secs();
    let tenths = length.subsec_millis() / 100;
    match seconds {
        0..10 if tenths > 0 => format!("{seconds}.{tenths} s"),
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A length of time that is known to the second.
fn seconds(length: Duration) -> String {
    span(Duration::from_secs(length.as_secs()))
}

/// A time of the week, which names one instant of the next seven days, in milliseconds since 1970.
fn time_of_week(unix_ms: u64) -> String {
    // 1970 began on a Thursday.
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let seconds = unix_ms / 1000;
    let day = DAYS[(seconds / 86_400 % 7) as usize];
    format!("{day} {:02}:{:02}:{:02} UTC", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// The pause in force, and how much of it is left.
pub fn paused(pause: &Pause, left: Duration) -> String {
    let by = if pause.by.is_empty() { "unknown" } else { &pause.by };
    let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
    let (until, left) = (time_of_week(pause.until_unix_ms), span(left));
    format!("rebalancing is paused until {until} (another {left}): asked by {by}{reason}")
}

pub fn joins_are_gathered(left: Duration) -> String {
    format!("joins are being gathered for another {}", span(left))
}

pub fn nothing_is_granted(left: Duration, restored: bool) -> String {
    let why = if restored {
        "the store was restored to an older state, and executors may still hold shards by the newer one"
    } else {
        "an executor came from another cluster, whose leases may still run"
    };
    format!("nothing is granted for another {}: {why}", span(left))
}

pub fn store_takes_nothing(since: Duration) -> String {
    format!("the store has taken no commit for {}: nothing changes until it does; look at the store", span(since))
}

pub const NOT_SURE_TO_LEAD: &str =
    "this manager is not sure to lead any more: nothing changes until it is, or until another one leads";

pub const NOT_OPEN: &str = "this leader has just begun: executors cannot reach it yet";

/// Nobody takes shards: how many are how.
pub fn nobody_takes(counts: &[(&'static str, u32)]) -> String {
    if counts.is_empty() {
        return "no executor is registered: start one".to_owned();
    }
    let counts = counts.iter().map(|(how, count)| format!("{count} {} {how}", if *count == 1 { "is" } else { "are" }));
    let counts = counts.collect::<Vec<_>>().join(", ");
    format!("no executor can take shards: {counts}; start another one, or let one of these take shards again")
}

// Where it has been.

pub const NEVER_OWNED: &str = "nobody has ever owned it";

pub fn unowned_from_the_beginning(epoch: Epoch, age: Duration, term: Term) -> String {
    format!("nobody owned it when this leader began, {} ago (term {term}); its last epoch was {epoch}", seconds(age))
}

pub fn owned_from_the_beginning(owner: &ExecutorId, epoch: Epoch, age: Duration, term: Term) -> String {
    let age = seconds(age);
    format!("held by {owner} at epoch {epoch} since before this leader's time, which began {age} ago (term {term})")
}

/// Of a shard without an owner: how it lost the last one.
pub fn owned_until(previous: Previous, cause: Cause, ago: Duration) -> String {
    let (previous, ago) = (name(previous), seconds(ago));
    let why = match cause {
        Cause::Startup => "it never had an owner",
        Cause::LeaderChange => "an earlier leader had told it to stop it",
        Cause::Restored => "it could not be told whether that one really had it",
        Cause::Crash => "its lease ended",
        Cause::Drain => "it was drained, or it left",
        Cause::Rebalance => "for balance",
        Cause::NotAdmitted => "it had not started it in time",
        Cause::Superseded => "its process was replaced by a newer one",
        Cause::Operator => "an operator moved it",
    };
    format!("{previous} owned it until {ago} ago: {why}")
}

/// Of a shard that has an owner: the grant, and what came before it.
pub fn granted(owner: &ExecutorId, epoch: Epoch, ago: Duration, previous: Previous, cause: Cause) -> String {
    let grant = format!("granted to {owner} at epoch {epoch}, {} ago", seconds(ago));
    let after = match (previous, cause) {
        (Previous::Nobody, Cause::LeaderChange | Cause::Restored) => {
            return format!("{grant}; it had no owner when this leader began");
        }
        (Previous::Nobody, _) => return format!("{grant}; it never had an owner before"),
        (Previous::Known(previous), Cause::Restored) if previous == owner => {
            return format!("{grant}, in place of a lower one: an epoch above the recorded one was seen");
        }
        (Previous::Known(previous), Cause::Superseded) if previous == owner => {
            return format!("{grant}, after an earlier process of it");
        }
        (_, Cause::Startup) => "which had not started it",
        (_, Cause::LeaderChange) => "which an earlier leader had told to stop it",
        (_, Cause::Restored) => "of which could not be told whether it really had it",
        (_, Cause::Crash) => "whose lease ended",
        (_, Cause::Drain) => "which was drained or left",
        (_, Cause::Rebalance) => "for balance",
        (_, Cause::NotAdmitted) => "which had not started it in time",
        (_, Cause::Superseded) => "whose process was replaced by a newer one",
        (_, Cause::Operator) => "from which an operator moved it",
    };
    format!("{grant}, after {}, {after}", name(previous))
}

fn name(previous: Previous<'_>) -> &str {
    match previous {
        Previous::Nobody => "nobody",
        Previous::Somebody => "an executor",
        Previous::Known(id) => id.as_str(),
    }
}

/// Why an owner was told to stop it.
pub fn asked_back(owner: &ExecutorId, cause: Cause) -> String {
    let why = match cause {
        Cause::Drain => "it is drained, or it leaves",
        Cause::Rebalance => "it moves for balance",
        Cause::NotAdmitted => "it had not started it in time",
        Cause::Superseded => "a newer process took its place",
        Cause::Operator => "an operator moves it",
        Cause::LeaderChange => "an earlier leader said so",
        Cause::Restored => "it could not be told whether it really had it",
        Cause::Startup | Cause::Crash => "nobody is known to serve it",
    };
    format!("{owner} was told to stop it: {why}")
}

// What it waits for.

pub fn commit_that_grants(owner: &str) -> String {
    format!("the store to take the commit that grants it to {owner}")
}

pub const COMMIT_THAT_ASKS_BACK: &str = "the store to take the commit by which its owner is told to stop it";

pub const COMMIT_THAT_FREES: &str = "the store to take the commit by which it is free";

pub const NEXT_PASS: &str = "the next pass of the planner, which comes at once";

pub fn to_start(owner: &ExecutorId, left: Duration) -> String {
    format!("{owner} has {} left to start it (command sent, not admitted yet); after that it goes to somebody else", span(left))
}

pub fn to_stop(owner: &ExecutorId, left: Duration) -> String {
    format!("{owner} to stop it: confirmed by its answer, or in {} when its lease on it ends", span(left))
}

pub fn stopped(owner: &ExecutorId) -> String {
    format!("{owner} has stopped it: it is free with the next commit")
}

pub fn gone(owner: &ExecutorId) -> String {
    format!("{owner} is gone: it is free with the next commit")
}

pub fn lease_is_over(owner: &ExecutorId) -> String {
    format!("the lease of {owner} is over: it is free once the store has taken that in")
}

pub fn superseded(owner: &ExecutorId) -> String {
    format!("a newer process took the place of {owner}'s: it goes on there once the old one has stopped it, or its lease is over")
}

pub fn not_heard_yet(owner: &ExecutorId, left: Duration) -> String {
    format!("{owner} has not spoken to this leader yet: it loses its shards unless it does within {}", span(left))
}

pub fn not_heard(owner: &ExecutorId, silent: Duration, left: Duration) -> String {
    let (silent, left) = (span(silent), span(left));
    format!(
        "{owner} has not renewed its lease for {silent}: unless it does, the lease ends in {left}, and the shard goes to another"
    )
}

/// It would go elsewhere, and something keeps it where it is.
pub fn pinned(to: &str, for_balance: bool, why: &str) -> String {
    let kind = if for_balance { " for balance" } else { "" };
    format!("pinned: it would move to {to}{kind}, but {why}")
}

pub fn calm(left: Duration) -> String {
    format!("executors left a short while ago: nothing moves for balance for another {}", span(left))
}

pub fn unheard(executors: usize) -> String {
    let who = if executors == 1 { "1 executor was".to_owned() } else { format!("{executors} executors were") };
    format!("{who} not heard by this leader yet: no move for balance until then")
}

pub fn stays(owner: &ExecutorId, nobody: &str) -> String {
    format!("{owner} is to give it up, but {nobody}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_as_people_say_them() {
        for (ms, said) in [
            (0, "0 s"),
            (300, "0.3 s"),
            (3249, "3.2 s"),
            (9000, "9 s"),
            (10_900, "10 s"),
            (119_999, "119 s"),
            (120_000, "2 min"),
            (29 * 60_000 + 59_000, "29 min"),
            (3 * 3_600_000 + 300_000, "3 h 5 min"),
            (604_799_000, "6 d 23 h"),
        ] {
            assert_eq!(span(Duration::from_millis(ms)), said);
        }
        assert_eq!(time_of_week(0), "Thu 00:00:00 UTC");
        assert_eq!(time_of_week(1_700_000_000_000), "Tue 22:13:20 UTC", "14 November 2023");
    }

    #[test]
    fn a_pause_says_until_when_and_who_asked_and_why() {
        let left = Duration::from_secs(1770);
        let pause = Pause::new(1_700_000_000_000, "me@host", "a game is\non");
        assert_eq!(
            paused(&pause, left),
            "rebalancing is paused until Tue 22:13:20 UTC (another 29 min): asked by me@host: a game is on"
        );
        let pause = Pause::new(1_700_000_000_000, "", "");
        assert_eq!(paused(&pause, left), "rebalancing is paused until Tue 22:13:20 UTC (another 29 min): asked by unknown");
    }
}
