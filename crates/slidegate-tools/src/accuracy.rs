//! Compares the decisions of a limit with an exact log, which keeps every charge of a key within the last window.
//!
//! The exact log of a key contains the units that the limit itself charged. It has capacity for a request if the units
//! in the window plus the required units are at most `max`. All algorithms are compared with this log, including
//! `token_bucket`, whose burst exceeds `max` in a window by design.

use slidegate::{Quota, Timestamp};

use super::exact_log::ExactLog;
use super::key_counts::KeyHashMap;

/// Minimum number of exact logs before the logs of idle keys are removed.
const MIN_EXACT_LOGS_BEFORE_CLEANUP: usize = 1024;

/// The accuracy of one limit, measured by an exact log for each of its keys. An exact log keeps every charge within the
/// last window.
#[derive(Debug, Default)]
pub struct LimitAccuracy {
    logs: KeyHashMap<ExactLog<1>>,
    /// The number of exact logs that triggers the next removal of the logs of idle keys.
    cleanup_threshold: usize,
    pub deviation: Deviation,
    pub worst: WindowPeak,
}

/// Numbers of decisions of a limit that differ from an exact log, which keeps every charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deviation {
    /// Number of requests for which the limit had capacity although the exact log had none.
    pub false_allows: u64,
    /// Number of requests for which the limit had no capacity although the exact log had some.
    pub false_denies: u64,
}

/// The largest number of units that one key received within any window, and the maximum of the limit at that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowPeak {
    pub units: u64,
    pub max: u64,
}

/// The result of one limit for one request of a key.
#[derive(Debug, Clone, Copy)]
pub struct LimitObservation {
    pub quota: Quota,
    pub at: Timestamp,
    /// Whether the limit has capacity for the request.
    pub fits: bool,
    /// Number of units that must be available for the request.
    pub required: u64,
    /// Number of units that the limit charged for the request. 0 if another limit denied the request.
    pub charged: u64,
}

impl LimitAccuracy {
    /// Compares the result of the limit for a request of `key` with the exact log of the key, and adds the charged
    /// units to the log. Returns `true` if the exact log has capacity for the request.
    pub fn record(&mut self, key: u64, observation: LimitObservation) -> bool {
        let (now_us, max) = (observation.at.as_micros(), observation.quota.max());
        let window_us = window_length_us(observation.quota);
        let log = self.logs.get_mut(&key);
        let inside = log.map_or(0, |log| u64::from(log.units_in_windows(now_us, &[window_us])[0]));
        let has_capacity = inside.saturating_add(observation.required) <= max;
        self.deviation.record(observation.fits, has_capacity);
        if observation.charged > 0 {
            let charged = u32::try_from(observation.charged).unwrap_or(u32::MAX);
            let [units] = self.get_or_create_exact_log(key, now_us, window_us).add(
                now_us,
                charged,
                &[window_us],
            );
            self.worst =
                self.worst.peak_with_larger_share_of_max(WindowPeak { units: units.into(), max });
        }
        has_capacity
    }

    fn get_or_create_exact_log(
        &mut self,
        key: u64,
        now_us: u64,
        window_us: u64,
    ) -> &mut ExactLog<1> {
        if self.logs.len() >= self.cleanup_threshold.max(MIN_EXACT_LOGS_BEFORE_CLEANUP)
            && !self.logs.contains_key(&key)
        {
            // After a cleanup, every remaining log has units in its window. The next cleanup runs when their number has
            // doubled. So memory is proportional to the number of active keys, and the amortized cost per new key is
            // two logs.
            self.logs.retain(|_, log| log.release_memory(now_us, &[window_us]));
            self.cleanup_threshold = 2 * self.logs.len();
        }
        self.logs.entry(key).or_default()
    }
}

impl Deviation {
    /// Counts one decision if the limit and the exact log differ. `fits` is `true` if the limit has capacity for the
    /// request. `has_capacity` is `true` if the exact log has capacity for it.
    pub fn record(&mut self, fits: bool, has_capacity: bool) {
        self.false_allows += u64::from(fits && !has_capacity);
        self.false_denies += u64::from(!fits && has_capacity);
    }
}

impl WindowPeak {
    /// Returns the larger of the two peaks `self` and `other`. Peaks are compared by their units divided by their
    /// `max`.
    fn peak_with_larger_share_of_max(self, other: Self) -> Self {
        if other.units * self.max.max(1) > self.units * other.max.max(1) { other } else { self }
    }

    /// Returns the units as a percentage of `max`, or `None` if `max` is 0. The percentage is rounded up, so that more
    /// than `max` is never shown as 100 %.
    pub fn percent(self) -> Option<u64> {
        (self.max > 0).then(|| (self.units * 100).div_ceil(self.max))
    }

    /// Returns the number of units above `max`, or 0.
    pub fn units_over_max(self) -> u64 {
        self.units.saturating_sub(self.max)
    }
}

fn window_length_us(quota: Quota) -> u64 {
    let window = quota.window();
    window.as_secs() * 1_000_000 + u64::from(window.subsec_micros())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn parse_quota(text: &str) -> Quota {
        text.parse().unwrap()
    }

    proptest! {
        /// Generates random results of a limit, including impossible ones, and compares the measured accuracy with a
        /// direct computation from all charges.
        #[test]
        fn limit_accuracy_matches_direct_computation(
            requests in proptest::collection::vec(
                (0..3u64, 0..4u64, 1..3u64, any::<bool>(), any::<bool>()),
                0..300,
            ),
        ) {
            let (mut accuracy, mut now) = (LimitAccuracy::default(), 0);
            let mut admitted: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
            let (mut expected, mut worst) = (Deviation::default(), 0);
            for (key, step, cost, fits, passes) in requests {
                now += step;
                let charged = if fits && passes { cost } else { 0 };
                let key_units = admitted.entry(key).or_default();
                let inside = key_units.iter().filter(|(at, _)| at + 10 > now);
                let inside: u64 = inside.map(|(_, units)| units).sum();
                let has_capacity = inside + cost <= 3;
                expected.false_allows += u64::from(fits && !has_capacity);
                expected.false_denies += u64::from(!fits && has_capacity);
                if charged > 0 {
                    key_units.push((now, charged));
                    worst = worst.max(inside + charged);
                }
                let at = Timestamp::from_secs(now);
                let observation = LimitObservation { quota: parse_quota("3/10s"), at, fits, required: cost, charged };
                prop_assert_eq!(accuracy.record(key, observation), has_capacity);
            }
            prop_assert_eq!(accuracy.deviation, expected);
            prop_assert_eq!(accuracy.worst.units, worst);
        }
    }

    #[test]
    fn exact_logs_of_idle_keys_are_removed() {
        let mut accuracy = LimitAccuracy::default();
        for key in 0..100_000 {
            let at = Timestamp::from_secs(key / 100);
            let quota = parse_quota("1/10s");
            accuracy
                .record(key, LimitObservation { quota, at, fits: true, required: 1, charged: 1 });
        }
        // At any time, a thousand keys have units in their window.
        assert!(
            accuracy.logs.len() <= 2 * MIN_EXACT_LOGS_BEFORE_CLEANUP,
            "{}",
            accuracy.logs.len()
        );
    }

    #[test]
    fn worst_window_has_largest_share_of_limit_max() {
        let peak = |units, max| WindowPeak { units, max };
        assert_eq!(WindowPeak::default().peak_with_larger_share_of_max(peak(1, 100)), peak(1, 100));
        assert_eq!(peak(14, 10).peak_with_larger_share_of_max(peak(120, 100)), peak(14, 10));
        assert_eq!((peak(14, 10).percent(), peak(14, 10).units_over_max()), (Some(140), 4));
        assert_eq!(peak(1001, 1000).percent(), Some(101));
        assert_eq!(peak(0, 0).percent(), None);
    }
}
