//! gRPC and HTTP, as the world sees this manager. Every field of a request is checked here, so that what lies below only meets
//! values that are valid by themselves.

pub mod admin;
pub mod http;
pub mod manager;
pub mod nursery;
pub mod serve;
pub mod status;
pub mod watch;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::uri::Authority;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::api::nursery::Nursery;
use crate::assignment::record::MAX_ENDPOINT_LEN;
use crate::coordinator::Handle;
use crate::holdings::Holdings;
use crate::metrics::Metrics;
use crate::published::Published;
use crate::rpc;
use crate::rpc::ready::shard_manager_server::ShardManagerServer;
use crate::rpc::shard_manager_admin_server::ShardManagerAdminServer;
use crate::types::{ClusterId, ExecutorId, Incarnation, MAX_NUMBER, MAX_WEIGHT, Version};

/// The address at which a request came in; an extension of every request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// What the services of one leadership share.
#[derive(Clone)]
pub struct Leading {
    /// To the coordinator.
    pub handle: Handle,
    /// What readers see.
    pub published: Arc<Published>,
    /// What operators see.
    pub metrics: Arc<Metrics>,
    /// As stored and configured.
    pub number_of_shards: u32,
    /// How this process introduces itself.
    pub identity: String,
    /// For tasks that end before the leadership is given up.
    pub nursery: Nursery,
    /// Cancelled when an operator wants another process to lead.
    pub step_down: CancellationToken,
}

/// The services whose health is told apart; `""` stands for the whole.
const SERVICES: [&str; 3] = ["", "shardmanager.v1.ShardManager", "shardmanager.v1.ShardManagerAdmin"];

/// The reflection services, which are the same under every leadership. Parsing descriptors takes milliseconds that somebody would wait for
/// after the win: whoever may win has done it before.
///
/// # Errors
/// Where the descriptors that were compiled in do not parse.
pub fn reflection() -> Result<Routes, tonic_reflection::server::Error> {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(rpc::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::default().add_service(builder().build_v1()?).add_service(builder().build_v1alpha()?))
}

/// Every gRPC service of a leader, those of [`reflection`] among them, and the switch for what their health says.
pub fn routes(leading: &Leading, reflection: Routes) -> (Routes, Health) {
    let (reporter, health) = tonic_health::server::health_reporter();
    let manager = ShardManagerServer::new(manager::Service(leading.clone()))
        .max_decoding_message_size(rpc::MAX_MESSAGE_BYTES)
        .max_encoding_message_size(rpc::MAX_MESSAGE_BYTES);
    let admin = ShardManagerAdminServer::new(admin::Service(leading.clone()))
        .max_decoding_message_size(rpc::MAX_MESSAGE_BYTES)
        .max_encoding_message_size(rpc::MAX_MESSAGE_BYTES);
    let routes = reflection.add_service(manager).add_service(admin).add_service(health);
    (routes.prepare(), Health(reporter))
}

/// What the gRPC health service says.
pub struct Health(HealthReporter);

impl Health {
    /// Says of every service that it serves, or that it does not. Watchers of the health service are told.
    pub async fn serving(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in SERVICES {
            self.0.set_service_status(service, status).await;
        }
    }
}

/// A field that breaks a rule; names the value and the rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// As proto/ calls it.
    pub field: &'static str,
    /// The value refused, and the rule.
    pub problem: String,
}

fn invalid(field: &'static str, problem: impl ToString) -> Invalid {
    Invalid { field, problem: problem.to_string() }
}

fn executor_id(text: &str) -> Result<ExecutorId, Invalid> {
    named_executor("executor_id", text)
}

fn named_executor(field: &'static str, text: &str) -> Result<ExecutorId, Invalid> {
    text.parse().map_err(|error| invalid(field, error))
}

fn incarnation(number: u64) -> Result<Incarnation, Invalid> {
    match number {
        0 => Err(invalid("incarnation", "0 is refused: it is a number that the process draws at random, and never 0")),
        number => Ok(Incarnation(number)),
    }
}

fn cluster_id(text: &str) -> Result<ClusterId, Invalid> {
    text.parse().map_err(|error| invalid("cluster_id", format!("{:?} is refused: it must be a UUID ({error})", cut(text))))
}

fn version(field: &'static str, version: Option<rpc::Version>) -> Result<Version, Invalid> {
    let version = Version::from(version.unwrap_or_default());
    if version.term.0 > MAX_NUMBER || version.revision.0 > MAX_NUMBER {
        return Err(invalid(field, format!("{version} is refused: neither term nor revision may be above {MAX_NUMBER}")));
    }
    Ok(version)
}

fn weight(number: u32) -> Result<u32, Invalid> {
    match number {
        0 => Ok(1),
        1..=MAX_WEIGHT => Ok(number),
        _ => Err(invalid("weight", format!("{number} is refused: it must be 1 to {MAX_WEIGHT}, or 0 which stands for 1"))),
    }
}

fn holdings(field: &'static str, holdings: Option<&rpc::Holdings>, number_of_shards: u32) -> Result<Holdings, Invalid> {
    holdings.map_or(Ok(Holdings::default()), |holdings| holdings.check(number_of_shards).map_err(|error| invalid(field, error)))
}

/// The endpoint as `http://host:port`, the host in lower case: two spellings of one place compare equal (L13).
///
/// # Errors
/// Where no executor can be reached at it.
pub(crate) fn endpoint(text: &str) -> Result<String, Invalid> {
    let refused = |rule: &str| invalid("endpoint", format!("{:?} is refused: {rule}", cut(text)));
    if text.len() > MAX_ENDPOINT_LEN {
        return Err(refused(&format!("it has {} bytes, and may have {MAX_ENDPOINT_LEN}", text.len())));
    }
    let place = match text.split_once("://") {
        Some((scheme, place)) if scheme.eq_ignore_ascii_case("http") => place,
        Some(_) => return Err(refused("the scheme must be http")),
        None => text,
    };
    let place = place.strip_suffix('/').unwrap_or(place);
    if place.contains('@') {
        return Err(refused("it must not carry a user or a password"));
    }
    if place.contains(['/', '?', '#']) {
        return Err(refused("it must end with the port: no path, query or fragment"));
    }
    let place: Authority = place.parse().map_err(|_| refused("it must be host:port or http://host:port"))?;
    let port = place.port_u16().filter(|port| *port != 0).ok_or_else(|| refused("it must name a port, 1 to 65535"))?;
    let host = place.host().to_ascii_lowercase();
    if host.is_empty() {
        return Err(refused("it must name a host"));
    }
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    if address.is_ok_and(|address| address.is_unspecified()) {
        return Err(refused("that address means every interface; it must be one at which the manager reaches this very process"));
    }
    // What is kept may be longer than what was given: it has the scheme.
    let endpoint = format!("http://{host}:{port}");
    if endpoint.len() > MAX_ENDPOINT_LEN {
        return Err(refused(&format!("as http://host:port it has {} bytes, and may have {MAX_ENDPOINT_LEN}", endpoint.len())));
    }
    Ok(endpoint)
}

/// At most 300 characters of what a peer sent, for messages.
fn cut(text: &str) -> String {
    text.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Epoch, ShardId};

    #[test]
    fn endpoints_are_brought_to_one_form() {
        for (given, kept) in [
            ("10.0.0.1:80", "http://10.0.0.1:80"),
            ("http://10.0.0.1:80", "http://10.0.0.1:80"),
            ("HTTP://Pod-1.Example:8080/", "http://pod-1.example:8080"),
            ("[::1]:0080", "http://[::1]:80"),
        ] {
            assert_eq!(endpoint(given).as_deref(), Ok(kept));
        }
    }

    #[test]
    fn endpoints_that_reach_no_executor_are_refused_with_value_and_rule() {
        for (given, rule) in [
            ("", "host:port"),
            ("host", "a port"),
            ("host:0", "a port"),
            ("host:70000", "a port"),
            (":80", "a host"),
            ("https://host:80", "must be http"),
            ("user:secret@host:80", "a user"),
            ("http://host:80/path", "no path"),
            ("host:80?x", "no path"),
            ("0.0.0.0:80", "every interface"),
            ("[::]:80", "every interface"),
            ("ho st:80", "host:port"),
        ] {
            let error = endpoint(given).unwrap_err().to_string();
            assert!(error.contains(&format!("{given:?}")) && error.contains(rule), "{given:?}: {error}");
        }
        assert!(endpoint(&format!("{}:80", "a".repeat(600))).unwrap_err().to_string().contains("512"));
    }

    /// It was kept with a scheme in front, longer than a record takes, and the first commit with it ended the leader.
    #[test]
    fn an_endpoint_that_is_too_long_only_with_its_scheme_is_refused() {
        for host in [502, 503, 509] {
            let given = format!("{}:1", "a".repeat(host));
            match endpoint(&given) {
                Ok(kept) => assert!(kept.len() <= MAX_ENDPOINT_LEN, "{} bytes are kept", kept.len()),
                Err(refused) => assert!(host > 503 && refused.to_string().contains("512"), "{refused}"),
            }
        }
    }

    /// The table of test vectors in docs/protocol.md: `| `(shard, epoch) ...` | `0xdigest` |`.
    #[test]
    fn the_documented_digests_are_ours() {
        let document = include_str!("../../docs/protocol.md");
        let rows = document.lines().filter_map(|line| line.strip_prefix("| `(")?.strip_suffix("` |")?.split_once("` | `0x"));
        let mut checked = 0;
        for (set, digest) in rows {
            let numbers: Vec<u64> = set
                .split(|c: char| !c.is_ascii_digit())
                .filter(|word| !word.is_empty())
                .map(|word| word.parse().unwrap())
                .collect();
            let pairs = numbers.chunks(2).map(|pair| (ShardId(u32::try_from(pair[0]).unwrap()), Epoch(pair[1])));
            assert_eq!(Holdings::from_pairs(pairs).digest(), u64::from_str_radix(digest, 16).unwrap(), "({set}");
            checked += 1;
        }
        assert_eq!(checked, 3);
    }

    #[test]
    fn numbers_without_room_to_grow_are_refused() {
        assert!(version("mark", Some(rpc::Version { term: u64::MAX, revision: 1 })).is_err());
        assert!(version("mark", Some(rpc::Version { term: 1, revision: u64::MAX })).is_err());
        assert_eq!(version("mark", None), Ok(Version::default()));
        assert!(incarnation(0).is_err());
        assert_eq!(weight(0), Ok(1));
        assert!(weight(1001).unwrap_err().to_string().contains("1001"));
        assert!(cluster_id("x").unwrap_err().to_string().contains("UUID"));
    }
}
