//! The result of a request, and the result of each of its limits, for metrics, top keys, logs and traces.

use std::time::Duration;

use slidegate::store::Veto;
use slidegate::{Decision, LimitStatus, Reason};

/// The result of a request, for metrics and traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestResult {
    Allowed,
    Denied,
    /// The request was denied because the store is unavailable and a rule denies requests in that case.
    StoreUnavailable,
    /// The request is invalid.
    Invalid,
    /// The server failed to decide about the request.
    Error,
}

/// A response, with the result and the wait that metrics record. The status alone does not determine the result, since
/// a proxy may choose the status of a denial.
pub struct ResponseWithResult<R> {
    pub response: R,
    pub result: RequestResult,
    /// The time for which the request waited for capacity.
    pub waited: Duration,
}

/// A response that metrics and traces can classify.
pub trait ClassifyResponse {
    /// Returns the result under which metrics count the response.
    fn request_result(&self) -> RequestResult;

    /// Returns the status of the response, after the name of the span attribute for the statuses of its protocol.
    fn span_status_attribute(&self) -> (&'static str, i64);

    /// Returns the time for which the request waited for capacity.
    fn wait_time(&self) -> Duration;
}

impl RequestResult {
    /// All results, in the order of the variants. A variant that is cast to an integer is its index in this array.
    pub const ALL: [Self; 5] =
        [Self::Allowed, Self::Denied, Self::StoreUnavailable, Self::Invalid, Self::Error];

    /// Returns the name of the result, which is the value of the label `result`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::StoreUnavailable => "store_unavailable",
            Self::Invalid => "invalid",
            Self::Error => "error",
        }
    }
}

/// Returns the result that metrics record for the response to a decision.
pub fn request_result_of_decision(decision: &Decision<'_>) -> RequestResult {
    if decision.is_allowed() {
        RequestResult::Allowed
    } else if decision.reason() == Some(Reason::StoreUnavailable) {
        RequestResult::StoreUnavailable
    } else {
        RequestResult::Denied
    }
}

/// The result of one limit for a request. The decision about the request, which depends on all limits, may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitResult {
    /// The limit has sufficient capacity, and the request was allowed.
    Allowed,
    /// The request was allowed, but more than 80 % of the limit is used.
    Near,
    /// The limit has insufficient capacity, and the request was denied.
    Denied,
    /// The limit has insufficient capacity, but does not deny the request. Either its rule only observes, or the limit
    /// is joint: it denies only if all joint limits are exceeded, and another one has capacity.
    Observed,
}

impl LimitResult {
    /// Returns the result of a limit. `is_allowed` is the decision about the request. Returns `None` for a refund. Also
    /// returns `None` if the limit has sufficient capacity, but another limit denied the request.
    pub fn from_status(status: &LimitStatus<'_>, is_allowed: bool) -> Option<Self> {
        if status.is_refund() {
            return None;
        }
        let fits = status.fits();
        match status.veto() {
            Veto::Alone if !fits => Some(Self::Denied),
            // The request is allowed, so another joint limit has capacity.
            Veto::Jointly if !fits && is_allowed => Some(Self::Observed),
            Veto::Jointly if !fits => Some(Self::Denied),
            Veto::Never if !fits => Some(Self::Observed),
            _ if !is_allowed => None,
            _ if is_limit_nearly_used_up(status) => Some(Self::Near),
            _ => Some(Self::Allowed),
        }
    }
}

fn is_limit_nearly_used_up(status: &LimitStatus<'_>) -> bool {
    status.remaining().saturating_mul(5) < status.limit().capacity()
}

#[cfg(test)]
mod tests {
    use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, Request};

    use super::*;

    const TEST_POLICY: &str = "
rules:
  - { name: narrow, limits: [10/h], algorithm: sliding_log }
  - { name: watched, limits: [3/h], algorithm: sliding_log, mode: observe }
";

    #[test]
    fn each_limit_of_request_has_own_result() {
        let policy = Policy::from_yaml(TEST_POLICY).unwrap();
        let gate = Gate::new(policy, MemoryStore::with_clock(ManualClock::default(), 10));
        let next = || {
            let decision = gate.check(&Request::new("default", Descriptor::new([])));
            let allowed = decision.is_allowed();
            let results =
                decision.limits().map(|status| LimitResult::from_status(&status, allowed));
            <[_; 2]>::try_from(results.collect::<Vec<_>>()).unwrap()
        };
        use LimitResult::{Allowed, Denied, Near, Observed};
        assert_eq!(next(), [Some(Allowed), Some(Allowed)]);
        assert_eq!(next(), [Some(Allowed), Some(Allowed)]);
        assert_eq!(next(), [Some(Allowed), Some(Near)]);
        assert_eq!(next(), [Some(Allowed), Some(Observed)]);
        for _ in 4..8 {
            assert_eq!(next()[0], Some(Allowed), "80 % are not above 80 %");
        }
        assert_eq!(next()[0], Some(Near));
        assert_eq!(next()[0], Some(Near));
        assert_eq!(next(), [Some(Denied), Some(Observed)]);
    }

    #[test]
    fn joint_rule_denies_only_if_all_limits_exceeded() {
        let rule = |name, max| {
            format!("{{ name: {name}, limits: [{max}/h], mode: jointly, algorithm: sliding_log }}")
        };
        let policy = format!("rules: [{}, {}]", rule("small", 1), rule("large", 2));
        let policy = Policy::from_yaml(&policy).unwrap();
        let gate = Gate::new(policy, MemoryStore::with_clock(ManualClock::default(), 10));
        let next = || {
            let decision = gate.check(&Request::new("default", Descriptor::new([])));
            let allowed = decision.is_allowed();
            let results =
                decision.limits().map(|status| LimitResult::from_status(&status, allowed));
            results.collect::<Vec<_>>()
        };
        assert_eq!(next(), [Some(LimitResult::Near), Some(LimitResult::Allowed)]);
        assert_eq!(next(), [Some(LimitResult::Observed), Some(LimitResult::Near)]);
        assert_eq!(next(), [Some(LimitResult::Denied), Some(LimitResult::Denied)]);
    }

    #[test]
    fn refund_has_no_limit_result() {
        let policy = Policy::from_yaml(TEST_POLICY).unwrap();
        let gate = Gate::new(policy, MemoryStore::with_clock(ManualClock::default(), 10));
        for cost in [3, 10] {
            let refund = Descriptor::new([]).cost(cost).as_refund();
            let decision = gate.check(&Request::new("default", refund));
            assert_eq!(decision.limits().count(), 2);
            assert!(
                decision.limits().all(|status| LimitResult::from_status(&status, true).is_none())
            );
        }
    }
}
