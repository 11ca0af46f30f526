//! Displays attribute values of clients to operators, either in plain text or as keyed hashes.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use slidegate::Value;

/// A redactor of attribute values: it decides whether a value is displayed in plain text or as a keyed hash. Clones
/// display a value identically.
///
/// Values of credential headers are always hashed, so that a reader of the log cannot impersonate a client.
///
/// The hash is keyed by a secret that the process generates at start. A reader can follow a value within the log and
/// the top keys of one process, but cannot test guesses or compare processes. The hash is SipHash from std rather than
/// a faster hash, because the secret of a fast hash could be recovered from its outputs.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    secret: RandomState,
    redact_all: bool,
}

/// Attributes that contain credentials of clients. `/v1/auth` creates them from request headers.
const CREDENTIAL_ATTRIBUTE_NAMES: [&str; 3] =
    ["header.authorization", "header.cookie", "header.proxy-authorization"];

impl Redactor {
    /// Creates a redactor. If `redact_all` is `true`, all values are hashed, otherwise only credentials.
    pub fn new(redact_all: bool) -> Self {
        Self { redact_all, ..Self::default() }
    }

    /// Returns the value of the attribute `name` for display, in plain text or as a keyed hash.
    pub fn redact<'v>(&self, name: &str, value: Value<'v>) -> RedactedValue<'v> {
        match self.redact_all || CREDENTIAL_ATTRIBUTE_NAMES.contains(&name) {
            false => RedactedValue::Plain(value),
            true => RedactedValue::Hash(self.secret.hash_one(value)),
        }
    }
}

/// An attribute value for display, in plain text or as a keyed hash.
#[derive(Clone, Copy, Debug)]
pub enum RedactedValue<'v> {
    /// The value in plain text.
    Plain(Value<'v>),
    /// A keyed hash of the value, displayed as 16 hexadecimal digits.
    Hash(u64),
}

impl fmt::Display for RedactedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(value) => value.fmt(f),
            Self::Hash(hash) => write!(f, "{hash:016x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_plain_text_without_redaction() {
        assert_eq!(Redactor::new(false).redact("tenant", "acme".into()).to_string(), "acme");
    }

    #[test]
    fn credentials_are_always_hashed() {
        for name in CREDENTIAL_ATTRIBUTE_NAMES {
            let shown = Redactor::new(false).redact(name, "Bearer abc".into());
            assert!(matches!(shown, RedactedValue::Hash(_)), "{name}");
        }
    }

    #[test]
    fn each_redactor_hashes_with_own_secret() {
        let redact = Redactor::new(true);
        let shown =
            |redact: &Redactor, value: &str| redact.redact("tenant", value.into()).to_string();
        let acme = shown(&redact, "acme");
        assert!(acme.len() == 16 && acme.bytes().all(|byte| byte.is_ascii_hexdigit()), "{acme}");
        assert_eq!(shown(&redact.clone(), "acme"), acme);
        assert_ne!(shown(&redact, "acm"), acme);
        assert_ne!(shown(&Redactor::new(true), "acme"), acme, "each redactor has its own secret");
        assert_eq!(RedactedValue::Hash(10).to_string(), "000000000000000a");
    }
}
