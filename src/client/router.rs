//! The callers' side: which process owns the shard of a key, by a table that is kept up to date in the background.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use super::cache::{self, Cache, Known, Refused};
use super::error::StartError;
use super::hash::shard_for;
use super::lookout::Lookout;
use super::managers::Managers;
use super::pace::{LONGEST_ATTEMPT, Pace};
use super::refusal::NotOwner;
use super::table::{Route, Table};
use crate::clock;
use crate::rpc::{WatchRoutingTableRequest, reason_of, with_causes};
use crate::types::{BootInstant, ShardId, Version};

/// A manager says something every 5 s. One that says nothing for this long is as good as gone.
const SILENCE: Duration = Duration::from_secs(12);
/// The least time between two questions that doubts raise.
const REFRESH_PAUSE: Duration = Duration::from_millis(20);

/// Why there is no owner to send a call to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// No manager has answered yet.
    #[error("no manager has answered yet, within {patience:?}")]
    NoTable {
        /// As given.
        patience: Duration,
    },
    /// Nobody owns the shard now.
    #[error("nobody owned shard {shard} within {patience:?}")]
    Unowned {
        /// As asked for.
        shard: ShardId,
        /// As given.
        patience: Duration,
    },
    /// The cluster has no such shard.
    #[error("shard {shard} does not exist: there are {number_of_shards}, counted from 0")]
    NoSuchShard {
        /// As asked for.
        shard: ShardId,
        /// How many there are.
        number_of_shards: u32,
    },
}

/// Knows who owns which shard. Cheap to clone; clones share the table, and the last one takes the background task with it.
///
/// It watches the routing table at whichever manager leads, and answers out of its memory. While no manager answers, the last table
/// stays in use, and [`age`](Router::age) says how old it is. It never goes back to an older table (P7), nor to a cluster that it
/// saw replaced (L12), and shows managers what it has seen, so that one whose store was restored catches up (L10).
///
/// That a route was right when it was looked up is not promised: shards move. An executor that does not own a shard refuses, with
/// [`NotOwner`] where it uses that; then, and where it cannot be reached, [`invalidate`](Router::invalidate) and ask again.
#[derive(Clone, Debug)]
pub struct Router {
    shared: Arc<Shared>,
    _keeper: Arc<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    cache: watch::Sender<Cache>,
    /// Somebody doubts a route.
    doubted: Notify,
}

impl Router {
    /// Begins to watch at one of these managers, given as `host:port` or `http://host:port`. Returns at once. Must be called within a
    /// Tokio runtime.
    ///
    /// # Errors
    /// [`StartError::NoManager`] and [`StartError::Manager`].
    pub fn start(managers: impl IntoIterator<Item = impl Into<String>>) -> Result<Router, StartError> {
        let urls: Vec<String> = managers.into_iter().map(Into::into).collect();
        if urls.is_empty() {
            return Err(StartError::NoManager);
        }
        let managers = Managers::new(&urls, LONGEST_ATTEMPT).map_err(StartError::Manager)?;
        let shared = Arc::new(Shared { cache: watch::Sender::new(Cache::default()), doubted: Notify::new() });
        let keeper = Keeper {
            managers,
            shared: Arc::clone(&shared),
            pace: Pace::eager(clock::now()),
            lookout: Lookout::default(),
            round: None,
            heard: clock::now(),
        };
        let keeper = AbortOnDropHandle::new(tokio::spawn(keeper.run()));
        Ok(Router { shared, _keeper: Arc::new(keeper) })
    }

    /// The newest table; `None` before the first one. It does not change under whoever holds it.
    pub fn table(&self) -> Option<Arc<Table>> {
        self.shared.cache.borrow().table().cloned()
    }

    /// How long ago this process *read* a manager's word that the table is the newest; `None` before the first one. At most 5 s, and the
    /// way, while a manager answers. When it was said is not known here: a process that was stopped, or too busy to read, finds on waking
    /// what had come meanwhile, and takes that for fresh. Until it has read all of it, which is a moment, the table may be older than this
    /// by as long as it was stopped.
    pub fn age(&self) -> Option<Duration> {
        self.shared.cache.borrow().age(clock::now())
    }

    /// Waits for a table at this version or above. Cancel-safe.
    pub async fn at_least(&self, version: Version) -> Arc<Table> {
        let newest = |cache: &Cache| cache.table().filter(|table| table.version() >= version).cloned();
        self.wait_for(newest).await
    }

    /// The shard of a key, as [`shard_for`] says; `None` before the first table.
    pub fn shard(&self, key: &[u8]) -> Option<ShardId> {
        let number_of_shards = self.shared.cache.borrow().table()?.number_of_shards();
        Some(shard_for(key, number_of_shards))
    }

    /// Who owns a shard. Answers out of memory, at once, save in three cases: where there is no table yet and where nobody owns the shard,
    /// it waits for that; and where the route was invalidated it waits until a manager has said again who owns the shard, or none
    /// answered. Cancel-safe.
    ///
    /// # Errors
    /// What it waited for did not come within `patience`; a route that is in doubt still is handed out then. Or there is no such shard.
    pub async fn route(&self, shard: ShardId, patience: Duration) -> Result<Route, NoRoute> {
        let sure = |cache: &Cache| match cache.known(shard) {
            Known::Route(route) => Some(Ok(route)),
            Known::NoSuchShard(number_of_shards) => Some(Err(NoRoute::NoSuchShard { shard, number_of_shards })),
            Known::Doubtful(_) | Known::Unowned | Known::NoTable => None,
        };
        if let Ok(sure) = timeout(patience, self.wait_for(sure)).await {
            return sure;
        }
        match self.shared.cache.borrow().known(shard) {
            Known::Route(route) | Known::Doubtful(route) => Ok(route),
            Known::NoSuchShard(number_of_shards) => Err(NoRoute::NoSuchShard { shard, number_of_shards }),
            Known::Unowned => Err(NoRoute::Unowned { shard, patience }),
            Known::NoTable => Err(NoRoute::NoTable { patience }),
        }
    }

    /// Who owns the shard of a key; as [`route`](Router::route), of the shard that [`shard_for`] says.
    ///
    /// # Errors
    /// See [`route`](Router::route).
    pub async fn route_of(&self, key: &[u8], patience: Duration) -> Result<Route, NoRoute> {
        let asked = clock::now();
        let shard = self.wait_for(|cache| cache.table().map(|table| shard_for(key, table.number_of_shards())));
        let shard = timeout(patience, shard).await.map_err(|_| NoRoute::NoTable { patience })?;
        self.route(shard, patience.saturating_sub(clock::now().since(asked))).await
    }

    /// This route did not lead to its shard: nobody was there, or who was there refused. The next to ask for the shard waits until a
    /// manager, asked from now on, has said who owns it; it is asked at once. Where the refusal named a newer owner, that one is
    /// taken at its word, until a manager's is as new. What is newer than `route` anyway stays.
    ///
    /// An owner that died stays the owner until its lease is over: the same route may come again, until then. Calls are to be tried
    /// again with pauses that grow.
    pub fn invalidate(&self, route: &Route, refusal: Option<&NotOwner>) {
        let named = refusal.and_then(|refusal| refusal.current.as_ref());
        // What is no news wakes nobody.
        if self.shared.cache.send_if_modified(|cache| cache.doubt(clock::now(), route, named)) {
            self.shared.doubted.notify_one();
        }
    }

    /// What an executor says to a caller that asks it for a shard which it does not own: who does, as far as this router knows.
    pub fn not_owner(&self, shard: ShardId) -> NotOwner {
        NotOwner { shard, current: self.shared.cache.borrow().table().and_then(|table| table.route(shard)) }
    }

    async fn wait_for<T>(&self, mut look: impl FnMut(&Cache) -> Option<T>) -> T {
        let mut cache = self.shared.cache.subscribe();
        loop {
            if let Some(found) = look(&cache.borrow_and_update()) {
                return found;
            }
            if cache.changed().await.is_err() {
                // Not while this router lives, since it has the sender.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// The task behind a router.
struct Keeper {
    managers: Managers,
    shared: Arc<Shared>,
    pace: Pace,
    lookout: Lookout,
    /// When the first address was asked since one answered last, or since all had failed.
    round: Option<BootInstant>,
    /// When the manager at hand said something last, if only that it ends the watch; when it was asked, before that.
    heard: BootInstant,
}

/// Why a watch came to its end.
#[derive(Debug, thiserror::Error)]
enum End {
    /// Somebody wants a question that is asked from now on.
    #[error("it is asked again")]
    AskAgain,
    /// It failed, or was refused.
    #[error("{}", with_causes(.0))]
    Failed(Status),
    /// The manager ended it, and did not say why.
    #[error("it said no more")]
    Closed,
    /// What it said was refused.
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl From<Status> for End {
    fn from(status: Status) -> End {
        End::Failed(status)
    }
}

impl Keeper {
    async fn run(mut self) {
        loop {
            clock::sleep_until(self.pace.due()).await;
            let asked = clock::now();
            self.round.get_or_insert(asked);
            self.heard = asked;
            match self.watch(asked).await {
                End::AskAgain => self.pace.reset(asked.after(REFRESH_PAUSE)),
                end => self.failed(&end),
            }
        }
    }

    /// Asks the manager at hand, and takes in what it says, for as long as that goes well.
    async fn watch(&mut self, asked: BootInstant) -> End {
        let request = self.request();
        let mut client = self.managers.client();
        let opened = timeout(LONGEST_ATTEMPT, client.watch_routing_table(request)).await;
        let mut changes = match opened {
            Ok(Ok(opened)) => opened.into_inner(),
            Ok(Err(status)) => return status.into(),
            Err(_) => return Status::deadline_exceeded(format!("no answer within {LONGEST_ATTEMPT:?}")).into(),
        };
        let mut first = Some(asked);
        self.heard = clock::now();
        loop {
            let doubted = self.shared.doubted.notified();
            let message = tokio::select! {
                biased;
                message = changes.message() => message,
                // Only what is heard puts this off: doubts come as often as callers are refused.
                () = clock::sleep_until(self.heard.after(SILENCE)) => {
                    return Status::deadline_exceeded(format!("nothing said for {SILENCE:?}")).into();
                }
                () = doubted, if first.is_none() => {
                    if self.shared.cache.borrow().wants_more_than(asked) {
                        return End::AskAgain;
                    }
                    continue;
                }
            };
            self.heard = clock::now();
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => return End::Closed,
                Err(status) => return status.into(),
            };
            // Large tables take their time, so the lock is taken only to put the new one in the old one's place. Nobody but this task
            // does that, and it frees the old one after the lock.
            let before = self.shared.cache.borrow().table().cloned();
            let next = match cache::next(before.as_ref(), &message) {
                Ok(next) => next,
                Err(refused) => return refused.into(),
            };
            let mut taken = Ok(());
            self.shared.cache.send_modify(|cache| taken = cache.accept(self.heard, first.take(), next.as_ref()));
            if let Err(refused) = taken {
                return refused.into();
            }
            self.worked(self.heard);
        }
    }

    fn request(&self) -> WatchRoutingTableRequest {
        let shown = self.shared.cache.borrow().shown();
        WatchRoutingTableRequest {
            cluster_id: shown.map(|(cluster_id, _)| cluster_id.to_string()).unwrap_or_default(),
            known: shown.map(|(_, version)| version.into()),
        }
    }

    fn worked(&mut self, now: BootInstant) {
        self.managers.worked();
        self.pace.reset(now);
        self.round = None;
        if let Some(away) = self.lookout.found(now) {
            tracing::info!(manager = self.managers.url(), "a manager shows its routing table again, after {away:.1?}");
        }
    }

    fn failed(&mut self, end: &End) {
        let now = clock::now();
        let urls = self.managers.urls();
        let is_broken = matches!(end, End::Failed(status) if reason_of(status).is_none());
        let another_address = self.managers.failed(is_broken);
        self.pace.failed(now, rand::random(), another_address);
        if !another_address && let Some(round) = self.round.take() {
            self.shared.cache.send_modify(|cache| cache.settle(round));
        }
        if let Some(away) = self.lookout.failed(now, self.heard, another_address) {
            let table = match self.shared.cache.borrow().age(now) {
                Some(age) => format!("the table at hand is {age:.1?} old and stays in use"),
                None => "there is no table yet".to_owned(),
            };
            tracing::warn!(last = %end, "no manager shows its routing table at {urls}, for {away:.1?} now; trying on; {table}");
        }
    }
}
