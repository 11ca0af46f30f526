//! The locks of the shards that a request touches: all of them, so that it is one step.

use smallvec::SmallVec;

use super::shard::Shard;
use super::{Aim, BATCH, MemoryStore};
use crate::clock::Clock;
use crate::sync::MutexGuard;

/// The shards that a request has locked.
pub(super) struct Held<'s> {
    shards: SmallVec<[MutexGuard<'s, Shard>; BATCH]>,
    /// Of each aim, which of them is its own.
    places: SmallVec<[usize; BATCH]>,
}

impl Held<'_> {
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
    pub(super) fn hold(&self, aims: &[Aim]) -> Held<'_> {
        self.try_hold(aims).unwrap_or_else(|| self.hold_in_order(aims))
    }

    /// The same if nobody else holds one of them: nothing is waited for, so any order will do.
    #[inline(always)]
    fn try_hold(&self, aims: &[Aim]) -> Option<Held<'_>> {
        let mut held = Held { shards: SmallVec::new(), places: SmallVec::new() };
        for (nth, aim) in aims.iter().enumerate() {
            let place = match self.shards[aim.shard].shard.try_lock() {
                Some(shard) => {
                    held.shards.push(shard);
                    held.shards.len() - 1
                }
                // It may be held for an earlier aim.
                None => held.places[aims[..nth].iter().position(|its| its.shard == aim.shard)?],
            };
            held.places.push(place);
        }
        Some(held)
    }

    /// The same, waiting for each that somebody else holds.
    #[cold]
    fn hold_in_order(&self, aims: &[Aim]) -> Held<'_> {
        let mut order: SmallVec<[usize; BATCH]> = aims.iter().map(|aim| aim.shard).collect();
        order.sort_unstable();
        order.dedup();
        let place = |aim: &Aim| order.partition_point(|shard| *shard < aim.shard);
        let places = aims.iter().map(place).collect();
        let shards = order.iter().map(|shard| self.shards[*shard].shard.lock()).collect();
        Held { shards, places }
    }
}
