//! What each algorithm promises at its edges, by example: the worst case is reached, not only bounded.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::time::Duration;

use slidegate::{
    Algorithm, Align, Clock, Limit, Limiter, ManualClock, MemoryStore, Quota, Timestamp, Value,
};

const MINUTE: Duration = Duration::from_secs(60);

/// A minute's beginning.
const START: Timestamp = Timestamp::from_secs(1_750_000_020);

struct At {
    clock: ManualClock,
    limiter: Limiter<MemoryStore<ManualClock>>,
}

impl At {
    fn new(max: u64, window: Duration, algorithm: Algorithm) -> Self {
        let clock = ManualClock::at(START);
        let limit = Limit::new(Quota::new(max, window).unwrap(), algorithm).unwrap();
        let store = MemoryStore::with_clock(clock.clone(), 100);
        Self { limiter: Limiter::with_store([limit], store).unwrap(), clock }
    }

    /// How many of so many units at once are allowed, one by one.
    fn allowed(&self, units: u64) -> u64 {
        (0..units).filter(|_| self.limiter.check("key").is_allowed()).count() as u64
    }

    fn fits(&self, cost: u64) -> bool {
        self.limiter.check_cost("key", cost).is_allowed()
    }

    fn remaining(&self) -> u64 {
        self.limiter.peek("key", 1).decision().remaining()
    }

    /// Goes to so long after the start.
    fn goto(&self, span: Duration) {
        self.clock.set(START.after(span));
    }
}

#[test]
fn a_log_admits_max_at_an_edge_and_nothing_more_until_the_first_leaves() {
    let at = At::new(100, MINUTE, Algorithm::SlidingLog);
    at.goto(MINUTE - Duration::from_micros(1));
    assert_eq!(at.allowed(300), 100);
    at.goto(2 * MINUTE - Duration::from_micros(2));
    assert_eq!(at.allowed(300), 0, "all are in the window still");
    at.goto(2 * MINUTE - Duration::from_micros(1));
    assert_eq!(at.allowed(300), 100, "a full window later all have left");
}

#[test]
fn buckets_admit_max_and_deny_for_at_most_one_precision_more() {
    let precision = Duration::from_secs(6);
    for offset_us in [0, 1, 2_999_999, 5_999_999] {
        let at = At::new(100, MINUTE, Algorithm::SlidingBuckets { precision: Some(precision) });
        at.goto(Duration::from_micros(offset_us));
        assert_eq!(at.allowed(300), 100);
        at.goto(Duration::from_micros(offset_us) + MINUTE);
        let denied_still = at.allowed(300) == 0;
        assert!(denied_still, "the oldest bucket counts in full");
        at.goto(MINUTE + precision);
        assert_eq!(at.allowed(300), 100, "one precision after the window, at the latest");
    }
}

#[test]
fn a_sliding_window_reaches_one_less_than_twice_max() {
    let at = At::new(100, MINUTE, Algorithm::SlidingWindow);
    at.goto(MINUTE - Duration::from_micros(10));
    assert_eq!(at.allowed(300), 100);
    // Until just before that burst leaves the window.
    at.goto(2 * MINUTE - Duration::from_micros(20));
    assert_eq!(at.allowed(300), 99, "the previous count weighs one unit until it is gone");
    at.goto(2 * MINUTE);
    assert_eq!(at.allowed(300), 1, "99 of the last minute, and one");
}

#[test]
fn a_sliding_window_frees_units_as_the_previous_count_fades() {
    let at = At::new(100, MINUTE, Algorithm::SlidingWindow);
    assert_eq!(at.allowed(100), 100);
    at.goto(MINUTE);
    assert_eq!(at.remaining(), 0);
    at.goto(MINUTE + MINUTE / 4);
    assert_eq!(at.remaining(), 25);
    at.goto(2 * MINUTE - Duration::from_micros(10));
    assert_eq!(at.remaining(), 99);
}

#[test]
fn a_fixed_window_reaches_twice_max() {
    let at = At::new(100, MINUTE, Algorithm::FixedWindow { align: Align::Clock });
    at.goto(MINUTE - Duration::from_micros(1));
    assert_eq!(at.allowed(300), 100);
    at.goto(MINUTE);
    assert_eq!(at.allowed(300), 100);
    at.goto(2 * MINUTE - Duration::from_micros(1));
    assert_eq!(at.allowed(300), 0);
}

#[test]
fn fixed_windows_of_different_keys_begin_at_different_moments() {
    let at = At::new(1, MINUTE, Algorithm::FixedWindow { align: Align::Key });
    let mut ends: Vec<Duration> = (0..50)
        .map(|key| at.limiter.check(&format!("key {key}")).decision().reset_after())
        .collect();
    ends.sort();
    ends.dedup();
    assert!(ends.len() > 45, "{} ends of 50 keys", ends.len());
    assert!(ends.iter().all(|end| *end <= MINUTE));
}

#[test]
fn a_token_bucket_reaches_burst_and_what_flows_in() {
    let at = At::new(60, MINUTE, Algorithm::TokenBucket { burst: Some(10), max_debt: None });
    assert_eq!(at.allowed(300), 10);
    let mut allowed = 10;
    for second in 1..60 {
        at.goto(Duration::from_secs(second));
        allowed += at.allowed(5);
    }
    assert_eq!(allowed, 10 + 59, "within one minute; the sixtieth comes as it ends");
    at.goto(Duration::from_secs(3_600));
    assert_eq!(at.allowed(300), 10, "never more than the burst at once");
}

#[test]
fn a_token_bucket_loses_no_part_of_a_unit() {
    let at = At::new(
        7,
        Duration::from_secs(1),
        Algorithm::TokenBucket { burst: Some(2), max_debt: None },
    );
    assert!(at.fits(1), "so that the bucket never runs full");
    for nth in 0_u64..1_000 {
        let due = Duration::from_micros((nth * 1_000_000).div_ceil(7));
        assert_eq!(at.clock.now(), START.after(due), "unit {nth}");
        assert!(at.fits(1), "unit {nth}");
        let wait = at.limiter.check("key").decision().retry_after().unwrap();
        at.clock.advance(wait);
    }
}

#[test]
fn slow_traffic_past_the_wrap_of_the_log_is_counted_right() {
    // A word of the log holds 2^31 microseconds, some 36 minutes.
    let at = At::new(2, Duration::from_secs(600), Algorithm::SlidingLog);
    for minutes in (0..10_000).step_by(7) {
        at.goto(Duration::from_secs(minutes * 60));
        assert_eq!(at.remaining(), if minutes == 0 { 2 } else { 1 }, "minute {minutes}");
        assert!(
            at.fits(1),
            "minute {minutes}: one is seven minutes old, none else is in the window"
        );
    }
    let wraps = Duration::from_micros(1 << 31);
    at.goto(Duration::from_secs(700_000) + 1_000 * wraps);
    assert_eq!(at.allowed(3), 2);
    at.goto(Duration::from_secs(700_000) + 1_001 * wraps);
    assert_eq!(at.remaining(), 2, "what is a wrap old does not look new");
}

#[test]
fn one_cost_of_10_000_is_one_entry() {
    let at = At::new(10_000, MINUTE, Algorithm::SlidingLog);
    assert!(at.fits(10_000));
    assert!(!at.fits(1));
    at.goto(MINUTE - Duration::from_micros(1));
    assert!(!at.fits(1));
    at.goto(MINUTE);
    assert!(at.fits(9_999));
    assert!(at.fits(1));
    assert!(!at.fits(1));
}

/// The store keeps the counts; limiters with one secret would share them, so the keys are named.
#[test]
fn counts_survive_a_raised_and_a_lowered_max() {
    use slidegate::{Hit, Key, Scope, SyncStore};
    for algorithm in Algorithm::ALL {
        let clock = ManualClock::at(START);
        let store = MemoryStore::with_clock(clock.clone(), 100);
        let scope = Scope::new("domain", "rule", "limit", &["who"]);
        let allowed = |max: u64, units: u64| {
            let limit = Limit::new(Quota::new(max, MINUTE).unwrap(), algorithm).unwrap();
            let key = Key::new(&scope, &[Value::Text("key")]);
            let hit = Hit::new(key, &limit, 1);
            (0..units).filter(|_| store.take_now(&[hit]).allowed).count()
        };
        assert_eq!(allowed(10, 15), 10, "{algorithm}");
        assert_eq!(allowed(25, 50), 15, "{algorithm}: raised");
        assert_eq!(allowed(5, 10), 0, "{algorithm}: lowered");
        clock.advance(3 * MINUTE);
        assert_eq!(allowed(5, 10), 5, "{algorithm}: all has left");
    }
}

#[test]
fn a_debt_is_paid_before_anything_fits() {
    use slidegate::{Hit, Key, Scope, SyncStore};
    for algorithm in Algorithm::ALL {
        let clock = ManualClock::at(START);
        let store = MemoryStore::with_clock(clock.clone(), 100);
        let scope = Scope::new("domain", "rule", "limit", &["who"]);
        let limit = Limit::new(Quota::new(10, MINUTE).unwrap(), algorithm).unwrap();
        let key = Key::new(&scope, &[Value::Text("key")]);
        let hit = |cost| Hit::new(key, &limit, cost);
        let spent = store.take_now(&[hit(25).reported()]);
        assert!(spent.allowed, "{algorithm}: what is spent is charged");
        assert_eq!(spent.receipt.charges[0].cost, 25);
        let denied = store.take_now(&[hit(1)]);
        assert!(!denied.allowed, "{algorithm}");
        let wait = denied.outcomes[0].retry_after().unwrap();
        assert!(wait > Duration::ZERO);
        clock.advance(wait);
        assert!(store.take_now(&[hit(1)]).allowed, "{algorithm}");
    }
}

#[test]
fn many_small_debts_do_not_grow_a_log_without_end() {
    use slidegate::{Hit, Key, Scope, SyncStore};
    let clock = ManualClock::at(START);
    let store = MemoryStore::with_clock(clock.clone(), 100);
    let scope = Scope::new("domain", "rule", "limit", &["who"]);
    let limit = Limit::new(Quota::new(10, MINUTE).unwrap(), Algorithm::SlidingLog).unwrap();
    let key = Key::new(&scope, &[Value::Text("key")]);
    let hit = |cost| Hit::new(key, &limit, cost);
    for _ in 0..100_000 {
        clock.advance(Duration::from_micros(10));
        let _ = store.take_now(&[hit(1).reported()]);
    }
    let after = store.take_now(&[hit(1)]).outcomes[0];
    assert!(!after.fits());
    // A merged debt leaves with the newest of it: late, but within its window.
    clock.advance(after.retry_after().unwrap());
    assert!(after.retry_after().unwrap() <= MINUTE);
    assert!(store.take_now(&[hit(1)]).allowed);
}

#[test]
fn an_earlier_now_is_taken_as_the_time_last_charged() {
    for algorithm in Algorithm::ALL {
        let at = At::new(10, MINUTE, algorithm);
        at.goto(10 * MINUTE);
        assert_eq!(at.allowed(5), 5);
        at.goto(9 * MINUTE);
        assert_eq!(at.allowed(10), 5, "{algorithm}: an hour back opens no new window");
        at.goto(10 * MINUTE);
        assert_eq!(at.allowed(10), 0, "{algorithm}");
    }
}

#[test]
fn a_window_under_a_second_limits_and_a_max_of_0_denies_all() {
    for algorithm in Algorithm::ALL {
        let at = At::new(3, Duration::from_millis(1), algorithm);
        assert_eq!(at.allowed(10), 3, "{algorithm}");
        let at = At::new(0, MINUTE, algorithm);
        assert_eq!(at.allowed(10), 0, "{algorithm}");
        let denied = at.limiter.check("key");
        assert_eq!(denied.decision().retry_after(), None, "{algorithm}: it never fits");
    }
}
