//! Rate-limit headers on the responses of allowed and denied requests.

use std::sync::OnceLock;
use std::time::Duration;

use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue};
use slidegate::clock::WallClock;
use slidegate::decision::DecidedLimits;
use slidegate::headers::{self, Style};
use slidegate::wait::JitterSample;
use slidegate::{Decision, Jitter};

/// The values of the rate-limit headers for the response to an allowed request, without gaps. A value has the same index
/// as the name of its header in the header style. The last name of each style is `Retry-After`, which only denials have.
#[derive(Default)]
pub struct HeaderValues([Option<HeaderValue>; Style::MAX_HEADERS_IF_ALLOWED]);

/// A writer of rate-limit headers in one style.
#[derive(Clone, Debug)]
pub struct HeaderWriter {
    style: Style,
    /// All header names of the style, created once. The last name is `Retry-After`.
    names: Box<[HeaderName]>,
    retry_jitter: Jitter,
    cache: OnceLock<PolicyHeaderCache>,
}

/// A header that lists the quotas of all limits, and the limits for which the header was formatted. Later decisions with
/// the same limits use a clone of the header, because cloning a `HeaderValue` does not allocate.
#[derive(Clone, Debug)]
struct PolicyHeaderCache {
    limits: DecidedLimits,
    policy_header: HeaderValue,
}

impl HeaderWriter {
    pub fn set_style(&mut self, style: Style) {
        let names = style.header_names().iter().map(|name| HeaderName::from_static(name));
        let retry_jitter = self.retry_jitter;
        *self = Self { style, names: names.collect(), retry_jitter, cache: OnceLock::new() };
    }

    pub fn set_retry_jitter(&mut self, jitter: Jitter) {
        self.retry_jitter = jitter;
    }

    /// Draws the jitter of one denial: the random extension of its wait. All headers of the denial's response use the
    /// same jitter.
    pub fn draw_jitter(&self) -> JitterSample {
        self.retry_jitter.draw()
    }

    /// Sets the values of the rate-limit headers for an allowed request.
    pub fn set_header_values(&self, decision: &Decision<'_>, values: &mut HeaderValues) {
        self.for_each_header_value(decision, JitterSample::NONE, |index, value| {
            if let Some(slot) = values.0.get_mut(index) {
                *slot = Some(value);
            }
        });
    }

    /// Moves the values into the headers of a response. Afterwards, `values` is empty.
    pub fn write(&self, values: &mut HeaderValues, headers: &mut HeaderMap) {
        for (index, slot) in values.0.iter_mut().enumerate() {
            let Some(value) = slot.take() else { return };
            self.write_header_value(index, value, headers);
        }
    }

    /// Writes the rate-limit headers of a denial, including `Retry-After`.
    pub fn write_denial(
        &self,
        decision: &Decision<'_>,
        jitter: JitterSample,
        headers: &mut HeaderMap,
    ) {
        self.for_each_header_value(decision, jitter, |index, value| {
            self.write_header_value(index, value, headers);
        });
    }

    fn for_each_header_value(
        &self,
        decision: &Decision<'_>,
        jitter: JitterSample,
        mut on_value: impl FnMut(usize, HeaderValue),
    ) {
        if let Some(policy_header) = self.cached_or_new_policy_header(decision) {
            on_value(0, policy_header);
        }
        headers::for_each_header_except_policy(
            self.style,
            decision,
            &WallClock,
            jitter,
            |index, text| {
                // Limit names are ASCII, so that each text is a valid header value.
                if let Ok(value) = HeaderValue::from_str(text) {
                    on_value(index, value);
                }
            },
        );
    }

    /// Adds one header to a response, which may already have this header from an inner layer or from the service.
    /// A value is appended if the values of the style are lists. A header of another style, and `Retry-After`, keeps its
    /// existing value.
    fn write_header_value(&self, index: usize, value: HeaderValue, headers: &mut HeaderMap) {
        let name = &self.names[index];
        let is_retry_after = index + 1 == self.names.len();
        if self.style.has_list_values() && !is_retry_after {
            headers.append(name, value);
        } else if let Entry::Vacant(vacant) = headers.entry(name) {
            vacant.insert(value);
        }
    }

    fn cached_or_new_policy_header(&self, decision: &Decision<'_>) -> Option<HeaderValue> {
        match self.cache.get() {
            Some(cache) if decision.has_same_limits(&cache.limits) => {
                Some(cache.policy_header.clone())
            }
            _ => self.format_policy_header(decision),
        }
    }

    fn format_policy_header(&self, decision: &Decision<'_>) -> Option<HeaderValue> {
        let policy_header = headers::policy_header(self.style, decision)?;
        let policy_header = HeaderValue::from_str(policy_header.as_str()).ok()?;
        // The header of a calendar limit has the length of the current period, so it is not cached.
        let varies = decision.limits().any(|status| status.limit().has_varying_window());
        if !varies && let Some(limits) = decision.decided_limits() {
            let policy_header = policy_header.clone();
            self.cache.get_or_init(|| PolicyHeaderCache { limits, policy_header });
        }
        Some(policy_header)
    }
}

/// Returns the wait of a denial, including its jitter; `None` if the request can never be allowed.
pub fn retry_after(decision: &Decision<'_>, jitter: JitterSample) -> Option<Duration> {
    let wait = decision.retry_after()?;
    Some(jitter.extend(wait))
}

impl Default for HeaderWriter {
    fn default() -> Self {
        let style = Style::default();
        let retry_jitter = Jitter::NONE;
        let mut writer =
            Self { style, names: Box::default(), retry_jitter, cache: OnceLock::new() };
        writer.set_style(style);
        writer
    }
}
