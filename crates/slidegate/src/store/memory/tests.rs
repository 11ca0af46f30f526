//! Tests of windows after a step of the wall clock.

#![cfg(feature = "calendar")]

use std::time::Duration;

use super::MemoryStore;
use crate::algorithm::{Algorithm, Align};
use crate::calendar::{Calendar, Period};
use crate::clock::{Clock, CorrectedClock, ManualClock, ProcessorClock, Timestamp};
use crate::hit::Hit;
use crate::key::{Key, Scope, Value};
use crate::limit::Limit;
use crate::outcome::Outcome;
use crate::store::SyncStore;

/// 15 June 2025, 15:07 UTC.
const START: Timestamp = Timestamp::from_secs(1_750_000_020);
const HOUR_S: i64 = 3_600;
const YEARS_S: i64 = 26 * 31_557_600;

/// A memory store whose wall clock steps.
struct Fixture {
    store: MemoryStore<CorrectedClock<ProcessorClock, ManualClock>>,
    processor: std::sync::Arc<quanta::Mock>,
    wall: ManualClock,
    scope: Scope,
}

impl Fixture {
    fn new() -> Self {
        let (clock, processor) = quanta::Clock::mock();
        let wall = ManualClock::at(START);
        let clock = CorrectedClock::new(ProcessorClock::new(clock), wall.clone());
        let scope = Scope::new("test", "rule", "limit", &["key"]);
        Self { store: MemoryStore::with_clock(clock, 100), processor, wall, scope }
    }

    fn advance(&self, duration: Duration) {
        self.processor.increment(duration);
        self.wall.advance(duration);
    }

    /// Steps the wall clock. The step is followed within a second.
    fn step(&self, seconds: i64) {
        let wall_us = self.wall.now().as_micros().saturating_add_signed(1_000_000 * seconds);
        self.wall.set(Timestamp::from_micros(wall_us));
        self.advance(Duration::from_secs(1));
    }

    fn take(&self, limit: &Limit) -> Outcome {
        self.store.sweep();
        let hit = Hit::new(Key::new(&self.scope, &[Value::Text("one")]), limit, 1);
        self.store.charge(&[hit]).outcomes[0]
    }

    /// Returns the wall time at which a unit fits, in seconds, if none fits now.
    fn denied_until(&self, limit: &Limit) -> Option<u64> {
        let outcome = self.take(limit);
        let fits_at = self.wall.now().after(outcome.retry_after().unwrap());
        (!outcome.fits()).then_some(fits_at.as_micros() / 1_000_000)
    }
}

/// Returns a daily limit of one unit with a calendar, and one with windows that are aligned to the clock.
fn daily_limits() -> [Limit; 2] {
    let align = Algorithm::FixedWindow { align: Align::Clock };
    [
        Limit::calendar(1, Calendar::new(Period::Day)).unwrap(),
        Limit::new("1/d".parse().unwrap(), align).unwrap(),
    ]
}

fn next_midnight(time: Timestamp) -> u64 {
    (time.as_micros() / 86_400_000_000 + 1) * 86_400
}

#[test]
fn step_past_midnight_begins_new_day() {
    for limit in daily_limits() {
        for step_s in [10 * HOUR_S, YEARS_S] {
            let fixture = Fixture::new();
            assert!(fixture.take(&limit).fits());
            fixture.step(step_s);
            assert!(fixture.take(&limit).fits(), "{limit}: {step_s} s");
            assert_eq!(fixture.denied_until(&limit), Some(next_midnight(fixture.wall.now())));
        }
    }
}

#[test]
fn step_within_day_changes_time_until_midnight() {
    for limit in daily_limits() {
        for step_s in [5 * HOUR_S, -5 * HOUR_S] {
            let fixture = Fixture::new();
            assert!(fixture.take(&limit).fits());
            fixture.step(step_s);
            let midnight = next_midnight(START);
            assert_eq!(fixture.denied_until(&limit), Some(midnight), "{limit}: {step_s} s");
            let wall_us = fixture.wall.now().as_micros();
            fixture.advance(Duration::from_micros(1_000_000 * midnight - wall_us - 1));
            assert_eq!(fixture.denied_until(&limit), Some(midnight), "{limit}: {step_s} s");
            fixture.advance(Duration::from_micros(1));
            assert!(fixture.take(&limit).fits(), "{limit}: {step_s} s");
        }
    }
}

#[test]
fn step_back_to_earlier_day_counts_units_in_that_day() {
    for limit in daily_limits() {
        for step_s in [-20 * HOUR_S, -YEARS_S] {
            let fixture = Fixture::new();
            assert!(fixture.take(&limit).fits());
            fixture.step(step_s);
            let midnight = next_midnight(fixture.wall.now());
            assert_eq!(fixture.denied_until(&limit), Some(midnight), "{limit}: {step_s} s");
            let wall_us = fixture.wall.now().as_micros();
            fixture.advance(Duration::from_micros(1_000_000 * midnight - wall_us));
            assert!(fixture.take(&limit).fits(), "{limit}: {step_s} s");
        }
    }
}

#[test]
fn longer_calendar_periods_follow_wall_clock() {
    let ends = [(Period::Month, 1_751_328_000), (Period::Year, 1_767_225_600)];
    for (period, end_s) in ends {
        let limit = Limit::calendar(1, Calendar::new(period)).unwrap();
        for step_s in [5 * HOUR_S, -5 * HOUR_S] {
            let fixture = Fixture::new();
            fixture.step(step_s);
            assert!(fixture.take(&limit).fits());
            assert_eq!(fixture.denied_until(&limit), Some(end_s), "{limit}: {step_s} s");
        }
    }
}

#[test]
fn rolling_windows_ignore_steps() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::new("1/h".parse().unwrap(), algorithm).unwrap();
        for step_s in [5 * HOUR_S, -5 * HOUR_S, YEARS_S, -YEARS_S] {
            let (fixture, steady) = (Fixture::new(), Fixture::new());
            assert!(fixture.take(&limit).fits() && steady.take(&limit).fits());
            fixture.step(step_s);
            steady.advance(Duration::from_secs(1));
            let outcome = fixture.take(&limit);
            assert!(!outcome.fits(), "{limit}: {step_s} s");
            assert_eq!(outcome, steady.take(&limit), "{limit}: {step_s} s");
        }
    }
}
