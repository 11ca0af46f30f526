//! The shards into which a store in memory divides its keys, each behind its own lock.
//!
//! A call that affects several shards locks all of them, so that it is atomic. A thread that holds locks waits for
//! another lock only if it locks the shards in ascending order, so there are no deadlocks.
//!
//! Expired keys are removed incrementally: each new key and every 64th decision in a shard sweep eight buckets of each
//! table in the shard. Each change of memory use is made under the lock of its shard and added to one atomic counter.

mod eviction;
mod locked;

use std::fmt;
use std::ops::Index;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::layout::HeapSize;
use crate::store::key_counts::KeyCounts;
use crate::store::table::{CoarseTime, EvictableTable, Table};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

pub use locked::LockedShards;

/// The number of decisions of a shard between two sweeps. A sweep removes expired keys.
const DECISIONS_PER_SWEEP: u8 = 64;

/// The minimum memory budget per shard in bytes, so that a shard has memory for its tables.
const MIN_SHARD_MEMORY_BYTES: usize = 64 << 10;

/// The largest number of shards. With this number, threads seldom wait for each other, a shard of a large store has few
/// enough keys to grow in a millisecond, and the shards fit into the cache of a processor core.
const MAX_SHARDS: usize = 256;

/// The number of low bits of a time in microseconds that coarse time leaves out: it counts steps of 65.5 ms.
const COARSE_TIME_SHIFT: u32 = 16;

/// The data of one shard: a table for each algorithm.
pub trait ShardTables: Default {
    /// Returns the tables.
    fn tables(&mut self) -> impl Iterator<Item = &mut dyn EvictableTable>;

    /// Returns the number of decisions until the next sweep.
    fn decisions_until_sweep(&mut self) -> &mut u8;
}

/// A shard, aligned to the two cache lines that processors load together, so that threads that use different shards do
/// not slow each other down.
#[repr(align(128))]
pub struct PaddedShard<T> {
    /// The data of the shard.
    pub shard: Mutex<T>,
}

impl<T> fmt::Debug for PaddedShard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaddedShard").finish_non_exhaustive()
    }
}

/// The shards of a store, with the number of keys and the memory that they may have in all.
pub struct Shards<T> {
    shards: Box<[PaddedShard<T>]>,
    /// The time at which the store was created, in microseconds. Coarse time, in which keys expire, counts from it.
    started_us: u64,
    max_keys: usize,
    keys: Box<KeyCounts>,
    max_bytes: usize,
    /// The bytes of all tables and states.
    bytes: AtomicUsize,
    /// The bytes of the records of calls, which count against the memory budget.
    record_bytes: AtomicUsize,
    /// The bytes of other data that count against the memory budget and cannot be evicted, such as replicas in a
    /// cluster.
    unevictable_bytes: AtomicUsize,
    /// A counter that selects the shard from which the next keys are evicted to free memory.
    next_shard_to_evict: AtomicUsize,
    /// The number of keys that were evicted before they expired.
    evicted: AtomicU64,
}

impl<T> fmt::Debug for Shards<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards")
            .field("keys", &self.keys())
            .field("max_keys", &self.max_keys)
            .field("bytes", &self.bytes())
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

impl<T> Index<usize> for Shards<T> {
    type Output = PaddedShard<T>;

    fn index(&self, shard: usize) -> &PaddedShard<T> {
        &self.shards[shard]
    }
}

impl<T> Shards<T> {
    /// Iterates over the shards.
    pub fn iter(&self) -> impl Iterator<Item = &PaddedShard<T>> {
        self.shards.iter()
    }

    /// Returns the number of shards.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Returns the number of keys, including expired keys that have not been swept.
    pub fn keys(&self) -> usize {
        self.keys.total()
    }

    /// Returns the maximum number of keys.
    pub fn max_keys(&self) -> usize {
        self.max_keys
    }

    /// Returns the bytes of all keys: tables with their free slots, heap allocations of states, and the allocator's
    /// overhead. The shards themselves are not included.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the memory budget for keys, records of calls and reserved memory, in bytes.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Returns the number of keys that were evicted before they expired.
    pub fn evicted_keys(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Converts a time to coarse time: the number of whole steps of 2^16 microseconds since the store was created.
    pub fn to_coarse_time(&self, time: Timestamp) -> CoarseTime {
        let coarse = time.as_micros().saturating_sub(self.started_us) >> COARSE_TIME_SHIFT;
        CoarseTime::try_from(coarse).unwrap_or(CoarseTime::MAX)
    }

    /// Converts a time from which the state of a key has changed to coarse time. One step is added, because a thread
    /// that has read the clock slightly earlier may still need the state.
    pub fn to_coarse_expiry(&self, time: Timestamp) -> CoarseTime {
        self.to_coarse_time(time).saturating_add(1)
    }

    /// Converts a duration to coarse time, rounded up.
    pub fn to_coarse_duration(&self, duration: Duration) -> CoarseTime {
        let coarse = (duration.as_micros() >> COARSE_TIME_SHIFT) + 1;
        CoarseTime::try_from(coarse).unwrap_or(CoarseTime::MAX)
    }

    /// Returns the index of the shard of a fingerprint.
    ///
    /// The last shards have about twice as many keys as the first ones, and the number increases by the same factor
    /// from shard to shard. Tables double when they are full; in shards with equally many keys, they would all double
    /// at the same time. This way some double at any time, and the memory per key stays the same while a store grows.
    ///
    /// The index depends on the bits below the top seven, because a table uses the top seven and the lowest ones.
    #[inline]
    pub fn shard_index_of(&self, fingerprint: u64) -> usize {
        let x = (fingerprint << 7) >> 32;
        // The curve x + 0.34 x (1 - x), which is close to the logarithm of 1 + x to the base 2.
        let y = x + ((((x * ((1 << 32) - x)) >> 32) * 87) >> 8);
        ((y * self.shards.len() as u64) >> 32) as usize
    }

    /// Adds the bytes by which the state of a key has grown. The shard of the key must be locked.
    pub fn add_bytes(&self, grown: isize) {
        if grown != 0 {
            self.bytes.fetch_add(grown as usize, Ordering::Relaxed);
        }
    }
}

impl<T: ShardTables> Shards<T> {
    /// Creates empty shards for a store that is created at `started`. Their number grows with the maximum number of
    /// keys and the memory budget.
    pub fn new(started: Timestamp, max_keys: usize, max_bytes: usize) -> Self {
        let shards = (max_keys / 1024).min(max_bytes / MIN_SHARD_MEMORY_BYTES);
        Self {
            shards: (0..shards.next_power_of_two().clamp(64, MAX_SHARDS))
                .map(|_| PaddedShard { shard: Mutex::new(T::default()) })
                .collect(),
            started_us: started.as_micros(),
            max_keys,
            keys: Box::default(),
            max_bytes,
            bytes: AtomicUsize::new(0),
            record_bytes: AtomicUsize::new(0),
            unevictable_bytes: AtomicUsize::new(0),
            next_shard_to_evict: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Counts a decision in a shard. On every 64th decision, removes expired keys from a part of the shard.
    #[inline]
    pub fn sweep_if_due(&self, shard: &mut T, now: Timestamp) {
        let decisions_until_sweep = shard.decisions_until_sweep();
        if *decisions_until_sweep > 0 {
            *decisions_until_sweep -= 1;
        } else {
            *decisions_until_sweep = DECISIONS_PER_SWEEP - 1;
            self.sweep(shard, now);
        }
    }

    /// Removes the expired keys in the next buckets of each table of a shard.
    pub fn sweep(&self, shard: &mut T, now: Timestamp) {
        let now = self.to_coarse_time(now);
        self.update(shard, |shard| {
            shard.tables().for_each(|table| table.sweep(now, &self.keys));
        });
    }

    /// Removes all expired keys and frees their memory, shard by shard.
    pub fn sweep_all(&self, now: Timestamp) {
        let now = self.to_coarse_time(now);
        for padded in &self.shards {
            self.update(&mut *padded.shard.lock(), |shard| {
                for table in shard.tables() {
                    table.sweep_all(now, &self.keys);
                    table.shrink_if_sparse();
                }
            });
        }
    }

    /// Removes the key of a fingerprint, if a table of its shard has it.
    pub fn remove<S: Default + HeapSize>(
        &self,
        shard: &mut T,
        fingerprint: u64,
        table: fn(&mut T) -> &mut Table<S>,
    ) {
        self.update(shard, |shard| {
            let table = table(shard);
            table.find(fingerprint).inspect(|&slot| table.remove(slot, &self.keys));
        });
    }

    /// Updates a shard by calling `update`, and adds the bytes by which its tables have grown.
    fn update<R>(&self, shard: &mut T, update: impl FnOnce(&mut T) -> R) -> R {
        let before = table_bytes(shard);
        let result = update(shard);
        self.add_bytes(table_bytes(shard).wrapping_sub(before) as isize);
        result
    }
}

/// Returns the bytes that all tables of a shard and the heap allocations of their states take.
fn table_bytes(shard: &mut impl ShardTables) -> usize {
    shard.tables().map(|table| table.bytes()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct NoTables(u8);

    impl ShardTables for NoTables {
        fn tables(&mut self) -> impl Iterator<Item = &mut dyn EvictableTable> {
            std::iter::empty()
        }

        fn decisions_until_sweep(&mut self) -> &mut u8 {
            &mut self.0
        }
    }

    #[test]
    fn last_shards_have_twice_as_many_keys() {
        let shards = Shards::<NoTables>::new(Timestamp::default(), 1, 1);
        let mut keys = [0; 64];
        for key in 0..=u64::from(u16::MAX) {
            keys[shards.shard_index_of(key << 41)] += 1;
        }
        let average = (u64::from(u16::MAX) + 1) / 64;
        assert!((average * 72 / 100..average * 78 / 100).contains(&keys[0]), "{}", keys[0]);
        assert!((average * 145 / 100..average * 155 / 100).contains(&keys[63]), "{}", keys[63]);
        assert_eq!(shards.shard_index_of(u64::MAX), 63);
    }
}
