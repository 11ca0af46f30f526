//! Error messages for text that is not JSON.

use super::{JsonError, JsonKind, JsonReader};

const EXAMPLE: &str = r#"{"attributes":{"client":"alice"}}"#;

/// Maximum number of characters of a request that an error message repeats.
const MAX_EXCERPT_CHARS: usize = 64;

/// Returns the beginning of a text for an error message. Bytes that are not UTF-8 are replaced.
pub fn excerpt(bytes: &[u8]) -> String {
    // A character has at most four bytes.
    let start = &bytes[..bytes.len().min(4 * MAX_EXCERPT_CHARS)];
    let text = String::from_utf8_lossy(start);
    let mut excerpt: String = text.chars().take(MAX_EXCERPT_CHARS).collect();
    if start.len() < bytes.len() || excerpt.len() < text.len() {
        excerpt.push('…');
    }
    excerpt
}

impl JsonReader<'_> {
    /// Returns the error for a body that does not begin with an object.
    pub(super) fn not_an_object_error(&self) -> JsonError {
        let problem = match &self.text[self.position..] {
            [] => "the body is empty",
            [b'[', ..] => "the body is a list",
            [b'"', ..] => "the body is a string",
            [b'\'', ..] => {
                let message = "the body is enclosed in single quotes; enclose it in double quotes in \
                               cmd.exe, for example \"{\\\"attributes\\\":{\\\"client\\\":\\\"alice\\\"}}\"";
                return self.error(self.position, message);
            }
            [0xef, 0xbb, 0xbf, ..] => {
                "the body begins with a byte order mark, which must be removed"
            }
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "the body is UTF-16, and must be UTF-8",
            [0x1f, 0x8b, ..] => "the body is compressed, which is not supported",
            [b'<', ..] => "the body is XML or HTML",
            [b'-', b'-', ..] => "the body is form data (multipart/form-data)",
            rest if self.is_form_encoded(rest) => {
                "the body is form-encoded (application/x-www-form-urlencoded)"
            }
            [b'-' | b'0'..=b'9', ..] => "the body is a number",
            _ => "the body is not an object",
        };
        let message = format!("{problem}; send a JSON object such as {EXAMPLE}");
        self.error(self.position, message)
    }

    fn is_form_encoded(&self, body: &[u8]) -> bool {
        let name_length = body.iter().position(|byte| *byte == b'=');
        name_length.is_some_and(|length| {
            length > 0 && !body[..length].iter().any(|byte| b"{}[]\":, \n".contains(byte))
        })
    }

    /// Returns the error for a body that ends within `part`.
    pub(super) fn truncated_error(&self, part: &str) -> JsonError {
        let message = format!(
            "the body ends early, after byte {} and within {part}; send the whole JSON object, and \
             check Content-Length",
            self.text.len()
        );
        self.error(self.text.len().saturating_sub(1), message)
    }

    /// Returns the error for a position at which a value is expected.
    pub(super) fn missing_value_error(&self) -> JsonError {
        let word = self.next_word();
        if self.position + word.len() == self.text.len() {
            return self.truncated_error("a value");
        }
        let message = match self.text.get(self.position) {
            Some(b',' | b'}' | b']' | b':') => {
                "a value is missing; add it, or remove its name".into()
            }
            _ => match word.as_str() {
                "" => self.unexpected_character_message(),
                "True" => "`True` is not JSON; write `true`".into(),
                "False" => "`False` is not JSON; write `false`".into(),
                "None" | "nil" | "undefined" | "NaN" | "Infinity" => {
                    format!("`{word}` is not JSON; remove this field")
                }
                _ => format!("`{word}` is not JSON; enclose text in double quotes: \"{word}\""),
            },
        };
        self.error(self.position, message)
    }

    /// Returns the error for a position at which a field name is expected.
    pub(super) fn missing_name_error(&self) -> JsonError {
        let word = self.next_word();
        let message = match self.text.get(self.position) {
            None => return self.truncated_error("an object"),
            Some(b',' | b':' | b'{' | b'[' | b']') => {
                "a field name is missing; write \"name\":\"value\"".into()
            }
            _ if word.is_empty() => self.unexpected_character_message(),
            _ => format!(
                "field name `{word}` is not in double quotes; write \"{word}\", and check whether the \
                 shell removes quotes"
            ),
        };
        self.error(self.position, message)
    }

    pub(super) fn missing_colon_error(&self) -> JsonError {
        match self.text.get(self.position) {
            None => self.truncated_error("an object"),
            Some(b'=') => self.error(self.position, "`=` after a field name; write `:`"),
            Some(_) => {
                let found = self.next_character();
                let message = format!("`{found}` follows a field name; write `:` and a value");
                self.error(self.position, message)
            }
        }
    }

    /// Returns the error for a position after an element, where neither a comma nor `end` follows.
    pub(super) fn missing_separator_error(&self, end: u8) -> JsonError {
        let kind = if end == b'}' { JsonKind::Object } else { JsonKind::List };
        match self.text.get(self.position) {
            None => self.truncated_error(kind.describe()),
            Some(_) => {
                let end = char::from(end);
                let found = self.next_character();
                let message = format!(
                    "`{found}` follows an element of {}; write `,` between elements or `{end}` at the end",
                    kind.describe()
                );
                self.error(self.position, message)
            }
        }
    }

    pub(super) fn text_after_object_error(&self) -> JsonError {
        let found = self.next_character();
        let message =
            format!("`{found}` follows the JSON object; send one object, and nothing after it");
        self.error(self.position, message)
    }

    pub(super) fn not_a_number_error(&self, word: &str) -> JsonError {
        // Only digits and signs: the number may continue after the end of the body.
        if self.position + word.len() == self.text.len() {
            return self.truncated_error("a number");
        }
        let word = excerpt(word.as_bytes());
        self.error(
            self.position,
            format!("`{word}` is not a JSON number; enclose text in double quotes: \"{word}\""),
        )
    }

    fn unexpected_character_message(&self) -> String {
        match &self.text[self.position..] {
            [b'\'', ..] => "single quotes are not JSON; write double quotes".into(),
            // Typographic quotes: U+2018 to U+201F.
            [0xe2, 0x80, 0x98..=0x9f, ..] => {
                "typographic quotes are not JSON; write straight double quotes".into()
            }
            [b'/' | b'#', ..] => "comments are not JSON; remove the comment".into(),
            [b'\\', ..] => {
                "a backslash outside of a string; remove it, and check the quotes of the shell command".into()
            }
            _ => format!("`{}` is not JSON; write text in double quotes", self.next_character()),
        }
    }

    /// Returns the letters and digits at the current position.
    fn next_word(&self) -> String {
        let rest = &self.text[self.position.min(self.text.len())..];
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-@".contains(byte);
        excerpt(&rest[..rest.iter().position(|byte| !is_word(byte)).unwrap_or(rest.len())])
    }

    fn next_character(&self) -> char {
        let rest = &self.text[self.position..];
        String::from_utf8_lossy(&rest[..rest.len().min(4)]).chars().next().unwrap_or_default()
    }
}
