//! Parsers for flag values that several flags share: durations, memory sizes, and hosts with ports.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use slidegate::store::memory::MIN_MEMORY_BUDGET_BYTES;

use crate::boot::listen::is_host_char;

/// The units of durations, from the largest to the smallest, each with its length in milliseconds.
const DURATION_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// The range of a flag that is a duration, and an example for error messages.
#[derive(Clone, Copy, Debug)]
pub struct DurationRange {
    pub min: Duration,
    pub max: Duration,
    /// A valid value, such as `75s`.
    pub example: &'static str,
}

impl DurationRange {
    /// Parses a duration with its unit, such as `500ms`, `75s`, `5m` or `1h`.
    pub fn parse(self, text: &str) -> Result<Duration, String> {
        let Self { min, max, example } = self;
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("write a duration with its unit, for example {example}"));
        }
        let duration = parse_duration(text).ok_or_else(|| {
            format!("write a whole number with the unit ms, s, m or h, for example {example}")
        })?;
        if (min..=max).contains(&duration) {
            return Ok(duration);
        }
        let (min, max) = (DisplayDuration(min), DisplayDuration(max));
        Err(format!("write a duration from {min} to {max}, for example {example}"))
    }
}

/// Parses a whole number with a unit. Returns `None` if the text has another form.
fn parse_duration(text: &str) -> Option<Duration> {
    let unit_start = text.find(|char: char| !char.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_start);
    let (_, unit_millis) = DURATION_UNITS.into_iter().find(|(name, _)| *name == unit)?;
    // A number that overflows becomes the largest number, which exceeds the maximum of every flag.
    let number = number.parse().unwrap_or(u64::MAX);
    (unit_start > 0).then(|| Duration::from_millis(unit_millis.saturating_mul(number)))
}

/// Formats a duration with the largest unit in which it is a whole number.
struct DisplayDuration(Duration);

impl fmt::Display for DisplayDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let whole = DURATION_UNITS.into_iter().find(|(_, unit)| millis.is_multiple_of(*unit));
        match whole.filter(|_| millis > 0) {
            Some((name, unit)) => write!(f, "{}{name}", millis / unit),
            None => f.write_str("0s"),
        }
    }
}

/// Parses the maximum memory of a memory store.
pub fn parse_max_memory(text: &str) -> Result<usize, String> {
    parse_size(text, MIN_MEMORY_BUDGET_BYTES, "1MiB")
}

/// Parses a memory size such as `512MiB`, `1GiB` or a number of bytes, and returns it in bytes. Rejects sizes below
/// `min`, which errors show as `min_text`.
pub fn parse_size(text: &str, min: usize, min_text: &str) -> Result<usize, String> {
    let size: Option<ByteSize> = text.parse().ok();
    let bytes = size.and_then(|size| usize::try_from(size.as_u64()).ok());
    bytes.filter(|bytes| *bytes >= min).ok_or_else(|| {
        format!("write a size of {min_text} or more, for example 512MiB, 1GiB or a number of bytes")
    })
}

/// Parses a number that must not be zero, such as a [`NonZeroUsize`](std::num::NonZeroUsize).
pub fn parse_nonzero<T: FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "write a whole number of 1 or more")
}

/// Parses a host name without a port. An empty text is accepted, because the environment variable of a flag may be
/// empty.
pub fn parse_host_name(text: &str) -> Result<String, &'static str> {
    if text.chars().all(is_host_char) {
        Ok(text.to_owned())
    } else {
        Err("write a host name without scheme and port, for example slidegate.internal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: DurationRange = DurationRange {
        min: Duration::from_millis(10),
        max: Duration::from_secs(7200),
        example: "75s",
    };

    #[test]
    fn duration_accepts_every_unit() {
        for (text, ms) in [("10ms", 10), ("75s", 75_000), ("5m", 300_000), ("2h", 7_200_000)] {
            assert_eq!(RANGE.parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn invalid_duration_error_has_remedy() {
        for (text, error) in [
            ("75", "write a duration with its unit, for example 75s"),
            ("0", "write a duration with its unit, for example 75s"),
            ("9ms", "write a duration from 10ms to 2h, for example 75s"),
            ("7201s", "write a duration from 10ms to 2h, for example 75s"),
            ("99999999999999999999s", "write a duration from 10ms to 2h, for example 75s"),
        ] {
            assert_eq!(RANGE.parse(text), Err(error.to_owned()), "{text}");
        }
        for text in ["", "s", "ms", "1.5s", "-1s", "+1s", "15 ms", "1d", "1min", "1S", "1s1ms"] {
            let error = RANGE.parse(text).unwrap_err();
            assert!(error.contains("with the unit ms, s, m or h"), "{text}: {error}");
        }
    }

    #[test]
    fn displayed_duration_has_largest_whole_unit() {
        for (ms, text) in [(0, "0s"), (1, "1ms"), (1_500, "1500ms"), (90_000, "90s")] {
            assert_eq!(DisplayDuration(Duration::from_millis(ms)).to_string(), text);
        }
        assert_eq!(DisplayDuration(Duration::from_secs(86_400)).to_string(), "24h");
    }

    #[test]
    fn host_name_has_no_scheme_or_port() {
        for name in ["slidegate.internal", "node_1-a", ""] {
            assert_eq!(parse_host_name(name).as_deref(), Ok(name));
        }
        for invalid in ["http://a", "a:6070", "[::1]", "a b", "*.a"] {
            assert!(parse_host_name(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn memory_size_accepts_units_and_bytes() {
        for (text, bytes) in [
            ("1GiB", 1 << 30),
            ("512MiB", 512 << 20),
            ("2 MiB", 2 << 20),
            ("1.5GiB", 3 << 29),
            ("100MB", 100_000_000),
            ("1048576", 1 << 20),
        ] {
            assert_eq!(parse_max_memory(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_or_too_small_memory_size_is_rejected() {
        for text in ["", "much", "-1GiB", "0", "1023KiB", "1048575", "1GiBs", "GiB"] {
            let error = parse_max_memory(text).unwrap_err();
            assert!(error.contains("1MiB or more") && error.contains("512MiB"), "{error}");
        }
    }
}
