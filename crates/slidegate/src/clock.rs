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

/// The time of the machine. It starts at the wall clock's time and continues by the processor's counter, which is cheaper
/// to read. The counter drifts by about 20 µs per second, so the clock is corrected towards the wall clock, by at most
/// 500 µs per second. Thus calendar windows stay on the calendar, and an adjustment of the wall clock by a minute neither
/// opens nor closes a window. A correction may set the clock back by up to 25 µs.
#[derive(Clone, Debug)]
pub struct SystemClock(Slewed<WallClock>);

impl SystemClock {
    /// Starts a clock at the present wall time.
    pub fn new() -> Self {
        Self(Slewed::new(quanta::Clock::new(), WallClock))
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
        self.0.now()
    }
}

/// A cheap clock that is slowly corrected towards another clock.
#[derive(Debug)]
struct Slewed<W> {
    clock: quanta::Clock,
    wall: W,
    started_raw: u64,
    started_at: u64,
    /// When the wall clock was read last, in microseconds since the start.
    set_at_us: AtomicU64,
    /// The correction of the cheap clock, in microseconds.
    ahead_us: AtomicI64,
}

/// Microseconds between two readings of the wall clock.
const SET_EVERY_US: u64 = 50_000;

/// Microseconds per microsecond of correction, at least.
const MIN_US_PER_SLEW: u64 = 2_000;

impl<W: Clock> Slewed<W> {
    fn new(clock: quanta::Clock, wall: W) -> Self {
        let (started_raw, started_at) = (clock.raw(), wall.now().0);
        let (set_at_us, ahead_us) = (AtomicU64::new(0), AtomicI64::new(0));
        Self { clock, wall, started_raw, started_at, set_at_us, ahead_us }
    }

    #[inline]
    fn now(&self) -> Timestamp {
        let elapsed_us = self.clock.delta_as_nanos(self.started_raw, self.clock.raw()) / 1_000;
        let set_at_us = self.set_at_us.load(Ordering::Relaxed);
        if elapsed_us >= set_at_us + SET_EVERY_US {
            self.set(elapsed_us, set_at_us);
        }
        self.at(elapsed_us)
    }

    fn at(&self, elapsed_us: u64) -> Timestamp {
        let own = self.started_at + elapsed_us;
        Timestamp(own.saturating_add_signed(self.ahead_us.load(Ordering::Relaxed)))
    }

    #[cold]
    fn set(&self, elapsed_us: u64, set_at_us: u64) {
        let (relaxed, wall) = (Ordering::Relaxed, self.wall.now().0);
        if self.set_at_us.compare_exchange(set_at_us, elapsed_us, relaxed, relaxed).is_err() {
            return;
        }
        let most = i64::try_from((elapsed_us - set_at_us) / MIN_US_PER_SLEW).unwrap_or(i64::MAX);
        let behind = wall.wrapping_sub(self.at(elapsed_us).0) as i64;
        self.ahead_us.fetch_add(behind.clamp(-most, most), relaxed);
    }
}

impl<W: Clone> Clone for Slewed<W> {
    fn clone(&self) -> Self {
        let Self { clock, wall, started_raw, started_at, set_at_us, ahead_us } = self;
        Self {
            clock: clock.clone(),
            wall: wall.clone(),
            started_raw: *started_raw,
            started_at: *started_at,
            set_at_us: AtomicU64::new(set_at_us.load(Ordering::Relaxed)),
            ahead_us: AtomicI64::new(ahead_us.load(Ordering::Relaxed)),
        }
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
pub struct DriftCorrectedClock {
    clock: SystemClock,
    /// What the wall clock is ahead, in microseconds.
    ahead_us: AtomicI64,
}

impl DriftCorrectedClock {
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

impl Default for DriftCorrectedClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for DriftCorrectedClock {
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

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_750_000_020);
    const MONTH_S: u64 = 30 * 86_400;

    /// Advances both clocks. The cheap one is too fast by `ppm` millionths.
    fn advance(mock: &quanta::Mock, wall: &ManualClock, by: Duration, ppm: i64) {
        wall.advance(by);
        let drift_ns = by.as_micros() as i64 * ppm / 1_000;
        mock.increment((by.as_nanos() as u64).wrapping_add_signed(drift_ns));
    }

    #[test]
    fn a_clock_whose_counter_drifts_stays_on_the_calendar_for_a_month() {
        for ppm in [18, -18, 200, -200] {
            for every_s in [1, 3_600] {
                let (clock, mock) = quanta::Clock::mock();
                let wall = ManualClock::at(START);
                let slewed = Slewed::new(clock, wall.clone());
                for _ in 0..MONTH_S.min(100_000 * every_s) / every_s {
                    advance(&mock, &wall, Duration::from_secs(every_s), ppm);
                    let apart = slewed.now().0.abs_diff(wall.now().0);
                    assert!(apart <= 1, "{ppm} ppm, asked every {every_s} s: {apart} µs apart");
                }
            }
        }
    }

    #[test]
    fn an_adjusted_wall_clock_is_followed_slowly() {
        for step_s in [3_600, -3_600] {
            let (clock, mock) = quanta::Clock::mock();
            let wall = ManualClock::at(START);
            let slewed = Slewed::new(clock, wall.clone());
            let stepped = START.0.saturating_add_signed(1_000_000 * step_s);
            wall.set(Timestamp(stepped));
            let mut last = slewed.now().0;
            for _ in 0..100_000 {
                advance(&mock, &wall, Duration::from_millis(10), 0);
                let now = slewed.now().0;
                let went = now as i64 - last as i64;
                assert!((10_000 - 25..=10_000 + 25).contains(&went), "{went} µs in 10 ms");
                last = now;
            }
            let apart = last.abs_diff(wall.now().0);
            assert!(apart.abs_diff(3_600_000_000 - 500_000) < 1_000, "{apart}");
        }
    }
}
