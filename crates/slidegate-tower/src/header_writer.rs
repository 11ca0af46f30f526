//! Rate-limit headers on the responses of allowed and denied requests.

use std::sync::OnceLock;
use std::time::Duration;

use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue};
use slidegate::headers::{self, Style};
use slidegate::{Jitter, JitterSample, Ruling, WallClock};

/// Header values for the response of an allowed request, indexed like the header names of the style. No style has more
/// than three names besides `Retry-After`, which is the last one and only for denials.
#[derive(Default)]
pub struct HeaderValues([Option<HeaderValue>; 3]);

/// Writes the headers of one style.
#[derive(Clone, Debug)]
pub struct HeaderWriter {
    style: Style,
    /// All header names of the style, created once.
    names: Box<[HeaderName]>,
    retry_jitter: Jitter,
    cache: OnceLock<HeaderCache>,
}

/// The policy header of the first ruling. Most later rulings have the same limits, and cloning a `HeaderValue` does not
/// allocate.
#[derive(Clone, Debug)]
struct HeaderCache {
    ruling: Ruling,
    policies: HeaderValue,
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

    /// Draws the jitter of one denial, which every header of its response uses.
    pub fn draw_jitter(&self) -> JitterSample {
        self.retry_jitter.draw()
    }

    /// Returns the header values for an allowed request.
    #[inline]
    pub fn values(&self, ruling: &Ruling) -> HeaderValues {
        let mut values = HeaderValues::default();
        self.for_each_value(ruling, JitterSample::NONE, |index, value| {
            if let Some(slot) = values.0.get_mut(index) {
                *slot = Some(value);
            }
        });
        values
    }

    /// Moves the values into the headers of a response.
    pub fn write(&self, values: &mut HeaderValues, headers: &mut HeaderMap) {
        for (index, value) in values.0.iter_mut().enumerate() {
            if let Some(value) = value.take() {
                self.write_value(index, value, headers);
            }
        }
    }

    /// Writes the headers of a denial, `Retry-After` included.
    pub fn write_denial(&self, ruling: &Ruling, jitter: JitterSample, headers: &mut HeaderMap) {
        self.for_each_value(ruling, jitter, |index, value| {
            self.write_value(index, value, headers);
        });
    }

    #[inline]
    fn for_each_value(
        &self,
        ruling: &Ruling,
        jitter: JitterSample,
        mut on_value: impl FnMut(usize, HeaderValue),
    ) {
        if let Some(policies) = self.policies(ruling) {
            on_value(0, policies);
        }
        headers::for_each_status(self.style, ruling, &WallClock, jitter, |index, text| {
            // Limit names are ASCII, so that each text is a valid header value.
            if let Ok(value) = HeaderValue::from_str(text) {
                on_value(index, value);
            }
        });
    }

    /// Adds one header. If layers are nested, the structured fields of the IETF style are lists and grow. A header of
    /// another style, and `Retry-After`, is kept as the inner layer or the service has written it.
    #[inline]
    fn write_value(&self, index: usize, value: HeaderValue, headers: &mut HeaderMap) {
        let name = &self.names[index];
        let is_retry_after = index + 1 == self.names.len();
        if self.style == Style::Ietf && !is_retry_after {
            headers.append(name, value);
        } else if let Entry::Vacant(vacant) = headers.entry(name) {
            vacant.insert(value);
        }
    }

    fn policies(&self, ruling: &Ruling) -> Option<HeaderValue> {
        match self.cache.get() {
            Some(cache) if ruling.has_same_limits(&cache.ruling) => Some(cache.policies.clone()),
            _ => self.format_policies(ruling),
        }
    }

    #[cold]
    fn format_policies(&self, ruling: &Ruling) -> Option<HeaderValue> {
        let policies = headers::policy_header(self.style, ruling)?;
        let policies = HeaderValue::from_str(policies.as_str()).ok()?;
        self.cache
            .get_or_init(|| HeaderCache { ruling: ruling.clone(), policies: policies.clone() });
        Some(policies)
    }
}

/// Returns the wait of a denial with its jitter; `None` if the request can never be allowed.
pub fn retry_after(ruling: &Ruling, jitter: JitterSample) -> Option<Duration> {
    let wait = ruling.decision().retry_after()?;
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
