//! Excerpts of text that clients choose, for messages.

/// Maximum number of characters of a value or name that an error message repeats.
const MAX_EXCERPT_CHARS: usize = 64;

/// Returns the beginning of a text for an error message.
pub fn excerpt(text: &str) -> String {
    truncate(text, MAX_EXCERPT_CHARS)
}

/// Returns the first characters of a text, with an ellipsis if there are more.
pub fn truncate(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_is_cut_at_character() {
        assert_eq!(excerpt(&"é".repeat(100)), "é".repeat(64) + "…");
        assert_eq!(excerpt(&"x".repeat(64)), "x".repeat(64));
    }
}
