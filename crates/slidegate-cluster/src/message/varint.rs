//! Whole numbers in as few bytes as they need: seven bits in each, the lowest first, and the eighth says that more
//! follow. Each number has exactly one form.

use super::MessageError;

/// Bytes of the longest number.
pub(super) const LONGEST: usize = 10;

/// Writes a number.
pub(super) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A difference as a number that is small if the difference is, whatever its sign.
pub(super) fn folded(from: u64, to: u64) -> u64 {
    let difference = to.wrapping_sub(from) as i64;
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// What [`folded`] made of it, added.
pub(super) fn unfolded(from: u64, folded: u64) -> u64 {
    from.wrapping_add((folded >> 1) ^ (folded & 1).wrapping_neg())
}

/// Reads bytes from front to back, and never beyond their end.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], MessageError> {
        let (taken, left) = self.0.split_at_checked(length).ok_or(MessageError::Truncated)?;
        self.0 = left;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, MessageError> {
        let (&byte, left) = self.0.split_first().ok_or(MessageError::Truncated)?;
        self.0 = left;
        Ok(byte)
    }

    /// Eight bytes, the lowest first.
    pub(super) fn fixed(&mut self) -> Result<u64, MessageError> {
        let (bytes, left) = self.0.split_first_chunk().ok_or(MessageError::Truncated)?;
        self.0 = left;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// A number that was [`put`].
    pub(super) fn number(&mut self) -> Result<u64, MessageError> {
        let mut number = 0;
        for place in 0..LONGEST {
            let byte = self.byte()?;
            // The tenth byte has room for one bit, and a last byte of zero would be a second form.
            if (place + 1 == LONGEST && byte > 1) || (place > 0 && byte == 0) {
                return Err(MessageError::Number);
            }
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(MessageError::Number)
    }

    /// A number that counts things of at least so many bytes each, all of which are still to come.
    pub(super) fn count(&mut self, bytes_each: usize) -> Result<usize, MessageError> {
        let count = usize::try_from(self.number()?).map_err(|_| MessageError::Truncated)?;
        if count > self.left() / bytes_each {
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
        fn a_number_comes_back(bits in 0u32..64, number in any::<u64>()) {
            let number = number >> bits;
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            prop_assert!(bytes.len() <= LONGEST);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.number(), Ok(number));
            prop_assert_eq!(reader.left(), 0);
        }

        #[test]
        fn a_number_has_one_form(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut reader = Reader::new(&bytes);
            if let Ok(number) = reader.number() {
                let mut again = Vec::new();
                put(&mut again, number);
                prop_assert_eq!(&bytes[..bytes.len() - reader.left()], &again[..]);
            }
        }

        #[test]
        fn a_difference_comes_back(from in any::<u64>(), to in any::<u64>()) {
            prop_assert_eq!(unfolded(from, folded(from, to)), to);
        }
    }

    #[test]
    fn a_small_difference_is_a_small_number() {
        assert_eq!([folded(7, 7), folded(7, 6), folded(7, 8), folded(7, 9)], [0, 1, 2, 4]);
    }
}
