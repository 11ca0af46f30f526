//! Limits the rate of log messages that have the same cause.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::Timestamp;

use crate::durations::saturating_micros;

/// A lock-free throttle of events, such as log messages. At most `max_events` events pass in each interval; the others
/// are suppressed and counted. An interval begins with an event that passes.
pub struct LogThrottle {
    max_events: u16,
    interval_ms: u64,
    /// The start of the current interval, in milliseconds since the Unix epoch, in the upper bits. The number of events
    /// that passed in this interval in the lowest [`BITS_FOR_EVENT_COUNT`] bits.
    state: AtomicU64,
    suppressed: AtomicU64,
}

/// Number of bits of `state` that hold the number of passed events. 16 bits are sufficient, because `max_events` is a
/// `u16`.
const BITS_FOR_EVENT_COUNT: u32 = 16;

impl LogThrottle {
    /// Creates a throttle that lets at most `max_events` events per interval pass. The interval is rounded up to whole
    /// milliseconds.
    pub fn new(max_events: u16, interval: Duration) -> Self {
        let interval_ms = saturating_micros(interval).div_ceil(1_000).max(1);
        Self { max_events, interval_ms, state: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// Decides whether an event at the time `now` passes. Returns `None` if the event is suppressed. Otherwise returns
    /// the number of events that were suppressed since the last event that passed.
    pub fn try_acquire(&self, now: Timestamp) -> Option<u64> {
        let now_ms = now.as_micros() / 1_000;
        let next_state = |state: u64| {
            let (start_ms, passed) =
                (state >> BITS_FOR_EVENT_COUNT, state & ((1 << BITS_FOR_EVENT_COUNT) - 1));
            match (now_ms >= start_ms + self.interval_ms, passed < u64::from(self.max_events)) {
                (true, _) if self.max_events > 0 => Some(now_ms << BITS_FOR_EVENT_COUNT | 1),
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

    use slidegate::ManualClock;
    use slidegate::clock::Clock;

    use super::*;

    const ONE_SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn log_throttle_counts_suppressed_events() {
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        let throttle = LogThrottle::new(2, ONE_SECOND);
        let advance_and_acquire = |millis| {
            clock.advance(Duration::from_millis(millis));
            throttle.try_acquire(clock.now())
        };
        assert_eq!(
            [
                advance_and_acquire(0),
                advance_and_acquire(0),
                advance_and_acquire(1),
                advance_and_acquire(998)
            ],
            [Some(0), Some(0), None, None]
        );
        assert_eq!(
            [advance_and_acquire(1), advance_and_acquire(0), advance_and_acquire(0)],
            [Some(2), Some(0), None]
        );
        assert_eq!([advance_and_acquire(5_000), advance_and_acquire(0)], [Some(1), Some(0)]);
    }

    #[test]
    fn backward_clock_step_starts_no_throttle_interval() {
        let throttle = LogThrottle::new(1, ONE_SECOND);
        assert_eq!(throttle.try_acquire(Timestamp::from_secs(9)), Some(0));
        assert_eq!(throttle.try_acquire(Timestamp::from_secs(8)), None);
        assert_eq!(throttle.try_acquire(Timestamp::from_secs(10)), Some(1));
    }

    #[test]
    fn throttle_interval_begins_with_passed_event() {
        let throttle = LogThrottle::new(1, ONE_SECOND);
        let acquire = |millis: u64| throttle.try_acquire(Timestamp::from_micros(millis * 1_000));
        assert_eq!(acquire(9_990), Some(0));
        assert_eq!(acquire(10_010), None, "a new second does not begin an interval");
        assert_eq!([acquire(10_989), acquire(10_990)], [None, Some(2)]);
    }

    #[test]
    fn log_throttle_with_zero_max_suppresses_all_events() {
        let throttle = LogThrottle::new(0, ONE_SECOND);
        assert_eq!([1, 2, 3].map(|at| throttle.try_acquire(Timestamp::from_secs(at))), [None; 3]);
    }

    #[test]
    fn concurrent_log_events_pass_or_count_as_suppressed() {
        let throttle = LogThrottle::new(3, ONE_SECOND);
        let now = Timestamp::from_secs(1);
        let flood = || {
            (0..5_000).filter_map(|_| throttle.try_acquire(now)).map(|suppressed| (1, suppressed))
        };
        let count = || flood().fold((0, 0), |sum, item| (sum.0 + item.0, sum.1 + item.1));
        let (passed, reported) = thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(count));
            threads
                .map(|thread| thread.join().unwrap())
                .into_iter()
                .fold(count(), |sum, item| (sum.0 + item.0, sum.1 + item.1))
        });
        assert_eq!(passed, 3);
        assert_eq!(throttle.try_acquire(Timestamp::from_secs(2)), Some(4 * 5_000 - 3 - reported));
    }
}
