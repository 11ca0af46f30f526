//! Locking of all shards that a request affects, so that the request is atomic.

use smallvec::SmallVec;

use super::shard::Shard;
use super::{HitLocation, MemoryStore};
use crate::clock::Clock;
use crate::sync::MutexGuard;

/// The shards that a request has locked.
pub(super) struct LockedShards<'s> {
    /// The locked shards, each of them once.
    shards: SmallVec<[MutexGuard<'s, Shard>; 4]>,
    /// For each location that was passed to `lock_shards`, the index of its shard in `shards`.
    indices: SmallVec<[u16; 4]>,
}

impl LockedShards<'_> {
    /// Returns the locked shard of a location; `nth` is the index of the location in the list that was passed to
    /// `lock_shards`.
    #[inline(always)]
    pub(super) fn shard_of_location(&mut self, nth: usize) -> &mut Shard {
        &mut self.shards[usize::from(self.indices[nth])]
    }

    /// Iterates over the locked shards, each of them once.
    pub(super) fn shards(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.shards.iter_mut().map(|shard| &mut **shard)
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Locks the shards that contain these locations, each of them once.
    #[inline]
    pub(super) fn lock_shards(&self, locations: &[HitLocation]) -> LockedShards<'_> {
        self.try_lock_shards(locations).unwrap_or_else(|| self.lock_shards_in_order(locations))
    }

    /// Locks the shards that contain these locations, in any order and without waiting. Returns `None` if another
    /// thread holds one of the locks.
    #[inline(always)]
    fn try_lock_shards(&self, locations: &[HitLocation]) -> Option<LockedShards<'_>> {
        let mut locked = LockedShards { shards: SmallVec::new(), indices: SmallVec::new() };
        for (nth, location) in locations.iter().enumerate() {
            let index = match self.shards[location.shard].shard.try_lock() {
                Some(shard) => {
                    locked.shards.push(shard);
                    // There are at most `MAX_SHARDS`.
                    (locked.shards.len() - 1) as u16
                }
                // The shard may be locked for an earlier location.
                None => {
                    let is_same = |earlier: &HitLocation| earlier.shard == location.shard;
                    locked.indices[locations[..nth].iter().position(is_same)?]
                }
            };
            locked.indices.push(index);
        }
        Some(locked)
    }

    /// Locks the shards that contain these locations, in ascending order, and waits for locks that other threads hold.
    #[cold]
    fn lock_shards_in_order(&self, locations: &[HitLocation]) -> LockedShards<'_> {
        let mut order: SmallVec<[usize; 4]> =
            locations.iter().map(|location| location.shard).collect();
        order.sort_unstable();
        order.dedup();
        let index =
            |location: &HitLocation| order.partition_point(|shard| *shard < location.shard) as u16;
        let indices = locations.iter().map(index).collect();
        let shards = order.iter().map(|shard| self.shards[*shard].shard.lock()).collect();
        LockedShards { shards, indices }
    }
}
