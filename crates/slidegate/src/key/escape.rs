//! The text of a key's parts. Parts are percent-encoded, so that different keys have different texts. A very long list
//! of names and values is replaced by its digest.

use std::fmt;

use super::value::{Value, truncated_sha256};

/// Maximum length, in bytes, of the list of names and values in the text of a key. A longer list is replaced by its
/// digest.
///
/// A store outside of this process finds a counter by this text, so the tokens of permits and reservations contain it
/// once for each limit. The bound keeps them small whatever clients send, and has space for a value of
/// [`MAX_VALUE_BYTES`](super::MAX_VALUE_BYTES) with its name.
pub(super) const MAX_NAME_VALUE_LIST_BYTES: usize = 1280;

/// Writes names and values, such as `tenant=acme,ip=192.0.2.7`, or a digest of this text if it is too long. Colons are
/// percent-encoded unless the text is within the braces of a key.
pub fn write_name_value_pairs<'p>(
    f: &mut fmt::Formatter<'_>,
    pairs: impl Iterator<Item = (&'p str, &'p Value<'p>)> + Clone,
    is_in_braces: bool,
) -> fmt::Result {
    let write = |f: &mut fmt::Formatter<'_>| {
        for (index, (name, value)) in pairs.clone().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            write_name_value_pair(f, name, value, is_in_braces)?;
        }
        Ok(())
    };
    // An upper bound of the length: an escaped byte takes three characters, and 64 more cover `=`, `,` and a network or
    // digest.
    let max_bytes =
        |name: &str, value: &Value<'_>| 3 * (name.len() + value.byte_count_to_escape()) + 64;
    if pairs.clone().map(|(name, value)| max_bytes(name, value)).sum::<usize>()
        <= MAX_NAME_VALUE_LIST_BYTES
    {
        return write(f);
    }
    let text = fmt::from_fn(write).to_string();
    if text.len() <= MAX_NAME_VALUE_LIST_BYTES {
        return f.write_str(&text);
    }
    // Texts are escaped, so they do not contain parentheses: no other key has this text.
    f.write_str("(sha256-")?;
    truncated_sha256(text.as_bytes()).iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
    f.write_str(")")
}

/// Writes a name and a value, such as `tenant=acme`.
fn write_name_value_pair(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    value: &Value<'_>,
    is_in_braces: bool,
) -> fmt::Result {
    write_escaped(f, name, is_in_braces)?;
    f.write_str("=")?;
    match value {
        Value::Text(text) => write_escaped(f, text, is_in_braces),
        Value::Ipv4(address) => write!(f, "{address}"),
        // Parentheses distinguish a network from a text, in which they would be percent-encoded.
        Value::Network { address, prefix_bits } if is_in_braces => {
            write!(f, "({address}/{prefix_bits})")
        }
        Value::Network { address, prefix_bits } => {
            f.write_str("(")?;
            fmt::Write::write_fmt(&mut EscapingWriter(f), format_args!("{address}/{prefix_bits}"))?;
            f.write_str(")")
        }
        Value::Shortened(value) => {
            write_escaped(f, value.prefix(), is_in_braces)?;
            write!(f, "({})", value.digest())
        }
    }
}

/// A writer that percent-encodes text for the part of a key outside of the braces.
struct EscapingWriter<'o, 'f>(&'o mut fmt::Formatter<'f>);

impl fmt::Write for EscapingWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write_escaped(self.0, text, false)
    }
}

/// Writes a part of a key with percent-encoding. A colon is encoded unless the part is within the braces of the key.
pub(super) fn write_escaped(
    f: &mut fmt::Formatter<'_>,
    part: &str,
    is_in_braces: bool,
) -> fmt::Result {
    let is_plain = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'.' | b'_' | b'-' | b'/' | b'@' | b'+' | b'~')
            || (is_in_braces && byte == b':')
    };
    let mut rest = part;
    while let Some(at) = rest.bytes().position(|byte| !is_plain(byte)) {
        // `at` is a character boundary, because the bytes before it are ASCII; so is the end of the escaped character.
        f.write_str(&rest[..at])?;
        let after = (at + 1..=rest.len()).find(|&end| rest.is_char_boundary(end));
        let after = after.unwrap_or(rest.len());
        for byte in rest[at..after].bytes() {
            write!(f, "%{byte:02X}")?;
        }
        rest = &rest[after..];
    }
    f.write_str(rest)
}
