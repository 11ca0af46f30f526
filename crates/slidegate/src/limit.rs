//! A limit: a quota and the algorithm that enforces it.

use std::fmt;
use std::hash::Hasher;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::sliding_buckets::{self, SlidingBuckets};
use crate::algorithm::sliding_log::{self, SlidingLog};
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::algorithm::{Algorithm, Align, AnyCounter, with_counter};
use crate::clock::micros_up;
use crate::key::Key;
use crate::quota::{MAX_UNITS, Quota, QuotaError, readable, write_window};

/// A quota and the algorithm that enforces it: plain data, so that it can travel to a store.
///
/// ```
/// use slidegate::{Algorithm, Limit};
///
/// let window: Limit = "100/min".parse()?;             // the default, `sliding_window`
/// assert_eq!(window.algorithm(), Algorithm::SlidingWindow);
/// let log = Limit::new("5/min".parse()?, Algorithm::SlidingLog)?;
/// assert_eq!(log.to_string(), "5/1m sliding_log");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    counter: AnyCounter,
    shape: u64,
}

/// A limit in numbers. Time is divided into ticks: `now_us / tick_us`, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitParams {
    /// Units that fit in a window.
    pub max: u32,
    /// The burst of a token bucket; how many buckets `sliding_buckets` counts, the running one among them; 0
    /// of the others.
    pub extra: u32,
    /// The largest debt of a token bucket, in units; 0 of the others.
    pub max_debt: u32,
    /// Microseconds of a tick: for `sliding_buckets` the precision, for `fixed_window` 1.
    pub tick_us: u64,
    /// Ticks of a window.
    pub window: u64,
}

/// Why a limit cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LimitError {
    /// The quota is wrong.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// The precision is zero, finer than a microsecond, or does not divide the window.
    #[error(
        "a precision of {} does not divide the window of {window}: take the window divided by a whole number, for example by 10",
        readable(*precision)
    )]
    Precision {
        /// The precision asked for.
        precision: Duration,
        /// The window, as written.
        window: String,
    },
    /// The precision makes too many buckets.
    #[error(
        "a precision of {} makes {buckets} buckets of the window of {window}: at most {most}",
        readable(*precision),
        most = sliding_buckets::MAX_BUCKETS
    )]
    Buckets {
        /// The precision asked for.
        precision: Duration,
        /// The window, as written.
        window: String,
        /// The number of buckets that would make.
        buckets: u64,
    },
    /// The burst is over [`MAX_UNITS`].
    #[error("a burst of {0} is too large: at most {MAX_UNITS}")]
    Burst(u64),
    /// The largest debt is over [`MAX_UNITS`].
    #[error("a max_debt of {0} is too large: at most {MAX_UNITS}")]
    MaxDebt(u64),
    /// The max is too large for a log.
    #[error(
        "a max of {0} is too large for sliding_log, which keeps every charge: at most {most}; sliding_buckets has no such bound",
        most = sliding_log::MAX_ENTRIES
    )]
    LongLog(u64),
}

impl Limit {
    /// A quota under an algorithm.
    ///
    /// # Errors
    /// If the algorithm's own parameters do not go with the quota.
    pub fn new(quota: Quota, algorithm: Algorithm) -> Result<Self, LimitError> {
        let counter = match algorithm {
            Algorithm::SlidingLog if quota.max() > sliding_log::MAX_ENTRIES => {
                return Err(LimitError::LongLog(quota.max()));
            }
            Algorithm::SlidingLog => AnyCounter::SlidingLog(SlidingLog::new(&quota)),
            Algorithm::SlidingBuckets { precision } => AnyCounter::SlidingBuckets(
                SlidingBuckets::new(&quota, precision_us(&quota, precision)?),
            ),
            Algorithm::SlidingWindow => AnyCounter::SlidingWindow(SlidingWindow::new(&quota)),
            Algorithm::FixedWindow { align } => {
                AnyCounter::FixedWindow(FixedWindow::new(&quota, align))
            }
            Algorithm::TokenBucket { burst, max_debt } => {
                let burst = burst.unwrap_or(quota.max());
                if burst > MAX_UNITS {
                    return Err(LimitError::Burst(burst));
                }
                let max_debt = max_debt.unwrap_or((2 * quota.max()).min(MAX_UNITS));
                if max_debt > MAX_UNITS {
                    return Err(LimitError::MaxDebt(max_debt));
                }
                AnyCounter::TokenBucket(TokenBucket::new(&quota, burst, max_debt))
            }
        };
        Ok(Self::of_counter(counter))
    }

    /// A quota under the default algorithm, which can count any.
    pub(crate) fn of_quota(quota: Quota) -> Self {
        Self::of_counter(AnyCounter::SlidingWindow(SlidingWindow::new(&quota)))
    }

    fn of_counter(counter: AnyCounter) -> Self {
        let mut limit = Self { counter, shape: 0 };
        let mut shape = fnv::FnvHasher::default();
        shape.write(limit.shape_text().as_bytes());
        limit.shape = shape.finish();
        limit
    }

    /// A limit that nothing fits.
    pub(crate) fn denied() -> Self {
        let counter = AnyCounter::SlidingWindow(SlidingWindow::new(&Quota::of_parts(0, 1_000_000)));
        Self::of_counter(counter)
    }

    /// What each of so many instances may enforce on its own: max and burst are divided, and at least 1.
    /// What is 0 stays 0.
    pub(crate) fn share_of(&self, instances: NonZeroU32) -> Self {
        let instances = u64::from(instances.get());
        self.divided(|units| (units / instances).max(units.min(1)))
    }

    /// What the nth of so many parts has, from 0, where all of them have exactly all of it: of max and of
    /// burst, what does not divide goes to the first parts, one unit each.
    pub(crate) fn part_of(&self, nth: u32, into: NonZeroU32) -> Self {
        let (nth, into) = (u64::from(nth), u64::from(into.get()));
        self.divided(|units| units / into + u64::from(nth < units % into))
    }

    fn divided(&self, share: impl Fn(u64) -> u64) -> Self {
        let quota = self.quota();
        let quota = Quota::of_parts(share(quota.max()) as u32, quota.window_us());
        Self::of_counter(match self.counter {
            AnyCounter::SlidingLog(_) => AnyCounter::SlidingLog(SlidingLog::new(&quota)),
            AnyCounter::SlidingBuckets(counter) => {
                AnyCounter::SlidingBuckets(SlidingBuckets::new(&quota, counter.precision_us()))
            }
            AnyCounter::SlidingWindow(_) => AnyCounter::SlidingWindow(SlidingWindow::new(&quota)),
            AnyCounter::FixedWindow(counter) => {
                AnyCounter::FixedWindow(FixedWindow::new(&quota, counter.align()))
            }
            AnyCounter::TokenBucket(counter) => {
                let (burst, max_debt) = (share(counter.burst()), share(counter.max_debt()));
                AnyCounter::TokenBucket(TokenBucket::new(&quota, burst, max_debt))
            }
        })
    }

    /// The quota. Its window is the one that is counted: a window that is no whole number of ticks counts
    /// as the next longer one that is.
    pub fn quota(&self) -> Quota {
        with_counter!(self.counter, counter => counter.quota())
    }

    /// The algorithm, with its parameters.
    pub fn algorithm(&self) -> Algorithm {
        match self.counter {
            AnyCounter::SlidingLog(_) => Algorithm::SlidingLog,
            AnyCounter::SlidingBuckets(counter) => Algorithm::SlidingBuckets {
                precision: Some(Duration::from_micros(counter.precision_us())),
            },
            AnyCounter::SlidingWindow(_) => Algorithm::SlidingWindow,
            AnyCounter::FixedWindow(counter) => Algorithm::FixedWindow { align: counter.align() },
            AnyCounter::TokenBucket(counter) => {
                let (burst, max_debt) = (Some(counter.burst()), Some(counter.max_debt()));
                Algorithm::TokenBucket { burst, max_debt }
            }
        }
    }

    /// The most units that fit at once: max, or the burst of a token bucket.
    pub fn capacity(&self) -> u64 {
        match self.counter {
            AnyCounter::TokenBucket(counter) => counter.burst(),
            _ => self.quota().max(),
        }
    }

    /// The limit in numbers, for a store that counts elsewhere.
    pub fn params(&self) -> LimitParams {
        with_counter!(self.counter, counter => counter.params())
    }

    /// By how much, in microseconds, the clock of a key's counter is ahead: fixed windows begin at a phase
    /// that is a stable hash of the key.
    pub fn phase_us(&self, key: &Key<'_>) -> u64 {
        if self.has_phase() { key.stable_hash() % self.quota().window_us() } else { 0 }
    }

    /// What makes two limits count apart on the same key: the algorithm, the window, and how it is
    /// divided. Not the max, nor the burst: counts survive their change.
    pub fn shape_text(&self) -> String {
        let window = self.quota().window_text();
        match self.counter {
            AnyCounter::SlidingBuckets(counter) => {
                format!("{}:{window}:{}", self.algorithm(), write_window(counter.precision_us()))
            }
            AnyCounter::FixedWindow(counter) if counter.align() == Align::Clock => {
                format!("{}:{window}:clock", self.algorithm())
            }
            _ => format!("{}:{window}", self.algorithm()),
        }
    }

    /// FNV-1a (64 bits) of [`shape_text`](Self::shape_text): the same in every process, version and machine.
    pub fn shape(&self) -> u64 {
        self.shape
    }

    pub(crate) fn counter(&self) -> AnyCounter {
        self.counter
    }

    /// Whether its windows begin at the key's own phase.
    pub(crate) fn has_phase(&self) -> bool {
        matches!(self.counter, AnyCounter::FixedWindow(counter) if counter.align() == Align::Key)
    }
}

fn precision_us(quota: &Quota, precision: Option<Duration>) -> Result<u64, LimitError> {
    let window_us = quota.window_us();
    let precision = precision.unwrap_or(quota.window() / 10);
    let wrong = LimitError::Precision { precision, window: quota.window_text() };
    let precision_us = micros_up(precision);
    if precision_us == 0
        || Duration::from_micros(precision_us) != precision
        || !window_us.is_multiple_of(precision_us)
    {
        return Err(wrong);
    }
    match window_us / precision_us {
        buckets if buckets > sliding_buckets::MAX_BUCKETS => {
            Err(LimitError::Buckets { precision, window: quota.window_text(), buckets })
        }
        _ => Ok(precision_us),
    }
}

/// Under the default algorithm.
impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        Self::new(text.parse()?, Algorithm::default())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.quota(), self.algorithm())
    }
}

impl From<&Limit> for Limit {
    fn from(limit: &Limit) -> Self {
        *limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_divides_max_and_burst_and_nothing_else() {
        let share = |limit: &Limit, instances| limit.share_of(NonZeroU32::new(instances).unwrap());
        for algorithm in Algorithm::ALL {
            // A window that is no whole number of ticks, too.
            for quota in ["100/min", "7/d", "1/s", "0/h", "100/16777217ms"] {
                let limit = Limit::new(quota.parse().unwrap(), algorithm).unwrap();
                assert_eq!(share(&limit, 1), limit);
                for instances in [2, 3, 10, 1_000, u32::MAX] {
                    let (own, all) = (share(&limit, instances), limit.quota().max());
                    let max = (all / u64::from(instances)).max(u64::from(all > 0));
                    assert_eq!((own.quota().max(), own.capacity()), (max, max), "{limit}");
                    assert_eq!(own.quota().window(), limit.quota().window(), "{limit}");
                    assert_eq!(own.shape_text(), limit.shape_text(), "{limit}");
                }
            }
        }
        let burst = |burst| Algorithm::TokenBucket { burst: Some(burst), max_debt: None };
        let bucket = |quota: &str, units| Limit::new(quota.parse().unwrap(), burst(units)).unwrap();
        assert_eq!(share(&bucket("100/s", 50), 4), bucket("25/s", 12));
        assert_eq!(share(&bucket("100/s", 3), 4), bucket("25/s", 1));
        assert_eq!(share(&bucket("100/s", 0), 4), bucket("25/s", 0));
    }

    /// Nodes of different versions share their counts by these numbers: whoever changes one ends that.
    #[test]
    fn a_shape_is_the_same_in_every_version() {
        let shape =
            |quota: &str, algorithm| Limit::new(quota.parse().unwrap(), algorithm).unwrap().shape();
        let buckets = Algorithm::SlidingBuckets { precision: Some(Duration::from_secs(60)) };
        assert_eq!(shape("100/min", Algorithm::SlidingWindow), 0x3168_17c0_5554_feb6);
        assert_eq!(shape("100/h", buckets), 0x30b9_3f8d_6687_886c);
        assert_eq!(
            shape("100/d", Algorithm::FixedWindow { align: Align::Clock }),
            0x6430_cb58_711d_cb49
        );
    }
}
