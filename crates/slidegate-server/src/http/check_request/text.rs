//! Text that may not be Unicode.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use slidegate::DEFAULT_DOMAIN;

use crate::json_reader::JsonString;

/// Returns the default domain, for requests without a domain.
pub fn default_domain<'b>() -> LossyText<'b> {
    LossyText { text: Cow::Borrowed(DEFAULT_DOMAIN), bytes: None }
}

/// A JSON string that may contain invalid Unicode: bytes that are not UTF-8, or unpaired surrogates.
pub struct LossyText<'b> {
    /// The string, with a replacement character for each invalid sequence.
    text: Cow<'b, str>,
    /// The original bytes of a string that is not UTF-8. `None` for all other strings.
    bytes: Option<Box<[u8]>>,
}

impl LossyText<'_> {
    /// Returns the string, with a replacement character for each invalid sequence.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the original bytes of a string that is not UTF-8. Returns `None` for all other strings.
    pub fn invalid_bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }
}

impl<'b> From<&'b str> for LossyText<'b> {
    fn from(text: &'b str) -> Self {
        Self { text: text.into(), bytes: None }
    }
}

impl<'b> From<JsonString<'b>> for LossyText<'b> {
    #[inline]
    fn from(string: JsonString<'b>) -> Self {
        match string.unescaped() {
            Some(text) => text.into(),
            None => string.bytes.into(),
        }
    }
}

impl<'b> From<Cow<'b, [u8]>> for LossyText<'b> {
    fn from(bytes: Cow<'b, [u8]>) -> Self {
        let lossy = |bytes: &[u8]| LossyText {
            text: String::from_utf8_lossy(bytes).into_owned().into(),
            bytes: Some(bytes.into()),
        };
        match bytes {
            Cow::Borrowed(bytes) => match str::from_utf8(bytes) {
                Ok(text) => text.into(),
                Err(_) => lossy(bytes),
            },
            Cow::Owned(bytes) => match String::from_utf8(bytes) {
                Ok(text) => LossyText { text: text.into(), bytes: None },
                Err(error) => lossy(error.as_bytes()),
            },
        }
    }
}

/// Deserializes text in the query of a URL, which is already decoded to Unicode.
impl<'de: 'b, 'b> Deserialize<'de> for LossyText<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LossyTextVisitor;

        impl<'de> Visitor<'de> for LossyTextVisitor {
            type Value = LossyText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(text.into())
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(LossyText { text: text.to_owned().into(), bytes: None })
            }
        }

        deserializer.deserialize_str(LossyTextVisitor)
    }
}
