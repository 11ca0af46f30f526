//! Time units of limits. They have the same numbers in requests and responses.

use std::time::Duration;

const DAY: u64 = 86_400;

/// Number and length in seconds of each unit. A month has 30 days, a year 365.
const UNITS: [(i32, u64); 7] =
    [(1, 1), (2, 60), (3, 3_600), (4, DAY), (5, 30 * DAY), (6, 365 * DAY), (7, 7 * DAY)];

/// Returns the length of a unit, or `None` if the number is unknown.
pub fn window_of_unit(unit: i32) -> Option<Duration> {
    let seconds = UNITS.iter().find(|(number, _)| *number == unit).map(|(_, seconds)| *seconds);
    seconds.map(Duration::from_secs)
}

/// Returns the largest unit that divides a window, and the number of units in the window. Returns 0, the unknown unit,
/// if no unit divides it.
pub fn unit_of_window(window: Duration) -> (i32, u32) {
    let seconds = if window.subsec_nanos() == 0 { window.as_secs() } else { 0 };
    let divides = |unit: &&(i32, u64)| seconds > 0 && seconds.is_multiple_of(unit.1);
    let largest = UNITS.iter().filter(divides).max_by_key(|(_, seconds)| *seconds);
    let units =
        largest.and_then(|(number, unit)| Some((*number, (seconds / unit).try_into().ok()?)));
    units.unwrap_or((0, 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rls::messages::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
    use crate::rls::messages::envoy::r#type::v3::RateLimitUnit;

    #[test]
    fn every_unit_has_number_and_window() {
        for (number, _) in UNITS {
            assert_eq!(unit_of_window(window_of_unit(number).unwrap()), (number, 1));
            let (response_unit, request_unit) =
                (Unit::try_from(number), RateLimitUnit::try_from(number));
            assert_eq!(response_unit.unwrap().as_str_name(), request_unit.unwrap().as_str_name());
        }
        assert_eq!(window_of_unit(Unit::Month as i32), Some(Duration::from_secs(2_592_000)));
        assert_eq!(unit_of_window(Duration::from_secs(30)), (Unit::Second as i32, 30));
        assert_eq!(unit_of_window(Duration::from_secs(7_200)), (Unit::Hour as i32, 2));
        assert_eq!(unit_of_window(Duration::from_millis(1_500)), (Unit::Unknown as i32, 1));
        assert_eq!(window_of_unit(Unit::Unknown as i32), None);
    }
}
