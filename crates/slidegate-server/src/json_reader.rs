//! Reads JSON request bodies. Each error contains the line and column, the problem and a remedy.
//!
//! serde_json does not fit these bodies: it changes the digits of large numbers, and its messages contain no remedy.
//!
//! Strings are returned as bytes, because end clients choose their contents: they may contain bytes that are not UTF-8,
//! unpaired surrogates, and unescaped control characters.

mod escape;
mod syntax_error;

use std::borrow::Cow;
use std::fmt;

use memchr::memchr2;

pub use self::syntax_error::excerpt;

/// Maximum depth of nested lists and objects.
const MAX_DEPTH: usize = 128;

/// A reader of one JSON text.
pub struct JsonReader<'b> {
    text: &'b [u8],
    /// The same text, if all of it is UTF-8. It is checked once, because a check of each string takes longer.
    utf8: Option<&'b str>,
    /// The position of the next byte.
    position: usize,
}

/// The reason why a body cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub struct JsonError {
    line: usize,
    /// The column in bytes, from 1.
    column: usize,
    message: String,
}

/// The kind of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonKind {
    Object,
    List,
    String,
    Number,
    Boolean,
    Null,
}

/// A string of a JSON text.
pub struct JsonString<'b> {
    /// The position of the opening quote.
    pub position: usize,
    pub bytes: Cow<'b, [u8]>,
    /// The string as it is in the text. `None` if it has escapes, or if the text is not UTF-8.
    unescaped: Option<&'b str>,
}

/// A number of a JSON text, with its digits as written.
#[derive(Clone, Copy)]
pub struct JsonNumber<'b> {
    /// The position of the first character.
    pub position: usize,
    pub text: &'b str,
}

impl<'b> JsonString<'b> {
    /// Returns the string, or `None` if it is not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        self.unescaped.or_else(|| str::from_utf8(&self.bytes).ok())
    }

    /// Returns the string as it is in the text. Returns `None` if it has escapes, or if the text is not UTF-8.
    pub fn unescaped(&self) -> Option<&'b str> {
        self.unescaped
    }
}

impl JsonNumber<'_> {
    /// Returns `true` if the number has neither a fraction nor an exponent.
    pub fn is_integer(self) -> bool {
        !self.text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E'))
    }
}

impl JsonKind {
    /// Returns the kind with its article, for error messages.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Object => "an object",
            Self::List => "a list",
            Self::String => "a string",
            Self::Number => "a number",
            Self::Boolean => "a boolean",
            Self::Null => "null",
        }
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} column {}: {}", self.line, self.column, self.message)
    }
}

/// Checks that a text is one JSON object.
pub fn check_syntax(text: &[u8]) -> Result<(), JsonError> {
    let mut reader = JsonReader::from_object(text)?;
    reader.skip_value(0)?;
    reader.finish()
}

impl<'b> JsonReader<'b> {
    /// Creates a reader of a body that must be a JSON object. Fails if the body does not begin with an object.
    pub fn from_object(text: &'b [u8]) -> Result<Self, JsonError> {
        let mut reader = Self { text, utf8: str::from_utf8(text).ok(), position: 0 };
        match reader.peek() {
            Some(b'{') => Ok(reader),
            _ => Err(reader.not_an_object_error()),
        }
    }

    /// Creates the error for a problem at `position`, a number of bytes from the start of the text.
    pub fn error(&self, position: usize, message: impl Into<String>) -> JsonError {
        let before = &self.text[..position.min(self.text.len())];
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        JsonError { line, column: 1 + before.len() - line_start, message: message.into() }
    }

    /// Returns the position of the next byte, which after [`peek_kind`](Self::peek_kind) is the first byte of a value.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Returns the kind of the next value. Fails if no value begins here.
    #[inline]
    pub fn peek_kind(&mut self) -> Result<JsonKind, JsonError> {
        match self.peek() {
            Some(b'"') => Ok(JsonKind::String),
            Some(b'{') => Ok(JsonKind::Object),
            Some(b'[') => Ok(JsonKind::List),
            Some(b'-' | b'0'..=b'9') => Ok(JsonKind::Number),
            Some(b't') if self.starts_with_word("true") => Ok(JsonKind::Boolean),
            Some(b'f') if self.starts_with_word("false") => Ok(JsonKind::Boolean),
            Some(b'n') if self.starts_with_word("null") => Ok(JsonKind::Null),
            _ => Err(self.missing_value_error()),
        }
    }

    /// Reads an object. Calls `read_member` for each name; it must read the value.
    #[inline]
    pub fn read_object(
        &mut self,
        mut read_member: impl FnMut(&mut Self, JsonString<'b>) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        self.position += 1;
        if self.peek() == Some(b'}') {
            self.position += 1;
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.missing_name_error());
            }
            let name = self.read_string()?;
            if self.peek() != Some(b':') {
                return Err(self.missing_colon_error());
            }
            self.position += 1;
            read_member(self, name)?;
            if !self.read_separator(b'}')? {
                return Ok(());
            }
        }
    }

    /// Reads a list. Calls `read_element` before each element; it must read the element.
    pub fn read_list(
        &mut self,
        mut read_element: impl FnMut(&mut Self) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        self.position += 1;
        if self.peek() == Some(b']') {
            self.position += 1;
            return Ok(());
        }
        loop {
            read_element(self)?;
            if !self.read_separator(b']')? {
                return Ok(());
            }
        }
    }

    /// Reads a comma and returns `true`, or reads `end` and returns `false`.
    #[inline]
    fn read_separator(&mut self, end: u8) -> Result<bool, JsonError> {
        match self.peek() {
            Some(b',') => {
                let comma = self.position;
                self.position += 1;
                match self.peek() == Some(end) {
                    true => Err(self.error(comma, "a comma follows the last element; remove it")),
                    false => Ok(true),
                }
            }
            Some(byte) if byte == end => {
                self.position += 1;
                Ok(false)
            }
            _ => Err(self.missing_separator_error(end)),
        }
    }

    /// Reads a string. Must be called at its opening quote.
    #[inline]
    pub fn read_string(&mut self) -> Result<JsonString<'b>, JsonError> {
        let position = self.position;
        let rest = &self.text[position + 1..];
        let mut unescaped = None;
        let bytes = match memchr2(b'"', b'\\', rest) {
            None => return Err(self.truncated_error("a string")),
            Some(length) if rest[length] == b'"' => {
                self.position += length + 2;
                unescaped =
                    self.utf8.and_then(|utf8| utf8.get(position + 1..position + 1 + length));
                Cow::Borrowed(&rest[..length])
            }
            Some(length) => {
                self.position += length + 1;
                Cow::Owned(self.read_escaped_string(&rest[..length])?)
            }
        };
        Ok(JsonString { position, bytes, unescaped })
    }

    /// Reads a number. Must be called at its first character.
    pub fn read_number(&mut self) -> Result<JsonNumber<'b>, JsonError> {
        let position = self.position;
        let rest = &self.text[position..];
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-._:/".contains(byte);
        let length = rest.iter().position(|byte| !is_word(byte)).unwrap_or(rest.len());
        let text = str::from_utf8(&rest[..length]).unwrap_or_default();
        if !is_number(text) {
            return Err(self.not_a_number_error(text));
        }
        self.position += length;
        Ok(JsonNumber { position, text })
    }

    /// Reads `true` or `false`, and returns it as text. Must be called at a boolean.
    pub fn read_boolean(&mut self) -> &'static str {
        let text = if self.text[self.position] == b't' { "true" } else { "false" };
        self.position += text.len();
        text
    }

    /// Checks that only whitespace follows.
    pub fn finish(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.text_after_object_error()),
        }
    }

    fn skip_value(&mut self, depth: usize) -> Result<(), JsonError> {
        if depth == MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} nested lists and objects; send fewer");
            return Err(self.error(self.position, message));
        }
        match self.peek_kind()? {
            JsonKind::Object => self.read_object(|reader, _| reader.skip_value(depth + 1)),
            JsonKind::List => self.read_list(|reader| reader.skip_value(depth + 1)),
            JsonKind::String => self.read_string().map(drop),
            JsonKind::Number => self.read_number().map(drop),
            JsonKind::Boolean => {
                self.read_boolean();
                Ok(())
            }
            JsonKind::Null => {
                self.position += "null".len();
                Ok(())
            }
        }
    }

    /// Skips whitespace, and returns the next byte.
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        self.skip_whitespace();
        self.text.get(self.position).copied()
    }

    #[inline]
    fn skip_whitespace(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(self.position) {
            self.position += 1;
        }
    }

    /// Returns `true` if the next word is `word`, and not only its beginning.
    fn starts_with_word(&self, word: &str) -> bool {
        let rest = &self.text[self.position..];
        rest.starts_with(word.as_bytes())
            && !rest.get(word.len()).is_some_and(|byte| byte.is_ascii_alphanumeric())
    }
}

/// Returns `true` if a text is a JSON number.
fn is_number(text: &str) -> bool {
    let skip_digits =
        |text: &str| text.trim_start_matches(|char: char| char.is_ascii_digit()).len();
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let whole_digits = unsigned.len() - skip_digits(unsigned);
    if whole_digits == 0 || (whole_digits > 1 && unsigned.starts_with('0')) {
        return false;
    }
    let mut rest = &unsigned[whole_digits..];
    for (prefixes, signs) in [(&['.'][..], &[][..]), (&['e', 'E'][..], &['+', '-'][..])] {
        let Some(digits) = rest.strip_prefix(prefixes) else { continue };
        let digits = digits.strip_prefix(signs).unwrap_or(digits);
        if skip_digits(digits) == digits.len() {
            return false;
        }
        rest = &digits[digits.len() - skip_digits(digits)..];
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests;
