//! Variable-length integers: seven bits per byte, lowest first; the eighth bit marks that another byte follows. Each
//! number has exactly one encoding.

use super::MessageError;

/// Maximum size of an encoded integer, in bytes.
pub(super) const MAX_VARINT_BYTES: usize = 10;

/// Appends the variable-length encoding of an integer to `bytes`.
pub(super) fn write_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Returns the difference `to - from`, encoded as an unsigned integer. Differences near zero, positive or negative,
/// become small integers.
pub(super) fn encode_delta(from: u64, to: u64) -> u64 {
    let difference = to.wrapping_sub(from) as i64;
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// Adds a difference that [`encode_delta`] has encoded to `from`, and returns the sum.
pub(super) fn decode_delta(from: u64, delta: u64) -> u64 {
    from.wrapping_add((delta >> 1) ^ (delta & 1).wrapping_neg())
}

/// A reader that consumes bytes from front to back and never reads beyond the end.
#[derive(Debug)]
pub(super) struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the number of unread bytes.
    pub(super) fn remaining(&self) -> usize {
        self.0.len()
    }

    pub(super) fn read_bytes(&mut self, length: usize) -> Result<&'a [u8], MessageError> {
        let (taken, remaining) = self.0.split_at_checked(length).ok_or(MessageError::Truncated)?;
        self.0 = remaining;
        Ok(taken)
    }

    pub(super) fn read_byte(&mut self) -> Result<u8, MessageError> {
        let (&byte, remaining) = self.0.split_first().ok_or(MessageError::Truncated)?;
        self.0 = remaining;
        Ok(byte)
    }

    /// Reads eight bytes as a little-endian integer.
    pub(super) fn read_little_endian_u64(&mut self) -> Result<u64, MessageError> {
        let (bytes, remaining) = self.0.split_first_chunk().ok_or(MessageError::Truncated)?;
        self.0 = remaining;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// Reads an integer written by [`write_varint`].
    pub(super) fn read_varint(&mut self) -> Result<u64, MessageError> {
        let mut number = 0;
        for index in 0..MAX_VARINT_BYTES {
            let byte = self.read_byte()?;
            // The tenth byte can hold only one bit. A zero as the last byte would be a second encoding.
            if (index + 1 == MAX_VARINT_BYTES && byte > 1) || (index > 0 && byte == 0) {
                return Err(MessageError::InvalidNumber);
            }
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(MessageError::InvalidNumber)
    }

    /// Reads the length of a list that follows. Each element has at least `min_item_bytes` bytes. Returns an error if
    /// a list of this length does not fit into the unread bytes.
    pub(super) fn read_list_length(
        &mut self,
        min_item_bytes: usize,
    ) -> Result<usize, MessageError> {
        let count = usize::try_from(self.read_varint()?).map_err(|_| MessageError::Truncated)?;
        if count > self.remaining() / min_item_bytes {
            return Err(MessageError::Truncated);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varint_round_trips(bits in 0u32..64, number in any::<u64>()) {
            let number = number >> bits;
            let mut bytes = Vec::new();
            write_varint(&mut bytes, number);
            prop_assert!(bytes.len() <= MAX_VARINT_BYTES);
            let mut reader = ByteReader::new(&bytes);
            prop_assert_eq!(reader.read_varint(), Ok(number));
            prop_assert_eq!(reader.remaining(), 0);
        }

        #[test]
        fn decoded_varint_encodes_to_same_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut reader = ByteReader::new(&bytes);
            if let Ok(number) = reader.read_varint() {
                let mut again = Vec::new();
                write_varint(&mut again, number);
                prop_assert_eq!(&bytes[..bytes.len() - reader.remaining()], &again[..]);
            }
        }

        #[test]
        fn delta_round_trips(from in any::<u64>(), to in any::<u64>()) {
            prop_assert_eq!(decode_delta(from, encode_delta(from, to)), to);
        }
    }

    #[test]
    fn small_delta_is_encoded_as_small_integer() {
        assert_eq!(
            [encode_delta(7, 7), encode_delta(7, 6), encode_delta(7, 8), encode_delta(7, 9)],
            [0, 1, 2, 4]
        );
    }
}
