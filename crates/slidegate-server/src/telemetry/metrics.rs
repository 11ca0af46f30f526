//! The Prometheus metrics of the server. Their names are public interface: `docs/reference/metrics.md` lists them.
//!
//! No label contains a value that a client sent, so the number of time series is bounded by the policy.
//! `telemetry::top` reports the keys of clients instead.

mod cluster;
mod exposition;
mod log;
mod memory;
mod rules;
mod store;
mod waits;

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use slidegate::policy::{Rule, RuleLimit};
use slidegate::wait::WaitStats;

use super::log::LogQueue;
use super::results::{LimitResult, RequestResult};
use crate::permits::metric::PermitMetrics;
use crate::reservations::metric::SettlementMetrics;

use self::cluster::ClusterGauges;
pub use self::cluster::{ClusterStats, OvershootBuckets};
pub use self::exposition::Format;
use self::log::LogMetrics;
use self::memory::{MemoryGauges, MemoryKind};
use self::rules::RuleGauges;
use self::store::StoreGauges;
pub use self::store::{StoreMetrics, StoreStats};
use self::waits::WaitGauges;

/// Upper bounds of the buckets of durations, in seconds: from a decision in memory to far beyond any timeout. One more
/// bucket has no upper bound.
const BUCKET_UPPER_BOUNDS_SECONDS: [f64; 19] = [
    1e-6, 2.5e-6, 5e-6, 10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3,
    15e-3, 25e-3, 50e-3, 0.1, 1.0, 10.0,
];

/// A Prometheus counter of the requests of one domain to which no rule applies.
pub type UnmatchedCounter = Counter;

/// All Prometheus metrics of the server.
pub struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    near_limit: Family<LimitLabels, Counter>,
    unmatched: Family<DomainLabels, Counter>,
    pub unknown_domain_requests: Counter,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<ListenerLabels, Histogram, fn() -> Histogram>,
    pub degraded_decisions: Counter,
    pub repeated_calls: Counter,
    pub settlements: SettlementMetrics,
    pub permits: PermitMetrics,
    reloads: Family<ReloadLabels, Counter>,
    pub policy_stale: Gauge,
    store: StoreMetrics,
    store_stats: StoreGauges,
    cluster: ClusterGauges,
    waits: WaitGauges,
    log: LogMetrics,
    memory: MemoryGauges,
    pub rules: RuleGauges,
}

/// The Prometheus counters of the results of one limit.
pub struct LimitCounters {
    allowed: Counter,
    denied: Counter,
    observed: Counter,
    near: Counter,
}

/// The metrics of the requests on one listener: numbers of results, and durations.
#[derive(Clone)]
pub struct ListenerMetrics {
    results: [Counter; RequestResult::ALL.len()],
    durations: Histogram,
}

/// The result of a policy reload, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadResult {
    Changed,
    Unchanged,
    Failed,
}

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    Http,
    Grpc,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    domain: String,
    rule: String,
    limit: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    domain: String,
    rule: String,
    limit: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DomainLabels {
    domain: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    protocol: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListenerLabels {
    protocol: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    result: &'static str,
}

impl ReloadResult {
    fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Failed => "failed",
        }
    }
}

impl ListenerKind {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}

impl Metrics {
    /// Creates the metrics, all with the value 0. `store` is the name of the kind of store, used as a label. `log`
    /// counts the lost log lines. `max_permit_bytes` is the maximum memory of the permits that are tracked.
    pub fn new(store: &'static str, log: LogQueue, max_permit_bytes: usize) -> Self {
        let mut registry = Registry::with_prefix("slidegate");
        let decisions = Family::default();
        registry.register(
            "decisions",
            "Decisions of each limit, by outcome; without limits that the request fits while another limit denies it",
            decisions.clone(),
        );
        let near_limit = Family::default();
        registry.register(
            "near_limit",
            "Allowed requests after which less than 20 % of the limit remains",
            near_limit.clone(),
        );
        let unmatched = Family::default();
        registry.register(
            "unmatched_requests",
            "Requests to which no rule applied, by domain of the policy",
            unmatched.clone(),
        );
        let unknown_domain_requests = Counter::default();
        registry.register(
            "unknown_domain_requests",
            "Requests whose domain is not in the policy",
            unknown_domain_requests.clone(),
        );
        let requests = Family::default();
        registry.register("requests", "Requests, by protocol and result", requests.clone());
        let request_seconds = Family::new_with_constructor(new_histogram as fn() -> Histogram);
        registry.register(
            "request_seconds",
            "Time from the arrival of the whole request to the response, in seconds",
            request_seconds.clone(),
        );
        let degraded_decisions = Counter::default();
        registry.register(
            "degraded_decisions",
            "Decisions made without the store because it was unavailable",
            degraded_decisions.clone(),
        );
        let repeated_calls = Counter::default();
        registry.register(
            "repeated_calls",
            "Checks and reservations that repeated an admitted call with the same idempotency key, and charged nothing",
            repeated_calls.clone(),
        );
        let settlements = SettlementMetrics::register(&mut registry);
        let reloads = Family::default();
        for result in [ReloadResult::Changed, ReloadResult::Unchanged, ReloadResult::Failed] {
            drop(reloads.get_or_create(&ReloadLabels { result: result.name() }));
        }
        registry.register("policy_reloads", "Policy reloads, by result", reloads.clone());
        let policy_stale = Gauge::default();
        registry.register(
            "policy_stale",
            "1 if the last policy reload failed and an older policy is active, else 0",
            policy_stale.clone(),
        );
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Version of the server", build);
        Self {
            permits: PermitMetrics::register(&mut registry, max_permit_bytes),
            store: StoreMetrics::register(&mut registry, store),
            store_stats: StoreGauges::register(&mut registry, store),
            cluster: ClusterGauges::register(&mut registry),
            waits: WaitGauges::register(&mut registry),
            log: LogMetrics::register(&mut registry, log),
            memory: MemoryGauges::register(&mut registry),
            rules: RuleGauges::register(&mut registry),
            registry,
            decisions,
            near_limit,
            unmatched,
            unknown_domain_requests,
            requests,
            request_seconds,
            degraded_decisions,
            repeated_calls,
            settlements,
            reloads,
            policy_stale,
        }
    }

    /// Returns the Prometheus counters of the results of a limit. Limits with the same domain, rule and id share their
    /// counters, even if they belong to different policies.
    pub fn limit_counters(&self, rule: &Rule, limit: &RuleLimit) -> LimitCounters {
        let (domain, rule, limit) =
            (rule.domain().to_owned(), rule.name().to_owned(), limit.id().to_owned());
        let decisions = |outcome| {
            let (domain, rule, limit) = (domain.clone(), rule.clone(), limit.clone());
            self.decisions.get_or_create(&DecisionLabels { domain, rule, limit, outcome }).clone()
        };
        let (allowed, denied, observed) =
            (decisions("allowed"), decisions("denied"), decisions("observed"));
        let near = self.near_limit.get_or_create(&LimitLabels { domain, rule, limit }).clone();
        LimitCounters { allowed, denied, observed, near }
    }

    /// Returns the Prometheus counter of the requests of a domain to which no rule applies. All policies with this
    /// domain share the counter.
    pub fn unmatched_counter(&self, domain: &str) -> UnmatchedCounter {
        self.unmatched.get_or_create(&DomainLabels { domain: domain.to_owned() }).clone()
    }

    /// Returns the metrics of a listener for this protocol.
    pub fn listener_metrics(&self, kind: ListenerKind) -> ListenerMetrics {
        let protocol = kind.name();
        let result = |result: RequestResult| {
            self.requests.get_or_create(&RequestLabels { protocol, result: result.name() }).clone()
        };
        ListenerMetrics {
            results: RequestResult::ALL.map(result),
            durations: self.request_seconds.get_or_create(&ListenerLabels { protocol }).clone(),
        }
    }

    /// Returns the metrics of the store.
    pub fn store_metrics(&self) -> &StoreMetrics {
        &self.store
    }

    /// Counts a policy reload by its result. Sets the metric `policy_stale` to 1 if the reload failed, otherwise to 0.
    pub fn record_reload(&self, result: ReloadResult) {
        self.reloads.get_or_create(&ReloadLabels { result: result.name() }).inc();
        self.policy_stale.set(i64::from(result == ReloadResult::Failed));
    }

    /// Encodes all metrics as text. `store` is the current state of the store. `cluster` is the current state of the
    /// cluster, or `None` without a cluster. `waits` are the waiting calls, and `body_bytes` the bytes of request
    /// bodies in the budget.
    pub fn encode(
        &self,
        format: Format,
        store: StoreStats,
        cluster: Option<ClusterStats>,
        waits: WaitStats,
        body_bytes: usize,
    ) -> Result<String, std::fmt::Error> {
        self.store_stats.update_from_stats(store);
        self.permits.update();
        for (kind, bytes) in [
            (MemoryKind::Keys, store.key_bytes),
            (MemoryKind::CallRecords, store.call_record_bytes),
            (MemoryKind::Permits, self.permits.memory_bytes()),
            (MemoryKind::Waiting, waits.waiting_bytes),
            (MemoryKind::Bodies, body_bytes),
        ] {
            self.memory.set(kind, bytes);
        }
        self.log.update();
        if let Some(cluster) = cluster {
            self.cluster.update_from_stats(cluster);
        }
        self.waits.update_from_stats(waits);
        exposition::encode_registry(&self.registry, format)
    }
}

impl LimitCounters {
    /// Counts the result of this limit for one request.
    pub fn count(&self, limit_result: LimitResult) {
        match limit_result {
            LimitResult::Near => {
                self.near.inc();
                self.allowed.inc()
            }
            LimitResult::Allowed => self.allowed.inc(),
            LimitResult::Denied => self.denied.inc(),
            LimitResult::Observed => self.observed.inc(),
        };
    }
}

impl ListenerMetrics {
    /// Counts a request by its result.
    pub fn count_result(&self, result: RequestResult) {
        self.results[result as usize].inc();
    }

    /// Records the duration of a request, and counts the request by its result.
    pub fn record_request(&self, time: Duration, result: RequestResult) {
        self.durations.observe(time.as_secs_f64());
        self.count_result(result);
    }
}

/// Creates a histogram of durations. Each observation takes a lock: the two observations of a check together took 13 ns
/// with one thread, and 90 to 98 ns with two threads that only observed durations.
fn new_histogram() -> Histogram {
    Histogram::new(BUCKET_UPPER_BOUNDS_SECONDS)
}
