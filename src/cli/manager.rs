//! Finding the manager that leads, and saying what came of it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Response, Status};

use crate::client::may_have_arrived;
use crate::rpc::{self, MAX_MESSAGE_BYTES, reason};

/// How long reaching one manager may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a manager may take to say that it leads.
const PRESENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long one answer may take; a table of the most shards included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// For how long a leader is looked for where there may well be one soon, and how long between two rounds.
const LOOK_FOR: Duration = Duration::from_secs(5);
const BETWEEN_ROUNDS: Duration = Duration::from_millis(250);

/// Which managers to ask.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Managers {
    /// Where managers serve gRPC, as http://host:port or host:port: separated by commas or repeated; the first that answers as
    /// leader is asked
    #[arg(long = "manager", value_name = "URL", value_delimiter = ',', default_value = "http://127.0.0.1:9092")]
    addresses: Vec<Address>,
    /// Where nobody leads it is said at once: whoever asks asks again anyway.
    #[arg(skip)]
    once: bool,
}

/// Where a manager serves gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address(String);

/// Text that is no address.
#[derive(Debug, thiserror::Error)]
#[error("it takes http://host:port or host:port")]
pub(super) struct InvalidAddress;

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = text.parse().map_err(|_| InvalidAddress)?;
        let plain = uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/") && uri.query().is_none();
        let valid = plain && uri.port_u16().is_some_and(|port| port != 0);
        if valid { Ok(Address(text.trim_end_matches('/').to_owned())) } else { Err(InvalidAddress) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why no manager did what was asked.
#[derive(Debug)]
pub(super) enum Error {
    /// The leader refused.
    Refused {
        /// Who.
        address: Address,
        /// One of [`reason`], where it gave one.
        reason: Option<String>,
        /// Its words.
        message: String,
    },
    /// None answered as leader.
    NoLeader {
        /// Whom we asked, and what came of it.
        attempts: Vec<(Address, String)>,
    },
    /// What was asked may have taken effect, or may do so yet: nobody else is asked.
    Unsettled {
        /// Whom we asked.
        address: Address,
        /// What came of it.
        outcome: String,
    },
    /// Somebody did not want to wait for the answer.
    Interrupted,
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    /// One line: what happened, why, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused { address, reason, message } => {
                write!(f, "the manager at {address} refused: {message}")?;
                if let Some(reason) = reason {
                    write!(f, " ({reason})")?;
                }
                match reason.as_deref() {
                    Some(reason::UNKNOWN_EXECUTOR) => f.write_str("; `shard-manager executors` lists those that are known"),
                    Some(reason::STORE_UNAVAILABLE) => f.write_str("; see the manager's log, and try again"),
                    _ => Ok(()),
                }
            }
            Error::NoLeader { attempts } => {
                f.write_str("no manager answered as leader: ")?;
                for (at, (address, outcome)) in attempts.iter().enumerate() {
                    write!(f, "{}{address}: {outcome}", if at == 0 { "" } else { "; " })?;
                }
                f.write_str("; is one running there? A standby's port is closed: name every replica with --manager")
            }
            Error::Unsettled { address, outcome } => {
                write!(
                    f,
                    "{address} did not say what came of it: {outcome}; it may take effect all the same: look before you ask again"
                )
            }
            Error::Interrupted => {
                f.write_str("interrupted before a manager answered: what was asked may take effect all the same")
            }
        }
    }
}

impl Error {
    /// Whether the same question may well be answered a moment later.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Error::Refused { reason, .. } => reason.as_deref() == Some(reason::STORE_UNAVAILABLE),
            Error::NoLeader { .. } => true,
            Error::Unsettled { .. } | Error::Interrupted => false,
        }
    }
}

impl Managers {
    /// These, which may be none.
    pub(super) fn of(addresses: Vec<Address>) -> Managers {
        Managers { addresses, once: true }
    }

    /// Whether there is nobody to ask.
    pub(super) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// These, for whoever asks again by itself.
    pub(super) fn once(&self) -> Managers {
        Managers { once: true, ..self.clone() }
    }

    /// Asks something that changes nothing: one manager after the other until one answers as leader; its answer, be it a refusal, counts.
    pub(super) async fn ask<T>(&self, question: impl AsyncFn(Channel) -> Result<Response<T>, Status>) -> Result<T, Error> {
        self.find(question, |_| false).await
    }

    /// Asks for a change, of one after the other as long as it is certain that nothing was changed.
    pub(super) async fn change<T>(&self, change: impl AsyncFn(Channel) -> Result<Response<T>, Status>) -> Result<T, Error> {
        tokio::select! {
            // Listens before anything is asked.
            biased;
            // Where signals cannot be had, an interrupt ends the process as it always does.
            Ok(()) = tokio::signal::ctrl_c() => Err(Error::Interrupted),
            answer = self.find(change, may_take_effect) => answer,
        }
    }

    /// Goes round until one answers as leader, for a while: during a change of leaders there is none.
    async fn find<T>(
        &self,
        call: impl AsyncFn(Channel) -> Result<Response<T>, Status>,
        is_final: impl Fn(&Status) -> bool,
    ) -> Result<T, Error> {
        let until = Instant::now() + LOOK_FOR;
        loop {
            let (mut attempts, mut anybody) = (Vec::new(), self.addresses.len() > 1);
            for address in &self.addresses {
                let channel = match connect(address).await {
                    Ok(channel) => channel,
                    Err(error) => {
                        attempts.push((address.clone(), innermost(&error)));
                        continue;
                    }
                };
                if let Err(status) = presence(&channel).await {
                    anybody |= rpc::reason_of(&status).is_some();
                    attempts.push((address.clone(), outcome(&status)));
                    continue;
                }
                match call(channel).await {
                    Ok(answer) => return Ok(answer.into_inner()),
                    Err(status) if is_final(&status) => {
                        return Err(Error::Unsettled { address: address.clone(), outcome: outcome(&status) });
                    }
                    Err(status) if speaks_for_the_leader(&status) => {
                        let (reason, message) = (rpc::reason_of(&status), status.message().to_owned());
                        return Err(Error::Refused { address: address.clone(), reason, message });
                    }
                    Err(status) => {
                        anybody |= rpc::reason_of(&status).is_some();
                        attempts.push((address.clone(), outcome(&status)));
                    }
                }
            }
            // Where one address is named and nobody is there, nobody will come.
            if self.once || !anybody || Instant::now() >= until {
                return Err(Error::NoLeader { attempts });
            }
            tokio::time::sleep(BETWEEN_ROUNDS).await;
        }
    }
}

async fn connect(address: &Address) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(address.0.clone())?.connect_timeout(CONNECT_TIMEOUT).timeout(ANSWER_TIMEOUT).connect().await
}

/// Whether somebody leads there, asked before anything that matters: a process that is stopped takes calls and says nothing, and whoever
/// asked it for a change could not know what comes of it. One that speaks for the leader without saying yes may say so of what matters.
async fn presence(channel: &Channel) -> Result<(), Status> {
    let answer = tokio::time::timeout(PRESENCE_TIMEOUT, admin(channel.clone()).get_status(rpc::GetStatusRequest {})).await;
    match answer {
        Ok(Err(status)) if !speaks_for_the_leader(&status) => Err(status),
        Ok(_) => Ok(()),
        Err(_) => Err(Status::deadline_exceeded(format!("it said nothing for {}s", PRESENCE_TIMEOUT.as_secs()))),
    }
}

/// A client of the admin service, for messages of any size that a manager sends.
pub(super) fn admin(channel: Channel) -> rpc::shard_manager_admin_client::ShardManagerAdminClient<Channel> {
    rpc::shard_manager_admin_client::ShardManagerAdminClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

/// A client of the service that executors and callers use.
pub(super) fn shard_manager(channel: Channel) -> rpc::shard_manager_client::ShardManagerClient<Channel> {
    rpc::shard_manager_client::ShardManagerClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

/// Whether a failure is a leader's word, and not that of a broken connection, of a process that does not lead, or of a stranger.
fn speaks_for_the_leader(status: &Status) -> bool {
    match rpc::reason_of(status).as_deref() {
        Some(reason::NOT_READY | reason::STOPPING | reason::LEADERSHIP_LOST) => false,
        Some(_) => true,
        None => matches!(
            status.code(),
            Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::PermissionDenied | Code::Unauthenticated
        ),
    }
}

/// Whether a call that failed may have changed something, or may do so yet. A refusal says so; whoever gave none may have been cut off in
/// the middle.
fn may_take_effect(status: &Status) -> bool {
    match (rpc::reason_of(status), status.code()) {
        (Some(_), _) => rpc::is_unsettled(status),
        (None, Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Unknown | Code::Internal) => {
            may_have_arrived(status)
        }
        (None, _) => false,
    }
}

fn outcome(status: &Status) -> String {
    let innermost = || std::error::Error::source(status).map_or_else(|| status.message().to_owned(), innermost);
    match (rpc::reason_of(status), status.code()) {
        (Some(reason), _) => format!("{} ({reason})", status.message()),
        (None, Code::Unavailable) => innermost(),
        // Our own, and the server's where it gave up first.
        (None, Code::DeadlineExceeded) => status.message().to_owned(),
        (None, Code::Cancelled) => format!("no answer within {}s", ANSWER_TIMEOUT.as_secs()),
        (None, Code::Unknown | Code::Internal) => format!("{} ({:?})", innermost(), status.code()),
        (None, code) => format!("{} ({code:?})", status.message()),
    }
}

/// The innermost cause, which names what happened; the outer ones only say that it was a transport.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_with_and_without_their_scheme() {
        let shown = |text: &str| text.parse::<Address>().map(|address| address.to_string()).ok();
        assert_eq!(shown("http://host:9092/").as_deref(), Some("http://host:9092"));
        assert_eq!(shown("host:9092").as_deref(), Some("http://host:9092"));
        assert_eq!(shown("[::1]:9092").as_deref(), Some("http://[::1]:9092"));
        for text in ["", "host", "http://host", "https://host:1", "host:0", "host:99999", "host:1/path", "ho st:1"] {
            assert_eq!(shown(text), None, "{text}");
        }
    }

    #[test]
    fn a_refusal_is_one_line_with_its_reason_and_what_to_do() {
        let status = rpc::refusal(Code::NotFound, reason::UNKNOWN_EXECUTOR, "executor x is not registered", &[]);
        assert!(speaks_for_the_leader(&status));
        let error = Error::Refused {
            address: "h:1".parse().unwrap(),
            reason: rpc::reason_of(&status),
            message: status.message().to_owned(),
        };
        assert_eq!(
            error.to_string(),
            "the manager at http://h:1 refused: executor x is not registered (UNKNOWN_EXECUTOR); \
             `shard-manager executors` lists those that are known"
        );
        assert!(!error.is_passing());
    }

    #[test]
    fn who_does_not_lead_is_passed_over() {
        for reason in [reason::NOT_READY, reason::STOPPING, reason::LEADERSHIP_LOST] {
            assert!(!speaks_for_the_leader(&rpc::refusal(Code::Unavailable, reason, "", &[])), "{reason}");
        }
        assert!(!speaks_for_the_leader(&Status::unavailable("gone")));
        assert!(!speaks_for_the_leader(&Status::unimplemented("another server")));
        assert!(speaks_for_the_leader(&rpc::refusal(Code::Unavailable, reason::STORE_UNAVAILABLE, "", &[])));
    }

    #[test]
    fn what_may_have_taken_effect_is_told_from_what_certainly_did_not() {
        let metadata = [(rpc::UNSETTLED.0, rpc::UNSETTLED.1.to_owned())];
        for reason in [reason::STOPPING, reason::STORE_UNAVAILABLE] {
            assert!(may_take_effect(&rpc::refusal(Code::Unavailable, reason, "", &metadata)), "{reason}");
            assert!(!may_take_effect(&rpc::refusal(Code::Unavailable, reason, "", &[])), "{reason}");
        }
        assert!(may_take_effect(&Status::deadline_exceeded("slow")));
        assert!(may_take_effect(&Status::unavailable("cut off in the middle")));
        assert!(!may_take_effect(&Status::unimplemented("another server")));
    }

    #[tokio::test]
    async fn a_manager_that_is_not_there_is_named_with_the_cause() {
        // A port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let managers = Managers { once: false, addresses: vec![format!("127.0.0.1:{port}").parse().unwrap()] };
        let error = managers.ask(async |channel| admin(channel).get_status(rpc::GetStatusRequest {}).await).await.unwrap_err();
        let message = error.to_string();
        assert!(message.contains(&format!("http://127.0.0.1:{port}: Connection refused")), "{message}");
        assert!(error.is_passing());
    }
}
