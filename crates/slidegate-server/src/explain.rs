//! Explains the decision about one request, rule by rule, for `slidegate explain` and the admin listener.

mod describe;
mod display;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use slidegate::policy::{Match, NoMatchReason, OnStoreError, Rule, RuleLimit};
use slidegate::store::{ChargeWhen, Hit, Veto};
use slidegate::{Decision, LimitStatus, Policy, Request};
use tokio_util::sync::CancellationToken;

use crate::bounds::MAX_EXPLAINED_RULES;
use crate::decide::Service;
use crate::decide::error::{CallError, CallErrorKind};
use crate::durations::ceil_millis;
use crate::policy::description::override_label;

/// The explanation of the decision about one request.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Whether the request would be allowed now.
    allowed: bool,
    /// Whether the store was unavailable, so that the decision is an estimate.
    degraded: bool,
    /// A sentence with the decision and the limit that determined the decision.
    summary: String,
    /// Milliseconds until the request is allowed, if no other request is charged. Null if the request is allowed now,
    /// if it can never be allowed, or if the wait is unknown.
    retry_after_ms: Option<u64>,
    /// The route of the policy that matches the request's path. Null if no route matches.
    route: Option<String>,
    /// Whether the policy has routes, and the request's path matches none of them.
    route_unmatched: bool,
    /// The explanations of all rules of the domain, in the order of the policy. If the request has several descriptors,
    /// the list repeats the rules for each descriptor.
    rules: Vec<RuleExplanation>,
}

/// The explanation of one rule for one descriptor of the request.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct RuleExplanation {
    rule: String,
    /// The position of the descriptor in the request, from 1.
    descriptor: usize,
    applies: bool,
    /// The reason why the rule does not apply. Null if it applies.
    no_match_reason: Option<String>,
    /// The override of the rule that applies to the request. Null if no override applies.
    #[serde(rename = "override")]
    by_override: Option<String>,
    /// The overrides of the rule that are not used because of an attribute that is missing or does not match. If an
    /// override applies, contains only the overrides before it whose attribute is missing.
    unused_overrides: Vec<UnusedOverrides>,
    /// Whether the rule denies the request because an attribute by which the rule counts is missing.
    missing_attribute: bool,
    /// The limits of the rule that apply to the request. A rule that applies without any limit allows every request.
    limits: Vec<LimitExplanation>,
}

/// The overrides that are not used because of one attribute, which is missing or does not match their conditions.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct UnusedOverrides {
    attribute: String,
    /// The value of the attribute, which does not match their `when`. Null if the attribute is missing.
    value: Option<String>,
    overrides: Vec<String>,
}

/// The explanation of one limit of a rule that applies.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct LimitExplanation {
    /// The name of the limit in rate limit headers: the name of its rule, or `rule.limit` if the rule has several
    /// limits.
    name: String,
    /// The quota and the algorithm, such as `10/1s sliding_log`.
    limit: String,
    max: u64,
    window_ms: u64,
    /// Whether the rule of the limit only observes, and never denies.
    observed: bool,
    /// Whether the rule has the mode `jointly`: the request is denied only if it fits none of the limits in this mode.
    joint: bool,
    /// Number of units that the request costs in this limit.
    cost: u64,
    /// Number of units that must be free for the request to fit this limit.
    required: u64,
    /// Whether the cost is charged in every case, even if the request is denied and the counter then exceeds max.
    charged_always: bool,
    /// Name and value of every attribute that the rule counts by.
    key_values: BTreeMap<String, String>,
    /// The key of the limit's counter in the store.
    key: String,
    /// The state of the counter. Null if the counter was not read, because the store is unavailable and the rule allows
    /// requests without the store.
    now: Option<CounterState>,
    /// The condition under which the request will fit this limit. Null if the request fits now, or if the counter was
    /// not read.
    to_pass: Option<String>,
}

/// The state of the counter of one limit.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct CounterState {
    fits: bool,
    /// Number of units that are used.
    used: u64,
    remaining: u64,
    /// Milliseconds until no units are used, if no other request is charged.
    reset_after_ms: u64,
    /// Milliseconds until the request fits the limit. Null if the request fits now, or if it can never fit.
    retry_after_ms: Option<u64>,
}

/// The status of each limit of a decision, by the index of the match and the index of the limit.
type LimitStatuses<'d> = HashMap<(usize, usize), LimitStatus<'d>>;

impl Service {
    /// Explains the decision that a check would return. Charges and records nothing. Takes seconds of CPU with large
    /// requests and policies, so it must run on a thread of its own. If `cancelled` is cancelled, it ends early, and
    /// the explanation is incomplete.
    ///
    /// # Errors
    /// If the request has several descriptors, and their explanation would have more than [`MAX_EXPLAINED_RULES`]
    /// rules.
    pub async fn explain(
        &self,
        request: &Request<'_>,
        cancelled: &CancellationToken,
    ) -> Result<Explanation, CallError> {
        let policy = self.gate.policy();
        let domain_rules = policy.rules().iter().filter(|rule| rule.domain() == request.domain());
        let descriptors = request.descriptors().len();
        let rules = domain_rules.count() * descriptors;
        if descriptors > 1 && rules > MAX_EXPLAINED_RULES {
            let detail = format!(
                "{descriptors} descriptors have {rules} rules, and at most {MAX_EXPLAINED_RULES} can be explained; send fewer descriptors in one request"
            );
            return Err(CallError::new(CallErrorKind::Invalid, detail));
        }
        let decision = self.gate.decide_async(&policy.apply(request).into_peek()).await;
        Ok(Explanation::from_decision(&policy, request, &decision, cancelled))
    }
}

impl Explanation {
    /// Creates the explanation of the decision `decision` about a request. The decision must come from a gate with this
    /// policy, and from a check that charged nothing. If the caller cancels the explanation, it ends early, and lacks
    /// rules.
    pub fn from_decision(
        policy: &Policy,
        request: &Request<'_>,
        decision: &Decision<'_>,
        cancelled: &CancellationToken,
    ) -> Self {
        let statuses: LimitStatuses<'_> = decision
            .limits()
            .map(|status| ((status.match_index(), status.limit_index()), status))
            .collect();
        let domain_rules = policy.rules().iter().filter(|rule| rule.domain() == request.domain());
        let rules_per_descriptor = domain_rules.count().max(1);
        let path = path_for_route_lookup(policy, request);
        let has_path = path.is_some();
        let route = path.and_then(|path| policy.route_of(&path)).map(str::to_owned);
        let route_unmatched = has_path && route.is_none();
        let mut rules = Vec::new();
        let mut matches = 0;
        let mut denying_without_store = None;
        for (rule, result) in policy.explain(request) {
            if cancelled.is_cancelled() {
                break;
            }
            let index = rules.len() / rules_per_descriptor;
            let explanation = match result {
                Ok(matched) => {
                    if rule.on_store_error() == OnStoreError::Deny && matched.is_enforced() {
                        denying_without_store.get_or_insert(rule.name());
                    }
                    matches += 1;
                    let explanation = RuleExplanation::from_match(&matched, matches - 1, &statuses);
                    let descriptor = request.descriptors().get(index);
                    let is_overridden = matched.active_override().is_some();
                    let unused_overrides = descriptor.map(|descriptor| {
                        describe::unused_overrides(policy, rule, descriptor, is_overridden)
                    });
                    RuleExplanation {
                        unused_overrides: unused_overrides.unwrap_or_default(),
                        ..explanation
                    }
                }
                Err(reason) => {
                    RuleExplanation::from_no_match_reason(rule, &reason, route_unmatched)
                }
            };
            rules.push(RuleExplanation { descriptor: index + 1, ..explanation });
        }
        let retry_after = decision.retry_after().filter(|_| !decision.is_allowed());
        Self {
            rules,
            allowed: decision.is_allowed(),
            degraded: decision.is_degraded(),
            summary: describe::describe_decision(decision, denying_without_store),
            retry_after_ms: retry_after.map(ceil_millis),
            route_unmatched,
            route,
        }
    }

    /// Returns `true` if the request's domain has at least one rule.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }
}

/// Returns the path for which the policy looks up a route. This is the normalized `path` of the first descriptor that
/// has a `path` and no attribute `route`. Returns `None` if there is no such descriptor, or if the policy has no routes.
fn path_for_route_lookup<'r>(policy: &Policy, request: &'r Request<'_>) -> Option<Cow<'r, str>> {
    policy.routes().next()?;
    let mut unrouted =
        request.descriptors().iter().filter(|descriptor| descriptor.get("route").is_none());
    let path = unrouted.find_map(|descriptor| descriptor.get("path"))?;
    Some(policy.normalize_value(request.domain(), "path", path))
}

impl RuleExplanation {
    fn from_no_match_reason(
        rule: &Rule,
        reason: &NoMatchReason<'_>,
        is_route_unmatched: bool,
    ) -> Self {
        Self {
            rule: rule.name().to_owned(),
            descriptor: 1,
            applies: false,
            no_match_reason: Some(describe::describe_no_match(reason, is_route_unmatched)),
            by_override: None,
            unused_overrides: Vec::new(),
            missing_attribute: false,
            limits: Vec::new(),
        }
    }

    /// Creates the explanation of a rule that applies. `match_index` is the position of this match among all matches of
    /// the request.
    fn from_match(matched: &Match<'_>, match_index: usize, statuses: &LimitStatuses<'_>) -> Self {
        let limits = matched.limits().iter().zip(matched.hits());
        let limits = limits.filter_map(|(limit, hit)| {
            let status = statuses.get(&(match_index, limit.index())).copied();
            // A block has a status only while the key is blocked. Otherwise it is not shown.
            let is_shown = status.is_some() || !limit.is_block_limit();
            is_shown
                .then(|| LimitExplanation::from_limit_hit_and_status(matched, limit, &hit, status))
        });
        Self {
            rule: matched.rule().name().to_owned(),
            descriptor: 1,
            applies: true,
            no_match_reason: None,
            by_override: matched
                .active_override()
                .map(|(index, other)| override_label(index, other)),
            unused_overrides: Vec::new(),
            missing_attribute: matched.is_attribute_missing(),
            limits: limits.collect(),
        }
    }
}

impl LimitExplanation {
    fn from_limit_hit_and_status(
        matched: &Match<'_>,
        rule_limit: &RuleLimit,
        hit: &Hit<'_>,
        limit_status: Option<LimitStatus<'_>>,
    ) -> Self {
        // Shows the limit that was enforced: without the store, each instance enforces a share of the limit of the
        // rule.
        let limit = limit_status.map_or(rule_limit.limit(), |limit_status| limit_status.limit());
        let quota = limit.quota();
        let identity = matched.identity().map(|(name, value)| (name.to_owned(), value.to_string()));
        Self {
            name: rule_limit.policy_name().to_owned(),
            limit: describe::describe_limit(rule_limit, limit),
            max: quota.max(),
            window_ms: ceil_millis(limit.window()),
            observed: hit.veto == Veto::Never,
            joint: hit.veto == Veto::Jointly,
            cost: hit.cost,
            required: hit.required,
            charged_always: hit.charge == ChargeWhen::Always,
            key_values: if matched.is_attribute_missing() {
                BTreeMap::new()
            } else {
                identity.collect()
            },
            key: hit.key.to_string(),
            to_pass: limit_status.and_then(|limit_status| {
                describe::describe_requirement(&limit_status, hit.required)
            }),
            now: limit_status.map(|limit_status| {
                let outcome = limit_status.outcome();
                CounterState {
                    fits: outcome.fits(),
                    used: limit.capacity().saturating_add_signed(-outcome.free()),
                    remaining: outcome.remaining(),
                    reset_after_ms: ceil_millis(limit_status.reset_after()),
                    retry_after_ms: outcome
                        .retry_after()
                        .filter(|_| !outcome.fits())
                        .map(ceil_millis),
                }
            }),
        }
    }
}
