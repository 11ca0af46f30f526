//! Logs each step of the wall clock, which shows that time synchronization has set it or the machine was suspended.

use std::time::Duration;

use slidegate::clock::{Clock, SystemClock};
use tokio::time::sleep;
use tracing::warn;

use crate::background::BackgroundTasks;

/// The interval at which the clock is read.
const CLOCK_READ_INTERVAL: Duration = Duration::from_secs(1);

/// Starts a task that logs each step of the wall clock.
pub fn start(tasks: BackgroundTasks) {
    let mut detector = StepDetector::new(SystemClock::new());
    let log_steps = async move || {
        loop {
            sleep(CLOCK_READ_INTERVAL).await;
            if let Some(seconds) = detector.next_step_s() {
                warn!(
                    seconds,
                    "the wall clock has stepped; calendar quotas and windows with `align: clock` follow it, and rolling \
                     windows do not; synchronize the time before slidegate starts"
                );
            }
        }
    };
    tokio::spawn(tasks.keep_running("clock steps", log_steps));
}

/// A detector of the steps of a clock.
struct StepDetector<C> {
    clock: C,
    known_us: i64,
}

impl<C: Clock> StepDetector<C> {
    fn new(clock: C) -> Self {
        Self { known_us: clock.wall_clock_steps_us(), clock }
    }

    /// Returns the length of the step since the last call, in seconds; negative for a step back.
    fn next_step_s(&mut self) -> Option<f64> {
        // The time is read, because a clock measures steps only when it is read.
        self.clock.now();
        let known_us = std::mem::replace(&mut self.known_us, self.clock.wall_clock_steps_us());
        let step_us = self.known_us - known_us;
        (step_us != 0).then_some(step_us as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use slidegate::Timestamp;

    use super::*;

    #[derive(Default)]
    struct SteppingClock(AtomicI64);

    impl Clock for SteppingClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_secs(1_750_000_000)
        }

        fn wall_clock_steps_us(&self) -> i64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn each_step_is_reported_once() {
        let clock = Arc::new(SteppingClock::default());
        let mut detector = StepDetector::new(clock.clone());
        assert_eq!(detector.next_step_s(), None);
        clock.0.store(18_000_000_000, Ordering::Relaxed);
        assert_eq!((detector.next_step_s(), detector.next_step_s()), (Some(18_000.0), None));
        clock.0.store(-500_000, Ordering::Relaxed);
        assert_eq!((detector.next_step_s(), detector.next_step_s()), (Some(-18_000.5), None));
    }
}
