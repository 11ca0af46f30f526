//! The periods of calendars, and the days on which weeks begin.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::CalendarError;

pub(super) const MICROS_PER_DAY: u64 = 86_400_000_000;

/// The length of the periods of a [`Calendar`](super::Calendar).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    /// From midnight to midnight, unless the calendar sets another time.
    Day,
    /// Seven days, from Monday unless the calendar sets another day.
    Week,
    /// A month, from its first day unless the calendar sets another day.
    Month,
    /// Three months, from January, April, July or October unless the calendar sets another date.
    Quarter,
    /// A year, from 1 January unless the calendar sets another date.
    Year,
}

impl Period {
    /// All periods, shortest first.
    pub const ALL: [Self; 5] = [Self::Day, Self::Week, Self::Month, Self::Quarter, Self::Year];

    /// Returns the name of the period, as written in policies and keys, for example `month`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Quarter => "quarter",
            Self::Year => "year",
        }
    }

    /// Returns the largest length of a period of this kind, for example 31 days for a month, in a time zone that never
    /// changes its offset.
    pub(crate) const fn max_length_us(self) -> u64 {
        MICROS_PER_DAY
            * match self {
                Self::Day => 1,
                Self::Week => 7,
                Self::Month => 31,
                Self::Quarter => 92,
                Self::Year => 366,
            }
    }

    /// Returns the number of months of the period; 0 if it is shorter than a month.
    pub(super) const fn months(self) -> u8 {
        match self {
            Self::Day | Self::Week => 0,
            Self::Month => 1,
            Self::Quarter => 3,
            Self::Year => 12,
        }
    }

    /// Returns the length of a window in counter time: longer than any period, because a change of the offset from UTC
    /// makes a period longer by less than a day.
    pub(crate) const fn window_us(self) -> u64 {
        self.max_length_us() + MICROS_PER_DAY
    }

    /// Returns the length of a period, averaged over the 400 years in which the Gregorian calendar repeats.
    pub(super) const fn mean_length_us(self) -> u64 {
        const YEAR_US: u64 = 146_097 * MICROS_PER_DAY / 400;
        match self {
            Self::Day => MICROS_PER_DAY,
            Self::Week => 7 * MICROS_PER_DAY,
            Self::Month => YEAR_US / 12,
            Self::Quarter => YEAR_US / 4,
            Self::Year => YEAR_US,
        }
    }

    /// Returns the duration by which a window in counter time is longer than a period on average.
    pub(crate) const fn mean_window_excess_us(self) -> u64 {
        self.window_us() - self.mean_length_us()
    }
}

impl FromStr for Period {
    type Err = CalendarError;

    fn from_str(name: &str) -> Result<Self, CalendarError> {
        let found = Self::ALL.into_iter().find(|period| period.name() == name);
        found.ok_or_else(|| CalendarError::Period(name.to_owned()))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A day of the week, on which the weeks of a [`Calendar`](super::Calendar) begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weekday {
    /// Monday, as in ISO 8601. The default.
    #[default]
    Monday,
    /// Tuesday.
    Tuesday,
    /// Wednesday.
    Wednesday,
    /// Thursday.
    Thursday,
    /// Friday.
    Friday,
    /// Saturday.
    Saturday,
    /// Sunday.
    Sunday,
}

impl Weekday {
    /// All days of the week, Monday first.
    pub const ALL: [Self; 7] = [
        Self::Monday,
        Self::Tuesday,
        Self::Wednesday,
        Self::Thursday,
        Self::Friday,
        Self::Saturday,
        Self::Sunday,
    ];

    /// Returns the name of the day, as written in policies and keys, for example `monday`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Monday => "monday",
            Self::Tuesday => "tuesday",
            Self::Wednesday => "wednesday",
            Self::Thursday => "thursday",
            Self::Friday => "friday",
            Self::Saturday => "saturday",
            Self::Sunday => "sunday",
        }
    }
}

impl FromStr for Weekday {
    type Err = CalendarError;

    fn from_str(name: &str) -> Result<Self, CalendarError> {
        let found = Self::ALL.into_iter().find(|day| day.name() == name);
        found.ok_or_else(|| CalendarError::Weekday(name.to_owned()))
    }
}

impl fmt::Display for Weekday {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
