//! A property of calendar limits, compared with an oracle that knows only local dates.

use std::collections::HashMap;
use std::time::Duration;

use fastrand::Rng;
use jiff::ToSpan;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::calendar::{Calendar, Period, Weekday};
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::hit::Hit;
use crate::key::{Key, Scope, Value};
use crate::limit::Limit;
use crate::outcome::Outcome;
use crate::store::Store;

use super::properties::unwrap_store_response;
use super::trace::MAX_BACKWARD_STEP;

/// Time zones in which the tested periods begin: with changes of an hour and of half an hour, without changes, and with
/// changes that skip midnight.
pub(super) const TIME_ZONES: [&str; 8] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Sao_Paulo",
    "Asia/Beirut",
    "Pacific/Apia",
];

/// Draws a calendar of any period.
pub(super) fn draw_calendar(rng: &mut Rng) -> Calendar {
    draw_calendar_and_start(rng).0
}

/// Draws a calendar of any period, and the start of its periods.
fn draw_calendar_and_start(rng: &mut Rng) -> (Calendar, RandomPeriodStart) {
    let period = Period::ALL[rng.usize(..Period::ALL.len())];
    let time_zone = TIME_ZONES[rng.usize(..TIME_ZONES.len())];
    let calendar = new_calendar(period, time_zone);
    let calendar = calendar.with_week_start(Weekday::ALL[rng.usize(..7)]);
    let start = RandomPeriodStart::draw(rng, period);
    match calendar.with_start(&start.text(period)) {
        Ok(calendar) => (calendar, start),
        Err(error) => unreachable!("the start is valid: {error}"),
    }
}

/// The date and the time at which periods begin.
struct RandomPeriodStart {
    /// The month from 1; 1 if the periods have no month.
    month: i64,
    /// The day of the month from 1; 1 if the periods have no day.
    day: i8,
    /// Midnight, or an hour that no clock shows twice.
    hour: i8,
}

impl RandomPeriodStart {
    fn draw(rng: &mut Rng, period: Period) -> Self {
        let has_month = matches!(period, Period::Quarter | Period::Year);
        let has_day = has_month || period == Period::Month;
        Self {
            month: if has_month && rng.bool() { rng.i64(1..=12) } else { 1 },
            day: if has_day && rng.bool() { rng.i8(1..=31) } else { 1 },
            hour: if rng.bool() { rng.i8(4..22) } else { 0 },
        }
    }

    fn text(&self, period: Period) -> String {
        let Self { month, day, hour } = self;
        match period {
            Period::Day | Period::Week => format!("{hour:02}:00"),
            Period::Month => format!("{day} {hour:02}:00"),
            Period::Quarter | Period::Year => format!("{month:02}-{day:02} {hour:02}:00"),
        }
    }
}

/// Creates a calendar in one of the [`TIME_ZONES`].
pub(super) fn new_calendar(period: Period, time_zone: &str) -> Calendar {
    match Calendar::new(period).with_time_zone(time_zone) {
        Ok(calendar) => calendar,
        Err(error) => unreachable!("the time zones of the tests exist: {error}"),
    }
}

/// An oracle that counts the charges of each period. It finds the period of a time from the local date, not from the
/// start and the end of the period.
struct PeriodOracle {
    calendar: Calendar,
    start: RandomPeriodStart,
    time_zone: TimeZone,
    charged: HashMap<i64, u64>,
}

impl PeriodOracle {
    fn new(calendar: Calendar, start: RandomPeriodStart) -> Self {
        match TimeZoneDatabase::bundled().get(calendar.time_zone()) {
            Ok(time_zone) => Self { calendar, start, time_zone, charged: HashMap::new() },
            Err(error) => unreachable!("a calendar has a time zone that exists: {error}"),
        }
    }

    /// Returns a number that is the same for all times of a period, and different for all other periods.
    fn period_id(&self, time: Timestamp) -> i64 {
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let moment = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
        // The local time, and the date on which it counts if days begin at the hour of the start instead of midnight.
        let local = self.time_zone.to_datetime(moment);
        let date = (local - i64::from(self.start.hour).hours()).date();
        // The number of days since a Monday, from which the number of the week follows.
        let days = jiff::civil::date(1900, 1, 1).duration_until(date).as_hours() / 24;
        let is_before_day = date.day() < self.start.day.min(date.days_in_month());
        let months = i64::from(date.year()) * 12 + i64::from(date.month())
            - self.start.month
            - i64::from(is_before_day);
        match self.calendar.period() {
            Period::Day => days,
            Period::Week => (days - self.calendar.week_start() as i64).div_euclid(7),
            Period::Month => months,
            Period::Quarter => months.div_euclid(3),
            Period::Year => months.div_euclid(12),
        }
    }
}

/// Tests that each period of a random calendar has its own count, that a request is admitted if and only if its cost
/// fits the count of its period, and that the `retry_after` of a denial leads to exactly the start of the next period:
/// the request does not fit a microsecond before, and fits then.
///
/// A request whose time is slightly before a boundary, and that is decided after a request of the next period, is
/// counted in the next period.
pub async fn calendar_periods_are_counted_separately<S: Store>(
    store: &S,
    clock: &ManualClock,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let ((calendar, start), max) = (draw_calendar_and_start(&mut rng), rng.u64(1..20));
    let limit = match Limit::calendar(max, calendar) {
        Ok(limit) => limit,
        Err(error) => unreachable!("the limit is valid: {error}"),
    };
    let scope = Scope::new("test", &format!("calendar-{seed}"), "limit", &["key"]);
    let hit = |cost| Hit::new(Key::new(&scope, &[Value::Text("one")]), &limit, cost);
    let peek =
        async |cost| -> Outcome { unwrap_store_response(store.peek_async(&[hit(cost)]).await)[0] };
    let mut oracle = PeriodOracle::new(calendar, start);
    // The years from 2009 to 2037 contain a change of the date line and skipped midnights.
    clock.set(Timestamp::from_secs(1_240_000_000 + rng.u64(..900_000_000)));
    let mut last_charge = Timestamp::default();
    for step in 0..120 {
        let now_us = clock.now().as_micros();
        let end_us = calendar.period_at(clock.now()).end.as_micros();
        let next_us = match rng.u32(..10) {
            0..=4 => now_us + rng.u64(..=(end_us - now_us) / 3),
            5 => end_us - 1,
            6 => end_us,
            7 => end_us + rng.u64(..1_000),
            // A time slightly before the previous one, as from another machine whose clock is behind.
            8 => now_us - rng.u64(..=MAX_BACKWARD_STEP.as_micros() as u64),
            _ => now_us + rng.u64(..=2 * (end_us - now_us)),
        };
        clock.set(Timestamp::from_micros(next_us));
        let (now, cost) = (clock.now(), rng.u64(1..=max));
        let context = format!("{limit}, seed {seed}, step {step}, at {now}");
        let period_id = oracle.period_id(now.max(last_charge));
        let charged = oracle.charged.get(&period_id).copied().unwrap_or_default();
        let result = unwrap_store_response(store.charge_async(&[hit(cost)]).await);
        let outcome = result.outcomes[0];
        assert_eq!(result.allowed, charged + cost <= max, "{context}: {charged} + {cost}");
        if result.allowed {
            *oracle.charged.entry(period_id).or_default() += cost;
            last_charge = now.max(last_charge);
            assert_eq!(outcome.remaining(), max - charged - cost, "{context}");
        }
        let boundary = now.after(outcome.reset_after());
        let before = Timestamp::from_micros(boundary.as_micros() - 1);
        assert_eq!(oracle.period_id(before), period_id, "{context}: the last moment of the period");
        assert_ne!(
            oracle.period_id(boundary),
            period_id,
            "{context}: the first moment of the next one"
        );
        if !result.allowed {
            assert_eq!(outcome.retry_after(), Some(outcome.reset_after()), "{context}");
            if rng.bool() {
                clock.set(before);
                assert!(!peek(cost).await.fits(), "{context}: allowed too early");
                clock.set(boundary);
                assert!(peek(max).await.fits(), "{context}: denied at the boundary");
                assert_eq!(peek(1).await.reset_after(), Duration::ZERO, "{context}");
            }
        }
    }
}
