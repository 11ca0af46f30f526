//! Where the values of a line stand in its text, so that a line is held without being read twice.

use slidegate::Timestamp;

use super::line::{Line, VALUES};

/// A line without its text.
pub struct Fields {
    time: Timestamp,
    /// Where the line begins.
    from: usize,
    values: [Span; VALUES],
}

/// A part of a line; none if it begins beyond its end. A line is far shorter than 4 GiB.
#[derive(Clone, Copy)]
struct Span {
    begin: u32,
    end: u32,
}

impl Fields {
    /// Where the values of a line stand, of which the text begins at `from` in a longer one.
    pub fn of(text: &str, line: &Line<'_>, from: usize) -> Self {
        let span = |value: Option<&str>| value.map_or(Span::NONE, |value| Span::of(text, value));
        Self { time: line.time, from, values: line.values().map(span) }
    }

    /// The line again, of the longer text.
    pub fn line<'a>(&self, text: &'a str) -> Line<'a> {
        let text = &text[self.from..];
        let value = |span: Span| text.get(span.begin as usize..span.end as usize);
        Line::of_values(self.time, self.values.map(value))
    }
}

impl Span {
    const NONE: Self = Self { begin: 1, end: 0 };

    fn of(text: &str, value: &str) -> Self {
        let first = value.as_bytes().first();
        // What is empty stands anywhere.
        let begin =
            first.and_then(|first| text.as_bytes().element_offset(first)).unwrap_or_default();
        Self { begin: begin as u32, end: (begin + value.len()) as u32 }
    }
}
