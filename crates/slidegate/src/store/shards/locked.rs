//! Locking of all shards that a request affects, so that the request is atomic.

use std::fmt;

use smallvec::SmallVec;

use super::Shards;
use crate::sync::MutexGuard;

/// The shards that a request has locked.
pub struct LockedShards<'s, T> {
    /// The locked shards, each of them once.
    shards: SmallVec<[MutexGuard<'s, T>; 4]>,
    /// For each hit of the request, the index of its shard in `shards`.
    indices: SmallVec<[u16; 4]>,
}

impl<T> fmt::Debug for LockedShards<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedShards").field("indices", &self.indices).finish_non_exhaustive()
    }
}

impl<T> LockedShards<'_, T> {
    /// Returns the locked shard of the nth hit.
    pub fn shard_of_hit(&mut self, nth: usize) -> &mut T {
        &mut self.shards[usize::from(self.indices[nth])]
    }

    /// Iterates over the locked shards, each of them once.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.shards.iter_mut().map(|shard| &mut **shard)
    }
}

impl<T> Shards<T> {
    /// Locks the shards of the hits of a request, each of them once. `shards` are the indices of the shards.
    pub fn lock_all(&self, shards: impl Iterator<Item = usize> + Clone) -> LockedShards<'_, T> {
        self.try_lock_all(shards.clone()).unwrap_or_else(|| self.lock_all_in_order(shards))
    }

    /// Locks the shards in any order and without waiting. Returns `None` if another thread holds one of the locks.
    fn try_lock_all(
        &self,
        shards: impl Iterator<Item = usize> + Clone,
    ) -> Option<LockedShards<'_, T>> {
        let mut locked = LockedShards { shards: SmallVec::new(), indices: SmallVec::new() };
        for shard in shards.clone() {
            let index = match self[shard].shard.try_lock() {
                Some(guard) => {
                    locked.shards.push(guard);
                    // The index fits into 16 bits, because there are at most `MAX_SHARDS` shards.
                    (locked.shards.len() - 1) as u16
                }
                // This call may already hold the lock of the shard, for an earlier hit. The two hits then share the
                // lock.
                None => {
                    let mut earlier = shards.clone().take(locked.indices.len());
                    locked.indices[earlier.position(|earlier| earlier == shard)?]
                }
            };
            locked.indices.push(index);
        }
        Some(locked)
    }

    /// Locks the shards in ascending order, and waits for locks that other threads hold.
    fn lock_all_in_order(
        &self,
        shards: impl Iterator<Item = usize> + Clone,
    ) -> LockedShards<'_, T> {
        let mut order: SmallVec<[usize; 4]> = shards.clone().collect();
        order.sort_unstable();
        order.dedup();
        LockedShards {
            shards: order.iter().map(|shard| self[*shard].shard.lock()).collect(),
            indices: shards
                .map(|shard| order.partition_point(|locked| *locked < shard) as u16)
                .collect(),
        }
    }
}
