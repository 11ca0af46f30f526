//! The memory store: counters in the memory of this process.
//!
//! Keys are distributed over many shards, each with its own lock. The only global state on the decision path is the
//! number of keys, which changes only when a key is inserted or removed. A request that affects several shards locks
//! all of them, so that it is atomic. A thread that holds locks waits for another lock only if it locks the shards in
//! ascending order, so there are no deadlocks.
//!
//! Keys are identified by a 64-bit fingerprint with a secret that is drawn at start, so a long key takes no more memory
//! than a short one, and collisions cannot be constructed. `docs/explanation/algorithms.md` has the probabilities.
//!
//! Expired keys are removed incrementally: each new key and every 64th decision in a shard sweep eight buckets of each
//! table in the shard. Above `max_keys`, each new key evicts another key: the key that expires first in a small sample.
//! A key that is being denied is evicted only if there is no other. The same rule applies when the keys and the records
//! of calls exceed the memory budget. Each change of memory use is made under the lock of its shard and added to one
//! atomic counter of the store.

mod calls;
mod charge;
mod eviction;
mod locked_shards;
mod shard;
mod state_bytes;

use std::fmt;

use crate::clock::{Clock, SystemClock, Timestamp};
use crate::hit::Hit;
use crate::store::shards::shard_index;
use crate::store::table::CoarseTime;
use crate::store::{CallRecordTable, DEFAULT_MAX_CALL_RECORDS, max_call_record_bytes};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering};

use shard::Shard;

/// The default maximum number of keys.
pub const DEFAULT_MAX_KEYS: usize = 10_000_000;

/// The default memory budget in bytes: 1 GiB.
pub const DEFAULT_MAX_MEMORY: usize = 1 << 30;

/// The smallest memory budget in bytes: 1 MiB. Smaller values are raised to it.
pub const MIN_MAX_MEMORY: usize = 1 << 20;

/// The minimum memory budget per shard in bytes, so that a shard has memory for its tables.
const MIN_SHARD_MEMORY_BYTES: usize = 64 << 10;

/// The largest number of shards. With this number, threads seldom wait for each other, and a shard of a large store
/// has few enough keys to grow quickly.
const MAX_SHARDS: usize = 1024;

/// Coarse time counts steps of two to the power of this number of microseconds, that is, 65.5 ms.
const COARSE_TIME_SHIFT: u32 = 16;

/// A store that counts in the memory of this process. See the [module documentation](self).
///
/// ```
/// use slidegate::{ManualClock, MemoryStore};
///
/// let store = MemoryStore::new();                       // 10 million keys, 1 GiB, system clock
/// let small = MemoryStore::with_clock(ManualClock::default(), 1_000).with_max_memory(16 << 20);
/// assert_eq!((store.keys(), small.keys()), (0, 0));
/// ```
pub struct MemoryStore<C = SystemClock> {
    clock: C,
    /// The time at which the store was created, in microseconds. Coarse time, in which keys expire, counts steps of
    /// 2^16 microseconds from this time.
    started_us: u64,
    secret: foldhash::quality::RandomState,
    shards: Box<[PaddedShard]>,
    max_keys: usize,
    keys: AtomicUsize,
    max_memory: usize,
    /// The bytes used by the keys of all shards. Each change is made under the lock of the shard whose memory use has
    /// changed.
    memory: AtomicUsize,
    /// A counter that selects the shard from which the next keys are evicted to free memory. The counter is increased
    /// by one after each selection.
    next_shard_to_evict: AtomicUsize,
    /// The number of keys that were evicted before they expired.
    evicted: AtomicU64,
    /// The admitted calls with an id, and the settled reservations.
    calls: CallRecordTable,
}

/// A shard, aligned to the two cache lines that processors load together, so that threads that use different shards do
/// not slow each other down.
#[repr(align(128))]
struct PaddedShard {
    shard: Mutex<Shard>,
    /// A coarse time until which every key of the shard is known to be denied, so that an eviction can skip the shard.
    /// A charge, revert or refund in the shard sets it to 0.
    all_denied_until: AtomicU32,
}

impl PaddedShard {
    /// Records that the shard may have a key that is not denied.
    fn mark_not_denied(&self) {
        self.all_denied_until.store(0, Ordering::Relaxed);
    }
}

/// The location of a hit's counter in the store.
#[derive(Clone, Copy, Default)]
struct HitLocation {
    shard: usize,
    fingerprint: u64,
    /// The phase of the key at the time of the decision: the offset, in microseconds, that is added to this time to get
    /// the time of the counter. See [`Limit::phase_us`](crate::Limit::phase_us).
    phase_us: u64,
}

impl HitLocation {
    /// Returns the time of the counter at `now`.
    fn to_counter_time(self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(now.as_micros() + self.phase_us)
    }
}

impl<C> fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("keys", &self.keys.load(Ordering::Relaxed))
            .field("max_keys", &self.max_keys)
            .field("memory_bytes", &self.memory.load(Ordering::Relaxed))
            .field("max_memory", &self.max_memory)
            .finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// Creates a store of at most [`DEFAULT_MAX_KEYS`] keys and [`DEFAULT_MAX_MEMORY`] bytes with the system clock.
    pub fn new() -> Self {
        Self::with_clock(SystemClock::new(), DEFAULT_MAX_KEYS)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Creates a store of at most `max_keys` keys with the given clock.
    ///
    /// Threads that insert keys at the same time may each exceed the bound by one key, or by the number of hits of a
    /// request if nearly all keys belong to this request.
    pub fn with_clock(clock: C, max_keys: usize) -> Self {
        Self {
            started_us: clock.now().as_micros(),
            clock,
            secret: foldhash::quality::RandomState::default(),
            shards: new_shards(max_keys, DEFAULT_MAX_MEMORY),
            max_keys,
            keys: AtomicUsize::new(0),
            max_memory: DEFAULT_MAX_MEMORY,
            memory: AtomicUsize::new(0),
            next_shard_to_evict: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            calls: CallRecordTable::new(
                DEFAULT_MAX_CALL_RECORDS,
                max_call_record_bytes(DEFAULT_MAX_MEMORY),
            ),
        }
    }

    /// Sets the memory budget for keys and records of calls in bytes, at least 1 MiB. Records take at most a quarter of it,
    /// and keys take the rest.
    ///
    /// Above the budget, keys are evicted by the same rule as above the maximum number of keys. The budget is exceeded
    /// briefly while a table or a state moves to a larger allocation, and by concurrent allocations of other threads.
    /// It is exceeded for longer in two cases: by up to an eighth if nearly all keys are being denied, and by a single
    /// state that is larger than the budget ([`Limit::max_state_bytes`](crate::Limit::max_state_bytes)).
    ///
    /// Call this before the store is used: existing keys and records are lost.
    #[must_use]
    pub fn with_max_memory(self, bytes: usize) -> Self {
        let max_memory = bytes.max(MIN_MAX_MEMORY);
        let shards = new_shards(self.max_keys, max_memory);
        let (keys, memory) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let calls = self.calls.with_max_bytes(max_call_record_bytes(max_memory));
        Self { max_memory, shards, keys, memory, calls, ..self }
    }

    /// Sets the maximum number of records of idempotent calls and of settled reservations, 1,000,000 by default.
    ///
    /// Above the maximum, and above a quarter of the memory budget, the record that expires first is evicted. A repetition
    /// of its call is then charged again, and a settlement of its reservation cannot be repeated any more.
    ///
    /// Call this before the store is used: existing records are lost.
    #[must_use]
    pub fn with_max_call_records(self, max_records: usize) -> Self {
        let calls = CallRecordTable::new(max_records, max_call_record_bytes(self.max_memory));
        Self { calls, ..self }
    }

    /// Returns the records of idempotent calls and of settled reservations.
    pub fn call_records(&self) -> &CallRecordTable {
        &self.calls
    }

    /// Returns the bytes used by keys: tables with their free slots, heap allocations of states, and the allocator's
    /// overhead. The shards themselves, at most 1024 with 430 bytes each, are not included.
    pub fn memory_bytes(&self) -> usize {
        self.memory.load(Ordering::Relaxed)
    }

    /// Returns the number of keys, including expired keys that have not been swept.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Removes all expired keys and frees their memory, shard by shard. Calling this is optional, since expired keys
    /// are also removed as new keys are inserted.
    pub fn sweep(&self) {
        let now = self.to_coarse_time(self.clock.now());
        for padded in &self.shards {
            let mut shard = padded.shard.lock();
            let swept = self.update_shard_and_memory_use(&mut shard, |shard| {
                let swept = shard.sweep_all(now);
                shard.trim();
                swept
            });
            self.keys.fetch_sub(swept, Ordering::Relaxed);
        }
    }

    /// Returns the number of keys that were evicted before they expired, because the store exceeded `max_keys` or its
    /// memory budget.
    pub fn evicted_keys(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Returns the location of the counter that a hit charges at `now`.
    fn locate_hit(&self, hit: &Hit<'_>, now: Timestamp) -> HitLocation {
        self.location_of(self.fingerprint_of(hit), hit.limit.phase_us(&hit.key, now))
    }

    /// Returns the fingerprint of the counter of a hit.
    fn fingerprint_of(&self, hit: &Hit<'_>) -> u64 {
        hit.key.fingerprint(&self.secret, hit.limit.shape())
    }

    /// Returns the location of the counter with this fingerprint.
    fn location_of(&self, fingerprint: u64, phase_us: u64) -> HitLocation {
        HitLocation { shard: self.shard_index(fingerprint), fingerprint, phase_us }
    }

    fn shard_index(&self, fingerprint: u64) -> usize {
        shard_index(fingerprint, self.shards.len())
    }

    /// Converts the time at which the state of a key changes, in the time of its counter, to coarse time. One step is added
    /// for threads that have read the clock slightly earlier.
    fn to_coarse_expiry(&self, time: Timestamp, phase_us: u64) -> CoarseTime {
        let time = Timestamp::from_micros(time.as_micros().saturating_sub(phase_us));
        self.to_coarse_time(time).saturating_add(1)
    }

    /// Counts a decision in a shard. On every 64th decision, removes expired keys from a part of the shard.
    fn sweep_if_due(&self, shard: &mut Shard, now: Timestamp) {
        if !shard.is_sweep_due() {
            return shard.count_decision();
        }
        shard.restart_sweep_interval();
        let now = self.to_coarse_time(now);
        let swept = self.update_shard_and_memory_use(shard, |shard| shard.sweep(now));
        self.keys.fetch_sub(swept, Ordering::Relaxed);
    }

    /// Converts a time to coarse time: the number of whole steps of 2^16 microseconds since the store was created.
    fn to_coarse_time(&self, time: Timestamp) -> CoarseTime {
        let coarse = time.as_micros().saturating_sub(self.started_us) >> COARSE_TIME_SHIFT;
        CoarseTime::try_from(coarse).unwrap_or(CoarseTime::MAX)
    }
}

/// Creates the shards of a store. The number of shards grows with the maximum number of keys and the memory budget.
fn new_shards(max_keys: usize, max_memory: usize) -> Box<[PaddedShard]> {
    let shards = (max_keys / 1024).min(max_memory / MIN_SHARD_MEMORY_BYTES);
    let new_shard =
        || PaddedShard { shard: Mutex::new(Shard::default()), all_denied_until: AtomicU32::new(0) };
    (0..shards.next_power_of_two().clamp(64, MAX_SHARDS)).map(|_| new_shard()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_shard_takes_two_cache_lines() {
        assert_eq!(size_of::<PaddedShard>(), 128);
    }
}
