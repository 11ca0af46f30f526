//! The in-memory limiters that the benchmarks compare: slidegate, governor, and a sharded map of counts without any
//! rate limiting.

use std::borrow::Borrow;
use std::error::Error;
use std::hash::{BuildHasher, Hash};
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use hashbrown::HashTable;
use parking_lot::Mutex;
use slidegate::Limiter;

use crate::keys::KeyIter;

/// The maximum number of units per key and window of each compared limiter.
pub const MAX: u32 = 1000;

/// The length of the window of each compared limiter: so long that no units become available again during a benchmark.
const LIMIT_WINDOW: Duration = Duration::from_secs(7 * 86_400);

/// A compared limiter, which allows 1000 units per key and week.
pub trait BenchLimiter: Sync {
    /// Returns the name of the limiter in tables.
    fn name(&self) -> &'static str;

    /// Charges `units` to a key. Returns `true` if the charge is allowed. `nth` and `key` are the same key, as a number
    /// and as a string.
    fn charge_units(&self, nth: usize, key: &str, units: u32) -> bool;

    /// Charges one unit to each key. Returns the number of denied charges.
    fn charge_keys_and_count_denied(&self, keys: KeyIter<'_>) -> usize;
}

/// The type of the keys of a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Strings of 20 bytes.
    Text,
    /// Numbers of type `u64`.
    Number,
}

/// The limiter of slidegate, with keys of one type.
pub struct SlidegateLimiter {
    limiter: Limiter,
    kind: KeyKind,
}

impl SlidegateLimiter {
    /// Creates a limiter without charges.
    ///
    /// # Errors
    /// Never fails: the limit is valid.
    pub fn new(kind: KeyKind) -> Result<Self, Box<dyn Error>> {
        Ok(Self { limiter: Limiter::new([format!("{MAX}/w").as_str()])?, kind })
    }

    /// Charges one unit to each key as a string, in batches of `batch_size` keys. Returns the number of denied charges.
    pub fn count_denied_batched(&self, mut keys: KeyIter<'_>, batch_size: usize) -> usize {
        let mut batch = Vec::with_capacity(batch_size);
        let mut denied = 0;
        loop {
            batch.clear();
            batch.extend(keys.by_ref().take(batch_size).map(|(_, key)| key));
            if batch.is_empty() {
                return denied;
            }
            let decisions = self.limiter.check_many(&batch);
            denied += decisions.iter().filter(|decision| !decision.is_allowed()).count();
        }
    }
}

impl BenchLimiter for SlidegateLimiter {
    fn name(&self) -> &'static str {
        "slidegate"
    }

    fn charge_units(&self, nth: usize, key: &str, units: u32) -> bool {
        let cost = u64::from(units);
        let decision = match self.kind {
            KeyKind::Text => self.limiter.check_cost(key, cost),
            KeyKind::Number => self.limiter.check_cost(&(nth as u64), cost),
        };
        decision.is_allowed()
    }

    fn charge_keys_and_count_denied(&self, keys: KeyIter<'_>) -> usize {
        let limiter = &self.limiter;
        match self.kind {
            KeyKind::Text => keys.filter(|(_, key)| !limiter.check(*key).is_allowed()).count(),
            KeyKind::Number => {
                keys.filter(|(nth, _)| !limiter.check(&(*nth as u64)).is_allowed()).count()
            }
        }
    }
}

/// The keyed limiter of the crate governor, with its state in a `DashMap`.
pub struct GovernorLimiter<K: Hash + Eq + Clone, S: BuildHasher + Clone> {
    name: &'static str,
    limiter: RateLimiter<K, DashMapStateStore<K, S>, DefaultClock>,
}

impl<K: Hash + Eq + Clone, S: BuildHasher + Clone + Default> GovernorLimiter<K, S> {
    /// Creates a limiter without charges, whose map hashes with `S`. `name` is the name of the limiter in tables.
    ///
    /// # Errors
    /// Never fails: the quota is valid.
    pub fn new(name: &'static str) -> Result<Self, Box<dyn Error>> {
        let quota = Quota::with_period(LIMIT_WINDOW / MAX).ok_or("the period is zero")?;
        let quota = quota.allow_burst(NonZeroU32::new(MAX).ok_or("the burst is zero")?);
        Ok(Self { name, limiter: RateLimiter::dashmap_with_hasher(quota, S::default()) })
    }
}

impl<K: Hash + Eq + Clone, S: BuildHasher + Clone> GovernorLimiter<K, S> {
    fn try_charge(&self, key: &K, units: u32) -> bool {
        NonZeroU32::new(units)
            .is_some_and(|units| matches!(self.limiter.check_key_n(key, units), Ok(Ok(()))))
    }
}

/// Governor with string keys. Its API takes a `&String`, so each key is copied into one reused string. Reading a key
/// then costs one cache line, as for the other limiters.
impl<S: BuildHasher + Clone + Send + Sync> BenchLimiter for GovernorLimiter<String, S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn charge_units(&self, _: usize, key: &str, units: u32) -> bool {
        self.try_charge(&key.to_owned(), units)
    }

    fn charge_keys_and_count_denied(&self, keys: KeyIter<'_>) -> usize {
        let mut owned = String::new();
        let denied = keys.filter(|(_, key)| {
            owned.clear();
            owned.push_str(key);
            self.limiter.check_key(&owned).is_err()
        });
        denied.count()
    }
}

impl<S: BuildHasher + Clone + Send + Sync> BenchLimiter for GovernorLimiter<u64, S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn charge_units(&self, nth: usize, _: &str, units: u32) -> bool {
        self.try_charge(&(nth as u64), units)
    }

    fn charge_keys_and_count_denied(&self, keys: KeyIter<'_>) -> usize {
        keys.filter(|(nth, _)| self.limiter.check_key(&(*nth as u64)).is_err()).count()
    }
}

/// The number of shards of a [`BareMap`].
const SHARD_COUNT: usize = 64;

/// A sharded map from key to count: 64 locked maps. It shows the minimum work of an in-memory limiter, since it only
/// counts and never denies.
///
/// The shards are of the type `HashTable`, on which `hashbrown::HashMap` is built. The key is hashed only once, because
/// the hash selects both the shard and the slot in the hash table of the shard.
pub struct BareMap<K> {
    name: &'static str,
    hasher: foldhash::fast::RandomState,
    shards: [CacheLineAlignedShard<K>; SHARD_COUNT],
}

/// A locked shard. The alignment ensures that the locks of two shards are never in the same cache line.
#[repr(align(128))]
struct CacheLineAlignedShard<K>(Mutex<HashTable<(K, u64)>>);

impl<K: Hash> BareMap<K> {
    /// Creates an empty map. `name` is the name of the map in tables.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            hasher: foldhash::fast::RandomState::default(),
            shards: std::array::from_fn(|_| CacheLineAlignedShard(Mutex::new(HashTable::new()))),
        }
    }

    fn insert_count(&self, key: K, count: u64) {
        let hash = self.hasher.hash_one(&key);
        let mut shard = self.shard_for_hash(hash).lock();
        shard.insert_unique(hash, (key, count), |(key, _)| self.hasher.hash_one(key));
    }

    #[inline]
    fn increment_count<Q: Hash + Eq + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard_for_hash(hash).lock();
        if let Some((_, count)) = shard.find_mut(hash, |(known, _)| known.borrow() == key) {
            *count += 1;
        }
    }

    fn shard_for_hash(&self, hash: u64) -> &Mutex<HashTable<(K, u64)>> {
        // The table itself uses the lowest and the highest bits.
        &self.shards[(hash >> 40) as usize % SHARD_COUNT].0
    }
}

impl BenchLimiter for BareMap<u64> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn charge_units(&self, nth: usize, _: &str, units: u32) -> bool {
        self.insert_count(nth as u64, u64::from(units));
        true
    }

    fn charge_keys_and_count_denied(&self, keys: KeyIter<'_>) -> usize {
        keys.for_each(|(nth, _)| self.increment_count(&(nth as u64)));
        0
    }
}

impl BenchLimiter for BareMap<Box<str>> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn charge_units(&self, _: usize, key: &str, units: u32) -> bool {
        self.insert_count(key.into(), u64::from(units));
        true
    }

    fn charge_keys_and_count_denied(&self, keys: KeyIter<'_>) -> usize {
        keys.for_each(|(_, key)| self.increment_count(key));
        0
    }
}
