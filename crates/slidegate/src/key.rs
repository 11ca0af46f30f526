//! Keys: the identity of a counter. A key consists of the domain, rule and limit, and the values that the rule counts
//! by.
//!
//! A key borrows its parts. Stores hash it, or write it as text, without allocating unless the text is very long.
//! Different keys have different texts and different hash inputs. Both are stable across processes and versions,
//! because stores that share counts identify a key by its text or hash. Only the hashed keys of a limiter are local to
//! their process.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use fnv::FnvHasher;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::algorithm::AnyCounter;
use crate::clock::Timestamp;
use crate::cluster_options::ClusterOptions;
use crate::limit::Limit;
use crate::redis_options::RedisOptions;

mod escape;
mod value;

use escape::write_escaped;
pub use escape::write_name_value_pairs;
use value::END_OF_TEXT_BYTE;
pub use value::{MAX_VALUE_BYTES, ShortenedValue, Value};

/// Domain of requests and rules that do not set one.
pub const DEFAULT_DOMAIN: &str = "default";

/// The part of a key that comes from a rule: domain, rule, limit, and the names of the attributes in `per`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    domain: Box<str>,
    rule: Box<str>,
    limit: Box<str>,
    per: Box<[Box<str>]>,
    hash: u64,
    redis: Option<Arc<RedisOptions>>,
    cluster: Option<ClusterOptions>,
}

impl Scope {
    /// Creates the scope of one limit of a rule that counts by the attributes `per`.
    pub fn new(domain: &str, rule: &str, limit: &str, per: &[impl AsRef<str>]) -> Self {
        let per: Box<[Box<str>]> = per.iter().map(|name| name.as_ref().into()).collect();
        let mut scope = Self {
            domain: domain.into(),
            rule: rule.into(),
            limit: limit.into(),
            per,
            hash: 0,
            redis: None,
            cluster: None,
        };
        scope.hash = scope.stable_hash();
        scope
    }

    /// Returns the FNV-1a hash of the domain, the rule, the limit and the attribute names, each followed by
    /// [`END_OF_TEXT_BYTE`].
    #[inline]
    fn stable_hash(&self) -> u64 {
        let mut hasher = FnvHasher::default();
        for text in [&self.domain, &self.rule, &self.limit].into_iter().chain(&self.per) {
            hasher.write(text.as_bytes());
            hasher.write(&[END_OF_TEXT_BYTE]);
        }
        hasher.finish()
    }

    /// Sets the options for stores that count in Redis. The options do not change the identity of a key.
    pub fn with_redis(self, options: impl Into<Arc<RedisOptions>>) -> Self {
        let options = options.into();
        let is_valid = |index: &usize| *index < self.per.len();
        debug_assert!(options.slot_by().iter().all(is_valid), "indices of `per`");
        Self { redis: Some(options), ..self }
    }

    /// Sets the options for stores that count in a cluster. The options do not change the identity of a key.
    pub fn with_cluster(self, options: impl Into<Option<ClusterOptions>>) -> Self {
        Self { cluster: options.into(), ..self }
    }

    /// Returns the names of the attributes in `per`.
    pub(crate) fn attribute_names(&self) -> impl Iterator<Item = &str> + Clone {
        self.per.iter().map(|name| &**name)
    }
}

/// The group of a key in a store in memory. Each limit of a rule has a group, which it may share with other limits. The
/// store first evicts keys of groups that have at least their share of all keys.
pub type KeyGroup = u8;

/// The identity of a counter: a scope (domain, rule and limit), and the values that the rule counts by.
///
/// Different keys have different texts. Characters with a meaning in the text, or in a glob pattern of Redis, are
/// percent-encoded.
///
/// ```
/// use slidegate::store::{Key, Scope};
///
/// let scope = Scope::new("api", "per-tenant", "1m", &["tenant", "ip"]);
/// let values = ["acme=*".into(), "2001:db8::1".into()];
/// let key = Key::new(&scope, &values);
/// assert_eq!(key.to_string(), "api:per-tenant:1m:{tenant=acme%3D%2A,ip=2001:db8::1}");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Key<'a>(KeyRepr<'a>);

/// The forms of a key: with names and values, as hashes only, or as the store's identifier of the counter.
#[derive(Clone, Copy, Debug)]
enum KeyRepr<'a> {
    Named { scope: &'a Scope, values: &'a [Value<'a>], part: Option<u16> },
    Hashed { digest: u64, stable_hash: u64 },
    Counter { id: &'a CounterId, phase_us: u64 },
}

/// A store's identifier of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CounterId {
    /// A 64-bit fingerprint of the key and the limit.
    Fingerprint(u64),
    /// The name of the counter as text.
    Text(
        #[serde(serialize_with = "serialize_text", deserialize_with = "deserialize_text")] Arc<str>,
    ),
}

fn serialize_text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

fn deserialize_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    String::deserialize(deserializer).map(Into::into)
}

impl<'a> Key<'a> {
    /// Creates the key of these values in a scope, one value for each name in `per`.
    pub fn new(scope: &'a Scope, values: &'a [Value<'a>]) -> Self {
        Self::with_optional_sub_key(scope, values, None)
    }

    /// Creates the key of these values in a scope. If the counts of this key are split over several sub-keys, `part` is
    /// the index of the sub-key to create.
    pub(crate) fn with_optional_sub_key(
        scope: &'a Scope,
        values: &'a [Value<'a>],
        part: Option<u16>,
    ) -> Self {
        debug_assert_eq!(scope.per.len(), values.len(), "one value per name");
        Self(KeyRepr::Named { scope, values, part })
    }

    /// Creates a key from two hashes of a value; the value itself is not kept. `digest` is computed with a secret seed,
    /// so that clients cannot choose values that collide. `stable_hash` is computed without a seed, and determines the
    /// phase of the key: the offset at which its windows begin.
    #[inline]
    pub(crate) fn from_hashes(digest: u64, stable_hash: u64) -> Self {
        Self(KeyRepr::Hashed { digest, stable_hash })
    }

    /// Creates the key of a counter that a store has charged before. `id` and `phase_us` are from the receipt.
    pub(crate) fn from_counter_id(id: &'a CounterId, phase_us: u64) -> Self {
        Self(KeyRepr::Counter { id, phase_us })
    }

    /// Returns the identifier of the counter, if the key was created from a receipt; otherwise `None`.
    pub fn counter_id(&self) -> Option<&'a CounterId> {
        match self.0 {
            KeyRepr::Counter { id, .. } => Some(id),
            KeyRepr::Named { .. } | KeyRepr::Hashed { .. } => None,
        }
    }

    /// Returns the sub-key with this index. A policy can split the counts of a key over several sub-keys, and selects
    /// one sub-key for each request. A key that consists of hashes or of a store's identifier is returned unchanged.
    pub fn with_sub_key(self, part: u16) -> Self {
        match self.0 {
            KeyRepr::Named { scope, values, .. } => {
                Self(KeyRepr::Named { scope, values, part: Some(part) })
            }
            KeyRepr::Hashed { .. } | KeyRepr::Counter { .. } => self,
        }
    }

    /// Returns the index of the sub-key; `None` if the key is not split.
    pub fn sub_key_index(&self) -> Option<u16> {
        match self.0 {
            KeyRepr::Named { part, .. } => part,
            KeyRepr::Hashed { .. } | KeyRepr::Counter { .. } => None,
        }
    }

    /// Returns the options for stores that count in Redis; `None` if the scope has none.
    pub fn redis_options(&self) -> Option<&'a RedisOptions> {
        match self.0 {
            KeyRepr::Named { scope, .. } => scope.redis.as_deref(),
            KeyRepr::Hashed { .. } | KeyRepr::Counter { .. } => None,
        }
    }

    /// Returns the options for stores that count in a cluster; `None` if the scope has none.
    pub fn cluster_options(&self) -> Option<&'a ClusterOptions> {
        match self.0 {
            KeyRepr::Named { scope, .. } => scope.cluster.as_ref(),
            KeyRepr::Hashed { .. } | KeyRepr::Counter { .. } => None,
        }
    }

    /// Returns the names of the attributes in `per` with their values; `None` if the key consists of hashes or of a
    /// store's identifier.
    pub fn name_value_pairs(
        &self,
    ) -> Option<impl Iterator<Item = (&'a str, &'a Value<'a>)> + Clone + use<'a>> {
        match self.0 {
            KeyRepr::Named { scope, values, .. } => Some(scope.attribute_names().zip(values)),
            KeyRepr::Hashed { .. } | KeyRepr::Counter { .. } => None,
        }
    }

    /// Returns this sub-key's share of the limit; `None` if the counts are not split over sub-keys.
    pub fn limit_share(&self) -> Option<&'a Limit> {
        self.redis_options()?.limit_share(self.sub_key_index()?)
    }

    /// Returns the domain and the rule as text, such as `api:per-tenant`.
    pub fn rule(&self) -> impl fmt::Display {
        let parts = self.0;
        fmt::from_fn(move |f| match parts {
            KeyRepr::Named { scope, .. } => {
                write_escaped(f, &scope.domain, false)?;
                f.write_str(":")?;
                write_escaped(f, &scope.rule, false)
            }
            KeyRepr::Hashed { .. } | KeyRepr::Counter { .. } => Ok(()),
        })
    }

    /// Returns the id of the limit as text, such as `1m`.
    pub fn limit(&self) -> impl fmt::Display {
        let parts = self.0;
        fmt::from_fn(move |f| match parts {
            KeyRepr::Named { scope, .. } => write_escaped(f, &scope.limit, false),
            KeyRepr::Hashed { .. } | KeyRepr::Counter { .. } => Ok(()),
        })
    }

    /// Returns the names and values as text, such as `{tenant=acme}`. The domain, the rule and the limit are not
    /// included.
    pub fn values_text(&self) -> impl fmt::Display {
        let parts = self.0;
        fmt::from_fn(move |f| match parts {
            KeyRepr::Named { scope, values, .. } => {
                f.write_str("{")?;
                write_name_value_pairs(f, scope.attribute_names().zip(values), true)?;
                f.write_str("}")
            }
            KeyRepr::Hashed { digest, .. } => write!(f, "#{digest:016x}"),
            KeyRepr::Counter { id: CounterId::Fingerprint(id), .. } => write!(f, "#{id:016x}"),
            KeyRepr::Counter { id: CounterId::Text(id), .. } => f.write_str(id),
        })
    }

    /// Returns a 64-bit fingerprint of this key and the [shape](Limit::shape) of a limit. The values are hashed with
    /// the secret, so clients cannot predict the fingerprint. The result is combined with a hash of the scope.
    ///
    /// The fingerprint is the same in every process, version and machine on which the secret produces the same hashes.
    /// This does not hold for the keys of a [`Limiter`](crate::Limiter) over a [synchronous](crate::store::Synchronous)
    /// store, because they are hashed with a secret of that limiter. Therefore a store that shares its counts must be
    /// asynchronous.
    ///
    /// ```
    /// use slidegate::Limit;
    /// use slidegate::store::{Key, Scope};
    /// use std::hash::RandomState;
    ///
    /// let limit: Limit = "100/min".parse()?;
    /// let (scope, secret) = (Scope::new("api", "all", "1m", &["tenant"]), RandomState::new());
    /// let fingerprint = |tenant| Key::new(&scope, &[tenant]).fingerprint(&secret, limit.shape());
    /// assert_ne!(fingerprint("acme".into()), fingerprint("umbrella".into()));
    /// # Ok::<(), slidegate::limit::LimitError>(())
    /// ```
    #[inline]
    pub fn fingerprint(&self, secret: &impl BuildHasher, shape: u64) -> u64 {
        // The hash of values under the secret is effectively random, so XOR with the scope and the shape is enough:
        // counters with the same values and different shapes never collide, others collide as rarely as random numbers.
        match self.0 {
            KeyRepr::Named { scope, values, .. } => {
                let mut hasher = secret.build_hasher();
                values.iter().for_each(|value| value.write_to_hasher(&mut hasher));
                hasher.finish() ^ scope.hash ^ shape
            }
            KeyRepr::Hashed { digest, .. } => digest ^ shape,
            KeyRepr::Counter { id, .. } => fingerprint_of_counter(id, secret, shape),
        }
    }

    /// Returns the group of the key in a store in memory. The keys of a limit are in one group.
    pub fn group(&self) -> KeyGroup {
        match self.0 {
            KeyRepr::Named { scope, .. } => (scope.hash >> 56) as KeyGroup,
            KeyRepr::Hashed { .. } | KeyRepr::Counter { .. } => 0,
        }
    }

    /// Returns the FNV-1a hash (64 bits) of the key's text, which is the same in every process and language.
    #[inline]
    pub fn stable_hash(&self) -> u64 {
        struct HashingWriter(FnvHasher);
        impl fmt::Write for HashingWriter {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.write(text.as_bytes());
                Ok(())
            }
        }
        match self.0 {
            KeyRepr::Named { .. } => {
                let mut writer = HashingWriter(FnvHasher::default());
                // Writing into a hasher cannot fail.
                let _ = fmt::Write::write_fmt(&mut writer, format_args!("{self}"));
                writer.0.finish()
            }
            KeyRepr::Hashed { stable_hash, .. } => stable_hash,
            // The receipt has only the phase, which is the stable hash modulo the window, so it leads to the same phase
            // again.
            KeyRepr::Counter { phase_us, .. } => phase_us,
        }
    }
}

fn fingerprint_of_counter(id: &CounterId, secret: &impl BuildHasher, shape: u64) -> u64 {
    match id {
        CounterId::Fingerprint(fingerprint) => *fingerprint,
        CounterId::Text(text) => secret.hash_one(text) ^ shape,
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            KeyRepr::Named { .. } => {
                write!(f, "{}:{}:{}", self.rule(), self.limit(), self.values_text())
            }
            KeyRepr::Hashed { .. } | KeyRepr::Counter { .. } => self.values_text().fmt(f),
        }
    }
}

// The methods of limits that compute with a key. They are not in `limit.rs`, because keys depend on limits.
impl Limit {
    /// Returns the phase of a key at `now`, in microseconds: the offset that is added to `now` to get the time of its
    /// counter. For fixed windows with [`Align::Key`](crate::Align::Key), the phase is a stable hash of the key; for a
    /// calendar limit, it depends on the period that contains `now`; for all other limits, it is 0.
    #[inline]
    pub fn phase_us(&self, key: &Key<'_>, now: Timestamp) -> u64 {
        self.phase_after_steps_us(key, now, || 0)
    }

    /// Returns the phase of a key for a clock that does not follow the steps of the wall clock. `step_us` returns the
    /// sum of these steps. The phase is added to `now` modulo 2^64, because steps back are negative.
    #[inline]
    pub(crate) fn phase_after_steps_us(
        &self,
        key: &Key<'_>,
        now: Timestamp,
        step_us: impl FnOnce() -> i64,
    ) -> u64 {
        match self.counter_ref() {
            AnyCounter::FixedWindow(counter) => {
                counter.phase_us(|| key.stable_hash(), now, step_us)
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests;
