//! Puts lines in the order of their times. Servers write a request down when it ends, and workers when
//! they get to it, so a log is nearly sorted: holding lines for a short span of the log's own time does.

use std::collections::BTreeMap;

use slidegate::Timestamp;

use super::line::Line;
use super::line_offsets::LineOffsets;

/// However long the span, hardly more lines are held; the earliest go on then.
const MAX_PENDING_LINES: usize = 1_000_000;

/// Lines that wait for earlier ones.
pub struct ReorderBuffer {
    max_delay_us: u64,
    pending: BTreeMap<Timestamp, LineBatch>,
    lines: usize,
    newest: Timestamp,
    /// Empty, with room for lines.
    spare: Vec<LineBatch>,
}

/// The lines of one time, in the order of the log.
#[derive(Default)]
pub struct LineBatch {
    text: String,
    lines: Vec<LineOffsets>,
}

impl ReorderBuffer {
    /// Holds each line until one has been seen that is `max_delay_us` microseconds later.
    pub fn new(max_delay_us: u64) -> Self {
        Self {
            max_delay_us,
            pending: BTreeMap::new(),
            lines: 0,
            newest: Timestamp::default(),
            spare: Vec::new(),
        }
    }

    /// Holds a line, which has been made of this text.
    pub fn push(&mut self, text: &str, line: &Line<'_>) {
        self.newest = self.newest.max(line.time);
        self.lines += 1;
        let spare = &mut self.spare;
        let batch =
            self.pending.entry(line.time).or_insert_with(|| spare.pop().unwrap_or_default());
        batch.push(text, line);
    }

    /// The lines of the earliest time, if none can come before them any more.
    pub fn pop_due(&mut self) -> Option<LineBatch> {
        let (earliest, _) = self.pending.first_key_value()?;
        let is_due =
            earliest.as_micros().saturating_add(self.max_delay_us) <= self.newest.as_micros();
        if is_due || self.lines > MAX_PENDING_LINES { self.pop() } else { None }
    }

    /// The lines of the earliest time, when no more are to come.
    pub fn pop(&mut self) -> Option<LineBatch> {
        let (_, batch) = self.pending.pop_first()?;
        self.lines -= batch.lines.len();
        Some(batch)
    }

    /// Takes back the memory of lines that are done with.
    pub fn recycle(&mut self, mut batch: LineBatch) {
        batch.text.clear();
        batch.lines.clear();
        self.spare.push(batch);
    }
}

impl LineBatch {
    fn push(&mut self, text: &str, line: &Line<'_>) {
        self.lines.push(LineOffsets::new(text, line, self.text.len()));
        self.text.push_str(text);
    }

    /// The lines, in the order of the log.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.lines.iter().map(|line_offsets| line_offsets.line(&self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::line;

    /// Lines of these seconds, each with its place as the method.
    fn ordered(span: u64, seconds: &[u64]) -> Vec<String> {
        let mut order = ReorderBuffer::new(span * 1_000_000);
        let mut out = Vec::new();
        let mut tell = |batch: &LineBatch| {
            let told = batch
                .lines()
                .map(|line| format!("{}{}", line.time, line.values()[0].unwrap_or_default()));
            out.extend(told.map(|told| told.replace(".000000", ".")));
        };
        for (nth, second) in seconds.iter().enumerate() {
            let text =
                format!("::1 - - [01/Jan/1970:00:00:0{second} +0000] \"{nth} / HTTP/1.1\" 200");
            order.push(&text, &line::parse(&text).unwrap());
            while let Some(batch) = order.pop_due() {
                tell(&batch);
                order.recycle(batch);
            }
        }
        while let Some(batch) = order.pop() {
            tell(&batch);
        }
        assert_eq!(order.lines, 0);
        out
    }

    #[test]
    fn lines_come_out_by_time_and_of_one_time_as_they_came() {
        assert_eq!(ordered(9, &[5, 3, 5, 4, 9]), ["3.1", "4.3", "5.0", "5.2", "9.4"]);
    }

    #[test]
    fn a_line_that_is_later_than_the_span_is_not_waited_for() {
        assert_eq!(ordered(2, &[1, 5, 2, 9]), ["1.0", "2.2", "5.1", "9.3"]);
        assert_eq!(ordered(2, &[1, 5, 8, 2]), ["1.0", "5.1", "2.3", "8.2"]);
        assert_eq!(ordered(0, &[5, 3, 4]), ["5.0", "3.1", "4.2"]);
    }
}
