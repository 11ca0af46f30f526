//! A ruling as response headers: (name, value) pairs, one serializer per style.
//!
//! The style is that of draft-ietf-httpapi-ratelimit-headers-10: structured fields (RFC 9651), Lists of
//! Strings with parameters. Later drafts may rename the parameters; this is the only place to change.

use std::fmt::Write;
use std::time::Duration;

use crate::gate::{Ruling, Standing};

/// The largest Integer of a structured field.
const LARGEST: u64 = 999_999_999_999_999;

/// `RateLimit-Policy` with every limit that applies, and `RateLimit` with the one that binds. Empty if
/// no rule applies.
///
/// ```
/// use slidegate::{headers, Descriptor, Gate, MemoryStore, Policy, Request};
///
/// let policy = Policy::from_yaml("rules: [{ name: all, limits: [100/min] }]")?;
/// let gate = Gate::new(policy, MemoryStore::new());
/// let ruling = gate.check_now(&Request::new("default", Descriptor::new([])));
/// let headers = headers::ietf(&ruling);
/// assert_eq!(headers[0], ("ratelimit-policy", "\"all\";q=100;w=60".to_owned()));
/// assert!(headers[1].1.starts_with("\"all\";r=99;t="));
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
pub fn ietf(ruling: &Ruling) -> Vec<(&'static str, String)> {
    let Some(binding) = ruling.binding() else {
        return Vec::new();
    };
    let mut policies = String::new();
    for standing in ruling.limits() {
        if !policies.is_empty() {
            policies.push_str(", ");
        }
        write_policy(&mut policies, &standing);
    }
    let wait = match ruling.decision().is_allowed() {
        true => Some(binding.outcome.reset_after()),
        false => binding.outcome.retry_after(),
    };
    let mut limit =
        format!("\"{}\";r={}", binding.policy_name(), binding.outcome.remaining().min(LARGEST));
    if let Some(wait) = wait {
        push(&mut limit, "t", seconds_up(wait));
    }
    vec![("ratelimit-policy", policies), ("ratelimit", limit)]
}

/// One item of `RateLimit-Policy`. Names need no escape: they are of `[a-z0-9._-]`.
fn write_policy(policies: &mut String, standing: &Standing<'_>) {
    let quota = standing.limit.limit().quota();
    policies.push('"');
    policies.push_str(&standing.policy_name());
    policies.push('"');
    push(policies, "q", quota.max());
    // The draft has no windows under a second.
    if quota.window() >= Duration::from_secs(1) {
        push(policies, "w", seconds_up(quota.window()));
    }
}

fn push(item: &mut String, parameter: &str, value: u64) {
    // Writing into a string cannot fail.
    let _ = write!(item, ";{parameter}={}", value.min(LARGEST));
}

/// `Retry-After`, for a denial that ends: whole seconds, rounded up.
pub fn retry_after(ruling: &Ruling) -> Option<(&'static str, String)> {
    let decision = ruling.decision();
    if decision.is_allowed() {
        return None;
    }
    Some(("retry-after", seconds_up(decision.retry_after()?).to_string()))
}

/// Whole seconds, rounded up.
fn seconds_up(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}
