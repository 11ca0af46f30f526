//! draft-ietf-httpapi-ratelimit-headers-10: structured fields (RFC 9651), Lists of Strings with
//! parameters. Later drafts may rename the parameters; this is the only place to change.

use super::{HeaderContext, Line, RETRY_AFTER, Tell, integer, shown, text, window};
use crate::gate::{LimitStatus, Ruling};

pub const NAMES: [&str; 3] = ["ratelimit-policy", "ratelimit", RETRY_AFTER];

pub fn policies(ruling: &Ruling) -> Line {
    let mut policies = Line::default();
    for (nth, standing) in shown(ruling).enumerate() {
        if nth > 0 {
            policies.push(", ");
        }
        push_policy(&mut policies, &standing);
    }
    policies
}

pub fn write(answer: &HeaderContext<'_>, tell: Tell<'_>) {
    let mut limit = Line::default();
    push_name(&mut limit, &answer.binding);
    limit.push(";r=").push(text!(answer.remaining()));
    if let Some(reset_in) = answer.reset_in() {
        limit.push(";t=").push(text!(reset_in));
    }
    tell(1, limit.text());
}

/// One item of `RateLimit-Policy`.
fn push_policy(policies: &mut Line, standing: &LimitStatus<'_>) {
    push_name(policies, standing);
    policies.push(";q=").push(text!(integer(standing.limit.limit().quota().max())));
    if let Some(window) = window(standing) {
        policies.push(";w=").push(text!(window));
    }
}

/// Names need no escape: they are of `[a-z0-9._-]`.
#[inline]
fn push_name(item: &mut Line, standing: &LimitStatus<'_>) {
    item.push("\"").push(standing.policy_name()).push("\"");
}
