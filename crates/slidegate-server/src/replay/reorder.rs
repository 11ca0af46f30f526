//! Sorts lines by their times.
//!
//! Servers write a line when a request ends, and workers write at different moments, so a log is nearly sorted. It is
//! sufficient to hold each line for a short period of the log's own time.

use std::collections::BTreeMap;

use slidegate::Timestamp;

use super::line::Line;
use super::line_offsets::LineOffsets;

/// Maximum number of pending lines. If it is exceeded, the earliest lines are released before their delay is over.
const MAX_PENDING_LINES: usize = 1_000_000;

/// A buffer that releases lines in the order of their times.
pub struct ReorderBuffer {
    max_delay_us: u64,
    pending: BTreeMap<Timestamp, LineBatch>,
    pending_lines: usize,
    newest: Timestamp,
    /// Empty batches with allocated memory, for reuse.
    spare_batches: Vec<LineBatch>,
}

/// The lines of one point in time, in the order of the log.
#[derive(Default)]
pub struct LineBatch {
    text: String,
    lines: Vec<LineOffsets>,
}

impl ReorderBuffer {
    /// Creates a buffer that holds each line until a line has arrived that is `max_delay_us` microseconds later.
    pub fn new(max_delay_us: u64) -> Self {
        Self {
            max_delay_us,
            pending: BTreeMap::new(),
            pending_lines: 0,
            newest: Timestamp::default(),
            spare_batches: Vec::new(),
        }
    }

    /// Adds a line, which was parsed from `text`.
    pub fn push(&mut self, text: &str, line: &Line<'_>) {
        self.newest = self.newest.max(line.time);
        self.pending_lines += 1;
        let spare_batches = &mut self.spare_batches;
        let batch = self
            .pending
            .entry(line.time)
            .or_insert_with(|| spare_batches.pop().unwrap_or_default());
        batch.push(text, line);
    }

    /// Returns the lines of the earliest time, if no earlier line is expected any more.
    pub fn pop_due(&mut self) -> Option<LineBatch> {
        let (earliest, _) = self.pending.first_key_value()?;
        let is_due =
            earliest.as_micros().saturating_add(self.max_delay_us) <= self.newest.as_micros();
        if is_due || self.pending_lines > MAX_PENDING_LINES { self.pop() } else { None }
    }

    /// Returns the lines of the earliest time. For the end of the log.
    pub fn pop(&mut self) -> Option<LineBatch> {
        let (_, batch) = self.pending.pop_first()?;
        self.pending_lines -= batch.lines.len();
        Some(batch)
    }

    /// Takes a processed batch back, to reuse its memory.
    pub fn recycle(&mut self, mut batch: LineBatch) {
        batch.text.clear();
        batch.lines.clear();
        self.spare_batches.push(batch);
    }
}

impl LineBatch {
    fn push(&mut self, text: &str, line: &Line<'_>) {
        self.lines.push(LineOffsets::new(text, line, self.text.len()));
        self.text.push_str(text);
    }

    /// Returns the lines in the order of the log.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.lines.iter().map(|offsets| offsets.to_line(&self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::line;

    /// Returns the order of lines with these seconds. The method of each line is its position in the input.
    fn ordered(span: u64, seconds: &[u64]) -> Vec<String> {
        let mut buffer = ReorderBuffer::new(span * 1_000_000);
        let mut out = Vec::new();
        let mut output = |batch: &LineBatch| {
            let entries = batch
                .lines()
                .map(|line| format!("{}{}", line.time, line.values()[0].unwrap_or_default()));
            out.extend(entries.map(|entry| entry.replace(".000000", ".")));
        };
        for (position, second) in seconds.iter().enumerate() {
            let text = format!(
                "::1 - - [01/Jan/1970:00:00:0{second} +0000] \"{position} / HTTP/1.1\" 200"
            );
            buffer.push(&text, &line::parse(&text).unwrap());
            while let Some(batch) = buffer.pop_due() {
                output(&batch);
                buffer.recycle(batch);
            }
        }
        while let Some(batch) = buffer.pop() {
            output(&batch);
        }
        assert_eq!(buffer.pending_lines, 0);
        out
    }

    #[test]
    fn lines_are_released_in_time_order() {
        assert_eq!(ordered(9, &[5, 3, 5, 4, 9]), ["3.1", "4.3", "5.0", "5.2", "9.4"]);
    }

    #[test]
    fn line_later_than_delay_is_out_of_order() {
        assert_eq!(ordered(2, &[1, 5, 2, 9]), ["1.0", "2.2", "5.1", "9.3"]);
        assert_eq!(ordered(2, &[1, 5, 8, 2]), ["1.0", "5.1", "2.3", "8.2"]);
        assert_eq!(ordered(0, &[5, 3, 4]), ["5.0", "3.1", "4.2"]);
    }
}
