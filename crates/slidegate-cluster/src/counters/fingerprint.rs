//! Fingerprints of keys: SipHash-1-3 under a secret that all nodes of a cluster share.

use std::fmt;
use std::hash::{BuildHasher, Hasher};

use siphasher::sip::SipHasher13;

/// The number of bytes that a [`FingerprintHasher`] collects. The values of most keys are shorter.
const HASHER_BUFFER_BYTES: usize = 64;

/// The secret key of the hash that computes key fingerprints, identical on every node of a cluster.
#[derive(Clone)]
pub struct FingerprintSecret([u8; 16]);

impl fmt::Debug for FingerprintSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintSecret(..)")
    }
}

impl From<[u8; 16]> for FingerprintSecret {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl BuildHasher for FingerprintSecret {
    type Hasher = FingerprintHasher;

    #[inline]
    fn build_hasher(&self) -> FingerprintHasher {
        let hasher = SipHasher13::new_with_key(&self.0);
        FingerprintHasher { hasher, buffer: [0; HASHER_BUFFER_BYTES], len: 0 }
    }
}

/// A SipHash-1-3 hasher that collects the bytes of a key, and hashes all of them at once if they are few. A hasher that
/// receives the bytes in several parts takes twice the instructions.
#[derive(Debug)]
pub struct FingerprintHasher {
    hasher: SipHasher13,
    buffer: [u8; HASHER_BUFFER_BYTES],
    /// The number of bytes in the buffer.
    len: usize,
}

impl FingerprintHasher {
    /// Hashes the bytes in the buffer, and then `bytes`, for which the buffer has no space left.
    #[cold]
    #[inline(never)]
    fn hash_buffer_and_bytes(&mut self, bytes: &[u8]) {
        self.hasher.write(&self.buffer[..self.len]);
        self.hasher.write(bytes);
        self.len = 0;
    }
}

impl Hasher for FingerprintHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        match self.buffer.get_mut(self.len..self.len + bytes.len()) {
            Some(free) => {
                free.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.hash_buffer_and_bytes(bytes),
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.hasher.hash(&self.buffer[..self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_does_not_depend_on_parts() {
        let bytes: Vec<u8> = (0..=255).collect();
        let secret = FingerprintSecret::from([7; 16]);
        for len in 0..bytes.len() {
            let expected = SipHasher13::new_with_key(&[7; 16]).hash(&bytes[..len]);
            for part in [1, 3, 20, 63, 64, 65, 256] {
                let mut hasher = secret.build_hasher();
                bytes[..len].chunks(part).for_each(|part| hasher.write(part));
                assert_eq!(hasher.finish(), expected, "{len} bytes in parts of {part}");
            }
        }
    }
}
