//! Stores parsed lines as the byte offsets of their values, so that a stored line need not be parsed again.

use std::ops::Range;

use slidegate::Timestamp;

use super::json_line::JsonLine;
use super::line::{ATTRIBUTE_COUNT, Line};

/// A parsed line without its text. Several lines share one text buffer, and each line stores only the offsets of its
/// values in it.
#[derive(Debug)]
pub struct LineOffsets {
    time: Timestamp,
    /// The byte offset of the line in the shared text buffer.
    line_start: usize,
    values: [ByteRange; ATTRIBUTE_COUNT],
    /// The values of further attributes, which only lines in JSON have.
    other_attributes: Box<[ByteRange]>,
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
        let values = line.values().map(byte_range);
        Self { time: line.time, line_start, values, other_attributes: Box::default() }
    }

    /// Creates the offsets of the values of a line in JSON. `line_start` is the byte offset of its text in the shared
    /// text buffer.
    pub fn from_json_line(line: &JsonLine, line_start: usize) -> Self {
        let byte_range = |range: &Option<Range<usize>>| match range {
            Some(range) => ByteRange { begin: range.start as u32, end: range.end as u32 },
            None => ByteRange::MISSING_VALUE_RANGE,
        };
        let values = line.standard_attributes.each_ref().map(byte_range);
        Self {
            time: line.time,
            line_start,
            values,
            other_attributes: line.other_attributes.iter().map(byte_range).collect(),
        }
    }

    /// Returns the line with its values. `text` is the shared text buffer, and `names` has the names of the further
    /// attributes of lines in JSON.
    pub fn to_line<'a>(&self, text: &'a str, names: &'a [Box<str>]) -> Line<'a> {
        let text = &text[self.line_start..];
        let value =
            |byte_range: ByteRange| text.get(byte_range.begin as usize..byte_range.end as usize);
        let others = names.iter().zip(&self.other_attributes);
        let others = others.filter_map(|(name, range)| Some((&**name, value(*range)?)));
        Line::from_values(self.time, self.values.map(value), others.collect())
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
