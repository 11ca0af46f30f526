//! What a policy makes of one request, rule by rule, and why: for the command and for the admin address.

mod told;
mod words;

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
    rules: Vec<RuleExplained>,
}

/// What one rule makes of it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct RuleExplained {
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
    limits: Vec<LimitExplained>,
}

/// How one limit stands.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct LimitExplained {
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
    now: Option<Counts>,
    /// What would have to happen for the request to fit. Null if it does, or need not.
    to_pass: Option<String>,
}

/// The counts in the window.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Counts {
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
    pub fn of(policy: &Policy, request: &Request<'_>, ruling: &Ruling) -> Self {
        let decision = ruling.decision();
        let mut place = 0..;
        let of_domain = policy.rules().iter().filter(|rule| rule.domain() == request.domain());
        let rules_of_domain = of_domain.count().max(1);
        let rules = policy.explain(request).enumerate().map(|(nth, (rule, fit))| {
            let explained = match fit {
                Ok(one) => RuleExplained::applies(&one, place.next().unwrap_or_default(), ruling),
                Err(misfit) => RuleExplained::does_not_apply(rule, &misfit),
            };
            RuleExplained { descriptor: nth / rules_of_domain + 1, ..explained }
        });
        let path = routed_path(policy, request);
        let route = path.and_then(|path| policy.route_of(path)).map(str::to_owned);
        let retry_after = decision.retry_after().filter(|_| !decision.is_allowed());
        Self {
            rules: rules.collect(),
            allowed: decision.is_allowed(),
            degraded: decision.is_degraded(),
            summary: words::verdict(ruling),
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
    let mut unrouted = request.descriptors().iter().filter(|one| one.get("route").is_none());
    unrouted.find_map(|one| one.get("path"))
}

impl RuleExplained {
    fn does_not_apply(rule: &Rule, misfit: &NoMatchReason<'_>) -> Self {
        Self {
            rule: rule.name().to_owned(),
            descriptor: 1,
            applies: false,
            no_match_reason: Some(words::misfit(misfit)),
            by_override: None,
            missing_attribute: false,
            limits: Vec::new(),
        }
    }

    /// `place` is that of the match among those that apply.
    fn applies(one: &Match<'_>, place: usize, ruling: &Ruling) -> Self {
        let standing = |limit: &RuleLimit| {
            ruling.limits().find(|standing| {
                standing.matched() == place && standing.limit.index() == limit.index()
            })
        };
        let limits = one.limits().iter().zip(one.hits());
        let limits =
            limits.map(|(limit, hit)| LimitExplained::of(one, limit, &hit, standing(limit)));
        Self {
            rule: one.rule().name().to_owned(),
            descriptor: 1,
            applies: true,
            no_match_reason: None,
            by_override: one.active_override().map(|(nth, other)| override_name(nth, other)),
            missing_attribute: one.is_attribute_missing(),
            limits: limits.collect(),
        }
    }
}

impl LimitExplained {
    fn of(
        one: &Match<'_>,
        rule_limit: &RuleLimit,
        hit: &Hit<'_>,
        standing: Option<LimitStatus<'_>>,
    ) -> Self {
        // Without the store each instance has its part of the limit.
        let limit = standing.map_or(rule_limit, |standing| standing.limit).limit();
        let quota = limit.quota();
        let identity = one.identity().map(|(name, value)| (name.to_owned(), value.to_string()));
        Self {
            name: rule_limit.policy_name().to_owned(),
            limit: words::limit(limit),
            max: quota.max(),
            window_ms: millis_up(quota.window()),
            observed: hit.veto == Veto::Never,
            joint: hit.veto == Veto::Jointly,
            cost: hit.cost,
            required: hit.required,
            charged_always: hit.charge == ChargeWhen::Always,
            key_values: if one.is_attribute_missing() {
                BTreeMap::new()
            } else {
                identity.collect()
            },
            key: hit.key.to_string(),
            to_pass: standing.and_then(|standing| words::to_pass(&standing, hit.required)),
            now: standing.map(|standing| {
                let outcome = standing.outcome;
                Counts {
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
