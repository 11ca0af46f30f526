//! How far a limit's decisions are from those of an exact log.
//!
//! The exact log of a key remembers what the limit itself admitted within the last window, and has room
//! for a request if one more makes at most `max`. That is the yardstick for every algorithm, also for a
//! `token_bucket`, whose burst allows more than `max` in a window by design.

use slidegate::{Quota, Timestamp};

use super::exact_log::ExactLog;
use super::key_counts::ByHash;

/// Tables with fewer keys are not swept.
const MIN_SWEEP_KEYS: usize = 1024;

/// One limit beside an exact log of each of its keys.
#[derive(Default)]
pub struct LimitAccuracy {
    logs: ByHash<ExactLog<1>>,
    /// Sweep when there are so many keys.
    sweep_at: usize,
    pub deviation: Deviation,
    pub worst: WindowPeak,
}

/// How often the decision was another than that of an exact log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deviation {
    /// It said that the request fits, where the window was full.
    pub false_allows: u64,
    /// It said that the request does not fit, where the window had room.
    pub false_denies: u64,
}

/// The most units that one key was given in any window, and how many it should have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowPeak {
    pub units: u64,
    pub max: u64,
}

/// What a limit said of one request.
#[derive(Clone, Copy)]
pub struct LimitObservation {
    pub quota: Quota,
    pub at: Timestamp,
    /// Whether the request fits.
    pub fits: bool,
    /// Units that must be free for the request to fit.
    pub required: u64,
    /// The units that the limit has charged: none if another limit denied the request.
    pub charged: u64,
}

impl LimitAccuracy {
    /// Takes note of what the limit said of a request of a key; tells whether an exact log has room.
    pub fn count(&mut self, key: u64, observation: LimitObservation) -> bool {
        let (now_us, max) = (observation.at.as_micros(), observation.quota.max());
        let window_us = window_us(observation.quota);
        let log = self.logs.get_mut(&key);
        let inside = log.map_or(0, |log| u64::from(log.units_in_windows(now_us, &[window_us])[0]));
        let has_room = inside.saturating_add(observation.required) <= max;
        self.deviation.count(observation.fits, has_room);
        if observation.charged > 0 {
            let charged = u32::try_from(observation.charged).unwrap_or(u32::MAX);
            let [units] = self.log(key, now_us, window_us).add(now_us, charged, &[window_us]);
            self.worst = self.worst.larger_share(WindowPeak { units: units.into(), max });
        }
        has_room
    }

    fn log(&mut self, key: u64, now_us: u64, window_us: u64) -> &mut ExactLog<1> {
        if self.logs.len() >= self.sweep_at.max(MIN_SWEEP_KEYS) && !self.logs.contains_key(&key) {
            // At most half of the keys have nothing in their window: memory stays bounded by those that
            // have, and each new key pays for at most two.
            self.logs.retain(|_, log| log.release_memory(now_us, &[window_us]));
            self.sweep_at = 2 * self.logs.len();
        }
        self.logs.entry(key).or_default()
    }
}

impl Deviation {
    /// Compares one decision.
    pub fn count(&mut self, fits: bool, has_room: bool) {
        self.false_allows += u64::from(fits && !has_room);
        self.false_denies += u64::from(!fits && has_room);
    }
}

impl WindowPeak {
    /// The one that is the larger share of its max.
    fn larger_share(self, other: Self) -> Self {
        if other.units * self.max.max(1) > self.units * other.max.max(1) { other } else { self }
    }

    /// In percent of max, rounded up: more than max is never told as 100 %.
    pub fn percent(self) -> Option<u64> {
        (self.max > 0).then(|| (self.units * 100).div_ceil(self.max))
    }

    /// Units beyond max.
    pub fn over(self) -> u64 {
        self.units.saturating_sub(self.max)
    }
}

fn window_us(quota: Quota) -> u64 {
    let window = quota.window();
    window.as_secs() * 1_000_000 + u64::from(window.subsec_micros())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn quota(text: &str) -> Quota {
        text.parse().unwrap()
    }

    proptest! {
        /// Whatever a limit says, however foolish.
        #[test]
        fn every_number_is_that_of_a_look_at_all(
            asked in proptest::collection::vec(
                (0..3u64, 0..4u64, 1..3u64, any::<bool>(), any::<bool>()),
                0..300,
            ),
        ) {
            let (mut accuracy, mut now) = (LimitAccuracy::default(), 0);
            let mut admitted: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
            let (mut expected, mut worst) = (Deviation::default(), 0);
            for (key, step, cost, fits, passes) in asked {
                now += step;
                let charged = if fits && passes { cost } else { 0 };
                let of_key = admitted.entry(key).or_default();
                let inside = of_key.iter().filter(|(at, _)| at + 10 > now);
                let inside: u64 = inside.map(|(_, units)| units).sum();
                let has_room = inside + cost <= 3;
                expected.false_allows += u64::from(fits && !has_room);
                expected.false_denies += u64::from(!fits && has_room);
                if charged > 0 {
                    of_key.push((now, charged));
                    worst = worst.max(inside + charged);
                }
                let at = Timestamp::from_secs(now);
                let observation = LimitObservation { quota: quota("3/10s"), at, fits, required: cost, charged };
                prop_assert_eq!(accuracy.count(key, observation), has_room);
            }
            prop_assert_eq!(accuracy.deviation, expected);
            prop_assert_eq!(accuracy.worst.units, worst);
        }
    }

    #[test]
    fn keys_leave_when_their_windows_are_empty() {
        let mut accuracy = LimitAccuracy::default();
        for key in 0..100_000 {
            let at = Timestamp::from_secs(key / 100);
            let quota = quota("1/10s");
            accuracy
                .count(key, LimitObservation { quota, at, fits: true, required: 1, charged: 1 });
        }
        // A thousand keys have something in their window at any moment.
        assert!(accuracy.logs.len() <= 2 * MIN_SWEEP_KEYS, "{}", accuracy.logs.len());
    }

    #[test]
    fn the_worst_window_is_that_of_the_largest_share() {
        let peak = |units, max| WindowPeak { units, max };
        assert_eq!(WindowPeak::default().larger_share(peak(1, 100)), peak(1, 100));
        assert_eq!(peak(14, 10).larger_share(peak(120, 100)), peak(14, 10));
        assert_eq!((peak(14, 10).percent(), peak(14, 10).over()), (Some(140), 4));
        assert_eq!(peak(1001, 1000).percent(), Some(101));
        assert_eq!(peak(0, 0).percent(), None);
    }
}
