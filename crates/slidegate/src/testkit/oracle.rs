//! The oracle with which property tests compare stores: an exact sliding log that keeps all charges and counts them one
//! by one.

use std::time::Duration;

use crate::clock::{Timestamp, ceil_micros};

/// All charges of one key, each with its time in microseconds and its cost in units.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    charges: Vec<(u64, u64)>,
}

impl Oracle {
    /// Records a charge of `cost` units at the time `at`.
    pub fn charge(&mut self, at: Timestamp, cost: u64) {
        self.charges.push((at.as_micros(), cost));
    }

    /// Removes up to `units` refunded units, as if they had never been charged. `counted` is the number of units that
    /// are in use in the store; these are the newest units. The oldest of these units are removed.
    pub fn refund(&mut self, counted: u64, units: u64) {
        let all: u64 = self.charges.iter().map(|(_, cost)| cost).sum();
        let mut to_skip = all.saturating_sub(counted);
        let mut units = units.min(counted);
        for (_, cost) in &mut self.charges {
            let skipped = to_skip.min(*cost);
            to_skip -= skipped;
            let removed = units.min(*cost - skipped);
            *cost -= removed;
            units -= removed;
        }
    }

    /// Returns the units charged in the window `(now - window, now]`.
    pub fn units_in_window(&self, now: Timestamp, window: Duration) -> u64 {
        let now_us = now.as_micros();
        let is_inside = |at: u64| at <= now_us && now_us < at.saturating_add(ceil_micros(window));
        self.charges.iter().filter(|(at, _)| is_inside(*at)).map(|(_, cost)| cost).sum()
    }

    /// Returns the maximum number of units in any window of this length. Only windows that end at the time of a charge
    /// are examined, because one of them contains the maximum.
    pub fn max_units_in_any_window(&self, window: Duration) -> u64 {
        let ends = self.charges.iter().map(|(at, _)| Timestamp::from_micros(*at));
        ends.map(|end| self.units_in_window(end, window)).max().unwrap_or(0)
    }

    /// Returns `true` if the window that ends at `now` has at most `max` units after a charge of `cost` units. A cost
    /// of 0 is treated as 1.
    pub fn fits(&self, now: Timestamp, window: Duration, max: u64, cost: u64) -> bool {
        self.units_in_window(now, window).saturating_add(cost.max(1)) <= max
    }
}
