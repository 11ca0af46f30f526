//! How a ruling is told: headers on what is allowed and on what is denied.

use std::sync::OnceLock;
use std::time::Duration;

use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue};
use slidegate::headers::{self, Style};
use slidegate::{Jitter, JitterSample, Ruling, WallClock};

/// The values of headers to be added to what is allowed, each at the place of its name. No style has more than three
/// beside `Retry-After`, which is the last.
#[derive(Default)]
pub struct Told([Option<HeaderValue>; 3]);

#[derive(Clone, Debug)]
pub struct Tell {
    style: Style,
    /// Those that the style may write: made once.
    names: Box<[HeaderName]>,
    retry_jitter: Jitter,
    usual: OnceLock<Usual>,
}

/// What was said of the limits of the first ruling: those of most others are the same, and to clone a value takes no
/// allocation.
#[derive(Clone, Debug)]
struct Usual {
    ruling: Ruling,
    policies: HeaderValue,
}

impl Tell {
    pub fn style(&mut self, style: Style) {
        let names = style.header_names().iter().map(|name| HeaderName::from_static(name));
        let retry_jitter = self.retry_jitter;
        *self = Self { style, names: names.collect(), retry_jitter, usual: OnceLock::new() };
    }

    pub fn retry_jitter(&mut self, jitter: Jitter) {
        self.retry_jitter = jitter;
    }

    /// How much longer the wait of one denial is, wherever it stands.
    pub fn draw(&self) -> JitterSample {
        self.retry_jitter.draw()
    }

    /// What is told of a ruling that lets pass.
    #[inline]
    pub fn told(&self, ruling: &Ruling) -> Told {
        let mut told = Told::default();
        self.each(ruling, JitterSample::NONE, |place, value| {
            if let Some(told) = told.0.get_mut(place) {
                *told = Some(value);
            }
        });
        told
    }

    /// Adds what was told to the headers of an answer, once.
    pub fn add(&self, told: &mut Told, headers: &mut HeaderMap) {
        for (place, value) in told.0.iter_mut().enumerate() {
            if let Some(value) = value.take() {
                self.put(place, value, headers);
            }
        }
    }

    /// Adds what is told of a denial to the headers of its answer.
    pub fn deny(&self, ruling: &Ruling, lengthening: JitterSample, headers: &mut HeaderMap) {
        self.each(ruling, lengthening, |place, value| self.put(place, value, headers));
    }

    #[inline]
    fn each(
        &self,
        ruling: &Ruling,
        lengthening: JitterSample,
        mut tell: impl FnMut(usize, HeaderValue),
    ) {
        if let Some(policies) = self.policies(ruling) {
            tell(0, policies);
        }
        headers::each_count(self.style, ruling, &WallClock, lengthening, |place, text| {
            // Names of limits are of plain letters: a text always can be a value.
            if let Ok(value) = HeaderValue::from_str(text) {
                tell(place, value);
            }
        });
    }

    /// One layer may stand in another. The structured fields are lists, which grow; of the others the one stays
    /// that is there, and is nearer to the service.
    #[inline]
    fn put(&self, place: usize, value: HeaderValue, headers: &mut HeaderMap) {
        let name = &self.names[place];
        let is_retry_after = place + 1 == self.names.len();
        if self.style == Style::Ietf && !is_retry_after {
            headers.append(name, value);
        } else if let Entry::Vacant(vacant) = headers.entry(name) {
            vacant.insert(value);
        }
    }

    fn policies(&self, ruling: &Ruling) -> Option<HeaderValue> {
        match self.usual.get() {
            Some(usual) if ruling.has_limits_of(&usual.ruling) => Some(usual.policies.clone()),
            _ => self.unusual_policies(ruling),
        }
    }

    #[cold]
    fn unusual_policies(&self, ruling: &Ruling) -> Option<HeaderValue> {
        let policies = headers::policies(self.style, ruling)?;
        let policies = HeaderValue::from_str(policies.text()).ok()?;
        self.usual.get_or_init(|| Usual { ruling: ruling.clone(), policies: policies.clone() });
        Some(policies)
    }
}

/// When a denied request would fit, if ever.
pub fn retry_after(ruling: &Ruling, lengthening: JitterSample) -> Option<Duration> {
    let wait = ruling.decision().retry_after()?;
    Some(lengthening.extend(wait))
}

impl Default for Tell {
    fn default() -> Self {
        let style = Style::default();
        let retry_jitter = Jitter::NONE;
        let mut tell = Self { style, names: Box::default(), retry_jitter, usual: OnceLock::new() };
        tell.style(style);
        tell
    }
}
