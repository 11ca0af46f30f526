//! What the gate said of the requests of a log, in numbers.

use std::borrow::Cow;

use serde::Serialize;
use slidegate::policy::{Match, MatchedRules, Rule, RuleLimit};
use slidegate::{LimitStatus, Policy, Ruling, Timestamp, Value, Veto};

use super::accuracy::{Accuracy, Deviation, Said};
use super::demand::Demand;
use super::keys::Keys;

pub struct Tally {
    pub counts: Counts,
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
    pub rules: Vec<RuleTally>,
    pub keys: Keys,
}

/// How many asked, and what became of them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counts {
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
pub struct RuleTally {
    pub counts: Counts,
    /// The rule as a whole beside exact logs of all its limits.
    pub deviation: Deviation,
    /// In the order of the rule.
    pub limits: Vec<LimitTally>,
    /// What its keys asked for, if that is to be known.
    pub demand: Option<Demand>,
}

/// What one limit said.
pub struct LimitTally {
    pub limit: RuleLimit,
    pub counts: Counts,
    pub accuracy: Accuracy,
}

/// A request of a key, decided.
#[derive(Clone, Copy)]
struct Decided {
    at: Timestamp,
    allowed: bool,
    /// None if there are too many keys to count it.
    key: Option<u64>,
    cost: u64,
    /// Units that must be free.
    required: u64,
}

impl Tally {
    /// Nothing yet; counts at most `max_keys` keys one by one, and what they ask for if `demand` is to be
    /// known.
    pub fn new(policy: &Policy, max_keys: usize, demand: bool) -> Self {
        let rule = |rule| RuleTally::new(rule, demand.then(Demand::default));
        Self {
            counts: Counts::default(),
            unparsable: 0,
            forgotten: 0,
            out_of_order: 0,
            previous: Timestamp::default(),
            span: None,
            rules: policy.rules().iter().map(rule).collect(),
            keys: Keys::new(max_keys),
        }
    }

    /// Counts what the gate said of a request at a moment, and how the policy applied to it.
    pub fn count(&mut self, at: Timestamp, applied: &MatchedRules<'_>, ruling: &Ruling) {
        let allowed = ruling.decision().is_allowed();
        self.counts.count(allowed, if allowed { Fit::Yes } else { Fit::Denied });
        let mut standings = ruling.limits();
        for one in applied.matches() {
            let of_rule = standings.by_ref().take(one.limits().len());
            let nth = one.rule_index();
            let key = self.keys.ask(nth, key_values(one));
            let (cost, required) = one.hits().next().map_or((1, 1), |hit| (hit.cost, hit.required));
            let decided = Decided { at, allowed, key, cost, required };
            let fit = self.rules[nth].count(of_rule, decided);
            if let (Some(key), true) = (key, fit != Fit::Yes) {
                self.keys.deny(key, nth, key_values(one));
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
fn key_values<'a>(one: &'a Match<'_>) -> impl Iterator<Item = (&'a str, Cow<'a, str>)> {
    one.identity().map(|(name, value)| match value {
        Value::Text(text) => (name, Cow::Borrowed(text)),
        value => (name, Cow::Owned(value.to_string())),
    })
}

/// Whether a limit was charged. One that only observes is not, where it would have denied.
fn is_charged(standing: &LimitStatus<'_>, allowed: bool) -> bool {
    standing.rule.charges_always() || (allowed && standing.outcome.fits())
}

/// Whether a request fits, in the order of what weighs more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    Yes,
    /// No, but that did not deny it.
    Observed,
    Denied,
}

impl Fit {
    fn of(standing: &LimitStatus<'_>) -> Self {
        match (standing.outcome.fits(), standing.veto) {
            (true, _) => Self::Yes,
            (false, Veto::Alone | Veto::Jointly) => Self::Denied,
            (false, Veto::Never) => Self::Observed,
        }
    }
}

impl Counts {
    fn count(&mut self, allowed: bool, fit: Fit) {
        self.asked += 1;
        self.allowed += u64::from(allowed);
        self.denied += u64::from(fit == Fit::Denied);
        self.observed += u64::from(fit == Fit::Observed);
    }
}

impl RuleTally {
    fn new(rule: &Rule, demand: Option<Demand>) -> Self {
        let limits = rule.settings().limits().iter().map(LimitTally::new);
        Self {
            counts: Counts::default(),
            deviation: Deviation::default(),
            limits: limits.collect(),
            demand,
        }
    }

    /// Counts how the limits of this rule stand; says whether the request fits in all.
    fn count<'s>(
        &mut self,
        standings: impl Iterator<Item = LimitStatus<'s>>,
        decided: Decided,
    ) -> Fit {
        let (mut fit, mut has_room) = (Fit::Yes, true);
        for standing in standings {
            fit = fit.max(Fit::of(&standing));
            has_room &= self.limit(standing.limit).count(&standing, decided);
        }
        self.counts.count(decided.allowed, fit);
        if let Some(key) = decided.key {
            self.deviation.count(fit == Fit::Yes, has_room);
            if let Some(demand) = &mut self.demand {
                demand.note(key, decided.at);
            }
        }
        fit
    }

    fn limit(&mut self, limit: &RuleLimit) -> &mut LimitTally {
        let known = self
            .limits
            .iter()
            .position(|own| own.limit.limit() == limit.limit() && own.limit.id() == limit.id());
        let nth = known.unwrap_or_else(|| {
            self.limits.push(LimitTally::new(limit));
            self.limits.len() - 1
        });
        &mut self.limits[nth]
    }
}

impl LimitTally {
    fn new(limit: &RuleLimit) -> Self {
        Self { limit: limit.clone(), counts: Counts::default(), accuracy: Accuracy::default() }
    }

    /// Counts how the limit stands; says whether an exact log has room, if the key is known.
    fn count(&mut self, standing: &LimitStatus<'_>, decided: Decided) -> bool {
        let Decided { at, allowed, key, cost, required } = decided;
        let fits = standing.outcome.fits();
        self.counts.count(allowed, Fit::of(standing));
        key.is_none_or(|key| {
            let quota = standing.limit.limit().quota();
            let charged = if is_charged(standing, allowed) { cost } else { 0 };
            self.accuracy.count(key, Said { quota, at, fits, required, charged })
        })
    }
}
