//! Requests in flight: at most max permits are live at the same time. A charge creates a permit, which is live until it
//! is released or expires.
//!
//! A permit is identified by the time of its charge. The id is unique among all permits of its key, because it is at
//! least one microsecond later than the id of the previous permit. A state keeps the id of its newest permit until all
//! permits would have expired, so a release never frees another permit than its own.
//!
//! A charge removes the permits that have expired. If the clock then steps back, they cannot be renewed, so there are
//! never more live permits than max.

#[cfg(test)]
mod tests;

use super::counter::{
    ChargeEffect, Counter, clamp_to_small_units, is_time_ahead_of_clock, micros_until_expiry,
};
use super::ring::{RingBuffer, max_heap_bytes};
use super::tick::LimitParams;
use crate::clock::Timestamp;
use crate::layout::HeapSize;
use crate::outcome::Outcome;
use crate::quota::Quota;

/// The largest max of a limit on requests in flight. The permits of a key then take at most 240 KB.
pub const MAX_PERMITS: u64 = 10_000;

/// A bound on the requests in flight: the max of the quota. The window of the quota is the time to live of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrent {
    max: u32,
    ttl_us: u64,
}

/// The permits of a key.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The id of the newest permit, in microseconds.
    newest_id: u64,
    /// The time at which a permit was last created or renewed, in microseconds since the Unix epoch.
    last_us: u64,
    /// The sum of the units of all permits, including expired permits that have not been removed.
    units: u64,
    /// The permits, sorted by the time at which they expire.
    permits: RingBuffer<LivePermit>,
}

/// A permit that has not been released. An expired permit stays in the state until the next charge of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LivePermit {
    expires_us: u64,
    id: u64,
    units: u32,
}

impl LivePermit {
    fn is_live(&self, now: Timestamp) -> bool {
        now.as_micros() < self.expires_us
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.newest_id == other.newest_id && self.permits.iter().eq(other.permits.iter())
    }
}

impl HeapSize for State {
    fn heap_bytes(&self) -> usize {
        self.permits.heap_bytes()
    }
}

impl State {
    /// Returns the number of permits that have expired, and the sum of their units.
    fn expired_permits(&self, now: Timestamp) -> (usize, u64) {
        let expired = self.permits.iter().take_while(|permit| !permit.is_live(now));
        expired.fold((0, 0), |(count, units), permit| (count + 1, units + u64::from(permit.units)))
    }

    fn remove_expired_permits(&mut self, now: Timestamp) {
        let (count, units) = self.expired_permits(now);
        self.permits.remove_first(count);
        self.units -= units;
    }

    /// Returns the index of a permit; `None` if it has been released, or has been removed after it has expired.
    fn index_of_permit(&self, id: u64) -> Option<usize> {
        self.permits.iter().position(|permit| permit.id == id)
    }

    /// Adds a permit behind all permits that do not expire later.
    fn insert(&mut self, permit: LivePermit) {
        let expires_later = |other: &LivePermit| other.expires_us > permit.expires_us;
        let later_count = self.permits.iter().rev().take_while(expires_later).count();
        let kept = self.permits.len() - later_count;
        let later: Vec<LivePermit> = self.permits.iter().skip(kept).collect();
        self.permits.truncate(kept);
        for permit in std::iter::once(permit).chain(later) {
            self.permits.push(permit, MAX_PERMITS as usize);
        }
        self.units += u64::from(permit.units);
    }

    /// Removes the permit at an index.
    fn remove(&mut self, index: usize) {
        let units = self.permits.get(index).map_or(0, |permit| permit.units);
        self.permits.remove(index, 1);
        self.units -= u64::from(units);
    }
}

impl Concurrent {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self { max: quota.max() as u32, ttl_us: quota.window_us() }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::from_parts(self.max.into(), self.ttl_us)
    }

    pub(crate) fn limit_params(&self) -> LimitParams {
        LimitParams { max: self.max.into(), extra: 0, max_debt: 0, tick_us: 1, window: self.ttl_us }
    }

    /// Returns the largest number of heap bytes that a state can take.
    pub(crate) fn max_heap_bytes(&self) -> usize {
        max_heap_bytes::<LivePermit>(self.max as usize)
    }

    /// Releases a permit: its units are free at once. Returns whether it was live; a permit that has been released or
    /// has expired is not.
    pub(crate) fn release(&self, state: &mut State, now: Timestamp, id: Timestamp) -> bool {
        let Some((index, permit)) = find_permit(state, id) else { return false };
        state.remove(index);
        permit.is_live(now)
    }

    /// Renews a permit: it expires a whole time to live after `now`. Returns whether it was live; a permit that has
    /// been released or has expired is not, and cannot be renewed.
    pub(crate) fn renew(&self, state: &mut State, now: Timestamp, id: Timestamp) -> bool {
        let live = find_permit(state, id).filter(|(_, permit)| permit.is_live(now));
        let Some((index, permit)) = live else { return false };
        // If a new policy has a shorter time to live, a renewal must not make the permit expire earlier than before.
        let expires_us = permit.expires_us.max(now.as_micros().saturating_add(self.ttl_us));
        state.remove(index);
        state.insert(LivePermit { expires_us, ..permit });
        state.last_us = now.as_micros();
        true
    }

    /// Returns the outcome of a hit that requires `required` free units. The first live permit is at `index`, and all
    /// live permits have `used` units together.
    fn outcome(
        &self,
        state: &State,
        (index, used): (usize, u64),
        now: Timestamp,
        required: u64,
    ) -> Outcome {
        let max = u64::from(self.max);
        let reset_after_us = if used > 0 { micros_until_expiry(self, state, now) } else { 0 };
        Outcome::from_used_units((used, max), required, reset_after_us, || {
            // The wait ends when enough permits have expired to free the required units. The permits are sorted by
            // expiry.
            let mut excess = used + required - max;
            for permit in state.permits.iter().skip(index) {
                excess = excess.saturating_sub(permit.units.into());
                if excess == 0 {
                    return permit.expires_us.saturating_sub(now.as_micros());
                }
            }
            0
        })
    }
}

fn find_permit(state: &State, id: Timestamp) -> Option<(usize, LivePermit)> {
    let index = state.index_of_permit(id.as_micros())?;
    Some((index, state.permits.get(index)?))
}

impl Counter for Concurrent {
    type State = State;

    fn capacity(&self) -> u64 {
        u64::from(self.max)
    }

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        let (expired, expired_units) = state.expired_permits(now);
        self.outcome(state, (expired, state.units - expired_units), now, required)
    }

    /// Returns the cost, but at most the free units, so that there are never more live permits than max.
    fn chargeable_units(&self, state: &State, now: Timestamp, cost: u64) -> u64 {
        cost.min(self.peek(state, now, 1).remaining())
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> ChargeEffect {
        // A charge without units takes an id too, although it creates no permit, so that no id is ever used twice.
        let id = now.as_micros().max(state.newest_id + 1);
        state.newest_id = id;
        state.last_us = now.as_micros();
        state.remove_expired_permits(now);
        if cost > 0 {
            let expires_us = now.as_micros().saturating_add(self.ttl_us);
            state.insert(LivePermit { expires_us, id, units: clamp_to_small_units(cost) });
        }
        ChargeEffect {
            charged_at: Timestamp::from_micros(id),
            expires_at: self.expires_at(state),
            outcome: self.outcome(state, (0, state.units), now, 1),
        }
    }

    /// Releases the whole permit, whatever the number of units to revert is.
    fn revert(&self, state: &mut State, charged_at: Timestamp, _: u64) {
        if let Some((index, _)) = find_permit(state, charged_at) {
            state.remove(index);
        }
    }

    /// Does nothing: a permit is released by its holder, and a refund has no holder.
    fn refund(&self, _: &mut State, _: Timestamp, _: u64) {}

    /// A late expiry alone does not show that the clock has stepped back, because a permit of an earlier policy may
    /// have a longer time to live. So a permit must also have been created or renewed after `now`.
    fn is_ahead_of_clock(&self, state: &State, now: Timestamp) -> bool {
        is_time_ahead_of_clock(state.last_us, now)
            && is_time_ahead_of_clock(self.expires_at(state).as_micros(), now.after_us(self.ttl_us))
    }

    /// Moves the expiry of each permit back by the same duration, so that each has as much time left as when a permit
    /// was last created or renewed.
    fn set_state_back_to(&self, state: &mut State, now: Timestamp) {
        state.remove_expired_permits(Timestamp::from_micros(state.last_us));
        let lead_us = state.last_us - now.as_micros();
        for (index, permit) in state.permits.iter().enumerate().collect::<Vec<_>>() {
            let expires_us = permit.expires_us - lead_us;
            state.permits.set(index, LivePermit { expires_us, ..permit });
        }
        state.last_us = now.as_micros();
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        let last = state.permits.len().checked_sub(1).and_then(|last| state.permits.get(last));
        Timestamp::from_micros(last.map_or(0, |permit| permit.expires_us))
    }
}
