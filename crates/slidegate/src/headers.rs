//! Rate-limit headers of a response: (name, value) pairs for a decision, in one of several styles.
//!
//! | style | headers for `100/min` with 99 left |
//! |---|---|
//! | [`Ietf`](Style::Ietf) | `RateLimit-Policy: "all";q=100;w=60`, `RateLimit: "all";r=99;t=60` |
//! | [`Draft03`](Style::Draft03) | `RateLimit-Limit: 100, 100;w=60`, `RateLimit-Remaining: 99`, `RateLimit-Reset: 60` |
//! | [`X`](Style::X) | `X-RateLimit-Limit: 100`, `X-RateLimit-Remaining: 99`, `X-RateLimit-Reset: 1750000080` |
//! | [`None`](Style::None) | |
//!
//! All styles but [`None`](Style::None) have the binding limit, and `Ietf` has all limits and their names. Limits of
//! rules with `headers: false` are left out; in place of a binding limit of such a rule, the headers have the visible
//! limit with the smallest share left. The reset of a denial is the time at which the request would fit; otherwise it
//! is the time at which no unit of the limit is in use. If an allowed request leaves no unit, the parameter `t` of
//! `Ietf` is the time until another unit is available, or it is absent if that time is not known. Times are whole
//! seconds, rounded up. `Retry-After` is part of every denial with a known wait, in every style, for clients and
//! proxies that do not read rate-limit headers. A denial of a request that never fits has neither a reset nor
//! `Retry-After`. The limit is the max of the quota; with a token bucket whose burst is larger, the remaining units may
//! exceed it.
//!
//! A [`JitterSample`] lengthens the wait of a denial by the same amount in all of its headers, so that the headers
//! agree, and clients that were denied together retry at different times. Headers of allowed requests are not changed.
//!
//! Scripts in browsers can read these headers only if `Access-Control-Expose-Headers` lists them. The service must send
//! that header itself, as a part of its CORS settings; [`Style::header_names`] returns the names to list.
//!
//! Functions of this module have no side effects: the time and the jitter are arguments. The headers of the styles are
//! written by submodules.

mod ietf;
mod three_fields;

#[cfg(test)]
mod examples;
#[cfg(test)]
mod properties;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use arrayvec::ArrayString;
use thiserror::Error;

use crate::clock::{Clock, Timestamp};
use crate::decision::{Decision, LimitStatus};
use crate::jitter::JitterSample;
use crate::reason::Reason;

pub use crate::problem::Problem;
pub use crate::reason::ProblemType;

/// The largest integer that a structured field (RFC 9651) can have.
const MAX_STRUCTURED_FIELD_INTEGER: u64 = 999_999_999_999_999;

/// The name of the header that contains the retry delay of a denial. Every style writes this header.
const RETRY_AFTER_HEADER_NAME: &str = "retry-after";

/// The header of every denial. Without it, caches may store a denial with a status such as 404 or 410, and send it to
/// other clients or after the limit has capacity again (RFC 9111, section 4.2.2).
pub const CACHE_CONTROL_NO_STORE: (&str, &str) = ("cache-control", "no-store");

/// The number of bytes that a header value can have without a heap allocation: enough for three limits with names of
/// usual length.
const MAX_INLINE_TEXT_BYTES: usize = 128;

/// A header name, in lower case, and its value.
pub type Header = (&'static str, String);

/// The value of a header. Values of usual length are not allocated on the heap.
#[derive(Clone, Debug, Default)]
pub struct HeaderText {
    inline: ArrayString<MAX_INLINE_TEXT_BYTES>,
    /// The whole value, if it does not fit into the inline buffer; otherwise an empty string.
    heap: String,
}

impl HeaderText {
    fn push(&mut self, text: &str) -> &mut Self {
        if !self.heap.is_empty() || self.inline.try_push_str(text).is_err() {
            self.push_to_heap(text);
        }
        self
    }

    /// Returns the value.
    pub fn as_str(&self) -> &str {
        if self.heap.is_empty() { &self.inline } else { &self.heap }
    }

    fn push_to_heap(&mut self, text: &str) {
        if self.heap.is_empty() {
            self.heap.push_str(&self.inline);
        }
        self.heap.push_str(text);
    }
}

/// Formats a number in decimal.
macro_rules! decimal {
    ($number:expr) => {
        itoa::Buffer::new().format($number)
    };
}
use decimal;

/// A style, that is, a set of rate-limit headers with their format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Style {
    /// `RateLimit-Policy` with every limit and `RateLimit` with the binding limit: structured fields, defined by
    /// draft-ietf-httpapi-ratelimit-headers-11.
    #[default]
    Ietf,
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, defined by
    /// draft-ietf-httpapi-ratelimit-headers-03. The reset is in seconds from now.
    Draft03,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`. The reset is in seconds since the Unix
    /// epoch.
    X,
    /// `Retry-After` only.
    None,
}

/// The definition of a style: its name, the names of its headers, and the function that writes the first header.
struct StyleDefinition {
    style: Style,
    name: &'static str,
    /// Names of the headers that the style may write, in order.
    header_names: &'static [&'static str],
    /// Whether the values are lists, so that several decisions about one request can append their values.
    has_list_values: bool,
    /// The function that returns the value of the first header, if this header is the same for all decisions with the
    /// same limits. `None` if the first header has only the binding limit, because the counts determine which limit is
    /// binding.
    write_policies: Option<fn(&Decision<'_>) -> HeaderText>,
}

/// All styles, in the order of the variants of [`Style`].
const STYLE_DEFINITIONS: [StyleDefinition; 4] = [
    StyleDefinition {
        style: Style::Ietf,
        name: "ietf",
        header_names: &ietf::HEADER_NAMES,
        has_list_values: true,
        write_policies: Some(ietf::write_policies),
    },
    StyleDefinition {
        style: Style::Draft03,
        name: "draft03",
        header_names: &three_fields::DRAFT03_HEADER_NAMES,
        has_list_values: false,
        write_policies: None,
    },
    StyleDefinition {
        style: Style::X,
        name: "x",
        header_names: &three_fields::X_HEADER_NAMES,
        has_list_values: false,
        write_policies: None,
    },
    StyleDefinition {
        style: Style::None,
        name: "none",
        header_names: &[RETRY_AFTER_HEADER_NAME],
        has_list_values: false,
        write_policies: None,
    },
];

/// The error for text that is not the name of a style.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown header style `{0}`; use {names}", names = style_names())]
pub struct StyleError(String);

impl Style {
    /// Every style.
    pub const ALL: [Self; 4] = [Self::Ietf, Self::Draft03, Self::X, Self::None];

    /// The largest number of headers that a style writes for an allowed request, so without `Retry-After`.
    pub const MAX_HEADERS_IF_ALLOWED: usize = max_headers_if_allowed();

    /// Returns the name of the style in settings, such as `draft03`.
    pub fn name(self) -> &'static str {
        self.definition().name
    }

    /// Returns the names of the headers that the style may write, to be listed in `Access-Control-Expose-Headers`.
    /// `Retry-After` is the last one.
    pub fn header_names(self) -> &'static [&'static str] {
        self.definition().header_names
    }

    /// Returns whether the values of the headers, except `Retry-After`, are lists. Then several rate limiters that
    /// check the same request append their values; otherwise only one of them can write its headers.
    pub fn has_list_values(self) -> bool {
        self.definition().has_list_values
    }

    fn definition(self) -> &'static StyleDefinition {
        &STYLE_DEFINITIONS[self as usize]
    }
}

/// Returns [`Style::MAX_HEADERS_IF_ALLOWED`].
const fn max_headers_if_allowed() -> usize {
    let mut max = 0;
    let mut index = 0;
    while index < STYLE_DEFINITIONS.len() {
        let headers = STYLE_DEFINITIONS[index].header_names.len() - 1;
        if headers > max {
            max = headers;
        }
        index += 1;
    }
    max
}

/// Returns the names of all styles for an error message.
fn style_names() -> String {
    let [names @ .., last] = STYLE_DEFINITIONS.map(|definition| definition.name);
    format!("{} or {last}", names.join(", "))
}

impl FromStr for Style {
    type Err = StyleError;

    fn from_str(name: &str) -> Result<Self, StyleError> {
        let found = STYLE_DEFINITIONS.iter().find(|definition| definition.name == name);
        found.map(|definition| definition.style).ok_or_else(|| StyleError(name.to_owned()))
    }
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the headers for a decision in a style, at the time `now`. The list is empty if no rule applies or the store
/// did not evaluate any limit.
///
/// ```
/// use slidegate::headers::{Style, self};
/// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request, Timestamp};
/// use slidegate::wait::JitterSample;
///
/// let policy = Policy::from_yaml("rules: [{ name: all, limits: [100/min] }]")?;
/// let gate = Gate::new(policy, MemoryStore::new());
/// let decision = gate.check(&Request::new("default", Descriptor::new([])));
/// let now = Timestamp::from_secs(1_750_000_020);
/// let headers = headers::write(Style::Ietf, &decision, now, JitterSample::NONE);
/// assert_eq!(headers[0], ("ratelimit-policy", "\"all\";q=100;w=60".to_owned()));
/// assert!(headers[1].1.starts_with("\"all\";r=99;t="));
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
pub fn write(
    style: Style,
    decision: &Decision<'_>,
    now: Timestamp,
    jitter: JitterSample,
) -> Vec<Header> {
    let mut headers = Vec::new();
    for_each(style, decision, &FixedClock(now), jitter, |name, value| {
        headers.push((name, value.to_owned()));
    });
    headers
}

/// Calls `on_header` with the name, in lower case, and the value of each header that [`write()`] returns. The clock is
/// read only if a header contains a date.
pub fn for_each(
    style: Style,
    decision: &Decision<'_>,
    clock: &dyn Clock,
    jitter: JitterSample,
    mut on_header: impl FnMut(&'static str, &str),
) {
    let names = style.header_names();
    if let Some(policies) = policy_header(style, decision) {
        on_header(names[0], policies.as_str());
    }
    for_each_header_except_policy(style, decision, clock, jitter, |index, text| {
        on_header(names[index], text)
    });
}

/// Returns the value of the first header of a style, if that header contains only limits and no counts; otherwise
/// `None`.
///
/// The value is the same for all decisions with the [same limits](Decision::has_same_limits), unless the window of a
/// limit [varies](crate::Limit::has_varying_window).
pub fn policy_header(style: Style, decision: &Decision<'_>) -> Option<HeaderText> {
    let write = style.definition().write_policies?;
    limit_shown_in_headers(decision).map(|_| write(decision))
}

/// Returns the limit that the headers describe; `None` if there is none. This is the binding limit, or the visible
/// limit with the smallest share left if the rule of the binding limit has `headers: false`.
fn limit_shown_in_headers<'d>(decision: &'d Decision<'_>) -> Option<LimitStatus<'d>> {
    let binding = decision.binding()?;
    if binding.is_in_headers() {
        return Some(binding);
    }
    let product = |one: &LimitStatus<'_>, other: &LimitStatus<'_>| {
        u128::from(one.remaining()) * u128::from(other.limit().capacity())
    };
    visible_limits(decision).min_by(|one, other| product(one, other).cmp(&product(other, one)))
}

/// Calls `on_header` for each header except the [`policy_header`], with the index of its name in
/// [`Style::header_names`] and its value.
pub fn for_each_header_except_policy(
    style: Style,
    decision: &Decision<'_>,
    clock: &dyn Clock,
    jitter: JitterSample,
    mut on_header: impl FnMut(usize, &str),
) {
    if let Some(limit) = limit_shown_in_headers(decision) {
        let context = HeaderContext::new(decision, &limit, clock, jitter);
        // A `match`, so that the compiler can inline the calls: function pointers in `STYLE_DEFINITIONS` take more
        // instructions.
        match style {
            Style::Ietf => ietf::write_status(&context, &mut on_header),
            Style::Draft03 => three_fields::write_draft03_headers(&context, &mut on_header),
            Style::X => three_fields::write_x_headers(&context, &mut on_header),
            Style::None => {}
        }
    }
    if !decision.is_allowed()
        && let Some(wait) = decision.retry_after()
    {
        let seconds = ceil_seconds(jitter.extend(wait));
        // `Retry-After` is the last header of every style.
        on_header(style.header_names().len() - 1, decimal!(seconds));
    }
}

/// A clock that always returns the same time.
struct FixedClock(Timestamp);

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        self.0
    }
}

/// The data from which the headers of every style are written.
struct HeaderContext<'r> {
    decision: &'r Decision<'r>,
    limit: &'r LimitStatus<'r>,
    /// The units that the shown limit still admits; 0 for a blocked key.
    remaining: u64,
    /// The duration until the reset; `None` for a denied request that never fits.
    wait: Option<Duration>,
    clock: &'r dyn Clock,
}

impl<'r> HeaderContext<'r> {
    fn new(
        decision: &'r Decision<'r>,
        limit: &'r LimitStatus<'r>,
        clock: &'r dyn Clock,
        jitter: JitterSample,
    ) -> Self {
        // Headers do not show the `block` of a rule. While a key is blocked, they show the limit as used up until the
        // block ends.
        let is_blocked = decision.reason() == Some(Reason::Blocked);
        let remaining = if is_blocked { 0 } else { limit.remaining() };
        // If the shown limit fits a denied request, a limit with `headers: false` denies the request, so the headers
        // have the reset of the shown limit.
        let wait = if decision.is_allowed() || (limit.fits() && !is_blocked) {
            Some(limit.reset_after())
        } else {
            decision.retry_after().map(|wait| jitter.extend(wait))
        };
        Self { decision, limit, remaining, wait, clock }
    }

    /// Returns the max of the shown limit, limited to the largest integer of a structured field.
    fn max_units(&self) -> u64 {
        clamp_to_field_integer(self.limit.limit().quota().max())
    }

    /// Returns the units that the shown limit still admits, limited to the largest integer of a structured field.
    fn remaining_units(&self) -> u64 {
        clamp_to_field_integer(self.remaining)
    }

    /// Returns the seconds until the reset, rounded up; `None` for a denied request that never fits.
    fn seconds_until_reset(&self) -> Option<u64> {
        self.wait.map(ceil_seconds)
    }

    /// Returns the time of the reset, in seconds since the Unix epoch; `None` for a denied request that never fits.
    fn reset_unix_seconds(&self) -> Option<u64> {
        let at = self.clock.now().after(self.wait?);
        Some(clamp_to_field_integer(at.as_micros().div_ceil(1_000_000)))
    }
}

/// Returns the limits that are shown to the client: all limits except refunds, limits that only observe, and limits of
/// rules with `headers: false`.
pub(crate) fn visible_limits<'d>(
    decision: &'d Decision<'_>,
) -> impl Iterator<Item = LimitStatus<'d>> {
    decision
        .limits()
        .filter(|status| status.is_in_headers() && !status.is_observed() && !status.is_refund())
}

/// Returns the window of a limit, or the current period of a calendar limit, in seconds; `None` if the window is
/// shorter than one second, which the drafts cannot express, or if the limit bounds the requests in flight.
fn window_seconds(status: &LimitStatus<'_>) -> Option<u64> {
    if status.limit().is_concurrent() {
        return None;
    }
    let window = status.limit().window();
    (window >= Duration::from_secs(1)).then(|| ceil_seconds(window))
}

/// Returns a duration in whole seconds, rounded up, so that a client that waits this long does not retry too early.
fn ceil_seconds(span: Duration) -> u64 {
    clamp_to_field_integer(span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0)))
}

/// Limits a value to the largest integer of a structured field.
fn clamp_to_field_integer(value: u64) -> u64 {
    value.min(MAX_STRUCTURED_FIELD_INTEGER)
}
