//! A value that was read.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use arrayvec::ArrayString;
use slidegate::Value;

/// Room for any network of addresses.
const MAX_INLINE_BYTES: usize = 44;

/// What is short and made for each request: no allocation.
pub(super) type Short = ArrayString<MAX_INLINE_BYTES>;

/// A value of a request: a part of the request, or a text that was made of it.
///
/// ```
/// use slidegate_tower::extract::ExtractedText;
///
/// let [borrowed, made] = [ExtractedText::from("acme"), ExtractedText::from(String::from("acme"))];
/// assert_eq!(borrowed, "acme");
/// assert_eq!(made.len(), 4);
/// ```
#[derive(Clone)]
pub struct ExtractedText<'r>(Kind<'r>);

#[derive(Clone)]
enum Kind<'r> {
    Borrowed(&'r str),
    Short(Short),
    Owned(String),
    /// Bytes that are not UTF-8, and how they are shown.
    Bytes(Box<(Cow<'r, [u8]>, String)>),
}

impl<'r> ExtractedText<'r> {
    /// Returns the value of bytes that may not be UTF-8. As text, each invalid sequence is `U+FFFD`; counts are kept by
    /// the bytes, so that two values with the same text have counts of their own.
    ///
    /// ```
    /// use slidegate_tower::extract::ExtractedText;
    ///
    /// assert_eq!(ExtractedText::from_bytes(b"k\xff"), "k\u{fffd}");
    /// ```
    pub fn from_bytes(bytes: impl Into<Cow<'r, [u8]>>) -> Self {
        let not_text = |bytes: Cow<'r, [u8]>| {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Self(Kind::Bytes(Box::new((bytes, text))))
        };
        match bytes.into() {
            Cow::Borrowed(bytes) => match str::from_utf8(bytes) {
                Ok(text) => text.into(),
                Err(_) => not_text(bytes.into()),
            },
            Cow::Owned(bytes) => match String::from_utf8(bytes) {
                Ok(text) => text.into(),
                Err(error) => not_text(error.into_bytes().into()),
            },
        }
    }

    /// It as a text of its own.
    pub fn into_owned(self) -> String {
        match self.0 {
            Kind::Owned(text) => text,
            _ => (*self).to_owned(),
        }
    }

    /// Returns the bytes of a value that is not UTF-8.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Kind::Bytes(value) => Some(&value.0),
            _ => None,
        }
    }

    /// Returns the key of a limiter: the text, or, of bytes that are not UTF-8, their beginning and their digest.
    pub(crate) fn key(&self) -> Cow<'_, str> {
        match self.bytes().map(|bytes| Value::from_bytes(self, bytes)) {
            Some(Value::Shortened(value)) => {
                format!("{}({})", value.prefix(), value.digest()).into()
            }
            _ => Cow::Borrowed(self),
        }
    }
}

impl Deref for ExtractedText<'_> {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        match &self.0 {
            Kind::Borrowed(text) => text,
            Kind::Short(text) => text,
            Kind::Owned(text) => text,
            Kind::Bytes(value) => &value.1,
        }
    }
}

impl<'r> From<&'r str> for ExtractedText<'r> {
    fn from(text: &'r str) -> Self {
        Self(Kind::Borrowed(text))
    }
}

impl From<String> for ExtractedText<'_> {
    fn from(text: String) -> Self {
        Self(Kind::Owned(text))
    }
}

impl<'r> From<Cow<'r, str>> for ExtractedText<'r> {
    fn from(text: Cow<'r, str>) -> Self {
        match text {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into(),
        }
    }
}

impl From<Short> for ExtractedText<'_> {
    #[inline]
    fn from(text: Short) -> Self {
        Self(Kind::Short(text))
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
    fn values_not_utf8_have_keys_of_their_own() {
        let keys =
            [&b"k\xff"[..], b"k\xfe"].map(|bytes| ExtractedText::from_bytes(bytes).key().into_owned());
        assert_eq!(keys[0], "k\u{fffd}(sha256-1afd8b9ac52e1dc6ef517551a39b567d)");
        assert_ne!(keys[0], keys[1]);
        assert_eq!(ExtractedText::from_bytes(b"acme").key(), "acme");
        let bytes = ExtractedText::from_bytes(b"k\xff".to_vec());
        assert_eq!((bytes.bytes(), &*bytes), (Some(&b"k\xff"[..]), "k\u{fffd}"));
    }

    #[test]
    fn however_it_is_held_it_is_the_same_text() {
        let short = Short::from("acme").unwrap();
        for text in [ExtractedText::from("acme"), String::from("acme").into(), short.into()] {
            assert_eq!(text, "acme");
            assert_eq!(text, ExtractedText::from(Cow::Borrowed("acme")));
            assert_ne!(text, *"acne");
            assert_eq!(format!("{text} {text:?}"), r#"acme "acme""#);
            assert_eq!(text.into_owned(), "acme");
        }
    }
}
