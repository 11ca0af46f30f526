//! Limits: a [`Quota`], such as 100 units per minute, with the [algorithm](crate::Algorithm) that enforces it.
//!
//! A [`Limit`] is parsed from text such as `100/min`, or created from a quota and an algorithm. The module also has the
//! errors of limits and quotas, the largest and smallest quotas, and, with the feature `calendar`, the periods of
//! calendar limits.

mod error;
mod serialized;
mod share;

use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;
use std::time::Duration;

use crate::algorithm::Counter;
use crate::algorithm::concurrent::{self, Concurrent};
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::sliding_buckets::{self, SlidingBuckets};
use crate::algorithm::sliding_counter::SlidingCounter;
use crate::algorithm::sliding_log::{self, SlidingLog};
use crate::algorithm::sliding_window::{self, SlidingWindow};
use crate::algorithm::token_bucket::TokenBucket;
use crate::algorithm::{Algorithm, Align, AnyAdditive, AnyCounter, LimitParams, with_counter};
#[cfg(feature = "calendar")]
use crate::calendar::PeriodBoundary;
use crate::clock::{Timestamp, ceil_micros};
use crate::key::Key;
use crate::outcome::Outcome;
use crate::quota::format_window;

#[cfg(feature = "calendar")]
pub use crate::calendar::{Calendar, CalendarError, Period, Weekday};
pub use crate::quota::{MAX_SMALL_UNITS, MAX_UNITS, MAX_WINDOW, MIN_WINDOW, Quota, QuotaError};
pub use error::LimitError;

/// A quota with the algorithm that enforces it. Plain data, so that it can be sent to a store.
///
/// ```
/// use slidegate::{Algorithm, Limit};
///
/// let window: Limit = "100/min".parse()?;             // the default algorithm, `sliding_window`
/// assert_eq!(window.algorithm(), Algorithm::SlidingWindow { resolution: Some(32) });
/// let log = Limit::new("5/min".parse()?, Algorithm::SlidingLog)?;
/// assert_eq!(log.to_string(), "5/1m sliding_log");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    counter: AnyCounter,
    shape: u64,
}

impl Limit {
    /// Creates a limit from a quota and an algorithm.
    ///
    /// # Errors
    /// If the parameters of the algorithm are invalid or do not match the quota.
    pub fn new(quota: Quota, algorithm: Algorithm) -> Result<Self, LimitError> {
        let multiplies_counts =
            matches!(algorithm, Algorithm::SlidingCounter | Algorithm::TokenBucket { .. });
        if multiplies_counts && quota.max() > MAX_SMALL_UNITS {
            return Err(LimitError::MaxOfProduct { algorithm: algorithm.name(), max: quota.max() });
        }
        let counter = match algorithm {
            Algorithm::SlidingWindow { resolution } => {
                let resolution = resolution.unwrap_or(sliding_window::DEFAULT_RESOLUTION);
                if !sliding_window::RESOLUTIONS.contains(&resolution) {
                    return Err(LimitError::Resolution(resolution.into()));
                }
                AnyCounter::SlidingWindow(SlidingWindow::new(&quota, resolution))
            }
            Algorithm::SlidingLog if quota.max() > sliding_log::MAX_LOG_UNITS => {
                return Err(LimitError::LogTooLong(quota.max()));
            }
            Algorithm::SlidingLog => AnyCounter::SlidingLog(SlidingLog::new(&quota)),
            Algorithm::SlidingBuckets { precision } => AnyCounter::SlidingBuckets(
                SlidingBuckets::new(&quota, checked_precision_us(&quota, precision)?),
            ),
            Algorithm::SlidingCounter => AnyCounter::SlidingCounter(SlidingCounter::new(&quota)),
            #[cfg(feature = "calendar")]
            Algorithm::FixedWindow { align: Align::Calendar(calendar) } => {
                if quota.window_us() != calendar.period().max_length_us() {
                    return Err(LimitError::CalendarWindow(calendar));
                }
                AnyCounter::FixedWindow(FixedWindow::new(&quota, Align::Calendar(calendar)))
            }
            Algorithm::FixedWindow { align } => {
                AnyCounter::FixedWindow(FixedWindow::new(&quota, align))
            }
            Algorithm::TokenBucket { burst, max_debt } => {
                let burst = burst.unwrap_or(quota.max());
                if burst > MAX_SMALL_UNITS {
                    return Err(LimitError::Burst(burst));
                }
                let max_debt = max_debt.unwrap_or((2 * quota.max()).min(MAX_SMALL_UNITS));
                if max_debt > MAX_SMALL_UNITS {
                    return Err(LimitError::MaxDebt(max_debt));
                }
                AnyCounter::TokenBucket(TokenBucket::new(&quota, burst, max_debt))
            }
            Algorithm::Concurrent if quota.max() > concurrent::MAX_PERMITS => {
                return Err(LimitError::TooManyPermits(quota.max()));
            }
            Algorithm::Concurrent => AnyCounter::Concurrent(Concurrent::new(&quota)),
        };
        Ok(Self::from_counter(counter))
    }

    /// Creates a limit of `max` units in each period of a calendar, such as a month in a time zone. The algorithm is
    /// `fixed_window`: the count begins again with each period, and the `retry_after` of a denial is the start of the
    /// next one.
    ///
    /// ```
    /// use slidegate::{Calendar, Limit, Limiter, Period};
    ///
    /// let calendar = Calendar::new(Period::Month).with_time_zone("Europe/Berlin")?;
    /// let budget = Limit::calendar(10_000, calendar)?;
    /// assert_eq!(budget.to_string(), "10000/month Europe/Berlin fixed_window");
    /// let limiter = Limiter::new([budget, Limit::calendar(1_000, Period::Day)?])?;
    /// assert!(limiter.check("acme").is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If `max` exceeds [`MAX_UNITS`].
    #[cfg(feature = "calendar")]
    pub fn calendar(max: u64, calendar: impl Into<Calendar>) -> Result<Self, LimitError> {
        if max > MAX_UNITS {
            return Err(QuotaError::TooMany(max).into());
        }
        let calendar = calendar.into();
        let quota = Quota::from_parts(max, calendar.period().max_length_us());
        let counter = FixedWindow::new(&quota, Align::Calendar(calendar));
        Ok(Self::from_counter(AnyCounter::FixedWindow(counter)))
    }

    /// Creates a limit of `max` requests in flight. Each admitted request gets a permit, which is live until it is
    /// released, or until `permit_ttl` has passed since it was created or renewed. So the permit of a holder that dies
    /// becomes free. A `Gate` creates permits; a limiter rejects this limit.
    ///
    /// ```
    /// use slidegate::Limit;
    /// use std::time::Duration;
    ///
    /// let limit = Limit::concurrent(20, Duration::from_secs(60))?;
    /// assert_eq!(limit.to_string(), "20 concurrent, permit_ttl 1m");
    /// # Ok::<(), slidegate::limit::LimitError>(())
    /// ```
    ///
    /// # Errors
    /// If `max` exceeds 10,000, or `permit_ttl` is not a valid window.
    pub fn concurrent(max: u64, permit_ttl: Duration) -> Result<Self, LimitError> {
        Self::new(Quota::new(max, permit_ttl)?, Algorithm::Concurrent)
    }

    /// Returns whether the limit bounds the requests in flight, so that its charges are permits. See
    /// [`concurrent`](Self::concurrent).
    pub fn is_concurrent(&self) -> bool {
        matches!(self.counter, AnyCounter::Concurrent(_))
    }

    /// Creates a limit with the default algorithm, which supports all quotas.
    #[cfg(feature = "policy")]
    pub(crate) fn from_quota(quota: Quota) -> Self {
        let resolution = sliding_window::DEFAULT_RESOLUTION;
        Self::from_counter(AnyCounter::SlidingWindow(SlidingWindow::new(&quota, resolution)))
    }

    fn from_counter(counter: AnyCounter) -> Self {
        let mut limit = Self { counter, shape: 0 };
        let mut shape = fnv::FnvHasher::default();
        shape.write(limit.counter_shape_text().as_bytes());
        limit.shape = shape.finish();
        limit
    }

    /// Creates a limit with a max of 0, which denies everything.
    pub(crate) fn deny_all() -> Self {
        let (quota, resolution) =
            (Quota::from_parts(0, 1_000_000), sliding_window::DEFAULT_RESOLUTION);
        let counter = AnyCounter::SlidingWindow(SlidingWindow::new(&quota, resolution));
        Self::from_counter(counter)
    }

    /// Returns the quota. Its window is the window that is enforced, which is rounded up to a whole number of ticks;
    /// for a [calendar limit](Self::calendar) the longest period, for example 31 days for a month; for [requests in
    /// flight](Self::concurrent) the time to live of a permit.
    pub fn quota(&self) -> Quota {
        with_counter!(self.counter, counter => counter.quota())
    }

    /// Returns the length of the window: the window of the [quota](Self::quota), or the length of the current period of
    /// a [calendar limit](Self::calendar), which is the period of the latest decision with this calendar in the
    /// process.
    pub fn window(&self) -> Duration {
        #[cfg(feature = "calendar")]
        if let Some(calendar) = self.calendar_periods() {
            return calendar.latest_period_length();
        }
        self.quota().window()
    }

    /// Returns the window in policy notation, such as `15m`, or the name of the period of a calendar limit, such as
    /// `month`.
    pub fn window_text(&self) -> String {
        #[cfg(feature = "calendar")]
        if let Some(calendar) = self.calendar_periods() {
            return calendar.period().name().to_owned();
        }
        self.quota().window_text()
    }

    /// Returns the calendar of a [calendar limit](Self::calendar); `None` for other limits.
    #[cfg(feature = "calendar")]
    pub fn calendar_periods(&self) -> Option<Calendar> {
        match self.counter {
            AnyCounter::FixedWindow(counter) => match counter.align() {
                Align::Calendar(calendar) => Some(calendar),
                Align::Key | Align::Clock => None,
            },
            _ => None,
        }
    }

    /// Returns whether the length of the [window](Self::window) changes with time, which is the case for a [calendar
    /// limit](Self::calendar).
    pub fn has_varying_window(&self) -> bool {
        #[cfg(feature = "calendar")]
        return self.calendar_periods().is_some();
        #[cfg(not(feature = "calendar"))]
        false
    }

    /// Returns the algorithm with its parameters.
    pub fn algorithm(&self) -> Algorithm {
        match self.counter {
            AnyCounter::SlidingLog(_) => Algorithm::SlidingLog,
            AnyCounter::SlidingBuckets(counter) => Algorithm::SlidingBuckets {
                precision: Some(Duration::from_micros(counter.precision_us())),
            },
            AnyCounter::SlidingWindow(counter) => {
                Algorithm::SlidingWindow { resolution: Some(counter.resolution()) }
            }
            AnyCounter::SlidingCounter(_) => Algorithm::SlidingCounter,
            AnyCounter::FixedWindow(counter) => Algorithm::FixedWindow { align: counter.align() },
            AnyCounter::TokenBucket(counter) => {
                let (burst, max_debt) = (Some(counter.burst()), Some(counter.max_debt()));
                Algorithm::TokenBucket { burst, max_debt }
            }
            AnyCounter::Concurrent(_) => Algorithm::Concurrent,
        }
    }

    /// Returns the largest number of units that fit at once: max, or the burst of a token bucket. With a max of 0
    /// nothing fits, regardless of the burst.
    pub fn capacity(&self) -> u64 {
        if self.quota().max() == 0 {
            return 0;
        }
        with_counter!(self.counter, counter => counter.capacity())
    }

    /// Returns the outcome of a hit that requires one unit of a counter that has no units in use.
    pub fn outcome_if_unused(&self) -> Outcome {
        fn peek_unused<C: Counter>(counter: C) -> Outcome {
            counter.peek(&C::State::default(), Timestamp::from_micros(0), 1)
        }
        with_counter!(self.counter, counter => peek_unused(counter))
    }

    /// Returns the length of a tick if the algorithm rounds the time of a charge up to a tick, so that a unit can be
    /// counted up to a tick longer than the window; zero for the other algorithms.
    pub(crate) fn charge_rounding(&self) -> Duration {
        match self.counter {
            AnyCounter::SlidingWindow(_) | AnyCounter::SlidingLog(_) => {
                Duration::from_micros(self.params().tick_us)
            }
            _ => Duration::ZERO,
        }
    }

    /// Returns the parameters as numbers, for a remote store.
    pub fn params(&self) -> LimitParams {
        with_counter!(self.counter, counter => counter.limit_params())
    }

    /// Returns the parameters as numbers, with which a remote store decides a hit of a key, and the phase of the key.
    /// For a calendar limit they depend on the time, for which `now` is called: they describe the boundary between two
    /// periods that is nearest to `now`, so that the remote store finds the phase at its own time, if its clock differs
    /// by less than half a period.
    pub fn params_and_phase_us(
        &self,
        key: &Key<'_>,
        now: impl FnOnce() -> Timestamp,
    ) -> (LimitParams, u64) {
        #[cfg(feature = "calendar")]
        if let Some(calendar) = self.calendar_periods() {
            let PeriodBoundary { phase_us, window, phase_step_s } =
                calendar.nearest_boundary(now());
            // With a tick length of 0, a remote store keeps a state only until the end of the period, and no window
            // longer.
            let params =
                LimitParams { extra: window, max_debt: phase_step_s, tick_us: 0, ..self.params() };
            return (params, phase_us);
        }
        // Only the phase of a calendar limit depends on the time, so `now` need not be called.
        let _ = now;
        (self.params(), self.phase_us(key, Timestamp::default()))
    }

    /// Returns the counter of this limit if its algorithm is additive (the states of several nodes can be added);
    /// otherwise `None`.
    pub fn additive(&self) -> Option<AnyAdditive> {
        match self.counter {
            AnyCounter::SlidingWindow(counter) => {
                Some(AnyAdditive::SlidingBuckets(counter.to_sliding_buckets()))
            }
            AnyCounter::SlidingCounter(counter) => Some(AnyAdditive::SlidingCounter(counter)),
            AnyCounter::SlidingBuckets(counter) => Some(AnyAdditive::SlidingBuckets(counter)),
            AnyCounter::FixedWindow(counter) => Some(AnyAdditive::FixedWindow(counter)),
            AnyCounter::SlidingLog(_) | AnyCounter::TokenBucket(_) | AnyCounter::Concurrent(_) => {
                None
            }
        }
    }

    /// Returns the properties that separate the counters of two limits on the same key: the algorithm, the window, and
    /// its precision, alignment or calendar. For [requests in flight](Self::concurrent), the window is not included.
    /// Max and burst are not included, so that counts survive a change of max or burst.
    pub fn counter_shape_text(&self) -> String {
        let window = self.quota().window_text();
        match self.counter {
            AnyCounter::SlidingBuckets(counter) => {
                format!("{}:{window}:{}", self.algorithm(), format_window(counter.precision_us()))
            }
            AnyCounter::FixedWindow(counter) => match counter.align() {
                Align::Key => format!("{}:{window}", self.algorithm()),
                Align::Clock => format!("{}:{window}:clock", self.algorithm()),
                #[cfg(feature = "calendar")]
                Align::Calendar(calendar) => format!("{}:{calendar}", self.algorithm()),
            },
            // The time to live of a permit is not included, so that permits stay in use if the policy changes it.
            AnyCounter::Concurrent(_) => self.algorithm().name().to_owned(),
            _ => format!("{}:{window}", self.algorithm()),
        }
    }

    /// Returns the 64-bit FNV-1a hash of [`counter_shape_text`](Self::counter_shape_text). The hash is the same in
    /// every process, version and machine.
    pub fn shape(&self) -> u64 {
        self.shape
    }

    /// Returns the [`shape`](Self::shape) of the limit's counters on the nodes of a cluster. There, the shape of a
    /// `sliding_window` also depends on the resolution, because the nodes count it in buckets of window / resolution.
    pub fn cluster_counter_shape(&self) -> u64 {
        match self.counter {
            AnyCounter::SlidingWindow(counter) => {
                self.shape ^ u64::from(counter.resolution()).rotate_right(16)
            }
            _ => self.shape,
        }
    }

    pub(crate) fn counter(&self) -> AnyCounter {
        self.counter
    }

    pub(crate) fn counter_ref(&self) -> &AnyCounter {
        &self.counter
    }

    /// Returns whether the windows begin at an offset that depends on the key (the phase).
    pub(crate) fn has_per_key_window_offset(&self) -> bool {
        matches!(self.counter, AnyCounter::FixedWindow(counter) if counter.align() == Align::Key)
    }
}

/// Returns the precision in microseconds, by default a tenth of the window.
fn checked_precision_us(quota: &Quota, precision: Option<Duration>) -> Result<u64, LimitError> {
    let window_us = quota.window_us();
    let precision = precision.unwrap_or(quota.window() / 10);
    let error = LimitError::Precision { precision, window: quota.window_text() };
    let precision_us = ceil_micros(precision);
    if precision_us == 0
        || Duration::from_micros(precision_us) != precision
        || !window_us.is_multiple_of(precision_us)
    {
        return Err(error);
    }
    match window_us / precision_us {
        buckets if buckets > sliding_buckets::MAX_BUCKETS => {
            Err(LimitError::Buckets { precision, window: quota.window_text(), buckets })
        }
        _ => Ok(precision_us),
    }
}

/// Parses a quota, and creates a limit with the default algorithm.
impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        Self::new(text.parse()?, Algorithm::default())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(feature = "calendar")]
        if let Some(calendar) = self.calendar_periods() {
            return write!(f, "{}/{calendar} {}", self.quota().max(), self.algorithm());
        }
        if self.is_concurrent() {
            let quota = self.quota();
            let ttl = quota.window_text();
            return write!(f, "{} {}, permit_ttl {ttl}", quota.max(), self.algorithm());
        }
        write!(f, "{} {}", self.quota(), self.algorithm())?;
        match self.counter {
            AnyCounter::SlidingWindow(counter)
                if counter.resolution() != sliding_window::DEFAULT_RESOLUTION =>
            {
                write!(f, " with resolution {}", counter.resolution())
            }
            _ => Ok(()),
        }
    }
}

impl From<&Limit> for Limit {
    fn from(limit: &Limit) -> Self {
        *limit
    }
}

#[cfg(test)]
mod tests;
