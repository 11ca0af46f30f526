//! What many services had before there was a draft. Reset is a date, as GitHub has it.

use super::{Answer, Header, RETRY_AFTER};

pub const NAMES: [&str; 4] =
    ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", RETRY_AFTER];

pub fn write(answer: &Answer<'_>) -> Vec<Header> {
    let mut headers =
        vec![(NAMES[0], answer.max().to_string()), (NAMES[1], answer.remaining().to_string())];
    headers.extend(answer.reset_at().map(|second| (NAMES[2], second.to_string())));
    headers
}
