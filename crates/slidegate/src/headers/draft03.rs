//! draft-ietf-httpapi-ratelimit-headers-03: three fields, the limits after the one that binds.

use super::{HeaderContext, Line, RETRY_AFTER, Tell, integer, shown, text, window};

pub const NAMES: [&str; 4] =
    ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", RETRY_AFTER];

pub fn write(answer: &HeaderContext<'_>, tell: Tell<'_>) {
    tell(0, limits(answer).text());
    tell(1, text!(answer.remaining()));
    if let Some(seconds) = answer.reset_in() {
        tell(2, text!(seconds));
    }
}

/// `100, 100;w=60, 5000;w=3600`. A policy needs its `w`: those under a second are left out.
fn limits(answer: &HeaderContext<'_>) -> Line {
    let mut limits = Line::default();
    limits.push(text!(answer.max()));
    for standing in shown(answer.ruling) {
        let max = integer(standing.limit.limit().quota().max());
        if let Some(window) = window(&standing) {
            limits.push(", ").push(text!(max)).push(";w=").push(text!(window));
        }
    }
    limits
}
