//! Puts lines in the order of their times. Servers write a request down when it ends, and workers when
//! they get to it, so a log is nearly sorted: holding lines for a short span of the log's own time does.

use std::collections::BTreeMap;

use slidegate::Timestamp;

use super::fields::Fields;
use super::line::Line;

/// However long the span, hardly more lines are held; the earliest go on then.
const MAX_HELD: usize = 1_000_000;

/// Lines that wait for earlier ones.
pub struct Order {
    span_us: u64,
    held: BTreeMap<Timestamp, Moment>,
    lines: usize,
    newest: Timestamp,
    /// Empty, with room for lines.
    spare: Vec<Moment>,
}

/// The lines of one time, in the order of the log.
#[derive(Default)]
pub struct Moment {
    text: String,
    lines: Vec<Fields>,
}

impl Order {
    /// Holds each line until one has been seen that is `span_us` microseconds later.
    pub fn new(span_us: u64) -> Self {
        Self {
            span_us,
            held: BTreeMap::new(),
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
        let moment = self.held.entry(line.time).or_insert_with(|| spare.pop().unwrap_or_default());
        moment.push(text, line);
    }

    /// The lines of the earliest time, if none can come before them any more.
    pub fn pop_due(&mut self) -> Option<Moment> {
        let (earliest, _) = self.held.first_key_value()?;
        let is_due = earliest.as_micros().saturating_add(self.span_us) <= self.newest.as_micros();
        if is_due || self.lines > MAX_HELD { self.pop() } else { None }
    }

    /// The lines of the earliest time, when no more are to come.
    pub fn pop(&mut self) -> Option<Moment> {
        let (_, moment) = self.held.pop_first()?;
        self.lines -= moment.lines.len();
        Some(moment)
    }

    /// Takes back the memory of lines that are done with.
    pub fn recycle(&mut self, mut moment: Moment) {
        moment.text.clear();
        moment.lines.clear();
        self.spare.push(moment);
    }
}

impl Moment {
    fn push(&mut self, text: &str, line: &Line<'_>) {
        self.lines.push(Fields::of(text, line, self.text.len()));
        self.text.push_str(text);
    }

    /// The lines, in the order of the log.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.lines.iter().map(|fields| fields.line(&self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::line;

    /// Lines of these seconds, each with its place as the method.
    fn ordered(span: u64, seconds: &[u64]) -> Vec<String> {
        let mut order = Order::new(span * 1_000_000);
        let mut out = Vec::new();
        let mut tell = |moment: &Moment| {
            let told = moment
                .lines()
                .map(|line| format!("{}{}", line.time, line.values()[0].unwrap_or_default()));
            out.extend(told.map(|told| told.replace(".000000", ".")));
        };
        for (nth, second) in seconds.iter().enumerate() {
            let text =
                format!("::1 - - [01/Jan/1970:00:00:0{second} +0000] \"{nth} / HTTP/1.1\" 200");
            order.push(&text, &line::parse(&text).unwrap());
            while let Some(moment) = order.pop_due() {
                tell(&moment);
                order.recycle(moment);
            }
        }
        while let Some(moment) = order.pop() {
            tell(&moment);
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
