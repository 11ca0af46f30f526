//! Decisions about requests with one hit, the most common requests.

use crate::algorithm::{ChargeEffect, with_counter};
use crate::clock::{Clock, Timestamp};
use crate::hit::{Hit, Veto};
use crate::outcome::Outcome;
use crate::store::table::{CoarseTime, SlotIndex};
use crate::store::{CounterId, SingleCharge, SingleChargeResult, has_charge};
use crate::sync::Ordering;

use super::shard::{HasStateTable, Shard};
use super::{COARSE_TIME_SHIFT, HitLocation, MemoryStore, PaddedShard};

/// The result of charging the state in a slot.
pub(super) struct ChargedSlot {
    pub(super) effect: ChargeEffect,
    /// Whether keys may have been inserted or evicted, so that slots of this request may have moved.
    pub(super) has_moved_slots: bool,
}

/// The result for a counter that is charged if a cost fits.
pub(super) struct CounterResult {
    outcome: Outcome,
    /// The time at which the charge is counted; without meaning if the cost does not fit.
    charged_at: Timestamp,
}

impl CounterResult {
    #[inline(always)]
    fn charged(effect: ChargeEffect) -> Self {
        Self { outcome: effect.outcome.charged(), charged_at: effect.charged_at }
    }

    #[inline(always)]
    fn denied(outcome: Outcome) -> Self {
        Self { outcome, charged_at: Timestamp::default() }
    }

    #[inline(always)]
    pub(super) fn into_charge_result(
        self,
        hit: &Hit<'_>,
        location: HitLocation,
    ) -> SingleChargeResult {
        let charge = new_single_charge(hit, location, self.charged_at, hit.cost);
        SingleChargeResult { outcome: self.outcome, charge: self.outcome.fits().then_some(charge) }
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Decides a request with one hit, the most common request.
    #[inline(always)]
    pub(super) fn decide_single_hit(
        &self,
        shard: &mut Shard,
        hit: &Hit<'_>,
        location: HitLocation,
        now: Timestamp,
    ) -> SingleChargeResult {
        if hit.is_charged_only_if_it_fits() {
            let padded = &self.shards[location.shard];
            let located = (location.fingerprint, location.phase_us);
            with_counter!(hit.limit.counter_ref(), counter => {
                self.charge_if_fits((padded, shard), counter, located, hit.cost, now)
            })
            .into_charge_result(hit, location)
        } else {
            self.decide_unusual_hit(shard, hit, location, now)
        }
    }

    /// Charges a counter if `cost` units fit. `fingerprint` and `phase_us` are parts of its [location](HitLocation), and
    /// `padded` is its shard, which is locked.
    #[inline(always)]
    fn charge_if_fits<K: HasStateTable>(
        &self,
        (padded, shard): (&PaddedShard, &mut Shard),
        counter: &K,
        (fingerprint, phase_us): (u64, u64),
        cost: u64,
        now: Timestamp,
    ) -> CounterResult {
        self.sweep_if_due(shard, now);
        let counter_now = add_phase_to_time::<K>(now, phase_us);
        let coarse = |time| self.to_coarse_expiry::<K>(time, phase_us);
        match shard.charge_if_fits(counter, fingerprint, counter_now, cost, coarse) {
            Some(Ok((effect, grown))) => {
                padded.mark_not_denied();
                if grown != 0 {
                    let location = self.location_of(fingerprint, phase_us);
                    self.record_state_growth(shard, *counter, location, now, grown);
                }
                CounterResult::charged(effect)
            }
            Some(Err(outcome)) => CounterResult::denied(outcome),
            None => {
                let location = self.location_of(fingerprint, phase_us);
                self.charge_new_key_if_fits(shard, counter, location, cost, now)
            }
        }
    }

    /// Locks the shard of a counter, and charges the counter if `cost` units fit. `fingerprint` and `phase_us` are parts
    /// of its [location](HitLocation).
    #[inline(always)]
    pub(super) fn lock_and_charge_if_fits<K: HasStateTable>(
        &self,
        counter: &K,
        (fingerprint, phase_us): (u64, u64),
        cost: u64,
        now: Timestamp,
    ) -> CounterResult {
        let padded = &self.shards[self.shard_index(fingerprint)];
        let mut shard = padded.shard.lock();
        if K::DECIDES_IN_PLACE && !shard.is_sweep_due() {
            let counter_now = add_phase_to_time::<K>(now, phase_us);
            let coarse = |time| self.to_coarse_expiry::<K>(time, phase_us);
            match shard.charge_in_place_if_fits(counter, fingerprint, counter_now, cost, coarse) {
                Some(Ok(effect)) => {
                    shard.count_decision();
                    padded.mark_not_denied();
                    return CounterResult::charged(effect);
                }
                Some(Err(outcome)) => {
                    shard.count_decision();
                    return CounterResult::denied(outcome);
                }
                None => {}
            }
        }
        self.charge_if_fits_out_of_line(
            (padded, &mut shard),
            counter,
            fingerprint,
            phase_us,
            cost,
            now,
        )
    }

    /// Locks the shard of a counter and charges the counter, as [`lock_and_charge_if_fits`](Self::lock_and_charge_if_fits)
    /// does. A function of its own for each algorithm, because the compiler keeps more values in registers then.
    #[inline(never)]
    pub(super) fn lock_and_charge_if_fits_out_of_line<K: HasStateTable>(
        &self,
        counter: &K,
        located: (u64, u64),
        cost: u64,
        now: Timestamp,
    ) -> CounterResult {
        self.lock_and_charge_if_fits(counter, located, cost, now)
    }

    /// Charges a counter as [`charge_if_fits`](Self::charge_if_fits) does. Not inlined, so that the few instructions of
    /// most decisions need few registers.
    #[inline(never)]
    fn charge_if_fits_out_of_line<K: HasStateTable>(
        &self,
        locked: (&PaddedShard, &mut Shard),
        counter: &K,
        fingerprint: u64,
        phase_us: u64,
        cost: u64,
        now: Timestamp,
    ) -> CounterResult {
        self.charge_if_fits(locked, counter, (fingerprint, phase_us), cost, now)
    }

    /// Charges a counter that has no key yet if `cost` units fit.
    #[cold]
    #[inline(never)]
    fn charge_new_key_if_fits<K: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: &K,
        location: HitLocation,
        cost: u64,
        now: Timestamp,
    ) -> CounterResult {
        let counter_now = add_phase_to_time::<K>(now, location.phase_us);
        let outcome = shard.peek_slot(*counter, None, counter_now, cost);
        if !outcome.fits() {
            return CounterResult::denied(outcome);
        }
        CounterResult::charged(self.charge_slot(shard, *counter, None, cost, location, now).effect)
    }

    /// Decides a hit that may also be charged if it does not fit, or that costs nothing.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_unusual_hit(
        &self,
        shard: &mut Shard,
        hit: &Hit<'_>,
        location: HitLocation,
        now: Timestamp,
    ) -> SingleChargeResult {
        self.sweep_if_due(shard, now);
        with_counter!(hit.limit.counter(), counter => {
            let slot = shard.find(counter, location.fingerprint);
            let counter_now = add_key_phase_to_time(now, &location);
            let outcome = shard.peek_slot(counter, slot, counter_now, hit.required);
            let allowed = outcome.fits() || hit.veto == Veto::Never;
            if !has_charge(hit, allowed, &outcome) {
                return SingleChargeResult { outcome, charge: None };
            }
            if hit.cost == 0 {
                let charge = new_single_charge(hit, location, Timestamp::default(), 0);
                return SingleChargeResult { outcome, charge: Some(charge) };
            }
            let units = chargeable_units(shard, counter, slot, (hit, &outcome), counter_now);
            let effect = self.charge_slot(shard, counter, slot, units, location, now).effect;
            SingleChargeResult {
                outcome: effect.outcome.charged_after(&outcome),
                charge: Some(new_single_charge(hit, location, effect.charged_at, units)),
            }
        })
    }

    /// Charges units to the state in a slot of a table, or inserts a new key and charges its state if `slot` is `None`.
    #[inline(always)]
    pub(super) fn charge_slot<K: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: K,
        slot: Option<SlotIndex>,
        units: u64,
        location: HitLocation,
        now: Timestamp,
    ) -> ChargedSlot {
        let is_new = slot.is_none();
        let slot = slot.unwrap_or_else(|| self.insert_with_eviction(shard, counter, location, now));
        // The key is possibly not denied: it may be new, or its max may have been raised.
        self.shards[location.shard].mark_not_denied();
        let counter_now = add_key_phase_to_time(now, &location);
        let (effect, grown) = shard.charge(counter, slot, counter_now, units, |time| {
            self.to_coarse_expiry::<K>(time, location.phase_us)
        });
        let has_moved_slots = is_new || grown != 0;
        if has_moved_slots {
            self.record_state_growth(shard, counter, location, now, grown);
        }
        ChargedSlot { effect, has_moved_slots }
    }

    /// Converts a time at which the state of a key changes to coarse time. One step is added for threads that have read
    /// the clock slightly earlier.
    #[inline(always)]
    pub(super) fn to_coarse_expiry<K: HasStateTable>(
        &self,
        time: Timestamp,
        phase_us: u64,
    ) -> CoarseTime {
        let time_us =
            if K::HAS_PHASE { time.as_micros().saturating_sub(phase_us) } else { time.as_micros() };
        let coarse = time_us.saturating_sub(self.started_us) >> COARSE_TIME_SHIFT;
        coarse.min(u64::from(CoarseTime::MAX) - 1) as CoarseTime + 1
    }

    /// Counts a decision in a shard. On every 64th decision, removes expired keys from a part of the shard.
    #[inline]
    pub(super) fn sweep_if_due(&self, shard: &mut Shard, now: Timestamp) {
        if shard.is_sweep_due() { self.sweep_shard(shard, now) } else { shard.count_decision() }
    }

    /// Removes expired keys from a part of a shard. Not inlined, so that a decision needs fewer registers.
    #[cold]
    #[inline(never)]
    fn sweep_shard(&self, shard: &mut Shard, now: Timestamp) {
        shard.restart_sweep_interval();
        let now = self.to_coarse_time(now);
        let swept = self.update_shard_and_memory_use(shard, |shard| shard.sweep(now));
        if swept > 0 {
            self.keys.fetch_sub(swept, Ordering::Relaxed);
        }
    }
}

/// Returns the number of units of a hit's cost that are charged to the state in a slot, or to a new state if `slot` is
/// `None`. `before` is the outcome of the hit.
pub(super) fn chargeable_units<K: HasStateTable>(
    shard: &mut Shard,
    counter: K,
    slot: Option<SlotIndex>,
    (hit, before): (&Hit<'_>, &Outcome),
    counter_now: Timestamp,
) -> u64 {
    // A cost that fits causes no debt, so it need not be limited.
    if before.fits() && hit.cost <= hit.required {
        hit.cost
    } else {
        shard.chargeable_units(counter, slot, counter_now, hit.cost)
    }
}

/// Creates the charge of `cost` units for a hit.
#[inline(always)]
pub(super) fn new_single_charge(
    hit: &Hit<'_>,
    location: HitLocation,
    charged_at: Timestamp,
    cost: u64,
) -> SingleCharge {
    let HitLocation { fingerprint, phase_us, .. } = location;
    let counter = CounterId::Fingerprint(fingerprint);
    SingleCharge { counter, phase_us, charged_at, hit_cost: hit.cost, cost }
}

/// Returns `now` plus the phase of a counter's key. The counter counts a charge that is made at `now` as if it were
/// made at the returned time.
pub(super) fn add_key_phase_to_time(now: Timestamp, location: &HitLocation) -> Timestamp {
    Timestamp::from_micros(now.as_micros() + location.phase_us)
}

/// Returns `now` plus a phase, as [`add_key_phase_to_time`] does, for a counter of the type `K`.
#[inline(always)]
pub(super) fn add_phase_to_time<K: HasStateTable>(now: Timestamp, phase_us: u64) -> Timestamp {
    if K::HAS_PHASE { Timestamp::from_micros(now.as_micros() + phase_us) } else { now }
}
