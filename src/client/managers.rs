//! Where the manager may be: a list of addresses, one of which leads.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint, Uri};

use crate::rpc::{MAX_MESSAGE_BYTES, shard_manager_client::ShardManagerClient};

/// A connection that answers no ping for this long is dead; pings go out as often.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// An address that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address {value:?} is refused: it must be host:port or http://host:port")]
pub struct InvalidAddress {
    /// As given.
    pub value: String,
}

/// `host:port` or `http://host:port`, as `http://host:port`.
pub fn normalize(text: &str) -> Result<String, InvalidAddress> {
    let invalid = || InvalidAddress { value: text.to_owned() };
    let text = text.trim();
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let uri: Uri = with_scheme.parse().map_err(|_| invalid())?;
    let has_path = !matches!(uri.path(), "" | "/") || uri.query().is_some();
    match (uri.scheme_str(), uri.host(), uri.port_u16()) {
        (Some("http"), Some(host), Some(port)) if !host.is_empty() && port != 0 && !has_path => {
            Ok(format!("http://{host}:{port}"))
        }
        _ => Err(invalid()),
    }
}

/// The addresses, and which one to ask next. Remembers the one that answered.
pub struct Managers {
    addresses: Vec<Address>,
    current: usize,
    /// Failures in a row.
    failures: usize,
}

struct Address {
    url: String,
    endpoint: Endpoint,
    channel: Option<Channel>,
}

impl Managers {
    /// Of at least one address. Connects only when asked to call.
    pub fn new(urls: &[String], connect_timeout: Duration) -> Result<Managers, InvalidAddress> {
        let address = |url: &String| {
            let url = normalize(url)?;
            let endpoint = Endpoint::from_shared(url.clone()).map_err(|_| InvalidAddress { value: url.clone() })?;
            let endpoint = endpoint
                .connect_timeout(connect_timeout)
                .http2_keep_alive_interval(KEEPALIVE)
                .keep_alive_timeout(KEEPALIVE)
                .keep_alive_while_idle(true);
            Ok(Address { url, endpoint, channel: None })
        };
        let addresses = urls.iter().map(address).collect::<Result<_, _>>()?;
        Ok(Managers { addresses, current: 0, failures: 0 })
    }

    /// The address to ask next, for logs.
    pub fn url(&self) -> &str {
        &self.addresses[self.current].url
    }

    /// Every address, for logs.
    pub fn urls(&self) -> String {
        let urls: Vec<&str> = self.addresses.iter().map(|address| address.url.as_str()).collect();
        urls.join(", ")
    }

    /// A client for the address to ask next. A closed port shows as a failed call.
    pub fn client(&mut self) -> ShardManagerClient<Channel> {
        let address = &mut self.addresses[self.current];
        let channel = address.channel.get_or_insert_with(|| address.endpoint.connect_lazy());
        ShardManagerClient::new(channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The address asked last is the leader's.
    pub fn worked(&mut self) {
        self.failures = 0;
    }

    /// The last call failed: turns to the next address, and says whether that one did not fail yet in this round. Where the
    /// connection `is_broken`, it is given up: a call on one that is a black hole would only wait again.
    pub fn failed(&mut self, is_broken: bool) -> bool {
        if is_broken {
            self.addresses[self.current].channel = None;
        }
        self.failures += 1;
        self.current = (self.current + 1) % self.addresses.len();
        !self.failures.is_multiple_of(self.addresses.len())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses_take_two_forms_and_no_other() {
        assert_eq!(normalize("db-1:9092").as_deref(), Ok("http://db-1:9092"));
        assert_eq!(normalize("http://[::1]:9092/").as_deref(), Ok("http://[::1]:9092"));
        for bad in ["", "host", "http://host", "https://host:1", "host:0", "host:99999", "http://:1", "http://h:1/x", "a b:1"] {
            assert_eq!(normalize(bad), Err(InvalidAddress { value: bad.into() }), "{bad}");
        }
    }

    #[tokio::test]
    async fn every_address_is_tried_once_before_a_pause() {
        let urls = ["a:1", "b:1", "c:1"].map(String::from);
        let mut managers = Managers::new(&urls, Duration::from_secs(1)).unwrap();
        let mut seen = Vec::new();
        for _ in 0..4 {
            let url = managers.url().to_owned();
            seen.push((url, managers.failed(true)));
        }
        let expected = [("http://a:1", true), ("http://b:1", true), ("http://c:1", false), ("http://a:1", true)];
        assert_eq!(seen, expected.map(|(url, another)| (url.to_owned(), another)));
    }
}
