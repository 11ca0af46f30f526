//! A denial as problem details (RFC 9457), of the types that the draft of the rate-limit headers defines.

use serde::Serialize;

use crate::gate::{LimitStatus, Ruling};
use crate::reason::Reason;

/// What the body of a denial says: serialize it as JSON, of type [`CONTENT_TYPE`](Self::CONTENT_TYPE).
///
/// ```
/// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Problem, Request};
///
/// let policy = Policy::from_yaml("rules: [{ name: per-tenant, limits: [0/min] }]")?;
/// let gate = Gate::new(policy, MemoryStore::new());
/// let ruling = gate.check_now(&Request::new("default", Descriptor::new([])));
/// let problem = Problem::of(&ruling);
/// assert_eq!(problem.map(|problem| problem.status()), Some(429));
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Denial"))]
pub struct Problem {
    /// Which type of problem it is.
    r#type: &'static str,
    /// The type in words.
    title: &'static str,
    /// The status of the answer.
    status: u16,
    /// Why the request is denied.
    reason: Reason,
    /// The limits in which the request did not fit.
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<String>,
}

impl Problem {
    /// The media type.
    pub const CONTENT_TYPE: &str = "application/problem+json";

    /// Why a request was denied; none if it was allowed.
    ///
    /// It is *quota exceeded*, and names the limits in which the request did not fit. Or it is
    /// *temporary reduced capacity*, and names none: the store did not answer, and a rule says that this
    /// denies.
    pub fn of(ruling: &Ruling) -> Option<Self> {
        let reason = ruling.reason()?;
        if reason == Reason::StoreUnavailable {
            return Some(Self::REDUCED_CAPACITY);
        }
        let violated = ruling.limits().filter(LimitStatus::is_denying);
        let violated_policies = violated.map(|one| one.policy_name().to_owned()).collect();
        Some(Self { violated_policies, reason, status: ruling.status(), ..Self::QUOTA_EXCEEDED })
    }

    /// Returns the HTTP status: [`Ruling::status`].
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The same for an answer with another status, which both have to agree on.
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

    const POLICY: &str = "
rules:
  - { name: per-tenant, limits: [100/min] }
  - { name: burst, limits: [10/s, 50/min] }
";

    #[test]
    fn a_denial_names_the_limits_in_which_it_did_not_fit() {
        let denied = ScriptedOutcome::Denied {
            remaining: 0,
            reset_us: 60_000_000,
            wait_us: Some(5_000_000),
        };
        let fits = ScriptedOutcome::Fits { remaining: 1, reset_us: 1 };
        let of =
            |said: [ScriptedOutcome; 3]| Problem::of(&test_util::ruling(POLICY, &said)).unwrap();
        let text = serde_json::to_string(&of([denied, fits, fits])).unwrap();
        let expected = concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
            r#""title":"Quota exceeded","status":429,"reason":"limit_exceeded","#,
            r#""violated-policies":["per-tenant"]}"#
        );
        assert_eq!(text, expected);
        let several = serde_json::to_value(of([denied, fits, denied])).unwrap();
        assert_eq!(several["violated-policies"], json!(["per-tenant", "burst.1m"]));
    }

    #[test]
    fn what_is_allowed_is_no_problem() {
        let fits = [ScriptedOutcome::Fits { remaining: 0, reset_us: 1 }; 3];
        assert_eq!(Problem::of(&test_util::ruling(POLICY, &fits)), None);
    }

    #[test]
    fn a_denial_for_want_of_a_store_is_reduced_capacity_and_names_no_limit() {
        let policy = "rules: [{ name: a, limits: [1/s], on_store_error: deny }]";
        let ruling = test_util::without_store(policy);
        assert_eq!(
            serde_json::to_value(Problem::of(&ruling).unwrap()).unwrap(),
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
    fn a_denial_has_the_reason_and_the_status_of_the_limit_with_the_longest_wait() {
        let policy = "
rules:
  - { name: short, limits: [10/s], deny_status: 420 }
  - { name: long, limits: [10/min], deny_status: 409 }
  - { name: plain, limits: [10/h] }
";
        let denied = |wait_s: u64| {
            let us = 1_000_000 * wait_s;
            ScriptedOutcome::Denied { remaining: 0, reset_us: us, wait_us: Some(us) }
        };
        let never = ScriptedOutcome::Denied { remaining: 10, reset_us: 0, wait_us: None };
        let fits = ScriptedOutcome::Fits { remaining: 1, reset_us: 1 };
        for (said, status, reason) in [
            ([denied(1), fits, fits], 420, Reason::LimitExceeded),
            ([denied(1), denied(2), fits], 409, Reason::LimitExceeded),
            ([denied(1), denied(2), denied(3)], 429, Reason::LimitExceeded),
            ([never, denied(2), denied(3)], 420, Reason::CostExceedsMax),
        ] {
            let ruling = test_util::ruling(policy, &said);
            assert_eq!((ruling.status(), ruling.reason()), (status, Some(reason)), "{said:?}");
            assert_eq!(Problem::of(&ruling).map(|problem| problem.status()), Some(status));
        }
        let allowed = test_util::ruling(policy, &[fits; 3]);
        assert_eq!((allowed.status(), allowed.reason()), (200, None));
    }

    #[test]
    fn a_degraded_denial_by_a_limit_is_still_a_quota_exceeded() {
        let ruling = test_util::without_store("rules: [{ name: a, limits: [0/s] }]");
        assert!(ruling.decision().is_degraded());
        assert_eq!(Problem::of(&ruling).map(|problem| problem.status()), Some(429));
    }
}
