//! An etcd cluster: a client for each member, and fail-over between them.
//!
//! etcd's balanced channel spreads requests over all endpoints, also over those that are dead, and does not try another one. So each
//! member has a client of its own here. A request goes to the member that answered last, and to the next one where that fails or hangs.
//!
//! No channel has a time-out, because a campaign may wait as long as it takes; [`Members::call`] bounds each request instead.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::transport::Endpoint;
use tonic::{Code, ConnectError};

pub use crate::backend::settings::Invalid;
use crate::backend::{self, BoxError, settings, with_causes};
use crate::config::{self, Secret};

/// HTTP/2 pings while a request is under way. A server by default takes more than one in 5 s for an attack, and hangs up.
const PING_EVERY: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two rounds over all members, the first and the longest pause.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// How a cluster is reached.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `http://host:port` or `https://host:port`, one per member; at least one.
    pub endpoints: Vec<String>,
    /// Who signed the members' certificates, as PEM. Needed by `https://`.
    pub ca_file: Option<PathBuf>,
    /// Certificate and key that this process shows, as PEM.
    pub identity_files: Option<(PathBuf, PathBuf)>,
    /// User name and password.
    pub credentials: Option<(String, Secret)>,
    /// What bounds one request, all of its attempts together. Above zero.
    pub request_timeout: Duration,
}

impl Settings {
    /// The settings that the keys below `persistence.etcd` ask for. Reads the password's file; the last line break is not part of it.
    ///
    /// # Errors
    /// Where a file is unreadable or one half of a pair is missing.
    pub fn from_config(etcd: &config::Etcd, request_timeout: Duration) -> Result<Settings, Invalid> {
        let given = ("persistence.etcd.password", &etcd.password);
        let password = settings::password(given, ("persistence.etcd.password_file", &etcd.password_file))?;
        let credentials = match (&etcd.username, password) {
            (Some(username), Some((_, password))) => Some((username.clone(), password)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(Invalid::Half { given: "persistence.etcd.username", missing: "persistence.etcd.password" });
            }
            (None, Some((given, _))) => return Err(Invalid::Half { given, missing: "persistence.etcd.username" }),
        };
        let certificate = ("persistence.etcd.cert_file", &etcd.cert_file);
        let identity_files = settings::pair(certificate, ("persistence.etcd.key_file", &etcd.key_file))?;
        let (endpoints, ca_file) = (etcd.endpoints.clone(), etcd.ca_file.clone());
        Ok(Settings { endpoints, ca_file, identity_files, credentials, request_timeout })
    }

    /// For `https://`; reads the files.
    fn tls(&self, endpoint: &str) -> Result<TlsOptions, Invalid> {
        let read = |key, path: &Path| std::fs::read(path).map_err(|source| Invalid::File { key, path: path.to_owned(), source });
        let Some(ca_file) = &self.ca_file else {
            let reason = "https:// needs persistence.etcd.ca_file, the certificate of who signed the members'".to_owned();
            return Err(Invalid::Endpoint { endpoint: endpoint.to_owned(), reason });
        };
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read("persistence.etcd.ca_file", ca_file)?));
        if let Some((certificate, key)) = &self.identity_files {
            let certificate = read("persistence.etcd.cert_file", certificate)?;
            tls = tls.identity(Identity::from_pem(certificate, read("persistence.etcd.key_file", key)?));
        }
        Ok(tls)
    }
}

/// The members of one cluster, as one side of this process reaches them. The store and the election each have their own, so that
/// neither waits behind the other's bytes.
pub struct Members {
    members: Vec<Member>,
    /// Which one answered last.
    preferred: AtomicUsize,
    request_timeout: Duration,
}

struct Member {
    endpoint: String,
    options: ConnectOptions,
    /// The client in use and its number, which grows; made when it is needed.
    client: Mutex<(u64, Option<Client>)>,
}

/// A client and where it came from, so that a failure is told to the right member.
#[derive(Clone)]
pub(crate) struct Handle {
    member: usize,
    number: u64,
    pub(crate) client: Client,
}

impl Members {
    /// The members that `settings` name. Connects to none of them yet, so that a cluster may come later than this process.
    ///
    /// # Errors
    /// Where an endpoint, a file or a certificate could never work.
    pub fn new(settings: &Settings) -> Result<Members, Invalid> {
        if settings.endpoints.is_empty() {
            return Err(Invalid::NoEndpoint);
        }
        settings::check_request_timeout(settings.request_timeout)?;
        let members = settings.endpoints.iter().map(|endpoint| Member::new(endpoint, settings)).collect::<Result<_, _>>()?;
        Ok(Members { members, preferred: AtomicUsize::new(0), request_timeout: settings.request_timeout })
    }

    /// What bounds one request, all of its attempts together.
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// What bounds one attempt at one member: each gets its turn within the time of a request.
    pub(crate) fn attempt_timeout(&self) -> Duration {
        self.request_timeout / u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    /// Sends a request until a member answers it, for [`Members::request_timeout`] at most. It may be sent more than once and to several
    /// members, and may arrive more than once and late: only for requests that do no harm then.
    ///
    /// # Errors
    /// Where a member refused it, or none answered in time.
    pub async fn call<T, F>(&self, what: &'static str, request: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.call_within(self.request_timeout, what, request).await
    }

    /// As [`Members::call`], for `within` at most.
    pub(crate) async fn call_within<T, F>(
        &self,
        within: Duration,
        what: &'static str,
        request: impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let deadline = Instant::now() + within;
        let (mut pause, mut may_have_arrived) = (PAUSE.0, false);
        loop {
            let mut last = None;
            for _ in 0..self.members.len() {
                let until = deadline.min(Instant::now() + self.attempt_timeout());
                let handle = match timeout_at(until, self.connect()).await {
                    Ok(Ok(handle)) => handle,
                    Ok(Err((member, error))) => {
                        self.moves_on_from(member);
                        last = Some(self.said(member, &error));
                        continue;
                    }
                    Err(_) => {
                        let member = self.preferred();
                        self.moves_on_from(member);
                        last = Some(self.said(member, &"no connection in time"));
                        continue;
                    }
                };
                match timeout_at(until, request(handle.client.clone())).await {
                    Ok(Ok(answer)) => {
                        self.preferred.store(handle.member, Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Ok(Err(error)) => match Verdict::of(&error) {
                        Verdict::Refused(code) => {
                            let source = self.said(handle.member, &error);
                            return Err(Failure { what, code: Some(code), may_have_arrived, source });
                        }
                        verdict => {
                            may_have_arrived |= matches!(verdict, Verdict::Unknown);
                            self.failed(&handle);
                            last = Some(self.said(handle.member, &error));
                        }
                    },
                    Err(_) => {
                        may_have_arrived = true;
                        self.failed(&handle);
                        last = Some(self.said(handle.member, &"no answer in time"));
                    }
                }
                if Instant::now() >= deadline {
                    break;
                }
            }
            if Instant::now() + pause >= deadline {
                let source = last.unwrap_or_else(|| format!("no member answered within {within:?}").into());
                return Err(Failure { what, code: None, may_have_arrived, source });
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// A client of the member that answered last, for a request that is not bounded.
    pub(crate) async fn handle(&self) -> Result<Handle, BoxError> {
        match timeout(self.attempt_timeout(), self.connect()).await {
            Ok(Ok(handle)) => Ok(handle),
            Ok(Err((member, error))) => {
                self.moves_on_from(member);
                Err(self.said(member, &error))
            }
            Err(_) => {
                let member = self.preferred();
                self.moves_on_from(member);
                Err(self.said(member, &"no connection in time"))
            }
        }
    }

    /// Says that a client failed or hung. The next request begins at the next member, and that member's next one on a new connection:
    /// one that a firewall has cut would else be waited for until the kernel gives it up.
    pub(crate) fn failed(&self, handle: &Handle) {
        let mut current = self.members[handle.member].lock();
        if current.0 == handle.number {
            current.1 = None;
        }
        drop(current);
        self.moves_on_from(handle.member);
    }

    fn preferred(&self) -> usize {
        self.preferred.load(Ordering::Relaxed)
    }

    /// Unless somebody has already.
    fn moves_on_from(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        self.preferred.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed).ok();
    }

    /// Makes no connection yet where there is no user name: that comes with the first request.
    async fn connect(&self) -> Result<Handle, (usize, etcd_client::Error)> {
        let index = self.preferred();
        let member = &self.members[index];
        if let (number, Some(client)) = &*member.lock() {
            return Ok(Handle { member: index, number: *number, client: client.clone() });
        }
        let client = Client::connect([&member.endpoint], Some(member.options.clone())).await.map_err(|error| (index, error))?;
        let mut current = member.lock();
        *current = (current.0 + 1, Some(client.clone()));
        Ok(Handle { member: index, number: current.0, client })
    }

    fn said(&self, member: usize, what: &dyn fmt::Display) -> BoxError {
        format!("{}: {what}", self.members[member].endpoint).into()
    }
}

impl Member {
    fn new(endpoint: &str, settings: &Settings) -> Result<Member, Invalid> {
        let refused = |reason: String| Invalid::Endpoint { endpoint: endpoint.to_owned(), reason };
        let parsed = Endpoint::from_shared(endpoint.to_owned()).map_err(|error| refused(error.to_string()))?;
        let mut options = ConnectOptions::new()
            .with_connect_timeout(settings.request_timeout)
            .with_keep_alive(PING_EVERY, PING_TIMEOUT)
            .with_keep_alive_while_idle(false)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        match endpoint.split_once("://") {
            Some(("http", _)) => {}
            Some(("https", _)) => {
                let tls = settings.tls(endpoint)?;
                // Certificates and key are looked at now, not when the first connection fails.
                parsed.tls_config(tls.clone()).map_err(|error| refused(with_causes(&error)))?;
                options = options.with_tls(tls);
            }
            Some((scheme, _)) => return Err(refused(format!("its scheme {scheme:?} is neither http nor https"))),
            None => return Err(refused("it takes http://host:port or https://host:port".to_owned())),
        }
        if let Some((user, password)) = &settings.credentials {
            options = options.with_user(user, password.reveal());
        }
        Ok(Member { endpoint: endpoint.to_owned(), options, client: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, (u64, Option<Client>)> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.members.iter().map(|member| &member.endpoint)).finish()
    }
}

/// What an error says of the request that it answers.
enum Verdict {
    /// A healthy member looked at it and did not do it; another one would say the same.
    Refused(Code),
    /// It was not done, but another member may do it.
    NotDone,
    /// It may have been done.
    Unknown,
}

impl Verdict {
    fn of(error: &etcd_client::Error) -> Verdict {
        let etcd_client::Error::GRpcStatus(status) = error else { return Verdict::Unknown };
        // What a member says has no cause here. One that has is about the connection, under codes that members use too: a connection
        // that is closed on a busy client is `ResourceExhausted`.
        if let Some(cause) = std::error::Error::source(status) {
            return if never_connected(cause) { Verdict::NotDone } else { Verdict::Unknown };
        }
        match status.code() {
            code @ (Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::ResourceExhausted
            | Code::Unimplemented) => Verdict::Refused(code),
            Code::Unauthenticated => Verdict::NotDone,
            _ => Verdict::Unknown,
        }
    }
}

fn never_connected(cause: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(cause);
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A request that was not answered as it should be.
#[derive(Debug, thiserror::Error)]
#[error("{what} failed")]
pub struct Failure {
    /// What was tried.
    pub what: &'static str,
    /// Where a member refused it: how.
    pub code: Option<Code>,
    /// Whether some copy of it may have been carried out, or still may be.
    pub may_have_arrived: bool,
    /// The last thing that went wrong, and at which member.
    pub source: BoxError,
}

impl From<Failure> for backend::Error {
    /// For reads, of which it does not matter how often they arrived.
    fn from(failure: Failure) -> backend::Error {
        backend::Error::Unavailable { what: failure.what, source: failure.source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_was_closed_is_not_taken_for_a_refusal() {
        let closed = h2_like(Code::ResourceExhausted);
        assert!(matches!(Verdict::of(&etcd_client::Error::GRpcStatus(closed)), Verdict::Unknown));
        let refused = tonic::Status::new(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(Verdict::of(&etcd_client::Error::GRpcStatus(refused)), Verdict::Refused(Code::ResourceExhausted)));
    }

    #[test]
    fn only_what_never_connected_is_known_not_to_be_done() {
        let mut unconnected = tonic::Status::new(Code::Unavailable, "tcp connect error");
        unconnected.set_source(std::sync::Arc::new(ConnectError("refused".into())));
        assert!(matches!(Verdict::of(&etcd_client::Error::GRpcStatus(unconnected)), Verdict::NotDone));
        assert!(matches!(Verdict::of(&etcd_client::Error::GRpcStatus(h2_like(Code::Unavailable))), Verdict::Unknown));
        let plain = tonic::Status::new(Code::Unavailable, "etcdserver: request timed out");
        assert!(matches!(Verdict::of(&etcd_client::Error::GRpcStatus(plain)), Verdict::Unknown));
    }

    /// A status as it is made of an error of the connection.
    fn h2_like(code: Code) -> tonic::Status {
        let mut status = tonic::Status::new(code, "connection closed");
        status.set_source(std::sync::Arc::new(std::io::Error::other("GOAWAY")));
        status
    }
}
