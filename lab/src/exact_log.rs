//! Keeps the time of every charge of one key, so that the correct decision is known for each request.
//!
//! The oracle in slidegate's test kit scans all charges on every call. The log in this module drops expired charges
//! instead. A test compares the log with the oracle.

use std::collections::VecDeque;

/// A log of all charges of one key. It counts the units in the window `(now - window, now]`. The times of successive
/// calls must not decrease.
#[derive(Debug)]
pub struct ExactLog {
    window_us: u64,
    /// The charges in the window, oldest first: the time in microseconds, and the units.
    charges: VecDeque<(u64, u64)>,
    units_in_window: u64,
    max_units: u64,
}

impl ExactLog {
    /// Creates an empty log for windows of `window_us` microseconds.
    pub fn new(window_us: u64) -> Self {
        Self { window_us, charges: VecDeque::new(), units_in_window: 0, max_units: 0 }
    }

    /// Returns the number of units that were charged in the window that ends at `now_us`.
    pub fn units_in_window(&mut self, now_us: u64) -> u64 {
        while let Some(&(at_us, units)) = self.charges.front()
            && at_us.saturating_add(self.window_us) <= now_us
        {
            self.units_in_window -= units;
            self.charges.pop_front();
        }
        self.units_in_window
    }

    /// Records a charge of `units` at the time `now_us`.
    pub fn charge(&mut self, now_us: u64, units: u64) {
        self.units_in_window(now_us);
        match self.charges.back_mut() {
            Some((at_us, charged)) if *at_us == now_us => *charged += units,
            _ => self.charges.push_back((now_us, units)),
        }
        self.units_in_window += units;
        // The window with the most units always ends with a charge, so a check after each charge is enough.
        self.max_units = self.max_units.max(self.units_in_window);
    }

    /// Returns the maximum number of units that were charged in any window so far.
    pub fn max_units(&self) -> u64 {
        self.max_units
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slidegate::Timestamp;
    use slidegate::testkit::oracle::Oracle;

    use super::*;

    #[test]
    fn exact_log_counts_match_reference_implementation() {
        const WINDOW_US: u64 = 20;
        let window = Duration::from_micros(WINDOW_US);
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..50 {
            let (mut log, mut oracle, mut now) = (ExactLog::new(WINDOW_US), Oracle::default(), 0);
            for _ in 0..150 {
                // Mostly small steps, so that windows fill; some steps of a whole window, which hit its edge.
                now += *rng.choice([0, 1, 2, 7, WINDOW_US, 45].iter()).unwrap();
                let at = Timestamp::from_micros(now);
                assert_eq!(log.units_in_window(now), oracle.units_in_window(at, window));
                if rng.bool() {
                    let units = rng.u64(1..4);
                    log.charge(now, units);
                    oracle.charge(at, units);
                    assert_eq!(log.units_in_window(now), oracle.units_in_window(at, window));
                }
            }
            assert_eq!(log.max_units(), oracle.max_units_in_any_window(window));
        }
    }
}
