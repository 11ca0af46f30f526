//! Reservation tokens: the charges of a reserved call, encrypted and authenticated. [Permits](crate::permits::token)
//! have tokens of the same kind.
//!
//! A token is a PASETO (`v4.local`), whose content is JSON. Its nonce is random, so instances that share a token key
//! need no common counter of nonces. The holder of a token can neither change nor read it: keys of counters contain
//! attribute values.

use std::sync::Once;
use std::time::Duration;

use pasetors::errors::Error as PasetoError;
use pasetors::keys::{Generate, SymmetricKey};
use pasetors::token::{Local, UntrustedToken};
use pasetors::version4::{LocalToken, V4};
use ring::hmac;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use slidegate::Timestamp;
use slidegate::clock::{Clock, WallClock};
use slidegate::gate::ReservedCall;
use slidegate::store::CallId;
use thiserror::Error;
use tracing::warn;

use crate::bounds::MAX_BODY_BYTES;
use crate::decide::error::{CallError, CallErrorKind};

/// Maximum length of a token in bytes. A body with the token fits into [`MAX_BODY_BYTES`]. A key has a bounded length
/// whatever clients send, so only a request with more than about 180 limits reaches this maximum.
pub const MAX_TOKEN_BYTES: usize = MAX_BODY_BYTES / 4 * 3;

/// The kind of reservation tokens. It is authenticated, so that a token of another kind is not accepted as a
/// reservation.
const RESERVATION_TOKEN_KIND: &str = "reservation";

/// Separates the keys of tokens from other uses of the same secret.
const TOKEN_KEY_DERIVATION_LABEL: &[u8] = b"slidegate reservation token 2";

/// Separates the token key of a cluster from other uses of its secret.
const CLUSTER_TOKEN_KEY_DERIVATION_LABEL: &[u8] = b"slidegate reservation token key of a cluster 1";

/// The content of a reservation token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reservation {
    pub call: ReservedCall,
    pub expires_at: Timestamp,
    pub origin: ChargeLocation,
}

/// The place where the charges of a reservation are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChargeLocation {
    /// A store that all instances share.
    SharedStore,
    /// The store of this instance, which other instances cannot change.
    StoreOfThisInstance,
    /// The memory of this instance, in which it counted while its store was unavailable.
    FallbackOfThisInstance,
}

/// The token of a reservation, and the time for which it is valid.
pub struct ReservationToken {
    pub text: String,
    pub ttl: Duration,
}

/// The reason why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TokenError {
    #[error(
        "`reservation` is not a token of this service: it is truncated, changed, or made with another token key or --redis-prefix; send it as /v1/reserve returned it, and set the same --token-key-file and --redis-prefix on all instances"
    )]
    Invalid,
    #[error("`reservation` has expired, and its estimate stays charged; settle within `ttl_ms`")]
    Expired,
    #[error(
        "`reservation` was made by another instance, whose counters this instance cannot change; send it to the instance that made it"
    )]
    OtherInstance,
}

/// The error for a token that cannot be created: it would be longer than [`MAX_TOKEN_BYTES`], or the system has no
/// random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the request has too many limits for a token of its reservation or permit; use fewer rules or fewer descriptors"
)]
pub struct SealError;

impl From<SealError> for CallError {
    fn from(error: SealError) -> Self {
        Self::new(CallErrorKind::Unprocessable, error)
    }
}

/// Derives the token key of a cluster from the secret of the cluster.
pub fn derive_cluster_token_key(secret: &str) -> Vec<u8> {
    derive_key(secret.as_bytes(), CLUSTER_TOKEN_KEY_DERIVATION_LABEL).as_ref().to_vec()
}

/// Derives a key of 32 bytes from a secret of any length.
fn derive_key(secret: &[u8], label: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), label)
}

/// Creates and opens tokens.
pub struct TokenSealer {
    key: SymmetricKey<V4>,
    /// The prefix of the keys in the store; empty if they have none. Every token authenticates it, because stores with
    /// different prefixes have different counters, even if instances share the token key.
    store_prefix: Box<str>,
    /// Identifies this process in tokens that no other process can settle.
    instance: CallId,
    /// Logs once that other instances cannot open the tokens; `None` if they can, or if there are no other instances.
    key_warning: Option<Once>,
}

impl TokenSealer {
    /// Creates a sealer with a key that other instances may share. With `None`, draws a random key. `store_prefix` is
    /// the prefix of the keys in the store.
    pub fn new(secret: Option<&[u8]>, store_prefix: &str) -> Result<Self, PasetoError> {
        let key = match secret {
            Some(secret) => {
                SymmetricKey::from(derive_key(secret, TOKEN_KEY_DERIVATION_LABEL).as_ref())
            }
            None => SymmetricKey::generate(),
        };
        let instance = CallId::unique();
        Ok(Self { key: key?, store_prefix: store_prefix.into(), instance, key_warning: None })
    }

    /// Returns a sealer that logs a warning with its first token: other instances cannot open its tokens.
    pub fn with_key_warning(self) -> Self {
        Self { key_warning: Some(Once::new()), ..self }
    }

    /// Returns the context of a token, its kind and the store prefix, which is authenticated with the token. Kinds
    /// contain no space, so different contexts have different bytes.
    fn associated_data(&self, kind: &str) -> Vec<u8> {
        format!("{kind} {}", self.store_prefix).into_bytes()
    }

    /// Returns the token of a reservation.
    pub fn seal(&self, reservation: &Reservation) -> Result<String, SealError> {
        self.encrypt(RESERVATION_TOKEN_KIND, reservation)
    }

    /// Returns the token with this content and the id of this process. `kind` distinguishes the kinds of tokens.
    pub(crate) fn encrypt(
        &self,
        kind: &str,
        content: &impl Serialize,
    ) -> Result<String, SealError> {
        if let Some(once) = &self.key_warning {
            once.call_once(|| {
                warn!(
                    "only the instance that made a reservation or permit can settle, renew or release it; set the same \
                     --token-key-file on all instances"
                );
            });
        }
        let message = serde_json::to_vec(&(self.instance, content)).map_err(|_| SealError)?;
        let token =
            LocalToken::encrypt(&self.key, &message, None, Some(&self.associated_data(kind)));
        token.ok().filter(|token| token.len() <= MAX_TOKEN_BYTES).ok_or(SealError)
    }

    /// Returns the content of a token that has not expired, and the time until it expires.
    pub fn open(&self, token: &str) -> Result<(Reservation, Duration), TokenError> {
        let reservation = self.decode(token)?;
        let now = WallClock.now();
        match reservation.expires_at.as_micros().checked_sub(now.as_micros()) {
            None | Some(0) => Err(TokenError::Expired),
            Some(remaining_us) => Ok((reservation, Duration::from_micros(remaining_us))),
        }
    }

    fn decode(&self, token: &str) -> Result<Reservation, TokenError> {
        let (is_own, reservation): (_, Reservation) =
            self.decrypt(RESERVATION_TOKEN_KIND, token).ok_or(TokenError::Invalid)?;
        match reservation.origin {
            ChargeLocation::SharedStore => Ok(reservation),
            _ if is_own => Ok(reservation),
            _ => Err(TokenError::OtherInstance),
        }
    }

    /// Returns whether this process has made a token, and the content of the token; `None` if it is not an authentic
    /// token of this kind.
    pub(crate) fn decrypt<T: DeserializeOwned>(
        &self,
        kind: &str,
        token: &str,
    ) -> Option<(bool, T)> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let token = UntrustedToken::<Local, V4>::try_from(token).ok()?;
        let associated_data = self.associated_data(kind);
        let trusted = LocalToken::decrypt(&self.key, &token, None, Some(&associated_data)).ok()?;
        let (instance, content): (CallId, T) = serde_json::from_str(trusted.payload()).ok()?;
        Some((instance == self.instance, content))
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};

    use super::*;

    fn reservation(origin: ChargeLocation) -> Reservation {
        let policy =
            Policy::from_yaml("rules: [{ name: a, per: [key], limits: [9/s, 99/h] }]").unwrap();
        let gate = Gate::new(policy, MemoryStore::new());
        let request = Request::new("default", Descriptor::new([("key", "top-secret")]).cost(7));
        let call = ReservedCall::from_decision(CallId::unique(), &gate.check(&request));
        Reservation { call, expires_at: WallClock.now().after(Duration::from_secs(600)), origin }
    }

    fn sealer(key: Option<&[u8]>) -> TokenSealer {
        sealer_with_prefix(key, "slidegate:")
    }

    fn sealer_with_prefix(key: Option<&[u8]>, store_prefix: &str) -> TokenSealer {
        TokenSealer::new(key, store_prefix).unwrap()
    }

    #[test]
    fn instances_with_same_key_open_tokens_of_shared_store() {
        let (first, second) = (sealer(Some(&[7; 32])), sealer(Some(&[7; 32])));
        let shared = reservation(ChargeLocation::SharedStore);
        let token = first.seal(&shared).unwrap();
        let (opened, remaining) = second.open(&token).unwrap();
        assert_eq!(opened, shared);
        assert!(remaining <= Duration::from_secs(600) && remaining > Duration::from_secs(590));
        assert_eq!(sealer(Some(&[8; 32])).open(&token), Err(TokenError::Invalid));
        assert_eq!(sealer(None).open(&token), Err(TokenError::Invalid));
        let other_prefix = sealer_with_prefix(Some(&[7; 32]), "slidegate:eu:");
        assert_eq!(other_prefix.open(&token), Err(TokenError::Invalid));
    }

    #[test]
    fn token_of_one_instance_is_rejected_by_others() {
        let (first, second) = (sealer(Some(&[7; 32])), sealer(Some(&[7; 32])));
        for origin in [ChargeLocation::StoreOfThisInstance, ChargeLocation::FallbackOfThisInstance]
        {
            let own = reservation(origin);
            let token = first.seal(&own).unwrap();
            assert_eq!(first.open(&token).unwrap().0, own);
            assert_eq!(second.open(&token), Err(TokenError::OtherInstance));
        }
    }

    #[test]
    fn expired_token_is_rejected() {
        let sealer = sealer(None);
        let mut expired = reservation(ChargeLocation::SharedStore);
        expired.expires_at = WallClock.now();
        assert_eq!(sealer.open(&sealer.seal(&expired).unwrap()), Err(TokenError::Expired));
    }

    #[test]
    fn changed_token_is_rejected() {
        let sealer = sealer(None);
        let token = sealer.seal(&reservation(ChargeLocation::SharedStore)).unwrap();
        assert!(!token.contains("secret"));
        let (header, payload) = token.split_at("v4.local.".len());
        let bytes = URL_SAFE_NO_PAD.decode(payload).unwrap();
        for (nth, _) in bytes.iter().enumerate() {
            let mut changed = bytes.clone();
            changed[nth] ^= 1 << (nth % 8);
            for other in [&changed, &bytes[..nth]] {
                let other = format!("{header}{}", URL_SAFE_NO_PAD.encode(other));
                assert_eq!(sealer.open(&other), Err(TokenError::Invalid), "byte {nth}");
            }
        }
        for other in [
            "",
            "!",
            &"A".repeat(MAX_TOKEN_BYTES + 1),
            &format!("{token}="),
            &format!("{token}.AAAA"),
            payload,
        ] {
            assert_eq!(sealer.open(other), Err(TokenError::Invalid));
        }
    }
}
