//! The error for invalid limits.

use std::time::Duration;

use thiserror::Error;

use crate::algorithm::{concurrent, sliding_buckets, sliding_log, sliding_window};
#[cfg(feature = "calendar")]
use crate::calendar::Calendar;
use crate::quota::{MAX_SMALL_UNITS, QuotaError, format_duration};

/// An invalid limit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LimitError {
    /// The quota is invalid.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// The precision is zero, finer than a microsecond, or does not divide the window.
    #[error(
        "a precision of {} does not divide the window of {window}; use the window divided by a whole number, for example by 10",
        format_duration(*precision)
    )]
    Precision {
        /// The requested precision.
        precision: Duration,
        /// The window, as written.
        window: String,
    },
    /// The precision divides the window into too many buckets.
    #[error(
        "a precision of {} divides the window of {window} into {buckets} buckets; the maximum is {max}",
        format_duration(*precision),
        max = sliding_buckets::MAX_BUCKETS
    )]
    Buckets {
        /// The requested precision.
        precision: Duration,
        /// The window, as written.
        window: String,
        /// The number of buckets with this precision.
        buckets: u64,
    },
    /// The maximum exceeds [`MAX_SMALL_UNITS`], and the algorithm multiplies counts by times.
    #[error(
        "a max of {max} is too large for `{algorithm}`; the maximum is {MAX_SMALL_UNITS}; use `sliding_window` or `fixed_window`"
    )]
    MaxOfProduct {
        /// The name of the algorithm.
        algorithm: &'static str,
        /// The maximum.
        max: u64,
    },
    /// The burst exceeds [`MAX_SMALL_UNITS`].
    #[error("a burst of {0} is too large; the maximum is {MAX_SMALL_UNITS}")]
    Burst(u64),
    /// The resolution is not in the supported range.
    #[error("a resolution of {0} is not supported; use a number from {min} to {max}", min = sliding_window::RESOLUTIONS.start(), max = sliding_window::RESOLUTIONS.end())]
    Resolution(u64),
    /// The largest debt, `max_debt`, exceeds [`MAX_SMALL_UNITS`].
    #[error("a max_debt of {0} is too large; the maximum is {MAX_SMALL_UNITS}")]
    MaxDebt(u64),
    /// The max is too large for `sliding_log`.
    #[error(
        "a max of {0} is too large for `sliding_log`, which records every charge; use `sliding_buckets`, or a max of at most {max}",
        max = sliding_log::MAX_LOG_UNITS
    )]
    LogTooLong(u64),
    /// The max is too large for a limit on requests in flight.
    #[error(
        "{0} requests in flight are too many; the maximum is {max}",
        max = concurrent::MAX_PERMITS
    )]
    TooManyPermits(u64),
    /// The window of the quota is not the longest period of the calendar.
    #[cfg(feature = "calendar")]
    #[error("the window of a calendar limit is a {0}; create the limit with Limit::calendar")]
    CalendarWindow(Calendar),
}
