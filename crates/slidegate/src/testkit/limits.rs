//! The limits of the property tests, and the bound that each of them must keep.

use std::time::Duration;

use crate::algorithm::{Algorithm, Align};
use crate::calendar::Period;
use crate::limit::{Limit, LimitError};
use crate::quota::Quota;

use super::calendar::new_calendar;

/// Window lengths of the tested limits, from 100 ms to one week. Counters measure time in ticks, which differ in length
/// between these windows.
const TEST_WINDOWS: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(60),
    Duration::from_secs(3_600),
    Duration::from_secs(7 * 86_400),
];

/// A max above 2^32, for algorithms whose counts have more than 32 bits.
const LARGE_LIMIT_MAX: u64 = 5_000_000_000_001;

/// Returns limits of every algorithm for the property tests, with two small values of max and a large one. Algorithms
/// that support it also have a limit with a max above 2^32.
pub fn limits() -> Vec<Limit> {
    let algorithms = [
        Algorithm::SlidingWindow { resolution: None },
        Algorithm::SlidingWindow { resolution: Some(8) },
        Algorithm::SlidingLog,
        Algorithm::SlidingBuckets { precision: None },
        Algorithm::SlidingCounter,
        Algorithm::FixedWindow { align: Align::Key },
        Algorithm::FixedWindow { align: Align::Clock },
        Algorithm::TokenBucket { burst: None, max_debt: None },
        Algorithm::TokenBucket { burst: Some(3), max_debt: None },
    ];
    let mut limits = Vec::new();
    for window in TEST_WINDOWS {
        for max in [2, 10, 1_000] {
            limits.extend(algorithms.map(|algorithm| new_limit(max, window, algorithm)));
        }
    }
    // These algorithms do not multiply counts, so their counts are exact up to 2^53.
    for algorithm in [
        Algorithm::SlidingWindow { resolution: Some(10) },
        Algorithm::SlidingBuckets { precision: None },
        Algorithm::FixedWindow { align: Align::Key },
    ] {
        limits.push(new_limit(LARGE_LIMIT_MAX, TEST_WINDOWS[3], algorithm));
    }
    for (period, time_zone) in [
        (Period::Day, "Europe/Berlin"),
        (Period::Week, "Australia/Lord_Howe"),
        (Period::Month, "America/New_York"),
        (Period::Year, "UTC"),
    ] {
        let calendar = new_calendar(period, time_zone);
        limits.extend(
            [2, 10, 1_000, LARGE_LIMIT_MAX].map(|max| valid_limit(Limit::calendar(max, calendar))),
        );
    }
    limits
}

/// Returns a limit whose quota and algorithm are valid.
pub(super) fn new_limit(max: u64, window: Duration, algorithm: Algorithm) -> Limit {
    let limit = Quota::new(max, window).map_err(Into::into);
    valid_limit(limit.and_then(|quota| Limit::new(quota, algorithm)))
}

pub(super) fn valid_limit(limit: Result<Limit, LimitError>) -> Limit {
    match limit {
        Ok(limit) => limit,
        Err(error) => unreachable!("these limits are valid: {error}"),
    }
}

/// Returns the maximum number of units that a limit may admit in any time interval as long as the window of its quota.
pub fn max_units_in_window(limit: &Limit) -> u64 {
    let max = limit.quota().max();
    match limit.algorithm() {
        Algorithm::SlidingWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingBuckets { .. }
        | Algorithm::Concurrent => max,
        Algorithm::SlidingCounter => (2 * max).saturating_sub(1),
        // An interval as long as the longest period can contain a shorter period, and parts of the periods before and
        // after it.
        Algorithm::FixedWindow { align: Align::Calendar(_) } => 3 * max,
        Algorithm::FixedWindow { .. } => 2 * max,
        Algorithm::TokenBucket { .. } => max + limit.capacity(),
    }
}
