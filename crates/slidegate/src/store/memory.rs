//! The memory store: counters in the memory of this process.
//!
//! Keys are distributed over many shards, each with its own lock. The only global state on the decision path is the
//! number of keys, which changes only when a key is inserted or removed. A request that affects several shards locks
//! all of them, so that it is atomic. A thread that holds locks waits for another lock only if it locks the shards in
//! ascending order, so there are no deadlocks.
//!
//! Keys are identified by a 64-bit fingerprint with a secret that is drawn at start, so a long key takes no more memory
//! than a short one, and collisions cannot be constructed. `docs/ALGORITHMS.md` has the probabilities.
//!
//! Expired keys are removed incrementally: each new key and every 64th decision in a shard sweep one block of each
//! table in the shard. Above `max_keys`, each new key evicts another key: the key that expires first in a small sample.
//! A key that is being denied is evicted only if there is no other. The same rule applies when the keys exceed the
//! memory budget. Each change of memory use is made under the lock of its shard and added to one atomic counter of the
//! store.

mod eviction;
mod locked_shards;
mod shard;

use std::fmt;

use smallvec::SmallVec;

use crate::algorithm::{AnyCounter, ChargeEffect, with_counter};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::hit::{Hit, Veto};
use crate::limit::Limit;
use crate::outcome::Outcome;
use crate::store::table::{CoarseTime, slot_bytes};
use crate::store::{
    Adjustment, Charge, ChargeResult, CounterId, Edit, Outcomes, Receipt, SingleChargeResult,
    SyncStore, admits, has_charge, pending_units,
};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering};

use locked_shards::LockedShards;
use shard::{HasStateTable, Shard};

/// The default maximum number of keys.
pub const DEFAULT_MAX_KEYS: usize = 10_000_000;

/// The default memory budget for keys in bytes: 1 GiB.
pub const DEFAULT_MAX_MEMORY: usize = 1 << 30;

/// The smallest memory budget in bytes: 1 MiB. Smaller values are raised to it.
pub const MIN_MAX_MEMORY: usize = 1 << 20;

/// The minimum memory budget per shard in bytes, so that a shard has memory for its tables.
const MIN_SHARD_MEMORY_BYTES: usize = 64 << 10;

/// The largest number of shards. Their locks fit into the first-level cache, and with ten million keys a shard grows
/// within 0.1 ms.
const MAX_SHARDS: usize = 1024;

/// The number of hits whose states are loaded into the cache together, before the first of these hits is decided.
const HITS_PER_BATCH: usize = 16;

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
}

/// A shard, aligned to a cache line so that threads that use different shards do not slow each other down.
#[repr(align(64))]
struct PaddedShard {
    shard: Mutex<Shard>,
    /// A coarse time until which every key of the shard is known to be denied, so that an eviction can skip the shard.
    /// A charge, revert or refund in the shard sets it to 0.
    all_denied_until: AtomicU32,
}

/// The location of a hit's counter in the store.
#[derive(Clone, Copy, Default)]
struct HitLocation {
    shard: usize,
    fingerprint: u64,
    /// The phase of the key: the offset, in microseconds, that is added to the time of the store's clock so that the
    /// windows of different keys begin at different times.
    phase_us: u64,
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
        }
    }

    /// Sets the memory budget for keys in bytes, at least 1 MiB. It bounds [`memory_bytes`](Self::memory_bytes).
    ///
    /// Above the budget, keys are evicted by the same rule as above the maximum number of keys. The budget is exceeded
    /// briefly while a table or a state moves to a larger allocation, and by concurrent allocations of other threads.
    /// It is exceeded for longer in two cases: by up to an eighth if nearly all keys are being denied, and by a single
    /// state that is larger than the budget ([`Limit::max_state_bytes`](crate::Limit::max_state_bytes)).
    ///
    /// Call this before the store is used: existing keys are lost.
    #[must_use]
    pub fn with_max_memory(self, bytes: usize) -> Self {
        let max_memory = bytes.max(MIN_MAX_MEMORY);
        let shards = new_shards(self.max_keys, max_memory);
        let (keys, memory) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { max_memory, shards, keys, memory, ..self }
    }

    /// Returns the bytes used by keys: tables with their free slots, heap allocations of states, and the allocator's
    /// overhead. The shards themselves, at most 1024 with 200 bytes each, are not included.
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
            // A table that shrinks during the sweep reorders its blocks, so repeat until nothing is removed.
            loop {
                let swept =
                    self.update_shard_and_memory_use(&mut shard, |shard| shard.sweep_all(now));
                self.keys.fetch_sub(swept, Ordering::Relaxed);
                if swept == 0 {
                    break;
                }
            }
            self.update_shard_and_memory_use(&mut shard, Shard::trim);
        }
    }

    /// Returns the number of keys that were evicted before they expired, because the store exceeded `max_keys` or its
    /// memory budget.
    pub fn evicted_keys(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Returns the location of the counter that a hit charges.
    #[inline(always)]
    fn locate_hit(&self, hit: &Hit<'_>) -> HitLocation {
        // A fingerprint of 0 marks an empty slot.
        let fingerprint = hit.key.fingerprint(&self.secret, hit.limit.shape()).max(1);
        let phase_us = match hit.limit.has_per_key_window_offset() {
            true => hit.key.stable_hash() % hit.limit.quota().window_us(),
            false => 0,
        };
        HitLocation { shard: self.shard_index(fingerprint), fingerprint, phase_us }
    }

    fn shard_index(&self, fingerprint: u64) -> usize {
        (((fingerprint >> 32) * self.shards.len() as u64) >> 32) as usize
    }

    /// Converts a time to coarse time: the number of whole steps of 2^16 microseconds since the store was created.
    fn to_coarse_time(&self, time: Timestamp) -> CoarseTime {
        let coarse = time.as_micros().saturating_sub(self.started_us) >> 16;
        CoarseTime::try_from(coarse).unwrap_or(CoarseTime::MAX)
    }

    /// Decides one request, whose shards have been locked.
    fn decide_with_locked_shards(
        &self,
        locked_shards: &mut LockedShards<'_>,
        hits: &[Hit<'_>],
        locations: &[HitLocation],
        now: Timestamp,
    ) -> ChargeResult {
        let mut outcomes = self.peek_all_hits(locked_shards, hits, locations, now);
        let allowed = admits(hits, &outcomes);
        let capacity = if allowed { hits.len() } else { 0 };
        let mut receipt = Receipt { charges: SmallVec::with_capacity(capacity) };
        for (nth, ((hit, location), outcome)) in
            hits.iter().zip(locations).zip(&mut outcomes).enumerate()
        {
            if !has_charge(hit, allowed, outcome) {
                continue;
            }
            let charge = match hit.cost {
                0 => new_charge_without_units(hit, *location),
                _ => {
                    let (charge, after) = self.charge_hit(
                        locked_shards.shard_of_location(nth),
                        hit,
                        outcome,
                        *location,
                        now,
                    );
                    *outcome = after.charged_after(outcome);
                    charge
                }
            };
            receipt.charges.push(Charge { hit_index: nth as u32, ..charge });
        }
        ChargeResult { allowed, outcomes, receipt }
    }

    /// Returns the outcome of each hit under the assumption that the hits before it are charged.
    fn peek_all_hits(
        &self,
        locked_shards: &mut LockedShards<'_>,
        hits: &[Hit<'_>],
        locations: &[HitLocation],
        now: Timestamp,
    ) -> Outcomes {
        let mut outcomes = Outcomes::with_capacity(hits.len());
        for (nth, (hit, location)) in hits.iter().zip(locations).enumerate() {
            let is_same = |earlier: usize| locations[earlier].fingerprint == location.fingerprint;
            let pending = pending_units(&hits[..nth], &outcomes, is_same);
            let required = hit.required.saturating_add(pending);
            let counter_now = add_key_phase_to_time(now, location);
            let shard = locked_shards.shard_of_location(nth);
            outcomes.push(with_counter!(hit.limit.counter(), counter => {
                let slot = shard.find(counter, location.fingerprint);
                shard.peek_slot(counter, slot, counter_now, required)
            }));
        }
        outcomes
    }

    /// Charges one hit. Returns the charge, and the outcome of the counter after the charge.
    #[inline]
    fn charge_hit(
        &self,
        shard: &mut Shard,
        hit: &Hit<'_>,
        before: &Outcome,
        location: HitLocation,
        now: Timestamp,
    ) -> (Charge, Outcome) {
        let (effect, units) = with_counter!(hit.limit.counter(), counter => {
            let slot = shard.find(counter, location.fingerprint);
            self.charge_state_in_slot(shard, counter, slot, (hit, before), location, now)
        });
        (new_charge(hit, location, effect.charged_at, units), effect.outcome)
    }

    /// Charges the state in a slot of a table, or inserts a new key and charges its state if `slot` is `None`. Returns
    /// the effect of the charge and the units that were charged.
    #[inline(always)]
    fn charge_state_in_slot<K: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: K,
        slot: Option<usize>,
        (hit, before): (&Hit<'_>, &Outcome),
        location: HitLocation,
        now: Timestamp,
    ) -> (ChargeEffect, u64) {
        let is_new = slot.is_none();
        let slot = slot.unwrap_or_else(|| self.insert_with_eviction(shard, counter, location, now));
        // The key is possibly not denied: it may be new, or its max may have been raised.
        self.shards[location.shard].all_denied_until.store(0, Ordering::Relaxed);
        let coarse = |time: Timestamp| {
            // One step is added for threads that have read the clock slightly earlier.
            let time_us = time.as_micros().saturating_sub(location.phase_us);
            self.to_coarse_time(Timestamp::from_micros(time_us)).saturating_add(1)
        };
        let counter_now = add_key_phase_to_time(now, &location);
        // A cost that fits causes no debt, so it need not be limited.
        let units = match before.fits() && hit.cost <= hit.required {
            true => hit.cost,
            false => shard.chargeable_units(counter, slot, counter_now, hit.cost),
        };
        let mut grown = 0;
        let effect = shard.charge(counter, slot, counter_now, units, coarse, &mut grown);
        if is_new || grown != 0 {
            self.record_state_growth(shard, counter, location, now, grown);
        }
        (effect, units)
    }

    /// Decides a request with one hit, the most common request, with a single lookup in a table.
    #[inline(always)]
    fn decide_single_hit(
        &self,
        shard: &mut Shard,
        hit: &Hit<'_>,
        location: HitLocation,
        now: Timestamp,
    ) -> SingleChargeResult {
        self.sweep_if_due(shard, now);
        with_counter!(hit.limit.counter(), counter => {
            let slot = shard.find(counter, location.fingerprint);
            let outcome = shard.peek_slot(counter, slot, add_key_phase_to_time(now, &location), hit.required);
            let allowed = outcome.fits() || hit.veto == Veto::Never;
            if !has_charge(hit, allowed, &outcome) {
                return SingleChargeResult { outcome, charge: None };
            }
            if hit.cost == 0 {
                let charge = new_charge_without_units(hit, location);
                return SingleChargeResult { outcome, charge: Some(charge) };
            }
            let (effect, units) = self.charge_state_in_slot(shard, counter, slot, (hit, &outcome), location, now);
            SingleChargeResult {
                outcome: effect.outcome.charged_after(&outcome),
                charge: Some(new_charge(hit, location, effect.charged_at, units)),
            }
        })
    }

    /// Decides one request. `locations` are the locations of its counters.
    #[inline]
    fn decide_hits_at_locations(
        &self,
        hits: &[Hit<'_>],
        locations: &[HitLocation],
        now: Timestamp,
    ) -> ChargeResult {
        if let ([hit], [location]) = (hits, locations) {
            let shard = &mut *self.shards[location.shard].shard.lock();
            return self.decide_single_hit(shard, hit, *location, now).into_charge_result(hit);
        }
        let mut locked_shards = self.lock_shards(locations);
        for shard in locked_shards.shards() {
            self.sweep_if_due(shard, now);
        }
        self.decide_with_locked_shards(&mut locked_shards, hits, locations, now)
    }

    fn locate_hits(&self, hits: &[Hit<'_>]) -> SmallVec<[HitLocation; 4]> {
        hits.iter().map(|hit| self.locate_hit(hit)).collect()
    }

    /// Counts a decision in a shard. On every 64th decision, removes expired keys from a part of the shard.
    #[inline]
    fn sweep_if_due(&self, shard: &mut Shard, now: Timestamp) {
        if shard.count_decision() {
            let swept = self
                .update_shard_and_memory_use(shard, |shard| shard.sweep(self.to_coarse_time(now)));
            if swept > 0 {
                self.keys.fetch_sub(swept, Ordering::Relaxed);
            }
        }
    }
}

/// Creates the shards of a store. The number of shards grows with the maximum number of keys and the memory budget.
fn new_shards(max_keys: usize, max_memory: usize) -> Box<[PaddedShard]> {
    let shards = (max_keys / 1024).min(max_memory / MIN_SHARD_MEMORY_BYTES);
    let new_shard =
        || PaddedShard { shard: Mutex::new(Shard::default()), all_denied_until: AtomicU32::new(0) };
    (0..shards.next_power_of_two().clamp(64, MAX_SHARDS)).map(|_| new_shard()).collect()
}

impl Limit {
    /// Returns the largest number of bytes that one key of this limit takes in a [`MemoryStore`]: its slot, its share
    /// of the free slots of the table, and the largest heap allocation of its state. The share of the free slots is at
    /// most a quarter of a slot in growing tables with several hundred keys.
    ///
    /// The largest allocation is reached with `sliding_buckets` when every bucket has units, and with `sliding_log`
    /// when charges without a check, such as reported ones, have filled the log to twice its max. Most keys take far
    /// less.
    ///
    /// ```
    /// use slidegate::{Algorithm, Limit};
    /// use std::time::Duration;
    ///
    /// let window: Limit = "100/min".parse()?;
    /// assert_eq!(window.max_state_bytes(), 42);
    /// let precision = Some(Duration::from_secs(60));
    /// let buckets = Limit::new("10000/d".parse()?, Algorithm::SlidingBuckets { precision })?;
    /// assert_eq!(buckets.max_state_bytes(), 11_618);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_state_bytes(&self) -> usize {
        let heap_bytes = match self.counter() {
            AnyCounter::SlidingLog(counter) => counter.max_heap_bytes(),
            AnyCounter::SlidingBuckets(counter) => counter.max_heap_bytes(),
            AnyCounter::SlidingWindow(_)
            | AnyCounter::FixedWindow(_)
            | AnyCounter::TokenBucket(_) => 0,
        };
        let slot_bytes = with_counter!(self.counter(), counter => table_slot_bytes(counter));
        slot_bytes + slot_bytes / 4 + heap_bytes
    }
}

fn table_slot_bytes<C: HasStateTable>(_: C) -> usize {
    slot_bytes::<C::State>()
}

/// Creates the charge of `cost` units for a hit. Its `hit_index` is 0; the caller sets it if the call has several hits.
#[inline(always)]
fn new_charge(hit: &Hit<'_>, location: HitLocation, charged_at: Timestamp, cost: u64) -> Charge {
    let HitLocation { fingerprint, phase_us, .. } = location;
    let (counter, hit_cost) = (CounterId::Fingerprint(fingerprint), hit.cost);
    Charge { counter, limit: *hit.limit, hit_index: 0, phase_us, charged_at, hit_cost, cost }
}

/// Creates the charge of a hit whose cost is 0. The state of its counter is not changed.
#[cold]
fn new_charge_without_units(hit: &Hit<'_>, location: HitLocation) -> Charge {
    new_charge(hit, location, Timestamp::from_micros(0), 0)
}

/// Returns `now` plus the phase of a counter's key. The counter counts a charge that is made at `now` as if it were
/// made at the returned time.
fn add_key_phase_to_time(now: Timestamp, location: &HitLocation) -> Timestamp {
    Timestamp::from_micros(now.as_micros() + location.phase_us)
}

impl<C: Clock> SyncStore for MemoryStore<C> {
    #[inline]
    fn charge(&self, call: &[Hit<'_>]) -> ChargeResult {
        match call {
            [hit] => self.decide_hits_at_locations(call, &[self.locate_hit(hit)], self.clock.now()),
            _ => self.decide_hits_at_locations(call, &self.locate_hits(call), self.clock.now()),
        }
    }

    #[inline(always)]
    fn charge_one(&self, hit: &Hit<'_>) -> SingleChargeResult {
        let location = self.locate_hit(hit);
        let now = self.clock.now();
        let shard = &mut *self.shards[location.shard].shard.lock();
        self.decide_single_hit(shard, hit, location, now)
    }

    /// Locks the shards of a batch of hits and loads all states before deciding, so that the memory accesses overlap.
    fn charge_each(&self, hits: &[Hit<'_>], mut on_result: impl FnMut(SingleChargeResult)) {
        let now = self.clock.now();
        for hits in hits.chunks(HITS_PER_BATCH) {
            let mut locations = [HitLocation::default(); HITS_PER_BATCH];
            for (location, hit) in locations.iter_mut().zip(hits) {
                *location = self.locate_hit(hit);
            }
            let locations = &locations[..hits.len()];
            let mut locked_shards = self.lock_shards(locations);
            for (nth, (hit, location)) in hits.iter().zip(locations).enumerate() {
                with_counter!(hit.limit.counter(), counter => {
                    locked_shards.shard_of_location(nth).prefetch(counter, location.fingerprint)
                });
            }
            for (nth, (hit, location)) in hits.iter().zip(locations).enumerate() {
                on_result(self.decide_single_hit(
                    locked_shards.shard_of_location(nth),
                    hit,
                    *location,
                    now,
                ));
            }
        }
    }

    fn charge_many(&self, calls: &[&[Hit<'_>]], mut on_result: impl FnMut(ChargeResult)) {
        let now = self.clock.now();
        for hits in calls {
            on_result(self.decide_hits_at_locations(hits, &self.locate_hits(hits), now));
        }
    }

    fn peek(&self, call: &[Hit<'_>]) -> Outcomes {
        let now = self.clock.now();
        let locations = self.locate_hits(call);
        let mut locked_shards = self.lock_shards(&locations);
        self.peek_all_hits(&mut locked_shards, call, &locations, now)
    }

    fn adjust(&self, receipt: &Receipt, adjustment: Adjustment) {
        for charge in receipt.charges_to_revert(adjustment) {
            self.revert_charge(&charge);
        }
        let is_own =
            |hit: &Hit<'_>| matches!(hit.key.counter_id(), Some(CounterId::Fingerprint(_)));
        for hit in receipt.additional_hits(adjustment).filter(is_own) {
            self.charge_one(&hit);
        }
    }

    fn edit(&self, hits: &[Hit<'_>], edit: Edit) -> Outcomes {
        let now = self.clock.now();
        let edit_hit = |hit: &Hit<'_>| match edit {
            Edit::Refund => self.refund_hit(hit, now),
            Edit::Reset => self.reset_hit(hit, now),
        };
        hits.iter().map(edit_hit).collect()
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Subtracts the units of a charge from its counter.
    fn revert_charge(&self, charge: &Charge) {
        let CounterId::Fingerprint(fingerprint) = charge.counter else { return };
        let padded = &self.shards[self.shard_index(fingerprint)];
        let shard = &mut *padded.shard.lock();
        // The key is possibly not denied any more.
        padded.all_denied_until.store(0, Ordering::Relaxed);
        let grown = with_counter!(charge.limit.counter(), counter => {
            shard.revert(counter, fingerprint, charge.charged_at, charge.cost)
        });
        self.add_to_memory_use(grown);
    }

    fn refund_hit(&self, hit: &Hit<'_>, now: Timestamp) -> Outcome {
        let location = self.locate_hit(hit);
        let padded = &self.shards[location.shard];
        let shard = &mut *padded.shard.lock();
        // The key is possibly not denied any more.
        padded.all_denied_until.store(0, Ordering::Relaxed);
        let (outcome, grown) = with_counter!(hit.limit.counter(), counter => {
            shard.refund(counter, location.fingerprint, add_key_phase_to_time(now, &location), hit.cost)
        });
        self.add_to_memory_use(grown);
        outcome
    }

    fn reset_hit(&self, hit: &Hit<'_>, now: Timestamp) -> Outcome {
        let location = self.locate_hit(hit);
        let shard = &mut *self.shards[location.shard].shard.lock();
        let (was_removed, outcome) = with_counter!(hit.limit.counter(), counter => {
            let was_removed =
                self.update_shard_and_memory_use(shard, |shard| shard.remove(counter, location.fingerprint));
            (was_removed, shard.peek_slot(counter, None, add_key_phase_to_time(now, &location), 1))
        });
        if was_removed {
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_shard_takes_one_cache_line() {
        assert_eq!(size_of::<PaddedShard>(), 64);
    }
}
