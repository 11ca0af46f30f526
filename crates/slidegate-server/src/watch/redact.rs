//! Values of clients in what an operator reads: as they are, or by a hash that tells them apart.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use slidegate::Value;

/// How values are shown. Clones show a value alike.
///
/// The hash is keyed, by a secret that the process draws at its start: who reads it can follow a value
/// through one process's log and top-list, but can neither try out values nor compare two processes. It
/// is std's SipHash and none of the fast hashes, of which the secret could be learnt.
#[derive(Clone, Debug, Default)]
pub struct Redact(Option<RandomState>);

impl Redact {
    /// Values are shown as they are, or, if `hashed`, as 16 hexadecimal digits.
    pub fn new(hashed: bool) -> Self {
        Self(hashed.then(RandomState::new))
    }

    /// A value, to be written.
    pub fn show<'v>(&self, value: Value<'v>) -> Shown<'v> {
        match &self.0 {
            None => Shown::Value(value),
            Some(secret) => Shown::Hash(secret.hash_one(value)),
        }
    }
}

/// A value as it is shown.
#[derive(Clone, Copy, Debug)]
pub enum Shown<'v> {
    /// As people read it.
    Value(Value<'v>),
    /// By its hash.
    Hash(u64),
}

impl fmt::Display for Shown<'_> {
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
        assert_eq!(Redact::new(false).show("acme".into()).to_string(), "acme");
    }

    #[test]
    fn a_hash_is_16_digits_the_same_within_a_process_and_another_for_others() {
        let redact = Redact::new(true);
        let shown = |redact: &Redact, value: &str| redact.show(value.into()).to_string();
        let acme = shown(&redact, "acme");
        assert!(acme.len() == 16 && acme.bytes().all(|byte| byte.is_ascii_hexdigit()), "{acme}");
        assert_eq!(shown(&redact.clone(), "acme"), acme);
        assert_ne!(shown(&redact, "acm"), acme);
        assert_ne!(shown(&Redact::new(true), "acme"), acme, "a secret of its own");
        assert_eq!(Shown::Hash(10).to_string(), "000000000000000a");
    }
}
