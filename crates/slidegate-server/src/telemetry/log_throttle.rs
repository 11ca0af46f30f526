//! How often something may be told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::Timestamp;

/// Lets at most so many through in each stretch of time, and counts the others. It takes no lock.
pub struct LogThrottle {
    max_events: u16,
    interval_us: u64,
    /// The stretch that is under way, and in the lowest bits how many it has let through.
    state: AtomicU64,
    suppressed: AtomicU64,
}

const COUNT_BITS: u32 = 16;

impl LogThrottle {
    /// At most so many in each stretch.
    pub fn new(max_events: u16, interval: Duration) -> Self {
        let interval_us = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX).max(1);
        Self { max_events, interval_us, state: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// Whether the next may pass, and then how many have not since the last that did.
    pub fn try_acquire(&self, now: Timestamp) -> Option<u64> {
        let current_interval = now.as_micros() / self.interval_us;
        let next_state = |state: u64| {
            let (interval, passed) = (state >> COUNT_BITS, state & ((1 << COUNT_BITS) - 1));
            match (current_interval > interval, passed < u64::from(self.max_events)) {
                (true, _) if self.max_events > 0 => Some(current_interval << COUNT_BITS | 1),
                (false, true) => Some(state + 1),
                _ => None,
            }
        };
        if self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next_state).is_ok() {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use slidegate::{Clock, ManualClock};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn so_many_pass_in_each_second_and_the_next_says_how_many_did_not() {
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        let throttle = LogThrottle::new(2, SECOND);
        let next = |durations| {
            clock.advance(Duration::from_millis(durations));
            throttle.try_acquire(clock.now())
        };
        assert_eq!([next(0), next(0), next(1), next(998)], [Some(0), Some(0), None, None]);
        assert_eq!([next(1), next(0), next(0)], [Some(2), Some(0), None]);
        assert_eq!([next(5_000), next(0)], [Some(1), Some(0)]);
    }

    #[test]
    fn a_clock_that_goes_back_opens_nothing() {
        let throttle = LogThrottle::new(1, SECOND);
        assert_eq!(throttle.try_acquire(Timestamp::from_secs(9)), Some(0));
        assert_eq!(throttle.try_acquire(Timestamp::from_secs(8)), None);
        assert_eq!(throttle.try_acquire(Timestamp::from_secs(10)), Some(1));
    }

    #[test]
    fn none_passes_where_none_may() {
        let throttle = LogThrottle::new(0, SECOND);
        assert_eq!([1, 2, 3].map(|at| throttle.try_acquire(Timestamp::from_secs(at))), [None; 3]);
    }

    #[test]
    fn of_many_at_once_none_is_lost_and_not_one_too_many_passes() {
        let throttle = LogThrottle::new(3, SECOND);
        let now = Timestamp::from_secs(1);
        let flood =
            || (0..5_000).filter_map(|_| throttle.try_acquire(now)).map(|before| (1, before));
        let count = || flood().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let (passed, told) = thread::scope(|scope| {
            let others = [(); 3].map(|()| scope.spawn(count));
            others
                .map(|other| other.join().unwrap())
                .into_iter()
                .fold(count(), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        });
        assert_eq!(passed, 3);
        assert_eq!(throttle.try_acquire(Timestamp::from_secs(2)), Some(4 * 5_000 - 3 - told));
    }
}
