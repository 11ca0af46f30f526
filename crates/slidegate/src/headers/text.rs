//! A buffer for header values.

use arrayvec::ArrayString;

/// The number of bytes that a value can have without a heap allocation: enough for three limits with names of usual
/// length.
const MAX_INLINE_TEXT_BYTES: usize = 128;

/// The value of a header. Values of usual length are not allocated on the heap.
#[derive(Clone, Debug, Default)]
pub struct HeaderText {
    inline: ArrayString<MAX_INLINE_TEXT_BYTES>,
    /// The whole value, if it does not fit into the inline buffer; otherwise an empty string.
    heap: String,
}

impl HeaderText {
    #[inline]
    pub(super) fn push(&mut self, text: &str) -> &mut Self {
        if !self.heap.is_empty() || self.inline.try_push_str(text).is_err() {
            self.push_to_heap(text);
        }
        self
    }

    /// Returns the value.
    #[inline]
    pub fn as_str(&self) -> &str {
        if self.heap.is_empty() { &self.inline } else { &self.heap }
    }

    #[cold]
    fn push_to_heap(&mut self, text: &str) {
        if self.heap.is_empty() {
            self.heap.push_str(&self.inline);
        }
        self.heap.push_str(text);
    }
}
