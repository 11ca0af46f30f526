//! Counts in the memory of this process.
//!
//! Keys are spread over many shards, each behind a lock of its own; nothing is global on the way of a
//! decision but a count of keys, and that moves only when keys come and go. A request that touches
//! several shards locks them all, so that it is one step; it waits for none while it holds another,
//! unless it locks them in ascending order, so no two requests wait for each other in a circle.
//!
//! Keys are known by a 64-bit fingerprint under a secret drawn at start, so a long key costs no more
//! than a short one, and nobody can look for keys that collide. `docs/ALGORITHMS.md` has the odds.
//!
//! Idle keys leave as others come: each new key and every 64th decision in a shard looks at one
//! block of it. When there are more than `max_keys`, a key goes for each that comes: of a few the one
//! that expires soonest, and never one that is being denied while another can go. Keys go by the same rule when they
//! take more memory than they may. What they take is counted: each change of a size, under its shard's lock, moves one
//! atomic figure of the whole store.

mod eviction;
mod locked_shards;
mod shard;

use smallvec::SmallVec;

use crate::algorithm::{AnyCounter, Charged, with_counter};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::hit::{Hit, Veto};
use crate::limit::Limit;
use crate::outcome::Outcome;
use crate::store::table::{CoarseTime, slot_bytes};
use crate::store::{
    Charge, ChargeResult, CounterId, Outcomes, Receipt, SingleChargeResult, SyncStore, admits,
    is_charged, pending,
};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering};

use locked_shards::LockedShards;
use shard::{HasTable, Shard};

/// Keys that a store holds unless told otherwise.
pub const DEFAULT_MAX_KEYS: usize = 10_000_000;

/// Bytes that the keys of a store take unless told otherwise: 1 GiB.
pub const DEFAULT_MAX_MEMORY: usize = 1 << 30;

/// The smallest budget of memory: 1 MiB. Less counts as this much.
pub const MIN_MAX_MEMORY: usize = 1 << 20;

/// A shard has at least this part of the budget, so that it has a few tables' worth of keys.
const MIN_SHARD_MEMORY: usize = 64 << 10;

/// At most so many shards: their locks then fit into the first cache, and a shard of ten million keys
/// grows within a tenth of a millisecond.
const MAX_SHARDS: usize = 1024;

/// Requests of a batch whose states are loaded together.
const BATCH: usize = 16;

/// Counts in the memory of this process. See the [module](self).
///
/// ```
/// use slidegate::{ManualClock, MemoryStore};
///
/// let store = MemoryStore::new();                       // 10 million keys, 1 GiB, the system's clock
/// let small = MemoryStore::with_clock(ManualClock::default(), 1_000).with_max_memory(16 << 20);
/// assert_eq!((store.keys(), small.keys()), (0, 0));
/// ```
pub struct MemoryStore<C = SystemClock> {
    clock: C,
    /// Coarse time begins here.
    began_us: u64,
    secret: foldhash::quality::RandomState,
    shards: Box<[PaddedShard]>,
    max_keys: usize,
    keys: AtomicUsize,
    max_memory: usize,
    /// Bytes of all shards. Each changes it by what its own bytes change, under its lock.
    memory: AtomicUsize,
    /// The shard from which memory is taken next.
    shed_at: AtomicUsize,
    evicted: AtomicU64,
}

/// A shard in its place, alone on its cache line.
#[repr(align(64))]
struct PaddedShard {
    shard: Mutex<Shard>,
    /// Until then every key of the shard is being denied, unless one is charged.
    saturated_until: AtomicU32,
}

/// A hit on its way through the store.
#[derive(Clone, Copy, Default)]
struct HitLocation {
    shard: usize,
    fingerprint: u64,
    /// What the counter's clock is ahead of the store's.
    phase_us: u64,
}

impl MemoryStore {
    /// A store of at most [`DEFAULT_MAX_KEYS`] keys and [`DEFAULT_MAX_MEMORY`] bytes on the system's clock.
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
    /// A store of at most `max_keys` keys on the given clock.
    ///
    /// Threads that bring new keys at the same instant may each exceed the bound by one, and by the hits of
    /// a request where nearly all keys are its own.
    pub fn with_clock(clock: C, max_keys: usize) -> Self {
        Self {
            began_us: clock.now().as_micros(),
            clock,
            secret: foldhash::quality::RandomState::default(),
            shards: shards(max_keys, DEFAULT_MAX_MEMORY),
            max_keys,
            keys: AtomicUsize::new(0),
            max_memory: DEFAULT_MAX_MEMORY,
            memory: AtomicUsize::new(0),
            shed_at: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Sets the memory of the keys, in bytes; 1 MiB at least. [`memory_bytes`](Self::memory_bytes) is held against it.
    ///
    /// When it is exceeded, keys are evicted by the same rule as above the largest number of keys. It is exceeded for
    /// moments, while a table or a state moves to a larger allocation, and by the allocations of other threads at the
    /// same instant. It is exceeded for longer in two cases: if nearly all keys are being denied, by up to an eighth;
    /// and by a single state that is larger ([`Limit::max_state_bytes`](crate::Limit::max_state_bytes)).
    ///
    /// Call it before the store is used: keys that it has already are lost.
    #[must_use]
    pub fn with_max_memory(self, bytes: usize) -> Self {
        let max_memory = bytes.max(MIN_MAX_MEMORY);
        let shards = shards(self.max_keys, max_memory);
        let (keys, memory) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { max_memory, shards, keys, memory, ..self }
    }

    /// Returns the bytes that the keys take: tables with their free slots, heap allocations of states, and the
    /// allocator's overhead. The shards themselves are left out: 200 bytes each, at most 1024.
    pub fn memory_bytes(&self) -> usize {
        self.memory.load(Ordering::Relaxed)
    }

    /// Keys in the store; those that have expired count until they are swept.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Forgets every key that has expired. Never needed: keys leave as others come. It gives memory back
    /// at once, shard by shard.
    pub fn sweep(&self) {
        let now = self.coarse(self.clock.now());
        for place in &self.shards {
            let mut shard = place.shard.lock();
            // A table that shrinks on the way begins anew, so until there is nothing left.
            loop {
                let swept = self.change(&mut shard, |shard| shard.sweep_all(now));
                self.keys.fetch_sub(swept, Ordering::Relaxed);
                if swept == 0 {
                    break;
                }
            }
            self.change(&mut shard, Shard::trim);
        }
    }

    /// Keys that had to go before they expired, because there were more than `max_keys`, or they took more memory than
    /// they may.
    pub fn evicted_keys(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn location(&self, hit: &Hit<'_>) -> HitLocation {
        // 0 stands for an empty slot.
        let fingerprint = hit.key.fingerprint(&self.secret, hit.limit.shape()).max(1);
        let phase_us = match hit.limit.has_phase() {
            true => hit.key.stable_hash() % hit.limit.quota().window_us(),
            false => 0,
        };
        HitLocation { shard: self.shard_of(fingerprint), fingerprint, phase_us }
    }

    fn shard_of(&self, fingerprint: u64) -> usize {
        (((fingerprint >> 32) * self.shards.len() as u64) >> 32) as usize
    }

    /// The coarse time in which a moment lies.
    fn coarse(&self, moment: Timestamp) -> CoarseTime {
        let coarse = moment.as_micros().saturating_sub(self.began_us) >> 16;
        CoarseTime::try_from(coarse).unwrap_or(CoarseTime::MAX)
    }

    /// Decides one request whose shards are held.
    fn decide(
        &self,
        locked_shards: &mut LockedShards<'_>,
        hits: &[Hit<'_>],
        locations: &[HitLocation],
        now: Timestamp,
    ) -> ChargeResult {
        let mut outcomes = self.peek_all(locked_shards, hits, locations, now);
        let allowed = admits(hits, &outcomes);
        let most = if allowed { hits.len() } else { 0 };
        let mut receipt = Receipt { charges: SmallVec::with_capacity(most) };
        for (nth, ((hit, location), outcome)) in
            hits.iter().zip(locations).zip(&mut outcomes).enumerate()
        {
            if is_charged(hit, allowed, outcome) {
                let (charge, after) =
                    self.charge(locked_shards.of(nth), hit, outcome, *location, now);
                *outcome = after.charged_after(outcome);
                receipt.charges.push(charge);
            }
        }
        ChargeResult { allowed, outcomes, receipt }
    }

    /// How each hit would fare, if those before it were charged.
    fn peek_all(
        &self,
        locked_shards: &mut LockedShards<'_>,
        hits: &[Hit<'_>],
        locations: &[HitLocation],
        now: Timestamp,
    ) -> Outcomes {
        let mut outcomes = Outcomes::with_capacity(hits.len());
        for (nth, (hit, location)) in hits.iter().zip(locations).enumerate() {
            let is_same = |earlier: usize| locations[earlier].fingerprint == location.fingerprint;
            let pending = pending(&hits[..nth], &outcomes, is_same);
            let required = hit.required.saturating_add(pending);
            let at = shifted(now, location);
            let shard = locked_shards.of(nth);
            outcomes.push(with_counter!(hit.limit.counter(), counter => {
                let slot = shard.find(counter, location.fingerprint);
                shard.peek_slot(counter, slot, at, required)
            }));
        }
        outcomes
    }

    /// Charges one hit. Returns the charge and the state of the counter after it.
    #[inline]
    fn charge(
        &self,
        shard: &mut Shard,
        hit: &Hit<'_>,
        before: &Outcome,
        location: HitLocation,
        now: Timestamp,
    ) -> (Charge, Outcome) {
        let (charged, units) = with_counter!(hit.limit.counter(), counter => {
            let slot = shard.find(counter, location.fingerprint);
            self.charge_slot(shard, counter, slot, (hit, before), location, now)
        });
        (charge_of(hit, location, charged.at, units), charged.after)
    }

    /// Charges the state in a slot; without one it is a new key. Returns the units that were charged, too.
    #[inline(always)]
    fn charge_slot<C2: HasTable>(
        &self,
        shard: &mut Shard,
        counter: C2,
        slot: Option<usize>,
        (hit, before): (&Hit<'_>, &Outcome),
        location: HitLocation,
        now: Timestamp,
    ) -> (Charged, u64) {
        let is_new = slot.is_none();
        let slot = slot.unwrap_or_else(|| self.insert(shard, counter, location, now));
        // It may be a key that is not denied: a new one, or one whose max was raised.
        self.shards[location.shard].saturated_until.store(0, Ordering::Relaxed);
        let coarse = |moment: Timestamp| {
            // One step more, for callers whose clocks are a little behind.
            let moment_us = moment.as_micros().saturating_sub(location.phase_us);
            self.coarse(Timestamp::from_micros(moment_us)).saturating_add(1)
        };
        let now_there = shifted(now, &location);
        // Units that are free are no debt.
        let units = match before.fits() && hit.cost <= hit.required {
            true => hit.cost,
            false => shard.chargeable(counter, slot, now_there, hit.cost),
        };
        let mut grown = 0;
        let charged = shard.charge(counter, slot, now_there, units, coarse, &mut grown);
        if is_new || grown != 0 {
            self.count_growth(shard, counter, location, now, grown);
        }
        (charged, units)
    }

    /// [`decide`](Self::decide) for the commonest request, of one hit: one look-up.
    #[inline(always)]
    fn decide_one(
        &self,
        shard: &mut Shard,
        hit: &Hit<'_>,
        location: HitLocation,
        now: Timestamp,
    ) -> SingleChargeResult {
        self.sweep_now_and_then(shard, now);
        with_counter!(hit.limit.counter(), counter => {
            let slot = shard.find(counter, location.fingerprint);
            let outcome = shard.peek_slot(counter, slot, shifted(now, &location), hit.required);
            let allowed = outcome.fits() || hit.veto == Veto::Never;
            if !is_charged(hit, allowed, &outcome) {
                return SingleChargeResult { outcome, charge: None };
            }
            let (charged, units) = self.charge_slot(shard, counter, slot, (hit, &outcome), location, now);
            SingleChargeResult {
                outcome: charged.after.charged_after(&outcome),
                charge: Some(charge_of(hit, location, charged.at, units)),
            }
        })
    }

    /// Takes the hits of one request.
    #[inline]
    fn take_aimed(
        &self,
        hits: &[Hit<'_>],
        locations: &[HitLocation],
        now: Timestamp,
    ) -> ChargeResult {
        if let ([hit], [location]) = (hits, locations) {
            let shard = &mut *self.shards[location.shard].shard.lock();
            return self.decide_one(shard, hit, *location, now).into_taken(hit);
        }
        let mut locked_shards = self.hold(locations);
        for shard in locked_shards.shards() {
            self.sweep_now_and_then(shard, now);
        }
        self.decide(&mut locked_shards, hits, locations, now)
    }

    fn locations(&self, hits: &[Hit<'_>]) -> SmallVec<[HitLocation; 4]> {
        hits.iter().map(|hit| self.location(hit)).collect()
    }

    /// Every 64th decision in a shard sweeps a little.
    #[inline]
    fn sweep_now_and_then(&self, shard: &mut Shard, now: Timestamp) {
        if shard.is_due() {
            let swept = self.change(shard, |shard| shard.sweep(self.coarse(now)));
            if swept > 0 {
                self.keys.fetch_sub(swept, Ordering::Relaxed);
            }
        }
    }
}

fn shards(max_keys: usize, max_memory: usize) -> Box<[PaddedShard]> {
    let shards = (max_keys / 1024).min(max_memory / MIN_SHARD_MEMORY);
    let place =
        || PaddedShard { shard: Mutex::new(Shard::default()), saturated_until: AtomicU32::new(0) };
    (0..shards.next_power_of_two().clamp(64, MAX_SHARDS)).map(|_| place()).collect()
}

impl Limit {
    /// Returns how many bytes one key of this limit takes at most in a [`MemoryStore`]: its slot, with the free ones
    /// that a growing table has for it (at most a quarter, in tables of some hundred keys), and what its state holds on
    /// the heap at worst.
    ///
    /// For `sliding_buckets` that is when every bucket has units; for `sliding_log` when charges that are made without
    /// a check, such as reported ones, have filled the log to twice its max. Most keys take far less.
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
        let slot_bytes = with_counter!(self.counter(), counter => slot_bytes_of(counter));
        slot_bytes + slot_bytes / 4 + heap_bytes
    }
}

fn slot_bytes_of<C: HasTable>(_: C) -> usize {
    slot_bytes::<C::State>()
}

fn charge_of(hit: &Hit<'_>, location: HitLocation, charged_at: Timestamp, cost: u64) -> Charge {
    let counter = CounterId::Fingerprint(location.fingerprint);
    Charge { counter, limit: *hit.limit, charged_at, cost }
}

fn shifted(now: Timestamp, location: &HitLocation) -> Timestamp {
    Timestamp::from_micros(now.as_micros() + location.phase_us)
}

impl<C: Clock> SyncStore for MemoryStore<C> {
    #[inline]
    fn take_now(&self, hits: &[Hit<'_>]) -> ChargeResult {
        match hits {
            [hit] => self.take_aimed(hits, &[self.location(hit)], self.clock.now()),
            _ => self.take_aimed(hits, &self.locations(hits), self.clock.now()),
        }
    }

    #[inline(always)]
    fn take_one_now(&self, hit: &Hit<'_>) -> SingleChargeResult {
        let location = self.location(hit);
        let now = self.clock.now();
        let shard = &mut *self.shards[location.shard].shard.lock();
        self.decide_one(shard, hit, location, now)
    }

    /// Holds the shards of some hits and loads all their states first, so that the waits for memory
    /// overlap.
    fn take_each_now(&self, hits: &[Hit<'_>], mut answer: impl FnMut(SingleChargeResult)) {
        let now = self.clock.now();
        for hits in hits.chunks(BATCH) {
            let mut locations = [HitLocation::default(); BATCH];
            for (location, hit) in locations.iter_mut().zip(hits) {
                *location = self.location(hit);
            }
            let locations = &locations[..hits.len()];
            let mut locked_shards = self.hold(locations);
            for (nth, (hit, location)) in hits.iter().zip(locations).enumerate() {
                with_counter!(hit.limit.counter(), counter => {
                    locked_shards.of(nth).touch(counter, location.fingerprint)
                });
            }
            for (nth, (hit, location)) in hits.iter().zip(locations).enumerate() {
                answer(self.decide_one(locked_shards.of(nth), hit, *location, now));
            }
        }
    }

    fn take_many_now(&self, asks: &[&[Hit<'_>]], mut answer: impl FnMut(ChargeResult)) {
        let now = self.clock.now();
        asks.iter().for_each(|hits| answer(self.take_aimed(hits, &self.locations(hits), now)));
    }

    fn peek_now(&self, hits: &[Hit<'_>]) -> Outcomes {
        let now = self.clock.now();
        let locations = self.locations(hits);
        let mut locked_shards = self.hold(&locations);
        self.peek_all(&mut locked_shards, hits, &locations, now)
    }

    fn revert_now(&self, receipt: &Receipt) {
        for charge in &receipt.charges {
            let CounterId::Fingerprint(fingerprint) = charge.counter else {
                continue;
            };
            let place = &self.shards[self.shard_of(fingerprint)];
            let shard = &mut *place.shard.lock();
            // Not every key of the shard is being denied any more.
            place.saturated_until.store(0, Ordering::Relaxed);
            let grown = with_counter!(charge.limit.counter(), counter => {
                shard.revert(counter, fingerprint, charge.charged_at, charge.cost)
            });
            self.count_bytes(grown);
        }
    }

    fn refund_now(&self, hits: &[Hit<'_>]) -> Outcomes {
        let now = self.clock.now();
        let refund = |hit: &Hit<'_>| {
            let location = self.location(hit);
            let place = &self.shards[location.shard];
            let shard = &mut *place.shard.lock();
            // Not every key of the shard is being denied any more.
            place.saturated_until.store(0, Ordering::Relaxed);
            let (outcome, grown) = with_counter!(hit.limit.counter(), counter => {
                shard.refund(counter, location.fingerprint, shifted(now, &location), hit.cost)
            });
            self.count_bytes(grown);
            outcome
        };
        hits.iter().map(refund).collect()
    }

    fn reset_now(&self, hits: &[Hit<'_>]) {
        for hit in hits {
            let location = self.location(hit);
            let shard = &mut *self.shards[location.shard].shard.lock();
            let forgot = with_counter!(hit.limit.counter(), counter => {
                self.change(shard, |shard| shard.forget(counter, location.fingerprint))
            });
            if forgot {
                self.keys.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_one_cache_line() {
        assert_eq!(size_of::<PaddedShard>(), 64);
    }
}
