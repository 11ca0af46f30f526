//! The clocks of a store: the counting clock supplies the times of charges, and the clock of the machine supplies the
//! times for the circuit breaker.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use slidegate::Timestamp;
use slidegate::clock::{Clock, SystemClock};

/// The clocks of a store: the counting clock, which supplies the times of charges, and the clock of the machine.
pub struct Clocks {
    /// The clock that supplies the times of charges. `None` selects the clock of Redis.
    counting_clock: ArcSwapOption<Box<dyn Clock>>,
    machine_clock: SystemClock,
}

impl Clocks {
    pub fn new() -> Self {
        Self { counting_clock: ArcSwapOption::empty(), machine_clock: SystemClock::new() }
    }

    /// Makes the given clock the counting clock, which supplies the times of charges.
    pub fn set_counting_clock(&self, clock: impl Clock) {
        self.counting_clock.store(Some(Arc::new(Box::new(clock))));
    }

    /// Returns the current time of the counting clock, or `None` if charges get their times from the clock of Redis.
    pub fn counting_clock_now(&self) -> Option<Timestamp> {
        self.counting_clock.load().as_ref().map(|clock| clock.now())
    }

    /// Returns the current time for comparisons with the times of cached replies. The time is from the counting clock,
    /// or from the clock of this machine if charges get their times from the clock of Redis.
    pub fn local_now(&self) -> Timestamp {
        self.counting_clock_now().unwrap_or_else(|| self.machine_now())
    }

    /// Returns the wall time with which the boundaries of calendar periods are computed.
    pub fn wall_now(&self) -> Timestamp {
        self.counting_clock_now().unwrap_or_else(|| {
            let (now, step_us) = (self.machine_now(), self.machine_clock.wall_clock_steps_us());
            Timestamp::from_micros(now.as_micros().wrapping_add_signed(step_us))
        })
    }

    /// Returns the time of this machine's monotonic clock.
    pub fn machine_now(&self) -> Timestamp {
        self.machine_clock.now()
    }
}

impl Default for Clocks {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clocks").finish_non_exhaustive()
    }
}
