//! Room for a new key: which key goes for it, once there are `max_keys`.

use crate::clock::{Clock, Timestamp};
use crate::sync::Ordering;

use super::MemoryStore;
use super::shard::Shard;
use crate::store::table::Coarse;

impl<C: Clock> MemoryStore<C> {
    /// Counts a new key into a shard, and lets an old one go if there are too many.
    pub(super) fn make_room(&self, shard: &mut Shard, at: usize, now: Timestamp) {
        let now = self.coarse(now);
        let swept = shard.sweep(now);
        self.keys.fetch_sub(swept, Ordering::Relaxed);
        if self.keys.fetch_add(1, Ordering::Relaxed) < self.max_keys {
            return;
        }
        let expires = shard.evict(now).or_else(|| self.evict_elsewhere(at, now));
        if let Some(expires) = expires.or_else(|| self.evict_denied(shard, at)) {
            self.keys.fetch_sub(1, Ordering::Relaxed);
            self.evicted.fetch_add(u64::from(expires >= now), Ordering::Relaxed);
        }
    }

    /// Lets a key of another shard go, since all of this one's are being denied. Passes over shards
    /// that are locked at this instant: to wait for one while holding another could be for ever.
    fn evict_elsewhere(&self, but: usize, now: Coarse) -> Option<Coarse> {
        let others = (but + 1..self.shards.len()).chain(0..but);
        for place in others.map(|other| &self.shards[other]) {
            if place.saturated_until.load(Ordering::Relaxed) > now {
                continue;
            }
            let Some(mut shard) = place.shard.try_lock() else {
                continue;
            };
            if let Some(expires) = shard.evict(now) {
                return Some(expires);
            }
            place.saturated_until.store(shard.saturated_until(), Ordering::Relaxed);
        }
        None
    }

    /// Lets the key go that is of all the soonest not to be denied any more. Passes over locked shards,
    /// as [`evict_elsewhere`](Self::evict_elsewhere) does.
    fn evict_denied(&self, shard: &mut Shard, at: usize) -> Option<Coarse> {
        let mut soonest = shard.saturated_until();
        let mut elsewhere = None;
        let others = (at + 1..self.shards.len()).chain(0..at);
        for place in others.map(|other| &self.shards[other]) {
            if place.saturated_until.load(Ordering::Relaxed) >= soonest {
                continue;
            }
            let Some(mut shard) = place.shard.try_lock() else {
                continue;
            };
            let freed = shard.saturated_until();
            if freed < soonest {
                soonest = freed;
                elsewhere = Some((place, shard));
            }
        }
        let Some((place, mut other)) = elsewhere else {
            return shard.evict_denied();
        };
        let expires = other.evict_denied();
        place.saturated_until.store(other.saturated_until(), Ordering::Relaxed);
        expires
    }
}
