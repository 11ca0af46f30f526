//! One value of a key, bounded in length.

use std::fmt;
use std::hash::Hasher;

use ipnet::Ipv6Net;
use sha2::{Digest, Sha256};

use super::{END_OF_DIGEST, END_OF_NETWORK, END_OF_TEXT};

/// Longest text, in bytes, that is a key's value as it is; a longer one is shortened.
pub const MAX_VALUE_BYTES: usize = 1024;

/// Longest beginning of a shortened value, in bytes.
const PREFIX_BYTES: usize = 64;

/// Bytes of SHA-256 that a digest keeps: 128 bits.
pub(super) const DIGEST_BYTES: usize = 16;

/// One value of a key: a text, or the form that stands for several or long texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value<'a> {
    /// An attribute's value as it is. [`from`](Value::from) shortens long ones.
    Text(&'a str),
    /// All addresses of a network, as one.
    Network(Ipv6Net),
    /// A value that is longer than [`MAX_VALUE_BYTES`] or is not UTF-8.
    Shortened(ShortenedValue<'a>),
}

/// The beginning of a value and a digest of all of its bytes, so that clients cannot choose how long keys get. It is
/// the same in every process and version.
///
/// ```
/// use slidegate::{ShortenedValue, Value};
///
/// let Value::Shortened(value) = Value::from_bytes("k\u{fffd}", b"k\xff") else { panic!() };
/// assert_eq!(value.prefix(), "k\u{fffd}");
/// assert_eq!(value.digest().to_string(), "sha256-1afd8b9ac52e1dc6ef517551a39b567d");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShortenedValue<'a> {
    prefix: &'a str,
    digest: [u8; DIGEST_BYTES],
}

impl<'a> ShortenedValue<'a> {
    /// Shortens a value of these bytes. `text` is how they are shown.
    pub(crate) fn new(text: &'a str, bytes: &[u8]) -> Self {
        Self::with_digest(text, digest(bytes))
    }

    pub(crate) fn with_digest(text: &'a str, digest: [u8; DIGEST_BYTES]) -> Self {
        Self { prefix: &text[..text.floor_char_boundary(PREFIX_BYTES)], digest }
    }

    /// Returns the beginning of the value: at most 64 bytes, whole characters.
    pub fn prefix(&self) -> &'a str {
        self.prefix
    }

    /// Returns the digest as it is written: `sha256-` and the first 128 bits of SHA-256 over the value's bytes, in
    /// 32 hexadecimal digits.
    pub fn digest(&self) -> impl fmt::Display + use<> {
        let digest = self.digest;
        fmt::from_fn(move |f| {
            f.write_str("sha256-")?;
            digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        })
    }
}

/// Returns the first 128 bits of SHA-256.
pub(crate) fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut first = [0; DIGEST_BYTES];
    first.copy_from_slice(&Sha256::digest(bytes)[..DIGEST_BYTES]);
    first
}

/// For people: `prefix…(sha256-…)`.
impl fmt::Display for ShortenedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…({})", self.prefix, self.digest())
    }
}

impl<'a> Value<'a> {
    /// Returns the value of bytes that may not be UTF-8. `text` is how they are shown: the same with a replacement
    /// for each invalid sequence. Bytes that are UTF-8 are the text.
    pub fn from_bytes(text: &'a str, bytes: &[u8]) -> Self {
        match bytes == text.as_bytes() {
            true => text.into(),
            false => Self::Shortened(ShortenedValue::new(text, bytes)),
        }
    }

    /// Bytes of its text, before any of them is escaped.
    pub(super) fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Network(_) => 0,
            Self::Shortened(value) => value.prefix.len(),
        }
    }

    /// Feeds the same bytes in every process, in as few writes as possible: every decision does it.
    #[inline]
    pub(super) fn feed(&self, hasher: &mut impl Hasher) {
        match self {
            Self::Text(text) => {
                hasher.write(text.as_bytes());
                hasher.write_u8(END_OF_TEXT);
            }
            Self::Network(network) => {
                hasher.write(&network.addr().octets());
                hasher.write_u8(network.prefix_len());
                hasher.write_u8(END_OF_NETWORK);
            }
            Self::Shortened(value) => {
                hasher.write(&value.digest);
                hasher.write_u8(END_OF_DIGEST);
            }
        }
    }
}

/// Shortens a text of more than [`MAX_VALUE_BYTES`].
impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        match text.len() <= MAX_VALUE_BYTES {
            true => Self::Text(text),
            false => Self::Shortened(ShortenedValue::new(text, text.as_bytes())),
        }
    }
}

/// For people, not for keys.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Network(network) => network.fmt(f),
            Self::Shortened(value) => value.fmt(f),
        }
    }
}
