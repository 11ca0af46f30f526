//! Calendars: the division of time into days, weeks, months, quarters or years of a time zone.
//!
//! A counter knows neither dates nor time zones. It counts in *counter time*, in which every period of a calendar is a
//! window of the same length, longer than any period. Period number n, counted from the one that contains the Unix
//! epoch, is the window from n to n + 1 lengths, and ends with its window:
//!
//! ```text
//! counter time = (n + 1) * length - (end of the period - time)
//! ```
//!
//! So time runs at the same rate within a period, the duration until the end of a period is the duration until the end
//! of the window, and counter time jumps forward between two periods. The difference between counter time and time, the
//! *phase*, is constant within a period. A store adds it to the time of a decision.

mod cache;
mod civil;
mod error;
mod period;
mod start;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::time::Duration;

use jiff::tz::{TimeZone, TimeZoneDatabase};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use cache::PeriodCache;
use start::PeriodStart;

pub use error::CalendarError;
pub use period::{Period, Weekday};

/// The time zone of a calendar for which none is set.
const DEFAULT_TIME_ZONE: &str = "UTC";

/// A division of time into days, weeks, months, quarters or years of a time zone. A [calendar
/// limit](crate::Limit::calendar) counts each of these periods separately.
///
/// The periods follow the rules of the IANA time zone database, which is a part of the program. A day on which the
/// clocks change has 23 or 25 hours. A period begins at the first moment of its first day, which is not midnight if the
/// clocks skip midnight, or at the date and time that [`with_start`](Self::with_start) sets.
///
/// ```
/// use slidegate::{Calendar, Period, Timestamp};
/// use slidegate::limit::Weekday;
///
/// let day = Calendar::new(Period::Day).with_time_zone("Europe/Berlin")?;
/// // 29 March 2026, when the clocks go forward.
/// let period = day.period_at(Timestamp::from_secs(1_774_800_000));
/// assert_eq!(period, Timestamp::from_secs(1_774_738_800)..Timestamp::from_secs(1_774_821_600));
/// assert_eq!(day.to_string(), "day Europe/Berlin");
///
/// let week = Calendar::new(Period::Week).with_week_start(Weekday::Sunday);
/// assert_eq!(week.to_string(), "week UTC from sunday");
///
/// let billing_month = Calendar::new(Period::Month).with_start("15")?;
/// assert_eq!(billing_month.to_string(), "month UTC from 15");
/// # Ok::<(), slidegate::limit::CalendarError>(())
/// ```
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(into = "CalendarFields", try_from = "CalendarFields")]
pub struct Calendar(&'static CalendarRules);

/// The serialized form of a calendar.
#[derive(Serialize, Deserialize)]
struct CalendarFields {
    period: Period,
    week_start: Weekday,
    time_zone: String,
    /// The start of the periods, as text; empty for midnight of the first day.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    start: String,
}

impl From<Calendar> for CalendarFields {
    fn from(calendar: Calendar) -> Self {
        let (period, week_start) = (calendar.period(), calendar.week_start());
        let (time_zone, start) = (calendar.time_zone().to_owned(), calendar.start_text());
        Self { period, week_start, time_zone, start }
    }
}

impl TryFrom<CalendarFields> for Calendar {
    type Error = CalendarError;

    fn try_from(fields: CalendarFields) -> Result<Self, CalendarError> {
        let calendar = Self::new(fields.period).with_week_start(fields.week_start);
        let calendar = calendar.with_time_zone(&fields.time_zone)?;
        if fields.start.is_empty() { Ok(calendar) } else { calendar.with_start(&fields.start) }
    }
}

/// The parameters by which a calendar divides time into periods, and the period of its last decision. There is one
/// value of a few hundred bytes per combination of period, time zone, first day of the week and start. It is never
/// freed. Only policies and code create values, so requests cannot grow the memory.
struct CalendarRules {
    period: Period,
    week_start: Weekday,
    start: PeriodStart,
    /// The average duration by which period 0 began before the Unix epoch; see
    /// [`civil::epoch_offset_in_first_period_s`].
    epoch_offset_in_first_period_s: u32,
    time_zone: TimeZone,
    time_zone_name: Box<str>,
    cache: PeriodCache,
}

/// The rules of all calendars that were created, so that equal calendars share one value.
static CALENDARS: Mutex<Vec<&'static CalendarRules>> = Mutex::new(Vec::new());

/// A period of a calendar: its number, counted from the period that contains the Unix epoch, and its start and end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PeriodSpan {
    number: u64,
    start_us: u64,
    end_us: u64,
}

impl PeriodSpan {
    fn contains(&self, time_us: u64) -> bool {
        (self.start_us..self.end_us).contains(&time_us)
    }
}

/// The end of a period for a decision that another machine makes, with a clock that differs from the clock of this
/// machine: the boundary between two periods that is nearest to this machine's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeriodBoundary {
    /// The phase, that is, counter time minus time, before the boundary, in microseconds.
    pub(crate) phase_us: u64,
    /// The number of the window, in counter time, that begins at the boundary.
    pub(crate) window: u32,
    /// The duration by which the phase grows at the boundary, in seconds.
    pub(crate) phase_step_s: u32,
}

impl Calendar {
    /// Creates a calendar of these periods in UTC, whose weeks begin on Monday.
    pub fn new(period: Period) -> Self {
        let start = PeriodStart::default();
        Self::intern(period, Weekday::Monday, start, &TimeZone::UTC, DEFAULT_TIME_ZONE)
    }

    /// Sets the time zone: a name of the IANA time zone database, such as `Europe/Berlin`, in upper or lower case.
    ///
    /// # Errors
    /// If there is no such time zone.
    pub fn with_time_zone(self, name: &str) -> Result<Self, CalendarError> {
        let time_zone = TimeZoneDatabase::bundled().get(name).ok();
        let known = time_zone.as_ref().filter(|time_zone| !time_zone.is_unknown());
        match known.and_then(|time_zone| Some((time_zone, time_zone.iana_name()?))) {
            Some((time_zone, name)) => {
                Ok(Self::intern(self.period(), self.week_start(), self.0.start, time_zone, name))
            }
            None => Err(CalendarError::TimeZone(name.to_owned())),
        }
    }

    /// Sets the first day of a week. Other periods do not depend on it.
    #[must_use]
    pub fn with_week_start(self, day: Weekday) -> Self {
        let rules = self.0;
        Self::intern(rules.period, day, rules.start, &rules.time_zone, &rules.time_zone_name)
    }

    /// Sets the date and the time of day at which periods begin: `06:00` for all periods, `15` or `15 06:00` for
    /// months, `04-06` or `04-06 06:00` for quarters and years. A month without the day has its last day instead. The
    /// date of one quarter determines the dates of the other quarters.
    ///
    /// # Errors
    /// If the text is not a start of the calendar's periods.
    pub fn with_start(self, text: &str) -> Result<Self, CalendarError> {
        let rules = self.0;
        let start = PeriodStart::parse(text, rules.period)?;
        let (time_zone, name) = (&rules.time_zone, &rules.time_zone_name);
        Ok(Self::intern(rules.period, rules.week_start, start, time_zone, name))
    }

    fn intern(
        period: Period,
        week_start: Weekday,
        start: PeriodStart,
        time_zone: &TimeZone,
        name: &str,
    ) -> Self {
        // Only weeks depend on the first day of a week. All other calendars have Monday, so that equal ones share one
        // value.
        let week_start = if period == Period::Week { week_start } else { Weekday::Monday };
        let mut calendars = CALENDARS.lock();
        let is_same = |other: &&&CalendarRules| {
            (other.period, other.week_start, other.start, &*other.time_zone_name)
                == (period, week_start, start, name)
        };
        if let Some(rules) = calendars.iter().find(is_same) {
            return Self(rules);
        }
        let mut rules = CalendarRules {
            period,
            week_start,
            start,
            epoch_offset_in_first_period_s: 0,
            time_zone: time_zone.clone(),
            time_zone_name: name.into(),
            cache: PeriodCache::default(),
        };
        rules.epoch_offset_in_first_period_s = civil::epoch_offset_in_first_period_s(&rules);
        let rules: &'static CalendarRules = Box::leak(Box::new(rules));
        calendars.push(rules);
        Self(rules)
    }

    /// Returns the length of the periods.
    pub fn period(&self) -> Period {
        self.0.period
    }

    /// Returns the name of the time zone, such as `Europe/Berlin`.
    pub fn time_zone(&self) -> &'static str {
        &self.0.time_zone_name
    }

    /// Returns the first day of a week; Monday if the periods are not weeks.
    pub fn week_start(&self) -> Weekday {
        self.0.week_start
    }

    /// Returns the date and the time at which periods begin, as [`with_start`](Self::with_start) reads it; empty for
    /// midnight of the first day.
    fn start_text(&self) -> String {
        self.0.start.to_text(self.period())
    }

    /// Returns the duration in seconds by which period 0 began before the Unix epoch, on average; 0 for the default
    /// start.
    pub(crate) fn epoch_offset_in_first_period_s(&self) -> u32 {
        self.0.epoch_offset_in_first_period_s
    }

    /// Returns the start and the end of the period that contains `time`.
    pub fn period_at(&self, time: Timestamp) -> Range<Timestamp> {
        let PeriodSpan { start_us, end_us, .. } = self.period_span_at(time);
        Timestamp::from_micros(start_us)..Timestamp::from_micros(end_us)
    }

    /// Returns the length of the period of the last decision that this process made with the calendar; the length of
    /// the longest period if there was none.
    pub(crate) fn latest_period_length(&self) -> Duration {
        match self.0.cache.periods() {
            Some([_, PeriodSpan { start_us, end_us, .. }, _]) => {
                Duration::from_micros(end_us - start_us)
            }
            None => Duration::from_micros(self.0.period.max_length_us()),
        }
    }

    /// Returns the phase: the number of microseconds that is added to a time to get the counter time.
    pub(crate) fn phase_us(&self, time: Timestamp) -> u64 {
        self.period_phase_us(&self.period_span_at(time))
    }

    fn period_phase_us(&self, span: &PeriodSpan) -> u64 {
        ((span.number + 1) * self.0.period.window_us()).saturating_sub(span.end_us)
    }

    /// Returns the boundary that is nearest to `time`. With it, a machine whose clock differs by less than half a
    /// period can convert its own time into counter time.
    pub(crate) fn nearest_boundary(&self, time: Timestamp) -> PeriodBoundary {
        let [previous, current, next] = self.adjacent_period_spans(time);
        let is_first_half = time.as_micros() < current.start_us.midpoint(current.end_us);
        let (before, after) = if is_first_half && current.start_us > 0 {
            (previous, current)
        } else {
            (current, next)
        };
        let phase_us = self.period_phase_us(&before);
        let step_us = self.period_phase_us(&after).saturating_sub(phase_us);
        // Time zones change their offset at whole seconds, so the phase grows by whole seconds.
        let to_u32 = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        PeriodBoundary {
            phase_us,
            window: to_u32(before.number + 1),
            phase_step_s: to_u32(step_us / 1_000_000),
        }
    }

    /// Converts a counter time to the counter time of the same moment with the phase of a later period, whose number is
    /// `number`. The duration from it to the end of that period's window is then the duration to the end of the period.
    pub(crate) fn counter_time_in_period(&self, counter_time: Timestamp, number: u64) -> Timestamp {
        let window_us = self.0.period.window_us();
        let own = civil::period_with_number(self.0, counter_time.as_micros() / window_us);
        let time_us = counter_time.as_micros().saturating_sub(self.period_phase_us(&own));
        let later = civil::period_with_number(self.0, number);
        Timestamp::from_micros(time_us.saturating_add(self.period_phase_us(&later)))
    }

    /// Returns the period that contains a time. Reads the rules of the time zone only if the last decision was in
    /// another period.
    fn period_span_at(&self, time: Timestamp) -> PeriodSpan {
        match self.0.cache.current() {
            Some(span) if span.contains(time.as_micros()) => span,
            _ => self.compute_periods(time)[1],
        }
    }

    /// Returns the previous period, the period that contains a time, and the next period.
    fn adjacent_period_spans(&self, time: Timestamp) -> [PeriodSpan; 3] {
        match self.0.cache.periods() {
            Some(spans) if spans[1].contains(time.as_micros()) => spans,
            _ => self.compute_periods(time),
        }
    }

    fn compute_periods(&self, time: Timestamp) -> [PeriodSpan; 3] {
        let spans = civil::periods_around(self.0, time.as_micros());
        self.0.cache.replace(&spans);
        spans
    }
}

impl From<Period> for Calendar {
    fn from(period: Period) -> Self {
        Self::new(period)
    }
}

/// Two calendars are equal if they have the same periods, time zone, first day of the week and start: they then share
/// their rules.
impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Calendar {}

impl Hash for Calendar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.0, state);
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.period(), self.time_zone())?;
        let has_week_start = self.week_start() != Weekday::default();
        let start = self.start_text();
        match (has_week_start, start.is_empty()) {
            (false, true) => Ok(()),
            (false, false) => write!(f, " from {start}"),
            (true, true) => write!(f, " from {}", self.week_start()),
            (true, false) => write!(f, " from {} {start}", self.week_start()),
        }
    }
}

#[cfg(test)]
mod tests;
