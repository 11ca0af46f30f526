//! Whose key it was, as people read it.

use std::fmt::{self, Write};

use slidegate::Value;

use crate::telemetry::redact::{RedactedValue, Redactor};

/// Bytes that are kept of a name and of a value, so that nobody can fill the memory with long ones.
const MAX_PART_BYTES: usize = 128;
/// Bytes that are kept of a whole key; parts beyond it are empty.
const MAX_LABEL_BYTES: usize = 256;
/// Stands for what is cut off.
const ELLIPSIS: char = '…';

/// Names and values, in the rule's order. Once written, it is written again without asking for memory,
/// unless the next is longer than any before.
#[derive(Clone, Debug, Default)]
pub struct KeyLabel {
    text: String,
    /// Where names and values end in the text, by turns.
    ends: Vec<u16>,
}

impl KeyLabel {
    /// Tells of another key from now on.
    pub fn write<'v>(
        &mut self,
        attributes: impl Iterator<Item = (&'v str, Value<'v>)>,
        redactor: &Redactor,
    ) {
        self.text.clear();
        self.ends.clear();
        for (name, value) in attributes {
            self.part(|part| part.write_str(name));
            match redactor.redact(name, value) {
                // The formatter takes as long as all the rest.
                RedactedValue::Value(Value::Text(text)) => {
                    self.part(|part| part.write_str(text));
                }
                shown => self.part(|part| write!(part, "{shown}")),
            }
        }
    }

    fn part(&mut self, write: impl FnOnce(&mut TruncatingWriter<'_>) -> fmt::Result) {
        let remaining_bytes = MAX_PART_BYTES.min(MAX_LABEL_BYTES.saturating_sub(self.text.len()));
        // It fails once it is cut.
        write(&mut TruncatingWriter { text: &mut self.text, remaining_bytes }).unwrap_or_default();
        self.ends.push(self.text.len() as u16);
    }

    /// Names and values.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut begin = 0;
        let mut part = move |end: &u16| {
            let part = &self.text[begin..usize::from(*end)];
            begin = usize::from(*end);
            part
        };
        self.ends.as_chunks().0.iter().map(move |[name, value]| (part(name), part(value)))
    }
}

/// Takes no more than is left, whole characters, and says so.
struct TruncatingWriter<'l> {
    text: &'l mut String,
    remaining_bytes: usize,
}

impl Write for TruncatingWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.len() <= self.remaining_bytes {
            self.remaining_bytes -= text.len();
            self.text.push_str(text);
            return Ok(());
        }
        if let Some(remaining_bytes) = self.remaining_bytes.checked_sub(ELLIPSIS.len_utf8()) {
            self.text.push_str(&text[..text.floor_char_boundary(remaining_bytes)]);
            self.text.push(ELLIPSIS);
        }
        self.remaining_bytes = 0;
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(attributes: &[(&'static str, &str)]) -> KeyLabel {
        let mut label = KeyLabel::default();
        let attributes = || attributes.iter().map(|&(name, value)| (name, value.into()));
        label.write([("an", "older one".into())].into_iter(), &Redactor::default());
        label.write(attributes(), &Redactor::default());
        label
    }

    #[test]
    fn names_and_values_are_told_as_they_came() {
        let pairs = [("tenant", "acme"), ("ip", ""), ("b", "2")];
        assert_eq!(label(&pairs).pairs().collect::<Vec<_>>(), pairs);
        assert_eq!(label(&[]).pairs().count(), 0);
    }

    #[test]
    fn a_network_is_told_as_people_read_it() {
        let mut label = KeyLabel::default();
        let network = Value::Network("2001:db8::/64".parse().unwrap());
        label.write([("ip", network)].into_iter(), &Redactor::default());
        assert_eq!(label.pairs().collect::<Vec<_>>(), [("ip", "2001:db8::/64")]);
    }

    #[test]
    fn of_a_long_value_its_beginning_is_told_and_that_it_is_cut() {
        for filler in ["x", "é", "語"] {
            let long = filler.repeat(300);
            let label = label(&[("a", &long), ("b", "2")]);
            let pairs: Vec<_> = label.pairs().collect();
            let begin = pairs[0].1.strip_suffix(ELLIPSIS).unwrap();
            assert!(long.starts_with(begin) && (120..=MAX_PART_BYTES).contains(&pairs[0].1.len()));
            assert_eq!(pairs[1], ("b", "2"));
        }
        let exact = "x".repeat(MAX_PART_BYTES);
        assert_eq!(label(&[("a", &exact)]).pairs().next(), Some(("a", &*exact)));
    }

    #[test]
    fn of_many_values_the_first_are_told() {
        let long = "x".repeat(1024);
        let label = label(&[("name", &*long); 16]);
        let pairs: Vec<_> = label.pairs().collect();
        assert!(pairs.len() == 16 && label.text.len() <= MAX_LABEL_BYTES);
        assert!(pairs[1].1.ends_with(ELLIPSIS) && pairs[15] == ("", ""));
    }
}
