//! Units of limits. They have the same numbers in what a descriptor brings along and in what is told of a
//! limit.

use std::time::Duration;

const DAY: u64 = 86_400;

/// Their numbers, and their seconds: a month has 30 days, and a year 365.
const UNITS: [(i32, u64); 7] =
    [(1, 1), (2, 60), (3, 3_600), (4, DAY), (5, 30 * DAY), (6, 365 * DAY), (7, 7 * DAY)];

/// The window of a unit.
pub fn window(unit: i32) -> Option<Duration> {
    let seconds = UNITS.iter().find(|(number, _)| *number == unit).map(|(_, seconds)| *seconds);
    seconds.map(Duration::from_secs)
}

/// The unit of a window; 0, which is unknown, if there is none.
pub fn of_window(window: Duration) -> i32 {
    let unit = UNITS.iter().find(|(_, seconds)| Duration::from_secs(*seconds) == window);
    unit.map_or(0, |(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rls::messages::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
    use crate::rls::messages::envoy::r#type::v3::RateLimitUnit;

    #[test]
    fn every_unit_has_one_number_and_a_window() {
        for (number, _) in UNITS {
            assert_eq!(of_window(window(number).unwrap()), number);
            let (told, brought) = (Unit::try_from(number), RateLimitUnit::try_from(number));
            assert_eq!(told.unwrap().as_str_name(), brought.unwrap().as_str_name());
        }
        assert_eq!(window(Unit::Month as i32), Some(Duration::from_secs(2_592_000)));
        assert_eq!(of_window(Duration::from_secs(10)), Unit::Unknown as i32);
        assert_eq!(window(Unit::Unknown as i32), None);
    }
}
