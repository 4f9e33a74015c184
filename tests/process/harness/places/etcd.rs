//! Below a prefix of etcd: keys in the order of their creation, each bound to a lease.

use std::net::SocketAddr;
use std::time::Duration;

use etcd_client::KeyValue;

use super::{Networked, Place};
use crate::harness::{Manager, Store, TTL};
use crate::support::etcd::Etcd;
use crate::support::proxy::Proxy;

const PREFIX: &str = "/test/";

/// One etcd, of one member or three.
pub struct OnEtcd {
    pub servers: Etcd,
    proxy: Proxy,
}

impl OnEtcd {
    /// Three members, all of which every replica knows; nothing stands between.
    pub async fn three_members() -> OnEtcd {
        OnEtcd::over(Etcd::three().await).await
    }

    async fn over(servers: Etcd) -> OnEtcd {
        let proxy = Proxy::to(servers.members[0].client).await;
        OnEtcd { servers, proxy }
    }

    /// Who leads and who waits, in their order.
    pub async fn keys(&self) -> Vec<KeyValue> {
        self.servers.keys(&format!("{PREFIX}leader/")).await
    }

    fn below(endpoint: String, prefix: &str) -> Store {
        Store::Etcd { endpoint, prefix: prefix.to_owned() }
    }
}

impl Place for OnEtcd {
    /// Its lease has to end.
    const CRASH: Duration = TTL;
    const HANG: Duration = TTL;
    const SETTINGS: &'static [&'static str] = &[];
    const LET_SLEEP: &'static [&'static str] = &[];
    const LOOK_RARELY: &'static [&'static str] = &["leadership.lease_ttl=180s"];

    async fn make() -> OnEtcd {
        OnEtcd::over(Etcd::single().await).await
    }

    fn store(&self) -> Store {
        OnEtcd::below(self.servers.endpoints().join(","), PREFIX)
    }

    fn leaders_store(&self) -> Store {
        match self.servers.members.len() {
            1 => self.store_at(self.proxy.address),
            _ => self.store(),
        }
    }

    async fn queue(&self) -> Vec<String> {
        let one = |key: &KeyValue| {
            let who = String::from_utf8_lossy(key.value());
            let name = String::from_utf8_lossy(key.key());
            format!("{who}, by {name}, created at {}, on lease {}", key.create_revision(), key.lease())
        };
        self.keys().await.iter().map(one).collect()
    }

    async fn has_queued(&self, replica: &Manager) -> bool {
        self.queue().await.iter().any(|it| it.contains(&replica.identity()))
    }

    async fn is_deserted(&self) -> bool {
        let leases = self.servers.client().await.leases().await.unwrap();
        self.keys().await.is_empty() && leases.leases().is_empty()
    }

    /// Its lease lives on.
    async fn depose(&self) {
        let first = self.keys().await.swap_remove(0);
        self.servers.client().await.delete(first.key(), None).await.unwrap();
    }

    /// The key is gone, and there again: only its creation revision tells.
    async fn overtake(&self) {
        let first = self.keys().await.swap_remove(0);
        let mut client = self.servers.client().await;
        client.delete(first.key(), None).await.unwrap();
        client.put(first.key(), first.value(), None).await.unwrap();
    }

    async fn written(&self) -> u64 {
        let keys = self.servers.keys(&format!("{PREFIX}state/")).await;
        keys.iter().map(|key| key.mod_revision()).max().unwrap().try_into().unwrap()
    }

    /// Every write to etcd at all. Renewals of leases are none.
    async fn activity(&self) -> u64 {
        self.servers.revision().await.try_into().unwrap()
    }

    async fn spoil(&self) -> String {
        let name = "shards/0";
        self.servers.client().await.put(format!("{PREFIX}state/{name}"), "no state", None).await.unwrap();
        name.to_owned()
    }
}

impl Networked for OnEtcd {
    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn server(&self) -> SocketAddr {
        self.servers.members[0].client
    }

    fn store_at(&self, address: SocketAddr) -> Store {
        OnEtcd::below(format!("http://{address}"), PREFIX)
    }

    fn neighbour(&self) -> Store {
        OnEtcd::below(self.servers.endpoints().join(","), &format!("{PREFIX}two/"))
    }

    fn hang(&self) {
        self.servers.members[0].stop();
    }

    fn go_on(&self) {
        self.servers.members[0].go_on();
    }

    async fn restart(&mut self) {
        self.servers.members[0].kill();
        self.servers.run(0);
    }
}
