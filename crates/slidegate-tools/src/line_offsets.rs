//! Stores parsed lines as the byte offsets of their values, so that a stored line need not be parsed again.

use slidegate::Timestamp;

use super::line::{Line, VALUE_COUNT};

/// A parsed line without its text. Several lines share one text buffer, and each line stores only the offsets of its
/// values in it.
#[derive(Debug)]
pub struct LineOffsets {
    time: Timestamp,
    /// The byte offset of the line in the shared text buffer.
    line_start: usize,
    values: [ByteRange; VALUE_COUNT],
}

/// The byte range of a value in its line. A range that begins after its end represents a missing value. 32 bits are
/// sufficient, because lines are far shorter than 4 GiB.
#[derive(Debug, Clone, Copy)]
struct ByteRange {
    begin: u32,
    end: u32,
}

impl LineOffsets {
    /// Creates the offsets of the values of a line, which was parsed from `text`. `line_start` is the byte offset of
    /// `text` in the shared text buffer.
    pub fn new(text: &str, line: &Line<'_>, line_start: usize) -> Self {
        let byte_range = |value: Option<&str>| {
            value.map_or(ByteRange::MISSING_VALUE_RANGE, |value| ByteRange::new(text, value))
        };
        Self { time: line.time, line_start, values: line.values().map(byte_range) }
    }

    /// Returns the line with its values. `text` is the shared text buffer.
    pub fn to_line<'a>(&self, text: &'a str) -> Line<'a> {
        let text = &text[self.line_start..];
        let value =
            |byte_range: ByteRange| text.get(byte_range.begin as usize..byte_range.end as usize);
        Line::from_values(self.time, self.values.map(value))
    }
}

impl ByteRange {
    const MISSING_VALUE_RANGE: Self = Self { begin: 1, end: 0 };

    fn new(text: &str, value: &str) -> Self {
        let first = value.as_bytes().first();
        // The offset of an empty value does not matter.
        let begin =
            first.and_then(|first| text.as_bytes().element_offset(first)).unwrap_or_default();
        Self { begin: begin as u32, end: (begin + value.len()) as u32 }
    }
}
