//! Clocks of the simulated hosts.

use fastrand::Rng;

use crate::simulation::scenario::MAX_CLOCK_SKEW;

/// The clock of a host. Most of the time it differs from the time of the simulation by at most half of the maximum
/// difference between two nodes, but it may be set to another time for a while.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostClock {
    /// Microseconds by which the clock is ahead while it is right.
    pub regular_offset_us: i64,
    /// Microseconds by which it is ahead in addition, because it was set.
    pub jump_us: i64,
    /// The number of times that the clock was set.
    pub jumps: u64,
}

impl HostClock {
    /// Draws a clock that is right.
    pub fn draw(rng: &mut Rng) -> Self {
        let regular_offset_us = rng.i64(0..=MAX_CLOCK_SKEW.as_micros() as i64);
        Self { regular_offset_us, ..Self::default() }
    }

    /// Sets the clock to a wrong time, or to the right one if it is wrong.
    pub fn jump(&mut self, rng: &mut Rng) {
        // Large enough to be outside the limit of every other clock.
        let seconds = [6, 8, 60, 3_600][rng.usize(..4)];
        let sign = if rng.bool() { 1 } else { -1 };
        self.jump_us = if self.jump_us == 0 { sign * seconds * 1_000_000 } else { 0 };
        self.jumps += 1;
    }

    /// Returns the time of the clock if it is right, in microseconds since the Unix epoch.
    pub fn right_time_us(&self, true_time_us: u64) -> u64 {
        true_time_us.saturating_add_signed(self.regular_offset_us)
    }

    /// Returns the time of the clock in microseconds since the Unix epoch.
    pub fn time_us(&self, true_time_us: u64) -> u64 {
        self.right_time_us(true_time_us).saturating_add_signed(self.jump_us)
    }
}
