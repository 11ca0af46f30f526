//! A value that was read.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use arrayvec::ArrayString;

/// Room for any network of addresses.
const SHORT: usize = 44;

/// What is short and made for each request: no allocation.
pub(super) type Short = ArrayString<SHORT>;

/// A value of a request: a part of the request, or a text that was made of it.
///
/// ```
/// use slidegate_tower::extract::Text;
///
/// let [borrowed, made] = [Text::from("acme"), Text::from(String::from("acme"))];
/// assert_eq!(borrowed, "acme");
/// assert_eq!(made.len(), 4);
/// ```
#[derive(Clone)]
pub struct Text<'r>(Kind<'r>);

#[derive(Clone)]
enum Kind<'r> {
    Borrowed(&'r str),
    Short(Short),
    Owned(String),
}

impl Text<'_> {
    /// It as a text of its own.
    pub fn into_owned(self) -> String {
        match self.0 {
            Kind::Owned(text) => text,
            _ => (*self).to_owned(),
        }
    }
}

impl Deref for Text<'_> {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        match &self.0 {
            Kind::Borrowed(text) => text,
            Kind::Short(text) => text,
            Kind::Owned(text) => text,
        }
    }
}

impl<'r> From<&'r str> for Text<'r> {
    fn from(text: &'r str) -> Self {
        Self(Kind::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Self(Kind::Owned(text))
    }
}

impl<'r> From<Cow<'r, str>> for Text<'r> {
    fn from(text: Cow<'r, str>) -> Self {
        match text {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into(),
        }
    }
}

impl From<Short> for Text<'_> {
    #[inline]
    fn from(text: Short) -> Self {
        Self(Kind::Short(text))
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text<'_> {}

impl PartialEq<str> for Text<'_> {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Text<'_> {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_it_is_held_it_is_the_same_text() {
        let short = Short::from("acme").unwrap();
        for text in [Text::from("acme"), String::from("acme").into(), short.into()] {
            assert_eq!(text, "acme");
            assert_eq!(text, Text::from(Cow::Borrowed("acme")));
            assert_ne!(text, *"acne");
            assert_eq!(format!("{text} {text:?}"), r#"acme "acme""#);
            assert_eq!(text.into_owned(), "acme");
        }
    }
}
