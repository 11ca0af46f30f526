//! Measures the accuracy of the decisions of a limit. Each decision is compared with an exact log, which keeps every
//! charge that the limit allowed.

use std::error::Error;
use std::ops::AddAssign;

use slidegate::{Algorithm, Align, Limit, Limiter, ManualClock, MemoryStore, Timestamp};

use crate::exact_log::ExactLog;

/// A time at which a window of any usual length starts: 2026-01-01, 00:00 UTC, in microseconds.
pub const MIDNIGHT_US: u64 = 1_767_225_600_000_000;

/// The measured algorithms, in the order of the tables. The first one is the default.
pub const MEASURED_ALGORITHMS: [Algorithm; 8] = [
    Algorithm::SlidingWindow { resolution: None },
    Algorithm::SlidingWindow { resolution: Some(8) },
    Algorithm::SlidingWindow { resolution: Some(128) },
    Algorithm::SlidingLog,
    Algorithm::SlidingBuckets { precision: None },
    Algorithm::SlidingCounter,
    Algorithm::FixedWindow { align: Align::Key },
    Algorithm::TokenBucket { burst: None, max_debt: None },
];

/// Statistics of the decisions of a limit. A decision is wrong if it differs from the decision of an exact log, which
/// keeps every charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccuracyStats {
    /// The number of all decisions, allowed and denied.
    pub decisions: u64,
    /// The number of allowed requests.
    pub allowed: u64,
    /// The number of requests that an exact log allows, if it decides the same requests instead of the limit.
    pub allowed_by_exact_log: u64,
    /// The number of requests that were allowed although they exceeded the maximum of the limit.
    pub false_allows: u64,
    /// The number of requests that were denied although the exact log shows at least one available unit.
    pub false_denies: u64,
    /// The largest error of a wrong decision, in units: the units beyond the maximum of a wrongly allowed request, or the
    /// units that were still available to a wrongly denied one.
    pub max_error_units: u64,
    /// The maximum number of units that the limit allowed in any window.
    pub max_in_window: u64,
}

impl AccuracyStats {
    /// Returns the number of allowed requests as a percentage of the requests that an exact log allows.
    pub fn percent_of_exact_log(&self) -> f64 {
        percent(self.allowed, self.allowed_by_exact_log)
    }
}

/// Returns `part` as a percentage of `total`; 0 if both are 0.
pub fn percent(part: u64, total: u64) -> f64 {
    100.0 * part as f64 / total.max(1) as f64
}

impl AddAssign for AccuracyStats {
    fn add_assign(&mut self, other: Self) {
        self.decisions += other.decisions;
        self.allowed += other.allowed;
        self.allowed_by_exact_log += other.allowed_by_exact_log;
        self.false_allows += other.false_allows;
        self.false_denies += other.false_denies;
        self.max_error_units = self.max_error_units.max(other.max_error_units);
        self.max_in_window = self.max_in_window.max(other.max_in_window);
    }
}

/// A meter of the accuracy of one limit for one key. It decides each request with slidegate's memory store and a manual
/// clock, and compares the decision with an exact log of the allowed requests.
pub struct AccuracyMeter {
    clock: ManualClock,
    limiter: Limiter<MemoryStore<ManualClock>>,
    /// The requests that the limit allowed.
    exact_log: ExactLog,
    /// The requests that an exact log allows, if it decides instead of the limit.
    deciding_log: ExactLog,
    key: u64,
    max: u64,
    stats: AccuracyStats,
}

impl AccuracyMeter {
    /// Creates a meter for a key that has no charges yet.
    ///
    /// # Errors
    /// Never fails, because a limiter with a single limit is always valid.
    pub fn new(limit: &Limit, key: u64) -> Result<Self, Box<dyn Error>> {
        let clock = ManualClock::default();
        let limiter =
            Limiter::with_store("limiter", [*limit], MemoryStore::with_clock(clock.clone(), 64))?;
        let new_log = || ExactLog::new(limit.quota().window().as_micros() as u64);
        Ok(Self {
            clock,
            limiter,
            exact_log: new_log(),
            deciding_log: new_log(),
            key,
            max: limit.quota().max(),
            stats: AccuracyStats::default(),
        })
    }

    /// Requests one unit of the key at the time `now_us` in microseconds, which must not be before the time of the
    /// previous call. Returns `true` if the limit allows the request.
    pub fn check(&mut self, now_us: u64) -> bool {
        self.clock.set(Timestamp::from_micros(now_us));
        let is_allowed = self.limiter.check(&self.key).is_allowed();
        let units_with_request = self.exact_log.units_in_window(now_us) + 1;
        let fits = units_with_request <= self.max;
        if is_allowed {
            self.exact_log.charge(now_us, 1);
        }
        let is_allowed_by_exact_log = self.deciding_log.units_in_window(now_us) < self.max;
        if is_allowed_by_exact_log {
            self.deciding_log.charge(now_us, 1);
        }
        let error_units = if is_allowed {
            units_with_request.saturating_sub(self.max)
        } else {
            (self.max + 1).saturating_sub(units_with_request)
        };
        let stats = &mut self.stats;
        stats.decisions += 1;
        stats.allowed += u64::from(is_allowed);
        stats.allowed_by_exact_log += u64::from(is_allowed_by_exact_log);
        stats.false_allows += u64::from(is_allowed && !fits);
        stats.false_denies += u64::from(!is_allowed && fits);
        stats.max_error_units = stats.max_error_units.max(error_units);
        stats.max_in_window = self.exact_log.max_units();
        is_allowed
    }

    /// Returns the number of units that were allowed in the window that ends at `now_us`.
    pub fn units_in_window(&mut self, now_us: u64) -> u64 {
        self.exact_log.units_in_window(now_us)
    }

    /// Returns the statistics of all decisions so far.
    pub fn stats(&self) -> AccuracyStats {
        self.stats
    }
}

/// Measures the accuracy of a limit with requests of one key at the times `arrivals_us`, which must be sorted.
///
/// # Errors
/// Never fails, because a limiter with a single limit is always valid.
pub fn measure_accuracy(
    limit: &Limit,
    key: u64,
    arrivals_us: &[u64],
) -> Result<AccuracyStats, Box<dyn Error>> {
    let mut meter = AccuracyMeter::new(limit, key)?;
    for &at_us in arrivals_us {
        meter.check(at_us);
    }
    Ok(meter.stats())
}

/// Returns the maximum number of units that the limit can allow in any window. `docs/explanation/algorithms.md` proves
/// this bound under *Bound*.
pub fn proven_max_units(limit: &Limit) -> u64 {
    let max = limit.quota().max();
    match limit.algorithm() {
        Algorithm::SlidingWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingBuckets { .. }
        | Algorithm::Concurrent => max,
        Algorithm::SlidingCounter => (2 * max).saturating_sub(1),
        Algorithm::FixedWindow { .. } => 2 * max,
        Algorithm::TokenBucket { .. } => limit.capacity() + max,
    }
}

/// Returns `true` if the algorithm never allows more units than the maximum of the limit in any window.
pub fn never_exceeds_max(algorithm: Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::SlidingWindow { .. } | Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. }
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slidegate::{Limit, Quota};

    use super::*;
    use crate::arrivals::{PATTERNS, RELATIVE_LOADS};

    const MAX_UNITS_PER_WINDOW: u64 = 20;

    fn new_limit_for_each_algorithm() -> impl Iterator<Item = Limit> {
        let quota = Quota::new(MAX_UNITS_PER_WINDOW, Duration::from_millis(100)).unwrap();
        Algorithm::ALL.into_iter().map(move |algorithm| Limit::new(quota, algorithm).unwrap())
    }

    /// Returns the sorted request times of 100 pairs of bursts. The pairs combine ten offsets of the first burst with
    /// ten gaps between the bursts. Each burst has as many requests as the limit allows.
    fn generate_burst_pair_times() -> Vec<u64> {
        let offsets = (0..100).map(|nth| (nth % 10, nth / 10));
        let pair = |nth: usize, (first, gap): (u64, u64)| {
            let first = MIDNIGHT_US + 300_000 * nth as u64 + 10_000 * first + 9_999;
            [first, first + 10_000 * gap + 9_999]
        };
        let times_us = offsets.enumerate().flat_map(|(nth, offset)| pair(nth, offset));
        times_us
            .flat_map(|at_us| std::iter::repeat_n(at_us, MAX_UNITS_PER_WINDOW as usize))
            .collect()
    }

    #[test]
    fn allowed_units_stay_within_proven_bound() {
        let mut traffic: Vec<Vec<u64>> = vec![generate_burst_pair_times()];
        for (pattern, load) in PATTERNS.iter().flat_map(|p| RELATIVE_LOADS.map(|load| (p, load))) {
            traffic.push(pattern.arrivals(100_000, load * MAX_UNITS_PER_WINDOW as f64, 40, 7));
        }
        for limit in new_limit_for_each_algorithm() {
            let mut total = AccuracyStats::default();
            for arrivals in &traffic {
                total += measure_accuracy(&limit, 7, arrivals).unwrap();
            }
            assert!(total.max_in_window <= proven_max_units(&limit), "{limit}: {total:?}");
            assert!(
                total.max_in_window >= MAX_UNITS_PER_WINDOW && total.allowed < total.decisions,
                "{limit}: {total:?}"
            );
            if never_exceeds_max(limit.algorithm()) {
                assert_eq!(
                    (total.false_allows, total.max_in_window),
                    (0, MAX_UNITS_PER_WINDOW),
                    "{limit}"
                )
            } else {
                assert!(total.false_allows > 0, "{limit}: {total:?}")
            }
            if limit.algorithm() == Algorithm::SlidingLog {
                assert_eq!((total.false_denies, total.max_error_units), (0, 0));
                assert_eq!(total.allowed, total.allowed_by_exact_log);
            }
        }
    }

    #[test]
    fn largest_error_counts_wrongly_allowed_and_denied_units() {
        let quota = Quota::new(MAX_UNITS_PER_WINDOW, Duration::from_millis(100)).unwrap();
        let aligned = Algorithm::FixedWindow { align: slidegate::Align::Clock };
        let twenty = |at_us| vec![MIDNIGHT_US + at_us; MAX_UNITS_PER_WINDOW as usize];
        let fixed = Limit::new(quota, aligned).unwrap();
        let stats =
            measure_accuracy(&fixed, 1, &[twenty(99_999), twenty(100_000)].concat()).unwrap();
        assert_eq!((stats.false_allows, stats.false_denies, stats.max_error_units), (20, 0, 20));
        assert_eq!(stats.percent_of_exact_log(), 200.0);
        let window = Limit::new(quota, Algorithm::SlidingCounter).unwrap();
        // At the second burst the first one has left the window but still has half of its weight: ten requests of the
        // second burst are allowed, and ten are denied although they fit.
        let stats = measure_accuracy(&window, 1, &[twenty(0), twenty(150_000)].concat()).unwrap();
        assert_eq!((stats.false_allows, stats.false_denies, stats.max_error_units), (0, 10, 10));
        assert_eq!(stats.percent_of_exact_log(), 75.0);
    }
}
