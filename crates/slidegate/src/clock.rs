//! Clocks, which are the source of time for stores, and [`Timestamp`].
//!
//! | clock | use |
//! |---|---|
//! | [`SystemClock`] | the default of a store in memory |
//! | `CoarseClock` | cheaper to read, precise to a tick of the Linux kernel; needs the feature `coarse-clock` |
//! | [`WallClock`], [`DriftCorrectedClock`] | times that several machines compare |
//! | [`ManualClock`] | tests, which set the time |

// Only this module reads the current time; clippy forbids it in other modules. All other code receives a `Timestamp` or
// a `Clock`, so that tests control the time.

#[cfg(all(feature = "coarse-clock", target_os = "linux"))]
mod coarse;
mod corrected;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[cfg(all(feature = "coarse-clock", target_os = "linux"))]
pub use coarse::CoarseClock;
pub(crate) use corrected::{CorrectedClock, ProcessorClock};

/// A point in time, in whole microseconds since the Unix epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Creates a timestamp from microseconds since the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Creates a timestamp from seconds since the Unix epoch.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// Returns the microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the timestamp that is later by `duration`, rounded up to whole microseconds. Saturates instead of
    /// overflowing.
    pub fn after(self, duration: Duration) -> Self {
        self.after_us(ceil_micros(duration))
    }

    pub(crate) fn after_us(self, duration_us: u64) -> Self {
        Self(self.0.saturating_add(duration_us))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// Returns the whole microseconds of a duration, rounded up.
pub(crate) fn ceil_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// A source of the current time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;

    /// Returns the sum of the steps of the wall clock since this clock was created, in microseconds: it is negative if
    /// the wall clock was set back. It is 0 for a clock that follows all steps.
    ///
    /// Calendar periods and windows aligned to the clock follow the wall clock, which is ahead of this clock by the
    /// steps.
    fn wall_clock_steps_us(&self) -> i64 {
        0
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn wall_clock_steps_us(&self) -> i64 {
        (**self).wall_clock_steps_us()
    }
}

/// The default clock.
///
/// It starts at the time of the wall clock and advances with the processor's counter, which is cheaper to read than the
/// wall clock. The counter drifts by about 20 µs per second, so the clock is corrected towards the wall clock, by at
/// most 500 µs per second. A correction may set the clock back by up to 25 µs.
///
/// If the wall clock differs by more than half a second, it has stepped: time synchronization has set it, or the
/// machine was suspended. The clock does not follow a step, so a step neither opens nor closes a rolling window.
/// Calendar periods and windows aligned to the clock [follow it](Clock::wall_clock_steps_us).
#[derive(Clone, Debug)]
pub struct SystemClock(CorrectedClock<ProcessorClock, WallClock>);

impl SystemClock {
    /// Creates a clock that starts at the current wall time.
    pub fn new() -> Self {
        Self(CorrectedClock::new(ProcessorClock::new(quanta::Clock::new()), WallClock))
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn wall_clock_steps_us(&self) -> i64 {
        self.0.wall_clock_steps_us()
    }
}

/// The wall clock of the machine, for times that other machines compare with their own clocks: dates, and counters in a
/// store that several machines share.
///
/// Within one process use a [`SystemClock`], because an adjustment of the wall clock opens or closes windows.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        #[expect(
            clippy::disallowed_methods,
            reason = "this module is the only one that reads time"
        )]
        let wall = std::time::SystemTime::now();
        // A misconfigured wall clock may show a time before 1970, which becomes the Unix epoch.
        Timestamp(ceil_micros(wall.duration_since(std::time::UNIX_EPOCH).unwrap_or_default()))
    }
}

/// A clock for times that several machines compare: a [`SystemClock`] that is set to the wall clock by each call of
/// [`sync_with_wall_clock`](Self::sync_with_wall_clock).
///
/// Clock synchronization such as NTP adjusts only the wall clock, but reading the wall clock for each decision costs
/// more than reading this clock.
#[derive(Debug)]
pub struct DriftCorrectedClock {
    clock: SystemClock,
    /// The number of microseconds by which the wall clock was ahead of the system clock at the last call of
    /// [`sync_with_wall_clock`](Self::sync_with_wall_clock).
    ahead_us: AtomicI64,
}

impl DriftCorrectedClock {
    /// Creates a clock that starts at the current wall time.
    pub fn new() -> Self {
        Self { clock: SystemClock::new(), ahead_us: AtomicI64::new(0) }
    }

    /// Sets the clock to the current wall time, which may be earlier than the clock's time.
    pub fn sync_with_wall_clock(&self) {
        let ahead = WallClock.now().0.wrapping_sub(self.clock.now().0);
        self.ahead_us.store(ahead as i64, Ordering::Relaxed);
    }
}

impl Default for DriftCorrectedClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for DriftCorrectedClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.clock.now().0.saturating_add_signed(self.ahead_us.load(Ordering::Relaxed)))
    }
}

/// A clock that changes only when it is set or advanced. Clones share their time.
///
/// ```
/// use std::time::Duration;
/// use slidegate::{ManualClock, Timestamp};
/// use slidegate::clock::Clock;
///
/// let clock = ManualClock::at(Timestamp::from_secs(60));
/// clock.advance(Duration::from_millis(1));
/// assert_eq!(clock.now(), Timestamp::from_micros(60_001_000));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Creates a clock whose time is `now` until it is set or advanced.
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.0)))
    }

    /// Sets the time, which may be earlier than the present time of the clock.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// Advances the time by `duration`, rounded up to whole microseconds.
    pub fn advance(&self, duration: Duration) {
        self.set(self.now().after(duration));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}
