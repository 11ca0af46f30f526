//! The shared key of a cluster.

use std::fmt;

use ring::hmac;

use super::RejectReason;

/// Minimum length of a key's text, in bytes.
pub const MIN_KEY_BYTES: usize = 16;

/// The shared secret of a cluster.
///
/// Its text is not stored. Each purpose has its own derived key, so that a message authenticated for one purpose is
/// invalid for another.
#[derive(Clone)]
pub struct ClusterKey {
    datagrams: hmac::Key,
    handshakes: hmac::Key,
    fingerprint_secret: [u8; 16],
}

/// An error for a key with too few bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cluster key has {bytes} bytes; use at least {MIN_KEY_BYTES}, preferably 32 random bytes")]
pub struct ShortKeyError {
    /// The number of bytes of the key.
    pub bytes: usize,
}

impl ClusterKey {
    /// Derives the key from a text, identically on every node. All bytes of the text count, including white space.
    ///
    /// # Errors
    /// Returns an error if the text has fewer than [`MIN_KEY_BYTES`] bytes.
    pub fn new(text: &str) -> Result<Self, ShortKeyError> {
        let bytes = text.len();
        if bytes < MIN_KEY_BYTES { Err(ShortKeyError { bytes }) } else { Ok(Self::from_text(text)) }
    }

    /// Returns a publicly known key for clusters without a shared secret, whose nodes listen on loopback only. The key
    /// does not authenticate nodes, but messages that are damaged or of another version are still rejected.
    pub fn for_loopback() -> Self {
        Self::from_text("slidegate: a cluster on loopback without a key of its own")
    }

    fn from_text(text: &str) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes());
        let mut fingerprint_secret = [0; 16];
        fingerprint_secret
            .copy_from_slice(&hmac::sign(&root, b"slidegate cluster: fingerprints").as_ref()[..16]);
        Self {
            datagrams: derive_key(&root, &[b"slidegate cluster: datagrams"]),
            handshakes: derive_key(&root, &[b"slidegate cluster: handshakes"]),
            fingerprint_secret,
        }
    }

    /// Returns the secret key of the hash that computes key fingerprints. It is identical on every node, and unknown to
    /// clients that choose rate limit keys.
    pub const fn fingerprint_secret(&self) -> [u8; 16] {
        self.fingerprint_secret
    }

    pub(super) const fn datagram_key(&self) -> &hmac::Key {
        &self.datagrams
    }

    pub(super) const fn handshake_key(&self) -> &hmac::Key {
        &self.handshakes
    }
}

/// Derives the key for one purpose from another key.
pub(super) fn derive_key(from: &hmac::Key, purpose: &[&[u8]]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, compute_mac(from, purpose).as_ref())
}

/// Returns the MAC of all concatenated parts. Parts of variable length must contain their length.
pub(super) fn compute_mac(key: &hmac::Key, parts: &[&[u8]]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    parts.iter().for_each(|part| context.update(part));
    context.sign()
}

/// Verifies a MAC in constant time.
pub(super) fn verify_mac(key: &hmac::Key, sealed: &[u8], mac: &[u8]) -> Result<(), RejectReason> {
    hmac::verify(key, sealed, mac).map_err(|_| RejectReason::WrongMac)
}

/// Reads a big-endian integer of at most eight bytes.
pub(super) fn read_big_endian_u64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Omits all key material from the debug output.
impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_key_is_rejected() {
        assert_eq!(ClusterKey::new("fifteen letters").err(), Some(ShortKeyError { bytes: 15 }));
        assert!(ClusterKey::new("sixteen letters.").is_ok());
    }

    #[test]
    fn debug_output_hides_key() {
        let key = ClusterKey::new("sixteen letters.").unwrap();
        assert_eq!(format!("{key:?}"), "ClusterKey(…)");
    }

    #[test]
    fn fingerprint_secret_depends_on_key_only() {
        let [one, same, other] = ["sixteen letters.", "sixteen letters.", "sixteen letters!"]
            .map(|text| ClusterKey::new(text).unwrap().fingerprint_secret());
        assert_eq!(one, same);
        assert_ne!(one, other);
        assert_ne!(one, ClusterKey::for_loopback().fingerprint_secret());
    }
}
