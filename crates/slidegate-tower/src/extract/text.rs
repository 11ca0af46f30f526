//! The type of the values that extractors return. A value is a text (borrowed, stored inline, or owned), or a sequence
//! of bytes that is not UTF-8.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;

use arrayvec::ArrayString;
use slidegate::store::Value;

/// The capacity in bytes of a text that is stored inline, sufficient for any IPv6 network.
const MAX_INLINE_BYTES: usize = 44;

/// A short text that is stored inline, without an allocation.
pub(super) type InlineText = ArrayString<MAX_INLINE_BYTES>;

/// A value extracted from a request: a part of the request, or a new text.
///
/// ```
/// use slidegate_tower::extract::ExtractedText;
///
/// let [borrowed, made] = [ExtractedText::from("acme"), ExtractedText::from(String::from("acme"))];
/// assert_eq!(borrowed, "acme");
/// assert_eq!(made.len(), 4);
/// ```
#[derive(Clone)]
pub struct ExtractedText<'r>(ExtractedTextRepr<'r>);

/// The forms in which an extracted text is stored.
#[derive(Clone)]
enum ExtractedTextRepr<'r> {
    Borrowed(&'r str),
    Inline(InlineText),
    Owned(String),
    /// Bytes that are not UTF-8, and a text in which `U+FFFD` replaces each invalid sequence.
    Bytes(Box<(Cow<'r, [u8]>, String)>),
}

impl<'r> ExtractedText<'r> {
    /// Creates a value from bytes that may not be UTF-8. In the text of the value, `U+FFFD` replaces each invalid
    /// sequence. Counters use the bytes, so that values with equal text but different bytes are counted separately.
    ///
    /// ```
    /// use slidegate_tower::extract::ExtractedText;
    ///
    /// assert_eq!(ExtractedText::from_bytes(b"k\xff"), "k\u{fffd}");
    /// ```
    pub fn from_bytes(bytes: impl Into<Cow<'r, [u8]>>) -> Self {
        let from_invalid = |bytes: Cow<'r, [u8]>| {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Self(ExtractedTextRepr::Bytes(Box::new((bytes, text))))
        };
        match bytes.into() {
            Cow::Borrowed(bytes) => match str::from_utf8(bytes) {
                Ok(text) => text.into(),
                Err(_) => from_invalid(bytes.into()),
            },
            Cow::Owned(bytes) => match String::from_utf8(bytes) {
                Ok(text) => text.into(),
                Err(error) => from_invalid(error.into_bytes().into()),
            },
        }
    }

    /// Converts the value to an owned text.
    pub fn into_owned(self) -> String {
        match self.0 {
            ExtractedTextRepr::Owned(text) => text,
            _ => (*self).to_owned(),
        }
    }

    /// Returns the original bytes of a value that is not UTF-8; `None` if the value is UTF-8.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            ExtractedTextRepr::Bytes(value) => Some(&value.0),
            _ => None,
        }
    }

    /// Returns the limiter key for this value: its text or, if its bytes are not UTF-8, a prefix of the text and a
    /// digest of the bytes.
    pub(crate) fn limiter_key(&self) -> Cow<'_, str> {
        match self.bytes() {
            Some(bytes) => self.limiter_key_from_bytes(bytes),
            None => Cow::Borrowed(self),
        }
    }

    fn limiter_key_from_bytes(&self, bytes: &[u8]) -> Cow<'_, str> {
        match Value::from_bytes(self, bytes) {
            Value::Shortened(value) => format!("{}({})", value.prefix(), value.digest()).into(),
            _ => Cow::Borrowed(self),
        }
    }
}

impl Deref for ExtractedText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            ExtractedTextRepr::Borrowed(text) => text,
            ExtractedTextRepr::Inline(text) => text,
            ExtractedTextRepr::Owned(text) => text,
            ExtractedTextRepr::Bytes(value) => &value.1,
        }
    }
}

impl<'r> From<&'r str> for ExtractedText<'r> {
    fn from(text: &'r str) -> Self {
        Self(ExtractedTextRepr::Borrowed(text))
    }
}

impl From<String> for ExtractedText<'_> {
    fn from(text: String) -> Self {
        Self(ExtractedTextRepr::Owned(text))
    }
}

/// Implements the conversion of types whose text has at most [`MAX_INLINE_BYTES`] bytes.
macro_rules! impl_from_short {
    ($($short:ty),+) => {
        $(impl From<$short> for ExtractedText<'_> {
            fn from(value: $short) -> Self {
                let mut text = InlineText::new();
                match write!(text, "{value}") {
                    Ok(()) => text.into(),
                    Err(_) => value.to_string().into(),
                }
            }
        })+
    };
}

impl_from_short!(u8, u16, u32, u64, u128, i32, i64, IpAddr, Ipv4Addr, Ipv6Addr);

impl<'r> From<Cow<'r, str>> for ExtractedText<'r> {
    fn from(text: Cow<'r, str>) -> Self {
        match text {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into(),
        }
    }
}

impl From<InlineText> for ExtractedText<'_> {
    fn from(text: InlineText) -> Self {
        Self(ExtractedTextRepr::Inline(text))
    }
}

impl PartialEq for ExtractedText<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for ExtractedText<'_> {}

impl PartialEq<str> for ExtractedText<'_> {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for ExtractedText<'_> {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl fmt::Debug for ExtractedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for ExtractedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_utf8_values_have_distinct_keys() {
        let keys = [&b"k\xff"[..], b"k\xfe"]
            .map(|bytes| ExtractedText::from_bytes(bytes).limiter_key().into_owned());
        assert_eq!(keys[0], "k\u{fffd}(sha256-1afd8b9ac52e1dc6ef517551a39b567d)");
        assert_ne!(keys[0], keys[1]);
        assert_eq!(ExtractedText::from_bytes(b"acme").limiter_key(), "acme");
        let bytes = ExtractedText::from_bytes(b"k\xff".to_vec());
        assert_eq!((bytes.bytes(), &*bytes), (Some(&b"k\xff"[..]), "k\u{fffd}"));
    }

    #[test]
    fn equal_texts_compare_equal_in_any_representation() {
        let inline = InlineText::from("acme").unwrap();
        for text in [ExtractedText::from("acme"), String::from("acme").into(), inline.into()] {
            assert_eq!(text, "acme");
            assert_eq!(text, ExtractedText::from(Cow::Borrowed("acme")));
            assert_ne!(text, *"acne");
            assert_eq!(format!("{text} {text:?}"), r#"acme "acme""#);
            assert_eq!(text.into_owned(), "acme");
        }
    }
}
