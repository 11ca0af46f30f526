//! A clock that is cheap to read, and follows the wall clock.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::{Clock, Timestamp};

/// A clock that is cheap to read, and may drift from the wall clock.
pub(crate) trait FastClock: Send + Sync + 'static {
    /// Returns the time since the clock was started, in microseconds.
    fn elapsed_us(&self) -> u64;
}

/// A fast clock that reads the processor's counter.
#[derive(Clone, Debug)]
pub(crate) struct ProcessorClock {
    clock: quanta::Clock,
    /// The value of the counter at the start of the clock.
    start_raw: u64,
}

impl ProcessorClock {
    /// Starts a clock, whose elapsed time is 0 now.
    pub(crate) fn new(clock: quanta::Clock) -> Self {
        Self { start_raw: clock.raw(), clock }
    }
}

impl FastClock for ProcessorClock {
    fn elapsed_us(&self) -> u64 {
        self.clock.delta_as_nanos(self.start_raw, self.clock.raw()) / 1_000
    }
}

/// A fast clock that is slowly corrected towards a wall clock.
#[derive(Debug)]
pub(crate) struct CorrectedClock<F, W> {
    fast_clock: F,
    wall_clock: W,
    /// The time of the wall clock when the corrected clock was created, in microseconds since the Unix epoch.
    start_us: u64,
    /// The time of the last correction, in microseconds since the corrected clock was created.
    corrected_at_us: AtomicU64,
    /// The sum of all corrections, in microseconds, which is added to the time of the fast clock.
    correction_us: AtomicI64,
    /// The sum of all steps of the wall clock, in microseconds, which the clock does not follow.
    step_us: AtomicI64,
}

/// The interval between two corrections, in microseconds.
const CORRECTION_INTERVAL_US: u64 = 50_000;

/// The minimum number of microseconds that must pass for each microsecond of correction.
const MIN_ELAPSED_US_PER_CORRECTED_US: u64 = 2_000;

/// The difference from the wall clock, in microseconds, above which the wall clock has stepped. The largest correction
/// for the time since the last correction is added to it.
const MIN_WALL_CLOCK_STEP_US: u64 = 500_000;

/// The longest time between the readings of the two clocks with which a step is measured, in microseconds. A longer
/// measurement is ignored, because a thread that was interrupted between the readings measures a step that did not
/// happen.
const MAX_READING_INTERVAL_US: u64 = 100_000;

impl<F: FastClock, W: Clock> CorrectedClock<F, W> {
    /// Creates a clock. `fast_clock` must have been started just before.
    pub(crate) fn new(fast_clock: F, wall_clock: W) -> Self {
        let start_us = wall_clock.now().0;
        let (corrected_at_us, correction_us) = (AtomicU64::new(0), AtomicI64::new(0));
        let step_us = AtomicI64::new(0);
        Self { fast_clock, wall_clock, start_us, corrected_at_us, correction_us, step_us }
    }

    fn corrected_time(&self, elapsed_us: u64) -> Timestamp {
        let uncorrected_us = self.start_us + elapsed_us;
        let correction_us = self.correction_us.load(Ordering::Relaxed);
        // The result is not negative: the correction is at most the distance of two times since 1970.
        Timestamp(uncorrected_us.wrapping_add_signed(correction_us))
    }

    fn correct_towards_wall_clock(&self, elapsed_us: u64, corrected_at_us: u64) {
        let (relaxed, wall_us) = (Ordering::Relaxed, self.wall_clock.now().0);
        let exchanged =
            self.corrected_at_us.compare_exchange(corrected_at_us, elapsed_us, relaxed, relaxed);
        if exchanged.is_err() {
            return;
        }
        let max_us = (elapsed_us - corrected_at_us) / MIN_ELAPSED_US_PER_CORRECTED_US;
        let step_us = self.step_us.load(relaxed);
        let wall_us = wall_us.wrapping_add_signed(-step_us);
        let behind_us = wall_us.wrapping_sub(self.corrected_time(elapsed_us).0) as i64;
        if behind_us.unsigned_abs() > MIN_WALL_CLOCK_STEP_US + max_us {
            if self.fast_clock.elapsed_us() - elapsed_us < MAX_READING_INTERVAL_US {
                // If another thread has recorded the same step, the exchange fails, so that the step is not added
                // twice.
                let after_us = step_us + behind_us;
                _ = self.step_us.compare_exchange(step_us, after_us, relaxed, relaxed);
            }
            return;
        }
        let max_us = i64::try_from(max_us).unwrap_or(i64::MAX);
        self.correction_us.fetch_add(behind_us.clamp(-max_us, max_us), relaxed);
    }
}

impl<F: FastClock, W: Clock> Clock for CorrectedClock<F, W> {
    fn now(&self) -> Timestamp {
        let elapsed_us = self.fast_clock.elapsed_us();
        let corrected_at_us = self.corrected_at_us.load(Ordering::Relaxed);
        if elapsed_us >= corrected_at_us + CORRECTION_INTERVAL_US {
            self.correct_towards_wall_clock(elapsed_us, corrected_at_us);
        }
        self.corrected_time(elapsed_us)
    }

    fn wall_clock_steps_us(&self) -> i64 {
        self.step_us.load(Ordering::Relaxed)
    }
}

impl<F: Clone, W: Clone> Clone for CorrectedClock<F, W> {
    fn clone(&self) -> Self {
        Self {
            fast_clock: self.fast_clock.clone(),
            wall_clock: self.wall_clock.clone(),
            start_us: self.start_us,
            corrected_at_us: AtomicU64::new(self.corrected_at_us.load(Ordering::Relaxed)),
            correction_us: AtomicI64::new(self.correction_us.load(Ordering::Relaxed)),
            step_us: AtomicI64::new(self.step_us.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;

    const START_TIME: Timestamp = Timestamp::from_secs(1_750_000_020);
    const MONTH_SECONDS: u64 = 30 * 86_400;

    /// Advances the wall clock by `duration`, and the fast clock by `duration` plus a drift of `ppm` millionths.
    fn advance_clocks_with_drift(
        mock: &quanta::Mock,
        wall: &ManualClock,
        duration: Duration,
        ppm: i64,
    ) {
        wall.advance(duration);
        let drift_ns = duration.as_micros() as i64 * ppm / 1_000;
        mock.increment((duration.as_nanos() as u64).wrapping_add_signed(drift_ns));
    }

    #[test]
    fn drifting_fast_clock_follows_wall_clock() {
        for ppm in [18, -18, 200, -200] {
            for interval_s in [1, 3_600] {
                let (clock, mock) = quanta::Clock::mock();
                let wall = ManualClock::at(START_TIME);
                let slewed = CorrectedClock::new(ProcessorClock::new(clock), wall.clone());
                for _ in 0..MONTH_SECONDS.min(100_000 * interval_s) / interval_s {
                    advance_clocks_with_drift(&mock, &wall, Duration::from_secs(interval_s), ppm);
                    let difference = slewed.now().0.abs_diff(wall.now().0);
                    assert!(
                        difference <= 1,
                        "{ppm} ppm, read every {interval_s} s: {difference} µs"
                    );
                }
            }
        }
    }

    #[test]
    fn small_adjustment_is_followed_slowly() {
        for adjusted_ms in [400, -400] {
            let (clock, mock) = quanta::Clock::mock();
            let wall = ManualClock::at(START_TIME);
            let slewed = CorrectedClock::new(ProcessorClock::new(clock), wall.clone());
            wall.set(Timestamp(START_TIME.0.saturating_add_signed(1_000 * adjusted_ms)));
            let mut last = slewed.now().0;
            for _ in 0..100_000 {
                advance_clocks_with_drift(&mock, &wall, Duration::from_millis(10), 0);
                let now = slewed.now().0;
                let elapsed = now as i64 - last as i64;
                assert!((10_000 - 25..=10_000 + 25).contains(&elapsed), "{elapsed} µs in 10 ms");
                last = now;
            }
            assert_eq!((last, slewed.wall_clock_steps_us()), (wall.now().0, 0));
        }
    }

    #[test]
    fn step_of_wall_clock_is_measured_and_not_followed() {
        for step_s in [1, -1, 5 * 3_600, -5 * 3_600, 26 * 31_557_600, -26 * 31_557_600] {
            let (clock, mock) = quanta::Clock::mock();
            let wall = ManualClock::at(START_TIME);
            let corrected = CorrectedClock::new(ProcessorClock::new(clock), wall.clone());
            let step_us = 1_000_000 * step_s;
            wall.set(Timestamp(START_TIME.0.saturating_add_signed(step_us)));
            for nth in 1..1_000 {
                advance_clocks_with_drift(&mock, &wall, Duration::from_millis(60), 0);
                assert_eq!(corrected.now().0, START_TIME.0 + 60_000 * nth);
                assert_eq!(corrected.wall_clock_steps_us(), step_us);
            }
            wall.set(Timestamp(wall.now().0.saturating_add_signed(-step_us)));
            advance_clocks_with_drift(&mock, &wall, Duration::from_millis(60), 0);
            assert_eq!((corrected.now(), corrected.wall_clock_steps_us()), (wall.now(), 0));
        }
    }
}
