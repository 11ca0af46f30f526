//! What is counted, by the names that users script against (`docs/OPERATIONS.md`).
//!
//! No label has a value of a user: who is limited most is told by `top`.

mod cluster;
mod exposition;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use slidegate::StoreError;
use slidegate::policy::{Rule, RuleLimit};

use super::duration_histogram::DurationHistogram;
use super::limit_result::LimitResult;
use super::stripes::Stripes;

use self::cluster::ClusterGauges;
pub use self::cluster::{ClusterStats, OvershootBuckets};
pub use self::exposition::Format;

/// A counter that many threads add to.
type StripedCounter = Counter<u64, Stripes<AtomicU64>>;

/// Counts the requests of a domain to which no rule applied.
pub type UnmatchedCounter = StripedCounter;

/// All that is counted.
pub struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, StripedCounter>,
    near_limit: Family<LimitLabels, StripedCounter>,
    unmatched: Family<DomainLabels, StripedCounter>,
    pub unknown_domain_requests: Counter,
    requests: Family<RequestLabels, StripedCounter>,
    request_seconds: Family<ListenerLabels, DurationHistogram>,
    pub degraded_decisions: Counter,
    reloads: Family<ReloadLabels, Counter>,
    pub policy_stale: Gauge,
    store: StoreMetrics,
    store_stats: StoreGauges,
    cluster: ClusterGauges,
}

/// What is counted of one limit.
pub struct LimitCounters {
    allowed: StripedCounter,
    denied: StripedCounter,
    observed: StripedCounter,
    near: StripedCounter,
}

/// What is counted of one face.
#[derive(Clone)]
pub struct ListenerMetrics {
    results: [StripedCounter; RequestResult::ALL.len()],
    durations: DurationHistogram,
}

/// What is counted of the store.
#[derive(Clone)]
pub struct StoreMetrics {
    durations: DurationHistogram,
    unavailable: Counter,
    timed_out: Counter,
    breaker_open: Counter,
    unsupported: Counter,
}

/// How a store stands, to be told as metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Keys that this process counts.
    pub keys: usize,
    /// Bytes that these keys take.
    pub memory_bytes: usize,
    /// Keys that had to go before they expired.
    pub evicted_keys: u64,
    /// Whether the store is not asked, since it has failed too often of late.
    pub is_breaker_open: bool,
    /// Denials that were known without asking.
    pub deny_cache_hits: u64,
}

struct StoreGauges {
    keys: Gauge,
    memory_bytes: Gauge,
    evicted_keys: Counter,
    breaker_open: Gauge,
    deny_cache_hits: Counter,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestResult {
    Allowed,
    Denied,
    /// The store did not answer, and a rule says to deny then.
    StoreUnavailable,
    /// It made no sense.
    Invalid,
    /// The fault is ours.
    Error,
}

/// How a reload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadResult {
    Changed,
    Unchanged,
    Failed,
}

/// Where requests come from.
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
struct StoreLabels {
    store: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreErrorLabels {
    store: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    result: &'static str,
}

impl RequestResult {
    /// Every way, in the order of the variants.
    pub const ALL: [Self; 5] =
        [Self::Allowed, Self::Denied, Self::StoreUnavailable, Self::Invalid, Self::Error];

    /// Its name, as users script against it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::StoreUnavailable => "store_unavailable",
            Self::Invalid => "invalid",
            Self::Error => "error",
        }
    }
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
    /// All at zero. `store` is what kind of store it is.
    pub fn new(store: &'static str) -> Self {
        let mut registry = Registry::with_prefix("slidegate");
        let decisions = Family::default();
        registry.register(
            "decisions",
            "Verdicts of each limit; a limit that fits is not counted where another denied",
            decisions.clone(),
        );
        let near_limit = Family::default();
        registry.register(
            "near_limit",
            "Requests that passed and left less than 20 % of the limit",
            near_limit.clone(),
        );
        let unmatched = Family::default();
        registry.register(
            "unmatched_requests",
            "Requests of a domain of the policy to which no rule applied",
            unmatched.clone(),
        );
        let unknown_domain_requests = Counter::default();
        registry.register(
            "unknown_domain_requests",
            "Requests of domains that the policy does not have",
            unknown_domain_requests.clone(),
        );
        let requests = Family::default();
        registry.register("requests", "Requests, by how they were answered", requests.clone());
        let request_seconds = Family::default();
        registry.register(
            "request_seconds",
            "Time from a whole request to its answer",
            request_seconds.clone(),
        );
        let degraded_decisions = Counter::default();
        registry.register(
            "degraded_decisions",
            "Decisions made without the store that should have made them",
            degraded_decisions.clone(),
        );
        let reloads = Family::default();
        for result in [ReloadResult::Changed, ReloadResult::Unchanged, ReloadResult::Failed] {
            drop(reloads.get_or_create(&ReloadLabels { result: result.name() }));
        }
        registry.register("policy_reloads", "Times the policy was read again", reloads.clone());
        let policy_stale = Gauge::default();
        registry.register(
            "policy_stale",
            "1 while the policy file could not be loaded, so that an older one holds",
            policy_stale.clone(),
        );
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Which slidegate this is", build);
        Self {
            store: StoreMetrics::register(&mut registry, store),
            store_stats: StoreGauges::register(&mut registry, store),
            cluster: ClusterGauges::register(&mut registry),
            registry,
            decisions,
            near_limit,
            unmatched,
            unknown_domain_requests,
            requests,
            request_seconds,
            degraded_decisions,
            reloads,
            policy_stale,
        }
    }

    /// What is counted of a limit: the same for limits of one rule with one id, also of another policy.
    pub fn limit(&self, rule: &Rule, limit: &RuleLimit) -> LimitCounters {
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

    /// The counter of a domain, the same for each policy that has it.
    pub fn unmatched(&self, domain: &str) -> UnmatchedCounter {
        self.unmatched.get_or_create(&DomainLabels { domain: domain.to_owned() }).clone()
    }

    /// What is counted of a face.
    pub fn listener(&self, kind: ListenerKind) -> ListenerMetrics {
        let protocol = kind.name();
        let result = |result: RequestResult| {
            self.requests.get_or_create(&RequestLabels { protocol, result: result.name() }).clone()
        };
        ListenerMetrics {
            results: RequestResult::ALL.map(result),
            durations: self.request_seconds.get_or_create(&ListenerLabels { protocol }).clone(),
        }
    }

    /// What is counted of the store.
    pub fn store(&self) -> &StoreMetrics {
        &self.store
    }

    /// Counts a reload.
    pub fn record_reload(&self, result: ReloadResult) {
        self.reloads.get_or_create(&ReloadLabels { result: result.name() }).inc();
        self.policy_stale.set(i64::from(result == ReloadResult::Failed));
    }

    /// All of it as text, with the store as it now stands, and the cluster if there is one.
    pub fn encode(
        &self,
        format: Format,
        store: StoreStats,
        cluster: Option<ClusterStats>,
    ) -> Result<String, std::fmt::Error> {
        self.store_stats.set(store);
        if let Some(cluster) = cluster {
            self.cluster.set(cluster);
        }
        exposition::encode_registry(&self.registry, format)
    }
}

impl LimitCounters {
    /// Counts a verdict.
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
    /// Counts an answer.
    pub fn count_result(&self, result: RequestResult) {
        self.results[result as usize].inc();
    }

    /// Counts how long an answer took.
    pub fn observe_duration(&self, time: Duration) {
        self.durations.observe(time);
    }
}

impl StoreMetrics {
    fn register(registry: &mut Registry, store: &'static str) -> Self {
        let durations: Family<StoreLabels, DurationHistogram> = Family::default();
        registry.register("store_seconds", "Time that the store took to answer", durations.clone());
        let errors: Family<StoreErrorLabels, Counter> = Family::default();
        registry.register("store_errors", "Calls that the store did not answer", errors.clone());
        let of = |kind| errors.get_or_create(&StoreErrorLabels { store, kind }).clone();
        Self {
            durations: durations.get_or_create(&StoreLabels { store }).clone(),
            unavailable: of("unavailable"),
            timed_out: of("timed_out"),
            breaker_open: of("breaker_open"),
            unsupported: of("unsupported"),
        }
    }

    /// Counts a call that took so long.
    pub fn record_call(&self, duration: Duration, error: Option<&StoreError>) {
        self.durations.observe(duration);
        let counter = match error {
            None => return,
            Some(StoreError::TimedOut(_)) => &self.timed_out,
            Some(StoreError::BreakerOpen) => &self.breaker_open,
            Some(StoreError::Unsupported(_)) => &self.unsupported,
            Some(_) => &self.unavailable,
        };
        counter.inc();
    }
}

impl StoreGauges {
    fn register(registry: &mut Registry, store: &'static str) -> Self {
        let keys = Gauge::default();
        registry.register("keys", "Keys that this process counts", keys.clone());
        let memory_bytes = Gauge::default();
        registry.register(
            "store_memory_bytes",
            "Bytes of memory that these keys take, bounded by --max-memory",
            memory_bytes.clone(),
        );
        let evicted_keys = Counter::default();
        registry.register(
            "evicted_keys",
            "Keys that had to go before they expired, because there were more than --max-keys, or they took more than --max-memory",
            evicted_keys.clone(),
        );
        let breaker_open: Family<StoreLabels, Gauge> = Family::default();
        registry.register(
            "breaker_open",
            "1 while the store is not asked, since it has failed too often of late",
            breaker_open.clone(),
        );
        let deny_cache_hits = Counter::default();
        registry.register(
            "deny_cache_hits",
            "Denials that were known without asking the store",
            deny_cache_hits.clone(),
        );
        let breaker_open = breaker_open.get_or_create(&StoreLabels { store }).clone();
        Self { keys, memory_bytes, evicted_keys, breaker_open, deny_cache_hits }
    }

    fn set(&self, store: StoreStats) {
        let StoreStats { keys, memory_bytes, evicted_keys, is_breaker_open, deny_cache_hits } =
            store;
        self.keys.set(i64::try_from(keys).unwrap_or(i64::MAX));
        self.memory_bytes.set(i64::try_from(memory_bytes).unwrap_or(i64::MAX));
        self.evicted_keys.inner().fetch_max(evicted_keys, Ordering::Relaxed);
        self.breaker_open.set(i64::from(is_breaker_open));
        self.deny_cache_hits.inner().fetch_max(deny_cache_hits, Ordering::Relaxed);
    }
}
