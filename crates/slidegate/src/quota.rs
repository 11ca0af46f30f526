//! A quota: `max` units per `window`, written `100/15m`.

mod closest;

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

#[cfg(feature = "policy")]
pub(crate) use closest::closest_quotas;

/// The largest `max` and cost: 2^53 - 1 units, the range in which the doubles of Redis' Lua and the numbers of
/// JavaScript are exact integers. Algorithms that multiply counts support a max of up to [`MAX_SMALL_UNITS`].
pub const MAX_UNITS: u64 = (1 << 53) - 1;

/// The largest `max`, burst and count of `token_bucket` and `sliding_counter`: 2^29 units. With windows of at most 2^24
/// ticks, their products are at most 2^53. The counts of other limits with a max up to this number stop at it too, so
/// that their keys take less memory.
pub const MAX_SMALL_UNITS: u64 = 1 << 29;

/// Returns the largest count of a key with this max. Units above it are not counted.
pub(crate) const fn max_count(max: u64) -> u64 {
    if max > MAX_SMALL_UNITS { MAX_UNITS } else { MAX_SMALL_UNITS }
}

/// The longest window: 366 days.
pub const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);

/// The shortest window: one millisecond.
pub const MIN_WINDOW: Duration = Duration::from_millis(1);

/// A quota: at most `max` units in any `window`.
///
/// ```
/// use std::time::Duration;
/// use slidegate::Quota;
///
/// let quota: Quota = "100/15m".parse()?;
/// assert_eq!(quota.max(), 100);
/// assert_eq!(quota.window(), Duration::from_secs(15 * 60));
/// assert_eq!(quota, Quota::new(100, Duration::from_secs(900))?);
/// assert_eq!("5/min".parse::<Quota>()?.to_string(), "5/1m");
/// # Ok::<(), slidegate::limit::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    max: u64,
    window_us: NonZeroU64,
}

/// An invalid quota.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuotaError {
    /// The text has no `/`, or nothing before or after it, or it is a quota in another notation, such as
    /// `10 per minute`. The message then suggests the quota in this notation.
    #[error("`{0}` is not a quota; {remedy}", remedy = quota_remedy(.0))]
    Malformed(String),
    /// The part before the `/` is not a whole number.
    #[error("`{0}` is not a whole number of units; write max/window, for example 100/min")]
    Max(String),
    /// The part after the `/` is not a window.
    #[error("`{0}` is not a window; {remedy}", remedy = window_remedy(.0))]
    Window(String),
    /// The maximum exceeds [`MAX_UNITS`].
    #[error("a max of {0} is too large; the maximum is {MAX_UNITS}")]
    TooMany(u64),
    /// The window is shorter than [`MIN_WINDOW`].
    #[error("a window of {} is too short; the minimum is 1ms", format_duration(*.0))]
    TooShort(Duration),
    /// The window is longer than [`MAX_WINDOW`].
    #[error("a window of {} is too long; the maximum is 366d", format_duration(*.0))]
    TooLong(Duration),
    /// The window is not a whole number of microseconds.
    #[error("a window of {0:?} is not a whole number of microseconds")]
    TooFine(Duration),
}

impl Quota {
    /// Creates a quota of at most `max` units in any `window`. A `max` of 0 denies everything.
    ///
    /// # Errors
    /// If `max` exceeds [`MAX_UNITS`], if the window is not from [`MIN_WINDOW`] to [`MAX_WINDOW`], or if it is not a whole
    /// number of microseconds.
    pub fn new(max: u64, window: Duration) -> Result<Self, QuotaError> {
        if max > MAX_UNITS {
            return Err(QuotaError::TooMany(max));
        }
        if window < MIN_WINDOW {
            return Err(QuotaError::TooShort(window));
        }
        if window > MAX_WINDOW {
            return Err(QuotaError::TooLong(window));
        }
        if !window.subsec_nanos().is_multiple_of(1_000) {
            return Err(QuotaError::TooFine(window));
        }
        let window_us = NonZeroU64::new(crate::clock::ceil_micros(window))
            .ok_or(QuotaError::TooShort(window))?;
        Ok(Self { max, window_us })
    }

    /// Creates a quota from values that are known to be within the bounds.
    pub(crate) fn from_parts(max: u64, window_us: u64) -> Self {
        Self { max, window_us: NonZeroU64::new(window_us).unwrap_or(NonZeroU64::MIN) }
    }

    /// Returns `max`, the number of units per window.
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// Returns the length of the window.
    pub const fn window(&self) -> Duration {
        Duration::from_micros(self.window_us.get())
    }

    /// Returns the window in policy notation, for example `15m`. A limit without a name in the policy has this text as
    /// its name.
    pub fn window_text(&self) -> String {
        format_window(self.window_us.get())
    }

    pub(crate) const fn window_us(&self) -> u64 {
        self.window_us.get()
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        Self::parse(text).map_err(|error| match error {
            QuotaError::Max(_) | QuotaError::Window(_)
                if !closest::closest_quotas(text).is_empty() =>
            {
                QuotaError::Malformed(text.to_owned())
            }
            error => error,
        })
    }
}

impl Quota {
    fn parse(text: &str) -> Result<Self, QuotaError> {
        let (max, window) =
            text.split_once('/').ok_or_else(|| QuotaError::Malformed(text.to_owned()))?;
        let (max, window) = (max.trim(), window.trim());
        if max.is_empty() || window.is_empty() {
            return Err(QuotaError::Malformed(text.to_owned()));
        }
        // The digits are checked first, because `parse` also accepts a plus sign.
        if !max.bytes().all(|b| b.is_ascii_digit()) {
            return Err(QuotaError::Max(max.to_owned()));
        }
        let max = max.parse().map_err(|_| QuotaError::TooMany(u64::MAX))?;
        Self::new(max, parse_window(window)?)
    }
}

fn quota_remedy(text: &str) -> String {
    match &closest::closest_quotas(text)[..] {
        [] => "write max/window, for example 100/min or 10/15m".to_owned(),
        quotas => format!("did you mean `{}`?", quotas.join("` or `")),
    }
}

fn window_remedy(text: &str) -> String {
    if let Some((period, window)) = closest::closest_calendar_period(text) {
        return format!("did you mean `{window}`, or `calendar: {period}` in place of a window?");
    }
    match closest::closest_window(text) {
        Some(window) => format!("did you mean `{window}`?"),
        None => {
            "write a whole number and one of ms, s, m (or min), h, d, w, for example 15m".to_owned()
        }
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.max, self.window_text())
    }
}

/// The time units in which policies write windows, such as `h`, with their lengths in microseconds, longest first.
const WINDOW_TIME_UNITS: [(&str, u64); 6] = [
    ("w", 604_800_000_000),
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
];

/// Parses a window such as `15m` or `250ms`. The number may be omitted: `min` is one minute.
///
/// # Errors
/// If the text is not a window.
pub(crate) fn parse_window(text: &str) -> Result<Duration, QuotaError> {
    let malformed = || QuotaError::Window(text.to_owned());
    let unit_start = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(malformed)?;
    let (number, unit) = text.split_at(unit_start);
    let number: u64 =
        if number.is_empty() { 1 } else { number.parse().map_err(|_| malformed())? };
    let unit = if unit == "min" { "m" } else { unit };
    let (_, unit_us) =
        WINDOW_TIME_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(malformed)?;
    Ok(Duration::from_micros(number.saturating_mul(*unit_us)))
}

/// Formats a duration like a window, for example `15m`, if it is a whole number of milliseconds; otherwise with a
/// fraction.
pub(crate) fn format_duration(duration: Duration) -> String {
    match crate::clock::ceil_micros(duration) {
        0 => "0s".to_owned(),
        micros if duration.subsec_nanos().is_multiple_of(1_000_000) => format_window(micros),
        _ => format!("{duration:?}"),
    }
}

/// Formats a window in the longest time unit that divides it, for example `15m`.
pub(crate) fn format_window(window_us: u64) -> String {
    match WINDOW_TIME_UNITS.iter().find(|(_, unit_us)| window_us.is_multiple_of(*unit_us)) {
        Some((name, unit_us)) => format!("{}{name}", window_us / unit_us),
        None => format!("{window_us}us"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_window_parses_to_its_length() {
        for (text, seconds) in [
            ("1/s", 1),
            ("1/2s", 2),
            ("1/m", 60),
            ("1/min", 60),
            ("1/15min", 900),
            ("1/h", 3_600),
            ("1/d", 86_400),
            ("1/w", 604_800),
        ] {
            assert_eq!(text.parse::<Quota>().unwrap().window(), Duration::from_secs(seconds));
        }
        assert_eq!("1/250ms".parse::<Quota>().unwrap().window(), Duration::from_millis(250));
    }

    #[test]
    fn printed_quota_parses_to_equal_quota() {
        for text in ["10/1s", "600/1m", "5/250ms", "0/1h", "100/15m", "7/90s", "1/366d"] {
            let quota: Quota = text.parse().unwrap();
            assert_eq!(quota.to_string(), text);
            assert_eq!(quota.to_string().parse::<Quota>().unwrap(), quota);
        }
    }

    #[test]
    fn invalid_quota_is_rejected_with_reason() {
        let error = |text: &str| text.parse::<Quota>().unwrap_err();
        assert_eq!(error("100"), QuotaError::Malformed("100".into()));
        assert_eq!(error("100/"), QuotaError::Malformed("100/".into()));
        assert_eq!(error("many/s"), QuotaError::Max("many".into()));
        assert_eq!(error("-1/s"), QuotaError::Max("-1".into()));
        assert_eq!(error("+1/s"), QuotaError::Max("+1".into()));
        assert_eq!(error("1/fortnight"), QuotaError::Window("fortnight".into()));
        assert_eq!(error("1/5"), QuotaError::Window("5".into()));
        assert_eq!(error("9007199254740992/s"), QuotaError::TooMany(9_007_199_254_740_992));
        assert_eq!(error("99999999999999999999/s"), QuotaError::TooMany(u64::MAX));
        assert_eq!(error("1/0s"), QuotaError::TooShort(Duration::ZERO));
        assert!(matches!(error("1/54w"), QuotaError::TooLong(_)));
        assert!(matches!(error("1/99999999999999999w"), QuotaError::TooLong(_)));
        assert!(error("1/99999999999999999999w").to_string().contains("is not a window"));
        assert_eq!(
            error("10 per minute").to_string(),
            "`10 per minute` is not a quota; did you mean `10/min`?"
        );
        assert_eq!(
            parse_window("5 minutes").unwrap_err().to_string(),
            "`5 minutes` is not a window; did you mean `5min`?"
        );
    }
}
