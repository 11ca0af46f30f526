//! The displayed form of a key: its attribute names and values, bounded in length.

use std::fmt::{self, Write};

use slidegate::Value;

use crate::telemetry::redact::{RedactedValue, Redactor};

/// Maximum number of bytes of a name or a value, so that clients cannot exhaust memory with long values.
const MAX_PART_BYTES: usize = 128;
/// Maximum number of bytes of a whole key. Names and values after this bound are empty.
const MAX_LABEL_BYTES: usize = 256;
/// Replaces the removed end of a cut name or value.
const ELLIPSIS: char = '…';

/// The names and values of a key, in the order of the rule. The buffers are reused: a new key allocates only if it is
/// longer than all previous ones.
#[derive(Clone, Debug, Default)]
pub struct KeyLabel {
    text: String,
    /// End offsets of names and values in the text, alternating.
    ends: Vec<u16>,
}

impl KeyLabel {
    /// Replaces the contents with another key.
    pub fn write<'v>(
        &mut self,
        attributes: impl Iterator<Item = (&'v str, Value<'v>)>,
        redactor: &Redactor,
    ) {
        self.text.clear();
        self.ends.clear();
        for (name, value) in attributes {
            self.push_part(|part| part.write_str(name));
            match redactor.redact(name, value) {
                // Text is copied directly, because formatting it would take as long as all other work here.
                RedactedValue::Plain(Value::Text(text)) => {
                    self.push_part(|part| part.write_str(text));
                }
                redacted => self.push_part(|part| write!(part, "{redacted}")),
            }
        }
    }

    fn push_part(&mut self, write: impl FnOnce(&mut TruncatingWriter<'_>) -> fmt::Result) {
        let remaining_bytes = MAX_PART_BYTES.min(MAX_LABEL_BYTES.saturating_sub(self.text.len()));
        // Writing fails if the part was cut, which is not an error here.
        write(&mut TruncatingWriter { text: &mut self.text, remaining_bytes }).unwrap_or_default();
        self.ends.push(self.text.len() as u16);
    }

    /// Returns the names and values.
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

/// Appends at most `remaining_bytes` bytes, cuts between characters, and fails once something was cut.
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
    fn label_keeps_names_and_values_in_order() {
        let pairs = [("tenant", "acme"), ("ip", ""), ("b", "2")];
        assert_eq!(label(&pairs).pairs().collect::<Vec<_>>(), pairs);
        assert_eq!(label(&[]).pairs().count(), 0);
    }

    #[test]
    fn label_shows_network_in_cidr_form() {
        let mut label = KeyLabel::default();
        let network = Value::Network("2001:db8::/64".parse().unwrap());
        label.write([("ip", network)].into_iter(), &Redactor::default());
        assert_eq!(label.pairs().collect::<Vec<_>>(), [("ip", "2001:db8::/64")]);
    }

    #[test]
    fn long_value_is_cut_with_ellipsis() {
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
    fn label_bound_leaves_later_values_empty() {
        let long = "x".repeat(1024);
        let label = label(&[("name", &*long); 16]);
        let pairs: Vec<_> = label.pairs().collect();
        assert!(pairs.len() == 16 && label.text.len() <= MAX_LABEL_BYTES);
        assert!(pairs[1].1.ends_with(ELLIPSIS) && pairs[15] == ("", ""));
    }
}
