//! Telemetry: metrics, the keys that are limited most often, the denial log, and traces. Telemetry never changes a
//! decision.
//!
//! No metric label contains a value that a client sent. Such values appear only in [`top`], the denial log and traces,
//! and [`redact`] hashes them if necessary.

pub mod clock_steps;
mod decision_log;
mod denial_budget;
pub mod log;
mod log_throttle;
pub mod metrics;
pub mod recorder;
pub mod redact;
pub mod results;
pub mod rule_use;
pub mod top;
pub mod trace_settings;
#[cfg(feature = "otlp")]
pub mod traces;
#[cfg(not(feature = "otlp"))]
#[path = "telemetry/no_traces.rs"]
pub mod traces;
mod unknown_domain_log;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use slidegate::clock::{Clock, SystemClock};
use slidegate::policy::MatchedRules;
use slidegate::{Decision, LimitStatus, Policy};
use tracing::{Level, enabled};

pub use self::decision_log::DenialLog;
pub use self::log_throttle::LogThrottle;
pub use self::metrics::Metrics;
pub use self::recorder::StoreRecorder;
pub use self::redact::Redactor;
pub use self::top::TopKeys;
pub use self::traces::DecisionTracer;

use self::decision_log::DecisionLog;
use self::denial_budget::DenialLogBudgets;
use self::metrics::{LimitCounters, UnmatchedCounter};
use self::results::LimitResult;
use self::rule_use::RuleUse;
use self::top::{ObservedKeyCount, RolloutReport, TopList, TopReport};
use self::unknown_domain_log::UnknownDomainLog;

/// Maximum number of keys in each [`TopList`] of a rule, per minute.
const MAX_KEYS_PER_TOP_LIST: usize = 64;

/// The telemetry of the server. Records decisions in the metrics, the top keys and the denial log, and holds the
/// tracer.
pub struct Telemetry {
    clock: SystemClock,
    collectors: Option<MetricsAndTopKeys>,
    decision_log: DecisionLog,
    denial_log: Option<DenialLog>,
    tracer: Option<Arc<DecisionTracer>>,
    unknown_domain_log: UnknownDomainLog,
}

/// The metrics and the top keys, which the admin listener serves.
struct MetricsAndTopKeys {
    metrics: Metrics,
    top_keys: TopKeys,
}

/// The Prometheus counters for the limits and domains of one policy.
pub struct PolicyMetrics {
    /// The Prometheus counters of each limit, indexed by the position of the limit in the policy. Empty if metrics are
    /// disabled.
    limits: Box<[LimitCounters]>,
    /// The unmatched requests of each domain. Contains exactly the domains of the policy.
    unmatched: HashMap<Box<str>, UnmatchedRequests>,
    rule_use: RuleUse,
    denial_budgets: DenialLogBudgets,
}

/// The requests of a domain to which no rule applies.
struct UnmatchedRequests {
    /// `None` if metrics are disabled.
    counter: Option<UnmatchedCounter>,
    /// Index of the domain in [`RuleUse`].
    domain: usize,
}

impl Telemetry {
    /// Creates telemetry without metrics, denial log and traces. It only logs warnings about unknown domains, and each
    /// decision at the level `trace`. `redactor` decides which attribute values are hashed in the log.
    pub fn new(redactor: Redactor) -> Self {
        Self {
            clock: SystemClock::new(),
            collectors: None,
            decision_log: DecisionLog::new(redactor),
            denial_log: None,
            tracer: None,
            unknown_domain_log: UnknownDomainLog::new(),
        }
    }

    /// Enables metrics and top keys. `redactor` decides which attribute values are hashed for display.
    pub fn with_metrics(self, metrics: Metrics, redactor: Redactor) -> Self {
        let top_keys = TopKeys::new(MAX_KEYS_PER_TOP_LIST, redactor, self.clock.now());
        Self { collectors: Some(MetricsAndTopKeys { metrics, top_keys }), ..self }
    }

    /// Sets the denial log and the tracer. `None` disables them.
    pub fn with_denial_log_and_traces(
        self,
        denial_log: Option<DenialLog>,
        tracer: Option<DecisionTracer>,
    ) -> Self {
        Self { denial_log, tracer: tracer.map(Arc::new), ..self }
    }

    /// Returns the metrics, or `None` if they are disabled.
    pub fn metrics(&self) -> Option<&Metrics> {
        self.collectors.as_ref().map(|collectors| &collectors.metrics)
    }

    /// Returns a report of the keys that are limited most often, with at most `max_keys` keys per list. Returns `None`
    /// if metrics are disabled.
    pub fn top_keys(&self, max_keys: usize) -> Option<TopReport> {
        self.collectors
            .as_ref()
            .map(|collectors| collectors.top_keys.report(max_keys, self.clock.now()))
    }

    /// Returns the keys that observing rules with this name would have denied since their roll-outs began, at most
    /// `max_keys` for each rule. Returns `None` if metrics are disabled.
    pub fn rollout_keys(&self, rule: &str, max_keys: usize) -> Option<RolloutReport> {
        let collectors = self.collectors.as_ref()?;
        Some(collectors.top_keys.rollout_report(rule, max_keys, self.clock.now()))
    }

    /// Returns, for each observing rule of a policy, the number of keys that it would have denied since its roll-out
    /// began.
    pub fn observed_key_counts(&self, policy: &Policy) -> Vec<ObservedKeyCount> {
        let collectors = self.collectors.iter();
        collectors.flat_map(|collectors| collectors.top_keys.observed_key_counts(policy)).collect()
    }

    /// Returns the tracer, or `None` if tracing is disabled.
    pub fn tracer(&self) -> Option<&Arc<DecisionTracer>> {
        self.tracer.as_ref()
    }

    /// Returns the Prometheus counters for the limits and domains of a policy. A limit that was also in another policy
    /// continues with the same counters.
    pub fn policy_metrics(&self, policy: &Policy) -> PolicyMetrics {
        let metrics = self.metrics();
        let limits = metrics.into_iter().flat_map(|metrics| {
            policy.limits().map(|(rule, limit)| metrics.limit_counters(rule, limit))
        });
        let rule_use = RuleUse::new(policy);
        if let Some(collectors) = &self.collectors {
            collectors.metrics.rules.reset();
            collectors.top_keys.end_finished_rollouts(policy);
        }
        let unmatched = rule_use.domains().map(|(index, domain)| {
            let counter = metrics.map(|metrics| metrics.unmatched_counter(domain));
            (domain.into(), UnmatchedRequests { counter, domain: index })
        });
        let unmatched = unmatched.collect();
        let denial_budgets = DenialLogBudgets::new(policy.rules().len());
        PolicyMetrics { limits: limits.collect(), unmatched, rule_use, denial_budgets }
    }

    /// Records a decision in the current trace span, if the request is traced.
    pub fn record_decision_in_span(&self, domain: &str, decision: &Decision<'_>) {
        if self.tracer.is_some() {
            traces::record_decision_in_current_span(domain, decision);
        }
    }

    /// Counts a repetition of a call, which charges nothing.
    pub fn count_repeated_call(&self) {
        if let Some(metrics) = self.metrics() {
            metrics.repeated_calls.inc();
        }
    }

    /// Records the decision about a request. `matched_rules` are the rules that apply to the request.
    pub fn record_decision(
        &self,
        policy_metrics: &PolicyMetrics,
        domain: &str,
        matched_rules: &MatchedRules<'_>,
        decision: &Decision<'_>,
    ) {
        if enabled!(Level::TRACE) {
            self.decision_log.log(domain, matched_rules, decision);
        }
        match matched_rules.matches().next() {
            Some(_) => policy_metrics.rule_use.record_matched_request(matched_rules),
            None => self.record_unmatched_request(policy_metrics, domain),
        }
        if self.collectors.is_none() && self.denial_log.is_none() {
            return;
        }
        let now = OnceCell::new();
        let now = || *now.get_or_init(|| self.clock.now());
        if let Some(collectors) = self.collectors.as_ref().filter(|_| decision.is_degraded()) {
            collectors.metrics.degraded_decisions.inc();
        }
        if let Some(denial_log) = self.denial_log.as_ref().filter(|_| !decision.is_allowed()) {
            let budgets = &policy_metrics.denial_budgets;
            denial_log.log_denied_request(budgets, matched_rules, decision, now());
        }
        let mut counted_lists = CountedTopLists::default();
        let record_limit = |status: LimitStatus<'_>| {
            let Some(limit_result) = LimitResult::from_status(&status, decision.is_allowed())
            else {
                return;
            };
            if let Some(collectors) = &self.collectors {
                let counters = policy_metrics.limits.get(status.limit_index());
                counters.inspect(|counters| counters.count(limit_result));
                let list = top_list_for_result(limit_result);
                // A joint limit does not observe: another one has admitted the request.
                if let Some(list) =
                    list.filter(|_| limit_result != LimitResult::Observed || status.is_observed())
                    && counted_lists.insert(status.match_index(), list)
                    && let Some(found) = status.find_match(matched_rules)
                {
                    let identity = || found.identity();
                    collectors.top_keys.record(list, found.rule(), identity, 1, now());
                }
            }
            if let Some(denial_log) = &self.denial_log
                && limit_result == LimitResult::Observed
                && status.is_observed()
            {
                denial_log.log_exceeded_limit(
                    &policy_metrics.denial_budgets,
                    &status,
                    matched_rules,
                    decision.is_degraded(),
                    now(),
                );
            }
        };
        // In a denied request, limits that the request does not exceed have no result.
        if decision.is_allowed() {
            decision.limits().for_each(record_limit);
        } else {
            decision.exceeded_limits().for_each(record_limit);
        }
    }

    /// Counts a request to which no rule applies. All domains that are not in the policy share one counter and are
    /// logged. Clients choose these domains, so the number of labels for them would be unbounded.
    fn record_unmatched_request(&self, policy_metrics: &PolicyMetrics, domain: &str) {
        match policy_metrics.unmatched.get(domain) {
            Some(UnmatchedRequests { counter, domain }) => {
                if let Some(counter) = counter {
                    counter.inc();
                }
                policy_metrics.rule_use.record_request(*domain);
            }
            None => {
                if let Some(metrics) = self.metrics() {
                    metrics.unknown_domain_requests.inc();
                }
                self.unknown_domain_log.log(domain);
            }
        }
    }
}

impl PolicyMetrics {
    /// Logs, for each rule, the denials that had no line of their own, because the rule had used up its budget of
    /// lines. `policy` is the policy of these metrics.
    pub fn log_unlogged_denials(&self, policy: &Policy) {
        decision_log::log_unlogged_denials(&self.denial_budgets, policy);
    }

    /// Returns the rules that have applied to requests.
    pub fn rule_use(&self) -> &RuleUse {
        &self.rule_use
    }
}

/// The lists in which the key of one match has been counted. A match is counted at most once per list, even if several
/// limits of the rule have the same result.
struct CountedTopLists {
    match_index: usize,
    /// One bit for each list.
    lists: u8,
}

impl Default for CountedTopLists {
    fn default() -> Self {
        Self { match_index: usize::MAX, lists: 0 }
    }
}

impl CountedTopLists {
    /// Adds a list, and returns `true` if the key of the match has not been counted in it. Only the last match is
    /// remembered, because the limits of a match follow each other.
    fn insert(&mut self, match_index: usize, list: TopList) -> bool {
        if self.match_index != match_index {
            *self = Self { match_index, lists: 0 };
        }
        let is_new = self.lists & (1 << list as u8) == 0;
        self.lists |= 1 << list as u8;
        is_new
    }
}

/// Returns the top list in which a key is counted for a result of a limit. Returns `None` if the limit allowed the
/// request and is not nearly used up.
fn top_list_for_result(limit_result: LimitResult) -> Option<TopList> {
    match limit_result {
        LimitResult::Allowed => None,
        LimitResult::Near => Some(TopList::Near),
        LimitResult::Denied => Some(TopList::Denied),
        LimitResult::Observed => Some(TopList::Observed),
    }
}
