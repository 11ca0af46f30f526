//! The in-memory limiters that the benchmarks compare: slidegate, governor, and a sharded map of counts without any
//! rate limiting.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use hashbrown::HashTable;
use parking_lot::Mutex;
use slidegate::{Check, Limiter, SyncStore};

/// A compared limiter with keys of the type `K`. The methods are called through a `dyn` reference, so the compiler
/// cannot join the decisions about a block with the code that writes the keys.
pub trait BenchLimiter<K> {
    /// Charges `units` to a key. Returns `true` if the charge is allowed.
    fn charge_units(&self, key: &K, units: u32) -> bool;

    /// Charges one unit to each key. Returns the number of denied charges.
    fn count_denied(&self, keys: &[K]) -> usize;
}

/// Counts the keys for which `decide` returns `false`. The compiler must compute every result, as for a caller that
/// uses it.
#[inline(always)]
fn count_denied_keys<K>(keys: &[K], decide: impl Fn(&K) -> bool) -> usize {
    keys.iter().map(|key| usize::from(!black_box(decide(key)))).sum()
}

impl<K: Hash, S: SyncStore> BenchLimiter<K> for Limiter<S> {
    fn charge_units(&self, key: &K, units: u32) -> bool {
        self.check(Check::new(key).cost(u64::from(units))).is_allowed()
    }

    fn count_denied(&self, keys: &[K]) -> usize {
        count_denied_keys(keys, |key| self.check(key).is_allowed())
    }
}

/// The keyed limiter of the crate governor, with its state in a `DashMap` that hashes with `S`.
pub type Governor<K, S> = RateLimiter<K, DashMapStateStore<K, S>, DefaultClock>;

/// Creates a governor limiter that allows `max` units at once, and regains them evenly over `window`.
///
/// # Panics
/// If `max` is zero, or the window is shorter than `max` nanoseconds.
pub fn new_governor<K, S>(max: u32, window: Duration) -> Governor<K, S>
where
    K: Hash + Eq + Clone,
    S: BuildHasher + Clone + Default,
{
    let quota = Quota::with_period(window / max).zip(NonZeroU32::new(max));
    match quota {
        Some((quota, max)) => {
            RateLimiter::dashmap_with_hasher(quota.allow_burst(max), S::default())
        }
        None => panic!("{max} units in {window:?} are not a quota"),
    }
}

impl<K, S> BenchLimiter<K> for Governor<K, S>
where
    K: Hash + Eq + Clone,
    S: BuildHasher + Clone,
{
    fn charge_units(&self, key: &K, units: u32) -> bool {
        NonZeroU32::new(units)
            .is_some_and(|units| matches!(self.check_key_n(key, units), Ok(Ok(()))))
    }

    fn count_denied(&self, keys: &[K]) -> usize {
        count_denied_keys(keys, |key| self.check_key(key).is_ok())
    }
}

/// The number of shards of a [`BareMap`].
const SHARD_COUNT: usize = 64;

/// A sharded map from key to count: 64 locked maps. It shows the minimum work of an in-memory limiter, since it only
/// counts and never denies.
///
/// The key is hashed only once, because the hash selects both the shard and the slot in the hash table of the shard.
pub struct BareMap<K> {
    hasher: foldhash::fast::RandomState,
    shards: [CacheLineAlignedShard<K>; SHARD_COUNT],
}

/// A locked shard. The alignment ensures that the locks of two shards are never in the same cache line.
#[repr(align(128))]
struct CacheLineAlignedShard<K>(Mutex<HashTable<(K, u64)>>);

impl<K: Hash> Default for BareMap<K> {
    fn default() -> Self {
        let new_shard = |_| CacheLineAlignedShard(Mutex::new(HashTable::new()));
        Self { hasher: Default::default(), shards: std::array::from_fn(new_shard) }
    }
}

impl<K: Hash> BareMap<K> {
    /// Adds a key with this count, which must not be in the map.
    pub fn insert_count(&self, key: K, count: u64) {
        let hash = self.hasher.hash_one(&key);
        let mut shard = self.shard_for_hash(hash).lock();
        shard.insert_unique(hash, (key, count), |(key, _)| self.hasher.hash_one(key));
    }

    /// Increments the count of a key. Returns `true` if the key is in the map.
    #[inline]
    pub fn increment_count<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard_for_hash(hash).lock();
        match shard.find_mut(hash, |(known, _)| known.borrow() == key) {
            Some((_, count)) => {
                *count += 1;
                true
            }
            None => false,
        }
    }

    fn shard_for_hash(&self, hash: u64) -> &Mutex<HashTable<(K, u64)>> {
        // The shard is selected by bits of the hash that the table does not use: it uses the lowest and the highest
        // ones.
        &self.shards[(hash >> 40) as usize % SHARD_COUNT].0
    }
}
