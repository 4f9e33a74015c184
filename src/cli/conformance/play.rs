//! What every scene needs: an executor at rest, commands to it, and what to think of the answers.

use std::fmt;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::record::{Entry, Obeyed, Set, What, cut, listed, set, shown};
use super::stage::{Answer, Stage, State};
use crate::cli::manager::Address;
use crate::clock;
use crate::holdings::Holdings;
use crate::rpc::shard_executor_client::ShardExecutorClient;
use crate::rpc::{self, reason, reason_of, with_causes};
use crate::types::{BootInstant, Version};

/// The shards that an executor has between scenes.
pub const SHARDS: [u32; 3] = [1, 2, 3];
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How much later than asked for an answer may come before the rule counts as broken: for busy machines.
pub const GRACE: Duration = Duration::from_secs(3);
/// The largest answer that is taken, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// Why a rule does not count as kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// What was seen, and what was expected.
    Broken(String),
    /// Why nothing can be said.
    Unobserved(String),
}

pub type Verdict = Result<(), Trouble>;

/// The rule is broken.
pub fn broken<T>(how: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Broken(how.into()))
}

/// Nothing can be said of the rule.
pub fn unobserved<T>(why: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Unobserved(why.into()))
}

/// The answer to a command that was accepted.
#[derive(Clone, Debug)]
pub struct Reply {
    pub held: Set,
    pub took: Duration,
}

/// A command that was not.
#[derive(Clone, Debug)]
pub struct Bounce {
    pub reason: Option<String>,
    nature: Nature,
    text: String,
}

/// What a command that was not accepted says about whoever was to take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nature {
    /// It was refused.
    Refusal,
    /// Nobody is there: no connection, or it broke.
    Absence,
    /// No answer in time. Proves nothing.
    Silence,
}

impl Bounce {
    /// Whether it is a refusal: somebody answered. Else nothing can be said.
    pub fn heard(&self) -> Verdict {
        if self.nature == Nature::Refusal {
            return Ok(());
        }
        unobserved(format!("a command was not answered: {}", self.text))
    }

    /// Whether commands are taken no more: they are refused, or nobody is there to take them. Else nothing can be said.
    pub fn heard_or_gone(&self) -> Verdict {
        if self.nature == Nature::Absence { Ok(()) } else { self.heard() }
    }

    /// Whether this is what an executor says that has no lease, under this incarnation or at all.
    pub fn is_without_lease(&self) -> bool {
        let reasons = [reason::LEASE_OVER, reason::NOT_READY, reason::WRONG_INCARNATION];
        self.reason.as_deref().is_some_and(|reason| reasons.contains(&reason))
    }
}

impl fmt::Display for Bounce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => write!(f, "{} ({})", cut(reason), self.text),
            None => write!(f, "no reason ({})", self.text),
        }
    }
}

/// The stage, and the executor on it.
pub struct Play {
    pub stage: Stage,
    /// The lease that is granted.
    pub lease: Duration,
    /// How long people may take for what they are asked to do.
    pub wait: Duration,
    /// Where commands go, if not to where the executor says.
    pub address: Option<Address>,
    /// Tells people what to do.
    pub say: fn(&str),
    /// Whether the last attempt to bring the executor to rest failed.
    pub is_restless: bool,
}

impl Play {
    /// Where commands go; `None` before there is an executor.
    pub fn endpoint(&self) -> Option<String> {
        let advertised =
            || self.stage.with(|state| state.registrations_since(BootInstant::default()).last().map(|(_, r)| r.endpoint.clone()));
        let endpoint = self.address.as_ref().map(ToString::to_string).or_else(advertised)?;
        Some(if endpoint.contains("://") { endpoint } else { format!("http://{endpoint}") })
    }

    /// A connection of its own to the executor.
    pub async fn connect(&self) -> Result<Channel, Bounce> {
        let refused = |text: String| Bounce { reason: None, nature: Nature::Silence, text };
        let endpoint = self.endpoint().ok_or_else(|| refused("no executor has registered".to_owned()))?;
        let endpoint = Endpoint::from_shared(endpoint.clone()).map_err(|_| refused(format!("{endpoint:?} is no address")))?;
        let url = endpoint.uri().to_string();
        let connected = endpoint.connect_timeout(CONNECT_TIMEOUT).timeout(self.lease + GRACE + GRACE).connect().await;
        connected.map_err(|error| {
            let nature = if is_closed(&error) { Nature::Absence } else { Nature::Silence };
            let text = format!("{url} cannot be reached: {}", crate::cli::output::with_causes(&error));
            Bounce { nature, ..refused(text) }
        })
    }

    /// Sends the whole assignment of the moment, after `change`. What is accepted in order is written down.
    pub async fn command(&self, change: impl FnOnce(&mut rpc::ApplyAssignmentRequest)) -> Result<Reply, Bounce> {
        let in_order = self.stage.with(|state| rpc::ApplyAssignmentRequest {
            cluster_id: state.cluster_id.to_string(),
            version: Some(state.version.into()),
            executor_id: state.executor_id.clone().unwrap_or_default(),
            incarnation: state.incarnation.unwrap_or_default(),
            assignment: Some((&state.assignment).into()),
            wait_ms: 0,
        });
        let mut request = in_order.clone();
        change(&mut request);
        let (incarnation, cluster_id) = (request.incarnation, request.cluster_id.clone());
        let is_in_order =
            (incarnation, &cluster_id, &request.version) == (in_order.incarnation, &in_order.cluster_id, &in_order.version);
        let version = request.version.map_or_else(Version::default, Into::into);
        let mut client = ShardExecutorClient::new(self.connect().await?).max_decoding_message_size(MAX_BYTES);
        let sent = clock::now();
        match client.apply_assignment(request).await {
            Ok(response) => {
                let (at, response) = (clock::now(), response.into_inner());
                let mark = response.mark.map(Into::into);
                if is_in_order {
                    let what = What::Obeyed(Obeyed { incarnation, cluster_id, version, mark });
                    self.stage.with(|state| state.entries.push(Entry { at, what }));
                }
                let held = response.held.as_ref().map_or_else(|| Ok(Holdings::default()), set);
                Ok(Reply { held, took: at.since(sent) })
            }
            Err(status) => Err(bounce(&status)),
        }
    }

    /// A command that must be accepted, so that something else can be seen.
    pub async fn obeyed(&self, change: impl FnOnce(&mut rpc::ApplyAssignmentRequest)) -> Result<Reply, Trouble> {
        let bounced = |bounce| Trouble::Unobserved(format!("a command in order is refused with {bounce}, see E7"));
        self.command(change).await.map_err(bounced)
    }

    /// A command that must be refused with `reason`.
    pub async fn refused(&self, what: &str, reason: &str, change: impl FnOnce(&mut rpc::ApplyAssignmentRequest)) -> Verdict {
        let incarnation = self.incarnation();
        match self.command(change).await {
            Ok(reply) => broken(format!("{what} was accepted, {}; expected a refusal with {reason}", held_is(&reply.held))),
            Err(bounce) if bounce.reason.as_deref() == Some(reason) => Ok(()),
            Err(bounce) => self.blame(&bounce, incarnation, format!("{what} was refused with {bounce}; expected {reason}")),
        }
    }

    /// After something that was refused: the executor still holds `holdings`, and its mark is not above the manager's version.
    pub async fn unmoved(&self, holdings: &Holdings) -> Verdict {
        let incarnation = self.incarnation();
        match self.command(|_| {}).await {
            Ok(reply) if reply.held.as_ref() == Ok(holdings) => Ok(()),
            Ok(reply) => broken(format!(
                "after what was refused, {}; expected that it still holds {}",
                held_is(&reply.held),
                listed(holdings)
            )),
            Err(bounce) => {
                let how =
                    format!("after what was refused, a command in order is refused with {bounce}; expected that nothing moved");
                self.blame(&bounce, incarnation, how)
            }
        }
    }

    /// A refusal that breaks the rule, unless nobody answered, or the lease of `incarnation` was over by an accident.
    pub fn blame(&self, bounce: &Bounce, incarnation: Option<u64>, how: String) -> Verdict {
        bounce.heard()?;
        if bounce.is_without_lease() && self.is_lease_in_doubt(incarnation) { lease_lost() } else { broken(how) }
    }

    /// The registered incarnation.
    pub fn incarnation(&self) -> Option<u64> {
        self.stage.with(|state| state.incarnation)
    }

    /// Whether the executor may have lost its lease by an accident: on a machine that is too busy.
    pub fn is_lease_in_doubt(&self, incarnation: Option<u64>) -> bool {
        let leased_at = self.stage.with(|state| state.leased_at());
        self.incarnation() != incarnation || clock::now() > leased_at.after(self.lease * 2 / 3)
    }

    /// Answers properly and waits until the executor holds `shards`, says so, and knows the newest version. A fresh start for a scene.
    pub async fn rest(&mut self, shards: &[u32]) -> Result<Holdings, Trouble> {
        let patience = if self.is_restless { self.lease } else { self.lease * 4 + GRACE };
        let since = clock::now();
        self.stage.with(|state| {
            (state.registrations, state.renewals) = (Answer::Properly, Answer::Properly);
            let grants = state.grants(shards);
            if state.assignment != grants {
                state.assign(grants);
            }
        });
        let is_at_rest = |state: &State| {
            let mut renewals = state.renewals_since(since).filter(|(_, renewal)| Some(renewal.incarnation) == state.incarnation);
            let agrees =
                renewals.any(|(_, r)| r.outcome.is_lease() && r.claim.is(&state.assignment) && r.mark == Some(state.version));
            agrees.then(|| state.assignment.clone())
        };
        let found = self.stage.find(since.after(patience), is_at_rest).await;
        self.is_restless = found.is_none();
        found.ok_or_else(|| Trouble::Unobserved(self.stage.with(|state| restless(state, since))))
    }

    /// Waits for a fresh lease, and lets no call be answered from then on. Returns when the call came that earned the lease: the lease
    /// is over one lease after that at the latest.
    pub async fn fall_silent(&self) -> Result<BootInstant, Trouble> {
        let since = clock::now();
        let until = since.after(self.lease * 2 + GRACE);
        let leased = |state: &State| (state.leased_at() > since).then_some(());
        if self.stage.find(until, leased).await.is_none() {
            return unobserved("the executor did not renew its lease");
        }
        Ok(self.stage.with(|state| {
            (state.registrations, state.renewals) = (Answer::Never, Answer::Never);
            state.leased_at()
        }))
    }

    /// Waits until the newest lease is surely over, and a part of one more; returns when it ended at the latest.
    pub async fn sit_out(&self, leased_at: BootInstant) -> BootInstant {
        let over = leased_at.after(self.lease);
        clock::sleep_until(over.after(self.lease / 4)).await;
        over
    }

    /// Waits until the newest lease is over by anybody's clock, and no longer; returns when that was. The executor counts from earlier.
    pub async fn lease_end(&self, leased_at: BootInstant) -> BootInstant {
        let over = leased_at.after(self.lease);
        clock::sleep_until(over.after(self.lease / 16)).await;
        over
    }

    /// Waits for the next registration after `since`.
    pub async fn registration(&self, since: BootInstant, within: Duration) -> Option<(BootInstant, super::record::Registration)> {
        let until = clock::now().after(within);
        self.stage.find(until, |state| state.registrations_since(since).next().map(|(at, r)| (at, r.clone()))).await
    }
}

fn restless(state: &State, since: BootInstant) -> String {
    let assigned = format!("it is assigned {} at {}", listed(&state.assignment), state.version);
    match state.renewals_since(since).last() {
        Some((_, last)) => {
            format!("the executor did not come to rest: {assigned}, and claims {} with the mark {}", last.claim, shown(last.mark))
        }
        None => format!("the executor is gone or does not renew: {assigned}"),
    }
}

/// What an answer says, for people.
pub fn held_is(held: &Set) -> String {
    match held {
        Ok(held) => format!("it says that it holds {}", listed(held)),
        Err(invalid) => format!("it says that it holds a set that is none ({invalid})"),
    }
}

/// The executor lost its lease by an accident.
pub fn lease_lost<T>() -> Result<T, Trouble> {
    unobserved("the lease ran out in the middle of it; is this machine too busy for this --lease?")
}

fn bounce(status: &Status) -> Bounce {
    let reason = reason_of(status);
    let nature = match status.code() {
        _ if reason.is_some() => Nature::Refusal,
        // Both a time-out of our own and a connection that broke are `Cancelled`.
        Code::Cancelled if !is_timeout(status) => Nature::Absence,
        Code::Unavailable | Code::Unknown => Nature::Absence,
        Code::Cancelled | Code::DeadlineExceeded => Nature::Silence,
        _ => Nature::Refusal,
    };
    Bounce { reason, nature, text: cut(&format!("{:?}: {}", status.code(), with_causes(status))) }
}

fn is_timeout(status: &Status) -> bool {
    chain(status).any(|cause| cause.is::<tonic::TimeoutExpired>())
}

/// Whether nothing listens there.
fn is_closed(error: &tonic::transport::Error) -> bool {
    // Reset: it was closed while somebody waited to be let in.
    let closed = [std::io::ErrorKind::ConnectionRefused, std::io::ErrorKind::ConnectionReset];
    chain(error).filter_map(|cause| cause.downcast_ref::<std::io::Error>()).any(|error| closed.contains(&error.kind()))
}

/// An error, and what it comes from.
fn chain<'a>(error: &'a (dyn std::error::Error + 'static)) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |cause| cause.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_answered_in_time_proves_nothing() {
        let late = bounce(&Status::from_error(Box::new(tonic::TimeoutExpired(()))));
        assert!(late.heard().is_err() && late.heard_or_gone().is_err());
        assert!(bounce(&Status::deadline_exceeded("late")).heard_or_gone().is_err());
        let gone = bounce(&Status::unavailable("the connection broke"));
        assert!(gone.heard().is_err() && gone.heard_or_gone().is_ok());
        assert!(bounce(&Status::cancelled("connection closed")).heard_or_gone().is_ok());
        let refused = bounce(&rpc::refusal(Code::Unavailable, reason::NOT_READY, "no", &[]));
        assert!(refused.heard().is_ok() && refused.is_without_lease());
    }
}
