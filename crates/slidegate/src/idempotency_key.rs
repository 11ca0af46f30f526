//! Idempotency keys, with which callers repeat a request without a second charge.

use std::time::Duration;

use hmac_sha256::Hash;

use crate::call::{CallId, CallIdentity, DEFAULT_CALL_TTL, MAX_CALL_TTL};
use crate::clock::ceil_micros;

/// An idempotency key: a text that a caller chooses for one request and sends again with each repetition, so that the
/// request is charged only once.
///
/// The key must not come from an end client: a client that sends one key with all its requests would be charged only
/// once.
///
/// ```
/// use slidegate::{Descriptor, Gate, IdempotencyKey, MemoryStore, Policy, Request};
///
/// let policy = Policy::from_yaml("rules: [{ name: a, per: [client], limits: [5/min] }]")?;
/// let gate = Gate::new(policy, MemoryStore::new());
/// let request = Request::new("default", Descriptor::new([("client", "ann")]))
///     .with_idempotency_key(IdempotencyKey::new("order-17"));
/// assert_eq!(gate.check(&request).remaining(), 4);
/// assert_eq!(gate.check(&request).remaining(), 4);      // the same decision, charged once
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyKey<'k> {
    key: &'k str,
    operation: &'k str,
    ttl: Duration,
}

impl<'k> IdempotencyKey<'k> {
    /// Creates a key with which an admitted call is remembered for [`DEFAULT_CALL_TTL`].
    pub fn new(key: &'k str) -> Self {
        Self { key, operation: "", ttl: DEFAULT_CALL_TTL }
    }

    /// Sets the time for which the store remembers the call if it is admitted, at most [`MAX_CALL_TTL`]. Calls with the
    /// same key and different times are different requests.
    #[must_use]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        Self { ttl: ttl.min(MAX_CALL_TTL), ..self }
    }

    /// Sets the operation that the caller requests, such as `report`. Calls with the same key and different operations
    /// are different requests.
    #[must_use]
    pub fn with_operation(self, operation: &'k str) -> Self {
        Self { operation, ..self }
    }

    /// Returns the identity of a call with this key. `write_request` writes everything that distinguishes the request
    /// from others.
    pub(crate) fn call_identity(
        &self,
        write_request: impl FnOnce(&mut RequestDigest),
    ) -> CallIdentity {
        let key = Hash::hash(self.key.as_bytes());
        let mut digest = RequestDigest(Hash::new());
        digest.write(self.operation.as_bytes());
        // The time is part of the digest: a repetition with a longer time than the first call could arrive after the
        // record has expired.
        digest.write_number(ceil_micros(self.ttl));
        write_request(&mut digest);
        let request = digest.0.finalize();
        let [mut id, mut request_digest] = [[0; 16], [0; 16]];
        id.copy_from_slice(&key[..16]);
        request_digest.copy_from_slice(&request[..16]);
        CallIdentity {
            id: CallId::from_bytes(id),
            request_digest: u128::from_be_bytes(request_digest) as u64,
            ttl: self.ttl,
        }
    }
}

/// A digest of a request. Each part that is written is preceded by its length, so that different lists of parts have
/// different digests.
pub(crate) struct RequestDigest(Hash);

impl RequestDigest {
    /// Adds a part of the request to the digest.
    pub(crate) fn write(&mut self, part: &[u8]) {
        self.write_number(part.len() as u64);
        self.0.update(part);
    }

    /// Adds a number to the digest.
    pub(crate) fn write_number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_identity_is_same_in_every_version() {
        let identity = IdempotencyKey::new("order-17")
            .with_operation("check")
            .call_identity(|request| request.write(b"ann"));
        assert_eq!(identity.id.to_string(), "72a90ea3da8b5dd01bde2f27314e02e2");
        assert_eq!(identity.request_digest, 0x99a2_168c_6696_707d);
    }

    #[test]
    fn call_identity_depends_on_key_and_request() {
        let identify = |key, operation, parts: &[&str]| {
            IdempotencyKey::new(key).with_operation(operation).call_identity(|request| {
                parts.iter().for_each(|part| request.write(part.as_bytes()))
            })
        };
        let first = identify("k", "check", &["ab", "c"]);
        assert_eq!(first, identify("k", "check", &["ab", "c"]));
        assert_ne!(first.id, identify("l", "check", &["ab", "c"]).id);
        for other in [
            identify("k", "report", &["ab", "c"]),
            identify("k", "check", &["a", "bc"]),
            identify("k", "check", &["ab"]),
        ] {
            assert_eq!(first.id, other.id);
            assert_ne!(first.request_digest, other.request_digest);
        }
    }
}
