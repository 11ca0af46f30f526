//! Eviction: which keys go once there are `max_keys`, or once the keys take more than `max_memory`.

use crate::clock::{Clock, Timestamp};
use crate::sync::Ordering;

use super::shard::{HasTable, Shard};
use super::{HitLocation, MemoryStore};
use crate::store::table::{CoarseTime, PINNED};

/// Keys that are evicted for the slot of a new one, at most, before its table has to find one among its own.
const MAX_FOR_SLOT: usize = 16;

/// Keys that are evicted from one shard at a time when memory is short: so many, or an eighth of its slots, after which
/// its tables are sparse enough to give blocks back.
const LEAST_AT_ONCE: usize = 16;

/// Keys that are being denied and are evicted for one charge, at most, when memory is short and there are no others:
/// more than one, so that they get fewer.
const MAX_DENIED: usize = 2;

impl<C: Clock> MemoryStore<C> {
    /// Inserts a key, and evicts others if there are too many or no memory for its slot.
    #[cold]
    pub(super) fn insert<C2: HasTable>(
        &self,
        shard: &mut Shard,
        counter: C2,
        location: HitLocation,
        now: Timestamp,
    ) -> usize {
        let now = self.coarse(now);
        self.evict_if_full(shard, location.shard, now);
        self.make_slot(shard, counter, location, now);
        self.change(shard, |shard| shard.insert(counter, location.fingerprint))
    }

    /// Counts a new key into a shard, and lets an old one go if there are too many.
    fn evict_if_full(&self, shard: &mut Shard, at: usize, now: CoarseTime) {
        let swept = self.change(shard, |shard| shard.sweep(now));
        self.keys.fetch_sub(swept, Ordering::Relaxed);
        if self.keys.fetch_add(1, Ordering::Relaxed) < self.max_keys {
            return;
        }
        let expires = self.change(shard, |shard| shard.evict(now));
        let expires = expires.or_else(|| self.evict_elsewhere(at, now));
        if let Some(expires) = expires.or_else(|| self.evict_denied(shard, at)) {
            self.count_evicted(expires, now);
        }
    }

    /// Evicts keys of a shard until a slot is free in a counter's table, or there is memory for the table to grow.
    fn make_slot<C2: HasTable>(
        &self,
        shard: &mut Shard,
        counter: C2,
        location: HitLocation,
        now: CoarseTime,
    ) {
        for _ in 0..MAX_FOR_SLOT {
            let growth = shard.growth(counter, location.fingerprint);
            let has_slot = self.memory_bytes() + growth <= self.max_memory;
            if has_slot || !self.evict_one(shard, now, |shard| shard.evict(now)) {
                return;
            }
        }
        if shard.growth(counter, location.fingerprint) > 0 {
            self.evict_one(shard, now, |shard| shard.evict_for(counter, now));
        }
    }

    /// Counts by how many bytes the state of a charged key has grown, and evicts others if that is too much.
    #[cold]
    pub(super) fn count_growth<C2: HasTable>(
        &self,
        shard: &mut Shard,
        counter: C2,
        location: HitLocation,
        now: Timestamp,
        grown: isize,
    ) {
        self.count_bytes(grown);
        if self.has_memory() {
            return;
        }
        // The charged key stays: if a growing key were evicted, it would never be denied.
        let denied_until = shard.set_denied_until(counter, location.fingerprint, PINNED);
        self.shed(shard, location.shard, self.coarse(now));
        shard.set_denied_until(counter, location.fingerprint, denied_until);
    }

    /// Counts by how many bytes a shard that is locked has grown.
    #[inline]
    pub(super) fn count_bytes(&self, grown: isize) {
        if grown != 0 {
            self.memory.fetch_add(grown as usize, Ordering::Relaxed);
        }
    }

    /// Changes a shard, and counts by how many bytes it has grown.
    pub(super) fn change<R>(&self, shard: &mut Shard, change: impl FnOnce(&mut Shard) -> R) -> R {
        let before = shard.bytes();
        let result = change(shard);
        self.count_bytes(shard.bytes().wrapping_sub(before) as isize);
        result
    }

    fn has_memory(&self) -> bool {
        self.memory_bytes() <= self.max_memory
    }

    /// Evicts keys until the others take no more memory than they may: of this shard, then of others. Passes over
    /// locked shards, as [`evict_elsewhere`](Self::evict_elsewhere) does.
    fn shed(&self, shard: &mut Shard, at: usize, now: CoarseTime) {
        self.shed_from(shard, now);
        for _ in 0..self.shards.len() {
            if self.has_memory() {
                return;
            }
            let other = self.shed_at.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            let place = &self.shards[other];
            if other == at || place.saturated_until.load(Ordering::Relaxed) > now {
                continue;
            }
            let Some(mut shard) = place.shard.try_lock() else {
                continue;
            };
            if !self.shed_from(&mut shard, now) {
                place.saturated_until.store(shard.saturated_until(), Ordering::Relaxed);
            }
        }
        for _ in 0..MAX_DENIED {
            if self.has_memory() {
                return;
            }
            if let Some(expires) = self.evict_denied(shard, at) {
                self.count_evicted(expires, now);
            }
        }
    }

    /// Evicts some keys of a shard while memory is short. Returns whether there were any that may go.
    fn shed_from(&self, shard: &mut Shard, now: CoarseTime) -> bool {
        let most = LEAST_AT_ONCE.max(shard.slots() / 8);
        (0..most).all(|_| self.has_memory() || self.evict_one(shard, now, |shard| shard.evict(now)))
    }

    /// Evicts a key for memory, and gives back what is no longer needed. Returns whether there was one to evict.
    fn evict_one(
        &self,
        shard: &mut Shard,
        now: CoarseTime,
        evict: impl FnOnce(&mut Shard) -> Option<CoarseTime>,
    ) -> bool {
        let expires = self.change(shard, |shard| evict(shard).inspect(|_| shard.trim()));
        expires.inspect(|expires| self.count_evicted(*expires, now)).is_some()
    }

    fn count_evicted(&self, expires: CoarseTime, now: CoarseTime) {
        self.keys.fetch_sub(1, Ordering::Relaxed);
        self.evicted.fetch_add(u64::from(expires >= now), Ordering::Relaxed);
    }

    /// Lets a key of another shard go, since all of this one's are being denied. Passes over shards
    /// that are locked at this instant: to wait for one while holding another could be for ever.
    fn evict_elsewhere(&self, but: usize, now: CoarseTime) -> Option<CoarseTime> {
        let others = (but + 1..self.shards.len()).chain(0..but);
        for place in others.map(|other| &self.shards[other]) {
            if place.saturated_until.load(Ordering::Relaxed) > now {
                continue;
            }
            let Some(mut shard) = place.shard.try_lock() else {
                continue;
            };
            if let Some(expires) = self.change(&mut shard, |shard| shard.evict(now)) {
                return Some(expires);
            }
            place.saturated_until.store(shard.saturated_until(), Ordering::Relaxed);
        }
        None
    }

    /// Lets the key go that is of all the soonest not to be denied any more. Passes over locked shards,
    /// as [`evict_elsewhere`](Self::evict_elsewhere) does.
    fn evict_denied(&self, shard: &mut Shard, at: usize) -> Option<CoarseTime> {
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
        let evict = |shard: &mut Shard| {
            let expires = shard.evict_denied();
            if !self.has_memory() {
                shard.trim();
            }
            expires
        };
        let Some((place, mut other)) = elsewhere else {
            return self.change(shard, evict);
        };
        let expires = self.change(&mut other, evict);
        place.saturated_until.store(other.saturated_until(), Ordering::Relaxed);
        expires
    }
}
