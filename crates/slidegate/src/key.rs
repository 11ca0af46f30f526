//! Keys: the identity of a counter. A key consists of the domain, rule and limit, and the values that the rule counts
//! by.
//!
//! A key borrows its parts. Stores hash it, or write it as text, without allocating unless the text is very long.
//! Different keys have different texts and different hash inputs. Both are stable across processes and versions,
//! because stores that share counts identify them by text or hash. Only the hashed keys of a limiter are local to their
//! process.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use fnv::FnvHasher;
use sha2::{Digest as _, Sha256};

use crate::cluster_options::ClusterOptions;
use crate::limit::Limit;
use crate::redis_options::RedisOptions;

mod value;

pub use value::{MAX_VALUE_BYTES, ShortenedValue, Value};

/// The byte that follows a text in the hash input of a key; see also [`END_OF_NETWORK_BYTE`] and
/// [`END_OF_DIGEST_BYTE`]. None of these bytes occurs in UTF-8, so the hash input can be parsed from its end: different
/// values never produce the same bytes.
const END_OF_TEXT_BYTE: u8 = 0xFF;
/// The byte that follows a network in the hash input of a key.
const END_OF_NETWORK_BYTE: u8 = 0xFE;
/// The byte that follows a digest in the hash input of a key.
const END_OF_DIGEST_BYTE: u8 = 0xFD;

/// Maximum length, in bytes, of the list of names and values in the text of a key. A longer list is replaced by its
/// digest.
const MAX_NAME_VALUE_LIST_BYTES: usize = 4096;

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
    pub(crate) fn attribute_names(&self) -> impl Iterator<Item = &str> {
        self.per.iter().map(|name| &**name)
    }
}

/// The identity of a counter: a scope (domain, rule and limit), and the values that the rule counts by.
///
/// Different keys have different texts. Characters with a meaning in the text, or in a glob pattern of Redis, are
/// percent-encoded.
///
/// ```
/// use slidegate::{Key, Scope};
///
/// let scope = Scope::new("api", "per-tenant", "1m", &["tenant", "ip"]);
/// let values = ["acme=*".into(), "2001:db8::1".into()];
/// let key = Key::new(&scope, &values);
/// assert_eq!(key.to_string(), "api:per-tenant:1m:{tenant=acme%3D%2A,ip=2001:db8::1}");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Key<'a>(KeyRepr<'a>);

/// The two forms of a key: with names and values, or as hashes only.
#[derive(Clone, Copy, Debug)]
enum KeyRepr<'a> {
    Named { scope: &'a Scope, values: &'a [Value<'a>], part: Option<u16> },
    Hashed { digest: u64, stable_hash: u64 },
}

impl<'a> Key<'a> {
    /// Creates the key of these values in a scope, one value for each name in `per`.
    pub fn new(scope: &'a Scope, values: &'a [Value<'a>]) -> Self {
        Self::with_optional_sub_key(scope, values, None)
    }

    /// Creates the key of these values in a scope. If the counts of this key are split over several sub-keys, `part` is
    /// the index of the sub-key to create.
    #[inline]
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
    pub(crate) fn from_hashes(digest: u64, stable_hash: u64) -> Self {
        Self(KeyRepr::Hashed { digest, stable_hash })
    }

    /// Returns the sub-key with this index. A policy can split the counts of a key over several sub-keys, and selects
    /// one sub-key for each request. A hashed key is returned unchanged.
    pub fn with_part(self, part: u16) -> Self {
        match self.0 {
            KeyRepr::Named { scope, values, .. } => {
                Self(KeyRepr::Named { scope, values, part: Some(part) })
            }
            KeyRepr::Hashed { .. } => self,
        }
    }

    /// Returns the index of the sub-key; `None` if the key is not split.
    pub fn part(&self) -> Option<u16> {
        match self.0 {
            KeyRepr::Named { part, .. } => part,
            KeyRepr::Hashed { .. } => None,
        }
    }

    /// Returns the options for stores that count in Redis; `None` if the scope has none.
    pub fn redis(&self) -> Option<&'a RedisOptions> {
        match self.0 {
            KeyRepr::Named { scope, .. } => scope.redis.as_deref(),
            KeyRepr::Hashed { .. } => None,
        }
    }

    /// Returns the options for stores that count in a cluster; `None` if the scope has none.
    pub fn cluster(&self) -> Option<&'a ClusterOptions> {
        match self.0 {
            KeyRepr::Named { scope, .. } => scope.cluster.as_ref(),
            KeyRepr::Hashed { .. } => None,
        }
    }

    /// Returns this sub-key's share of the limit; `None` if the counts are not split over sub-keys.
    pub fn share(&self) -> Option<&'a Limit> {
        self.redis()?.share(self.part()?)
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
            KeyRepr::Hashed { .. } => Ok(()),
        })
    }

    /// Returns the id of the limit as text, such as `1m`.
    pub fn limit(&self) -> impl fmt::Display {
        let parts = self.0;
        fmt::from_fn(move |f| match parts {
            KeyRepr::Named { scope, .. } => write_escaped(f, &scope.limit, false),
            KeyRepr::Hashed { .. } => Ok(()),
        })
    }

    /// Returns the names and values as text, such as `{tenant=acme}`. The domain, the rule and the limit are not
    /// included.
    pub fn identity(&self) -> impl fmt::Display {
        let parts = self.0;
        fmt::from_fn(move |f| match parts {
            KeyRepr::Named { scope, values, .. } => {
                f.write_str("{")?;
                write_name_value_pairs(f, scope.per.iter().zip(values), true)?;
                f.write_str("}")
            }
            KeyRepr::Hashed { digest, .. } => write!(f, "#{digest:016x}"),
        })
    }

    /// Returns the names and values as text with a hash tag for Redis Cluster: only the part in braces determines the
    /// hash slot. `{tenant=acme},route=r` has the same slot as `{tenant=acme}`, and `{tenant=acme#3}` is a sub-key.
    /// Without options for Redis, the text equals [`identity`](Self::identity).
    pub fn hash_tagged_identity(&self) -> impl fmt::Display {
        let key = *self;
        fmt::from_fn(move |f| {
            let KeyRepr::Named { scope, values, part } = key.0 else {
                return write!(f, "{}", key.identity());
            };
            let slot_by = key.redis().map_or(&[][..], RedisOptions::slot_by);
            let pairs = || scope.per.iter().zip(values);
            f.write_str("{")?;
            match slot_by {
                [] => write_name_value_pairs(f, pairs(), true)?,
                _ => write_name_value_pairs(
                    f,
                    slot_by.iter().filter_map(|&index| pairs().nth(index)),
                    true,
                )?,
            }
            if let Some(part) = part {
                // Texts are escaped, so they do not contain `#`.
                write!(f, "#{part}")?;
            }
            f.write_str("}")?;
            if slot_by.is_empty() || slot_by.len() == values.len() {
                return Ok(());
            }
            f.write_str(",")?;
            let rest = pairs().enumerate().filter(|(index, _)| !slot_by.contains(index));
            write_name_value_pairs(f, rest.map(|(_, pair)| pair), false)
        })
    }

    /// Returns a 64-bit fingerprint of this key and the [shape](Limit::shape) of a limit. The values are hashed with
    /// the secret, so clients cannot predict the fingerprint. The result is combined with a hash of the scope.
    ///
    /// The fingerprint is the same in every process, version and machine on which the secret produces the same hashes.
    /// This does not hold for the keys of a [`Limiter`](crate::Limiter) over a [synchronous](crate::Synchronous) store,
    /// because they are hashed with a secret of that limiter. Therefore a store that shares its counts must be
    /// asynchronous.
    ///
    /// ```
    /// use slidegate::{Key, Limit, Scope};
    /// use std::hash::RandomState;
    ///
    /// let limit: Limit = "100/min".parse()?;
    /// let (scope, secret) = (Scope::new("api", "all", "1m", &["tenant"]), RandomState::new());
    /// let fingerprint = |tenant| Key::new(&scope, &[tenant]).fingerprint(&secret, limit.shape());
    /// assert_ne!(fingerprint("acme".into()), fingerprint("umbrella".into()));
    /// # Ok::<(), slidegate::LimitError>(())
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
        }
    }

    /// Returns the FNV-1a hash (64 bits) of the key's text, which is the same in every process and language.
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
        }
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            KeyRepr::Named { .. } => {
                write!(f, "{}:{}:{}", self.rule(), self.limit(), self.identity())
            }
            KeyRepr::Hashed { .. } => self.identity().fmt(f),
        }
    }
}

/// Writes names and values, such as `tenant=acme,ip=192.0.2.7`, or a digest of this text if it is too long.
fn write_name_value_pairs<'p>(
    f: &mut fmt::Formatter<'_>,
    pairs: impl Iterator<Item = (&'p Box<str>, &'p Value<'p>)> + Clone,
    is_in_braces: bool,
) -> fmt::Result {
    let write = |f: &mut fmt::Formatter<'_>| {
        for (index, (name, value)) in pairs.clone().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            write_name_value_pair(f, name, value, is_in_braces)?;
        }
        Ok(())
    };
    // An escaped byte has three characters. 64 covers `=`, `,` and the text of a network or digest.
    let max_bytes =
        |name: &str, value: &Value<'_>| 3 * (name.len() + value.byte_count_to_escape()) + 64;
    if pairs.clone().map(|(name, value)| max_bytes(name, value)).sum::<usize>()
        <= MAX_NAME_VALUE_LIST_BYTES
    {
        return write(f);
    }
    let text = fmt::from_fn(write).to_string();
    if text.len() <= MAX_NAME_VALUE_LIST_BYTES {
        return f.write_str(&text);
    }
    // Texts are escaped, so they do not contain parentheses: no other key has this text.
    let digest = Sha256::digest(&text);
    f.write_str("(sha256-")?;
    digest.iter().take(value::DIGEST_BYTES).try_for_each(|byte| write!(f, "{byte:02x}"))?;
    f.write_str(")")
}

/// Writes a name and a value, such as `tenant=acme`.
fn write_name_value_pair(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    value: &Value<'_>,
    is_in_braces: bool,
) -> fmt::Result {
    write_escaped(f, name, is_in_braces)?;
    f.write_str("=")?;
    match value {
        Value::Text(text) => write_escaped(f, text, is_in_braces),
        Value::Ipv4(address) => write!(f, "{address}"),
        // Parentheses distinguish a network from a text, which is escaped.
        Value::Network(network) if is_in_braces => write!(f, "({network})"),
        Value::Network(network) => {
            f.write_str("(")?;
            fmt::Write::write_fmt(&mut EscapingWriter(f), format_args!("{network}"))?;
            f.write_str(")")
        }
        Value::Shortened(value) => {
            write_escaped(f, value.prefix(), is_in_braces)?;
            write!(f, "({})", value.digest())
        }
    }
}

/// A writer that percent-encodes text for the part of a key outside of the braces.
struct EscapingWriter<'o, 'f>(&'o mut fmt::Formatter<'f>);

impl fmt::Write for EscapingWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write_escaped(self.0, text, false)
    }
}

/// Writes a part of a key with percent-encoding. A colon is encoded unless the part is within the braces of the key.
fn write_escaped(f: &mut fmt::Formatter<'_>, part: &str, is_in_braces: bool) -> fmt::Result {
    let is_plain = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'.' | b'_' | b'-' | b'/' | b'@' | b'+' | b'~')
            || (is_in_braces && byte == b':')
    };
    let mut rest = part;
    while let Some(at) = rest.bytes().position(|byte| !is_plain(byte)) {
        // `at` is a character boundary, because the bytes before it are ASCII; so is the end of the escaped character.
        f.write_str(&rest[..at])?;
        let after = (at + 1..=rest.len()).find(|&end| rest.is_char_boundary(end));
        let after = after.unwrap_or(rest.len());
        for byte in rest[at..after].bytes() {
            write!(f, "%{byte:02X}")?;
        }
        rest = &rest[after..];
    }
    f.write_str(rest)
}

#[cfg(test)]
mod tests;
