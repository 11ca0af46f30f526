//! The memory store: counters in the memory of this process.
//!
//! Keys are distributed over many shards, each with its own lock. The only global state on the decision
//! path is the number of keys and their memory, which change only when a key is inserted, grows or is removed.
//!
//! Keys are identified by a 64-bit fingerprint with a secret that is drawn at start, so a long key takes no more memory
//! than a short one, and collisions cannot be constructed. `docs/explanation/memory.md` has the probabilities of random
//! collisions.
//!
//! Expired keys are removed as keys arrive. Above `max_keys`, each new key evicts another key, chosen from a sample: a
//! key of a limit with more than its share of the keys, of these the one with the most units left, and an exhausted key
//! last. The same rule applies when the keys and the records of calls exceed the memory budget.

mod charge;
mod shard;
mod state_bytes;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hint::black_box;
use std::time::Duration;

use crate::algorithm::{AnyCounter, with_counter};
use crate::call::CallIdentity;
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::hit::Hit;
use crate::outcome::Outcome;
use crate::quota::MAX_WINDOW;
use crate::store::shards::{LockedShards, Shards};
use crate::store::table::CoarseTime;
use crate::store::{
    Adjustment, CallRecordTable, CallSettlement, Charge, ChargeOnceResult, ChargeResult, CounterId,
    DEFAULT_MAX_CALL_RECORDS, Edit, Outcomes, PermitChange, Receipt, SettleResult, SyncStore,
    change_permit, max_call_record_bytes,
};

use crate::sync::{AtomicI64, Ordering};

use shard::{HasStateTable, Shard};

/// The default maximum number of keys.
pub const DEFAULT_MAX_KEYS: usize = 10_000_000;

/// The default memory budget in bytes: 1 GiB.
pub const DEFAULT_MAX_MEMORY: usize = 1 << 30;

/// The smallest memory budget in bytes: 1 MiB. Smaller values are raised to it.
pub const MIN_MEMORY_BUDGET_BYTES: usize = 1 << 20;

/// The number of calls in a batch, whose states are read together before the calls are decided.
const CALLS_PER_BATCH: usize = 16;

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
    secret: foldhash::quality::RandomState,
    shards: Shards<Shard>,
    /// The admitted calls with an id, and the settled reservations.
    calls: CallRecordTable,
    /// The sum of the steps of the wall clock, in microseconds, to which the expiry of keys has been adapted.
    wall_clock_steps_us: AtomicI64,
}

/// The location of a hit's counter in the store.
#[derive(Clone, Copy, Default)]
struct HitLocation {
    shard: usize,
    fingerprint: u64,
    /// The phase of the key at the time of the decision: the offset, in microseconds, that is added to this time to get
    /// the time of the counter, modulo 2^64. See [`Limit::phase_us`](crate::Limit::phase_us).
    phase_us: u64,
}

impl HitLocation {
    /// Returns the time of the counter at `now`.
    fn to_counter_time(self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(now.as_micros().wrapping_add(self.phase_us))
    }
}

impl<C> fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("shards", &self.shards).finish_non_exhaustive()
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
            shards: Shards::new(clock.now(), max_keys, DEFAULT_MAX_MEMORY),
            wall_clock_steps_us: AtomicI64::new(clock.wall_clock_steps_us()),
            clock,
            secret: foldhash::quality::RandomState::default(),
            calls: CallRecordTable::new(
                DEFAULT_MAX_CALL_RECORDS,
                max_call_record_bytes(DEFAULT_MAX_MEMORY),
            ),
        }
    }

    /// Sets the memory budget for keys and records of calls in bytes, at least 1 MiB. Records take at most a quarter of
    /// it, and keys take the rest.
    ///
    /// Above the budget, keys are evicted by the same rule as above the maximum number of keys. The budget is exceeded
    /// briefly while a table or a state moves to a larger allocation, and by concurrent allocations of other threads.
    /// It is exceeded for longer in two cases: by up to an eighth if nearly all keys are exhausted, and by a single
    /// state that is larger than the budget ([`Limit::max_state_bytes`](crate::Limit::max_state_bytes)).
    ///
    /// Call this before the store is used: existing keys and records are lost.
    #[must_use]
    pub fn with_max_memory(self, bytes: usize) -> Self {
        let max_memory = bytes.max(MIN_MEMORY_BUDGET_BYTES);
        let shards = Shards::new(self.clock.now(), self.shards.max_keys(), max_memory);
        let calls = self.calls.with_max_bytes(max_call_record_bytes(max_memory));
        Self { shards, calls, ..self }
    }

    /// Sets the maximum number of records of idempotent calls and of settled reservations, 1,000,000 by default.
    ///
    /// Above the maximum, and above a quarter of the memory budget, the record that expires first is evicted. A
    /// repetition of its call is then charged again, and a settlement of its reservation cannot be repeated any more.
    ///
    /// Call this before the store is used: existing records are lost.
    #[must_use]
    pub fn with_max_call_records(self, max_records: usize) -> Self {
        let calls =
            CallRecordTable::new(max_records, max_call_record_bytes(self.shards.max_bytes()));
        Self { calls, ..self }
    }

    /// Returns the records of idempotent calls and of settled reservations.
    pub fn call_record_table(&self) -> &CallRecordTable {
        &self.calls
    }

    /// Returns the bytes used by keys: tables with their free slots, heap allocations of states, and the allocator's
    /// overhead. The shards themselves, at most 256 with 384 bytes each, are not included.
    pub fn memory_bytes(&self) -> usize {
        self.shards.bytes()
    }

    /// Returns the number of keys, including expired keys that have not been swept.
    pub fn keys(&self) -> usize {
        self.shards.keys()
    }

    /// Removes all expired keys and frees their memory, shard by shard. Calling this is optional, since expired keys
    /// are also removed as new keys are inserted.
    pub fn sweep(&self) {
        self.shards.sweep_all(self.clock.now());
    }

    /// Returns the number of keys that were evicted before they expired, because the store exceeded `max_keys` or its
    /// memory budget.
    pub fn evicted_keys(&self) -> u64 {
        self.shards.evicted_keys()
    }

    /// Returns the location of the counter that a hit charges at `now`.
    #[inline(always)]
    fn locate_hit(&self, hit: &Hit<'_>, now: Timestamp) -> HitLocation {
        let fingerprint = self.hit_fingerprint(hit);
        HitLocation {
            shard: self.shards.shard_index_of(fingerprint),
            fingerprint,
            phase_us: hit.limit.phase_after_steps_us(&hit.key, now, || self.wall_clock_steps_us()),
        }
    }

    /// Returns the steps of the wall clock, which the clock of the store does not follow. The caller must not hold the
    /// lock of a shard, because a new step is handled by locking each shard.
    fn wall_clock_steps_us(&self) -> i64 {
        let step_us = self.clock.wall_clock_steps_us();
        let known_us = self.wall_clock_steps_us.load(Ordering::Relaxed);
        if step_us != known_us {
            self.follow_wall_clock_step(known_us, step_us);
        }
        step_us
    }

    /// Keeps fixed windows for longer after a step back of the wall clock, because windows that follow the wall clock
    /// then end later.
    #[cold]
    fn follow_wall_clock_step(&self, known_us: i64, step_us: i64) {
        let (known, relaxed) = (&self.wall_clock_steps_us, Ordering::Relaxed);
        let is_first = known.compare_exchange(known_us, step_us, relaxed, relaxed).is_ok();
        if is_first && step_us < known_us {
            let back = Duration::from_micros(known_us.abs_diff(step_us)).min(MAX_WINDOW);
            let back = self.shards.to_coarse_duration(back);
            for padded in self.shards.iter() {
                padded.shard.lock().extend_fixed_windows(back);
            }
        }
    }

    /// Returns the fingerprint of the counter of a hit.
    fn hit_fingerprint(&self, hit: &Hit<'_>) -> u64 {
        hit.key.fingerprint(&self.secret, hit.limit.shape())
    }

    /// Converts the time at which the state of a key changes from counter time, which includes the phase, to coarse
    /// time.
    fn to_coarse_expiry(&self, time: Timestamp, phase_us: u64) -> CoarseTime {
        let time_us = time.as_micros().wrapping_sub(phase_us);
        self.shards.to_coarse_expiry(Timestamp::from_micros(time_us))
    }

    /// Locks the shards of the hits of a call.
    fn lock_shards(&self, locations: &[HitLocation]) -> LockedShards<'_, Shard> {
        self.shards.lock_all(locations.iter().map(|location| location.shard))
    }

    /// Counts the memory of the records of calls, and evicts keys if the memory budget is then exceeded.
    fn evict_keys_for_records(&self) {
        self.shards.update_call_record_bytes(self.calls.memory_bytes(), self.clock.now());
    }

    /// Reads the states of a batch of calls together, so that the processor waits for memory once and not for each of
    /// them: with 10 million keys, a batch takes half the time.
    fn prefetch_states(&self, calls: &[&[Hit<'_>]]) {
        let hits = calls.concat();
        let locations = self.locate_hits(&hits, self.clock.now());
        let mut locked_shards = self.lock_shards(&locations);
        for (nth, (hit, location)) in hits.iter().zip(&locations).enumerate() {
            let shard = locked_shards.shard_of_hit(nth);
            with_counter!(hit.limit.counter(), counter => {
                black_box(shard.find(counter, location.fingerprint));
            });
        }
    }

    /// Charges the units that an adjustment or a settlement adds to a charge, even above max.
    fn charge_added_units(&self, charge: &Charge) {
        if let CounterId::Fingerprint(_) = charge.counter {
            self.charge(&[charge.reported_hit()]);
        }
    }

    /// Subtracts the units of a charge from its counter.
    fn revert_charge(&self, charge: &Charge) {
        let CounterId::Fingerprint(fingerprint) = charge.counter else { return };
        let shard = &mut *self.shards[self.shards.shard_index_of(fingerprint)].shard.lock();
        let grown = with_counter!(charge.limit.counter(), counter => {
            shard.revert(counter, fingerprint, charge.charged_at, charge.cost)
        });
        self.shards.add_bytes(grown);
    }

    /// Releases or renews the permit of one key. Returns whether it was live.
    fn change_permit_of_key(&self, charge: &Charge, change: PermitChange, now: Timestamp) -> bool {
        let AnyCounter::Concurrent(counter) = charge.limit.counter() else { return true };
        let CounterId::Fingerprint(fingerprint) = charge.counter else { return false };
        let shard = &mut *self.shards[self.shards.shard_index_of(fingerprint)].shard.lock();
        let location =
            HitLocation { fingerprint, phase_us: charge.phase_us, ..HitLocation::default() };
        self.find_and_set_back(shard, counter, location, now);
        let coarse = |time| self.to_coarse_expiry(time, charge.phase_us);
        let permit = (charge.charged_at, change);
        let (was_live, grown) = shard.change_permit(counter, fingerprint, permit, now, coarse);
        self.shards.add_bytes(grown);
        was_live
    }

    fn refund_hit(&self, hit: &Hit<'_>, now: Timestamp) -> Outcome {
        let location = self.locate_hit(hit, now);
        let shard = &mut *self.shards[location.shard].shard.lock();
        let (outcome, grown) = with_counter!(hit.limit.counter(), counter => {
            self.find_and_set_back(shard, counter, location, now);
            shard.refund(counter, location.fingerprint, location.to_counter_time(now), hit.cost)
        });
        self.shards.add_bytes(grown);
        outcome
    }

    fn reset_counter_of_hit(&self, hit: &Hit<'_>, now: Timestamp) -> Outcome {
        let location = self.locate_hit(hit, now);
        let shard = &mut *self.shards[location.shard].shard.lock();
        with_counter!(hit.limit.counter(), counter => {
            self.remove_key(shard, counter, location.fingerprint);
            shard.peek_slot(counter, None, location.to_counter_time(now), 1)
        })
    }

    fn remove_key<K: HasStateTable>(&self, shard: &mut Shard, _: K, fingerprint: u64) {
        self.shards.remove(shard, fingerprint, K::table);
    }
}

impl<C: Clock> SyncStore for MemoryStore<C> {
    #[inline]
    fn charge(&self, call: &[Hit<'_>]) -> ChargeResult {
        let now = self.clock.now();
        match call {
            [hit] if hit.is_charged_only_if_it_fits() => self.charge_hit(hit, now),
            hits => self.charge_hits(hits, now),
        }
    }

    fn charge_many(&self, calls: &[&[Hit<'_>]]) -> Vec<ChargeResult> {
        let mut results = Vec::with_capacity(calls.len());
        for calls in calls.chunks(CALLS_PER_BATCH) {
            self.prefetch_states(calls);
            results.extend(calls.iter().map(|call| self.charge(call)));
        }
        results
    }

    fn charge_once(&self, call: &[Hit<'_>], identity: &CallIdentity) -> ChargeOnceResult {
        let result = self.calls.charge_once(identity, call, self.clock.now(), || self.charge(call));
        self.evict_keys_for_records();
        result
    }

    fn settle(&self, settlement: &CallSettlement) -> SettleResult {
        let result = self.calls.settle(settlement, self.clock.now(), || {
            settlement.reverted.iter().for_each(|charge| self.revert_charge(charge));
            settlement.added.iter().for_each(|charge| self.charge_added_units(charge));
        });
        self.evict_keys_for_records();
        result
    }

    fn peek(&self, call: &[Hit<'_>]) -> Outcomes {
        let now = self.clock.now();
        let locations = self.locate_hits(call, now);
        let mut locked_shards = self.lock_shards(&locations);
        self.peek_hits(&mut locked_shards, call, &locations, now).0
    }

    fn adjust(&self, receipt: &Receipt, adjustment: Adjustment) {
        for charge in receipt.charges_to_revert(adjustment) {
            self.revert_charge(&charge);
        }
        for charge in receipt.additional_charges(adjustment) {
            self.charge_added_units(&charge);
        }
    }

    fn change_permit(&self, permit: &Receipt, change: PermitChange) -> bool {
        let now = self.clock.now();
        change_permit(permit, change, |charge, change| {
            self.change_permit_of_key(charge, change, now)
        })
    }

    fn local_counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        Some(CounterId::Fingerprint(self.hit_fingerprint(hit)))
    }

    fn edit(&self, hits: &[Hit<'_>], edit: Edit) -> Outcomes {
        let now = self.clock.now();
        let edit_hit = |hit: &Hit<'_>| match edit {
            Edit::Refund => self.refund_hit(hit, now),
            Edit::Reset => self.reset_counter_of_hit(hit, now),
        };
        hits.iter().map(edit_hit).collect()
    }
}
