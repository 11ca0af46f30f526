//! Offsets of the values of a parsed line in its text, so that a stored line is not parsed again.

use slidegate::Timestamp;

use super::line::{Line, VALUE_COUNT};

/// A parsed line without its text.
pub struct LineOffsets {
    time: Timestamp,
    /// Offset of the line in the shared text.
    line_start: usize,
    values: [ByteRange; VALUE_COUNT],
}

/// A range of bytes of a line. Represents a missing value if it begins after its end. Lines are far shorter than 4 GiB.
#[derive(Clone, Copy)]
struct ByteRange {
    begin: u32,
    end: u32,
}

impl LineOffsets {
    /// Creates the offsets of the values of a line. `line_start` is the offset of its text in the shared text.
    pub fn new(text: &str, line: &Line<'_>, line_start: usize) -> Self {
        let byte_range = |value: Option<&str>| {
            value.map_or(ByteRange::NONE, |value| ByteRange::new(text, value))
        };
        Self { time: line.time, line_start, values: line.values().map(byte_range) }
    }

    /// Returns the line, given the shared text.
    pub fn to_line<'a>(&self, text: &'a str) -> Line<'a> {
        let text = &text[self.line_start..];
        let value =
            |byte_range: ByteRange| text.get(byte_range.begin as usize..byte_range.end as usize);
        Line::from_values(self.time, self.values.map(value))
    }
}

impl ByteRange {
    const NONE: Self = Self { begin: 1, end: 0 };

    fn new(text: &str, value: &str) -> Self {
        let first = value.as_bytes().first();
        // The offset of an empty value does not matter.
        let begin =
            first.and_then(|first| text.as_bytes().element_offset(first)).unwrap_or_default();
        Self { begin: begin as u32, end: (begin + value.len()) as u32 }
    }
}
