//! What the gate said of the requests of a log, in numbers.

use serde::Serialize;
use slidegate::policy::{Rule, RuleLimit};
use slidegate::{Policy, Ruling, Standing, Timestamp};

use super::keys::Keys;
use super::line::Line;

pub struct Tally {
    pub counts: Counts,
    pub unparsable: u64,
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
    /// Requests that did not fit. What fitted may still be denied, by another limit.
    pub denied: u64,
}

/// What one rule said.
pub struct RuleTally {
    pub counts: Counts,
    /// In the order of the rule.
    pub limits: Vec<LimitTally>,
}

/// What one limit said.
pub struct LimitTally {
    pub limit: RuleLimit,
    pub counts: Counts,
}

impl Tally {
    /// Nothing yet; counts at most `max_keys` keys one by one.
    pub fn new(policy: &Policy, max_keys: usize) -> Self {
        Self {
            counts: Counts::default(),
            unparsable: 0,
            out_of_order: 0,
            previous: Timestamp::default(),
            span: None,
            rules: policy.rules().iter().map(RuleTally::new).collect(),
            keys: Keys::new(max_keys),
        }
    }

    /// Counts what the gate of this policy said of a line.
    pub fn count(&mut self, policy: &Policy, line: &Line<'_>, ruling: &Ruling) {
        let allowed = ruling.decision().is_allowed();
        self.note_time(line.time);
        self.counts.count(allowed, allowed);
        let standings: Vec<Standing<'_>> = ruling.limits().collect();
        for of_rule in standings.chunk_by(|one, next| std::ptr::eq(one.rule, next.rule)) {
            let rule = of_rule[0].rule;
            if let Some(nth) = policy.rules().element_offset(rule) {
                let fits = self.rules[nth].count(of_rule, allowed);
                let values: Vec<&str> = rule
                    .per()
                    .entries()
                    .iter()
                    .filter_map(|entry| entry.names().next())
                    .map(|name| line.attribute(name))
                    .collect();
                self.keys.count(nth, &values, !fits);
            }
        }
    }

    fn note_time(&mut self, time: Timestamp) {
        let (first, last) = self.span.unwrap_or((time, time));
        self.out_of_order += u64::from(time < self.previous);
        self.previous = time;
        self.span = Some((first.min(time), last.max(time)));
    }
}

impl Counts {
    fn count(&mut self, allowed: bool, fits: bool) {
        self.asked += 1;
        self.allowed += u64::from(allowed);
        self.denied += u64::from(!fits);
    }
}

impl RuleTally {
    fn new(rule: &Rule) -> Self {
        let limits = rule.terms().limits().iter().map(LimitTally::new);
        Self { counts: Counts::default(), limits: limits.collect() }
    }

    /// Counts how the limits of this rule stand; says whether all fit.
    fn count(&mut self, standings: &[Standing<'_>], allowed: bool) -> bool {
        for Standing { limit, outcome, .. } in standings {
            self.limit(limit).counts.count(allowed, outcome.fits());
        }
        let fits = standings.iter().all(|standing| standing.outcome.fits());
        self.counts.count(allowed, fits);
        fits
    }

    fn limit(&mut self, limit: &RuleLimit) -> &mut LimitTally {
        let known = self.limits.iter().position(|own| own.limit.id() == limit.id());
        let nth = known.unwrap_or_else(|| {
            self.limits.push(LimitTally::new(limit));
            self.limits.len() - 1
        });
        &mut self.limits[nth]
    }
}

impl LimitTally {
    fn new(limit: &RuleLimit) -> Self {
        Self { limit: limit.clone(), counts: Counts::default() }
    }
}
