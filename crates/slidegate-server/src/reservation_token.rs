//! Reservation tokens: the charges of a reserved call, encrypted and authenticated. [Permits](crate::permit_token) have
//! tokens of the same kind.
//!
//! A token is `base64url(version, salt, ciphertext)`. The ciphertext is ChaCha20-Poly1305 (RFC 8439) under a key that is
//! derived from the token key and the random salt of 128 bits with HMAC-SHA256. So every token has its own key, its
//! nonce can be constant, and instances that share a token key need no common counter. The holder of a token can
//! neither change nor read it: keys of counters contain attribute values.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use slidegate::{Clock, ReservedCall, Timestamp, WallClock};
use thiserror::Error;

/// Maximum length of a token in bytes. Only a reservation with hundreds of limits reaches it.
pub const MAX_TOKEN_BYTES: usize = 64 * 1024;

/// The first byte of a token. It is authenticated.
const TOKEN_VERSION: u8 = 1;

const SALT_BYTES: usize = 16;

/// The nonce of all tokens: each token has a key of its own.
const NONCE: [u8; NONCE_LEN] = [0; NONCE_LEN];

/// Separates the keys of tokens from other uses of the same secret.
const KEY_DERIVATION_LABEL: &[u8] = b"slidegate reservation token 1";

/// Separates the token key of a cluster from other uses of the cluster key.
const CLUSTER_KEY_LABEL: &[u8] = b"slidegate reservation token key of a cluster 1";

const ORIGIN_ANY: u8 = 0;
const ORIGIN_STORE_OF_INSTANCE: u8 = 1;
const ORIGIN_FALLBACK_OF_INSTANCE: u8 = 2;

/// The content of a token.
#[derive(Clone, Debug, PartialEq)]
pub struct Reservation {
    pub call: ReservedCall,
    pub expires_at: Timestamp,
    pub origin: ReservationOrigin,
}

/// The place where the charges of a reservation are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationOrigin {
    /// A store that all instances share.
    SharedStore,
    /// The store of this instance, which other instances cannot change.
    StoreOfThisInstance,
    /// The memory of this instance, in which it counted while its store was unavailable.
    FallbackOfThisInstance,
}

/// The reason why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TokenError {
    #[error(
        "`reservation` is not a token of this service: it is truncated, changed, or made with another token key; send it as /v1/reserve returned it, and set the same --token-key-file on all instances"
    )]
    Invalid,
    #[error("`reservation` has expired, and its estimate stays charged; settle within `ttl_ms`")]
    Expired,
    #[error(
        "`reservation` was made by another instance, whose counters this instance cannot change; send it to the instance that made it"
    )]
    OtherInstance,
}

/// The token would be longer than [`MAX_TOKEN_BYTES`], or the system has no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the request has too many limits for a token of its reservation or permit; use fewer rules, or shorter values"
)]
pub struct SealError;

/// Derives the token key of a cluster from the cluster key.
pub fn token_key_of_cluster(cluster_key: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, cluster_key.as_bytes());
    hmac::sign(&key, CLUSTER_KEY_LABEL).as_ref().to_vec()
}

/// Creates and opens tokens.
pub struct TokenSealer {
    key: hmac::Key,
    random: SystemRandom,
    /// Identifies this process in tokens that no other process can settle.
    instance: [u8; 16],
}

impl TokenSealer {
    /// Creates a sealer with a key that other instances may share. With `None`, draws a random key.
    pub fn new(key: Option<&[u8]>) -> Result<Self, ring::error::Unspecified> {
        let random = SystemRandom::new();
        let mut instance = [0; 16];
        random.fill(&mut instance)?;
        let mut drawn = [0; 32];
        random.fill(&mut drawn)?;
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, key.unwrap_or(&drawn)), random, instance })
    }

    /// Returns the token of a reservation.
    pub fn seal(&self, reservation: &Reservation) -> Result<String, SealError> {
        let mut plaintext = vec![match reservation.origin {
            ReservationOrigin::SharedStore => ORIGIN_ANY,
            ReservationOrigin::StoreOfThisInstance => ORIGIN_STORE_OF_INSTANCE,
            ReservationOrigin::FallbackOfThisInstance => ORIGIN_FALLBACK_OF_INSTANCE,
        }];
        plaintext.extend(self.instance);
        plaintext.extend(reservation.expires_at.as_micros().to_le_bytes());
        plaintext.extend(reservation.call.encode());
        self.encrypt(TOKEN_VERSION, plaintext)
    }

    /// Returns the token with this content. `version` is the first byte of the token, which distinguishes the kinds of
    /// tokens.
    pub(super) fn encrypt(&self, version: u8, mut plaintext: Vec<u8>) -> Result<String, SealError> {
        let mut salt = [0; SALT_BYTES];
        self.random.fill(&mut salt).map_err(|_| SealError)?;
        let key = self.derive_key(&salt).ok_or(SealError)?;
        let nonce = Nonce::assume_unique_for_key(NONCE);
        let sealed = key.seal_in_place_append_tag(nonce, Aad::from([version]), &mut plaintext);
        sealed.map_err(|_| SealError)?;
        let bytes = [&[version][..], &salt, &plaintext].concat();
        let token = URL_SAFE_NO_PAD.encode(bytes);
        if token.len() > MAX_TOKEN_BYTES { Err(SealError) } else { Ok(token) }
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
        let plaintext = self.decrypt(TOKEN_VERSION, token).ok_or(TokenError::Invalid)?;
        let (origin, rest) = plaintext.split_first().ok_or(TokenError::Invalid)?;
        let (instance, rest) = rest.split_first_chunk().ok_or(TokenError::Invalid)?;
        let (expires_at, call) = rest.split_first_chunk().ok_or(TokenError::Invalid)?;
        let origin = match *origin {
            ORIGIN_ANY => ReservationOrigin::SharedStore,
            _ if *instance != self.instance => return Err(TokenError::OtherInstance),
            ORIGIN_STORE_OF_INSTANCE => ReservationOrigin::StoreOfThisInstance,
            ORIGIN_FALLBACK_OF_INSTANCE => ReservationOrigin::FallbackOfThisInstance,
            _ => return Err(TokenError::Invalid),
        };
        Ok(Reservation {
            call: ReservedCall::decode(call).ok_or(TokenError::Invalid)?,
            expires_at: Timestamp::from_micros(u64::from_le_bytes(*expires_at)),
            origin,
        })
    }

    /// Returns the content of a token; `None` if it is not an authentic token of this kind.
    pub(super) fn decrypt(&self, expected_version: u8, token: &str) -> Option<Vec<u8>> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (version, rest) = bytes.split_first()?;
        let (salt, _) = rest.split_first_chunk()?;
        if *version != expected_version {
            return None;
        }
        let key = self.derive_key(salt)?;
        let nonce = Nonce::assume_unique_for_key(NONCE);
        let mut ciphertext = bytes.split_off(1 + SALT_BYTES);
        let aad = Aad::from([expected_version]);
        let length = key.open_in_place(nonce, aad, &mut ciphertext).ok()?.len();
        ciphertext.truncate(length);
        Some(ciphertext)
    }

    /// Returns the id of this process in tokens that no other process can use.
    pub(super) fn instance(&self) -> &[u8; 16] {
        &self.instance
    }

    fn derive_key(&self, salt: &[u8; SALT_BYTES]) -> Option<LessSafeKey> {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(KEY_DERIVATION_LABEL);
        context.update(salt);
        let key = UnboundKey::new(&CHACHA20_POLY1305, context.sign().as_ref()).ok()?;
        Some(LessSafeKey::new(key))
    }
}

#[cfg(test)]
mod tests {
    use slidegate::{CallId, Descriptor, Gate, MemoryStore, Policy, Request};

    use super::*;

    fn reservation(origin: ReservationOrigin) -> Reservation {
        let policy =
            Policy::from_yaml("rules: [{ name: a, per: [key], limits: [9/s, 99/h] }]").unwrap();
        let gate = Gate::new(policy, MemoryStore::new());
        let request = Request::new("default", Descriptor::new([("key", "top-secret")]).cost(7));
        let call = ReservedCall::from_decision(CallId::unique(), &gate.check(&request));
        Reservation { call, expires_at: WallClock.now().after(Duration::from_secs(600)), origin }
    }

    fn sealer(key: Option<&[u8]>) -> TokenSealer {
        TokenSealer::new(key).unwrap()
    }

    #[test]
    fn instances_with_same_key_open_tokens_of_shared_store() {
        let (first, second) = (sealer(Some(&[7; 32])), sealer(Some(&[7; 32])));
        let shared = reservation(ReservationOrigin::SharedStore);
        let token = first.seal(&shared).unwrap();
        let (opened, remaining) = second.open(&token).unwrap();
        assert_eq!(opened, shared);
        assert!(remaining <= Duration::from_secs(600) && remaining > Duration::from_secs(590));
        assert_eq!(sealer(Some(&[8; 32])).open(&token), Err(TokenError::Invalid));
        assert_eq!(sealer(None).open(&token), Err(TokenError::Invalid));
    }

    #[test]
    fn token_of_one_instance_is_rejected_by_others() {
        let (first, second) = (sealer(Some(&[7; 32])), sealer(Some(&[7; 32])));
        for origin in
            [ReservationOrigin::StoreOfThisInstance, ReservationOrigin::FallbackOfThisInstance]
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
        let mut expired = reservation(ReservationOrigin::SharedStore);
        expired.expires_at = WallClock.now();
        assert_eq!(sealer.open(&sealer.seal(&expired).unwrap()), Err(TokenError::Expired));
    }

    #[test]
    fn changed_token_is_rejected() {
        let sealer = sealer(None);
        let token = sealer.seal(&reservation(ReservationOrigin::SharedStore)).unwrap();
        assert!(!token.contains("secret"));
        let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
        for (nth, _) in bytes.iter().enumerate() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[nth] ^= 1 << bit;
                let changed = URL_SAFE_NO_PAD.encode(changed);
                assert_eq!(sealer.open(&changed), Err(TokenError::Invalid), "byte {nth}");
            }
            let cut = URL_SAFE_NO_PAD.encode(&bytes[..nth]);
            assert_eq!(sealer.open(&cut), Err(TokenError::Invalid));
        }
        for other in ["", "!", &"A".repeat(MAX_TOKEN_BYTES + 1), &format!("{token}=")] {
            assert_eq!(sealer.open(other), Err(TokenError::Invalid));
        }
    }
}
