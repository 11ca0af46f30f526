//! Property tests with a clock that steps far ahead and back.

use std::time::Duration;

use fastrand::Rng;

use crate::algorithm::{Algorithm, Align};
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::limit::Limit;
use crate::store::{PermitChange, Store};

use super::limits::max_units_in_window;
use super::oracle::Oracle;
use super::properties::{TestCounter, new_test_counter, unwrap_store_response};

/// 26 years, in microseconds: from the start value of a clock without a battery to the present.
const LARGE_CLOCK_STEP_US: i64 = 26 * 31_557_600_000_000;

/// The tolerance for waits: the largest duration by which a charge may be after the current time, and the largest tick.
const WAIT_TOLERANCE: Duration = Duration::from_secs(2);

const HOUR: Duration = Duration::from_secs(3_600);

/// A clock that steps, and the time that really passes.
struct SteppingClock<'c> {
    clock: &'c ManualClock,
    real: Timestamp,
    /// The real times of the steps back since the last step ahead.
    steps_back: Vec<Timestamp>,
}

impl SteppingClock<'_> {
    fn advance(&mut self, duration: Duration) {
        self.real = self.real.after(duration);
        self.clock.advance(duration);
    }

    /// Sets the clock to a time that differs from the real time by this number of microseconds. Returns whether it
    /// stepped ahead.
    fn set_offset_us(&mut self, difference_us: i64) -> bool {
        let (before, after) =
            (self.clock.now(), self.real.as_micros().saturating_add_signed(difference_us));
        self.clock.set(Timestamp::from_micros(after));
        if self.clock.now() > before {
            self.steps_back.clear();
            return true;
        }
        self.steps_back.push(self.real);
        false
    }
}

/// Returns the longest wait for units that fit a limit, if it has no debt.
fn longest_wait(limit: &Limit) -> Duration {
    let (window, max) = (limit.quota().window(), limit.quota().max());
    let wait = match limit.algorithm() {
        Algorithm::SlidingCounter => 2 * window,
        Algorithm::SlidingBuckets { precision } => window + precision.unwrap_or(window / 10),
        Algorithm::TokenBucket { .. } => window.mul_f64(limit.capacity() as f64 / max as f64),
        // A month in which the clocks go back is longer than 31 days.
        Algorithm::FixedWindow { align: Align::Calendar(_) } => window + HOUR,
        _ => window,
    };
    wait + WAIT_TOLERANCE
}

/// Returns the units that a limit may admit in a window that contains this number of steps back.
fn max_units_with_steps(limit: &Limit, steps: usize) -> u64 {
    let windows = match limit.algorithm() {
        // After a step back, a window ends at another time, so that each step may admit max units more.
        Algorithm::FixedWindow { .. } | Algorithm::SlidingCounter => steps as u64,
        _ => 0,
    };
    max_units_in_window(limit) + windows * limit.quota().max()
}

/// Tests that no window of real time contains more units than the limit may admit, and that no wait is longer than a
/// window, if the clock of the store steps back. A step ahead may end windows early, so earlier units are not counted
/// then.
pub async fn clock_steps_keep_bound_and_waits<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let window = limit.quota().window();
    let window_us = window.as_micros() as u64;
    let counter = new_test_counter(store, clock, limit, rng.u64(..window_us));
    let mut time = SteppingClock { clock, real: clock.now(), steps_back: Vec::new() };
    let mut oracle = Oracle::default();
    for _ in 0..100 {
        match rng.u32(..12) {
            0..=1 => {
                let hours = 3_600_000_000 * rng.i64(-5..=5);
                let windows = rng.i64(-4 * window_us as i64..=4 * window_us as i64);
                let difference_us = [
                    0,
                    -LARGE_CLOCK_STEP_US,
                    LARGE_CLOCK_STEP_US,
                    hours,
                    windows,
                    rng.i64(-2_000_000..=2_000_000),
                ];
                if time.set_offset_us(difference_us[rng.usize(..6)]) {
                    oracle = Oracle::default();
                }
            }
            2..=4 => time.advance(Duration::from_micros(rng.u64(..=window_us / 10))),
            5 => time.advance(Duration::from_micros(rng.u64(..=window_us))),
            _ => {}
        }
        let cost = if rng.bool() { 1 } else { rng.u64(1..=limit.capacity()) };
        try_charge_and_check(&counter, &mut time, &mut oracle, cost, rng.u32(..3) == 0).await;
    }
}

/// Takes units, and compares the result with the oracle. If the units are denied, with `waits` takes them after the
/// stated wait.
async fn try_charge_and_check<S: Store>(
    counter: &TestCounter<'_, S>,
    time: &mut SteppingClock<'_>,
    oracle: &mut Oracle,
    cost: u64,
    waits: bool,
) {
    let limit = &counter.limit;
    let context = format!("{limit}: cost {cost} at {} (really {})", time.clock.now(), time.real);
    let mut result = counter.try_charge(cost).await;
    if !result.allowed {
        let wait = result.outcomes[0].retry_after();
        let wait = wait.unwrap_or_else(|| panic!("{context}: a cost that fits has a wait"));
        assert!(wait <= longest_wait(limit), "{context}: {wait:?}");
        if !waits {
            return;
        }
        time.advance(wait - Duration::from_micros(1));
        assert!(!counter.peek(cost).await.fits(), "{context}: fits before {wait:?}");
        time.advance(Duration::from_micros(1));
        result = counter.try_charge(cost).await;
        assert!(result.allowed, "{context}: denied after {wait:?}");
    }
    oracle.charge(time.real, cost);
    let window = limit.quota().window();
    let is_recent = |step: &&Timestamp| step.after(2 * window) > time.real;
    let steps = time.steps_back.iter().filter(is_recent).count();
    let units = oracle.units_in_window(time.real, window);
    let bound = max_units_with_steps(limit, steps);
    assert!(units <= bound, "{context}: {units} units, at most {bound}");
}

/// Tests that a permit ends a time to live after a step back of the clock.
pub async fn permits_end_in_time_after_clock_steps<S: Store>(store: &S, clock: &ManualClock) {
    let ttl = Duration::from_secs(2);
    let limit = match Limit::concurrent(1, ttl) {
        Ok(limit) => limit,
        Err(error) => unreachable!("the limit is valid: {error}"),
    };
    let counter = new_test_counter(store, clock, &limit, 0);
    let back = || clock.set(Timestamp::from_micros(clock.now().as_micros() - 3_600_000_000));
    for is_renewed in [false, true] {
        let held = counter.try_charge(1).await;
        assert!(held.allowed);
        if is_renewed {
            clock.advance(Duration::from_secs(1));
            let renewed = store.change_permit_async(&held.receipt, PermitChange::Renew).await;
            assert!(unwrap_store_response(renewed));
        }
        back();
        let denied = counter.try_charge(1).await;
        assert!(!denied.allowed, "the permit is held");
        assert_eq!(denied.outcomes[0].retry_after(), Some(ttl));
        clock.advance(ttl - Duration::from_micros(1));
        assert!(!counter.try_charge(1).await.allowed);
        clock.advance(Duration::from_micros(1));
        assert!(counter.peek(1).await.fits());
    }
    let held = counter.try_charge(1).await;
    back();
    let renewed = store.change_permit_async(&held.receipt, PermitChange::Renew).await;
    assert!(unwrap_store_response(renewed), "a renewal sets the permit back");
    clock.advance(ttl);
    assert!(counter.try_charge(1).await.allowed);
}
