//! Clocks. Only this module reads the current time; clippy forbids it in other modules.
//!
//! All other code receives a [`Timestamp`] or a [`Clock`], so that tests control the time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// A point in time, in whole microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// The default clock. It starts at the time of the wall clock and advances with the processor's counter, which is
/// cheaper to read. The counter drifts by about 20 µs per second, so the clock is corrected towards the wall clock, by
/// at most 500 µs per second. Calendar windows therefore begin at the right time, and an adjustment of the wall clock
/// by a minute neither opens nor closes a window. A correction may set the clock back by up to 25 µs.
#[derive(Clone, Debug)]
pub struct SystemClock(CorrectedClock<WallClock>);

impl SystemClock {
    /// Creates a clock that starts at the current wall time.
    pub fn new() -> Self {
        Self(CorrectedClock::new(quanta::Clock::new(), WallClock))
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

/// A fast clock that is slowly corrected towards a wall clock.
#[derive(Debug)]
struct CorrectedClock<W> {
    fast_clock: quanta::Clock,
    wall_clock: W,
    /// The counter value of the fast clock when the corrected clock was created.
    start_raw: u64,
    /// The time of the wall clock when the corrected clock was created, in microseconds since the Unix epoch.
    start_us: u64,
    /// The time of the last correction, in microseconds since the corrected clock was created.
    corrected_at_us: AtomicU64,
    /// The sum of all corrections, in microseconds, which is added to the time of the fast clock.
    correction_us: AtomicI64,
}

/// The interval between two corrections, in microseconds.
const CORRECTION_INTERVAL_US: u64 = 50_000;

/// The minimum number of microseconds that must pass for each microsecond of correction.
const MIN_ELAPSED_US_PER_CORRECTED_US: u64 = 2_000;

impl<W: Clock> CorrectedClock<W> {
    fn new(fast_clock: quanta::Clock, wall_clock: W) -> Self {
        let (start_raw, start_us) = (fast_clock.raw(), wall_clock.now().0);
        let (corrected_at_us, correction_us) = (AtomicU64::new(0), AtomicI64::new(0));
        Self { fast_clock, wall_clock, start_raw, start_us, corrected_at_us, correction_us }
    }

    #[inline]
    fn now(&self) -> Timestamp {
        let elapsed_us =
            self.fast_clock.delta_as_nanos(self.start_raw, self.fast_clock.raw()) / 1_000;
        let corrected_at_us = self.corrected_at_us.load(Ordering::Relaxed);
        if elapsed_us >= corrected_at_us + CORRECTION_INTERVAL_US {
            self.correct_towards_wall_clock(elapsed_us, corrected_at_us);
        }
        self.corrected_time(elapsed_us)
    }

    fn corrected_time(&self, elapsed_us: u64) -> Timestamp {
        let uncorrected_us = self.start_us + elapsed_us;
        let correction_us = self.correction_us.load(Ordering::Relaxed);
        Timestamp(uncorrected_us.saturating_add_signed(correction_us))
    }

    #[cold]
    fn correct_towards_wall_clock(&self, elapsed_us: u64, corrected_at_us: u64) {
        let (relaxed, wall_us) = (Ordering::Relaxed, self.wall_clock.now().0);
        let exchanged =
            self.corrected_at_us.compare_exchange(corrected_at_us, elapsed_us, relaxed, relaxed);
        if exchanged.is_err() {
            return;
        }
        let max_us =
            i64::try_from((elapsed_us - corrected_at_us) / MIN_ELAPSED_US_PER_CORRECTED_US)
                .unwrap_or(i64::MAX);
        let behind_us = wall_us.wrapping_sub(self.corrected_time(elapsed_us).0) as i64;
        self.correction_us.fetch_add(behind_us.clamp(-max_us, max_us), relaxed);
    }
}

impl<W: Clone> Clone for CorrectedClock<W> {
    fn clone(&self) -> Self {
        Self {
            fast_clock: self.fast_clock.clone(),
            wall_clock: self.wall_clock.clone(),
            start_raw: self.start_raw,
            start_us: self.start_us,
            corrected_at_us: AtomicU64::new(self.corrected_at_us.load(Ordering::Relaxed)),
            correction_us: AtomicI64::new(self.correction_us.load(Ordering::Relaxed)),
        }
    }
}

/// The wall clock of the machine, for times that other machines compare with their own clocks: dates, and counters in a
/// store that several machines share. Within one process use a [`SystemClock`], since the wall clock may be adjusted.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        #[expect(
            clippy::disallowed_methods,
            reason = "this module is the only one that reads time"
        )]
        let wall = std::time::SystemTime::now();
        // A misconfigured wall clock may show a time before 1970.
        Timestamp(ceil_micros(wall.duration_since(std::time::UNIX_EPOCH).unwrap_or_default()))
    }
}

/// A clock for times that several machines compare: a [`SystemClock`] that is set to the wall clock by each call of
/// [`sync_with_wall_clock`](Self::sync_with_wall_clock). Clock synchronization such as NTP adjusts only the wall clock,
/// but a wall clock that is read for each decision costs more.
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

    /// Sets the clock to the current wall time, which may be earlier than the clock's time. A counter treats a time
    /// before its last charge as the time of that charge.
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
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp(self.clock.now().0.saturating_add_signed(self.ahead_us.load(Ordering::Relaxed)))
    }
}

/// A clock that changes only when it is set or advanced. Clones share their time.
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

#[cfg(test)]
mod tests {
    use super::*;

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
                let slewed = CorrectedClock::new(clock, wall.clone());
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
    fn wall_clock_adjustment_is_followed_slowly() {
        for step_s in [3_600, -3_600] {
            let (clock, mock) = quanta::Clock::mock();
            let wall = ManualClock::at(START_TIME);
            let slewed = CorrectedClock::new(clock, wall.clone());
            let stepped = START_TIME.0.saturating_add_signed(1_000_000 * step_s);
            wall.set(Timestamp(stepped));
            let mut last = slewed.now().0;
            for _ in 0..100_000 {
                advance_clocks_with_drift(&mock, &wall, Duration::from_millis(10), 0);
                let now = slewed.now().0;
                let elapsed = now as i64 - last as i64;
                assert!((10_000 - 25..=10_000 + 25).contains(&elapsed), "{elapsed} µs in 10 ms");
                last = now;
            }
            let difference = last.abs_diff(wall.now().0);
            assert!(difference.abs_diff(3_600_000_000 - 500_000) < 1_000, "{difference}");
        }
    }
}
