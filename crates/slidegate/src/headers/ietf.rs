//! The style of draft-ietf-httpapi-ratelimit-headers-11. The headers are structured fields (RFC 9651): lists of strings
//! with parameters.
//!
//! Later drafts may rename the parameters: proposals rename `r` to `a` and `t` to `w`. Therefore only this module
//! writes their names. Names of limits are quoted without escapes, because they consist of `[a-z0-9._-]`.

use super::{
    HeaderContext, HeaderText, RETRY_AFTER_HEADER_NAME, ceil_seconds, clamp_to_field_integer,
    decimal, visible_limits, window_seconds,
};
use crate::algorithm::Algorithm;
use crate::decision::{Decision, LimitStatus};

/// The names of the headers of this style, in the order in which they are written.
pub const HEADER_NAMES: [&str; 3] = ["ratelimit-policy", "ratelimit", RETRY_AFTER_HEADER_NAME];

/// The names of the parameters, each between the characters that separate it from its neighbours.
mod parameters {
    /// The quota of a limit.
    pub const QUOTA: &str = ";q=";
    /// The unit of the quota, if it is not requests.
    pub const QUOTA_UNIT: &str = ";qu=";
    /// The window of a limit, in seconds.
    pub const WINDOW: &str = ";w=";
    /// The units that remain.
    pub const REMAINING: &str = ";r=";
    /// The seconds until additional units are available.
    pub const SECONDS_UNTIL_UNITS: &str = ";t=";
}

/// Returns the value of the header `RateLimit-Policy`, which lists all limits that are shown to clients.
pub fn write_policies(decision: &Decision<'_>) -> HeaderText {
    let mut policies = HeaderText::default();
    for (index, status) in visible_limits(decision).enumerate() {
        if index > 0 {
            policies.push(", ");
        }
        push_policy(&mut policies, &status);
    }
    policies
}

/// Writes the header `RateLimit`, which describes the shown limit.
pub fn write_status(context: &HeaderContext<'_>, on_header: &mut impl FnMut(usize, &str)) {
    let mut limit = HeaderText::default();
    limit.push("\"").push(context.limit.policy_name()).push("\"");
    limit.push(parameters::REMAINING).push(decimal!(context.remaining_units()));
    if let Some(seconds) = seconds_until_units(context) {
        limit.push(parameters::SECONDS_UNTIL_UNITS).push(decimal!(seconds));
    }
    on_header(1, limit.as_str());
}

/// Returns the seconds until additional units are available, or `None` if the time is not known. A client with units left may
/// use them until then, and a client without units waits until then.
fn seconds_until_units(context: &HeaderContext<'_>) -> Option<u64> {
    let (limit, reset) = (context.limit.limit(), context.seconds_until_reset()?);
    if !context.decision.is_allowed() || context.limit.remaining() > 0 {
        return Some(reset);
    }
    match limit.algorithm() {
        // A fixed window frees all of its units at once, at the reset.
        Algorithm::FixedWindow { .. } if !limit.is_concurrent() => Some(reset),
        Algorithm::TokenBucket { .. } => {
            let quota = limit.quota();
            let unit = quota.window().div_f64(quota.max().max(1) as f64);
            Some(ceil_seconds(unit).min(reset))
        }
        // With other algorithms, the next unit is free before the reset, at a time that the store does not report.
        _ => None,
    }
}

/// Appends one limit to the value of `RateLimit-Policy`.
fn push_policy(policies: &mut HeaderText, status: &LimitStatus<'_>) {
    if status.limit().has_varying_window() {
        policies.push(format_policy(status).as_str());
    } else {
        let item = &status.rule_limit().texts.policy_item;
        policies.push(item.get_or_init(|| format_policy(status).as_str().into()));
    }
}

/// Formats one limit of `RateLimit-Policy`.
fn format_policy(status: &LimitStatus<'_>) -> HeaderText {
    let mut policies = HeaderText::default();
    policies.push("\"").push(status.policy_name()).push("\"").push(parameters::QUOTA);
    policies.push(decimal!(clamp_to_field_integer(status.limit().quota().max())));
    if status.limit().is_concurrent() {
        policies.push(parameters::QUOTA_UNIT).push("\"concurrent-requests\"");
    } else if let Some(window) = window_seconds(status) {
        policies.push(parameters::WINDOW).push(decimal!(window));
    }
    policies
}
