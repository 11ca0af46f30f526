//! Telemetry: metrics, top limited keys, the denial log and traces. It never changes a decision.
//!
//! No metric label contains a value of a client. Such values appear only in [`top`], the denial log and traces, as
//! [`redact`] displays them.

mod denial_log;
mod duration_histogram;
mod instrumented_store;
mod limit_result;
mod log_throttle;
pub mod metrics;
pub mod redact;
mod stripes;
pub mod top;
pub mod traces;
mod unknown_domain_log;

use std::collections::HashMap;

use slidegate::policy::MatchedRules;
use slidegate::{Clock, Policy, Ruling, SystemClock, Timestamp};

pub use self::denial_log::DenialLog;
pub use self::instrumented_store::InstrumentedStore;
pub use self::log_throttle::LogThrottle;
pub use self::metrics::Metrics;
pub use self::redact::Redactor;
pub use self::top::TopKeys;
pub use self::traces::DecisionTracer;

use self::limit_result::LimitResult;
use self::metrics::{LimitCounters, UnmatchedCounter};
use self::top::{TopList, TopReport};
use self::unknown_domain_log::UnknownDomainLog;

/// Maximum number of keys in each top list of a rule, per minute.
const MAX_TOP_KEYS: usize = 64;

/// Records decisions in the metrics, the top keys and the denial log, and holds the tracer.
pub struct Telemetry {
    clock: SystemClock,
    collectors: Option<Collectors>,
    denial_log: Option<DenialLog>,
    tracer: Option<DecisionTracer>,
    unknown_domain_log: UnknownDomainLog,
}

/// The data that the admin listener serves.
struct Collectors {
    metrics: Metrics,
    top_keys: TopKeys,
}

/// The counters of the limits and domains of one policy.
pub struct PolicyMetrics {
    /// The counters of each limit, indexed by the position of the limit in the policy. Empty if metrics are disabled.
    limits: Box<[LimitCounters]>,
    /// Counters of unmatched requests by domain. Contains exactly the domains of the policy; the counter is `None` if
    /// metrics are disabled.
    unmatched: HashMap<Box<str>, Option<UnmatchedCounter>>,
}

impl Telemetry {
    /// Creates telemetry that records nothing but warnings about unknown domains.
    pub fn new() -> Self {
        Self {
            clock: SystemClock::new(),
            collectors: None,
            denial_log: None,
            tracer: None,
            unknown_domain_log: UnknownDomainLog::new(),
        }
    }

    /// Enables metrics and top keys. Attribute values are displayed by `redactor`.
    pub fn with_metrics(self, metrics: Metrics, redactor: Redactor) -> Self {
        let top_keys = TopKeys::new(MAX_TOP_KEYS, redactor, self.clock.now());
        Self { collectors: Some(Collectors { metrics, top_keys }), ..self }
    }

    /// Sets the denial log and the tracer.
    pub fn with_denial_log_and_traces(
        self,
        denial_log: Option<DenialLog>,
        tracer: Option<DecisionTracer>,
    ) -> Self {
        Self { denial_log, tracer, ..self }
    }

    /// Returns the metrics, if they are enabled.
    pub fn metrics(&self) -> Option<&Metrics> {
        self.collectors.as_ref().map(|collectors| &collectors.metrics)
    }

    /// Returns a report of the top limited keys, with at most `max_keys` keys per list. `None` if metrics are disabled.
    pub fn top_keys(&self, max_keys: usize) -> Option<TopReport> {
        self.collectors
            .as_ref()
            .map(|collectors| collectors.top_keys.report(max_keys, self.clock.now()))
    }

    /// Returns the tracer, if tracing is enabled.
    pub fn tracer(&self) -> Option<&DecisionTracer> {
        self.tracer.as_ref()
    }

    /// Returns the counters of a policy. A limit that another policy also has continues with the same counters.
    pub fn policy_metrics(&self, policy: &Policy) -> PolicyMetrics {
        let metrics = self.metrics();
        let limits = metrics.into_iter().flat_map(|metrics| {
            policy.limits().map(|(rule, limit)| metrics.limit_counters(rule, limit))
        });
        let unmatched = policy.domains().map(|domain| {
            (domain.into(), metrics.map(|metrics| metrics.unmatched_counter(domain)))
        });
        PolicyMetrics { limits: limits.collect(), unmatched: unmatched.collect() }
    }

    /// Records the decision about a request. `matched_rules` are the rules that apply to it.
    pub fn record_decision(
        &self,
        policy_metrics: &PolicyMetrics,
        domain: &str,
        matched_rules: &MatchedRules<'_>,
        ruling: &Ruling,
    ) {
        if matched_rules.matches().next().is_none() {
            self.record_unmatched(policy_metrics, domain);
        }
        if let Some(collectors) = &self.collectors {
            collectors.record(policy_metrics, matched_rules, ruling, || self.clock.now());
        }
        if let Some(denial_log) = &self.denial_log {
            denial_log.record(matched_rules, ruling);
        }
    }

    /// Counts a request to which no rule applies. Domains that are not in the policy are counted together and logged,
    /// because clients choose them: as labels they would be unbounded.
    fn record_unmatched(&self, policy_metrics: &PolicyMetrics, domain: &str) {
        match policy_metrics.unmatched.get(domain) {
            Some(Some(counter)) => drop(counter.inc()),
            Some(None) => {}
            None => {
                if let Some(metrics) = self.metrics() {
                    metrics.unknown_domain_requests.inc();
                }
                self.unknown_domain_log.log(domain);
            }
        }
    }
}

impl Collectors {
    fn record(
        &self,
        policy_metrics: &PolicyMetrics,
        matched_rules: &MatchedRules<'_>,
        ruling: &Ruling,
        now: impl Fn() -> Timestamp,
    ) {
        let decision = ruling.decision();
        if decision.is_degraded() {
            self.metrics.degraded_decisions.inc();
        }
        // The descriptor match and a bit set of the lists in which its key has been counted. A match is counted at most
        // once per list, even if several limits of the rule have the same result.
        let mut counted_lists = (usize::MAX, 0_u8);
        for status in ruling.limits() {
            let Some(limit_result) = LimitResult::from_status(&status, decision.is_allowed())
            else {
                continue;
            };
            if let Some(counters) = policy_metrics.limits.get(status.limit.index()) {
                counters.count(limit_result);
            }
            let Some(list) = top_list(limit_result) else { continue };
            if counted_lists.0 != status.match_index() {
                counted_lists = (status.match_index(), 0);
            }
            let is_first = counted_lists.1 & (1 << list as u8) == 0;
            counted_lists.1 |= 1 << list as u8;
            if let Some(rule_match) = status.find_match(matched_rules).filter(|_| is_first) {
                self.top_keys.record(list, status.rule, || rule_match.identity(), 1, now());
            }
        }
    }
}

/// Returns the list in which the key of a limit is counted, or `None` if the request was simply allowed.
fn top_list(limit_result: LimitResult) -> Option<TopList> {
    match limit_result {
        LimitResult::Allowed => None,
        LimitResult::Near => Some(TopList::Near),
        LimitResult::Denied => Some(TopList::Denied),
        LimitResult::Observed => Some(TopList::Observed),
    }
}
