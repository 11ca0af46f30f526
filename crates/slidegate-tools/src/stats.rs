//! Statistics of the decisions about the requests of access logs in a replay.

use std::borrow::Cow;

use serde::Serialize;
use slidegate::policy::{Match, MatchedRules, Rule, RuleLimit};
use slidegate::store::{Value, Veto};
use slidegate::{Decision, LimitStatus, Policy, Timestamp};

use super::accuracy::{Deviation, LimitAccuracy, LimitObservation};
use super::demand::Demand;
use super::key_counts::KeyCounts;
use super::line::Line;

/// Statistics of the requests that a replay has decided.
#[derive(Debug)]
pub struct ReplayStats {
    /// Numbers of decisions of all rules together.
    pub counts: RequestCounts,
    /// Number of log lines that could not be parsed.
    pub unparsable: u64,
    /// Number of limit counters that the store evicted, because there were more counters than `max_keys`.
    pub evicted_counters: u64,
    /// Number of lines that were replayed after a line with a later time, because they arrived too late to be sorted.
    pub out_of_order: u64,
    /// The time of the previous line that was replayed.
    previous: Timestamp,
    /// The earliest and the latest time of all lines, or `None` if there are no lines.
    pub span: Option<(Timestamp, Timestamp)>,
    /// Statistics of each rule, in the order of the rules in the policy.
    pub rules: Vec<RuleStats>,
    /// The numbers of requests and denials of individual keys.
    pub keys: KeyCounts,
    /// The names of the attributes that a line had.
    pub seen_attributes: Vec<Box<str>>,
}

/// Numbers of requests, counted by result. The counts are for all requests, for one rule, or for one limit.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RequestCounts {
    /// Number of all requests to which the rule or limit applied.
    #[serde(rename = "asked")]
    pub requests: u64,
    /// Number of requests that were allowed.
    pub allowed: u64,
    /// Number of requests that were denied because they exceeded this rule or limit. A request that was denied only by
    /// other rules or limits is not included.
    pub denied: u64,
    /// Number of requests that exceeded the rule or limit but were not denied by it, because the rule only observes or
    /// the units were already consumed.
    pub observed: u64,
}

/// Statistics of the requests to which one rule applied.
#[derive(Debug)]
pub struct RuleStats {
    pub counts: RequestCounts,
    /// Numbers of decisions of the rule that differ from the decision of its exact logs. Each limit has an exact log,
    /// which keeps every charge. The exact logs allow a request if all of them have capacity for it.
    pub deviation: Deviation,
    /// Statistics of each limit, in the order of the limits in the rule.
    pub limits: Vec<LimitStats>,
    /// The demand of each key of the rule: the maximum number of requests of the key in windows of several lengths.
    /// `None` if demand is not measured.
    pub demand: Option<Demand>,
}

/// Statistics of the requests to which one limit applied.
#[derive(Debug)]
pub struct LimitStats {
    pub limit: RuleLimit,
    pub counts: RequestCounts,
    pub accuracy: LimitAccuracy,
}

/// A request of one key, with the decision about the request.
#[derive(Debug, Clone, Copy)]
struct DecidedRequest {
    at: Timestamp,
    allowed: bool,
    /// The hash of the key, or `None` if the maximum number of keys is reached and the key is not counted.
    key: Option<u64>,
    cost: u64,
    /// Number of units that must be available for the request.
    required: u64,
}

impl ReplayStats {
    /// Creates empty statistics for the rules of a policy and for at most `max_keys` keys. If `measures_demand` is
    /// `true`, the demand of clients is measured too.
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
            seen_attributes: Vec::new(),
        }
    }

    /// Records the decision about a request at the time `at`. `matched_rules` are the rules that apply to the request.
    pub fn record(
        &mut self,
        at: Timestamp,
        matched_rules: &MatchedRules<'_>,
        decision: &Decision<'_>,
    ) {
        let allowed = decision.is_allowed();
        self.counts.count_request(allowed, if allowed { LimitFit::Yes } else { LimitFit::Denied });
        for (index, rule_match) in matched_rules.matches().enumerate() {
            let rule_statuses = decision.limits().filter(|status| status.match_index() == index);
            let rule_index = rule_match.rule_index();
            let key = self.keys.count_request(rule_index, key_attributes(rule_match));
            // A request takes one permit of a limit on requests in flight, whatever its cost is.
            let hit = rule_match.hits().find(|hit| !hit.limit.is_concurrent());
            let (cost, required) = hit.map_or((1, 1), |hit| (hit.cost, hit.required));
            let request = DecidedRequest { at, allowed, key, cost, required };
            let fit = self.rules[rule_index].record_limit_results(rule_statuses, request);
            if let (Some(key), true) = (key, fit != LimitFit::Yes) {
                self.keys.count_denial(key, rule_index, key_attributes(rule_match));
            }
        }
    }

    /// Records the time and the attributes of a replayed line.
    pub fn record_line(&mut self, line: &Line<'_>) {
        let time = line.time;
        for (name, _) in line.attributes() {
            if !self.seen_attributes.iter().any(|seen| **seen == *name) {
                self.seen_attributes.push(name.into());
            }
        }
        let (first, last) = self.span.unwrap_or((time, time));
        self.out_of_order += u64::from(time < self.previous);
        self.previous = time;
        self.span = Some((first.min(time), last.max(time)));
    }
}

/// Returns the attribute names and values of a request's key, for a rule that applies to the request.
fn key_attributes<'a>(rule_match: &'a Match<'_>) -> impl Iterator<Item = (&'a str, Cow<'a, str>)> {
    rule_match.identity().map(|(name, value)| match value {
        Value::Text(text) => (name, Cow::Borrowed(text)),
        value => (name, Cow::Owned(value.to_string())),
    })
}

/// Returns `true` if a limit was charged for a request. `allowed` is the decision about the request. A limit that only
/// observes is not charged if the request exceeds it.
fn is_limit_charged(status: &LimitStatus<'_>, allowed: bool) -> bool {
    status.rule().is_some_and(Rule::charges_always) || (allowed && status.fits())
}

/// Whether a request is within a limit or rule. The variants are in ascending order of severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LimitFit {
    Yes,
    /// The request exceeds the limit or rule, but is not denied by it.
    Observed,
    Denied,
}

impl LimitFit {
    /// `allowed` is the decision about the request. A joint limit denies only if no other joint limit fits.
    fn from_status(status: &LimitStatus<'_>, allowed: bool) -> Self {
        match (status.fits(), status.veto()) {
            (true, _) => Self::Yes,
            (false, Veto::Never) => Self::Observed,
            (false, Veto::Jointly) if allowed => Self::Observed,
            (false, Veto::Alone | Veto::Jointly) => Self::Denied,
        }
    }
}

impl RequestCounts {
    fn count_request(&mut self, allowed: bool, fit: LimitFit) {
        self.requests += 1;
        self.allowed += u64::from(allowed);
        self.denied += u64::from(fit == LimitFit::Denied);
        self.observed += u64::from(fit == LimitFit::Observed);
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

    /// Records the results of the limits of this rule for a request. Returns the most severe result.
    fn record_limit_results<'s>(
        &mut self,
        statuses: impl Iterator<Item = LimitStatus<'s>>,
        request: DecidedRequest,
    ) -> LimitFit {
        let (mut fit, mut has_capacity, mut is_blocked) = (LimitFit::Yes, true, false);
        for status in statuses {
            is_blocked |= status.rule_limit().is_block_limit();
            fit = fit.max(LimitFit::from_status(&status, request.allowed));
            has_capacity &= self
                .get_or_create_limit_stats(status.rule_limit())
                .record_limit_result(&status, request);
        }
        self.counts.count_request(request.allowed, fit);
        if let Some(key) = request.key {
            // The decision about a blocked key is not compared, because the key is denied although its limits have
            // capacity.
            if !is_blocked {
                self.deviation.record(fit == LimitFit::Yes, has_capacity);
            }
            if let Some(demand) = &mut self.demand {
                demand.record(key, request.at, request.cost);
            }
        }
        fit
    }

    fn get_or_create_limit_stats(&mut self, limit: &RuleLimit) -> &mut LimitStats {
        let existing_index = self.limits.iter().position(|own| {
            own.limit.index() == limit.index()
                && own.limit.limit() == limit.limit()
                && own.limit.id() == limit.id()
        });
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

    /// Records the result of this limit for a request. Returns `true` if the exact log of the key, which keeps every
    /// charge, has capacity for the request. Also returns `true` if the key is not counted.
    fn record_limit_result(&mut self, status: &LimitStatus<'_>, request: DecidedRequest) -> bool {
        let DecidedRequest { at, allowed, key, cost, required } = request;
        let fits = status.fits();
        self.counts.count_request(allowed, LimitFit::from_status(status, allowed));
        // The count of a calendar period is exact. It cannot be compared with a log of a sliding window.
        if status.limit().calendar_periods().is_some() {
            return fits;
        }
        key.is_none_or(|key| {
            let quota = status.limit().quota();
            let charged = if is_limit_charged(status, allowed) { cost } else { 0 };
            self.accuracy.record(key, LimitObservation { quota, at, fits, required, charged })
        })
    }
}
