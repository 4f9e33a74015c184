//! In a schema of PostgreSQL: one row that says who leads, and until when by the database's clock. Who waits stands nowhere.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Networked, Place};
use crate::harness::{Store, TTL};
use crate::support::postgres::Postgres;
use crate::support::proxy::Proxy;

const SCHEMA: &str = "test";

/// One server, with the proxy before it.
pub struct OnPostgres {
    pub server: Postgres,
    proxy: Proxy,
}

impl OnPostgres {
    fn store_in(&self, schema: &str, address: SocketAddr) -> Store {
        Store::Postgres { url: self.server.url_at(address), schema: schema.to_owned() }
    }

    async fn number(&self, sql: &str) -> u64 {
        self.server.column(sql).await[0].parse().unwrap()
    }
}

impl Place for OnPostgres {
    /// Its row has to run out.
    const CRASH: Duration = TTL;
    const HANG: Duration = TTL;
    const SETTINGS: &'static [&'static str] = &[];
    const LET_SLEEP: &'static [&'static str] = &[];
    const LOOK_RARELY: &'static [&'static str] = &["leadership.lease_ttl=180s"];

    async fn make() -> OnPostgres {
        let server = Postgres::start().await;
        let proxy = Proxy::to(server.address).await;
        OnPostgres { server, proxy }
    }

    fn store(&self) -> Store {
        self.store_at(self.server.address)
    }

    fn leaders_store(&self) -> Store {
        self.store_at(self.proxy.address)
    }

    async fn queue(&self) -> Vec<String> {
        let who = "SELECT holder || ', by number ' || number || ' and token ' || encode(token, 'hex')";
        self.server.column(&format!("{who} FROM {SCHEMA}.leader WHERE expires_at > clock_timestamp()")).await
    }

    /// What was given up is over at once, and for good unless a grace is still owed.
    async fn is_deserted(&self) -> bool {
        self.number(&format!("SELECT count(*) FROM {SCHEMA}.leader WHERE expires_at > clock_timestamp()")).await == 0
    }

    async fn depose(&self) {
        let taken = "number = number + 1, token = decode(repeat('00', 16), 'hex'), holder = 'nobody'";
        self.server.execute(&format!("UPDATE {SCHEMA}.leader SET {taken}, expires_at = '-infinity'")).await;
    }

    /// The number stays: only the token tells.
    async fn overtake(&self) {
        let token = "token = decode(repeat('00', 16), 'hex')";
        self.server.execute(&format!("UPDATE {SCHEMA}.leader SET {token}, holder = 'somebody else'")).await;
    }

    async fn written(&self) -> u64 {
        self.number(&format!("SELECT number FROM {SCHEMA}.revision")).await
    }

    /// Renewals write the row, but draw no number.
    async fn activity(&self) -> u64 {
        self.written().await + self.number(&format!("SELECT number FROM {SCHEMA}.leader")).await
    }

    async fn spoil(&self) -> String {
        self.server.execute(&format!("UPDATE {SCHEMA}.record SET body = 'no state' WHERE kind = 'shards' AND page = 0")).await;
        "shards/0".to_owned()
    }
}

impl Networked for OnPostgres {
    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn server(&self) -> SocketAddr {
        self.server.address
    }

    fn store_at(&self, address: SocketAddr) -> Store {
        self.store_in(SCHEMA, address)
    }

    fn neighbour(&self) -> Store {
        self.store_in(&format!("{SCHEMA}_two"), self.server.address)
    }

    fn hang(&self) {
        self.server.pause();
    }

    fn go_on(&self) {
        self.server.go_on();
    }

    async fn restart(&mut self) {
        self.server.kill();
        self.server.start_again().await;
    }
}
