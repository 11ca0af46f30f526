//! A log that keeps everything, and counts by looking at all of it.

use std::time::Duration;

use crate::clock::{Timestamp, ceil_micros};

/// Every charge that was ever made on one key.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    charges: Vec<(u64, u64)>,
}

impl Oracle {
    /// Notes a charge.
    pub fn charge(&mut self, at: Timestamp, cost: u64) {
        self.charges.push((at.as_micros(), cost));
    }

    /// Notes that units were taken off without a receipt: of the newest `counted` units, which are all that still
    /// count, the oldest. They count as never charged.
    pub fn refund(&mut self, counted: u64, units: u64) {
        let all: u64 = self.charges.iter().map(|(_, cost)| cost).sum();
        let mut left = all.saturating_sub(counted);
        let mut units = units.min(counted);
        for (_, cost) in &mut self.charges {
            let passed_over = left.min(*cost);
            left -= passed_over;
            let taken = units.min(*cost - passed_over);
            *cost -= taken;
            units -= taken;
        }
    }

    /// Units charged in the window `(now - window, now]`.
    pub fn in_window(&self, now: Timestamp, window: Duration) -> u64 {
        let now_us = now.as_micros();
        let inside = |at: u64| at <= now_us && now_us < at.saturating_add(ceil_micros(window));
        self.charges.iter().filter(|(at, _)| inside(*at)).map(|(_, cost)| cost).sum()
    }

    /// The most units in any window of that length: one that ends with a charge holds the most.
    pub fn max_units_in_any_window(&self, window: Duration) -> u64 {
        let ends = self.charges.iter().map(|(at, _)| Timestamp::from_micros(*at));
        ends.map(|end| self.in_window(end, window)).max().unwrap_or(0)
    }

    /// Whether a cost fits: the exact answer.
    pub fn fits(&self, now: Timestamp, window: Duration, max: u64, cost: u64) -> bool {
        self.in_window(now, window).saturating_add(cost.max(1)) <= max
    }
}
