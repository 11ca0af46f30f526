use fastrand::Rng;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZoneDatabase;
use jiff::{Timestamp as Moment, Zoned};

use super::period::MICROS_PER_DAY;
use super::*;

const HOUR_US: u64 = MICROS_PER_DAY / 24;

/// Time zones with unusual changes of their offset.
const TIME_ZONES: [&str; 10] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    // Half an hour.
    "Australia/Lord_Howe",
    // No summer time, at an offset of 5:45.
    "Asia/Kathmandu",
    // The clocks skipped midnight, until 2018.
    "America/Sao_Paulo",
    "Asia/Beirut",
    // Skipped 30 December 2011.
    "Pacific/Apia",
    // Until 2011, the clocks changed one minute after midnight, back to the previous date.
    "America/St_Johns",
    "Pacific/Kiritimati",
];

/// From the epoch to the year 2103.
const MAX_TEST_TIME_S: u64 = 4_200_000_000;

fn calendar(period: Period, time_zone: &str) -> Calendar {
    Calendar::new(period).with_time_zone(time_zone).unwrap()
}

fn time(text: &str) -> Timestamp {
    Timestamp::from_secs(text.parse::<Moment>().unwrap().as_second().try_into().unwrap())
}

fn every_calendar() -> Vec<Calendar> {
    let mut all = Vec::new();
    for time_zone in TIME_ZONES {
        all.extend(Period::ALL.map(|period| calendar(period, time_zone)));
        all.extend(
            [Weekday::Thursday, Weekday::Sunday]
                .map(|day| calendar(Period::Week, time_zone).with_week_start(day)),
        );
        all.extend(STARTS.map(|(period, start)| starting(calendar(period, time_zone), start)));
    }
    all
}

/// Starts of periods: of days and hours that some months and days do not have.
const STARTS: [(Period, &str); 9] = [
    (Period::Day, "06:00"),
    (Period::Day, "02:30"),
    (Period::Day, "23:59"),
    (Period::Week, "06:00"),
    (Period::Month, "15"),
    (Period::Month, "31 12:00"),
    (Period::Quarter, "05-31"),
    (Period::Year, "04-06"),
    (Period::Year, "02-29 02:30"),
];

fn starting(calendar: Calendar, start: &str) -> Calendar {
    calendar.with_start(start).unwrap()
}

/// Returns a text that is the same for all times of a period and differs between periods, from the local time alone.
fn label(calendar: &Calendar, time: Timestamp) -> String {
    let moment = Moment::from_microsecond(time.as_micros().try_into().unwrap()).unwrap();
    let local: Zoned = moment.in_tz(calendar.time_zone()).unwrap();
    let text = calendar.start_text();
    let (date, time_of_day) = match text.split_once(' ') {
        None if text.contains(':') => ("", &*text),
        None => (&*text, "00:00"),
        Some(parts) => parts,
    };
    let since_midnight = Time::MIN.duration_until(time_of_day.parse().unwrap());
    let mut day = (local.datetime() - since_midnight).date();
    let (first_month, first_day) = match date.split_once('-') {
        Some((month, day)) => (month.parse().unwrap(), day.parse().unwrap()),
        None => (1, date.parse().unwrap_or(1)),
    };
    match calendar.period() {
        Period::Day => {}
        Period::Week => {
            while format!("{:?}", day.weekday()).to_lowercase() != calendar.week_start().name() {
                day = day.yesterday().unwrap();
            }
        }
        period => loop {
            let is_first_month = (day.month() - first_month) % period.months() as i8 == 0;
            let start = day.days_in_month().min(first_day);
            if is_first_month && day.day() >= start {
                day = Date::new(day.year(), day.month(), start).unwrap();
                break;
            }
            day = day.first_of_month().yesterday().unwrap();
        },
    }
    day.to_string()
}

#[test]
fn period_has_the_moments_of_its_local_dates() {
    let mut rng = Rng::with_seed(1);
    for calendar in every_calendar() {
        // The clocks of St. John's returned to the previous date for 59 minutes. Other clocks return to a time before
        // the start of a period if they show its start twice.
        let may_return = calendar.time_zone() == "America/St_Johns"
            || ["02:30", "23:59", "02-29 02:30"].contains(&&*calendar.start_text());
        for _ in 0..150 {
            let now =
                Timestamp::from_micros(rng.u64(800 * MICROS_PER_DAY..MAX_TEST_TIME_S * 1_000_000));
            let Range { start, end } = calendar.period_at(now);
            assert!(start <= now && now < end, "{calendar}: {now}");
            let inside = label(&calendar, start);
            let before_end = Timestamp::from_micros(end.as_micros() - 1);
            assert_eq!(label(&calendar, before_end), inside, "{calendar}: {now}, before the end");
            assert_ne!(label(&calendar, end), inside, "{calendar}: {now}, the end");
            let before_start = Timestamp::from_micros(start.as_micros().saturating_sub(1));
            if start > Timestamp::default() {
                assert_ne!(label(&calendar, before_start), inside, "{calendar}: {now}");
            }
            if !may_return {
                assert_eq!(label(&calendar, now), inside, "{calendar}: {now}");
            }
        }
    }
}

/// Scans a year in each time zone in steps in which no change of an offset is skipped. A period ends exactly where the
/// scan finds the first moment of another one.
#[test]
fn boundaries_equal_scan_of_local_dates() {
    const STEP_US: u64 = HOUR_US / 2;
    for (time_zone, year) in [
        ("UTC", 2028),
        ("Europe/Berlin", 2026),
        ("America/New_York", 2026),
        ("Australia/Lord_Howe", 2026),
        ("America/Sao_Paulo", 2018),
        ("Pacific/Apia", 2011),
    ] {
        let first = time(&format!("{year}-01-01T00:00:00Z"));
        let weeks = Weekday::ALL.map(|day| calendar(Period::Week, time_zone).with_week_start(day));
        let others = [Period::Day, Period::Month, Period::Quarter, Period::Year];
        let starts =
            [(Period::Day, "06:00"), (Period::Month, "30"), (Period::Quarter, "02-15 12:00")]
                .map(|(period, start)| starting(calendar(period, time_zone), start));
        let others = others.map(|period| calendar(period, time_zone));
        for calendar in weeks.into_iter().chain(others).chain(starts) {
            let mut period = calendar.period_at(first);
            let (mut inside, mut boundaries) = (label(&calendar, first), 0);
            for step in 1..=367 * 48 {
                let now = Timestamp::from_micros(first.as_micros() + step * STEP_US);
                let now_label = label(&calendar, now);
                if now_label != inside {
                    assert_eq!(period.end, now, "{calendar}: end of {inside}");
                    let before = Timestamp::from_micros(now.as_micros() - 1);
                    assert_eq!(calendar.period_at(before), period, "{calendar}: {inside}");
                    let next = calendar.period_at(now);
                    assert_eq!(next.start, now, "{calendar}: start of {now_label}");
                    (period, inside) = (next, now_label);
                    boundaries += 1;
                }
            }
            // The first moment can be in the previous year of the time zone.
            let expected = match calendar.period() {
                // A date that the clocks skip has a period before the start of the next date.
                Period::Day => 366..=367 + usize::from(!calendar.start_text().is_empty()),
                Period::Week => 52..=53,
                Period::Month => 12..=13,
                Period::Quarter => 4..=5,
                Period::Year => 1..=2,
            };
            assert!(expected.contains(&boundaries), "{calendar}: {boundaries}");
        }
    }
}

#[test]
fn counter_time_has_one_window_per_period() {
    let mut rng = Rng::with_seed(2);
    for calendar in every_calendar() {
        let window_us = calendar.period().window_us();
        let mut time = Timestamp::from_secs(rng.u64(..3_000_000_000));
        let mut last_window = None;
        for _ in 0..60 {
            let Range { start, end } = calendar.period_at(time);
            let length_us = end.as_micros() - start.as_micros();
            assert!(length_us <= window_us, "{calendar}: {time}");
            let window = |time: Timestamp| (time.as_micros() + calendar.phase_us(time)) / window_us;
            let first = window(start);
            assert_eq!(window(Timestamp::from_micros(end.as_micros() - 1)), first, "{calendar}");
            assert!(last_window < Some(first), "{calendar}: {time}");
            let counter_end_us = end.as_micros() + calendar.phase_us(start);
            assert_eq!(counter_end_us, (first + 1) * window_us, "{calendar}: {time}");
            (time, last_window) = (end, Some(first));
        }
    }
}

/// The doubles of Redis represent counter times exactly, and a boundary leads to the phase at any time near it.
#[test]
fn nearest_boundary_has_phase_before_and_after_it() {
    let mut rng = Rng::with_seed(3);
    for calendar in every_calendar() {
        for _ in 0..100 {
            let now = Timestamp::from_secs(rng.u64(100_000_000..MAX_TEST_TIME_S));
            let Range { start, end } = calendar.period_at(now);
            // The last decision was in any other period.
            calendar.period_at(Timestamp::from_secs(rng.u64(..MAX_TEST_TIME_S)));
            let PeriodBoundary { phase_us, window, phase_step_s } = calendar.nearest_boundary(now);
            let half_us = (end.as_micros() - start.as_micros()) / 2;
            // The time of another machine.
            let time = Timestamp::from_micros(now.as_micros() + rng.u64(..half_us) - half_us / 2);
            let mut counter_us = time.as_micros() + phase_us;
            if counter_us >= u64::from(window) * calendar.period().window_us() {
                counter_us += u64::from(phase_step_s) * 1_000_000;
            }
            assert_eq!(counter_us, time.as_micros() + calendar.phase_us(time), "{calendar}: {now}");
            assert!(counter_us < 1 << 53, "{calendar}: {now}");
        }
    }
}

#[test]
fn late_time_is_measured_with_phase_of_later_period() {
    let calendar = calendar(Period::Month, "Europe/Berlin");
    let late = time("2026-02-28T22:59:59Z");
    let counter_late = Timestamp::from_micros(late.as_micros() + calendar.phase_us(late));
    let number = calendar.period_span_at(time("2026-03-01T12:00:00Z")).number;
    let shifted = calendar.counter_time_in_period(counter_late, number);
    // March has 31 days less an hour.
    let window_end_us = (number + 1) * calendar.period().window_us();
    assert_eq!(window_end_us - shifted.as_micros(), (31 * 86_400 - 3_600 + 1) * 1_000_000);
}

#[test]
fn mean_periods_bound_the_end_and_start_of_windows() {
    use crate::algorithm::additive::BucketLayout;
    for calendar in every_calendar() {
        let (period, epoch_offset_in_first_period_s) =
            (calendar.period(), calendar.epoch_offset_in_first_period_s());
        let (bucket_us, mean_excess_us) = (period.window_us(), period.mean_window_excess_us());
        let layout =
            BucketLayout { bucket_us, buckets: 1, mean_excess_us, epoch_offset_in_first_period_s };
        let mut time = Timestamp::default();
        while time < Timestamp::from_secs(2 * MAX_TEST_TIME_S) {
            let span = calendar.period_span_at(time);
            let latest_us = layout.latest_expiry_us(span.number);
            assert!(span.end_us <= latest_us, "{calendar}: {time}");
            assert!(latest_us - span.end_us < 17 * MICROS_PER_DAY, "{calendar}: {time}");
            assert!(layout.earliest_start_us(span.number) <= span.start_us, "{calendar}: {time}");
            // Not every day and week: each one reads the rules of the time zone.
            let skipped = if matches!(period, Period::Day | Period::Week) { 97 } else { 0 };
            time = Timestamp::from_micros(span.end_us + skipped * MICROS_PER_DAY);
        }
    }
}

#[test]
fn known_periods_have_known_lengths() {
    let hours = |period, time_zone, at| {
        let Range { start, end } = calendar(period, time_zone).period_at(time(at));
        (end.as_micros() - start.as_micros()) / (HOUR_US / 4)
    };
    for (period, time_zone, at, quarters_of_an_hour) in [
        (Period::Day, "Europe/Berlin", "2026-03-29T12:00:00Z", 23 * 4),
        (Period::Day, "Europe/Berlin", "2026-10-25T12:00:00Z", 25 * 4),
        (Period::Day, "America/New_York", "2026-03-08T12:00:00Z", 23 * 4),
        (Period::Day, "Australia/Lord_Howe", "2026-04-05T00:00:00Z", 98),
        (Period::Day, "Australia/Lord_Howe", "2026-10-04T00:00:00Z", 94),
        (Period::Day, "Asia/Kathmandu", "2026-03-29T12:00:00Z", 96),
        // The clocks skipped midnight.
        (Period::Day, "America/Sao_Paulo", "2018-11-04T12:00:00Z", 23 * 4),
        (Period::Day, "Asia/Beirut", "2026-03-29T12:00:00Z", 23 * 4),
        (Period::Week, "Europe/Berlin", "2026-03-29T12:00:00Z", 167 * 4),
        (Period::Month, "UTC", "2028-02-29T12:00:00Z", 29 * 96),
        (Period::Month, "UTC", "2027-02-28T12:00:00Z", 28 * 96),
        (Period::Quarter, "Europe/Berlin", "2026-02-01T00:00:00Z", 90 * 96 - 4),
        (Period::Year, "Europe/Berlin", "2028-02-01T00:00:00Z", 366 * 96),
    ] {
        assert_eq!(hours(period, time_zone, at), quarters_of_an_hour, "{period} {time_zone} {at}");
    }
    let month = calendar(Period::Month, "Europe/Berlin").period_at(time("2026-03-31T21:00:00Z"));
    assert_eq!(month, time("2026-02-28T23:00:00Z")..time("2026-03-31T22:00:00Z"));
    let week = calendar(Period::Week, "UTC").with_week_start(Weekday::Sunday);
    let week = week.period_at(time("2026-11-25T13:00:00Z"));
    assert_eq!(week, time("2026-11-22T00:00:00Z")..time("2026-11-29T00:00:00Z"));
}

/// The clocks of St. John's showed one minute of 7 November 2010, and then an hour of the day before again.
#[test]
fn returned_date_belongs_to_later_period() {
    let day = calendar(Period::Day, "America/St_Johns");
    let sixth = time("2010-11-06T02:30:00Z")..time("2010-11-07T02:30:00Z");
    let seventh = time("2010-11-07T02:30:00Z")..time("2010-11-08T03:30:00Z");
    assert_eq!(day.period_at(time("2010-11-07T02:29:59Z")), sixth);
    for at in ["02:30:00", "02:30:59", "02:31:00", "03:29:59", "03:30:00"] {
        // The period of the last decision is remembered.
        day.period_at(Timestamp::default());
        assert_eq!(day.period_at(time(&format!("2010-11-07T{at}Z"))), seventh, "{at}");
    }
}

#[test]
fn start_moves_period_boundaries() {
    let period_at = |period, time_zone, start, at| {
        starting(calendar(period, time_zone), start).period_at(time(at))
    };
    for (period, start, at, first, end) in [
        (Period::Day, "06:00", "2026-03-05T05:59:59Z", "2026-03-04T06", "2026-03-05T06"),
        (Period::Day, "06:00", "2026-03-05T06:00:00Z", "2026-03-05T06", "2026-03-06T06"),
        (Period::Week, "06:00", "2026-03-05T06:00:00Z", "2026-03-02T06", "2026-03-09T06"),
        (Period::Month, "15", "2026-03-14T23:59:59Z", "2026-02-15T00", "2026-03-15T00"),
        (Period::Month, "15 06:00", "2026-03-15T06:00:00Z", "2026-03-15T06", "2026-04-15T06"),
        // February has no day 31, so its last day is the start.
        (Period::Month, "31", "2026-02-28T00:00:00Z", "2026-02-28T00", "2026-03-31T00"),
        (Period::Month, "31", "2026-02-27T00:00:00Z", "2026-01-31T00", "2026-02-28T00"),
        (Period::Quarter, "02-01", "2026-01-15T00:00:00Z", "2025-11-01T00", "2026-02-01T00"),
        (Period::Quarter, "11-01", "2026-01-15T00:00:00Z", "2025-11-01T00", "2026-02-01T00"),
        (Period::Year, "04-06", "2026-04-05T00:00:00Z", "2025-04-06T00", "2026-04-06T00"),
        (Period::Year, "02-29", "2026-03-05T00:00:00Z", "2026-02-28T00", "2027-02-28T00"),
    ] {
        let expected = [first, end].map(|hour| time(&format!("{hour}:00:00Z")));
        assert_eq!(period_at(period, "UTC", start, at), expected[0]..expected[1], "{start} {at}");
    }
    // The clocks of Berlin skip 02:30 on 29 March, and show it twice on 25 October.
    for (at, first, end) in [
        ("2026-03-29T00:59:59Z", "2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z"),
        ("2026-03-29T01:00:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"),
        ("2026-10-25T00:29:59Z", "2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z"),
        ("2026-10-25T01:10:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
    ] {
        let expected = time(first)..time(end);
        assert_eq!(period_at(Period::Day, "Europe/Berlin", "02:30", at), expected, "{at}");
    }
}

#[test]
fn start_is_written_in_shortest_form() {
    for (period, start, shortest) in [
        (Period::Day, "00:00", ""),
        (Period::Day, "6:05", " from 06:05"),
        (Period::Month, "1", ""),
        (Period::Month, "01 00:00", ""),
        (Period::Month, "05 06:00", " from 5 06:00"),
        (Period::Month, "06:00", " from 06:00"),
        (Period::Quarter, "10-01", ""),
        (Period::Quarter, "11-30", " from 02-30"),
        (Period::Year, "4-6", " from 04-06"),
        (Period::Year, "12-31 23:59", " from 12-31 23:59"),
    ] {
        let calendar = starting(Calendar::new(period), start);
        assert_eq!(calendar.to_string(), format!("{period} UTC{shortest}"), "{start}");
        let fields = serde_json::to_string(&calendar).unwrap();
        assert_eq!(serde_json::from_str::<Calendar>(&fields).unwrap(), calendar, "{fields}");
        assert_eq!(fields.contains("\"start\""), !shortest.is_empty(), "{fields}");
    }
    let week = starting(Calendar::new(Period::Week).with_week_start(Weekday::Sunday), "06:00");
    assert_eq!(week.to_string(), "week UTC from sunday 06:00");
}

#[test]
fn invalid_start_has_example() {
    for (period, starts) in [
        (Period::Day, &["6", "24:00", "06:60", "06:0", "06", "a:00", "-1:00", "06:00:00"][..]),
        (Period::Week, &["sunday", "1", ""]),
        (Period::Month, &["0", "32", "04-06", "06:00 15", "15 6", "15 06:00 UTC"]),
        (Period::Quarter, &["15", "13-01", "00-01", "01-00", "01-32", "01-01-01"]),
        (Period::Year, &["april", "4/6", "001-01"]),
    ] {
        for start in starts {
            let error = Calendar::new(period).with_start(start).unwrap_err().to_string();
            let expected = format!("`{start}` is not the start of a {period}; write ");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}

#[test]
fn every_time_zone_has_periods_at_any_time() {
    for name in TimeZoneDatabase::bundled().available() {
        let Ok(day) = Calendar::new(Period::Day).with_time_zone(name.as_str()) else {
            assert_eq!(name.as_str(), "Etc/Unknown");
            continue;
        };
        for time in [0, 1, 1_000_000_000, 1_774_746_000, 4_102_444_800, u64::MAX] {
            let now = Timestamp::from_secs(time);
            let Range { start, end } = day.period_at(now);
            assert!(start <= now && start < end, "{name}: {time}");
            assert_eq!(now < end, time < u64::MAX, "{name}: {time}");
            day.nearest_boundary(now);
        }
    }
}

#[test]
fn changing_offset_never_makes_period_longer_than_window() {
    for name in TimeZoneDatabase::bundled().available() {
        let Ok(day) = Calendar::new(Period::Day).with_time_zone(name.as_str()) else { continue };
        for change in day.0.time_zone.following(Moment::UNIX_EPOCH).take(80) {
            let seconds = u64::try_from(change.timestamp().as_second()).unwrap();
            for hours in [0, 12, 24] {
                let Range { start, end } =
                    day.period_at(Timestamp::from_secs(seconds + hours * 3_600));
                assert!(end.as_micros() - start.as_micros() <= Period::Day.window_us(), "{name}");
            }
        }
    }
}

#[test]
fn equal_calendars_are_the_same() {
    let berlin = calendar(Period::Month, "europe/berlin");
    assert_eq!(berlin, calendar(Period::Month, "Europe/Berlin"));
    assert_eq!(berlin, berlin.with_week_start(Weekday::Sunday));
    assert_eq!(berlin.time_zone(), "Europe/Berlin");
    assert_ne!(berlin, calendar(Period::Year, "Europe/Berlin"));
    assert_ne!(berlin, Calendar::new(Period::Month));
    assert_eq!(calendar(Period::Month, "UTC"), Calendar::new(Period::Month));
    let week = Calendar::new(Period::Week);
    assert_ne!(week, week.with_week_start(Weekday::Sunday));
}

#[test]
fn unknown_name_has_suggestion() {
    let time_zone = |name| Calendar::new(Period::Day).with_time_zone(name).unwrap_err().to_string();
    for (name, suggestion) in [
        ("Europe/Berln", "Europe/Berlin"),
        ("berlin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("utcc", "UTC"),
    ] {
        let error = format!("`{name}` is not a time zone; did you mean `{suggestion}`?");
        assert_eq!(time_zone(name), error);
    }
    assert!(time_zone("xyzzy/42").ends_with("such as `Europe/Berlin` or `UTC`"));
    assert!(time_zone("Etc/Unknown").starts_with("`Etc/Unknown` is not a time zone"));
    assert!(time_zone(&"x".repeat(10_000)).contains("is not a time zone"));
    for (name, suggestion) in [("monthly", "month"), ("quater", "quarter"), ("Day", "day")] {
        let error = name.parse::<Period>().unwrap_err().to_string();
        assert_eq!(error, format!("`{name}` is not a period; did you mean `{suggestion}`?"));
    }
    let error = "fortnight".parse::<Period>().unwrap_err().to_string();
    assert!(error.ends_with("write `day`, `week`, `month`, `quarter` or `year`"), "{error}");
    let error = "sun".parse::<Weekday>().unwrap_err().to_string();
    assert_eq!(error, "`sun` is not a day of the week; did you mean `sunday`?");
}
