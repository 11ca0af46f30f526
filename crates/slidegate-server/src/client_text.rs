//! Text that end clients choose: JSON bodies made readable before they are parsed, and excerpts for error messages.

use std::borrow::Cow;

/// Maximum number of characters of a value or name that an error message repeats.
const MAX_EXCERPT_CHARS: usize = 64;

/// Maximum number of characters of each of the two parts of a parser's message: the problem, and the expected types.
const MAX_PROBLEM_PART_CHARS: usize = 320;

/// Returns the beginning of a text for an error message.
pub fn excerpt(text: &str) -> String {
    truncate(text, MAX_EXCERPT_CHARS)
}

fn truncate(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns a JSON body with strings that serde_json accepts. In a string, bytes that are not UTF-8 and unpaired
/// surrogates become U+FFFD, and control characters are escaped. Other bodies are returned without a copy.
///
/// End clients choose strings in a body, and callers often allow a request if its check fails. If a string could make
/// a check fail, a client could bypass its limits.
pub fn repair_json(body: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(body);
    let bytes = text.as_bytes();
    // `fold` instead of `any`, because the compiler vectorizes it.
    let is_suspect =
        bytes.iter().fold(false, |found, byte| found | (*byte == b'\\') | (*byte < b' '));
    if !is_suspect {
        return text;
    }
    let (mut repaired, mut copied) = (String::new(), 0);
    let (mut position, mut in_string) = (0, false);
    while let Some(byte) = bytes.get(position) {
        let (length, replacement) = match byte {
            b'\\' => repair_escape(&bytes[position..]),
            ..b' ' if in_string => (1, Some(format!("\\u{byte:04x}"))),
            _ => (1, None),
        };
        in_string ^= *byte == b'"';
        if let Some(replacement) = replacement {
            repaired += &text[copied..position];
            repaired += &replacement;
            copied = position + length;
        }
        position += length;
    }
    if copied == 0 {
        return text;
    }
    repaired += &text[copied..];
    repaired.into()
}

/// Returns the length of the escape sequence with which `bytes` begins, and its replacement if it is an unpaired
/// surrogate.
fn repair_escape(bytes: &[u8]) -> (usize, Option<String>) {
    match (surrogate(bytes), bytes.get(6..).and_then(surrogate)) {
        (Some(0xd800..0xdc00), Some(0xdc00..)) => (12, None),
        (Some(_), _) => (6, Some("\\ufffd".into())),
        (None, _) => (2, None),
    }
}

/// Returns the surrogate that the escape sequence at the start of `bytes` represents.
fn surrogate(bytes: &[u8]) -> Option<u16> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    let code = u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    (0xd800..0xe000).contains(&code).then_some(code)
}

/// Returns the location and the problem of a JSON error, as `line 1 column 2: problem`.
pub fn describe_json_error(error: &serde_json::Error) -> String {
    let location = format!("line {} column {}", error.line(), error.column());
    let message = error.to_string().replace("EOF while parsing", "the body ends within");
    let problem = message.strip_suffix(&format!(" at {location}")).unwrap_or(&message);
    // serde's messages repeat a value or name of any length, and end with the types or fields that are expected.
    let expected = problem.rfind(", expected").unwrap_or(problem.len());
    let (found, expected) = problem.split_at(expected);
    let [found, expected] = [found, expected].map(|part| truncate(part, MAX_PROBLEM_PART_CHARS));
    format!("{location}: {found}{expected}")
}

#[cfg(test)]
mod tests;
