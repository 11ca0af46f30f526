//! The style of draft-ietf-httpapi-ratelimit-headers-10. The headers are structured fields (RFC 9651): lists of strings
//! with parameters.
//!
//! Later drafts may rename the parameters. Only this module writes them. Names of limits are quoted without escapes,
//! because they consist of `[a-z0-9._-]`.

use super::{
    HeaderContext, HeaderText, RETRY_AFTER_HEADER_NAME, clamp_to_field_integer, decimal,
    visible_limits, window_seconds,
};
use crate::decision::{Decision, LimitStatus};

/// The names of the headers of this style, in the order in which they are written.
pub const HEADER_NAMES: [&str; 3] = ["ratelimit-policy", "ratelimit", RETRY_AFTER_HEADER_NAME];

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

/// Writes the header `RateLimit`, which describes the binding limit.
pub fn write_status(context: &HeaderContext<'_>, on_header: &mut impl FnMut(usize, &str)) {
    let mut limit = HeaderText::default();
    limit.push("\"").push(context.binding.policy_name()).push("\";r=");
    limit.push(decimal!(context.remaining_units()));
    if let Some(seconds_until_reset) = context.seconds_until_reset() {
        limit.push(";t=").push(decimal!(seconds_until_reset));
    }
    on_header(1, limit.as_str());
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
    policies.push("\"").push(status.policy_name()).push("\";q=");
    policies.push(decimal!(clamp_to_field_integer(status.limit().quota().max())));
    if status.limit().is_concurrent() {
        policies.push(";qu=\"concurrent-requests\"");
    } else if let Some(window) = window_seconds(status) {
        policies.push(";w=").push(decimal!(window));
    }
    policies
}
