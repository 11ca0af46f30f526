//! draft-ietf-httpapi-ratelimit-headers-10: structured fields (RFC 9651), Lists of Strings with
//! parameters. Later drafts may rename the parameters; this is the only place to change.

use std::fmt::Write;

use super::{Answer, Header, RETRY_AFTER, integer, shown, window};
use crate::gate::Standing;

pub const NAMES: [&str; 3] = ["ratelimit-policy", "ratelimit", RETRY_AFTER];

pub fn write(answer: &Answer<'_>) -> Vec<Header> {
    let mut policies = String::new();
    for standing in shown(answer.ruling) {
        if !policies.is_empty() {
            policies.push_str(", ");
        }
        push_policy(&mut policies, &standing);
    }
    let mut limit = String::new();
    push_name(&mut limit, &answer.binding);
    push(&mut limit, "r", answer.remaining());
    if let Some(reset_in) = answer.reset_in() {
        push(&mut limit, "t", reset_in);
    }
    vec![(NAMES[0], policies), (NAMES[1], limit)]
}

/// One item of `RateLimit-Policy`.
fn push_policy(policies: &mut String, standing: &Standing<'_>) {
    push_name(policies, standing);
    push(policies, "q", integer(standing.limit.limit().quota().max()));
    if let Some(window) = window(standing) {
        push(policies, "w", window);
    }
}

/// Names need no escape: they are of `[a-z0-9._-]`.
fn push_name(item: &mut String, standing: &Standing<'_>) {
    item.push('"');
    item.push_str(standing.policy_name());
    item.push('"');
}

fn push(item: &mut String, parameter: &str, value: u64) {
    // Writing into a string cannot fail.
    let _ = write!(item, ";{parameter}={value}");
}
