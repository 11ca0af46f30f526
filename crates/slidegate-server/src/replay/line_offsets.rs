//! Where the values of a line stand in its text, so that a line is held without being read twice.

use slidegate::Timestamp;

use super::line::{Line, VALUE_COUNT};

/// A line without its text.
pub struct LineOffsets {
    time: Timestamp,
    /// Where the line begins.
    line_start: usize,
    values: [ByteRange; VALUE_COUNT],
}

/// A part of a line; none if it begins beyond its end. A line is far shorter than 4 GiB.
#[derive(Clone, Copy)]
struct ByteRange {
    begin: u32,
    end: u32,
}

impl LineOffsets {
    /// Where the values of a line stand, of which the text begins at `line_start` in a longer one.
    pub fn new(text: &str, line: &Line<'_>, line_start: usize) -> Self {
        let byte_range = |value: Option<&str>| {
            value.map_or(ByteRange::NONE, |value| ByteRange::new(text, value))
        };
        Self { time: line.time, line_start, values: line.values().map(byte_range) }
    }

    /// The line again, of the longer text.
    pub fn line<'a>(&self, text: &'a str) -> Line<'a> {
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
        // What is empty stands anywhere.
        let begin =
            first.and_then(|first| text.as_bytes().element_offset(first)).unwrap_or_default();
        Self { begin: begin as u32, end: (begin + value.len()) as u32 }
    }
}
