//! The key of a cluster.

use std::fmt;

use ring::hmac;

use super::RejectReason;

/// Bytes that the text of a key has at least.
pub const MIN_KEY_BYTES: usize = 16;

/// What the nodes of a cluster have in common and nobody else knows. Its text is not kept: only keys derived from it,
/// one for each use, so that nothing sealed for one use passes for another.
#[derive(Clone)]
pub struct ClusterKey {
    datagrams: hmac::Key,
    handshakes: hmac::Key,
    fingerprint_secret: [u8; 16],
}

/// A text too short for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cluster's key has {bytes} bytes: {MIN_KEY_BYTES} are the fewest, and 32 random ones are best"
)]
pub struct ShortKeyError {
    /// So many bytes it has.
    pub bytes: usize,
}

impl ClusterKey {
    /// The key that this text stands for: the same on every node. Its bytes count as they are, white space too.
    ///
    /// # Errors
    /// If it has fewer than [`MIN_KEY_BYTES`] bytes.
    pub fn new(text: &str) -> Result<Self, ShortKeyError> {
        let bytes = text.len();
        if bytes < MIN_KEY_BYTES { Err(ShortKeyError { bytes }) } else { Ok(Self::of(text)) }
    }

    /// The key of clusters that have none: everybody knows it. For nodes that only listen on loopback; it still tells
    /// damage, and other versions.
    pub fn for_loopback() -> Self {
        Self::of("slidegate: a cluster on loopback without a key of its own")
    }

    fn of(text: &str) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes());
        let mut fingerprint_secret = [0; 16];
        fingerprint_secret
            .copy_from_slice(&hmac::sign(&root, b"slidegate cluster: fingerprints").as_ref()[..16]);
        Self {
            datagrams: derive(&root, &[b"slidegate cluster: datagrams"]),
            handshakes: derive(&root, &[b"slidegate cluster: handshakes"]),
            fingerprint_secret,
        }
    }

    /// The secret under which keys become fingerprints: the same on every node, and unknown to whoever picks keys.
    pub const fn fingerprint_secret(&self) -> [u8; 16] {
        self.fingerprint_secret
    }

    pub(super) const fn datagrams(&self) -> &hmac::Key {
        &self.datagrams
    }

    pub(super) const fn handshakes(&self) -> &hmac::Key {
        &self.handshakes
    }
}

/// A key made of another one and of what it is for.
pub(super) fn derive(from: &hmac::Key, purpose: &[&[u8]]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, sign(from, purpose).as_ref())
}

/// The MAC over all parts, one after the other. Parts whose lengths vary have to tell them.
pub(super) fn sign(key: &hmac::Key, parts: &[&[u8]]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    parts.iter().for_each(|part| context.update(part));
    context.sign()
}

/// Compares in constant time.
pub(super) fn verify(key: &hmac::Key, sealed: &[u8], mac: &[u8]) -> Result<(), RejectReason> {
    hmac::verify(key, sealed, mac).map_err(|_| RejectReason::WrongMac)
}

/// The big-endian number in these bytes, of which there are at most eight.
pub(super) fn read_be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Shows nothing of it.
impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_is_no_key() {
        assert_eq!(ClusterKey::new("fifteen letters").err(), Some(ShortKeyError { bytes: 15 }));
        assert!(ClusterKey::new("sixteen letters.").is_ok());
    }

    #[test]
    fn a_key_does_not_show_itself() {
        let key = ClusterKey::new("sixteen letters.").unwrap();
        assert_eq!(format!("{key:?}"), "ClusterKey(…)");
    }

    #[test]
    fn fingerprints_are_secret_to_the_key_and_the_same_on_every_node() {
        let [one, same, other] = ["sixteen letters.", "sixteen letters.", "sixteen letters!"]
            .map(|text| ClusterKey::new(text).unwrap().fingerprint_secret());
        assert_eq!(one, same);
        assert_ne!(one, other);
        assert_ne!(one, ClusterKey::for_loopback().fingerprint_secret());
    }
}
