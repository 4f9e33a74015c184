//! Drives one incarnation of one executor towards its newest assignment.
//!
//! Level-triggered: an attempt always carries the whole of the newest assignment, so attempts may be lost, repeated or cut short at
//! any point. A newer assignment overtakes an attempt in flight. The link rests once the executor holds exactly what it should, or has
//! accepted a newer word than the one that the link has for it.

use std::time::Duration;

use tokio::sync::mpsc;
use tonic::Code;
use tonic::transport::Channel;
use tracing::{debug, warn};

use crate::assignment::command::{Assignment, Peer};
use crate::assignment::event::Event;
use crate::executors::Context;
use crate::holdings::Holdings;
use crate::metrics::CommandOutcome;
use crate::rpc::shard_executor_client::ShardExecutorClient;
use crate::rpc::{self, reason};
use crate::types::{MAX_NUMBER, Version};

/// The pause after an attempt that did not settle it: doubles from the first value to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The same where another attempt cannot help before something else happens.
const LONG_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// So many failures in a row that may be a race are no news.
const RACES: u32 = 2;

/// What an attempt came to.
struct Attempt {
    outcome: CommandOutcome,
    answer: Option<(Version, Holdings)>,
    /// Why it failed; `None` where the executor gave an answer that can be used.
    failed: Option<String>,
    /// Bounds of the pause before the next one.
    pause: (Duration, Duration),
    /// There need not be a next one.
    rests: bool,
    /// It may be no more than a race: a command that overtakes the answer to a registration finds an executor without a lease.
    may_be_race: bool,
}

/// Runs until nobody wants anything of this executor any more. What it was told to hold is kept only until it does: there may be a
/// million shards. So is what a call needs, in an allocation of its own: there may be thousands of links, and nearly all of them rest.
pub(super) async fn run(peer: Peer, mut wanted: mpsc::UnboundedReceiver<Assignment>, channel: Channel, context: Context) {
    let client = ShardExecutorClient::new(channel)
        .max_decoding_message_size(rpc::MAX_MESSAGE_BYTES)
        .max_encoding_message_size(rpc::MAX_MESSAGE_BYTES);
    let mut next = newest(&mut wanted).await;
    while let Some(assignment) = next {
        next = tokio::select! {
            biased;
            newer = newest(&mut wanted) => newer,
            () = Box::pin(drive(&peer, assignment, client.clone(), &context)) => newest(&mut wanted).await,
        };
    }
}

/// Waits for an assignment, and of several takes the last. Cancel-safe.
async fn newest(wanted: &mut mpsc::UnboundedReceiver<Assignment>) -> Option<Assignment> {
    let mut newest = wanted.recv().await?;
    while let Ok(newer) = wanted.try_recv() {
        newest = newer;
    }
    Some(newest)
}

/// Counts an attempt that was dropped before it had an outcome as overtaken.
struct InFlight<'a>(&'a Context, Option<CommandOutcome>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.metrics.commanded(self.1.unwrap_or(CommandOutcome::Overtaken));
    }
}

/// Tries until the executor holds `assignment`, reporting every answer upwards.
async fn drive(peer: &Peer, assignment: Assignment, mut client: ShardExecutorClient<Channel>, context: &Context) {
    let (mut failures, mut has_warned) = (0, false);
    loop {
        let mut in_flight = InFlight(context, None);
        let attempt = attempt(peer, &assignment, &mut client, context).await;
        in_flight.1 = Some(attempt.outcome);
        drop(in_flight);
        let warns = !has_warned && is_worth_a_warning(&attempt, failures);
        has_warned |= warns;
        log(peer, assignment.version, &attempt, failures, warns);
        if let Some((mark, held)) = attempt.answer {
            let Peer { slot, incarnation, .. } = *peer;
            // The coordinator takes reports in for as long as it lives; after that nobody needs this one.
            drop(context.reports.send(Event::Applied { slot, incarnation, mark, held }).await);
        }
        if attempt.rests {
            return;
        }
        tokio::time::sleep(pause_after(failures, attempt.pause)).await;
        failures += 1;
    }
}

/// Doubles with each failure, within the bounds; then somewhere between half of that and all of it, so that many links do not
/// keep step.
fn pause_after(failures: u32, (least, most): (Duration, Duration)) -> Duration {
    let pause = least.saturating_mul(1 << failures.min(16)).min(most);
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

/// What an executor is told: to hold exactly this, and to answer by `wait` at the latest.
pub(crate) fn request(peer: &Peer, assignment: &Assignment, wait: Duration) -> rpc::ApplyAssignmentRequest {
    rpc::ApplyAssignmentRequest {
        cluster_id: assignment.cluster_id.to_string(),
        version: Some(assignment.version.into()),
        executor_id: peer.id.to_string(),
        incarnation: peer.incarnation.0,
        assignment: Some((&*assignment.holdings).into()),
        wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
    }
}

async fn attempt(peer: &Peer, assignment: &Assignment, client: &mut ShardExecutorClient<Channel>, context: &Context) -> Attempt {
    let timeout = context.settings.command_timeout;
    // The executor answers a little before the deadline, so that a slow stop is told from a dead executor.
    let mut request = tonic::Request::new(request(peer, assignment, timeout.mul_f64(0.8)));
    request.set_timeout(timeout);
    match tokio::time::timeout(timeout, client.apply_assignment(request)).await {
        Err(_) => failed(CommandOutcome::TimedOut, PAUSE, "it did not answer in time"),
        Ok(Err(status)) => refused(&status),
        Ok(Ok(response)) => answered(assignment, response.into_inner(), context.settings.number_of_shards),
    }
}

fn answered(assignment: &Assignment, response: rpc::ApplyAssignmentResponse, number_of_shards: u32) -> Attempt {
    let mark = Version::from(response.mark.unwrap_or_default());
    let held = match response.held.unwrap_or_default().check(number_of_shards) {
        Ok(held) => held,
        Err(error) => return failed(CommandOutcome::Invalid, LONG_PAUSE, error.to_string()),
    };
    if mark < assignment.version || mark.term.0 > MAX_NUMBER || mark.revision.0 > MAX_NUMBER {
        let why = format!("it answered with mark {mark}, which is not {} or a little above", assignment.version);
        return failed(CommandOutcome::Invalid, LONG_PAUSE, why);
    }
    let rests = held == *assignment.holdings;
    let outcome = if rests { CommandOutcome::Settled } else { CommandOutcome::Unsettled };
    Attempt { outcome, answer: Some((mark, held)), failed: None, pause: PAUSE, rests, may_be_race: false }
}

/// What is taken of an answer, as the coordinator hears it.
#[cfg(any(test, shard_manager_fuzzing))]
pub(crate) fn answer_of(
    assignment: &Assignment,
    response: rpc::ApplyAssignmentResponse,
    number_of_shards: u32,
) -> Option<(Version, Holdings)> {
    answered(assignment, response, number_of_shards).answer
}

fn refused(status: &tonic::Status) -> Attempt {
    if let Some(name) = rpc::reason_of(status) {
        // Nothing changes until the executor registers, renews, or is given a newer assignment.
        let pause = match name.as_str() {
            reason::NOT_READY | reason::STOPPING => PAUSE,
            _ => LONG_PAUSE,
        };
        let refused = failed(CommandOutcome::Refused, pause, format!("{name}: {}", status.message()));
        // It has accepted a newer word than this assignment, in the answer to a renewal: those go on, and carry what is right.
        let may_be_race = matches!(name.as_str(), reason::LEASE_OVER | reason::NOT_READY);
        return Attempt { rests: name == reason::STALE_TERM, may_be_race, ..refused };
    }
    let outcome = match status.code() {
        Code::DeadlineExceeded | Code::Cancelled => CommandOutcome::TimedOut,
        Code::Unavailable | Code::Unknown | Code::Internal => CommandOutcome::Unreachable,
        _ => CommandOutcome::Refused,
    };
    failed(outcome, PAUSE, rpc::with_causes(status))
}

fn failed(outcome: CommandOutcome, pause: (Duration, Duration), why: impl Into<String>) -> Attempt {
    Attempt { outcome, answer: None, failed: Some(why.into()), pause, rests: false, may_be_race: false }
}

/// The first failure of an assignment is worth a line, its repetitions are not; nor is what may be a race, until it goes on.
fn is_worth_a_warning(attempt: &Attempt, failures: u32) -> bool {
    attempt.failed.is_some() && (!attempt.may_be_race || failures >= RACES)
}

fn log(peer: &Peer, version: Version, attempt: &Attempt, failures: u32, warns: bool) {
    let Peer { id, incarnation, endpoint, .. } = peer;
    let outcome = attempt.outcome.as_str();
    match &attempt.failed {
        Some(why) if warns => warn!(
            executor = %id, %incarnation, %endpoint, %version, outcome, why,
            "an executor did not take its assignment; it is told again until it does, or its lease ends"
        ),
        Some(why) => {
            debug!(executor = %id, %incarnation, %version, outcome, why, failures, "an executor did not take its assignment")
        }
        None => debug!(executor = %id, %incarnation, %version, outcome, failures, "an executor answered"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_overtakes_the_answer_to_a_registration_is_no_reason_to_warn_until_it_goes_on() {
        let refusal = |name| refused(&rpc::refusal(Code::FailedPrecondition, name, "no", &[]));
        for race in [reason::LEASE_OVER, reason::NOT_READY] {
            assert_eq!([0, 1, 2, 3].map(|failures| is_worth_a_warning(&refusal(race), failures)), [false, false, true, true]);
        }
        assert!(is_worth_a_warning(&refusal(reason::WRONG_INCARNATION), 0));
        assert!(is_worth_a_warning(&refused(&tonic::Status::unavailable("nobody")), 0));
    }
}
