//! Permit tokens: permits, encrypted and authenticated as [reservations](crate::reservations::token) are. A token does
//! not expire, because the store knows which permits are live.

use std::time::Duration;

use slidegate::Permit;
use thiserror::Error;

use crate::reservations::token::{SealError, TokenSealer};

/// The kind of permit tokens. It is authenticated, so that a token of another kind is not accepted as a permit.
const PERMIT_TOKEN_KIND: &str = "permit";

/// The token of a permit, and the time after which the permit expires unless it is renewed.
pub struct PermitToken {
    pub text: String,
    pub ttl: Duration,
}

/// The reason why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PermitTokenError {
    #[error(
        "`permit` is not a token of this service: it is truncated, changed, or made with another token key or --redis-prefix; send it as the check returned it, and set the same --token-key-file and --redis-prefix on all instances"
    )]
    Invalid,
    #[error(
        "`permit` was made by another instance, whose counters this instance cannot change; send it to the instance that made it"
    )]
    OtherInstance,
}

impl TokenSealer {
    /// Returns the token of a permit. If `is_shared` is `false`, only this instance can open it.
    pub fn seal_permit(&self, permit: &Permit, is_shared: bool) -> Result<String, SealError> {
        self.encrypt(PERMIT_TOKEN_KIND, &(is_shared, permit))
    }

    /// Returns the permit of a token.
    pub fn open_permit(&self, token: &str) -> Result<Permit, PermitTokenError> {
        let content = self.decrypt(PERMIT_TOKEN_KIND, token).ok_or(PermitTokenError::Invalid)?;
        let (is_own, (is_shared, permit)) = content;
        if is_own || is_shared { Ok(permit) } else { Err(PermitTokenError::OtherInstance) }
    }
}

#[cfg(test)]
mod tests {
    use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};

    use super::*;

    fn permit() -> Permit {
        let policy =
            "rules: [{ name: a, per: [key], limits: [{ concurrent: 2, permit_ttl: 9s }] }]";
        let gate = Gate::new(Policy::from_yaml(policy).unwrap(), MemoryStore::new());
        let request = Request::new("default", Descriptor::new([("key", "top-secret")]));
        gate.check(&request).permit().unwrap()
    }

    fn sealer(key: [u8; 32]) -> TokenSealer {
        TokenSealer::new(Some(&key), "slidegate:").unwrap()
    }

    #[test]
    fn instances_with_same_key_open_shared_permits() {
        let (first, second) = (sealer([7; 32]), sealer([7; 32]));
        let token = first.seal_permit(&permit(), true).unwrap();
        assert!(second.open_permit(&token).is_ok());
        assert_eq!(sealer([8; 32]).open_permit(&token), Err(PermitTokenError::Invalid));
        let own = first.seal_permit(&permit(), false).unwrap();
        assert!(first.open_permit(&own).is_ok());
        assert_eq!(second.open_permit(&own), Err(PermitTokenError::OtherInstance));
    }

    #[test]
    fn token_of_permit_is_no_token_of_reservation() {
        let sealer = sealer([7; 32]);
        let token = sealer.seal_permit(&permit(), true).unwrap();
        assert!(sealer.open(&token).is_err());
        for other in ["", "!", &token[1..], &token[..token.len() - 1], &token.to_lowercase()] {
            assert_eq!(sealer.open_permit(other), Err(PermitTokenError::Invalid), "{other}");
        }
    }
}
