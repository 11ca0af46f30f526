//! The styles with three header fields, which contain the limit, the remaining units and the reset.
//!
//! draft-ietf-httpapi-ratelimit-headers-03 lists all limits after the binding limit; its reset is in seconds from now.
//! The `X-` headers are older than any draft; their reset is a Unix time, as in the API of GitHub.

use super::{
    HeaderContext, HeaderText, RETRY_AFTER_HEADER_NAME, clamp_to_field_integer, decimal,
    visible_limits, window_seconds,
};

/// The names of the headers of draft-ietf-httpapi-ratelimit-headers-03, in the order in which they are written.
pub const DRAFT03_HEADER_NAMES: [&str; 4] =
    ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", RETRY_AFTER_HEADER_NAME];

/// The names of the `X-` headers, in the order in which they are written.
pub const X_HEADER_NAMES: [&str; 4] =
    ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", RETRY_AFTER_HEADER_NAME];

/// Writes the headers of draft-ietf-httpapi-ratelimit-headers-03, except `Retry-After`.
pub fn write_draft03_headers(context: &HeaderContext<'_>, on_header: &mut impl FnMut(usize, &str)) {
    on_header(0, draft03_limits(context).as_str());
    on_header(1, decimal!(context.remaining_units()));
    if let Some(seconds) = context.seconds_until_reset() {
        on_header(2, decimal!(seconds));
    }
}

/// Writes the `X-` headers.
pub fn write_x_headers(context: &HeaderContext<'_>, on_header: &mut impl FnMut(usize, &str)) {
    on_header(0, decimal!(context.max_units()));
    on_header(1, decimal!(context.remaining_units()));
    if let Some(second) = context.reset_unix_seconds() {
        on_header(2, decimal!(second));
    }
}

/// Returns the value of `RateLimit-Limit`, such as `100, 100;w=60, 5000;w=3600`. A limit must have a `w`, so limits
/// with windows below one second are left out.
fn draft03_limits(context: &HeaderContext<'_>) -> HeaderText {
    let mut limits = HeaderText::default();
    limits.push(decimal!(context.max_units()));
    for status in visible_limits(context.decision) {
        let max = clamp_to_field_integer(status.limit().quota().max());
        if let Some(window) = window_seconds(&status) {
            limits.push(", ").push(decimal!(max)).push(";w=").push(decimal!(window));
        }
    }
    limits
}
