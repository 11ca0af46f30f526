//! Decodes escape sequences in JSON strings.

use super::{JsonError, JsonReader};

impl JsonReader<'_> {
    /// Reads the rest of a string from its first backslash. `start` is the part before it. An unpaired surrogate is
    /// encoded like other code points (WTF-8), so that different surrogates have different counters.
    pub(super) fn read_escaped_string(&mut self, start: &[u8]) -> Result<Vec<u8>, JsonError> {
        let mut decoded = start.to_vec();
        loop {
            match self.next_string_byte()? {
                b'"' => return Ok(decoded),
                b'\\' => self.read_escape(&mut decoded)?,
                byte => decoded.push(byte),
            }
        }
    }

    fn next_string_byte(&mut self) -> Result<u8, JsonError> {
        let Some(byte) = self.text.get(self.position).copied() else {
            return Err(self.truncated_error("a string"));
        };
        self.position += 1;
        Ok(byte)
    }

    /// Reads the part of an escape sequence after its backslash.
    fn read_escape(&mut self, decoded: &mut Vec<u8>) -> Result<(), JsonError> {
        let backslash = self.position - 1;
        let byte = match self.next_string_byte()? {
            byte @ (b'"' | b'\\' | b'/') => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.read_unicode_escape(backslash, decoded),
            _ => {
                let message = r"invalid escape sequence in a string; write `\\` for a backslash";
                return Err(self.error(backslash, message));
            }
        };
        decoded.push(byte);
        Ok(())
    }

    fn read_unicode_escape(
        &mut self,
        backslash: usize,
        decoded: &mut Vec<u8>,
    ) -> Result<(), JsonError> {
        let first = self.read_hex_digits(backslash)?;
        let rest = &self.text[self.position..];
        if (0xd800..0xdc00).contains(&first) && rest.starts_with(br"\u") {
            let second_backslash = self.position;
            self.position += 2;
            let second = self.read_hex_digits(second_backslash)?;
            if (0xdc00..0xe000).contains(&second) {
                push_code_point(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00), decoded);
                return Ok(());
            }
            // The second sequence may be the first of another pair.
            self.position = second_backslash;
        }
        push_code_point(first, decoded);
        Ok(())
    }

    fn read_hex_digits(&mut self, backslash: usize) -> Result<u32, JsonError> {
        let mut code_point = 0;
        for _ in 0..4 {
            let digit = char::from(self.next_string_byte()?).to_digit(16).ok_or_else(|| {
                let message = r"`\u` without four hexadecimal digits; write, for example, `\u00e9`";
                self.error(backslash, message)
            })?;
            code_point = code_point * 16 + digit;
        }
        Ok(code_point)
    }
}

/// Appends a code point in UTF-8. A surrogate is encoded in the same way, which is not UTF-8.
fn push_code_point(code_point: u32, decoded: &mut Vec<u8>) {
    match char::from_u32(code_point) {
        Some(char) => decoded.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        None => decoded.extend([
            0xe0 | (code_point >> 12) as u8,
            0x80 | (code_point >> 6 & 0x3f) as u8,
            0x80 | (code_point & 0x3f) as u8,
        ]),
    }
}
