//! Sizes of memory as flags have them.

use bytesize::ByteSize;
use slidegate::store::memory::MIN_MAX_MEMORY;

/// Reads `512MiB`, `1GiB` or plain bytes: at least what a store has to have.
pub fn max_memory(text: &str) -> Result<usize, String> {
    let wrong =
        || format!("`{text}` is not a size; write it as 512MiB, 1GiB or in bytes, at least 1MiB");
    let size: ByteSize = text.parse().map_err(|_| wrong())?;
    let bytes = usize::try_from(size.as_u64()).map_err(|_| wrong())?;
    if bytes < MIN_MAX_MEMORY { Err(wrong()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_has_unit_or_is_bytes() {
        for (text, bytes) in [
            ("1GiB", 1 << 30),
            ("512MiB", 512 << 20),
            ("2 MiB", 2 << 20),
            ("1.5GiB", 3 << 29),
            ("100MB", 100_000_000),
            ("1048576", 1 << 20),
        ] {
            assert_eq!(max_memory(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn size_that_is_none_or_too_small_is_rejected() {
        for text in ["", "much", "-1GiB", "0", "1023KiB", "1048575", "1GiBs", "GiB"] {
            let error = max_memory(text).unwrap_err();
            assert!(error.contains(&format!("`{text}`")) && error.contains("512MiB"), "{error}");
        }
    }
}
