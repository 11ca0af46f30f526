//! draft-ietf-httpapi-ratelimit-headers-03: three fields, the limits after the one that binds.

use std::fmt::Write;

use super::{Answer, Header, RETRY_AFTER, integer, shown, window};

pub const NAMES: [&str; 4] =
    ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", RETRY_AFTER];

pub fn write(answer: &Answer<'_>) -> Vec<Header> {
    let mut headers = vec![(NAMES[0], limits(answer)), (NAMES[1], answer.remaining().to_string())];
    headers.extend(answer.reset_in().map(|seconds| (NAMES[2], seconds.to_string())));
    headers
}

/// `100, 100;w=60, 5000;w=3600`. A policy needs its `w`: those under a second are left out.
fn limits(answer: &Answer<'_>) -> String {
    let mut limits = answer.max().to_string();
    for standing in shown(answer.ruling) {
        let max = integer(standing.limit.limit().quota().max());
        if let Some(window) = window(&standing) {
            // Writing into a string cannot fail.
            let _ = write!(limits, ", {max};w={window}");
        }
    }
    limits
}
