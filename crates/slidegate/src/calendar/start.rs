//! The date and the time of day at which the periods of a calendar begin.

use jiff::civil::{Date, DateTime, Time};

use super::{CalendarError, Period};

const MINUTES_PER_HOUR: u16 = 60;

/// The date and the time of day at which the periods of a calendar begin. The default is midnight of the first day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeriodStart {
    /// The number of months from January to the first month of a period; less than the number of months of a period.
    pub(super) month_offset: u8,
    /// The number of days from the first day of the month to the start. A month without this day has its last day
    /// instead.
    pub(super) day_offset: u8,
    /// The time of day of the start, in minutes from midnight, as the clocks show it.
    minute_of_day: u16,
}

impl PeriodStart {
    /// Parses a date, a time or both, in the notation that the period has: `15`, `04-06`, `06:00` or `15 06:00`.
    pub(super) fn parse(text: &str, period: Period) -> Result<Self, CalendarError> {
        let parsed = match text.split_whitespace().collect::<Vec<_>>()[..] {
            [time] if time.contains(':') => Self::default().with_time(time),
            [date] => Self::from_date(date, period),
            [date, time] => Self::from_date(date, period).and_then(|start| start.with_time(time)),
            _ => None,
        };
        parsed.ok_or_else(|| CalendarError::Start { text: text.to_owned(), period })
    }

    /// Returns the start at midnight of a date, such as `15` or `04-06`; `None` if it is invalid.
    fn from_date(date: &str, period: Period) -> Option<Self> {
        let (month, day) = match period {
            Period::Day | Period::Week => return None,
            Period::Month => (1, parse_number(date, 2)?),
            Period::Quarter | Period::Year => {
                let (month, day) = date.split_once('-')?;
                (parse_number(month, 2)?, parse_number(day, 2)?)
            }
        };
        if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        let month_offset = (month - 1) % period.months().max(1);
        Some(Self { month_offset, day_offset: day - 1, minute_of_day: 0 })
    }

    /// Sets the time of day, such as `06:00`; returns `None` if it is invalid.
    fn with_time(self, time: &str) -> Option<Self> {
        let (hour, minute) = time.split_once(':')?;
        let (hour, minute) = (parse_number(hour, 2)?, parse_number(minute, 2)?);
        let is_valid = hour < 24 && minute < 60 && time.ends_with(&format!(":{minute:02}"));
        let minute_of_day = u16::from(hour) * MINUTES_PER_HOUR + u16::from(minute);
        is_valid.then_some(Self { minute_of_day, ..self })
    }

    /// Returns the time of day.
    fn time(self) -> Time {
        let (hour, minute) = self.hour_and_minute();
        Time::new(hour as i8, minute as i8, 0, 0).unwrap_or(Time::MIN)
    }

    fn hour_and_minute(self) -> (u16, u16) {
        (self.minute_of_day / MINUTES_PER_HOUR, self.minute_of_day % MINUTES_PER_HOUR)
    }

    /// Returns the moment of a day at which a period begins.
    pub(super) fn period_start_on(self, date: Date) -> DateTime {
        date.to_datetime(self.time())
    }

    /// Returns the date to which a moment belongs, if each day begins at the time of day of this start.
    pub(super) fn date_containing(self, moment: DateTime) -> Date {
        if moment.time() < self.time() {
            moment.date().yesterday().unwrap_or(Date::MIN)
        } else {
            moment.date()
        }
    }

    /// Returns the number of days from the first day of a month to the day on which a period begins.
    pub(super) fn day_offset_in_month(self, date: Date) -> i64 {
        i64::from(self.day_offset).min(i64::from(date.days_in_month()) - 1)
    }

    /// Returns the start as text that [`parse`](Self::parse) reads; empty for the default.
    pub(super) fn to_text(self, period: Period) -> String {
        let day = self.day_offset + 1;
        let date = match period {
            _ if (self.month_offset, self.day_offset) == (0, 0) => String::new(),
            Period::Quarter | Period::Year => format!("{:02}-{day:02}", self.month_offset + 1),
            Period::Day | Period::Week | Period::Month => day.to_string(),
        };
        let time = match self.hour_and_minute() {
            (0, 0) => String::new(),
            (hour, minute) => format!(" {hour:02}:{minute:02}"),
        };
        (date + &time).trim_start().to_owned()
    }
}

/// Parses a number of one to `max_digits` digits.
fn parse_number(text: &str, max_digits: usize) -> Option<u8> {
    let is_number = text.len() <= max_digits && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}
