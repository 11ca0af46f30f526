//! A value that is being written.

use arrayvec::ArrayString;

/// Room for three limits of usual names.
const USUAL: usize = 128;

/// The value of a header, of which the usual length is not allocated.
#[derive(Clone, Debug, Default)]
pub struct Line {
    short: ArrayString<USUAL>,
    /// All of it, once it has grown longer.
    long: String,
}

impl Line {
    #[inline]
    pub(super) fn push(&mut self, text: &str) -> &mut Self {
        if !self.long.is_empty() || self.short.try_push_str(text).is_err() {
            self.grow(text);
        }
        self
    }

    /// It as text.
    #[inline]
    pub fn text(&self) -> &str {
        if self.long.is_empty() { &self.short } else { &self.long }
    }

    #[cold]
    fn grow(&mut self, text: &str) {
        if self.long.is_empty() {
            self.long.push_str(&self.short);
        }
        self.long.push_str(text);
    }
}
