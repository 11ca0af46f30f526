//! Values of clients in what an operator reads: as they are, or by a hash that tells them apart.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use slidegate::Value;

/// How values are shown. Clones show a value alike.
///
/// Headers that hold what lets their sender in are shown by a hash always: what reads logs should not be able
/// to become a client.
///
/// The hash is keyed, by a secret that the process draws at its start: who reads it can follow a value
/// through one process's log and top-list, but can neither try out values nor compare two processes. It
/// is std's SipHash and none of the fast hashes, of which the secret could be learnt.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    secret: RandomState,
    redact_all: bool,
}

/// Attributes that `/v1/auth` makes of headers by which clients are let in.
const CREDENTIAL_ATTRIBUTES: [&str; 3] =
    ["header.authorization", "header.cookie", "header.proxy-authorization"];

impl Redactor {
    /// Values are shown as they are, or, if `hashed`, as 16 hexadecimal digits.
    pub fn new(hashed: bool) -> Self {
        Self { redact_all: hashed, ..Self::default() }
    }

    /// The value of an attribute, to be written.
    pub fn redact<'v>(&self, name: &str, value: Value<'v>) -> RedactedValue<'v> {
        match self.redact_all || CREDENTIAL_ATTRIBUTES.contains(&name) {
            false => RedactedValue::Value(value),
            true => RedactedValue::Hash(self.secret.hash_one(value)),
        }
    }
}

/// A value as it is shown.
#[derive(Clone, Copy, Debug)]
pub enum RedactedValue<'v> {
    /// As people read it.
    Value(Value<'v>),
    /// By its hash.
    Hash(u64),
}

impl fmt::Display for RedactedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::Hash(hash) => write!(f, "{hash:016x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shown_as_it_is_unless_it_is_to_be_hashed() {
        assert_eq!(Redactor::new(false).redact("tenant", "acme".into()).to_string(), "acme");
    }

    #[test]
    fn what_lets_a_client_in_is_never_shown_as_it_is() {
        for name in CREDENTIAL_ATTRIBUTES {
            let shown = Redactor::new(false).redact(name, "Bearer abc".into());
            assert!(matches!(shown, RedactedValue::Hash(_)), "{name}");
        }
    }

    #[test]
    fn a_hash_is_16_digits_the_same_within_a_process_and_another_for_others() {
        let redact = Redactor::new(true);
        let shown =
            |redact: &Redactor, value: &str| redact.redact("tenant", value.into()).to_string();
        let acme = shown(&redact, "acme");
        assert!(acme.len() == 16 && acme.bytes().all(|byte| byte.is_ascii_hexdigit()), "{acme}");
        assert_eq!(shown(&redact.clone(), "acme"), acme);
        assert_ne!(shown(&redact, "acm"), acme);
        assert_ne!(shown(&Redactor::new(true), "acme"), acme, "a secret of its own");
        assert_eq!(RedactedValue::Hash(10).to_string(), "000000000000000a");
    }
}
