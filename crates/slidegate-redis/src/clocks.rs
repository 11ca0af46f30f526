//! What time it is, for whom.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use slidegate::{Clock, SystemClock, Timestamp};

/// The clocks of a store.
pub struct Clocks {
    /// For counting. None is Redis's own.
    counting: ArcSwapOption<Box<dyn Clock>>,
    machine: SystemClock,
}

impl Clocks {
    pub fn new() -> Self {
        Self { counting: ArcSwapOption::empty(), machine: SystemClock::new() }
    }

    pub fn count_by(&self, clock: impl Clock) {
        self.counting.store(Some(Arc::new(Box::new(clock))));
    }

    /// The moment at which to count.
    pub fn counting(&self) -> Option<Timestamp> {
        self.counting.load().as_ref().map(|clock| clock.now())
    }

    /// The moment here, for what is known of counts: by the clock of counting, if it is not Redis's own.
    pub fn here(&self) -> Timestamp {
        self.counting().unwrap_or_else(|| self.machine())
    }

    /// The moment by the clock of this machine, which never runs back.
    pub fn machine(&self) -> Timestamp {
        self.machine.now()
    }
}

impl fmt::Debug for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clocks").finish_non_exhaustive()
    }
}
