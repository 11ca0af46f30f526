//! A ruling as response headers: (name, value) pairs, in one of four styles.
//!
//! | style | an answer to `100/min` with 99 left |
//! |---|---|
//! | [`Ietf`](Style::Ietf) | `RateLimit-Policy: "all";q=100;w=60`, `RateLimit: "all";r=99;t=60` |
//! | [`Draft03`](Style::Draft03) | `RateLimit-Limit: 100, 100;w=60`, `RateLimit-Remaining: 99`, `RateLimit-Reset: 60` |
//! | [`X`](Style::X) | `X-RateLimit-Limit: 100`, `X-RateLimit-Remaining: 99`, `X-RateLimit-Reset: 1750000080` |
//! | [`None`](Style::None) | |
//!
//! What they say is the same. On a denial the reset is when this request would fit, otherwise when the
//! key is as if never seen; whole seconds, rounded up. `Retry-After` goes with every denial that ends, in
//! every style: clients and proxies obey it that know nothing of rate limits. A denial that never ends has
//! neither. The limit is the max of the quota, so under a token bucket with a larger burst more may
//! remain.
//!
//! A [`JitterSample`] makes a denial's wait longer wherever it stands, so that all of its headers speak of
//! one moment, and a client that reads only one of them is spread as well as the others. What an allowed
//! answer says is not lengthened.
//!
//! Scripts in browsers see these headers only if `Access-Control-Expose-Headers` lists them. To send that
//! is left to whoever answers for the service's CORS; [`Style::header_names`] is what to list.

mod draft03;
mod ietf;
mod line;
mod x;

#[cfg(test)]
mod examples;
#[cfg(test)]
mod properties;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::clock::{Clock, Timestamp};
use crate::gate::{LimitStatus, Ruling};
use crate::jitter::JitterSample;

pub use line::Line;

/// The largest Integer of a structured field.
const LARGEST: u64 = 999_999_999_999_999;

const RETRY_AFTER: &str = "retry-after";

/// A name, in lower case, and a value.
pub type Header = (&'static str, String);

/// What is told of each header: the place of its name among those of the style, and its value.
type Tell<'t> = &'t mut dyn FnMut(usize, &str);

/// A number in decimal.
macro_rules! text {
    ($number:expr) => {
        itoa::Buffer::new().format($number)
    };
}
use text;

/// Which headers tell how limits stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Style {
    /// `RateLimit-Policy` with every limit, `RateLimit` with the one that binds: structured fields, as
    /// draft-ietf-httpapi-ratelimit-headers-10 has them.
    #[default]
    Ietf,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, as the third draft had them. Reset is in seconds
    /// from now.
    Draft03,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`. Reset is in seconds since the Unix epoch.
    X,
    /// Nothing but `Retry-After`.
    None,
}

/// What a style is.
struct Row {
    style: Style,
    name: &'static str,
    /// The headers that it may write, in their order.
    header_names: &'static [&'static str],
    /// The first of them, where it tells of limits and not of counts.
    write_policies: Option<fn(&Ruling) -> Line>,
    /// The others.
    write: fn(&HeaderContext<'_>, Tell<'_>),
}

/// The styles, in the order of the enum.
const TABLE: [Row; 4] = [
    Row {
        style: Style::Ietf,
        name: "ietf",
        header_names: &ietf::NAMES,
        write_policies: Some(ietf::policies),
        write: ietf::write,
    },
    Row {
        style: Style::Draft03,
        name: "draft03",
        header_names: &draft03::NAMES,
        write_policies: None,
        write: draft03::write,
    },
    Row {
        style: Style::X,
        name: "x",
        header_names: &x::NAMES,
        write_policies: None,
        write: x::write,
    },
    Row {
        style: Style::None,
        name: "none",
        header_names: &[RETRY_AFTER],
        write_policies: None,
        write: |_, _| {},
    },
];

/// The text names no style.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a style of headers: write ietf, draft03, x or none")]
pub struct StyleError(String);

impl Style {
    /// Every style.
    pub const ALL: [Self; 4] = [Self::Ietf, Self::Draft03, Self::X, Self::None];

    /// The name in settings: `draft03`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The headers that it may write: what to list in `Access-Control-Expose-Headers`.
    pub fn header_names(self) -> &'static [&'static str] {
        self.row().header_names
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }
}

impl FromStr for Style {
    type Err = StyleError;

    fn from_str(name: &str) -> Result<Self, StyleError> {
        let row = TABLE.iter().find(|row| row.name == name);
        row.map(|row| row.style).ok_or_else(|| StyleError(name.to_owned()))
    }
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The headers that tell of a ruling in a style, at a moment. Empty if no rule applies, or the store was not
/// asked for any limit.
///
/// ```
/// use slidegate::headers::{self, Style};
/// use slidegate::{Descriptor, Gate, JitterSample, MemoryStore, Policy, Request, Timestamp};
///
/// let policy = Policy::from_yaml("rules: [{ name: all, limits: [100/min] }]")?;
/// let gate = Gate::new(policy, MemoryStore::new());
/// let ruling = gate.check_now(&Request::new("default", Descriptor::new([])));
/// let now = Timestamp::from_secs(1_750_000_020);
/// let headers = headers::write(Style::Ietf, &ruling, now, JitterSample::NONE);
/// assert_eq!(headers[0], ("ratelimit-policy", "\"all\";q=100;w=60".to_owned()));
/// assert!(headers[1].1.starts_with("\"all\";r=99;t="));
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
pub fn write(
    style: Style,
    ruling: &Ruling,
    now: Timestamp,
    lengthening: JitterSample,
) -> Vec<Header> {
    let mut headers = Vec::new();
    each(style, ruling, &Moment(now), lengthening, |name, value| {
        headers.push((name, value.to_owned()));
    });
    headers
}

/// [`write()`] without a list: hands over each name, in lower case, and value. The clock is read only if a header
/// tells a date.
pub fn each(
    style: Style,
    ruling: &Ruling,
    clock: &dyn Clock,
    lengthening: JitterSample,
    mut tell: impl FnMut(&'static str, &str),
) {
    let names = style.header_names();
    if let Some(policies) = policies(style, ruling) {
        tell(names[0], policies.text());
    }
    each_count(style, ruling, clock, lengthening, |place, text| tell(names[place], text));
}

/// What the first header of a style says, where it tells of limits and not of counts: the same of all rulings that
/// [speak of the same limits](Ruling::has_limits_of).
pub fn policies(style: Style, ruling: &Ruling) -> Option<Line> {
    let write = style.row().write_policies?;
    ruling.binding().map(|_| write(ruling))
}

/// [`each`] without what [`policies`] says. Of each name it hands over the place among
/// [those of the style](Style::header_names).
pub fn each_count(
    style: Style,
    ruling: &Ruling,
    clock: &dyn Clock,
    lengthening: JitterSample,
    mut tell: impl FnMut(usize, &str),
) {
    if let Some(answer) = HeaderContext::of(ruling, clock, lengthening) {
        let row = style.row();
        (row.write)(&answer, &mut tell);
        if let Some(seconds) = answer.retry_after() {
            // It is the last one of every style.
            tell(row.header_names.len() - 1, text!(seconds));
        }
    }
}

/// A clock that stands still.
struct Moment(Timestamp);

impl Clock for Moment {
    fn now(&self) -> Timestamp {
        self.0
    }
}

/// What every style says in its own way.
struct HeaderContext<'r> {
    ruling: &'r Ruling,
    binding: LimitStatus<'r>,
    /// Until the reset; none if it never comes.
    wait: Option<Duration>,
    clock: &'r dyn Clock,
}

impl<'r> HeaderContext<'r> {
    #[inline]
    fn of(ruling: &'r Ruling, clock: &'r dyn Clock, lengthening: JitterSample) -> Option<Self> {
        let binding = ruling.binding()?;
        let wait = match ruling.decision().is_allowed() {
            true => Some(binding.outcome.reset_after()),
            false => binding.outcome.retry_after().map(|wait| lengthening.extend(wait)),
        };
        Some(Self { ruling, binding, wait, clock })
    }

    /// The limit that binds.
    fn max(&self) -> u64 {
        integer(self.binding.limit.limit().quota().max())
    }

    /// Units that it still lets pass.
    fn remaining(&self) -> u64 {
        integer(self.binding.outcome.remaining())
    }

    /// Seconds until the reset.
    fn reset_in(&self) -> Option<u64> {
        self.wait.map(seconds_up)
    }

    /// The second of the reset, since the epoch.
    fn reset_at(&self) -> Option<u64> {
        let at = self.clock.now().after(self.wait?);
        Some(integer(at.as_micros().div_ceil(1_000_000)))
    }

    /// For a denial that ends.
    fn retry_after(&self) -> Option<u64> {
        if self.ruling.decision().is_allowed() {
            return None;
        }
        self.reset_in()
    }
}

/// The limits that a client has to know of: those that only watch deny nobody.
pub(crate) fn shown(ruling: &Ruling) -> impl Iterator<Item = LimitStatus<'_>> {
    ruling.limits().filter(|standing| !standing.is_observed() && !standing.is_refund())
}

/// The window of a limit in seconds. No draft has windows under a second.
fn window(standing: &LimitStatus<'_>) -> Option<u64> {
    let window = standing.limit.limit().quota().window();
    (window >= Duration::from_secs(1)).then(|| seconds_up(window))
}

/// Whole seconds, rounded up: whoever waits so long never comes too early.
fn seconds_up(span: Duration) -> u64 {
    integer(span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0)))
}

/// What fits into a structured field.
fn integer(value: u64) -> u64 {
    value.min(LARGEST)
}
