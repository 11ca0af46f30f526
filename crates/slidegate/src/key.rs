//! A key: who is counted, and by which limit of which rule.
//!
//! A key borrows its parts. Stores hash it or write it; nothing is allocated on the way.

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

/// Ends each kind of value in the bytes that are hashed. None of them occurs in UTF-8, so the values can be told apart
/// from the last one back: different values never yield the same bytes.
const END_OF_TEXT: u8 = 0xFF;
const END_OF_NETWORK: u8 = 0xFE;
const END_OF_DIGEST: u8 = 0xFD;

/// Longest list of names and values, in bytes, that a written key contains as it is; a longer one is replaced by its
/// digest.
const MAX_WRITTEN_BYTES: usize = 4096;

/// The part of a key that a rule fixes: domain, rule, limit and the names of what is counted per.
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
    /// The scope of one limit of one rule, counting per the named attributes.
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

    /// FNV-1a of its texts, each with a byte at its end that no text has.
    fn stable_hash(&self) -> u64 {
        let mut hasher = FnvHasher::default();
        for text in [&self.domain, &self.rule, &self.limit].into_iter().chain(&self.per) {
            hasher.write(text.as_bytes());
            hasher.write(&[END_OF_TEXT]);
        }
        hasher.finish()
    }

    /// The same with what stores that count in Redis are told. Who is counted does not change by it.
    pub fn with_redis(self, terms: impl Into<Arc<RedisOptions>>) -> Self {
        let terms = terms.into();
        let known = |place: &usize| *place < self.per.len();
        debug_assert!(terms.slot_by().iter().all(known), "places of `per`");
        Self { redis: Some(terms), ..self }
    }

    /// The same with what stores that count in a cluster are told. Who is counted does not change by it.
    pub fn with_cluster(self, terms: impl Into<Option<ClusterOptions>>) -> Self {
        Self { cluster: terms.into(), ..self }
    }

    /// The names of what is counted per.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.per.iter().map(|name| &**name)
    }
}

/// Who is counted.
///
/// As text it is injective: two keys are written alike only if they are the same. Whatever has a meaning
/// in the text, or in a glob of Redis, is percent-encoded.
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
pub struct Key<'a>(Parts<'a>);

#[derive(Clone, Copy, Debug)]
enum Parts<'a> {
    Named { scope: &'a Scope, values: &'a [Value<'a>], part: Option<u16> },
    Hashed { digest: u64, stable: u64 },
}

impl<'a> Key<'a> {
    /// The key of these values in a scope, one value for each of its `per` names.
    pub fn new(scope: &'a Scope, values: &'a [Value<'a>]) -> Self {
        Self::of_part(scope, values, None)
    }

    /// [`new`](Self::new), and perhaps a sub-key of it.
    #[inline]
    pub(crate) fn of_part(scope: &'a Scope, values: &'a [Value<'a>], part: Option<u16>) -> Self {
        debug_assert_eq!(scope.per.len(), values.len(), "one value per name");
        Self(Parts::Named { scope, values, part })
    }

    /// The key of a value that is known only by a hash of it: `digest` with a secret seed, so that
    /// nobody can choose values that collide, and `stable` without one, for the key's phase.
    pub(crate) fn hashed(digest: u64, stable: u64) -> Self {
        Self(Parts::Hashed { digest, stable })
    }

    /// The sub-key that the policy has chosen for the request, of those that the identity is split into.
    pub fn with_part(self, part: u16) -> Self {
        match self.0 {
            Parts::Named { scope, values, .. } => {
                Self(Parts::Named { scope, values, part: Some(part) })
            }
            Parts::Hashed { .. } => self,
        }
    }

    /// Which sub-key it is.
    pub fn part(&self) -> Option<u16> {
        match self.0 {
            Parts::Named { part, .. } => part,
            Parts::Hashed { .. } => None,
        }
    }

    /// What its scope says to stores that count in Redis.
    pub fn redis(&self) -> Option<&'a RedisOptions> {
        match self.0 {
            Parts::Named { scope, .. } => scope.redis.as_deref(),
            Parts::Hashed { .. } => None,
        }
    }

    /// What its scope says to stores that count in a cluster.
    pub fn cluster(&self) -> Option<&'a ClusterOptions> {
        match self.0 {
            Parts::Named { scope, .. } => scope.cluster.as_ref(),
            Parts::Hashed { .. } => None,
        }
    }

    /// What its sub-key has of the limit; none: all of it.
    pub fn share(&self) -> Option<&'a Limit> {
        self.redis()?.share(self.part()?)
    }

    /// The domain and the rule, written: `api:per-tenant`.
    pub fn rule(&self) -> impl fmt::Display {
        let parts = self.0;
        fmt::from_fn(move |f| match parts {
            Parts::Named { scope, .. } => {
                escape(f, &scope.domain, false)?;
                f.write_str(":")?;
                escape(f, &scope.rule, false)
            }
            Parts::Hashed { .. } => Ok(()),
        })
    }

    /// The id of the limit, written: `1m`.
    pub fn limit(&self) -> impl fmt::Display {
        let parts = self.0;
        fmt::from_fn(move |f| match parts {
            Parts::Named { scope, .. } => escape(f, &scope.limit, false),
            Parts::Hashed { .. } => Ok(()),
        })
    }

    /// Whose counts, written, whatever the rule: `{tenant=acme}`.
    pub fn identity(&self) -> impl fmt::Display {
        let parts = self.0;
        fmt::from_fn(move |f| match parts {
            Parts::Named { scope, values, .. } => {
                f.write_str("{")?;
                write_pairs(f, scope.per.iter().zip(values), true)?;
                f.write_str("}")
            }
            Parts::Hashed { digest, .. } => write!(f, "#{digest:016x}"),
        })
    }

    /// Whose counts, written so that Redis Cluster places it: what the hash slot depends on stands in
    /// braces. `{tenant=acme},route=r` has the slot of `{tenant=acme}`, and `{tenant=acme#3}` is a sub-key.
    /// Without such terms it is [`identity`](Self::identity).
    pub fn placed_identity(&self) -> impl fmt::Display {
        let key = *self;
        fmt::from_fn(move |f| {
            let Parts::Named { scope, values, part } = key.0 else {
                return write!(f, "{}", key.identity());
            };
            let slot_by = key.redis().map_or(&[][..], RedisOptions::slot_by);
            let pairs = || scope.per.iter().zip(values);
            f.write_str("{")?;
            match slot_by {
                [] => write_pairs(f, pairs(), true)?,
                _ => write_pairs(f, slot_by.iter().filter_map(|&place| pairs().nth(place)), true)?,
            }
            if let Some(part) = part {
                // No text has a bare `#`.
                write!(f, "#{part}")?;
            }
            f.write_str("}")?;
            if slot_by.is_empty() || slot_by.len() == values.len() {
                return Ok(());
            }
            f.write_str(",")?;
            let rest = pairs().enumerate().filter(|(place, _)| !slot_by.contains(place));
            write_pairs(f, rest.map(|(_, pair)| pair), false)
        })
    }

    /// Stands for this key and a limit's [shape](Limit::shape) in 64 bits that nobody outside can foresee: its values
    /// hashed under the secret, joined to a hash of what the rule fixes.
    ///
    /// Stable: the same in every process, version and machine, if the secret hashes bytes alike there. Not so of the
    /// keys of a [`Limiter`](crate::Limiter) over a store that answers [at once](crate::Synchronous), which have been hashed
    /// under a secret of that limiter alone: a store that shares its counts has to be one that is awaited.
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
        // The secret hash of what users choose is as good as random, so what the rule fixes can simply
        // be joined to it: two counters of one key never meet, others with the odds of any two.
        match self.0 {
            Parts::Named { scope, values, .. } => {
                let mut hasher = secret.build_hasher();
                values.iter().for_each(|value| value.feed(&mut hasher));
                hasher.finish() ^ scope.hash ^ shape
            }
            Parts::Hashed { digest, .. } => digest ^ shape,
        }
    }

    /// FNV-1a (64 bits) of the key as written: the same in every process and language.
    pub fn stable_hash(&self) -> u64 {
        struct Written(FnvHasher);
        impl fmt::Write for Written {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.write(text.as_bytes());
                Ok(())
            }
        }
        match self.0 {
            Parts::Named { .. } => {
                let mut written = Written(FnvHasher::default());
                // Writing into a hasher cannot fail.
                let _ = fmt::Write::write_fmt(&mut written, format_args!("{self}"));
                written.0.finish()
            }
            Parts::Hashed { stable, .. } => stable,
        }
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Parts::Named { .. } => {
                write!(f, "{}:{}:{}", self.rule(), self.limit(), self.identity())
            }
            Parts::Hashed { .. } => self.identity().fmt(f),
        }
    }
}

/// Writes names and values, or the digest of that text if it is too long; `within` the braces or behind them.
fn write_pairs<'p>(
    f: &mut fmt::Formatter<'_>,
    pairs: impl Iterator<Item = (&'p Box<str>, &'p Value<'p>)> + Clone,
    within: bool,
) -> fmt::Result {
    let write = |f: &mut fmt::Formatter<'_>| {
        for (nth, (name, value)) in pairs.clone().enumerate() {
            f.write_str(if nth == 0 { "" } else { "," })?;
            write_pair(f, name, value, within)?;
        }
        Ok(())
    };
    // Each byte is written as three at most; `=`, `,` and the form of a network or a digest come on top.
    let longest = |name: &str, value: &Value<'_>| 3 * (name.len() + value.text_bytes()) + 64;
    if pairs.clone().map(|(name, value)| longest(name, value)).sum::<usize>() <= MAX_WRITTEN_BYTES {
        return write(f);
    }
    let text = fmt::from_fn(write).to_string();
    if text.len() <= MAX_WRITTEN_BYTES {
        return f.write_str(&text);
    }
    // No text has a bare parenthesis, so this is no other key's text.
    let digest = Sha256::digest(&text);
    f.write_str("(sha256-")?;
    digest.iter().take(value::DIGEST_BYTES).try_for_each(|byte| write!(f, "{byte:02x}"))?;
    f.write_str(")")
}

fn write_pair(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    value: &Value<'_>,
    within: bool,
) -> fmt::Result {
    escape(f, name, within)?;
    f.write_str("=")?;
    match value {
        Value::Text(text) => escape(f, text, within),
        Value::Ipv4(address) => write!(f, "{address}"),
        // No text has a bare parenthesis: what is written in one is no text.
        Value::Network(network) if within => write!(f, "({network})"),
        Value::Network(network) => {
            f.write_str("(")?;
            fmt::Write::write_fmt(&mut Outside(f), format_args!("{network}"))?;
            f.write_str(")")
        }
        Value::Shortened(value) => {
            escape(f, value.prefix(), within)?;
            write!(f, "({})", value.digest())
        }
    }
}

/// Escapes what is written outside the braces.
struct Outside<'o, 'f>(&'o mut fmt::Formatter<'f>);

impl fmt::Write for Outside<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(self.0, text, false)
    }
}

/// Writes a part of a key; a colon may stand within the braces only.
fn escape(f: &mut fmt::Formatter<'_>, part: &str, within: bool) -> fmt::Result {
    let plain = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'.' | b'_' | b'-' | b'/' | b'@' | b'+' | b'~')
            || (within && byte == b':')
    };
    let mut rest = part;
    while let Some(at) = rest.bytes().position(|byte| !plain(byte)) {
        // The bytes before `at` are ASCII, so it is a boundary; so is the end of the escaped character.
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
