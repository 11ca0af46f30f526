//! What a policy makes of one request, rule by rule, and why: for the command and for the admin address.

mod describe;
mod display;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slidegate::policy::{Match, NoMatchReason, Rule, RuleLimit};
use slidegate::{ChargeWhen, Hit, LimitStatus, Policy, Request, Ruling, Veto};

use crate::millis::millis_up;
use crate::words::override_name;

/// What a policy makes of one request.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Whether it may pass now.
    allowed: bool,
    /// Whether the store could not be asked, so that this is a guess.
    degraded: bool,
    /// What that hangs on, in words.
    summary: String,
    /// Milliseconds until it may pass if nobody else asks. Null if it may now, never can, or that is not known.
    retry_after_ms: Option<u64>,
    /// The route that its path gives it. Null if it gives none.
    route: Option<String>,
    /// Whether its path is of none of the policy's routes.
    route_unmatched: bool,
    /// Every rule of its domain, in the order of the policy; once for each of the request's descriptors.
    rules: Vec<RuleExplanation>,
}

/// What one rule makes of it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct RuleExplanation {
    rule: String,
    /// The position of the descriptor, from 1.
    descriptor: usize,
    applies: bool,
    /// Why it does not apply.
    no_match_reason: Option<String>,
    /// Which of its overrides holds.
    #[serde(rename = "override")]
    by_override: Option<String>,
    /// Whether it denies because an attribute is absent per which it counts.
    missing_attribute: bool,
    /// The limits that hold; none: everything passes.
    limits: Vec<LimitExplanation>,
}

/// How one limit stands.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct LimitExplanation {
    /// As headers name it: the rule, or `rule.limit` where several limits hold.
    name: String,
    /// What it enforces, as `10/1s sliding_log`.
    limit: String,
    max: u64,
    window_ms: u64,
    /// Whether the rule only watches, and never denies.
    observed: bool,
    /// Whether it denies only if no other limit in this mode fits.
    joint: bool,
    /// Units that the request costs here.
    cost: u64,
    /// Units that must be free for the request to fit.
    required: u64,
    /// Whether the cost is charged also if the request is denied, above max.
    charged_always: bool,
    /// Whose counts: every attribute that the rule counts per.
    key_values: BTreeMap<String, String>,
    /// The name of the counter.
    key: String,
    /// The counts. Null if they were not asked for: the store does not answer, and the rule then does without.
    now: Option<CounterState>,
    /// What would have to happen for the request to fit. Null if it does, or need not.
    to_pass: Option<String>,
}

/// The counts in the window.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct CounterState {
    fits: bool,
    /// Units that are taken.
    used: u64,
    remaining: u64,
    /// Milliseconds until nothing is taken any more, if nobody asks.
    reset_after_ms: u64,
    /// Milliseconds until the request fits. Null if it does, or never can.
    retry_after_ms: Option<u64>,
}

impl Explanation {
    /// What came of a request: `ruling` is what a gate said of it by this policy, without charging it.
    pub fn from_ruling(policy: &Policy, request: &Request<'_>, ruling: &Ruling) -> Self {
        let decision = ruling.decision();
        let mut match_index = 0..;
        let domain_rules = policy.rules().iter().filter(|rule| rule.domain() == request.domain());
        let rules_per_descriptor = domain_rules.count().max(1);
        let rules = policy.explain(request).enumerate().map(|(index, (rule, result))| {
            let explained = match result {
                Ok(matched) => RuleExplanation::from_match(
                    &matched,
                    match_index.next().unwrap_or_default(),
                    ruling,
                ),
                Err(reason) => RuleExplanation::from_no_match(rule, &reason),
            };
            RuleExplanation { descriptor: index / rules_per_descriptor + 1, ..explained }
        });
        let path = routed_path(policy, request);
        let route = path.and_then(|path| policy.route_of(path)).map(str::to_owned);
        let retry_after = decision.retry_after().filter(|_| !decision.is_allowed());
        Self {
            rules: rules.collect(),
            allowed: decision.is_allowed(),
            degraded: decision.is_degraded(),
            summary: describe::describe_ruling(ruling),
            retry_after_ms: retry_after.map(millis_up),
            route_unmatched: path.is_some() && route.is_none(),
            route,
        }
    }

    /// Whether the request's domain has any rule.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }
}

/// The path that a route is looked up for, if any.
fn routed_path<'r>(policy: &Policy, request: &'r Request<'_>) -> Option<&'r str> {
    policy.routes().next()?;
    let mut unrouted =
        request.descriptors().iter().filter(|descriptor| descriptor.get("route").is_none());
    unrouted.find_map(|descriptor| descriptor.get("path"))
}

impl RuleExplanation {
    fn from_no_match(rule: &Rule, reason: &NoMatchReason<'_>) -> Self {
        Self {
            rule: rule.name().to_owned(),
            descriptor: 1,
            applies: false,
            no_match_reason: Some(describe::describe_no_match(reason)),
            by_override: None,
            missing_attribute: false,
            limits: Vec::new(),
        }
    }

    /// `place` is that of the match among those that apply.
    fn from_match(matched: &Match<'_>, match_index: usize, ruling: &Ruling) -> Self {
        let limit_status = |limit: &RuleLimit| {
            ruling.limits().find(|limit_status| {
                limit_status.matched() == match_index && limit_status.limit.place() == limit.place()
            })
        };
        let limits = matched.limits().iter().zip(matched.hits());
        let limits = limits.map(|(limit, hit)| {
            LimitExplanation::from_hit(matched, limit, &hit, limit_status(limit))
        });
        Self {
            rule: matched.rule().name().to_owned(),
            descriptor: 1,
            applies: true,
            no_match_reason: None,
            by_override: matched
                .chosen_override()
                .map(|(index, other)| override_name(index, other)),
            missing_attribute: matched.lacks_attribute(),
            limits: limits.collect(),
        }
    }
}

impl LimitExplanation {
    fn from_hit(
        matched: &Match<'_>,
        rule_limit: &RuleLimit,
        hit: &Hit<'_>,
        limit_status: Option<LimitStatus<'_>>,
    ) -> Self {
        // Without the store each instance has its part of the limit.
        let limit = limit_status.map_or(rule_limit, |limit_status| limit_status.limit).limit();
        let quota = limit.quota();
        let identity = matched.identity().map(|(name, value)| (name.to_owned(), value.to_string()));
        Self {
            name: rule_limit.policy_name().to_owned(),
            limit: describe::describe_limit(limit),
            max: quota.max(),
            window_ms: millis_up(quota.window()),
            observed: hit.veto == Veto::Never,
            joint: hit.veto == Veto::Jointly,
            cost: hit.cost,
            required: hit.required,
            charged_always: hit.charge == ChargeWhen::Always,
            key_values: if matched.lacks_attribute() {
                BTreeMap::new()
            } else {
                identity.collect()
            },
            key: hit.key.to_string(),
            to_pass: limit_status.and_then(|limit_status| {
                describe::describe_requirement(&limit_status, hit.required)
            }),
            now: limit_status.map(|limit_status| {
                let outcome = limit_status.outcome;
                CounterState {
                    fits: outcome.fits(),
                    used: limit.capacity().saturating_sub(outcome.remaining()),
                    remaining: outcome.remaining(),
                    reset_after_ms: millis_up(outcome.reset_after()),
                    retry_after_ms: outcome
                        .retry_after()
                        .filter(|_| !outcome.fits())
                        .map(millis_up),
                }
            }),
        }
    }
}
