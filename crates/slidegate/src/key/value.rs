//! Values of keys, with a bounded length.

use std::fmt;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayString;

/// The byte that follows a text in the hash input of a key; see also [`END_OF_NETWORK_BYTE`] and
/// [`END_OF_DIGEST_BYTE`]. None of these bytes occurs in UTF-8, so the hash input can be parsed from its end: different
/// values never produce the same bytes.
pub(super) const END_OF_TEXT_BYTE: u8 = 0xFF;
/// The byte that follows a network in the hash input of a key.
const END_OF_NETWORK_BYTE: u8 = 0xFE;
/// The byte that follows a digest in the hash input of a key.
const END_OF_DIGEST_BYTE: u8 = 0xFD;

/// Maximum length of a text value, in bytes. A longer text is shortened.
pub const MAX_VALUE_BYTES: usize = 1024;

/// Maximum length of the prefix of a shortened value, in bytes.
const MAX_BYTES_KEPT_OF_SHORTENED_VALUE: usize = 64;

/// Length of a digest in bytes: the first 128 bits of SHA-256.
pub(super) const DIGEST_BYTES: usize = 16;

/// One value of a key: a text, an address, a network, or the shortened form of a long value.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// The unchanged value of an attribute. [`from`](Value::from) shortens long values.
    Text(&'a str),
    /// An IPv4 address. It equals a [`Text`](Value::Text) value with the same address.
    Ipv4(Ipv4Addr),
    /// An IPv6 network, whose addresses share one counter.
    Network {
        /// The first address of the network.
        address: Ipv6Addr,
        /// The length of the network's prefix in bits, at most 128.
        prefix_bits: u8,
    },
    /// A value that is longer than [`MAX_VALUE_BYTES`] or is not UTF-8.
    Shortened(ShortenedValue<'a>),
}

/// The prefix of a value and a digest of all its bytes.
///
/// This form bounds the length of keys even if clients send long values, and is the same in every process and version.
///
/// ```
/// use slidegate::store::{ShortenedValue, Value};
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
    /// Shortens the value with these bytes. `text` is the value as text, from which the prefix is taken.
    pub(crate) fn new(text: &'a str, bytes: &[u8]) -> Self {
        Self::with_digest(text, truncated_sha256(bytes))
    }

    /// Creates a shortened value from its text and the digest of its bytes.
    pub(crate) fn with_digest(text: &'a str, digest: [u8; DIGEST_BYTES]) -> Self {
        Self {
            prefix: &text[..text.floor_char_boundary(MAX_BYTES_KEPT_OF_SHORTENED_VALUE)],
            digest,
        }
    }

    /// Returns the prefix of the value: at most 64 bytes, without partial characters.
    pub fn prefix(&self) -> &'a str {
        self.prefix
    }

    /// Returns the text of the digest: `sha256-` and the first 128 bits of SHA-256 over the value's bytes, in 32
    /// hexadecimal digits.
    pub fn digest(&self) -> impl fmt::Display + use<> {
        let digest = self.digest;
        fmt::from_fn(move |f| {
            f.write_str("sha256-")?;
            digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        })
    }
}

/// Returns the first 128 bits of the SHA-256 digest of `bytes`.
pub(crate) fn truncated_sha256(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut first = [0; DIGEST_BYTES];
    first.copy_from_slice(&hmac_sha256::Hash::hash(bytes)[..DIGEST_BYTES]);
    first
}

/// Writes the human-readable form, `prefix…(sha256-…)`.
impl fmt::Display for ShortenedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…({})", self.prefix, self.digest())
    }
}

impl<'a> Value<'a> {
    /// Creates a value from bytes that may not be UTF-8. `text` is the same value as text, with a replacement character
    /// for each invalid sequence. Bytes that are valid UTF-8 become a text value.
    pub fn from_bytes(text: &'a str, bytes: &[u8]) -> Self {
        if bytes == text.as_bytes() {
            text.into()
        } else {
            Self::Shortened(ShortenedValue::new(text, bytes))
        }
    }

    /// Returns the number of bytes of this value's text that a key writes with percent-encoding; 0 for an address or a
    /// network, which needs no encoding.
    pub(super) fn byte_count_to_escape(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Ipv4(_) | Self::Network { .. } => 0,
            Self::Shortened(value) => value.prefix.len(),
        }
    }

    /// Writes the value to a hasher. The written bytes are the same in every process. Every decision calls this method,
    /// so it makes as few writes as possible.
    pub(super) fn write_to_hasher(&self, hasher: &mut impl Hasher) {
        match self {
            Self::Text(text) => {
                hasher.write(text.as_bytes());
                hasher.write_u8(END_OF_TEXT_BYTE);
            }
            Self::Ipv4(address) => Value::Text(&ipv4_text(*address)).write_to_hasher(hasher),
            Self::Network { address, prefix_bits } => {
                hasher.write(&address.octets());
                hasher.write_u8(*prefix_bits);
                hasher.write_u8(END_OF_NETWORK_BYTE);
            }
            Self::Shortened(value) => {
                hasher.write(&value.digest);
                hasher.write_u8(END_OF_DIGEST_BYTE);
            }
        }
    }
}

impl PartialEq for Value<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(left), Self::Text(right)) => left == right,
            (Self::Text(text), Self::Ipv4(address)) | (Self::Ipv4(address), Self::Text(text)) => {
                **text == *ipv4_text(*address)
            }
            (Self::Ipv4(left), Self::Ipv4(right)) => left == right,
            (
                Self::Network { address, prefix_bits },
                Self::Network { address: other, prefix_bits: other_bits },
            ) => (address, prefix_bits) == (other, other_bits),
            (Self::Shortened(left), Self::Shortened(right)) => left == right,
            (Self::Network { .. } | Self::Shortened(_), _)
            | (_, Self::Network { .. } | Self::Shortened(_)) => false,
        }
    }
}

impl Eq for Value<'_> {}

impl Hash for Value<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.write_to_hasher(hasher);
    }
}

/// Returns the canonical text of an address.
fn ipv4_text(address: Ipv4Addr) -> ArrayString<15> {
    let mut text = ArrayString::new();
    // The longest address has 15 characters.
    let _ = write!(text, "{address}");
    text
}

/// Converts a text into a value. A text of more than [`MAX_VALUE_BYTES`] is shortened.
impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        if text.len() <= MAX_VALUE_BYTES {
            Self::Text(text)
        } else {
            Self::Shortened(ShortenedValue::new(text, text.as_bytes()))
        }
    }
}

/// Writes the human-readable form, without escaping. [`Key`](crate::store::Key) writes the escaped form.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Ipv4(address) => address.fmt(f),
            Self::Network { address, prefix_bits } => write!(f, "{address}/{prefix_bits}"),
            Self::Shortened(value) => value.fmt(f),
        }
    }
}
