//! Statistics of the decisions about the requests of a log.

use std::borrow::Cow;

use serde::Serialize;
use slidegate::policy::{Match, MatchedRules, Rule, RuleLimit};
use slidegate::{LimitStatus, Policy, Ruling, Timestamp, Value, Veto};

use super::accuracy::{Deviation, LimitAccuracy, LimitObservation};
use super::demand::Demand;
use super::key_counts::KeyCounts;

/// Statistics of a replay.
pub struct ReplayStats {
    pub counts: RequestCounts,
    /// Number of lines that could not be parsed.
    pub unparsable: u64,
    /// Number of counters that the store evicted because there were more than `max_keys`.
    pub evicted_counters: u64,
    /// Number of lines that are older than the previous line, because they were too late to be sorted.
    pub out_of_order: u64,
    /// The time of the previous line.
    previous: Timestamp,
    /// The earliest and the latest time.
    pub span: Option<(Timestamp, Timestamp)>,
    /// Statistics of the rules, in the order of the policy.
    pub rules: Vec<RuleStats>,
    /// Requests and denials of individual keys.
    pub keys: KeyCounts,
}

/// Numbers of requests by result.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RequestCounts {
    /// All requests that matched.
    #[serde(rename = "asked")]
    pub requests: u64,
    /// Requests that were allowed.
    pub allowed: u64,
    /// Requests that were denied because they exceeded this rule or limit. Requests within it may still be denied by
    /// another limit.
    pub denied: u64,
    /// Requests that exceeded the rule or limit but were not denied by it, because the rule only observes or the units
    /// were already consumed.
    pub observed: u64,
}

/// Statistics of one rule.
pub struct RuleStats {
    pub counts: RequestCounts,
    /// The rule as a whole, compared with exact logs of all its limits.
    pub deviation: Deviation,
    /// Statistics of the limits, in the order of the rule.
    pub limits: Vec<LimitStats>,
    /// The demand of the keys of the rule, if it is measured.
    pub demand: Option<Demand>,
}

/// Statistics of one limit.
pub struct LimitStats {
    pub limit: RuleLimit,
    pub counts: RequestCounts,
    pub accuracy: LimitAccuracy,
}

/// A request of a key, with its decision.
#[derive(Clone, Copy)]
struct DecidedRequest {
    at: Timestamp,
    allowed: bool,
    /// The hash of the key, or `None` if there are too many keys to count it.
    key: Option<u64>,
    cost: u64,
    /// Number of units that must be available.
    required: u64,
}

impl ReplayStats {
    /// Creates empty statistics of at most `max_keys` keys. `measures_demand` enables the demand of clients.
    pub fn new(policy: &Policy, max_keys: usize, measures_demand: bool) -> Self {
        let rule = |rule| RuleStats::new(rule, measures_demand.then(Demand::default));
        Self {
            counts: RequestCounts::default(),
            unparsable: 0,
            evicted_counters: 0,
            out_of_order: 0,
            previous: Timestamp::default(),
            span: None,
            rules: policy.rules().iter().map(rule).collect(),
            keys: KeyCounts::new(max_keys),
        }
    }

    /// Records the decision about a request at a time. `matched_rules` are the rules that apply to it.
    pub fn record(&mut self, at: Timestamp, matched_rules: &MatchedRules<'_>, ruling: &Ruling) {
        let allowed = ruling.decision().is_allowed();
        self.counts.count(allowed, if allowed { RequestFit::Yes } else { RequestFit::Denied });
        let mut statuses = ruling.limits();
        for rule_match in matched_rules.matches() {
            let rule_statuses = statuses.by_ref().take(rule_match.limits().len());
            let rule_index = rule_match.rule_index();
            let key = self.keys.count_request(rule_index, key_values(rule_match));
            let (cost, required) =
                rule_match.hits().next().map_or((1, 1), |hit| (hit.cost, hit.required));
            let request = DecidedRequest { at, allowed, key, cost, required };
            let fit = self.rules[rule_index].record(rule_statuses, request);
            if let (Some(key), true) = (key, fit != RequestFit::Yes) {
                self.keys.count_denial(key, rule_index, key_values(rule_match));
            }
        }
    }

    /// Records the time of a line.
    pub fn record_time(&mut self, time: Timestamp) {
        let (first, last) = self.span.unwrap_or((time, time));
        self.out_of_order += u64::from(time < self.previous);
        self.previous = time;
        self.span = Some((first.min(time), last.max(time)));
    }
}

/// Returns the names and values of the key of a rule match.
fn key_values<'a>(rule_match: &'a Match<'_>) -> impl Iterator<Item = (&'a str, Cow<'a, str>)> {
    rule_match.identity().map(|(name, value)| match value {
        Value::Text(text) => (name, Cow::Borrowed(text)),
        value => (name, Cow::Owned(value.to_string())),
    })
}

/// Returns whether a limit was charged. A limit that only observes is not charged if it is exceeded.
fn is_charged(status: &LimitStatus<'_>, allowed: bool) -> bool {
    status.rule.charges_always() || (allowed && status.outcome.fits())
}

/// Whether a limit or rule has capacity for a request, in ascending order of severity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RequestFit {
    Yes,
    /// Exceeded, but the request was not denied by it.
    Observed,
    Denied,
}

impl RequestFit {
    fn from_status(status: &LimitStatus<'_>) -> Self {
        match (status.outcome.fits(), status.veto) {
            (true, _) => Self::Yes,
            (false, Veto::Alone | Veto::Jointly) => Self::Denied,
            (false, Veto::Never) => Self::Observed,
        }
    }
}

impl RequestCounts {
    fn count(&mut self, allowed: bool, fit: RequestFit) {
        self.requests += 1;
        self.allowed += u64::from(allowed);
        self.denied += u64::from(fit == RequestFit::Denied);
        self.observed += u64::from(fit == RequestFit::Observed);
    }
}

impl RuleStats {
    fn new(rule: &Rule, demand: Option<Demand>) -> Self {
        let limits = rule.settings().limits().iter().map(LimitStats::new);
        Self {
            counts: RequestCounts::default(),
            deviation: Deviation::default(),
            limits: limits.collect(),
            demand,
        }
    }

    /// Records the results of the limits of this rule. Returns whether all of them have capacity.
    fn record<'s>(
        &mut self,
        statuses: impl Iterator<Item = LimitStatus<'s>>,
        request: DecidedRequest,
    ) -> RequestFit {
        let (mut fit, mut has_capacity) = (RequestFit::Yes, true);
        for status in statuses {
            fit = fit.max(RequestFit::from_status(&status));
            has_capacity &= self.limit_mut(status.limit).record(&status, request);
        }
        self.counts.count(request.allowed, fit);
        if let Some(key) = request.key {
            self.deviation.record(fit == RequestFit::Yes, has_capacity);
            if let Some(demand) = &mut self.demand {
                demand.record(key, request.at);
            }
        }
        fit
    }

    fn limit_mut(&mut self, limit: &RuleLimit) -> &mut LimitStats {
        let existing_index = self
            .limits
            .iter()
            .position(|own| own.limit.limit() == limit.limit() && own.limit.id() == limit.id());
        let index = existing_index.unwrap_or_else(|| {
            self.limits.push(LimitStats::new(limit));
            self.limits.len() - 1
        });
        &mut self.limits[index]
    }
}

impl LimitStats {
    fn new(limit: &RuleLimit) -> Self {
        Self {
            limit: limit.clone(),
            counts: RequestCounts::default(),
            accuracy: LimitAccuracy::default(),
        }
    }

    /// Records the result of the limit. Returns whether an exact log has capacity; `true` if the key is not counted.
    fn record(&mut self, status: &LimitStatus<'_>, request: DecidedRequest) -> bool {
        let DecidedRequest { at, allowed, key, cost, required } = request;
        let fits = status.outcome.fits();
        self.counts.count(allowed, RequestFit::from_status(status));
        key.is_none_or(|key| {
            let quota = status.limit.limit().quota();
            let charged = if is_charged(status, allowed) { cost } else { 0 };
            self.accuracy.record(key, LimitObservation { quota, at, fits, required, charged })
        })
    }
}
