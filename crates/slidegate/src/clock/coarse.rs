//! The coarse clock, which is cheaper to read than [`SystemClock`](super::SystemClock), and less precise.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};

use super::corrected::{CorrectedClock, FastClock};
use super::{Clock, Timestamp, WallClock};

/// A clock that advances once per tick of the Linux kernel, usually every 1 to 4 ms.
///
/// It is cheaper to read than a [`SystemClock`](super::SystemClock), and every decision in memory reads the clock.
///
/// Its time differs from the precise time by up to one [tick](Self::tick), so a unit may leave its window one tick too
/// early or too late. The kernel advances the clock in its timer interrupt, so the difference does not grow if the
/// processors are busy. Like `SystemClock`, the clock is corrected towards the wall clock.
///
/// ```
/// use slidegate::{Limiter, MemoryStore};
/// use slidegate::clock::CoarseClock;
/// use std::time::Duration;
///
/// let clock = CoarseClock::new();
/// assert!(clock.tick() <= Duration::from_millis(10));
/// let limiter = Limiter::with_store("limiter", ["100/min"], MemoryStore::with_clock(clock, 1_000_000))?;
/// assert!(limiter.check("acme").is_allowed());
/// # Ok::<(), slidegate::LimiterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct CoarseClock(CorrectedClock<KernelTickClock, WallClock>);

impl CoarseClock {
    /// Creates a clock that starts at the current wall time.
    pub fn new() -> Self {
        Self(CorrectedClock::new(KernelTickClock::start(), WallClock))
    }

    /// Returns the length of a tick, the largest difference from the precise time.
    pub fn tick(&self) -> Duration {
        let Timespec { tv_sec, tv_nsec } = clock_getres(ClockId::MonotonicCoarse);
        Duration::new(tv_sec.unsigned_abs(), tv_nsec.unsigned_abs() as u32)
    }
}

impl Default for CoarseClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for CoarseClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn wall_clock_steps_us(&self) -> i64 {
        self.0.wall_clock_steps_us()
    }
}

/// The kernel's monotonic clock, as of its last tick.
#[derive(Clone, Debug)]
struct KernelTickClock {
    start_us: u64,
}

impl KernelTickClock {
    fn start() -> Self {
        Self { start_us: monotonic_us() }
    }
}

impl FastClock for KernelTickClock {
    fn elapsed_us(&self) -> u64 {
        monotonic_us().saturating_sub(self.start_us)
    }
}

/// Returns the time of the kernel's last tick since the machine was started, in microseconds.
fn monotonic_us() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::MonotonicCoarse);
    tv_sec.unsigned_abs() * 1_000_000 + tv_nsec.unsigned_abs() / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_clock_differs_by_at_most_one_tick() {
        let clock = CoarseClock::new();
        let tick_us = clock.tick().as_micros() as u64;
        for _ in 0..100_000 {
            let before = WallClock.now().0;
            let coarse = clock.now().0;
            let after = WallClock.now().0;
            // Both clocks were started at slightly different times, and corrections take steps of up to 25 us.
            assert!(coarse + tick_us + 100 >= before, "{coarse} is too late for {before}");
            assert!(coarse <= after + tick_us + 100, "{coarse} is too early for {after}");
        }
    }
}
