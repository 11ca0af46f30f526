//! What is measured beside each other: slidegate, governor, and a bare sharded map.

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

use crate::keys::Draws;

/// Units of a key per window.
pub const MAX: u32 = 1000;

/// So long that nothing changes by the passing of time during a benchmark.
const WINDOW: Duration = Duration::from_secs(7 * 86_400);

/// What can be asked whether one more of a key fits. Holds 1000 units of each key per week.
pub trait Peer: Sync {
    /// What it is called in the tables.
    fn name(&self) -> &'static str;

    /// Takes `units` of a key; whether they fit.
    fn charge(&self, nth: usize, key: &str, units: u32) -> bool;

    /// Takes one unit of each key drawn; how many were denied.
    fn decide(&self, draws: Draws<'_>) -> usize;
}

/// By what peers tell identities apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Strings of 20 bytes.
    Text,
    /// `u64`s.
    Number,
}

/// slidegate's limiter, one key after the other.
pub struct Slidegate {
    limiter: Limiter,
    kind: KeyKind,
}

impl Slidegate {
    /// Over an empty store.
    ///
    /// # Errors
    /// None: the limit is sound.
    pub fn new(kind: KeyKind) -> Result<Self, Box<dyn Error>> {
        Ok(Self { limiter: Limiter::new([format!("{MAX}/w").as_str()])?, kind })
    }

    /// Takes one unit of each key drawn, by its text, `batch` keys at a time; how many were denied.
    pub fn decide_many(&self, mut draws: Draws<'_>, batch: usize) -> usize {
        let mut keys = Vec::with_capacity(batch);
        let mut denied = 0;
        loop {
            keys.clear();
            keys.extend(draws.by_ref().take(batch).map(|(_, key)| key));
            if keys.is_empty() {
                return denied;
            }
            let verdicts = self.limiter.check_many(&keys);
            denied += verdicts.iter().filter(|verdict| !verdict.is_allowed()).count();
        }
    }
}

impl Peer for Slidegate {
    fn name(&self) -> &'static str {
        "slidegate"
    }

    fn charge(&self, nth: usize, key: &str, units: u32) -> bool {
        let cost = u64::from(units);
        let verdict = match self.kind {
            KeyKind::Text => self.limiter.check_cost(key, cost),
            KeyKind::Number => self.limiter.check_cost(&(nth as u64), cost),
        };
        verdict.is_allowed()
    }

    fn decide(&self, draws: Draws<'_>) -> usize {
        let limiter = &self.limiter;
        match self.kind {
            KeyKind::Text => draws.filter(|(_, key)| !limiter.check(*key).is_allowed()).count(),
            KeyKind::Number => {
                draws.filter(|(nth, _)| !limiter.check(&(*nth as u64)).is_allowed()).count()
            }
        }
    }
}

/// governor's keyed limiter over a DashMap.
pub struct Governor<K: Hash + Eq + Clone, S: BuildHasher + Clone> {
    name: &'static str,
    limiter: RateLimiter<K, DashMapStateStore<K, S>, DefaultClock>,
}

impl<K: Hash + Eq + Clone, S: BuildHasher + Clone + Default> Governor<K, S> {
    /// Over an empty map that hashes with `S`.
    ///
    /// # Errors
    /// None: the quota is sound.
    pub fn new(name: &'static str) -> Result<Self, Box<dyn Error>> {
        let quota = Quota::with_period(WINDOW / MAX).ok_or("a period is not zero")?;
        let quota = quota.allow_burst(NonZeroU32::new(MAX).ok_or("a burst is not zero")?);
        Ok(Self { name, limiter: RateLimiter::dashmap_with_hasher(quota, S::default()) })
    }
}

impl<K: Hash + Eq + Clone, S: BuildHasher + Clone> Governor<K, S> {
    fn takes(&self, key: &K, units: u32) -> bool {
        NonZeroU32::new(units)
            .is_some_and(|units| matches!(self.limiter.check_key_n(key, units), Ok(Ok(()))))
    }
}

/// It asks by `&String`, so each key is copied into one string that is used again and again: to read it costs the
/// same one cache line as for the others.
impl<S: BuildHasher + Clone + Send + Sync> Peer for Governor<String, S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn charge(&self, _: usize, key: &str, units: u32) -> bool {
        self.takes(&key.to_owned(), units)
    }

    fn decide(&self, draws: Draws<'_>) -> usize {
        let mut owned = String::new();
        let denied = draws.filter(|(_, key)| {
            owned.clear();
            owned.push_str(key);
            self.limiter.check_key(&owned).is_err()
        });
        denied.count()
    }
}

impl<S: BuildHasher + Clone + Send + Sync> Peer for Governor<u64, S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn charge(&self, nth: usize, _: &str, units: u32) -> bool {
        self.takes(&(nth as u64), units)
    }

    fn decide(&self, draws: Draws<'_>) -> usize {
        draws.filter(|(nth, _)| self.limiter.check_key(&(*nth as u64)).is_err()).count()
    }
}

/// Shards of a [`BareMap`].
const SHARDS: usize = 64;

/// The least that a limiter in memory can do: 64 locked maps from key to count. They are
/// `HashTable`s, which `hashbrown::HashMap` is made of, so that one hash chooses shard and slot.
pub struct BareMap<K> {
    name: &'static str,
    hasher: foldhash::fast::RandomState,
    shards: [Shard<K>; SHARDS],
}

/// A lock in a place of its own, so that threads do not share its cache line by chance.
#[repr(align(128))]
struct Shard<K>(Mutex<HashTable<(K, u64)>>);

impl<K: Hash> BareMap<K> {
    /// An empty map.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            hasher: foldhash::fast::RandomState::default(),
            shards: std::array::from_fn(|_| Shard(Mutex::new(HashTable::new()))),
        }
    }

    fn insert(&self, key: K, count: u64) {
        let hash = self.hasher.hash_one(&key);
        let mut shard = self.shard(hash).lock();
        shard.insert_unique(hash, (key, count), |(key, _)| self.hasher.hash_one(key));
    }

    #[inline]
    fn increment<Q: Hash + Eq + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash).lock();
        if let Some((_, count)) = shard.find_mut(hash, |(known, _)| known.borrow() == key) {
            *count += 1;
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<HashTable<(K, u64)>> {
        // The table itself goes by the lowest and the highest bits.
        &self.shards[(hash >> 40) as usize % SHARDS].0
    }
}

impl Peer for BareMap<u64> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn charge(&self, nth: usize, _: &str, units: u32) -> bool {
        self.insert(nth as u64, u64::from(units));
        true
    }

    fn decide(&self, draws: Draws<'_>) -> usize {
        draws.for_each(|(nth, _)| self.increment(&(nth as u64)));
        0
    }
}

impl Peer for BareMap<Box<str>> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn charge(&self, _: usize, key: &str, units: u32) -> bool {
        self.insert(key.into(), u64::from(units));
        true
    }

    fn decide(&self, draws: Draws<'_>) -> usize {
        draws.for_each(|(_, key)| self.increment(key));
        0
    }
}
