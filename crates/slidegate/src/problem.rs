//! Denials as problem details (RFC 9457), with the problem types that are defined by the draft of the rate-limit
//! headers.

use serde::Serialize;

use crate::decision::{Decision, LimitStatus};
use crate::reason::{ProblemType, Reason};

/// The body of a denial. Serialize it as JSON, with the media type [`CONTENT_TYPE`](Self::CONTENT_TYPE).
///
/// ```
/// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
/// use slidegate::headers::Problem;
///
/// let policy = Policy::from_yaml("rules: [{ name: per-tenant, limits: [0/min] }]")?;
/// let gate = Gate::new(policy, MemoryStore::new());
/// let decision = gate.check(&Request::new("default", Descriptor::new([])));
/// let problem = Problem::from_decision(&decision);
/// assert_eq!(problem.map(|problem| problem.status()), Some(429));
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// URI of the problem type.
    r#type: &'static str,
    /// Short description of the problem type.
    title: &'static str,
    /// HTTP status of the response.
    status: u16,
    /// Reason for the denial.
    reason: Reason,
    /// Names of the limits that deny the request.
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<String>,
}

impl Problem {
    /// Media type of problem details in JSON.
    pub const CONTENT_TYPE: &str = "application/problem+json";

    /// Creates the problem details of a denial. Returns `None` if the request was allowed.
    ///
    /// The problem has the [type](ProblemType) of the binding limit's rule and the names of the limits that deny the request,
    /// or it is *temporary reduced capacity*, without names, if the store is unavailable and a rule denies requests in that
    /// case.
    pub fn from_decision(decision: &Decision<'_>) -> Option<Self> {
        let reason = decision.reason()?;
        if reason == Reason::StoreUnavailable {
            return Some(Self::REDUCED_CAPACITY);
        }
        let violated = decision.limits().filter(LimitStatus::is_denying);
        let violated_policies = violated.map(|status| status.policy_name().to_owned()).collect();
        let problem_type =
            decision.binding().map(|binding| binding.problem_type()).unwrap_or_default();
        let problem = match problem_type {
            ProblemType::QuotaExceeded => Self::QUOTA_EXCEEDED,
            ProblemType::AbnormalUsageDetected => Self::ABNORMAL_USAGE,
        };
        Some(Self { violated_policies, reason, status: decision.status(), ..problem })
    }

    /// Returns the HTTP status of the response, from [`Decision::status`].
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns the problem details with another status, for a response that is sent with that status.
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    const QUOTA_EXCEEDED: Self = Self {
        r#type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Quota exceeded",
        status: 429,
        reason: Reason::LimitExceeded,
        violated_policies: Vec::new(),
    };

    const ABNORMAL_USAGE: Self = Self {
        r#type: "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
        title: "Abnormal usage detected",
        status: 429,
        reason: Reason::Banned,
        violated_policies: Vec::new(),
    };

    const REDUCED_CAPACITY: Self = Self {
        r#type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        title: "Temporary reduced capacity",
        status: 503,
        reason: Reason::StoreUnavailable,
        violated_policies: Vec::new(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::json;

    use crate::test_util::{self, ScriptedOutcome};

    const TEST_POLICY: &str = "
rules:
  - { name: per-tenant, limits: [100/min] }
  - { name: burst, limits: [10/s, 50/min] }
";

    #[test]
    fn problem_lists_violated_limits() {
        let denied = ScriptedOutcome::Denied {
            remaining: 0,
            reset_us: 60_000_000,
            retry_after_us: Some(5_000_000),
        };
        let fits = ScriptedOutcome::Fits { remaining: 1, reset_us: 1 };
        let problem = |outcomes: [ScriptedOutcome; 3]| {
            Problem::from_decision(&test_util::scripted_decision(TEST_POLICY, &outcomes)).unwrap()
        };
        let text = serde_json::to_string(&problem([denied, fits, fits])).unwrap();
        let expected = concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
            r#""title":"Quota exceeded","status":429,"reason":"limit_exceeded","#,
            r#""violated-policies":["per-tenant"]}"#
        );
        assert_eq!(text, expected);
        let several = serde_json::to_value(problem([denied, fits, denied])).unwrap();
        assert_eq!(several["violated-policies"], json!(["per-tenant", "burst.1m"]));
    }

    #[test]
    fn rule_of_binding_limit_chooses_problem_type() {
        let policy = "
rules:
  - { name: banned, limits: denied, problem: abnormal-usage-detected }
  - { name: plain, limits: [10/s], problem: quota-exceeded }
";
        let never = ScriptedOutcome::Denied { remaining: 0, reset_us: 0, retry_after_us: None };
        let denied = ScriptedOutcome::Denied { remaining: 0, reset_us: 1, retry_after_us: Some(1) };
        let fits = ScriptedOutcome::Fits { remaining: 1, reset_us: 1 };
        for (outcomes, expected) in [
            ([never, fits], "abnormal-usage-detected"),
            ([never, denied], "abnormal-usage-detected"),
            ([fits, denied], "quota-exceeded"),
        ] {
            let decision = test_util::scripted_decision(policy, &outcomes);
            let problem = Problem::from_decision(&decision).unwrap();
            assert!(problem.r#type.ends_with(expected), "{problem:?}");
            assert_eq!(problem.status, 429);
        }
    }

    #[test]
    fn allowed_request_has_no_problem() {
        let fits = [ScriptedOutcome::Fits { remaining: 0, reset_us: 1 }; 3];
        assert_eq!(Problem::from_decision(&test_util::scripted_decision(TEST_POLICY, &fits)), None);
    }

    #[test]
    fn unavailable_store_problem_is_reduced_capacity() {
        let policy = "rules: [{ name: a, limits: [1/s], on_store_error: deny }]";
        let decision = test_util::decision_with_unavailable_store(policy);
        assert_eq!(
            serde_json::to_value(Problem::from_decision(&decision).unwrap()).unwrap(),
            json!({
                "type":
                    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                "title": "Temporary reduced capacity",
                "status": 503,
                "reason": "store_unavailable",
                "violated-policies": []
            })
        );
    }

    #[test]
    fn longest_wait_determines_denial_reason_and_status() {
        let policy = "
rules:
  - { name: short, limits: [10/s], deny_status: 420 }
  - { name: long, limits: [10/min], deny_status: 409 }
  - { name: plain, limits: [10/h] }
";
        let denied = |wait_s: u64| {
            let us = 1_000_000 * wait_s;
            ScriptedOutcome::Denied { remaining: 0, reset_us: us, retry_after_us: Some(us) }
        };
        let never = ScriptedOutcome::Denied { remaining: 10, reset_us: 0, retry_after_us: None };
        let fits = ScriptedOutcome::Fits { remaining: 1, reset_us: 1 };
        for (outcomes, status, reason) in [
            ([denied(1), fits, fits], 420, Reason::LimitExceeded),
            ([denied(1), denied(2), fits], 409, Reason::LimitExceeded),
            ([denied(1), denied(2), denied(3)], 429, Reason::LimitExceeded),
            ([never, denied(2), denied(3)], 420, Reason::CostExceedsMax),
        ] {
            let decision = test_util::scripted_decision(policy, &outcomes);
            assert_eq!(
                (decision.status(), decision.reason()),
                (status, Some(reason)),
                "{outcomes:?}"
            );
            assert_eq!(
                Problem::from_decision(&decision).map(|problem| problem.status()),
                Some(status)
            );
        }
        let allowed = test_util::scripted_decision(policy, &[fits; 3]);
        assert_eq!((allowed.status(), allowed.reason()), (200, None));
    }

    #[test]
    fn degraded_denial_problem_is_quota_exceeded() {
        let decision =
            test_util::decision_with_unavailable_store("rules: [{ name: a, limits: [0/s] }]");
        assert!(decision.is_degraded());
        assert_eq!(Problem::from_decision(&decision).map(|problem| problem.status()), Some(429));
    }
}
