//! What must hold between values, and what had better.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use humantime_serde::re::humantime::format_duration;
use tonic::transport::Uri;
use tracing_subscriber::EnvFilter;

use super::problem::Broken;
use super::{Config, StoreKind};
use crate::types::MAX_SHARDS;

/// The longest duration that any key takes: deadlines far beyond the life of a process are mistakes.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);
const MIN_LEADER_TTL: Duration = Duration::from_secs(2);
/// Room for `meta` and the longest page.
const MIN_ETCD_BYTES: u32 = 128 * 1024;
const MIN_EXECUTOR_LEASE: Duration = Duration::from_secs(1);

/// Every rule that does not hold. A rule that leans on a value which is itself refused is not looked at.
pub(super) fn broken(config: &Config) -> Vec<Broken> {
    let mut checks = Checks::default();
    let Config { number_of_shards, rebalance_threshold, grpc, http, persistence, leadership, executors, log } = config;

    checks.value("number_of_shards", number_of_shards, (1..=MAX_SHARDS).contains(number_of_shards), "1 to 4194304");
    checks.value("rebalance_threshold", rebalance_threshold, (0.0..=1.0).contains(rebalance_threshold), "0 to 1");
    checks.relation(
        &["grpc.listen", "http.listen"],
        !clash(grpc.listen, http.listen),
        format!("grpc.listen = {} and http.listen = {} are refused: they must differ, unless port 0", grpc.listen, http.listen),
    );

    let ttl = leadership.lease_ttl;
    let whole = ttl.subsec_nanos() == 0 && (MIN_LEADER_TTL..=MAX_DURATION).contains(&ttl);
    if checks.value("leadership.lease_ttl", text(ttl), whole, "whole seconds, at least 2s and at most 24h") {
        let timeout = persistence.request_timeout;
        checks.relation(
            &["persistence.request_timeout", "leadership.lease_ttl"],
            !timeout.is_zero() && timeout <= ttl / 2,
            format!(
                "persistence.request_timeout = {} is refused: above 0s and at most half of leadership.lease_ttl = {}",
                text(timeout),
                text(ttl)
            ),
        );
    }

    let lease = executors.lease_ttl;
    let valid = (MIN_EXECUTOR_LEASE..=MAX_DURATION).contains(&lease);
    if checks.value("executors.lease_ttl", text(lease), valid, "at least 1s and at most 24h") {
        let timeout = executors.command_timeout;
        checks.relation(
            &["executors.command_timeout", "executors.lease_ttl"],
            !timeout.is_zero() && timeout < lease,
            format!(
                "executors.command_timeout = {} is refused: above 0s and below executors.lease_ttl = {}",
                text(timeout),
                text(lease)
            ),
        );
        let settle = executors.settle_time;
        checks.relation(
            &["executors.settle_time", "executors.lease_ttl"],
            settle < lease,
            format!("executors.settle_time = {} is refused: below executors.lease_ttl = {}", text(settle), text(lease)),
        );
    }
    let (interval, timeout) = (executors.probe_interval, executors.probe_timeout);
    let valid = !interval.is_zero() && interval <= MAX_DURATION;
    if checks.value("executors.probe_interval", text(interval), valid, "above 0s and at most 24h") {
        checks.relation(
            &["executors.probe_timeout", "executors.probe_interval"],
            !timeout.is_zero() && timeout <= interval,
            format!(
                "executors.probe_timeout = {} is refused: above 0s and at most executors.probe_interval = {}",
                text(timeout),
                text(interval)
            ),
        );
    }

    let path = &persistence.sqlite.path;
    checks.value("persistence.sqlite.path", format!("{path:?}"), !path.as_os_str().is_empty(), "the path of a file");
    match &persistence.postgres.url {
        Some(url) => {
            let valid = ["postgres://", "postgresql://"].iter().any(|scheme| url.reveal().starts_with(scheme));
            checks.value("persistence.postgres.url", url, valid, "a URL that begins with postgres:// or postgresql://");
        }
        None => checks.relation(
            &["persistence.postgres.url", "persistence.type"],
            persistence.kind != StoreKind::Postgres,
            "persistence.postgres.url is missing: persistence.type = postgres needs it".to_owned(),
        ),
    }
    let etcd = &persistence.etcd;
    for endpoint in &etcd.endpoints {
        let valid = endpoint.parse::<Uri>().is_ok_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.port_u16().is_some() && matches!(uri.path(), "" | "/")
        });
        checks.value(
            "persistence.etcd.endpoints",
            format!("{endpoint:?}"),
            valid,
            "a list of http://host:port or https://host:port",
        );
    }
    checks.relation(
        &["persistence.etcd.endpoints", "persistence.type"],
        persistence.kind != StoreKind::Etcd || !etcd.endpoints.is_empty(),
        "persistence.etcd.endpoints = [] is refused: persistence.type = etcd needs at least one".to_owned(),
    );
    let valid = etcd.prefix.starts_with('/') && etcd.prefix.ends_with('/');
    checks.value("persistence.etcd.prefix", format!("{:?}", etcd.prefix), valid, "text that begins and ends with /");
    let chosen = persistence.kind == StoreKind::Etcd;
    let both = |one: &str, other: &str| format!("persistence.etcd.{one} is given without {other}, and means nothing alone");
    let (cert, key) = (etcd.cert_file.is_some(), etcd.key_file.is_some());
    let keys = &["persistence.etcd.cert_file", "persistence.etcd.key_file"];
    checks.relation(
        keys,
        !chosen || cert == key,
        if cert { both("cert_file", "key_file") } else { both("key_file", "cert_file") },
    );
    let (user, password) = (etcd.username.is_some(), etcd.password.is_some() || etcd.password_file.is_some());
    let keys = &["persistence.etcd.username", "persistence.etcd.password", "persistence.etcd.password_file"];
    let message = if user { both("username", "password or password_file") } else { both("a password", "username") };
    checks.relation(keys, !chosen || user == password, message);
    checks.relation(
        &["persistence.etcd.password", "persistence.etcd.password_file"],
        etcd.password.is_none() || etcd.password_file.is_none(),
        "persistence.etcd.password and persistence.etcd.password_file are refused together: one of them".to_owned(),
    );
    let secure = etcd.endpoints.iter().find(|endpoint| endpoint.starts_with("https://"));
    checks.relation(
        &["persistence.etcd.endpoints", "persistence.etcd.ca_file"],
        !chosen || secure.is_none() || etcd.ca_file.is_some(),
        format!("persistence.etcd.ca_file is missing: the endpoint {} needs it", secure.map_or("", String::as_str)),
    );
    checks.value("persistence.etcd.max_operations", etcd.max_operations, etcd.max_operations >= 3, "at least 3");
    let least = MIN_ETCD_BYTES;
    checks.value("persistence.etcd.max_bytes", etcd.max_bytes, etcd.max_bytes >= least, &format!("at least {least}"));

    if let Err(reason) = EnvFilter::builder().parse(&log.filter) {
        checks.value("log.filter", format!("{:?}", log.filter), false, &format!("a level or directives ({reason})"));
    }
    checks.broken
}

/// What is allowed, but probably not meant.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let (ttl, lease) = (config.leadership.lease_ttl, config.executors.lease_ttl);
    let mut warnings = Vec::new();
    // Clients renew at a third: what is left of a lease when a leader crashes can be as little as two thirds. On SQLite no other
    // process waits to lead, so nothing follows from the leadership's time.
    if config.persistence.kind != StoreKind::Sqlite && lease.saturating_mul(2) / 3 <= ttl.saturating_add(Duration::from_secs(2)) {
        warnings.push(format!(
            "executors.lease_ttl = {} is short beside leadership.lease_ttl = {}: two thirds of it should be above the latter + 2s, \
             or executors may lose their leases while a new leader is being elected",
            text(lease),
            text(ttl)
        ));
    }
    warnings
}

/// Why this release cannot serve although all rules hold.
pub(super) fn unsupported(config: &Config) -> Option<String> {
    (config.persistence.kind == StoreKind::Postgres).then(|| {
        "persistence.type = postgres is valid, but this release does not serve on it yet: it serves on sqlite and etcd".to_owned()
    })
}

/// Two servers cannot have the same port of one address; an unspecified address takes the port of every address.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let overlap = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && overlap
}

fn text(duration: Duration) -> impl fmt::Display {
    format_duration(duration)
}

#[derive(Default)]
struct Checks {
    broken: Vec<Broken>,
}

impl Checks {
    /// A rule about one value. Says whether it holds.
    fn value(&mut self, key: &'static str, value: impl fmt::Display, holds: bool, rule: &str) -> bool {
        self.relation(&[key], holds, format!("{key} = {value} is refused: it must be {rule}"));
        holds
    }

    fn relation(&mut self, keys: &[&'static str], holds: bool, message: String) {
        if !holds {
            self.broken.push(Broken { keys: keys.to_vec(), message, origins: Vec::new() });
        }
    }
}
