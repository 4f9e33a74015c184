//! Asks one executor's gRPC health service how it is. A failed probe makes an executor suspect and takes nothing away from it.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tracing::{info, warn};

use crate::assignment::command::Peer;
use crate::assignment::event::Event;
use crate::executors::Context;
use crate::rpc;

/// Consecutive failures that make an executor unhealthy: one may be chance.
const FAILURES: u32 = 2;

/// However short an interval is configured: tokio's timers refuse 0.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

/// Turns single probes into a verdict: unhealthy after [`FAILURES`] in a row, healthy again after one success.
#[derive(Debug, Default)]
struct Verdict {
    failures: u32,
    healthy: Option<bool>,
}

impl Verdict {
    /// Takes in a probe; says what to report, where that is news.
    fn take(&mut self, success: bool) -> Option<bool> {
        self.failures = if success { 0 } else { self.failures + 1 };
        let healthy = match (success, self.failures) {
            (true, _) => true,
            (false, failures) if failures >= FAILURES => false,
            (false, _) => return None,
        };
        (self.healthy.replace(healthy) != Some(healthy)).then_some(healthy)
    }
}

/// The part of an interval within which the first probe goes out, at random: right after a takeover callers come first, and not a new
/// connection to every executor at once.
const FIRST_WITHIN: f64 = 0.1;

/// Runs until it is dropped; the first probe goes out soon after the port is open.
pub(super) async fn run(peer: Peer, channel: Channel, context: Context) {
    let Peer { slot, id, incarnation, .. } = peer;
    context.port_open.cancelled().await;
    let mut client = HealthClient::new(channel);
    let mut verdict = Verdict::default();
    let every = context.settings.probe_interval.max(LEAST_INTERVAL);
    let first = Instant::now() + every.mul_f64(rand::random_range(0.0..FIRST_WITHIN));
    let mut ticks = interval_at(first, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // What a call needs is kept no longer than the call: there may be thousands of executors.
        let probe = Box::pin(timeout(context.settings.probe_timeout, probe(&mut client))).await;
        let why = match probe {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(_) => Some("no answer in time".to_owned()),
        };
        let Some(healthy) = verdict.take(why.is_none()) else { continue };
        match why {
            None => info!(executor = %id, %incarnation, "an executor is healthy; it may get shards"),
            Some(why) => {
                warn!(executor = %id, %incarnation, why, "an executor fails its probes; it keeps its shards and gets no new ones")
            }
        }
        if context.reports.send(Event::Probed { slot, incarnation, healthy }).await.is_err() {
            return;
        }
    }
}

/// An executor that does not serve the health protocol is healthy as long as it answers that it does not.
async fn probe(client: &mut HealthClient<Channel>) -> Result<(), String> {
    let asked = client.check(HealthCheckRequest { service: String::new() }).await;
    match asked.map(|answer| answer.into_inner().status()) {
        Ok(ServingStatus::Serving) => Ok(()),
        Ok(status) => Err(format!("it says {}", status.as_str_name())),
        Err(status) if status.code() == Code::Unimplemented => Ok(()),
        Err(status) => Err(rpc::with_causes(&status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One missed probe of a saturated executor does not start an avalanche.
    #[test]
    fn one_missed_probe_is_no_news() {
        let mut verdict = Verdict::default();
        assert_eq!(verdict.take(true), Some(true));
        assert_eq!(verdict.take(false), None);
        assert_eq!(verdict.take(true), None);
        assert_eq!(verdict.take(false), None);
        assert_eq!(verdict.take(false), Some(false));
        assert_eq!(verdict.take(false), None);
        assert_eq!(verdict.take(true), Some(true));
    }

    #[tokio::test]
    async fn a_probe_that_reaches_nobody_names_the_cause() {
        // A port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let channel = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap().connect_lazy();
        let why = probe(&mut HealthClient::new(channel)).await.unwrap_err();
        assert!(why.contains("Connection refused"), "{why}");
        assert_eq!(why.matches("tcp connect error").count(), 1, "{why}");
    }

    #[test]
    fn an_executor_that_never_answered_is_unhealthy_after_two() {
        let mut verdict = Verdict::default();
        assert_eq!(verdict.take(false), None);
        assert_eq!(verdict.take(false), Some(false));
    }
}
