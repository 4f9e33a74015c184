//! The lease under a campaign and a leadership: kept alive, and given back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::Code;
use tracing::warn;

use super::{BoxError, REVOKE_TIMEOUT};
use crate::backend::etcd::{Failure, Handle, Members};
use crate::clock;
use crate::election::Lost;
use crate::election::tenure::Tenure;
use crate::types::BootInstant;

/// Between two attempts to have a stream.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// A lease that exists, or may exist, at etcd. Dropped without [`Lease::revoke`], it is revoked in the background.
pub(super) struct Lease {
    members: Arc<Members>,
    id: i64,
    over: bool,
}

impl Lease {
    /// One with an id that nobody else has, for the grant that follows.
    pub(super) fn draw(members: Arc<Members>) -> Lease {
        Lease { members, id: rand::random_range(1..=i64::MAX), over: false }
    }

    pub(super) fn id(&self) -> i64 {
        self.id
    }

    /// Gives it back, and with it whatever key hangs on it. One that is gone already, or never was, counts as given back.
    pub(super) async fn revoke(mut self, within: Duration) -> Result<(), Failure> {
        let revoked = revoke(&self.members, self.id, within).await;
        // Not before: a future that is dropped half-way leaves it to `drop`.
        self.over = true;
        revoked
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        // Without a runtime the process ends, and the lease runs out.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (members, id) = (Arc::clone(&self.members), self.id);
        runtime.spawn(async move {
            if let Err(failure) = revoke(&members, id, REVOKE_TIMEOUT.max(members.request_timeout())).await {
                warn!(
                    error = &failure as &dyn std::error::Error,
                    "a lease that was left behind was not revoked; it runs out by itself"
                );
            }
        });
    }
}

async fn revoke(members: &Members, id: i64, within: Duration) -> Result<(), Failure> {
    let revoke = members.call_within(within, "revoking the lease", |mut client| async move { client.lease_revoke(id).await });
    match revoke.await {
        Ok(_) => Ok(()),
        Err(failure) if failure.code == Some(Code::NotFound) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Keeps a lease alive until it cannot.
pub(super) struct Keeper {
    members: Arc<Members>,
    lease: i64,
    tenure: Arc<Tenure>,
    /// How many streams there have been.
    streams: watch::Sender<u32>,
}

/// Why a stream ended.
enum End {
    /// etcd has no such lease.
    Gone,
    /// Another stream may do better.
    Broken(BoxError),
}

impl Keeper {
    /// Of a lease that was granted. Also returns how many streams there have been.
    pub(super) fn new(members: Arc<Members>, lease: i64, tenure: Arc<Tenure>) -> (Keeper, watch::Receiver<u32>) {
        let (streams, count) = watch::channel(0);
        (Keeper { members, lease, tenure, streams }, count)
    }

    /// Renews, over as many streams as it takes, until the deadline has passed, the lease is gone or the pulse has stopped.
    pub(super) async fn run(self) -> Lost {
        let mut last = "nothing was sent yet".to_owned();
        loop {
            let end = tokio::select! {
                biased;
                () = self.tenure.deadline_passed() => return Lost::Expired(last),
                age = self.tenure.pulse_stopped() => {
                    return Lost::Expired(format!("the coordinator has not turned for {age:?}, so the lease was not renewed"));
                }
                end = self.stream() => end,
            };
            match end {
                End::Gone => return Lost::Expired("etcd knows no such lease any more: it ran out, or was revoked".to_owned()),
                End::Broken(error) => {
                    warn!(error = &*error as &dyn std::error::Error, "the lease is not being renewed; connecting again");
                    last = error.to_string();
                }
            }
            tokio::select! {
                biased;
                () = self.tenure.deadline_passed() => return Lost::Expired(last),
                () = sleep(RECONNECT_PAUSE) => {}
            }
        }
    }

    /// One stream, from its handshake, which is a renewal itself, to its end.
    async fn stream(&self) -> End {
        self.tenure.fresh_pulse().await;
        let sent = clock::now();
        let handle = match self.members.handle().await {
            Ok(handle) => handle,
            Err(error) => return End::Broken(error),
        };
        let opened = timeout(self.members.attempt_timeout(), handle.client.clone().lease_keep_alive(self.lease)).await;
        let (requests, answers) = match opened {
            Ok(Ok(stream)) => stream,
            // How the client says that the first answer had no time left in it.
            Ok(Err(etcd_client::Error::LeaseKeepAliveError(_))) => return End::Gone,
            Ok(Err(error)) => return self.broken(&handle, error),
            Err(_) => return self.broken(&handle, "no answer in time"),
        };
        self.tenure.acknowledged(sent);
        self.streams.send_modify(|streams| *streams += 1);
        self.renew(&handle, requests, answers, sent.after(self.tenure.interval())).await
    }

    async fn renew(
        &self,
        handle: &Handle,
        mut requests: LeaseKeeper,
        mut answers: LeaseKeepAliveStream,
        mut next: BootInstant,
    ) -> End {
        // Answers come in the order of the requests.
        let mut sends = VecDeque::new();
        loop {
            let patience = sends.front().map(|sent: &BootInstant| sent.after(self.members.attempt_timeout()));
            tokio::select! {
                biased;
                answer = answers.message() => match answer {
                    Ok(Some(answer)) if answer.ttl() > 0 => sends.pop_front().into_iter().for_each(|sent| self.tenure.acknowledged(sent)),
                    Ok(Some(_)) => return End::Gone,
                    Ok(None) => return self.broken(handle, "the member ended the stream"),
                    Err(error) => return self.broken(handle, error),
                },
                () = clock::sleep_until(patience.unwrap_or_default()), if patience.is_some() => {
                    return self.broken(handle, "no answer in time");
                }
                () = clock::sleep_until(next) => {
                    self.tenure.fresh_pulse().await;
                    let now = clock::now();
                    next = now.after(self.tenure.interval());
                    sends.push_back(now);
                    if let Err(error) = requests.keep_alive().await {
                        return self.broken(handle, error);
                    }
                }
            }
        }
    }

    fn broken(&self, handle: &Handle, error: impl Into<BoxError>) -> End {
        self.members.failed(handle);
        End::Broken(error.into())
    }
}
