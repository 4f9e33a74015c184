//! Finding the manager that leads, and saying what came of it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Response, Status};

use crate::rpc::{self, MAX_MESSAGE_BYTES, reason};

/// How long reaching one manager may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long one answer may take; a table of the most shards included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Which managers to ask.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Managers {
    /// Where managers serve gRPC, as http://host:port or host:port: separated by commas or repeated; the first that answers as
    /// leader is asked
    #[arg(long = "manager", value_name = "URL", value_delimiter = ',', default_value = "http://127.0.0.1:9092")]
    addresses: Vec<Address>,
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
        }
    }
}

impl Error {
    /// Whether the same question may well be answered a moment later.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Error::Refused { reason, .. } => reason.as_deref() == Some(reason::STORE_UNAVAILABLE),
            Error::NoLeader { .. } => true,
        }
    }
}

impl Managers {
    /// These, which may be none.
    pub(super) fn of(addresses: Vec<Address>) -> Managers {
        Managers { addresses }
    }

    /// Whether there is nobody to ask.
    pub(super) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Asks one manager after the other until one answers as leader; its answer, be it a refusal, counts.
    pub(super) async fn ask<T>(&self, question: impl AsyncFn(Channel) -> Result<Response<T>, Status>) -> Result<T, Error> {
        let mut attempts = Vec::new();
        for address in &self.addresses {
            let answer = match connect(address).await {
                Ok(channel) => question(channel).await,
                Err(error) => Err(Status::unavailable(innermost(&error))),
            };
            match answer {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if speaks_for_the_leader(&status) => {
                    let (reason, message) = (rpc::reason_of(&status), status.message().to_owned());
                    return Err(Error::Refused { address: address.clone(), reason, message });
                }
                Err(status) => attempts.push((address.clone(), outcome(&status))),
            }
        }
        Err(Error::NoLeader { attempts })
    }
}

async fn connect(address: &Address) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(address.0.clone())?.connect_timeout(CONNECT_TIMEOUT).timeout(ANSWER_TIMEOUT).connect().await
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

fn outcome(status: &Status) -> String {
    match (rpc::reason_of(status), status.code()) {
        (Some(reason), _) => format!("{} ({reason})", status.message()),
        (None, Code::Unavailable) => status.message().to_owned(),
        (None, Code::Cancelled | Code::DeadlineExceeded) => format!("no answer within {}s", ANSWER_TIMEOUT.as_secs()),
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

    #[tokio::test]
    async fn a_manager_that_is_not_there_is_named_with_the_cause() {
        // A port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let managers = Managers { addresses: vec![format!("127.0.0.1:{port}").parse().unwrap()] };
        let error = managers.ask(async |channel| admin(channel).get_status(rpc::GetStatusRequest {}).await).await.unwrap_err();
        let message = error.to_string();
        assert!(message.contains(&format!("http://127.0.0.1:{port}: Connection refused")), "{message}");
        assert!(error.is_passing());
    }
}
