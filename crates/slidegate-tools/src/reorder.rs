//! Sorts the lines of an access log by their times.
//!
//! An access log is nearly sorted, but not completely: a server writes a line when the request ends, and its workers
//! write at different moments. It is sufficient to hold each line until the times in the log have advanced by a short
//! period.

use std::collections::BTreeMap;

use slidegate::Timestamp;

use super::json_line::JsonLine;
use super::line::Line;
use super::line_offsets::LineOffsets;

/// Maximum number of lines that the buffer holds. If it is exceeded, the earliest lines are released before their delay
/// is over.
const MAX_REORDER_BUFFER_LINES: usize = 1_000_000;

/// A buffer that delays log lines, and releases them in the order of their times.
#[derive(Debug)]
pub struct ReorderBuffer {
    max_delay_us: u64,
    pending: BTreeMap<Timestamp, LineBatch>,
    pending_lines: usize,
    newest: Timestamp,
    /// Empty batches whose allocated memory is used for later lines.
    spare_batches: Vec<LineBatch>,
}

/// The log lines with one time, in the order of the log.
#[derive(Debug, Default)]
pub struct LineBatch {
    text: String,
    lines: Vec<LineOffsets>,
}

impl ReorderBuffer {
    /// Creates a buffer that holds each line until it receives a line whose time is at least `max_delay_us`
    /// microseconds later.
    pub fn new(max_delay_us: u64) -> Self {
        Self {
            max_delay_us,
            pending: BTreeMap::new(),
            pending_lines: 0,
            newest: Timestamp::default(),
            spare_batches: Vec::new(),
        }
    }

    /// Adds a line to the buffer. The line was parsed from `text`.
    pub fn push(&mut self, text: &str, line: &Line<'_>) {
        let batch = self.get_or_create_batch(line.time);
        batch.push(text, |start| LineOffsets::new(text, line, start));
    }

    /// Adds a line in JSON to the buffer.
    pub fn push_json_line(&mut self, line: &JsonLine) {
        let batch = self.get_or_create_batch(line.time);
        batch.push(&line.text, |start| LineOffsets::from_json_line(line, start));
    }

    /// Returns the batch for a new line with this time.
    fn get_or_create_batch(&mut self, time: Timestamp) -> &mut LineBatch {
        self.newest = self.newest.max(time);
        self.pending_lines += 1;
        let spare_batches = &mut self.spare_batches;
        self.pending.entry(time).or_insert_with(|| spare_batches.pop().unwrap_or_default())
    }

    /// Returns the lines with the earliest time if their delay is over, or if the buffer holds too many lines.
    /// Otherwise returns `None`.
    pub fn pop_due_batch(&mut self) -> Option<LineBatch> {
        let (earliest, _) = self.pending.first_key_value()?;
        let is_due =
            earliest.as_micros().saturating_add(self.max_delay_us) <= self.newest.as_micros();
        if is_due || self.pending_lines > MAX_REORDER_BUFFER_LINES { self.pop() } else { None }
    }

    /// Returns the lines with the earliest time even if their delay is not over, or `None` if the buffer is empty.
    /// Called at the end of the log.
    pub fn pop(&mut self) -> Option<LineBatch> {
        let (_, batch) = self.pending.pop_first()?;
        self.pending_lines -= batch.lines.len();
        Some(batch)
    }

    /// Keeps a processed batch, so that its memory is used for later lines.
    pub fn recycle_batch(&mut self, mut batch: LineBatch) {
        batch.text.clear();
        batch.lines.clear();
        self.spare_batches.push(batch);
    }
}

impl LineBatch {
    fn push(&mut self, text: &str, offsets: impl FnOnce(usize) -> LineOffsets) {
        self.lines.push(offsets(self.text.len()));
        self.text.push_str(text);
    }

    /// Returns the lines of the batch in the order of the log. `names` has the names of the further attributes of lines in
    /// JSON.
    pub fn lines<'l>(&'l self, names: &'l [Box<str>]) -> impl Iterator<Item = Line<'l>> {
        self.lines.iter().map(|offsets| offsets.to_line(&self.text, names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line;

    /// Adds lines with the given times in seconds to a buffer with a maximum delay of `max_delay` seconds. Returns the
    /// lines in the order in which the buffer releases them, each as `second.position`: its time, and its position in
    /// the input.
    fn lines_in_release_order(max_delay: u64, seconds: &[u64]) -> Vec<String> {
        let mut buffer = ReorderBuffer::new(max_delay * 1_000_000);
        let mut out = Vec::new();
        let mut output = |batch: &LineBatch| {
            let entries = batch
                .lines(&[])
                .map(|line| format!("{}{}", line.time, line.values()[0].unwrap_or_default()));
            out.extend(entries.map(|entry| entry.replace(".000000", ".")));
        };
        for (position, second) in seconds.iter().enumerate() {
            let text = format!(
                "::1 - - [01/Jan/1970:00:00:0{second} +0000] \"{position} / HTTP/1.1\" 200"
            );
            buffer.push(&text, &line::parse(&text).unwrap());
            while let Some(batch) = buffer.pop_due_batch() {
                output(&batch);
                buffer.recycle_batch(batch);
            }
        }
        while let Some(batch) = buffer.pop() {
            output(&batch);
        }
        assert_eq!(buffer.pending_lines, 0);
        out
    }

    #[test]
    fn log_lines_are_released_in_time_order() {
        assert_eq!(
            lines_in_release_order(9, &[5, 3, 5, 4, 9]),
            ["3.1", "4.3", "5.0", "5.2", "9.4"]
        );
    }

    #[test]
    fn line_later_than_max_delay_is_not_sorted() {
        assert_eq!(lines_in_release_order(2, &[1, 5, 2, 9]), ["1.0", "2.2", "5.1", "9.3"]);
        assert_eq!(lines_in_release_order(2, &[1, 5, 8, 2]), ["1.0", "5.1", "2.3", "8.2"]);
        assert_eq!(lines_in_release_order(0, &[5, 3, 4]), ["5.0", "3.1", "4.2"]);
    }
}
