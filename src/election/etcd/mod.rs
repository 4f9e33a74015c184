//! Leadership on etcd, by its own Election API: first come, first served.
//!
//! ```text
//! draw a lease id ─ grant ─┬─ campaign ─ read the own key back ─ won: a task keeps the lease and watches the key
//!                          └─ keep the lease (from here to the very end, without a gap)
//! ```
//! Whatever ends before or after that for any reason, a future that is dropped included, ends in `Lease::revoke`: with the lease goes
//! its key, and the queue moves on. The id is drawn here and not by etcd, so that also a grant whose answer was lost can be revoked.
//!
//! etcd answers a campaign with success when the key ahead of it goes, without a look at the campaign's own key. So that is read back,
//! at the revision that the campaign named; the same revision is the fence.

mod lease;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, KeyValue, LeaderKey, LeaseGrantOptions, SortOrder, SortTarget};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;
use tracing::{info, warn};

use self::lease::{Keeper, Lease};
use super::candidacy::{Attempt, Candidacy, KnownLeader, LONGEST_PAUSE, Said};
use super::tenure::Tenure;
use super::{Election, Error, Holder, Leadership, Lost};
use crate::backend::etcd::{Failure, Invalid, Members};
use crate::backend::{BoxError, Fence};
use crate::clock;
use crate::types::{BootInstant, Token};

/// What revoking takes at most where somebody waits for the end of this process.
const REVOKE_TIMEOUT: Duration = Duration::from_millis(500);

/// How soon somebody who waits first looks who leads. Who wins at once says nothing.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// How often somebody who waits looks who leads, so that who asks it is not sent to one that is long gone.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What an election is run with.
#[derive(Clone)]
pub struct Options {
    /// What every key begins with; ends with `/`. The election takes place below `<prefix>leader/`.
    pub prefix: String,
    /// How long a leadership lasts without renewal: whole seconds, at least 2, and at least twice the time of a request.
    pub ttl: Duration,
    /// Who stands, and how. A queue is for who waits: no patience is needed of it.
    pub candidacy: Candidacy,
}

/// See the module.
pub struct EtcdElection {
    members: Arc<Members>,
    options: Options,
    leader: KnownLeader,
}

impl EtcdElection {
    /// An election on `members`, which nothing else should share: then renewals wait behind nobody's bytes.
    ///
    /// # Errors
    /// Where the TTL is one that cannot be kept.
    pub fn new(members: Arc<Members>, options: Options) -> Result<EtcdElection, Invalid> {
        super::check_ttl(options.ttl, members.request_timeout())?;
        Ok(EtcdElection { members, options, leader: KnownLeader::unknown() })
    }

    /// From the grant to the confirmed win. The arms are in the order of what counts when several are ready.
    async fn compete(&self, lease: i64) -> Result<Won, Error> {
        let granted = self.grant(lease).await?;
        let tenure = Arc::new(Tenure::new(self.options.ttl, granted, self.options.candidacy.pulse.clone()));
        let (keeper, mut streams) = Keeper::new(Arc::clone(&self.members), lease, Arc::clone(&tenure));
        let mut keeping: Keeping = Box::pin(keeper.run());

        let key = tokio::select! {
            biased;
            lost = &mut keeping => return Err(store_error("keeping the lease of a campaign", lost)),
            // What the lease's stream had gone through has probably swallowed the campaign too.
            _ = streams.wait_for(|streams| *streams > 1) => {
                return Err(store_error("waiting in the queue", "the connection to the member broke"));
            }
            never = self.announce() => match never {},
            key = self.queue(lease) => key?,
        };
        let name = tokio::select! {
            biased;
            lost = &mut keeping => return Err(store_error("keeping the lease of a campaign", lost)),
            name = self.confirm(&key, lease) => name?,
        };
        let fence = Fence::Etcd { key: name, creation_revision: key.rev(), token: Token::draw() };
        Ok(Won { members: Arc::clone(&self.members), fence, keeping, tenure })
    }

    /// Grants the lease, and says from when it counts at the latest: from before the first copy of the request was sent.
    async fn grant(&self, lease: i64) -> Result<BootInstant, Error> {
        let sent = clock::now();
        let seconds = i64::try_from(self.options.ttl.as_secs()).unwrap_or(i64::MAX);
        let granted = self.members.call("granting a lease", |mut client| async move {
            client.lease_grant(seconds, Some(LeaseGrantOptions::new().with_id(lease))).await
        });
        match granted.await {
            Ok(_) => Ok(sent),
            // The lease exists: an earlier copy has arrived.
            Err(failure) if failure.code == Some(Code::FailedPrecondition) && failure.may_have_arrived => Ok(sent),
            Err(failure) => Err(from_failure(failure)),
        }
    }

    /// Waits for its turn, without any bound of time.
    async fn queue(&self, lease: i64) -> Result<LeaderKey, Error> {
        let what = "campaigning";
        let mut handle = self.members.handle().await.map_err(|error| store_error(what, error))?;
        let name = format!("{}leader", self.options.prefix);
        let answer = handle
            .client
            .campaign(name, self.options.candidacy.holder.clone(), lease)
            .await
            .inspect_err(|_| self.members.failed(&handle));
        let mut answer = answer.map_err(|error| store_error(what, error))?;
        answer.take_leader().ok_or_else(|| store_error(what, "an answer without a key"))
    }

    /// Reads the own key back. A read that fails for a passing reason is repeated, for a TTL at most.
    async fn confirm(&self, key: &LeaderKey, lease: i64) -> Result<String, Error> {
        let what = "confirming the won campaign";
        let name = String::from_utf8(key.key().to_vec()).map_err(|error| store_error(what, error))?;
        let until = Instant::now() + self.options.ttl;
        loop {
            match read_key(&self.members, what, &name).await {
                Ok(Some(read)) if read.create_revision() == key.rev() && read.lease() == lease => return Ok(name),
                Ok(_) => return Err(store_error(what, format!("the key {name} is gone or not the own one"))),
                Err(failure) if failure.code.is_some() || Instant::now() >= until => return Err(from_failure(failure)),
                Err(failure) => {
                    warn!(error = &failure as &dyn std::error::Error, "a won campaign is not confirmed yet; reading again")
                }
            }
        }
    }

    /// Says who leads, for as long as this waits: to who asks, soon after it changed, and in the log also every so often.
    async fn announce(&self) -> Infallible {
        let announce_every = self.options.candidacy.announce_every;
        let mut said = Said::default();
        sleep(FIRST_LOOK.min(announce_every)).await;
        loop {
            let seen = self.first_in_queue().await;
            let leader = seen.as_ref().ok().cloned().flatten();
            let is_news = self.leader.seen(leader);
            if said.is_due(is_news, announce_every) {
                match seen {
                    Ok(Some(leader)) => info!(leader, "waiting for the leadership, as a standby"),
                    // Between two leaders, or not in the queue yet.
                    Ok(None) => info!("waiting for the leadership, as a standby; there is no leader yet"),
                    Err(failure) => {
                        warn!(error = &failure as &dyn std::error::Error, "waiting as a standby; who leads is not known")
                    }
                }
            }
            sleep(LOOK_EVERY.min(announce_every)).await;
        }
    }

    async fn first_in_queue(&self) -> Result<Option<String>, Failure> {
        let first = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1);
        let queue = format!("{}leader/", self.options.prefix);
        let read = self.members.call("reading who leads", |mut client| {
            let (queue, first) = (queue.clone(), first.clone());
            async move { client.get(queue, Some(first)).await }
        });
        let answer = read.await?;
        Ok(answer.kvs().first().map(|key| String::from_utf8_lossy(key.value()).chars().take(500).collect()))
    }
}

#[async_trait::async_trait]
impl Attempt for EtcdElection {
    async fn attempt(&self, shutdown: &CancellationToken) -> Result<Leadership, Error> {
        let lease = Lease::draw(Arc::clone(&self.members));
        let outcome = tokio::select! {
            biased;
            () = shutdown.cancelled() => Err(Error::Cancelled),
            outcome = self.compete(lease.id()) => outcome,
        };
        match outcome {
            Ok(won) => Ok(won.leadership(lease)),
            Err(error) => {
                let within = REVOKE_TIMEOUT.min(self.members.request_timeout());
                if let Err(failure) = lease.revoke(within).await {
                    let failure = &failure as &dyn std::error::Error;
                    warn!(error = failure, "the lease of a campaign was not revoked; it blocks the queue until it runs out");
                }
                Err(error)
            }
        }
    }
}

#[async_trait::async_trait]
impl Election for EtcdElection {
    /// Goes on until it is won or `shutdown` is cancelled: a cluster that does not answer, and a lease that is lost while it waits, only
    /// mean another attempt.
    async fn campaign(&self, shutdown: &CancellationToken) -> Result<Leadership, Error> {
        self.options.candidacy.campaign(shutdown, &self.leader, LONGEST_PAUSE, self).await
    }

    fn leader(&self) -> Option<watch::Receiver<Option<String>>> {
        Some(self.leader.subscribe())
    }
}

type Keeping = std::pin::Pin<Box<dyn Future<Output = Lost> + Send>>;

/// A campaign that was won, on its way to be a leadership.
struct Won {
    members: Arc<Members>,
    fence: Fence,
    keeping: Keeping,
    tenure: Arc<Tenure>,
}

impl Won {
    fn leadership(self, lease: Lease) -> Leadership {
        let Won { members, fence, keeping, tenure } = self;
        let (belief, watched) = (tenure.belief(), fence.clone());
        let (lose, lost) = oneshot::channel();
        let within = members.request_timeout();
        let task = tokio::spawn(async move {
            let reason = tokio::select! {
                biased;
                reason = keeping => reason,
                reason = watch_key(&members, &watched, tenure.interval()) => reason,
            };
            // First of all, whatever the lease says.
            tenure.end();
            // Nobody may be listening any more.
            lose.send(reason).ok();
        });
        Leadership::new(fence, belief, lost, Box::new(EtcdHolder { keeping: AbortOnDropHandle::new(task), lease, within }))
    }
}

/// Looks every `interval` whether the key is still the one that was won. A look that fails says nothing: the lease has its own deadline.
async fn watch_key(members: &Members, fence: &Fence, interval: Duration) -> Lost {
    let Fence::Etcd { key, creation_revision, .. } = fence else { return Lost::Taken("a fence of another kind".to_owned()) };
    loop {
        sleep(interval).await;
        match read_key(members, "looking after the own key", key).await {
            Ok(Some(read)) if read.create_revision() == *creation_revision => {}
            Ok(Some(_)) => return Lost::Taken(format!("the key {key} was deleted and made anew")),
            Ok(None) => return Lost::Taken(format!("the key {key} was deleted")),
            Err(failure) => warn!(error = &failure as &dyn std::error::Error, "the own key was not read; the lease goes on"),
        }
    }
}

async fn read_key(members: &Members, what: &'static str, key: &str) -> Result<Option<KeyValue>, Failure> {
    let read = members.call(what, |mut client| {
        let key = key.to_owned();
        async move { client.get(key, None).await }
    });
    Ok(read.await?.take_kvs().pop())
}

struct EtcdHolder {
    keeping: AbortOnDropHandle<()>,
    lease: Lease,
    within: Duration,
}

#[async_trait::async_trait]
impl Holder for EtcdHolder {
    async fn release(self: Box<Self>) -> Result<(), BoxError> {
        let EtcdHolder { keeping, lease, within } = *self;
        drop(keeping);
        Ok(lease.revoke(within).await?)
    }
}

fn store_error(what: &'static str, source: impl Into<BoxError>) -> Error {
    Error::Store { what, source: source.into() }
}

fn from_failure(failure: Failure) -> Error {
    Error::Store { what: failure.what, source: failure.source }
}

impl fmt::Debug for EtcdElection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdElection")
            .field("members", &self.members)
            .field("prefix", &self.options.prefix)
            .finish_non_exhaustive()
    }
}
