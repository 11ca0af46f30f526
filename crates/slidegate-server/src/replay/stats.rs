//! What the gate said of the requests of a log, in numbers.

use std::borrow::Cow;

use serde::Serialize;
use slidegate::policy::{Match, MatchedRules, Rule, RuleLimit};
use slidegate::{LimitStatus, Policy, Ruling, Timestamp, Value, Veto};

use super::accuracy::{Deviation, LimitAccuracy, LimitObservation};
use super::demand::Demand;
use super::key_counts::KeyCounts;

pub struct ReplayStats {
    pub counts: RequestCounts,
    pub unparsable: u64,
    /// Counts that the gate's store had to forget, for want of room.
    pub forgotten: u64,
    /// Requests that are older than the one before them: too late to be put in order.
    pub out_of_order: u64,
    /// The time of the last line.
    previous: Timestamp,
    /// The earliest and the latest time.
    pub span: Option<(Timestamp, Timestamp)>,
    /// In the order of the policy.
    pub rules: Vec<RuleStats>,
    pub keys: KeyCounts,
}

/// How many asked, and what became of them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RequestCounts {
    pub asked: u64,
    /// Requests that passed.
    pub allowed: u64,
    /// Requests that were denied because they did not fit. What fitted may still be denied, by another
    /// limit.
    pub denied: u64,
    /// Requests that did not fit, where the rule only watches or charges what has been spent.
    pub observed: u64,
}

/// What one rule said.
pub struct RuleStats {
    pub counts: RequestCounts,
    /// The rule as a whole beside exact logs of all its limits.
    pub deviation: Deviation,
    /// In the order of the rule.
    pub limits: Vec<LimitStats>,
    /// What its keys asked for, if that is to be known.
    pub demand: Option<Demand>,
}

/// What one limit said.
pub struct LimitStats {
    pub limit: RuleLimit,
    pub counts: RequestCounts,
    pub accuracy: LimitAccuracy,
}

/// A request of a key, decided.
#[derive(Clone, Copy)]
struct DecidedRequest {
    at: Timestamp,
    allowed: bool,
    /// None if there are too many keys to count it.
    key: Option<u64>,
    cost: u64,
    /// Units that must be free.
    required: u64,
}

impl ReplayStats {
    /// Nothing yet; counts at most `max_keys` keys one by one, and what they ask for if `demand` is to be
    /// known.
    pub fn new(policy: &Policy, max_keys: usize, demand: bool) -> Self {
        let rule = |rule| RuleStats::new(rule, demand.then(Demand::default));
        Self {
            counts: RequestCounts::default(),
            unparsable: 0,
            forgotten: 0,
            out_of_order: 0,
            previous: Timestamp::default(),
            span: None,
            rules: policy.rules().iter().map(rule).collect(),
            keys: KeyCounts::new(max_keys),
        }
    }

    /// Counts what the gate said of a request at a moment, and how the policy applied to it.
    pub fn count(&mut self, at: Timestamp, applied: &MatchedRules<'_>, ruling: &Ruling) {
        let allowed = ruling.decision().is_allowed();
        self.counts.count(allowed, if allowed { RequestFit::Yes } else { RequestFit::Denied });
        let mut statuses = ruling.limits();
        for matched in applied.matches() {
            let of_rule = statuses.by_ref().take(matched.limits().len());
            let nth = matched.place();
            let key = self.keys.count_request(nth, key_values(matched));
            let (cost, required) =
                matched.hits().next().map_or((1, 1), |hit| (hit.cost, hit.required));
            let request = DecidedRequest { at, allowed, key, cost, required };
            let fit = self.rules[nth].count(of_rule, request);
            if let (Some(key), true) = (key, fit != RequestFit::Yes) {
                self.keys.count_denial(key, nth, key_values(matched));
            }
        }
    }

    /// Notes the time of a line.
    pub fn note_time(&mut self, time: Timestamp) {
        let (first, last) = self.span.unwrap_or((time, time));
        self.out_of_order += u64::from(time < self.previous);
        self.previous = time;
        self.span = Some((first.min(time), last.max(time)));
    }
}

/// Whose counts a rule asked for: the names of `per` and their values.
fn key_values<'a>(matched: &'a Match<'_>) -> impl Iterator<Item = (&'a str, Cow<'a, str>)> {
    matched.identity().map(|(name, value)| match value {
        Value::Text(text) => (name, Cow::Borrowed(text)),
        value => (name, Cow::Owned(value.to_string())),
    })
}

/// Whether a limit was charged. One that only observes is not, where it would have denied.
fn is_charged(status: &LimitStatus<'_>, allowed: bool) -> bool {
    status.rule.charges_always() || (allowed && status.outcome.fits())
}

/// Whether a request fits, in the order of what weighs more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RequestFit {
    Yes,
    /// No, but that did not deny it.
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
        self.asked += 1;
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

    /// Counts how the limits of this rule stand; says whether the request fits in all.
    fn count<'s>(
        &mut self,
        statuses: impl Iterator<Item = LimitStatus<'s>>,
        request: DecidedRequest,
    ) -> RequestFit {
        let (mut fit, mut has_room) = (RequestFit::Yes, true);
        for status in statuses {
            fit = fit.max(RequestFit::from_status(&status));
            has_room &= self.limit(status.limit).count(&status, request);
        }
        self.counts.count(request.allowed, fit);
        if let Some(key) = request.key {
            self.deviation.count(fit == RequestFit::Yes, has_room);
            if let Some(demand) = &mut self.demand {
                demand.record(key, request.at);
            }
        }
        fit
    }

    fn limit(&mut self, limit: &RuleLimit) -> &mut LimitStats {
        let known = self
            .limits
            .iter()
            .position(|own| own.limit.limit() == limit.limit() && own.limit.id() == limit.id());
        let nth = known.unwrap_or_else(|| {
            self.limits.push(LimitStats::new(limit));
            self.limits.len() - 1
        });
        &mut self.limits[nth]
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

    /// Counts how the limit stands; says whether an exact log has room, if the key is known.
    fn count(&mut self, status: &LimitStatus<'_>, request: DecidedRequest) -> bool {
        let DecidedRequest { at, allowed, key, cost, required } = request;
        let fits = status.outcome.fits();
        self.counts.count(allowed, RequestFit::from_status(status));
        key.is_none_or(|key| {
            let quota = status.limit.limit().quota();
            let charged = if is_charged(status, allowed) { cost } else { 0 };
            self.accuracy.count(key, LimitObservation { quota, at, fits, required, charged })
        })
    }
}
