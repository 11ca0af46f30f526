//! Decisions about usual calls with two to four hits: the hits have the same algorithm and different counters, all counters
//! exist, and each hit is charged only if it fits.

use arrayvec::ArrayVec;

use crate::algorithm::AnyCounter;
use crate::algorithm::concurrent::Concurrent;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::sliding_buckets::SlidingBuckets;
use crate::algorithm::sliding_counter::SlidingCounter;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::clock::{Clock, Timestamp};
use crate::hit::{Hit, Veto};
use crate::store::local_results::{LocalCharge, LocalResults, MAX_LOCAL_RESULTS};
use crate::store::table::SlotIndex;
use crate::sync::MutexGuard;

use super::shard::{HasStateTable, Shard};
use super::single::add_phase_to_time;
use super::{HitLocation, MemoryStore};

/// The hits of a usual call, with the locations of their counters.
type LocatedHits<'c, 'h> = ArrayVec<(&'c Hit<'h>, HitLocation), MAX_LOCAL_RESULTS>;

/// The locked shards of a usual call: a list without repetition, and for each hit the index of its shard in the list.
struct FewShards<'s> {
    shards: ArrayVec<MutexGuard<'s, Shard>, MAX_LOCAL_RESULTS>,
    indices: [u8; MAX_LOCAL_RESULTS],
}

impl FewShards<'_> {
    #[inline(always)]
    fn shard_of_hit(&mut self, nth: usize) -> &mut Shard {
        &mut self.shards[usize::from(self.indices[nth])]
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Decides a call if it is a usual one. Otherwise returns `None`, and charges nothing.
    ///
    /// The algorithm is determined once for all hits, and the results have no allocations of their own, so this takes fewer
    /// instructions than the general case.
    pub(super) fn decide_few(&self, call: &[Hit<'_>]) -> Option<Box<LocalResults>> {
        let (mut hits, now) = (LocatedHits::new(), self.clock.now());
        for hit in call {
            if hit.veto != Veto::Alone || !hit.is_charged_only_if_it_fits() {
                return None;
            }
            hits.try_push((hit, self.locate_hit(hit, now))).ok()?;
        }
        let is_same = |[first, second]: [usize; 2]| {
            hits.get(second).is_some_and(|second| hits[first].1.fingerprint == second.1.fingerprint)
        };
        if [[0, 1], [0, 2], [1, 2], [0, 3], [1, 3], [2, 3]].into_iter().any(is_same) {
            return None;
        }
        match call.first()?.limit.counter_ref() {
            AnyCounter::SlidingWindow(_) => self.decide_few_of::<SlidingWindow>(&hits, now),
            AnyCounter::SlidingLog(_) => self.decide_few_of::<SlidingLog>(&hits, now),
            AnyCounter::SlidingBuckets(_) => self.decide_few_of::<SlidingBuckets>(&hits, now),
            AnyCounter::SlidingCounter(_) => self.decide_few_of::<SlidingCounter>(&hits, now),
            AnyCounter::FixedWindow(_) => self.decide_few_of::<FixedWindow>(&hits, now),
            AnyCounter::TokenBucket(_) => self.decide_few_of::<TokenBucket>(&hits, now),
            AnyCounter::Concurrent(_) => self.decide_few_of::<Concurrent>(&hits, now),
        }
    }

    /// Locks the shards of a usual call, without waiting. Returns `None` if another thread holds one of the locks.
    #[inline(always)]
    fn try_lock_few(&self, hits: &LocatedHits<'_, '_>) -> Option<FewShards<'_>> {
        let mut locked = FewShards { shards: ArrayVec::new(), indices: Default::default() };
        for (nth, (_, location)) in hits.iter().enumerate() {
            // Several limits of one key usually have the same shard.
            let is_same = |(_, earlier): &(&Hit<'_>, HitLocation)| earlier.shard == location.shard;
            locked.indices[nth] = match hits[..nth].iter().position(is_same) {
                Some(earlier) => locked.indices[earlier],
                None => {
                    locked.shards.push(self.shards[location.shard].shard.try_lock()?);
                    (locked.shards.len() - 1) as u8
                }
            };
        }
        Some(locked)
    }

    /// Decides a call as [`decide_few`](Self::decide_few) does, if all its hits have the algorithm `K`.
    #[inline(never)]
    fn decide_few_of<K: HasStateTable>(
        &self,
        hits: &LocatedHits<'_, '_>,
        now: Timestamp,
    ) -> Option<Box<LocalResults>> {
        let mut locked = self.try_lock_few(hits)?;
        for shard in &mut locked.shards {
            self.sweep_if_due(shard, now);
        }
        let mut found: ArrayVec<(&K, SlotIndex, Timestamp), MAX_LOCAL_RESULTS> = ArrayVec::new();
        let mut all_fit = true;
        for (nth, (hit, location)) in hits.iter().enumerate() {
            let counter = K::of(hit.limit.counter_ref())?;
            let shard = locked.shard_of_hit(nth);
            let slot = shard.find(*counter, location.fingerprint)?;
            let counter_now = add_phase_to_time::<K>(now, location.phase_us);
            all_fit &= shard.fits_slot(*counter, slot, counter_now, hit.cost);
            found.push((counter, slot, counter_now));
        }
        let mut results: Box<LocalResults> = Box::default();
        if !all_fit {
            for (nth, ((hit, _), (counter, slot, counter_now))) in
                hits.iter().zip(found).enumerate()
            {
                let shard = locked.shard_of_hit(nth);
                let outcome = shard.peek_slot(*counter, Some(slot), counter_now, hit.cost);
                results.outcomes.push(outcome);
            }
            return Some(results);
        }
        let mut have_slots_moved = false;
        for (nth, ((hit, location), (counter, slot, counter_now))) in
            hits.iter().zip(found).enumerate()
        {
            let HitLocation { shard: shard_index, fingerprint, phase_us } = *location;
            let shard = locked.shard_of_hit(nth);
            let slot =
                if have_slots_moved { shard.find(*counter, fingerprint) } else { Some(slot) };
            let effect = match slot {
                Some(slot) => {
                    let coarse = |time| self.to_coarse_expiry::<K>(time, phase_us);
                    let (effect, grown) =
                        shard.charge_fitting(*counter, slot, counter_now, hit.cost, coarse);
                    if grown != 0 {
                        self.record_state_growth(shard, *counter, *location, now, grown);
                        have_slots_moved = true;
                    }
                    effect
                }
                // Evicted because the state of an earlier counter has grown.
                None => self.charge_slot(shard, *counter, None, hit.cost, *location, now).effect,
            };
            self.shards[shard_index].mark_not_denied();
            let (charged_at, hit_cost, cost) = (effect.charged_at, hit.cost, hit.cost);
            let charge = LocalCharge { fingerprint, phase_us, charged_at, hit_cost, cost };
            results.charges.push(charge);
            results.outcomes.push(effect.outcome.charged());
        }
        Some(results)
    }
}
