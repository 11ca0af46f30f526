//! The only place that reads time.
//!
//! Everything else is handed a [`Timestamp`], so tests decide what time it is.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// A moment, in whole microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The moment `seconds` seconds after the Unix epoch.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This moment and `span` more; stays at the end of time rather than wrap.
    pub fn after(self, span: Duration) -> Self {
        self.after_us(micros_up(span))
    }

    pub(crate) fn after_us(self, span_us: u64) -> Self {
        Self(self.0.saturating_add(span_us))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// Whole microseconds of a duration, rounded up.
pub(crate) fn micros_up(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// The present moment.
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// The machine's time: the wall clock at the start, and from there on a monotonic clock, so that an
/// adjusted wall clock neither opens nor closes a window.
#[derive(Clone, Debug)]
pub struct SystemClock {
    clock: quanta::Clock,
    started_raw: u64,
    started_at: u64,
}

impl SystemClock {
    /// Starts a clock at the present wall time.
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        Self { started_raw: clock.raw(), started_at: WallClock.now().0, clock }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let elapsed_ns = self.clock.delta_as_nanos(self.started_raw, self.clock.raw());
        Timestamp(self.started_at + elapsed_ns / 1_000)
    }
}

/// The machine's wall clock as it stands at this moment. For what others compare with a clock of their own:
/// dates, and counts in a store that several machines share. Within one process count by a [`SystemClock`]:
/// this one may be adjusted.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "this is the place that reads time")]
        let wall = std::time::SystemTime::now();
        // Some clocks stand before 1970.
        Timestamp(micros_up(wall.duration_since(std::time::UNIX_EPOCH).unwrap_or_default()))
    }
}

/// The machine's time for what several machines compare: a [`SystemClock`] that is set by the wall clock whenever
/// it is told to [`follow`](Self::follow). What keeps the clocks of machines together adjusts the wall clock only, and
/// to read that for each decision costs more.
#[derive(Debug)]
pub struct FollowingClock {
    clock: SystemClock,
    /// What the wall clock is ahead, in microseconds.
    ahead_us: AtomicI64,
}

impl FollowingClock {
    /// Starts a clock at the present wall time.
    pub fn new() -> Self {
        Self { clock: SystemClock::new(), ahead_us: AtomicI64::new(0) }
    }

    /// Sets it to the present wall time. It may so go back; time inside a key does not.
    pub fn follow(&self) {
        let ahead = WallClock.now().0.wrapping_sub(self.clock.now().0);
        self.ahead_us.store(ahead as i64, Ordering::Relaxed);
    }
}

impl Default for FollowingClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for FollowingClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp(self.clock.now().0.saturating_add_signed(self.ahead_us.load(Ordering::Relaxed)))
    }
}

/// A clock that stands still until it is moved. Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use slidegate::{Clock, ManualClock, Timestamp};
///
/// let clock = ManualClock::at(Timestamp::from_secs(60));
/// clock.advance(Duration::from_millis(1));
/// assert_eq!(clock.now(), Timestamp::from_micros(60_001_000));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.0)))
    }

    /// Sets the time; it may also go back.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// Moves the time on by `span`, rounded up to whole microseconds.
    pub fn advance(&self, span: Duration) {
        self.set(self.now().after(span));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}
