//! The locks of the shards that a request touches: all of them, so that it is one step.

use smallvec::SmallVec;

use super::shard::Shard;
use super::{BATCH, HitLocation, MemoryStore};
use crate::clock::Clock;
use crate::sync::MutexGuard;

/// The shards that a request has locked.
pub(super) struct LockedShards<'s> {
    shards: SmallVec<[MutexGuard<'s, Shard>; BATCH]>,
    /// Of each aim, which of them is its own.
    places: SmallVec<[usize; BATCH]>,
}

impl LockedShards<'_> {
    /// The shard of the `nth` aim.
    #[inline(always)]
    pub(super) fn of(&mut self, nth: usize) -> &mut Shard {
        &mut self.shards[self.places[nth]]
    }

    /// Each shard once.
    pub(super) fn shards(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.shards.iter_mut().map(|shard| &mut **shard)
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Locks the shards of these aims.
    #[inline]
    pub(super) fn hold(&self, locations: &[HitLocation]) -> LockedShards<'_> {
        self.try_hold(locations).unwrap_or_else(|| self.lock_in_order(locations))
    }

    /// The same if nobody else holds one of them: nothing is waited for, so any order will do.
    #[inline(always)]
    fn try_hold(&self, locations: &[HitLocation]) -> Option<LockedShards<'_>> {
        let mut held = LockedShards { shards: SmallVec::new(), places: SmallVec::new() };
        for (nth, location) in locations.iter().enumerate() {
            let place = match self.shards[location.shard].shard.try_lock() {
                Some(shard) => {
                    held.shards.push(shard);
                    held.shards.len() - 1
                }
                // It may be held for an earlier aim.
                None => {
                    held.places
                        [locations[..nth].iter().position(|its| its.shard == location.shard)?]
                }
            };
            held.places.push(place);
        }
        Some(held)
    }

    /// The same, waiting for each that somebody else holds.
    #[cold]
    fn lock_in_order(&self, locations: &[HitLocation]) -> LockedShards<'_> {
        let mut order: SmallVec<[usize; BATCH]> =
            locations.iter().map(|location| location.shard).collect();
        order.sort_unstable();
        order.dedup();
        let place = |location: &HitLocation| order.partition_point(|shard| *shard < location.shard);
        let places = locations.iter().map(place).collect();
        let shards = order.iter().map(|shard| self.shards[*shard].shard.lock()).collect();
        LockedShards { shards, places }
    }
}
