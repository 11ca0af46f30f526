//! Who watches what is decided. Nothing here changes an answer.

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

/// Keys of each rule that are counted in each minute.
const MAX_TOP_KEYS: usize = 64;

/// Sees what is decided: gathers what the admin address tells, and tells the log and a collector of traces.
pub struct Telemetry {
    clock: SystemClock,
    collectors: Option<Collectors>,
    denial_log: Option<DenialLog>,
    tracer: Option<DecisionTracer>,
    unknown_domains: UnknownDomainLog,
}

/// What the admin address tells.
struct Collectors {
    metrics: Metrics,
    top: TopKeys,
}

/// The counters of one policy.
pub struct PolicyMetrics {
    /// Indexed by the place of the limit; empty if no metrics are gathered.
    limits: Box<[LimitCounters]>,
    /// Requests to which no rule applied, by domain: every domain of the policy, and no other.
    unmatched: HashMap<Box<str>, Option<UnmatchedCounter>>,
}

impl Telemetry {
    /// Nothing seen yet, and nobody who sees.
    pub fn new() -> Self {
        Self {
            clock: SystemClock::new(),
            collectors: None,
            denial_log: None,
            tracer: None,
            unknown_domains: UnknownDomainLog::new(),
        }
    }

    /// The same with what the admin address tells; values are shown as `redact` does.
    pub fn with_metrics(self, metrics: Metrics, redact: Redactor) -> Self {
        let top = TopKeys::new(MAX_TOP_KEYS, redact, self.clock.now());
        Self { collectors: Some(Collectors { metrics, top }), ..self }
    }

    /// The same with denials in the log, and with traces.
    pub fn with_denial_log_and_traces(
        self,
        denial_log: Option<DenialLog>,
        tracer: Option<DecisionTracer>,
    ) -> Self {
        Self { denial_log, tracer, ..self }
    }

    /// The metrics, if they are gathered.
    pub fn metrics(&self) -> Option<&Metrics> {
        self.collectors.as_ref().map(|collectors| &collectors.metrics)
    }

    /// Who is limited most: so many keys of each rule.
    pub fn top(&self, most: usize) -> Option<TopReport> {
        self.collectors.as_ref().map(|collectors| collectors.top.report(most, self.clock.now()))
    }

    /// The traces, if there are any.
    pub fn tracer(&self) -> Option<&DecisionTracer> {
        self.tracer.as_ref()
    }

    /// Where to count what a policy decides. What was counted under another policy goes on.
    pub fn policy_metrics(&self, policy: &Policy) -> PolicyMetrics {
        let metrics = self.metrics();
        let limits = metrics
            .into_iter()
            .flat_map(|metrics| policy.limits().map(|(rule, limit)| metrics.limit(rule, limit)));
        let unmatched = policy
            .domains()
            .map(|domain| (domain.into(), metrics.map(|metrics| metrics.unmatched(domain))));
        PolicyMetrics { limits: limits.collect(), unmatched: unmatched.collect() }
    }

    /// Records the decision about a request of a domain, to which `applied` applied.
    pub fn record_decision(
        &self,
        policy_metrics: &PolicyMetrics,
        domain: &str,
        applied: &MatchedRules<'_>,
        ruling: &Ruling,
    ) {
        if applied.matches().next().is_none() {
            self.unmatched(policy_metrics, domain);
        }
        if let Some(collectors) = &self.collectors {
            collectors.count(policy_metrics, applied, ruling, || self.clock.now());
        }
        if let Some(denial_log) = &self.denial_log {
            denial_log.record(applied, ruling);
        }
    }

    /// Records a request to which no rule applied. Only domains of the policy are labels.
    fn unmatched(&self, policy_metrics: &PolicyMetrics, domain: &str) {
        match policy_metrics.unmatched.get(domain) {
            Some(Some(counter)) => drop(counter.inc()),
            Some(None) => {}
            None => {
                if let Some(metrics) = self.metrics() {
                    metrics.unknown_domain_requests.inc();
                }
                self.unknown_domains.log(domain);
            }
        }
    }
}

impl Collectors {
    fn count(
        &self,
        policy_metrics: &PolicyMetrics,
        applied: &MatchedRules<'_>,
        ruling: &Ruling,
        now: impl Fn() -> Timestamp,
    ) {
        let decision = ruling.decision();
        if decision.is_degraded() {
            self.metrics.degraded_decisions.inc();
        }
        // Of one who asks, a rule counts each kind once, however many of its limits say so.
        let mut told = (usize::MAX, 0_u8);
        for status in ruling.limits() {
            let Some(limit_result) = LimitResult::from_status(&status, decision.is_allowed())
            else {
                continue;
            };
            if let Some(counters) = policy_metrics.limits.get(status.limit.place()) {
                counters.count(limit_result);
            }
            let Some(list) = list(limit_result) else { continue };
            if told.0 != status.matched() {
                told = (status.matched(), 0);
            }
            let first = told.1 & (1 << list as u8) == 0;
            told.1 |= 1 << list as u8;
            if let Some(asked) = status.asked_by(applied).filter(|_| first) {
                self.top.count(list, status.rule, || asked.identity(), 1, now());
            }
        }
    }
}

/// What a key is counted for.
fn list(limit_result: LimitResult) -> Option<TopList> {
    match limit_result {
        LimitResult::Allowed => None,
        LimitResult::Near => Some(TopList::Near),
        LimitResult::Denied => Some(TopList::Denied),
        LimitResult::Observed => Some(TopList::Observed),
    }
}
