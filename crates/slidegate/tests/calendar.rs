//! Calendar limits in the library: the gate, the limiter, headers, and the identity of counters.

use std::time::Duration;

use slidegate::clock::Clock;
use slidegate::headers::{self, Style};
use slidegate::limit::{LimitError, Weekday};
use slidegate::wait::JitterSample;
use slidegate::{
    Algorithm, Align, Calendar, Descriptor, Gate, Limit, Limiter, ManualClock, MemoryStore, Period,
    Policy, Quota, Request, Timestamp,
};

/// 5 March 2026, 12:00 UTC.
const START: Timestamp = Timestamp::from_secs(1_772_712_000);

/// 1 April 2026 at midnight in Berlin, where the clocks go forward on 29 March.
const APRIL: Timestamp = Timestamp::from_secs(1_774_994_400);

fn gate(policy: &str, clock: &ManualClock) -> Gate<MemoryStore<ManualClock>> {
    Gate::new(Policy::from_yaml(policy).unwrap(), MemoryStore::with_clock(clock.clone(), 1_000))
}

fn request() -> Request<'static> {
    Request::new("default", Descriptor::new([("tenant", "acme")]))
}

fn seconds_between(from: Timestamp, to: Timestamp) -> u64 {
    (to.as_micros() - from.as_micros()) / 1_000_000
}

#[test]
fn monthly_budget_is_full_again_at_midnight_of_its_time_zone() {
    let clock = ManualClock::at(START);
    let gate = gate(
        "rules: [{ name: budget, per: [tenant], limits: [{ max: 2, calendar: month, timezone: europe/berlin }] }]",
        &clock,
    );
    assert!(gate.check(&request()).is_allowed());
    assert!(gate.check(&request()).is_allowed());
    let denied = gate.check(&request());
    let wait = Duration::from_secs(seconds_between(START, APRIL));
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(wait)));
    assert_eq!(denied.reset_after(), wait);
    clock.set(Timestamp::from_micros(APRIL.as_micros() - 1));
    assert!(!gate.check(&request()).is_allowed());
    clock.set(APRIL);
    assert!(gate.check(&request()).is_allowed());
}

#[test]
fn budget_is_full_again_at_its_start() {
    let clock = ManualClock::at(START);
    let gate = gate(
        "rules: [{ name: budget, per: [tenant], limits: [{ max: 1, calendar: month, starts: 15 06:00 }] }]",
        &clock,
    );
    assert!(gate.check(&request()).is_allowed());
    let wait = Duration::from_secs(9 * 86_400 + 18 * 3_600);
    assert_eq!(gate.check(&request()).retry_after(), Some(wait));
    clock.advance(wait - Duration::from_micros(1));
    assert!(!gate.check(&request()).is_allowed());
    clock.advance(Duration::from_micros(1));
    assert!(gate.check(&request()).is_allowed());
}

#[test]
fn headers_state_length_of_current_period() {
    let clock = ManualClock::at(START);
    // No other test uses this calendar, because the latest decision in the process determines the length.
    let gate = gate(
        "rules: [{ name: budget, per: [tenant], limits: [{ max: 2, calendar: month, timezone: Europe/Vienna }] }]",
        &clock,
    );
    for (at, period_hours) in [(START, 31 * 24 - 1), (APRIL, 30 * 24)] {
        clock.set(at);
        let decision = gate.check(&request());
        let headers = headers::write(Style::Ietf, &decision, clock.now(), JitterSample::NONE);
        let policy = format!("\"budget\";q=2;w={}", period_hours * 3_600);
        assert_eq!(headers[0], ("ratelimit-policy", policy));
        let status = decision.limits().next().unwrap();
        assert_eq!((status.id(), status.limit().window_text()), ("month", "month".to_owned()));
        assert_eq!(status.limit().window(), Duration::from_secs(period_hours * 3_600));
    }
    let until_may = seconds_between(APRIL, Timestamp::from_secs(1_777_586_400));
    let headers =
        headers::write(Style::Ietf, &gate.peek(&request()), clock.now(), JitterSample::NONE);
    assert_eq!(headers[1], ("ratelimit", format!("\"budget\";r=1;t={until_may}")));
}

#[test]
fn changed_calendar_resets_counter_and_changed_max_keeps_it() {
    let clock = ManualClock::at(START);
    let policy = |limit: &str| format!("rules: [{{ name: a, per: [tenant], limits: [{limit}] }}]");
    let gate = gate(&policy("{ max: 9, calendar: week, timezone: Europe/Berlin }"), &clock);
    assert_eq!(gate.check(&request()).remaining(), 8);
    for (limit, remaining) in [
        ("{ name: week, max: 5, calendar: week, timezone: Europe/Berlin }", 3),
        ("{ name: week, max: 5, calendar: week, timezone: europe/berlin, week_starts: monday }", 2),
        ("{ name: week, max: 5, calendar: week, timezone: Europe/Paris }", 4),
        ("{ name: week, max: 5, calendar: week }", 4),
        ("{ name: week, max: 5, calendar: week, week_starts: sunday }", 4),
        ("{ name: week, max: 5, calendar: week, starts: '06:00' }", 4),
        ("{ name: week, max: 5, calendar: week, starts: '00:00' }", 3),
        ("{ name: week, max: 5, calendar: month, timezone: Europe/Berlin }", 4),
        ("{ name: week, max: 5, window: 1w, algorithm: fixed_window, align: clock }", 4),
        ("{ max: 5, calendar: week, timezone: Europe/Berlin }", 1),
    ] {
        gate.replace_policy(Policy::from_yaml(&policy(limit)).unwrap());
        assert_eq!(gate.check(&request()).remaining(), remaining, "{limit}");
    }
}

#[test]
fn rule_algorithm_does_not_apply_to_calendar_limit() {
    let policy =
        "rules: [{ name: a, algorithm: sliding_log, limits: [1/s, { max: 5, calendar: day }] }]";
    let policy = Policy::from_yaml(policy).unwrap();
    let limits: Vec<String> = policy.limits().map(|(_, limit)| limit.limit().to_string()).collect();
    assert_eq!(limits, ["1/1s sliding_log", "5/day UTC fixed_window"]);
}

#[test]
fn limiter_combines_calendar_and_window() {
    let clock = ManualClock::at(START);
    let store = MemoryStore::with_clock(clock.clone(), 100);
    let day = Limit::calendar(3, Period::Day).unwrap();
    let limiter = Limiter::with_store("limiter", [day, "2/s".parse().unwrap()], store).unwrap();
    assert!(limiter.check("a").is_allowed() && limiter.check("a").is_allowed());
    assert_eq!(limiter.check("a").retry_after(), Some(Duration::from_secs(1)));
    clock.advance(Duration::from_secs(1));
    assert!(limiter.check("a").is_allowed());
    // The day ends in 12 hours.
    assert_eq!(limiter.check("a").retry_after(), Some(Duration::from_secs(12 * 3_600 - 1)));
    assert!(limiter.check("b").is_allowed());
}

#[test]
fn calendar_limit_has_name_and_shape_of_its_period() {
    let week = Calendar::new(Period::Week).with_week_start(Weekday::Sunday);
    let limit = Limit::calendar(7, week).unwrap();
    assert_eq!(limit.to_string(), "7/week UTC from sunday fixed_window");
    assert_eq!(limit.counter_shape_text(), "fixed_window:week UTC from sunday");
    assert_eq!(limit.quota(), Quota::new(7, Duration::from_secs(7 * 86_400)).unwrap());
    assert_eq!(limit.algorithm(), Algorithm::FixedWindow { align: Align::Calendar(week) });
    assert_eq!(Limit::new(limit.quota(), limit.algorithm()).unwrap(), limit);
    let other = Limit::new("7/d".parse().unwrap(), limit.algorithm());
    assert_eq!(other, Err(LimitError::CalendarWindow(week)));
    assert!(matches!(Limit::calendar(1 << 53, week), Err(LimitError::Quota(_))));
    // Nodes of different versions identify shared counters by this hash.
    let berlin = Calendar::new(Period::Month).with_time_zone("Europe/Berlin").unwrap();
    let limit = Limit::calendar(7, berlin).unwrap();
    assert_eq!(limit.counter_shape_text(), "fixed_window:month Europe/Berlin");
}
