//! Reasons for denials, with their names in JSON and metrics, and the problem types that rules choose.

use std::fmt;

use serde::Serialize;

/// The reason for a denial, as returned by [`Decision::reason`](crate::Decision::reason). The binding limit determines it,
/// unless the store is unavailable, the call cannot wait, or its idempotency key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The limit is exhausted; the request fits later.
    LimitExceeded,
    /// The maximum number of requests is in flight. The time at which one of them ends is not known.
    ConcurrencyExceeded,
    /// The cost exceeds the capacity of the limit. The request never fits, but it may fit with a smaller cost.
    CostExceedsMax,
    /// The key has exceeded a limit of a rule with `block`, and is denied until the block ends.
    Blocked,
    /// The limit is 0; no request ever fits.
    Banned,
    /// The request lacks an attribute that a rule counts by, and the rule denies such requests.
    MissingAttribute,
    /// The store is unavailable, and a rule denies all requests until it is available again.
    StoreUnavailable,
    /// The call could have waited for the limit, but too many calls are waiting already; see
    /// [`WaitOptions`](crate::wait::WaitOptions).
    WaitQueueFull,
    /// The idempotency key belongs to an admitted call with another request. Nothing was charged.
    IdempotencyKeyReused,
    /// The first call with the idempotency key is still being decided. Nothing was charged; repeat the call.
    CallInProgress,
    /// The request has an idempotency key and refunds units. Refunds cannot be repeated safely, so nothing was changed.
    RefundWithIdempotencyKey,
}

/// The problem type of a denial by a limit, as the draft of the rate-limit headers defines it. A rule chooses the type in its
/// field `problem`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "policy", derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ProblemType {
    /// The requests exceed a quota.
    #[default]
    QuotaExceeded,
    /// The requests look unintended or malicious. Most rules with this type deny every request.
    AbnormalUsageDetected,
}

impl Reason {
    /// Returns the name of the reason in JSON, such as `limit_exceeded`.
    pub fn name(self) -> &'static str {
        match self {
            Self::LimitExceeded => "limit_exceeded",
            Self::ConcurrencyExceeded => "concurrency_exceeded",
            Self::CostExceedsMax => "cost_exceeds_max",
            Self::Blocked => "blocked",
            Self::Banned => "banned",
            Self::MissingAttribute => "missing_attribute",
            Self::StoreUnavailable => "store_unavailable",
            Self::WaitQueueFull => "wait_queue_full",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::CallInProgress => "call_in_progress",
            Self::RefundWithIdempotencyKey => "refund_with_idempotency_key",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_display_equals_json() {
        for reason in [
            Reason::LimitExceeded,
            Reason::ConcurrencyExceeded,
            Reason::CostExceedsMax,
            Reason::Blocked,
            Reason::Banned,
            Reason::MissingAttribute,
            Reason::StoreUnavailable,
            Reason::WaitQueueFull,
            Reason::IdempotencyKeyReused,
            Reason::CallInProgress,
            Reason::RefundWithIdempotencyKey,
        ] {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.to_string());
        }
    }
}
