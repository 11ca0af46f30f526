//! The displayed text of a key: its attribute names and values, bounded in length.

use std::fmt::{self, Write};

use slidegate::store::Value;

use crate::telemetry::redact::{RedactedValue, Redactor};

/// Maximum number of bytes of one attribute name or value, so that clients cannot exhaust memory with long values.
const MAX_NAME_OR_VALUE_BYTES: usize = 128;
/// Maximum number of bytes of all names and values of a key. Names and values beyond this length are empty.
const MAX_LABEL_BYTES: usize = 256;
/// The character that replaces the removed end of a cut name or value.
const ELLIPSIS: char = '…';

/// The attribute names and values of a key, for display, in the order of the rule. The buffers are reused: writing
/// another key allocates memory only if it is longer than all previous keys.
#[derive(Clone, Debug, Default)]
pub struct KeyLabel {
    text: String,
    /// The byte offsets in `text` at which each name and each value ends, alternating.
    ends: Vec<u16>,
}

impl KeyLabel {
    /// Replaces the contents with the attribute names and values of another key. `redactor` decides which values are
    /// hashed.
    pub fn write<'v>(
        &mut self,
        attributes: impl Iterator<Item = (&'v str, Value<'v>)>,
        redactor: &Redactor,
    ) {
        self.text.clear();
        self.ends.clear();
        for (name, value) in attributes {
            self.append_name_or_value(|part| part.write_str(name));
            match redactor.redact(name, value) {
                // Text is copied directly, because formatting it would take as long as all other work here.
                RedactedValue::Plain(Value::Text(text)) => {
                    self.append_name_or_value(|part| part.write_str(text));
                }
                redacted => self.append_name_or_value(|part| write!(part, "{redacted}")),
            }
        }
    }

    fn append_name_or_value(
        &mut self,
        write: impl FnOnce(&mut TruncatingWriter<'_>) -> fmt::Result,
    ) {
        let remaining_bytes =
            MAX_NAME_OR_VALUE_BYTES.min(MAX_LABEL_BYTES.saturating_sub(self.text.len()));
        // Writing fails if the part was cut, which is not an error here.
        write(&mut TruncatingWriter { text: &mut self.text, remaining_bytes }).unwrap_or_default();
        self.ends.push(self.text.len() as u16);
    }

    /// Returns the attribute names and values of the key.
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

/// A writer that appends at most `remaining_bytes` bytes to a text. It cuts between characters, and returns an error
/// once it has cut something.
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

    fn build_key_label(attributes: &[(&'static str, &str)]) -> KeyLabel {
        let mut label = KeyLabel::default();
        let attributes = || attributes.iter().map(|&(name, value)| (name, value.into()));
        label.write([("an", "older one".into())].into_iter(), &Redactor::default());
        label.write(attributes(), &Redactor::default());
        label
    }

    #[test]
    fn key_label_keeps_attribute_order() {
        let pairs = [("tenant", "acme"), ("ip", ""), ("b", "2")];
        assert_eq!(build_key_label(&pairs).pairs().collect::<Vec<_>>(), pairs);
        assert_eq!(build_key_label(&[]).pairs().count(), 0);
    }

    #[test]
    fn key_label_shows_network_in_cidr_form() {
        let mut label = KeyLabel::default();
        let network = Value::Network { address: "2001:db8::".parse().unwrap(), prefix_bits: 64 };
        label.write([("ip", network)].into_iter(), &Redactor::default());
        assert_eq!(label.pairs().collect::<Vec<_>>(), [("ip", "2001:db8::/64")]);
    }

    #[test]
    fn long_label_value_is_cut_with_ellipsis() {
        for filler in ["x", "é", "語"] {
            let long = filler.repeat(300);
            let label = build_key_label(&[("a", &long), ("b", "2")]);
            let pairs: Vec<_> = label.pairs().collect();
            let begin = pairs[0].1.strip_suffix(ELLIPSIS).unwrap();
            assert!(
                long.starts_with(begin)
                    && (120..=MAX_NAME_OR_VALUE_BYTES).contains(&pairs[0].1.len())
            );
            assert_eq!(pairs[1], ("b", "2"));
        }
        let exact = "x".repeat(MAX_NAME_OR_VALUE_BYTES);
        assert_eq!(build_key_label(&[("a", &exact)]).pairs().next(), Some(("a", &*exact)));
    }

    #[test]
    fn values_beyond_max_label_length_are_empty() {
        let long = "x".repeat(1024);
        let label = build_key_label(&[("name", &*long); 16]);
        let pairs: Vec<_> = label.pairs().collect();
        assert!(pairs.len() == 16 && label.text.len() <= MAX_LABEL_BYTES);
        assert!(pairs[1].1.ends_with(ELLIPSIS) && pairs[15] == ("", ""));
    }
}
