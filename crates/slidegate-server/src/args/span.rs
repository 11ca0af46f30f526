//! Spans of time as flags have them.

use std::time::Duration;

/// `15ms` or `1s`, at most as long as `most`.
pub fn span(text: &str, most: Duration) -> Option<Duration> {
    let unit_at = text.find(|char: char| !char.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().ok()?;
    let span = match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return None,
    };
    (span <= most).then_some(span)
}
