//! What many services had before there was a draft. Reset is a date, as GitHub has it.

use super::{HeaderContext, RETRY_AFTER, Tell, text};

pub const NAMES: [&str; 4] =
    ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", RETRY_AFTER];

pub fn write(answer: &HeaderContext<'_>, tell: Tell<'_>) {
    tell(0, text!(answer.max()));
    tell(1, text!(answer.remaining()));
    if let Some(second) = answer.reset_at() {
        tell(2, text!(second));
    }
}
