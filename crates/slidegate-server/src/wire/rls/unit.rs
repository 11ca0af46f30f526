//! Time units of limits. Each unit has the same Protobuf enum value in request and response messages.

use std::time::Duration;

use slidegate::Period;

const SECONDS_PER_DAY: u64 = 86_400;

/// The Protobuf enum value of each time unit, and its length in seconds. A month has 30 days, and a year has 365 days.
const TIME_UNIT_ENUM_VALUES_AND_SECONDS: [(i32, u64); 7] = [
    (1, 1),
    (2, 60),
    (3, 3_600),
    (4, SECONDS_PER_DAY),
    (5, 30 * SECONDS_PER_DAY),
    (6, 365 * SECONDS_PER_DAY),
    (7, 7 * SECONDS_PER_DAY),
];

/// Returns the length of the time unit with this Protobuf enum value, or `None` if no unit has the value.
pub fn time_unit_length(unit: i32) -> Option<Duration> {
    let seconds = TIME_UNIT_ENUM_VALUES_AND_SECONDS
        .iter()
        .find(|(number, _)| *number == unit)
        .map(|(_, seconds)| *seconds);
    seconds.map(Duration::from_secs)
}

/// Returns the largest time unit that divides a window, as its Protobuf enum value, and the count of these units in the
/// window. Returns unit 0, the unknown unit, and count 1 if no unit divides the window.
pub fn window_as_time_units(window: Duration) -> (i32, u32) {
    let seconds = if window.subsec_nanos() == 0 { window.as_secs() } else { 0 };
    let divides = |unit: &&(i32, u64)| seconds > 0 && seconds.is_multiple_of(unit.1);
    let largest = TIME_UNIT_ENUM_VALUES_AND_SECONDS
        .iter()
        .filter(divides)
        .max_by_key(|(_, seconds)| *seconds);
    let units =
        largest.and_then(|(number, unit)| Some((*number, (seconds / unit).try_into().ok()?)));
    units.unwrap_or((0, 1))
}

/// Returns the time unit of a calendar period, as its Protobuf enum value, and the count of these units in the period.
pub fn period_as_time_units(period: Period) -> (i32, u32) {
    match period {
        Period::Day => (4, 1),
        Period::Week => (7, 1),
        Period::Month => (5, 1),
        Period::Quarter => (5, 3),
        Period::Year => (6, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::rls::messages::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
    use crate::wire::rls::messages::envoy::r#type::v3::RateLimitUnit;

    #[test]
    fn time_unit_enum_value_matches_unit_length() {
        for (number, _) in TIME_UNIT_ENUM_VALUES_AND_SECONDS {
            assert_eq!(window_as_time_units(time_unit_length(number).unwrap()), (number, 1));
            let (response_unit, request_unit) =
                (Unit::try_from(number), RateLimitUnit::try_from(number));
            assert_eq!(response_unit.unwrap().as_str_name(), request_unit.unwrap().as_str_name());
        }
        assert_eq!(time_unit_length(Unit::Month as i32), Some(Duration::from_secs(2_592_000)));
        assert_eq!(window_as_time_units(Duration::from_secs(30)), (Unit::Second as i32, 30));
        assert_eq!(window_as_time_units(Duration::from_secs(7_200)), (Unit::Hour as i32, 2));
        assert_eq!(window_as_time_units(Duration::from_millis(1_500)), (Unit::Unknown as i32, 1));
        assert_eq!(time_unit_length(Unit::Unknown as i32), None);
        for (period, unit, units) in [
            (Period::Day, Unit::Day, 1),
            (Period::Week, Unit::Week, 1),
            (Period::Month, Unit::Month, 1),
            (Period::Quarter, Unit::Month, 3),
            (Period::Year, Unit::Year, 1),
        ] {
            assert_eq!(period_as_time_units(period), (unit as i32, units));
        }
    }
}
