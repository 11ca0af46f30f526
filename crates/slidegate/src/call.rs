//! The identity of a call, by which a store recognizes a repetition of the call.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The default time for which a store remembers an admitted call: 10 minutes.
pub const DEFAULT_CALL_TTL: Duration = Duration::from_secs(600);

/// The maximum time for which a store remembers an admitted call, and for which a reservation can be settled: 24 hours.
pub const MAX_CALL_TTL: Duration = Duration::from_secs(86_400);

/// The id of a call: 128 bits, unique among all calls that a store remembers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallId([u8; 16]);

impl CallId {
    /// Creates an id that no other call has: 64 random bits that are drawn once per process, and the number of ids that
    /// the process has created.
    pub fn unique() -> Self {
        static PROCESS: OnceLock<u64> = OnceLock::new();
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // The hash is random, because std seeds the hasher with random bits of the operating system.
        let process = *PROCESS.get_or_init(|| RandomState::new().hash_one(0));
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self((u128::from(process) << 64 | u128::from(count)).to_be_bytes())
    }

    /// Creates an id from bytes. The caller makes sure that they are unique.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the id.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Formats the id in hexadecimal.
impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallId({self})")
    }
}

/// The identity of a call: its id, and a digest of the request. A store that remembers an admitted call returns its
/// decision again if the same call is repeated, and rejects a call with the same id and another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallIdentity {
    /// The id of the call.
    pub id: CallId,
    /// A digest of the request. It is the same in every process and version.
    pub request_digest: u64,
    /// The time for which the store keeps the result of an admitted call, so that a repetition is not charged again.
    pub ttl: Duration,
}
