//! Puts lines in the order of their times. Servers write a request down when it ends, and workers when
//! they get to it, so a log is nearly sorted: holding lines for a short span of the log's own time does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slidegate::Timestamp;

/// However long the span, no more lines are held; the earliest goes on then.
const MOST_HELD: usize = 1_000_000;

/// Lines that wait for earlier ones.
pub struct Order {
    span_us: u64,
    held: BinaryHeap<Reverse<Held>>,
    newest: Timestamp,
    lines: u64,
}

/// A line, ordered by time and, of one time, as in the log.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    time: Timestamp,
    number: u64,
    text: Box<str>,
}

impl Order {
    /// Holds each line until one has been seen that is `span_us` microseconds later.
    pub fn new(span_us: u64) -> Self {
        Self { span_us, held: BinaryHeap::new(), newest: Timestamp::default(), lines: 0 }
    }

    pub fn push(&mut self, time: Timestamp, text: &str) {
        self.newest = self.newest.max(time);
        self.lines += 1;
        self.held.push(Reverse(Held { time, number: self.lines, text: text.into() }));
    }

    /// The earliest line, if none can come before it any more.
    pub fn pop_due(&mut self) -> Option<Box<str>> {
        let Reverse(earliest) = self.held.peek()?;
        let is_due =
            earliest.time.as_micros().saturating_add(self.span_us) <= self.newest.as_micros();
        if is_due || self.held.len() > MOST_HELD { self.pop() } else { None }
    }

    /// The earliest line, when no more are to come.
    pub fn pop(&mut self) -> Option<Box<str>> {
        self.held.pop().map(|Reverse(earliest)| earliest.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(span_us: u64, times: &[u64]) -> Vec<String> {
        let mut order = Order::new(span_us);
        let mut out = Vec::new();
        for (nth, &time) in times.iter().enumerate() {
            order.push(Timestamp::from_micros(time), &format!("{time}.{nth}"));
            out.extend(std::iter::from_fn(|| order.pop_due()));
        }
        out.extend(std::iter::from_fn(|| order.pop()));
        out.into_iter().map(String::from).collect()
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
