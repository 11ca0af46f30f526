//! The dates at which the periods of a calendar begin, and the moments of these dates in a time zone.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::{CalendarRules, Period, PeriodSpan, Weekday};

const DAY_S: i64 = 86_400;

/// The latest time for which periods are computed, in seconds since the Unix epoch: in the year 9892. Later times belong
/// to the period of this time.
const MAX_TIME_S: i64 = 250_000_000_000;

/// The last day on which a period begins, as the number of days since the Unix epoch: in the year 9999.
const MAX_DAY: i64 = 2_932_800;

/// Returns the period that contains a time, between the previous and the next one. The first period has no previous one;
/// its place has the first period itself.
pub(super) fn spans_around(rules: &CalendarRules, time_us: u64) -> [PeriodSpan; 3] {
    let current = span_containing(rules, time_us);
    let previous = match current.start_us {
        0 => current,
        start_us => span_containing(rules, start_us - 1),
    };
    [previous, current, span_containing(rules, current.end_us)]
}

/// Returns the period that contains a time.
fn span_containing(rules: &CalendarRules, time_us: u64) -> PeriodSpan {
    let time_s = i64::try_from(time_us / 1_000_000).unwrap_or(MAX_TIME_S).min(MAX_TIME_S);
    let local = match Timestamp::from_second(time_s) {
        Ok(time) => rules.time_zone.to_datetime(time).date(),
        Err(_) => Date::constant(1970, 1, 1),
    };
    let number = number_of(rules, local);
    // The clocks may return to the previous date for a while. A period begins when its date begins for the first time, so
    // this time is in the later period.
    let has_ended = |span: &PeriodSpan| span.end_us / 1_000_000 <= time_s.unsigned_abs();
    let span = span_of_number(rules, number);
    if has_ended(&span) { span_of_number(rules, number + 1) } else { span }
}

/// Returns the period with a number. It is empty if the time zone skips all of its days.
pub(super) fn span_of_number(rules: &CalendarRules, number: u64) -> PeriodSpan {
    PeriodSpan {
        number,
        start_us: start_us(rules, number),
        end_us: start_us(rules, number.saturating_add(1)),
    }
}

/// Returns the time at which a period begins. The first one begins at the Unix epoch.
fn start_us(rules: &CalendarRules, number: u64) -> u64 {
    if number == 0 {
        return 0;
    }
    let day = first_day(rules, number);
    let midnight = date_from_days(day).at(0, 0, 0, 0);
    // If the clocks skip midnight, this is the first moment after; if they show it twice, the first of both.
    let start_s = rules.time_zone.to_timestamp(midnight).map_or(day * DAY_S, Timestamp::as_second);
    u64::try_from(start_s).unwrap_or(0).saturating_mul(1_000_000)
}

/// Returns the first day of a period, as the number of days since the Unix epoch.
fn first_day(rules: &CalendarRules, number: u64) -> i64 {
    let number = i64::try_from(number).unwrap_or(i64::MAX).min(MAX_DAY);
    let first_day_of_month = |month: i64| {
        let year = i16::try_from(1970 + month / 12).unwrap_or(i16::MAX).min(9_999);
        Date::new(year, (month % 12 + 1) as i8, 1).map_or(0, days_since_epoch)
    };
    match rules.period {
        Period::Day => number,
        Period::Week => number * 7 - days_before_epoch_in_week(rules.week_start),
        Period::Month => first_day_of_month(number),
        Period::Quarter => first_day_of_month(number.saturating_mul(3)),
        Period::Year => first_day_of_month(number.saturating_mul(12)),
    }
}

/// Returns the number of the period that contains a date.
fn number_of(rules: &CalendarRules, date: Date) -> u64 {
    let month = (i64::from(date.year()) - 1970) * 12 + i64::from(date.month()) - 1;
    let number = match rules.period {
        Period::Day => days_since_epoch(date),
        Period::Week => {
            (days_since_epoch(date) + days_before_epoch_in_week(rules.week_start)).div_euclid(7)
        }
        Period::Month => month,
        Period::Quarter => month.div_euclid(3),
        Period::Year => month.div_euclid(12),
    };
    // West of Greenwich, the Unix epoch is in 1969.
    u64::try_from(number).unwrap_or(0)
}

/// Returns the number of days from the first day of a week to 1 January 1970, a Thursday in that week.
fn days_before_epoch_in_week(week_start: Weekday) -> i64 {
    const THURSDAY: i64 = Weekday::Thursday as i64;
    (THURSDAY - week_start as i64).rem_euclid(7)
}

fn days_since_epoch(date: Date) -> i64 {
    let midnight = TimeZone::UTC.to_timestamp(date.at(0, 0, 0, 0));
    midnight.map_or(0, |midnight| midnight.as_second().div_euclid(DAY_S))
}

fn date_from_days(days: i64) -> Date {
    let midnight = Timestamp::from_second(days.saturating_mul(DAY_S)).unwrap_or(Timestamp::MAX);
    TimeZone::UTC.to_datetime(midnight).date()
}
