//! Derives limits from the demand of clients.
//!
//! The *peak* of a client is its maximum number of requests in any window of a given length. An exact limit denies a
//! client at least once if and only if the peak of the client exceeds `max`. So the smallest `max` that denies at most
//! a given share of the clients is the nearest-rank quantile of their peaks: with `n` clients, of which `k` (the share
//! of `n`, rounded down) may be denied, it is the (k + 1)-th largest peak.

use std::str::FromStr;
use std::time::Duration;

use slidegate::Timestamp;
use slidegate::limit::MAX_UNITS;

use super::demand::{Demand, WINDOW_LENGTHS_US};

/// The shares of clients that suggested limits may deny, in thousandths of all clients.
pub const DENIABLE_CLIENTS_PER_MILLE: [u64; 3] = [1, 10, 50];

/// The percentage by which suggested limits exceed the measured demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom(pub u64);

/// Suggested limits for one window length: one for each share of clients that may be denied.
#[derive(Debug, PartialEq, Eq)]
pub struct SuggestedWindowLimits {
    pub window: Duration,
    pub clients: u64,
    /// One limit for each share of clients in [`DENIABLE_CLIENTS_PER_MILLE`].
    pub choices: [SuggestedLimit; DENIABLE_CLIENTS_PER_MILLE.len()],
}

/// A limit that denies at most a given share of the clients.
#[derive(Debug, PartialEq, Eq)]
pub struct SuggestedLimit {
    pub per_mille: u64,
    /// Number of clients that may be denied: the share of all clients, rounded down.
    pub max_denied: u64,
    /// The smallest maximum of a limit that denies at most `max_denied` clients.
    pub max: u64,
    /// Number of clients that a limit with `max` denies at least once.
    pub denied: u64,
    /// The suggested maximum: `max` plus headroom, rounded up to a round number.
    pub suggested: u64,
    /// Number of clients that a limit with the suggested maximum denies at least once.
    pub still_denied: u64,
}

impl SuggestedWindowLimits {
    /// Suggests limits for each window length that does not exceed the length of the log.
    pub fn from_demand(demand: &Demand, log_length: Duration, headroom: Headroom) -> Vec<Self> {
        let windows = WINDOW_LENGTHS_US.map(Duration::from_micros).into_iter().enumerate();
        windows
            .filter(|(_, window)| *window <= log_length)
            .filter_map(|(window_index, window)| {
                Self::from_client_peaks(&demand.peaks(window_index), window, headroom)
            })
            .collect()
    }

    /// Suggests limits for one window length. `peaks` contains the maximum number of requests of each client in such a
    /// window, in ascending order. Returns `None` if there are no clients.
    fn from_client_peaks(peaks: &[u32], window: Duration, headroom: Headroom) -> Option<Self> {
        let [.., _] = peaks else { return None };
        let choice = |per_mille| SuggestedLimit::from_client_peaks(peaks, per_mille, headroom);
        Some(Self {
            window,
            clients: peaks.len() as u64,
            choices: DENIABLE_CLIENTS_PER_MILLE.map(choice),
        })
    }
}

impl SuggestedLimit {
    fn from_client_peaks(peaks: &[u32], per_mille: u64, headroom: Headroom) -> Self {
        let max_denied = peaks.len() as u64 * per_mille / 1000;
        let max = peaks[peaks.len() - 1 - max_denied as usize].into();
        let suggested = headroom.add_headroom_to_max(max);
        let denied =
            |max: u64| (peaks.len() - peaks.partition_point(|&peak| u64::from(peak) <= max)) as u64;
        let (denied, still_denied) = (denied(max), denied(suggested));
        Self { per_mille, max_denied, max, denied, suggested, still_denied }
    }
}

impl Headroom {
    /// Adds this percentage to the `max` of a limit, and rounds the result up to a round number.
    fn add_headroom_to_max(self, max: u64) -> u64 {
        round_up_to_round_number(max.saturating_mul(100 + self.0).div_ceil(100)).min(MAX_UNITS)
    }
}

/// Rounds up to the next round number: an integer that is 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6 or 8 times a power of ten.
/// This adds at most a third.
fn round_up_to_round_number(number: u64) -> u64 {
    const ROUND_NUMBERS_TIMES_TEN: [u64; 10] = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80];
    let powers = std::iter::successors(Some(1), |power: &u64| power.checked_mul(10));
    let mut series = powers.flat_map(|power| ROUND_NUMBERS_TIMES_TEN.map(|tenths| (tenths, power)));
    let whole_number = |(tenths, power): (u64, u64)| {
        let times_ten = tenths.checked_mul(power)?;
        times_ten.is_multiple_of(10).then_some(times_ten / 10)
    };
    series.find_map(|item| whole_number(item).filter(|value| *value >= number)).unwrap_or(u64::MAX)
}

impl FromStr for Headroom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_suffix('%').unwrap_or(text).trim_end();
        let percent = number.parse().ok().filter(|percent| *percent <= 10_000);
        let error =
            || "write it as a whole percentage of at most 10000%, for example 20%".to_owned();
        percent.map(Self).ok_or_else(error)
    }
}

/// Returns the length of a log, given its first and last time. Both the first and the last second are included.
pub fn log_length(span: Option<(Timestamp, Timestamp)>) -> Duration {
    let micros = |(first, last): (Timestamp, Timestamp)| last.as_micros() - first.as_micros();
    span.map_or(Duration::ZERO, |span| Duration::from_micros(micros(span)) + Duration::from_secs(1))
}

/// Returns `true` if a log of length `log_length` is shorter than at least one of the windows for which limits are
/// suggested.
pub fn is_log_too_short(log_length: Duration) -> bool {
    WINDOW_LENGTHS_US.into_iter().any(|window_us| Duration::from_micros(window_us) > log_length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ONE_MINUTE: Duration = Duration::from_secs(60);

    proptest! {
        /// Checks that the computed max is the smallest possible: every smaller max denies too many clients.
        #[test]
        fn suggested_max_is_smallest_within_denied_client_share(
            mut peaks in proptest::collection::vec(1..40u32, 1..2500),
            headroom in 0..100u64,
        ) {
            peaks.sort_unstable();
            let denied = |max: u64| peaks.iter().filter(|&&peak| u64::from(peak) > max).count() as u64;
            let suggestion = SuggestedWindowLimits::from_client_peaks(&peaks, ONE_MINUTE, Headroom(headroom)).unwrap();
            for choice in suggestion.choices {
                let is_within_share = |max| denied(max) * 1000 <= peaks.len() as u64 * choice.per_mille;
                let smallest = (0..).find(|&max| is_within_share(max));
                prop_assert_eq!(Some(choice.max), smallest);
                prop_assert_eq!(choice.denied, denied(choice.max));
                prop_assert_eq!(choice.still_denied, denied(choice.suggested));
                prop_assert!(choice.suggested * 100 >= choice.max * (100 + headroom));
            }
        }
    }

    #[test]
    fn number_rounds_up_to_next_round_number() {
        let series: Vec<u64> = (1..=200).map(round_up_to_round_number).collect();
        let mut distinct = series.clone();
        distinct.dedup();
        let expected =
            [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 150, 200];
        assert_eq!(distinct, expected);
        assert!((1..).zip(&series).all(|(number, rounded)| *rounded >= number));
        assert_eq!(
            (
                round_up_to_round_number(0),
                round_up_to_round_number(12_000),
                round_up_to_round_number(12_001)
            ),
            (1, 12_000, 15_000)
        );
        assert_eq!(round_up_to_round_number(u64::MAX), u64::MAX);
    }

    #[test]
    fn denied_share_below_one_client_denies_no_client() {
        let peaks: Vec<u32> = (1..=350).collect();
        let suggestion =
            SuggestedWindowLimits::from_client_peaks(&peaks, ONE_MINUTE, Headroom(20)).unwrap();
        let choices =
            suggestion.choices.map(|choice| (choice.max_denied, choice.max, choice.suggested));
        assert_eq!(choices, [(0, 350, 500), (3, 347, 500), (17, 333, 400)]);
    }

    #[test]
    fn suggestion_headroom_is_parsed_as_percentage() {
        assert_eq!(("20%".parse(), "0".parse()), (Ok(Headroom(20)), Ok(Headroom(0))));
        for wrong in ["", "%", "-5%", "a lot", "10001%", "1.5"] {
            assert!(wrong.parse::<Headroom>().is_err(), "{wrong}");
        }
        assert_eq!(Headroom(20).add_headroom_to_max(u64::MAX), MAX_UNITS);
    }
}
