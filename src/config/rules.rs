//! What must hold between values, and what had better.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use humantime_serde::re::humantime::format_duration;
use tonic::transport::Uri;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::keys::{SCHEMA, is_schema};
use super::problem::Broken;
use super::{Config, Etcd, Persistence, StoreKind};
use crate::types::MAX_SHARDS;

/// The longest duration that any key takes: deadlines far beyond the life of a process are mistakes.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);
/// The range of `leadership.host.tick`.
const TICK: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(10);
const MIN_LEADER_TTL: Duration = Duration::from_secs(2);
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
            format!(
                "executors.settle_time = {} is refused: it must be below executors.lease_ttl = {}",
                text(settle),
                text(lease)
            ),
        );
    }
    let calm = executors.calm_time;
    checks.value("executors.calm_time", text(calm), calm <= MAX_DURATION, "at most 24h");
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

    let host = &leadership.host;
    let valid = TICK.contains(&host.tick);
    if checks.value("leadership.host.tick", text(host.tick), valid, "10ms to 10s") {
        checks.relation(
            &["leadership.host.grace", "leadership.host.tick"],
            host.grace >= host.tick * 5 && host.grace <= MAX_DURATION,
            format!(
                "leadership.host.grace = {} is refused: at least 5 times leadership.host.tick = {} and at most 24h",
                text(host.grace),
                text(host.tick)
            ),
        );
    }

    store(&mut checks, persistence);

    if let Err(reason) = filter(&log.filter) {
        checks.value("log.filter", format!("{:?}", log.filter), false, &format!("a level or directives ({reason})"));
    }
    checks.broken
}

/// The parser takes a lone word that is no level for the name of a part of the program, of which everything is logged, and nothing of the rest.
fn filter(text: &str) -> Result<(), String> {
    EnvFilter::builder().parse(text).map_err(|error| error.to_string())?;
    let is_word = |directive: &&str| !directive.is_empty() && !directive.contains(['=', '[']);
    match text.split(',').filter(is_word).find(|word| word.parse::<LevelFilter>().is_err()) {
        Some(word) => Err(format!(
            "{word:?} is no level, which is one of off, error, warn, info, debug, trace; of a target it is {word}=debug"
        )),
        None => Ok(()),
    }
}

/// Of the stores. What a store that is not chosen lacks is no problem.
fn store(checks: &mut Checks, persistence: &Persistence) {
    let path = &persistence.sqlite.path;
    checks.value("persistence.sqlite.path", format!("{path:?}"), !path.as_os_str().is_empty(), "the path of a file");
    let postgres = &persistence.postgres;
    match &postgres.url {
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
    let valid = is_schema(&postgres.schema);
    checks.value("persistence.postgres.schema", format!("{:?}", postgres.schema), valid, SCHEMA);
    let chosen = persistence.kind == StoreKind::Postgres;
    let keys = ["persistence.postgres.cert_file", "persistence.postgres.key_file"];
    checks.together(chosen, keys, [postgres.cert_file.is_some(), postgres.key_file.is_some()]);
    let keys = ["persistence.postgres.password", "persistence.postgres.password_file"];
    checks.one_of(keys, [postgres.password.is_some(), postgres.password_file.is_some()]);

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
    let valid = etcd.prefix.starts_with('/') && etcd.prefix.ends_with('/') && etcd.prefix.len() <= Etcd::MAX_PREFIX_LEN;
    let rule = format!("text of at most {} bytes that begins and ends with /", Etcd::MAX_PREFIX_LEN);
    checks.value("persistence.etcd.prefix", format!("{:?}", etcd.prefix), valid, &rule);
    let chosen = persistence.kind == StoreKind::Etcd;
    let keys = ["persistence.etcd.cert_file", "persistence.etcd.key_file"];
    checks.together(chosen, keys, [etcd.cert_file.is_some(), etcd.key_file.is_some()]);
    let (user, password) = (etcd.username.is_some(), etcd.password.is_some() || etcd.password_file.is_some());
    let password_key = if etcd.password_file.is_some() { "persistence.etcd.password_file" } else { "persistence.etcd.password" };
    checks.together(chosen, ["persistence.etcd.username", password_key], [user, password]);
    let keys = ["persistence.etcd.password", "persistence.etcd.password_file"];
    checks.one_of(keys, [etcd.password.is_some(), etcd.password_file.is_some()]);
    let secure = etcd.endpoints.iter().find(|endpoint| endpoint.starts_with("https://"));
    checks.relation(
        &["persistence.etcd.endpoints", "persistence.etcd.ca_file"],
        !chosen || secure.is_none() || etcd.ca_file.is_some(),
        format!("persistence.etcd.ca_file is missing: the endpoint {} needs it", secure.map_or("", String::as_str)),
    );
    let least = Etcd::LEAST_OPERATIONS;
    checks.value(
        "persistence.etcd.max_operations",
        etcd.max_operations,
        etcd.max_operations >= least,
        &format!("at least {least}"),
    );
    let least = Etcd::LEAST_BYTES;
    checks.value("persistence.etcd.max_bytes", etcd.max_bytes, etcd.max_bytes >= least, &format!("at least {least}"));
}

/// What is allowed, but probably not meant.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let lease = config.executors.lease_ttl;
    // How long a leader may be silent before another one is elected. Beside SQLite one that crashes is replaced at once.
    let (key, silence) = match config.persistence.kind {
        StoreKind::Sqlite => ("leadership.host.grace", config.leadership.host.grace),
        StoreKind::Postgres | StoreKind::Etcd => ("leadership.lease_ttl", config.leadership.lease_ttl),
    };
    let mut warnings = Vec::new();
    // Clients renew at a third: what is left of a lease when a leader fails can be as little as two thirds.
    if lease.saturating_mul(2) / 3 <= silence.saturating_add(Duration::from_secs(2)) {
        warnings.push(format!(
            "executors.lease_ttl = {} is short beside {key} = {}: two thirds of it should be above the latter + 2s, \
             or executors may lose their leases while a new leader is being elected",
            text(lease),
            text(silence)
        ));
    }
    warnings
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

    /// Two keys of which each needs the other, where `needed`; `given` says which of them are there.
    fn together(&mut self, needed: bool, keys: [&'static str; 2], given: [bool; 2]) {
        let (there, missing) = if given[0] { (keys[0], keys[1]) } else { (keys[1], keys[0]) };
        let message = format!("{there} is given without {missing}, and means nothing alone");
        self.relation(&keys, !needed || given[0] == given[1], message);
    }

    /// Two keys of which at most one may be there.
    fn one_of(&mut self, keys: [&'static str; 2], given: [bool; 2]) {
        self.relation(&keys, given != [true, true], format!("{} and {} are refused together: one of them", keys[0], keys[1]));
    }

    fn relation(&mut self, keys: &[&'static str], holds: bool, message: String) {
        if !holds {
            self.broken.push(Broken { keys: keys.to_vec(), message, origins: Vec::new() });
        }
    }
}
