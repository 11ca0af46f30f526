//! An exact log of what one key was given: what a decision is held against.
//!
//! The oracle of slidegate's testkit looks at every charge that was ever made, each time; this one forgets, and is
//! held against the oracle by its test.

use std::collections::VecDeque;

/// Counts units in the window `(now - length, now]`. Time does not run back.
#[derive(Debug)]
pub struct ExactLog {
    length_us: u64,
    /// Moments and units, oldest first.
    given: VecDeque<(u64, u64)>,
    inside: u64,
    most: u64,
}

impl ExactLog {
    /// A log of nothing, over windows of that length.
    pub fn new(length_us: u64) -> Self {
        Self { length_us, given: VecDeque::new(), inside: 0, most: 0 }
    }

    /// Units in the window that ends now.
    pub fn inside(&mut self, now_us: u64) -> u64 {
        while let Some(&(at_us, units)) = self.given.front()
            && at_us.saturating_add(self.length_us) <= now_us
        {
            self.inside -= units;
            self.given.pop_front();
        }
        self.inside
    }

    /// Notes units that are given now.
    pub fn give(&mut self, now_us: u64, units: u64) {
        self.inside(now_us);
        match self.given.back_mut() {
            Some((at_us, given)) if *at_us == now_us => *given += units,
            _ => self.given.push_back((now_us, units)),
        }
        self.inside += units;
        // A window that ends with a charge holds the most.
        self.most = self.most.max(self.inside);
    }

    /// The most units in any window so far.
    pub fn most(&self) -> u64 {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slidegate::Timestamp;
    use slidegate::testkit::oracle::Oracle;

    use super::*;

    #[test]
    fn every_window_holds_what_a_look_at_all_finds() {
        const LENGTH_US: u64 = 20;
        let window = Duration::from_micros(LENGTH_US);
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..50 {
            let (mut log, mut oracle, mut now) = (ExactLog::new(LENGTH_US), Oracle::default(), 0);
            for _ in 0..150 {
                // Mostly small steps, so that windows fill; some of a whole window, which meet its edge.
                now += *rng.choice([0, 1, 2, 7, LENGTH_US, 45].iter()).unwrap();
                let at = Timestamp::from_micros(now);
                assert_eq!(log.inside(now), oracle.in_window(at, window));
                if rng.bool() {
                    let units = rng.u64(1..4);
                    log.give(now, units);
                    oracle.charge(at, units);
                    assert_eq!(log.inside(now), oracle.in_window(at, window));
                }
            }
            assert_eq!(log.most(), oracle.max_units_in_any_window(window));
        }
    }
}
