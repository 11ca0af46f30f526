//! The dates at which the periods of a calendar begin, and the moments of these dates in a time zone.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone};

use super::start::PeriodStart;
use super::{CalendarRules, Period, PeriodSpan, Weekday};

const SECONDS_PER_DAY: i64 = 86_400;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// The latest time for which periods are computed, in seconds since the Unix epoch: in the year 9892. Later times are
/// counted in the period of this time.
const MAX_TIME_S: i64 = 250_000_000_000;

/// The last day on which a period begins, as the number of days since the Unix epoch: in the year 9999.
const MAX_PERIOD_START_DAY: i64 = 2_932_800;

/// Returns the previous period, the period that contains a time, and the next period. For the first period, which has
/// no previous one, the first element is the first period itself.
pub(super) fn periods_around(rules: &CalendarRules, time_us: u64) -> [PeriodSpan; 3] {
    let current = period_containing(rules, time_us);
    let previous = match current.start_us {
        0 => current,
        start_us => period_containing(rules, start_us - 1),
    };
    [previous, current, period_containing(rules, current.end_us)]
}

/// Returns the period that contains a time.
fn period_containing(rules: &CalendarRules, time_us: u64) -> PeriodSpan {
    let time_s = i64::try_from(time_us / 1_000_000).unwrap_or(MAX_TIME_S).min(MAX_TIME_S);
    let local = match Timestamp::from_second(time_s) {
        Ok(time) => rules.time_zone.to_datetime(time),
        Err(_) => EPOCH,
    };
    let number = period_number_from_epoch(rules, local);
    // If the clocks go back past the start of a period, they show the times before the start again. A period begins
    // when its start is reached for the first time, so the repeated times are in the later period.
    let has_ended = |span: &PeriodSpan| span.end_us / 1_000_000 <= time_s.unsigned_abs();
    let span = period_with_number(rules, number);
    if has_ended(&span) { period_with_number(rules, number + 1) } else { span }
}

/// Returns the period with a number. It is empty if the time zone skips all of its days.
pub(super) fn period_with_number(rules: &CalendarRules, number: u64) -> PeriodSpan {
    PeriodSpan {
        number,
        start_us: start_us(rules, number),
        end_us: start_us(rules, number.saturating_add(1)),
    }
}

/// Returns the time at which a period begins. Period 0 begins at the Unix epoch, because no time is earlier.
fn start_us(rules: &CalendarRules, number: u64) -> u64 {
    if number == 0 {
        return 0;
    }
    let local = local_period_start(rules, number);
    let start_s =
        first_second_at_or_after(&rules.time_zone, local).unwrap_or_else(|| utc_second(local));
    u64::try_from(start_s).unwrap_or(0).saturating_mul(1_000_000)
}

/// Returns the first second at which the clocks show `local` or a later time: if they skip it, the second at which they
/// skip; if they show it twice, the first one. Returns `None` if it is out of range.
fn first_second_at_or_after(time_zone: &TimeZone, local: DateTime) -> Option<i64> {
    let ambiguous = time_zone.to_ambiguous_timestamp(local);
    if let AmbiguousOffset::Gap { after, .. } = ambiguous.offset() {
        // With the offset after the change, the skipped time is a moment before the change. The next transition is then
        // the change.
        let before_change = after.to_timestamp(local).ok()?;
        return Some(time_zone.following(before_change).next()?.timestamp().as_second());
    }
    Some(ambiguous.compatible().ok()?.as_second())
}

/// Returns the date and the time at which a period begins, on the clocks of its time zone.
fn local_period_start(rules: &CalendarRules, number: u64) -> DateTime {
    let index = i64::try_from(number).unwrap_or(i64::MAX).min(MAX_PERIOD_START_DAY)
        + period_index_from_1970(rules, EPOCH);
    let day = match rules.period {
        Period::Day => index,
        Period::Week => index * 7 - days_before_epoch_in_week(rules.week_start),
        Period::Month | Period::Quarter | Period::Year => {
            let first = first_day_of_month(
                index * i64::from(rules.period.months()) + i64::from(rules.start.month_offset),
            );
            days_since_epoch(first) + rules.start.day_offset_in_month(first)
        }
    };
    rules.start.period_start_on(date_from_days(day))
}

/// Returns the first day of a month, which is given as the number of months since January 1970.
fn first_day_of_month(month: i64) -> Date {
    let year = i16::try_from(1970 + month.div_euclid(12)).unwrap_or(i16::MAX).min(9_999);
    Date::new(year, (month.rem_euclid(12) + 1) as i8, 1).unwrap_or(EPOCH.date())
}

/// Returns the number of the period that contains a local time.
fn period_number_from_epoch(rules: &CalendarRules, local: DateTime) -> u64 {
    // West of Greenwich, local times at the Unix epoch are in 1969, before period 0. They are counted in period 0.
    u64::try_from(period_index_from_1970(rules, local) - period_index_from_1970(rules, EPOCH))
        .unwrap_or(0)
}

/// Returns the index of the period that contains a local time. The period with index 0 is the first one that begins in
/// 1970, or the week that contains 1 January 1970.
fn period_index_from_1970(rules: &CalendarRules, local: DateTime) -> i64 {
    let date = rules.start.date_containing(local);
    let days = days_since_epoch(date);
    match rules.period {
        Period::Day => days,
        Period::Week => (days + days_before_epoch_in_week(rules.week_start)).div_euclid(7),
        Period::Month | Period::Quarter | Period::Year => {
            let month = (i64::from(date.year()) - 1970) * 12 + i64::from(date.month()) - 1;
            let is_before_start = i64::from(date.day()) - 1 < rules.start.day_offset_in_month(date);
            let months = month - i64::from(rules.start.month_offset) - i64::from(is_before_start);
            months.div_euclid(rules.period.months().into())
        }
    }
}

/// Returns the duration, in seconds, by which period 0 would begin before the Unix epoch if all periods had the mean
/// length; 0 for the default start.
pub(super) fn epoch_offset_in_first_period_s(rules: &CalendarRules) -> u32 {
    if rules.start == PeriodStart::default() {
        return 0;
    }
    let end_s = u64::try_from(utc_second(local_period_start(rules, 1))).unwrap_or(0);
    let epoch_offset_in_first_period_s =
        (rules.period.mean_length_us() / 1_000_000).saturating_sub(end_s);
    u32::try_from(epoch_offset_in_first_period_s).unwrap_or(u32::MAX)
}

/// Returns the number of days from the first day of a week to 1 January 1970, a Thursday in that week.
fn days_before_epoch_in_week(week_start: Weekday) -> i64 {
    const THURSDAY: i64 = Weekday::Thursday as i64;
    (THURSDAY - week_start as i64).rem_euclid(7)
}

fn days_since_epoch(date: Date) -> i64 {
    utc_second(date.at(0, 0, 0, 0)).div_euclid(SECONDS_PER_DAY)
}

/// Returns the second of a date and time in UTC; 0 if it is out of range.
fn utc_second(local: DateTime) -> i64 {
    TimeZone::UTC.to_timestamp(local).map_or(0, Timestamp::as_second)
}

fn date_from_days(days: i64) -> Date {
    let midnight =
        Timestamp::from_second(days.saturating_mul(SECONDS_PER_DAY)).unwrap_or(Timestamp::MAX);
    TimeZone::UTC.to_datetime(midnight).date()
}
