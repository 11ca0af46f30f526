//! Parsers for flag values that several flags share: durations and memory sizes.

use std::time::Duration;

use bytesize::ByteSize;
use slidegate::store::memory::MIN_MAX_MEMORY;

/// Parses a duration such as `15ms` or `1s`. Returns `None` if the text is invalid or the duration exceeds `max`.
pub fn parse_duration(text: &str, max: Duration) -> Option<Duration> {
    let unit_start = text.find(|char: char| !char.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_start);
    let number: u64 = number.parse().ok()?;
    let duration = match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return None,
    };
    (duration <= max).then_some(duration)
}

/// Parses a memory size such as `512MiB`, `1GiB` or a number of bytes, and returns it in bytes. Rejects sizes below the
/// minimum of a memory store.
pub fn parse_max_memory(text: &str) -> Result<usize, String> {
    let invalid =
        || format!("`{text}` is not a size; write it as 512MiB, 1GiB or in bytes, at least 1MiB");
    let size: ByteSize = text.parse().map_err(|_| invalid())?;
    let bytes = usize::try_from(size.as_u64()).map_err(|_| invalid())?;
    if bytes < MIN_MAX_MEMORY { Err(invalid()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(error.contains(&format!("`{text}`")) && error.contains("512MiB"), "{error}");
        }
    }
}
