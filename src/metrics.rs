//! What operators watch and are paged for. docs/metrics.md says of each what to do about it; a test keeps the two equal.
//!
//! A [`Metrics`] owns its registry: nothing here is global, so two managers in one process (tests, `Deployment::Embedded`) do not
//! share numbers. Everything is exported at 0 before its first event, every value of every label included: an alert on a counter
//! that does not exist yet never fires.

use prometheus::{
    CounterVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    core::Collector,
};

use crate::assignment::command::{Cause, ExecutorState};

/// How a commit ended, as the label `outcome` of `shard_manager_commits_total` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It is durable.
    Landed,
    /// The store did not take it, for certain.
    Failed,
    /// Its answer was lost; what follows settles it (L5). Counts attempts: a commit may be unknown first and land then.
    Unknown,
    /// The fence refused it: another process leads.
    Fenced,
    /// It ended this leadership otherwise: the stored state is not what it should be.
    Fatal,
}

impl CommitOutcome {
    /// All of them.
    pub const ALL: [CommitOutcome; 5] =
        [CommitOutcome::Landed, CommitOutcome::Failed, CommitOutcome::Unknown, CommitOutcome::Fenced, CommitOutcome::Fatal];

    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            CommitOutcome::Landed => "landed",
            CommitOutcome::Failed => "failed",
            CommitOutcome::Unknown => "unknown",
            CommitOutcome::Fenced => "fenced",
            CommitOutcome::Fatal => "fatal",
        }
    }
}

/// How one attempt to tell an executor its assignment ended, as the label `outcome` of `shard_manager_commands_total` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// The executor holds exactly what it should.
    Settled,
    /// It answered, and still stops or starts something.
    Unsettled,
    /// It refused.
    Refused,
    /// It did not answer within `executors.command_timeout`.
    TimedOut,
    /// It could not be reached.
    Unreachable,
    /// Its answer breaks the protocol.
    Invalid,
    /// A newer assignment took the attempt's place.
    Overtaken,
}

impl CommandOutcome {
    /// All of them.
    pub const ALL: [CommandOutcome; 7] = [
        CommandOutcome::Settled,
        CommandOutcome::Unsettled,
        CommandOutcome::Refused,
        CommandOutcome::TimedOut,
        CommandOutcome::Unreachable,
        CommandOutcome::Invalid,
        CommandOutcome::Overtaken,
    ];

    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            CommandOutcome::Settled => "settled",
            CommandOutcome::Unsettled => "unsettled",
            CommandOutcome::Refused => "refused",
            CommandOutcome::TimedOut => "timed-out",
            CommandOutcome::Unreachable => "unreachable",
            CommandOutcome::Invalid => "invalid",
            CommandOutcome::Overtaken => "overtaken",
        }
    }
}

/// How a renewal was answered, as the label `outcome` of `shard_manager_lease_renewals_total` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalOutcome {
    /// Renewed.
    Renewed,
    /// Refused by the engine.
    Refused,
    /// Not answered in time, or the manager was stopping.
    Unanswered,
}

impl RenewalOutcome {
    /// All of them.
    pub const ALL: [RenewalOutcome; 3] = [RenewalOutcome::Renewed, RenewalOutcome::Refused, RenewalOutcome::Unanswered];

    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            RenewalOutcome::Renewed => "renewed",
            RenewalOutcome::Refused => "refused",
            RenewalOutcome::Unanswered => "unanswered",
        }
    }
}

/// Every metric of one manager.
pub struct Metrics {
    registry: Registry,
    is_leader: IntGauge,
    leader_since: IntGauge,
    revision: IntGauge,
    term: IntGauge,
    watchers: IntGauge,
    store_contact: IntGauge,
    campaign_failures: IntCounter,
    unserved_shard_seconds: CounterVec,
    unserved_shards: IntGaugeVec,
    executors: IntGaugeVec,
    moves: IntCounterVec,
    commits: IntCounterVec,
    commit_seconds: Histogram,
    commands: IntCounterVec,
    renewals: IntCounterVec,
    lapses: IntCounter,
    joins: IntCounter,
    departures: IntCounter,
    not_admitted: IntCounter,
    releases_timed_out: IntCounter,
    epochs_raised: IntCounter,
    terms_raised: IntCounter,
    stalls: IntCounter,
    connections: IntGauge,
    paused: IntGauge,
    paused_until: IntGauge,
}

/// Buckets of commit latency, in seconds: from a local fsync to the largest `persistence.request_timeout` in use.
const COMMIT_BUCKETS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0];

impl Metrics {
    /// All of them, at 0.
    ///
    /// # Errors
    /// Where two metrics share a name or a name is none: a mistake in this file, which a test finds.
    pub fn new() -> Result<Metrics, prometheus::Error> {
        let make = Maker(Registry::new_custom(Some("shard_manager".to_owned()), None)?);
        let build_info = make.gauges("build_info", "1, with the version that runs.", "version", [env!("CARGO_PKG_VERSION")])?;
        build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let causes = || Cause::ALL.map(Cause::as_str);
        Ok(Metrics {
            is_leader: make.gauge("is_leader", "1 while this process leads, else 0.")?,
            leader_since: make
                .gauge("leader_since_epoch", "Unix seconds at which this process began to lead; 0 on a standby.")?,
            revision: make.gauge("revision", "Revision of the state in force; 0 on a standby.")?,
            term: make.gauge("term", "Term of the state in force; 0 on a standby.")?,
            watchers: make.gauge("watchers", "Routing table watchers that are connected.")?,
            store_contact: make.gauge("store_last_contact_epoch", "Unix seconds at which the store last answered; 0 before.")?,
            campaign_failures: make
                .counter("campaign_attempt_failures_total", "Attempts to reach the store or to campaign that failed.")?,
            unserved_shard_seconds: {
                let name = "unserved_shard_seconds_total";
                let help = "Shards without an executor that serves them, times the seconds that it lasted, by cause.";
                let vec = CounterVec::new(Opts::new(name, help), &["cause"])?;
                causes().iter().for_each(|cause| drop(vec.with_label_values(&[*cause])));
                make.register(vec)?
            },
            unserved_shards: make.gauges(
                "unserved_shards",
                "Shards that nobody is known to serve, by cause.",
                "cause",
                causes(),
            )?,
            executors: make.gauges(
                "executors",
                "Executors that the state knows, by state.",
                "state",
                ExecutorState::ALL.map(ExecutorState::as_str),
            )?,
            moves: make.counters("moves_total", "Shards granted to another owner than before, by cause.", "cause", causes())?,
            commits: make.counters(
                "commits_total",
                "Commits to the store, by outcome.",
                "outcome",
                CommitOutcome::ALL.map(CommitOutcome::as_str),
            )?,
            commit_seconds: make.register(Histogram::with_opts(
                HistogramOpts::new("commit_seconds", "Seconds from sending a commit until it was settled.")
                    .buckets(COMMIT_BUCKETS.to_vec()),
            )?)?,
            commands: make.counters(
                "commands_total",
                "Attempts to tell an executor its assignment, by outcome.",
                "outcome",
                CommandOutcome::ALL.map(CommandOutcome::as_str),
            )?,
            renewals: make.counters(
                "lease_renewals_total",
                "Renewals of executor leases, by outcome.",
                "outcome",
                RenewalOutcome::ALL.map(RenewalOutcome::as_str),
            )?,
            lapses: make.counter("lease_lapses_total", "Executor leases that ran out.")?,
            joins: make.counter("executor_joins_total", "Executors, and new incarnations of them, that registered.")?,
            departures: make.counter("executor_departures_total", "Executors that deregistered.")?,
            not_admitted: make
                .counter("shards_not_admitted_total", "Shards taken from an owner that did not start them in time.")?,
            releases_timed_out: make
                .counter("releases_timed_out_total", "Shards freed without their owner's word, after a lease's time.")?,
            epochs_raised: make
                .counter("epochs_raised_total", "Epochs shown to the manager that were above the recorded ones.")?,
            terms_raised: make.counter("terms_raised_total", "Times that a peer showed a higher version than this leader's.")?,
            stalls: make.counter("stalls_total", "Times that this process was stopped or starved and moved its deadlines.")?,
            connections: make.gauge("grpc_connections", "gRPC connections that are open.")?,
            paused: make
                .gauge("rebalancing_paused", "1 while nothing moves for balance because an operator paused that, else 0.")?,
            paused_until: make
                .gauge("rebalancing_paused_until_epoch", "Unix seconds at which the pause of rebalancing ends; 0 without one.")?,
            registry: make.0,
        })
    }

    /// In the text format that Prometheus scrapes.
    ///
    /// # Errors
    /// Where the registry holds something that the format cannot say: a mistake in this file.
    pub fn encode(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }

    /// This process leads from now (Unix seconds) on.
    pub fn lead(&self, unix_seconds: u64) {
        self.leader_since.set(gauge(unix_seconds));
        self.is_leader.set(1);
    }

    /// This process does not lead any more: every gauge that speaks of a leader's state goes to 0. Called before anything else is
    /// taken down, so that the sum of `is_leader` over all replicas is never above 1 for longer than a scrape (P8).
    pub fn stop_leading(&self) {
        self.is_leader.set(0);
        self.leader_since.set(0);
        self.clear_state();
    }

    fn clear_state(&self) {
        self.revision.set(0);
        self.term.set(0);
        Cause::ALL.iter().for_each(|cause| self.unserved_shards(*cause, 0));
        ExecutorState::ALL.iter().for_each(|state| self.executors(*state, 0));
        self.rebalancing_paused(None);
    }

    /// Whether the gauge says that this process leads.
    pub fn is_leading(&self) -> bool {
        self.is_leader.get() == 1
    }

    /// Unix seconds since which this process leads; 0 on a standby.
    pub fn leader_since(&self) -> u64 {
        self.leader_since.get().unsigned_abs()
    }

    /// The version in force.
    pub fn version(&self, version: crate::types::Version) {
        self.term.set(gauge(version.term.0));
        self.revision.set(gauge(version.revision.0));
    }

    /// The store answered, at this wall clock time in Unix seconds.
    pub fn store_answered(&self, unix_seconds: u64) {
        self.store_contact.set(gauge(unix_seconds));
    }

    /// Unix seconds at which the store last answered; 0 where it never did.
    pub fn last_store_contact(&self) -> u64 {
        self.store_contact.get().unsigned_abs()
    }

    /// An attempt to reach the store or to campaign failed.
    pub fn campaign_failed(&self) {
        self.campaign_failures.inc();
    }

    /// How many shards nobody serves, for this cause.
    pub fn unserved_shards(&self, cause: Cause, shards: u32) {
        self.unserved_shards.with_label_values(&[cause.as_str()]).set(i64::from(shards));
    }

    /// Shards were without service, for this cause: `shard_seconds` is their number times the time that it lasted.
    pub fn unserved(&self, cause: Cause, shard_seconds: f64) {
        self.unserved_shard_seconds.with_label_values(&[cause.as_str()]).inc_by(shard_seconds);
    }

    /// How many executors are in this state.
    pub fn executors(&self, state: ExecutorState, executors: u32) {
        self.executors.with_label_values(&[state.as_str()]).set(i64::from(executors));
    }

    /// Until when rebalancing is paused, in milliseconds since 1970; `None` where it is not.
    pub fn rebalancing_paused(&self, until_unix_ms: Option<u64>) {
        self.paused.set(until_unix_ms.is_some().into());
        self.paused_until.set(gauge(until_unix_ms.unwrap_or(0) / 1000));
    }

    /// Shards went to another owner.
    pub fn moved(&self, cause: Cause, shards: u32) {
        self.moves.with_label_values(&[cause.as_str()]).inc_by(u64::from(shards));
    }

    /// A commit, or an attempt at one, ended so.
    pub fn committed(&self, outcome: CommitOutcome) {
        self.commits.with_label_values(&[outcome.as_str()]).inc();
    }

    /// From sending a commit until it was settled, re-sending included.
    pub fn commit_took(&self, took: std::time::Duration) {
        self.commit_seconds.observe(took.as_secs_f64());
    }

    /// An attempt to command an executor ended so.
    pub fn commanded(&self, outcome: CommandOutcome) {
        self.commands.with_label_values(&[outcome.as_str()]).inc();
    }

    /// How often attempts to command executors ended so.
    pub fn commands(&self, outcome: CommandOutcome) -> u64 {
        self.commands.with_label_values(&[outcome.as_str()]).get()
    }

    /// A renewal was answered so.
    pub fn renewed(&self, outcome: RenewalOutcome) {
        self.renewals.with_label_values(&[outcome.as_str()]).inc();
    }

    /// A gRPC connection opened (+1) or closed (-1).
    pub fn connections(&self, change: i64) {
        self.connections.add(change);
    }

    /// A watcher came (+1) or went (-1).
    pub fn watchers(&self, change: i64) {
        self.watchers.add(change);
    }

    /// Counts what the engine says happened.
    pub fn notice(&self, notice: &crate::assignment::command::Notice) {
        use crate::assignment::command::Notice;
        match notice {
            Notice::Joined { .. } => self.joins.inc(),
            Notice::Lapsed { .. } => self.lapses.inc(),
            Notice::Left { .. } => self.departures.inc(),
            Notice::Moved { cause, shards } => self.moved(*cause, *shards),
            Notice::NotAdmitted { shards, .. } => self.not_admitted.inc_by(shards.len() as u64),
            Notice::ReleaseTimedOut { shards, .. } => self.releases_timed_out.inc_by(shards.len() as u64),
            Notice::EpochsRaised(raised) => self.epochs_raised.inc_by(u64::from(raised.shards)),
            Notice::TermRaised { .. } => self.terms_raised.inc(),
            Notice::Stalled { .. } => self.stalls.inc(),
            Notice::Wished { .. } | Notice::Removed { .. } | Notice::Admitted { .. } => {}
            Notice::Paused { .. } | Notice::Resumed { .. } => {}
            Notice::ForeignCluster { .. } | Notice::StoreRestored { .. } => {}
        }
    }
}

fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Makes metrics and registers them.
struct Maker(Registry);

impl Maker {
    fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C, prometheus::Error> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.register(IntGauge::new(name, help)?)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.register(IntCounter::new(name, help)?)
    }

    fn gauges<const N: usize>(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: [&'static str; N],
    ) -> Result<IntGaugeVec, prometheus::Error> {
        let vec = IntGaugeVec::new(Opts::new(name, help), &[label])?;
        values.iter().for_each(|value| vec.with_label_values(&[*value]).set(0));
        self.register(vec)
    }

    fn counters<const N: usize>(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: [&'static str; N],
    ) -> Result<IntCounterVec, prometheus::Error> {
        let vec = IntCounterVec::new(Opts::new(name, help), &[label])?;
        values.iter().for_each(|value| drop(vec.with_label_values(&[*value])));
        self.register(vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_exported_at_0_before_its_first_event() {
        let text = Metrics::new().unwrap().encode().unwrap();
        for line in [
            "shard_manager_is_leader 0".to_owned(),
            "shard_manager_leader_since_epoch 0".to_owned(),
            "shard_manager_campaign_attempt_failures_total 0".to_owned(),
            format!("shard_manager_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
        for cause in Cause::ALL {
            for name in ["unserved_shard_seconds_total", "unserved_shards", "moves_total"] {
                let line = format!("shard_manager_{name}{{cause=\"{}\"}} 0", cause.as_str());
                assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
            }
        }
        for outcome in CommandOutcome::ALL {
            let line = format!("shard_manager_commands_total{{outcome=\"{}\"}} 0", outcome.as_str());
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_leader_that_stops_shows_no_state_any_more() {
        let metrics = Metrics::new().unwrap();
        metrics.lead(1_700_000_000);
        metrics.executors(ExecutorState::Active, 3);
        metrics.unserved_shards(Cause::Crash, 7);
        metrics.stop_leading();
        let text = metrics.encode().unwrap();
        for line in [
            "shard_manager_is_leader 0",
            "shard_manager_executors{state=\"active\"} 0",
            "shard_manager_unserved_shards{cause=\"crash\"} 0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn the_document_names_every_metric_and_no_other() {
        let text = Metrics::new().unwrap().encode().unwrap();
        let exported: std::collections::BTreeSet<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let document = include_str!("../docs/metrics.md");
        let documented: std::collections::BTreeSet<&str> = document
            .lines()
            .filter_map(|line| line.strip_prefix("| `shard_manager_")?.split_once('`'))
            .map(|(name, _)| name.split('{').next().unwrap_or(name))
            .collect();
        let exported: std::collections::BTreeSet<&str> =
            exported.iter().filter_map(|name| name.strip_prefix("shard_manager_")).collect();
        assert_eq!(documented, exported);
    }
}
