//! The JSON of responses to calls that succeed.

use serde::Serialize;
use slidegate::{LimitStatus, Reason};

use crate::decide::call::DecidedCall;
use crate::durations::ceil_millis;

/// The decision. The fields outside `limits` describe the limit that determined it. They are null if no rule applies,
/// or if no limit was evaluated, because the rules that apply evaluate only a sample of the requests.
#[derive(Serialize)]
pub struct CheckResponse<'r> {
    /// Whether the request is allowed: true with status 200. A denial has the `deny_status` of its rule, 429 by
    /// default, or 503 if the store is unavailable.
    allowed: bool,
    /// The reason why the request is denied. Null if it is allowed.
    reason: Option<Reason>,
    /// The rule that determined the decision.
    rule: Option<&'r str>,
    /// The limit that determined the decision. On a denial, the denying limit with the longest wait.
    limit: Option<LimitBody<'r>>,
    /// Number of units that are left in the limit.
    remaining: Option<u64>,
    /// Milliseconds until the limit is completely unused.
    reset_after_ms: Option<u64>,
    /// Milliseconds until the request fits the limit. Null if the request fits now, if it can never fit, or if the limit
    /// bounds the requests in flight, whose end is not known.
    retry_after_ms: Option<u64>,
    /// Whether the store was unavailable, so that the decision is an estimate.
    degraded: bool,
    /// The status of every limit of every rule that applies. Omits limits that were not evaluated, because a cached
    /// denial already decided, or because their rule evaluates only a sample of the requests.
    limits: Vec<LimitStatusBody<'r>>,
    /// The permit of the request, which `/v1/release` and `/v1/renew` accept. Only in the response to an allowed request to
    /// which a limit with `concurrent` applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    permit: Option<&'r str>,
    /// Milliseconds after which the permit expires, unless it is renewed. Only with `permit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    permit_ttl_ms: Option<u64>,
}

/// The decision on a request for a reservation.
#[derive(Serialize)]
pub struct ReserveResponse<'r> {
    #[serde(flatten)]
    decision: CheckResponse<'r>,
    /// The token with which `/v1/settle` corrects the charge. Null if the request is denied.
    reservation: Option<&'r str>,
    /// Milliseconds until the token expires. Null if the request is denied.
    expires_in_ms: Option<u64>,
}

/// The status of one limit.
#[derive(Serialize)]
struct LimitStatusBody<'r> {
    /// The rule's name.
    rule: &'r str,
    /// The name and the quota of the limit.
    limit: LimitBody<'r>,
    /// The algorithm that enforces the limit.
    algorithm: &'static str,
    /// Whether the request fits this limit.
    allowed: bool,
    /// Whether the rule only observes, and never denies.
    observed: bool,
    /// Number of units that are left in the limit.
    remaining: u64,
    /// Milliseconds until the limit is completely unused.
    reset_after_ms: u64,
    /// Milliseconds until the request fits the limit. Null if the request fits now, or if it can never fit.
    retry_after_ms: Option<u64>,
}

/// The name and the quota of a limit: a maximum number of units per window.
#[derive(Serialize)]
struct LimitBody<'r> {
    /// The name of the limit, unique in its rule.
    name: &'r str,
    /// Maximum number of units per window.
    max: u64,
    /// The length of the window in milliseconds.
    window_ms: u64,
}

impl<'r> CheckResponse<'r> {
    /// Creates the response to a call.
    pub fn new(decided: &'r DecidedCall) -> Self {
        let DecidedCall { decision, permit, .. } = decided;
        let binding = decision.binding().map(LimitStatusBody::from_status);
        Self {
            allowed: decision.is_allowed(),
            reason: decision.reason(),
            rule: binding.as_ref().map(|limit_status| limit_status.rule),
            remaining: binding.as_ref().map(|limit_status| limit_status.remaining),
            reset_after_ms: binding.as_ref().map(|limit_status| limit_status.reset_after_ms),
            retry_after_ms: binding.as_ref().and_then(|limit_status| limit_status.retry_after_ms),
            limit: binding.map(|limit_status| limit_status.limit),
            degraded: decision.is_degraded(),
            limits: decision.limits().map(LimitStatusBody::from_status).collect(),
            permit: permit.as_ref().map(|permit| &*permit.text),
            permit_ttl_ms: permit.as_ref().map(|permit| ceil_millis(permit.ttl)),
        }
    }
}

impl<'r> LimitStatusBody<'r> {
    fn from_status(limit_status: LimitStatus<'r>) -> Self {
        let (limit, outcome) = (limit_status.limit(), limit_status.outcome());
        let quota = limit.quota();
        let wait = limit_status.retry_after().filter(|_| !outcome.fits());
        let rule = limit_status.rule_name();
        let limit_body = LimitBody {
            name: limit_status.id(),
            max: quota.max(),
            window_ms: ceil_millis(limit.window()),
        };
        Self {
            rule,
            limit: limit_body,
            algorithm: limit.algorithm().name(),
            allowed: outcome.fits(),
            observed: limit_status.is_observed(),
            remaining: outcome.remaining(),
            reset_after_ms: ceil_millis(outcome.reset_after()),
            retry_after_ms: wait.map(ceil_millis),
        }
    }
}

impl<'r> ReserveResponse<'r> {
    /// Creates the response to a call.
    pub fn new(decided: &'r DecidedCall) -> Self {
        let token = decided.reservation.as_ref();
        Self {
            decision: CheckResponse::new(decided),
            reservation: token.map(|token| &*token.text),
            expires_in_ms: token.map(|token| ceil_millis(token.ttl)),
        }
    }
}
