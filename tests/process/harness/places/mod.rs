//! Where replicas keep their state and settle who leads: all that differs between the scenarios of one store and another.

mod etcd;
mod host;
mod postgres;

use std::net::SocketAddr;
use std::time::Duration;

pub use etcd::OnEtcd;
pub use host::OnOneHost;
pub use postgres::OnPostgres;

use super::{Manager, Store};
use crate::support::proxy::Proxy;

/// The default settings of replicas, before those of their place and of a scenario.
const SETTINGS: [&str; 5] = [
    "leadership.lease_ttl=2s",
    "executors.lease_ttl=6s",
    "executors.settle_time=300ms",
    "executors.calm_time=1s",
    "number_of_shards=64",
];

/// One store, empty when it was made, as seen from outside: past every proxy and behind the managers' backs.
#[allow(async_fn_in_trait)]
pub trait Place: Sized {
    /// How long a leadership outlives its leader's sudden death.
    const CRASH: Duration;
    /// How long it outlives that its leader was frozen, with [`Place::SETTINGS`].
    const HANG: Duration;
    /// What replicas here are told in addition.
    const SETTINGS: &'static [&'static str];
    /// Settings under which a frozen leader is left alone, so that it can wake up.
    const LET_SLEEP: &'static [&'static str];
    /// Settings under which a leader looks after its leadership as rarely as can be; within a minute nothing but a fence stops it.
    const LOOK_RARELY: &'static [&'static str];

    /// A new one, with a server of its own where it takes one.
    async fn make() -> Self;

    /// Where standbys find it.
    fn store(&self) -> Store;

    /// Where the first leader finds it: through the proxy, if there is one.
    fn leaders_store(&self) -> Store {
        self.store()
    }

    /// The settings of every replica, overridden by these.
    fn settings<'a>(settings: &[&'a str]) -> Vec<&'a str> {
        [&SETTINGS, Self::SETTINGS, settings].concat()
    }

    /// Who leads, and behind it who waits, as far as this store knows them. Each is shown by its identity, and by what tells its
    /// leadership or its turn from any other that the same process may have.
    async fn queue(&self) -> Vec<String>;

    /// Whether the store knows that this replica waits, where it knows such things.
    async fn has_queued(&self, _replica: &Manager) -> bool {
        true
    }

    /// Whether nobody leads, waits, or has left anything behind.
    async fn is_deserted(&self) -> bool {
        self.queue().await.is_empty()
    }

    /// Takes the leadership away, so that it is nobody's.
    async fn depose(&self);

    /// Makes the leadership somebody else's in the very place that the leader's writes are fenced by.
    async fn overtake(&self);

    /// The revision of the state; moves with each write of it.
    async fn written(&self) -> u64;

    /// Moves with each write of the state and each change of who leads or waits.
    async fn activity(&self) -> u64;

    /// Overwrites a record of shards with what is none; its name.
    async fn spoil(&self) -> String;
}

/// A place that replicas reach over a network.
pub trait Networked: Place {
    /// Between the first leader and the server.
    fn proxy(&self) -> &Proxy;

    /// Where the server is.
    fn server(&self) -> SocketAddr;

    /// The same, found at another address.
    fn store_at(&self, address: SocketAddr) -> Store;

    /// Another cluster's on the same server. Its name begins with this one's.
    fn neighbour(&self) -> Store;

    /// The server stands still: SIGSTOP.
    fn hang(&self);

    /// It goes on.
    fn go_on(&self);

    /// It dies, and is started again with what it had.
    async fn restart(&mut self);
}

/// Runs scenarios on every store, each in a module of the store's name. A scenario is a function of its [`Place`].
macro_rules! on_every_store {
    ($($scenario:ident),+ $(,)?) => {
        $crate::harness::on_store!(on_etcd, OnEtcd; $($scenario),+);
        $crate::harness::on_store!(on_postgres, OnPostgres; $($scenario),+);
        $crate::harness::on_store!(on_one_host, OnOneHost; $($scenario),+);
    };
}

/// The same, on those stores that are [`Networked`].
macro_rules! on_every_network {
    ($($scenario:ident),+ $(,)?) => {
        $crate::harness::on_store!(on_etcd, OnEtcd; $($scenario),+);
        $crate::harness::on_store!(on_postgres, OnPostgres; $($scenario),+);
    };
}

/// The same, on one.
macro_rules! on_store {
    ($module:ident, $place:ident; $($scenario:ident),+) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    super::$scenario::<$crate::harness::$place>().await;
                }
            )+
        }
    };
}

pub(crate) use {on_every_network, on_every_store, on_store};
