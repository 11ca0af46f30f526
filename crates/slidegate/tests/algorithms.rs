//! Tests of the bounds of each algorithm at window boundaries. Each bound permits a worst case, and the tests show that
//! this worst case really occurs.

use std::time::Duration;

use slidegate::clock::Clock;
use slidegate::store::Value;
use slidegate::{
    Algorithm, Align, Check, Limit, Limiter, ManualClock, MemoryStore, Quota, Timestamp,
};

const MINUTE: Duration = Duration::from_secs(60);

/// The time at which each test begins: the start of a minute.
const START_TIME: Timestamp = Timestamp::from_secs(1_750_000_020);

/// A limiter with one limit and a manual clock.
struct LimiterFixture {
    clock: ManualClock,
    limiter: Limiter<MemoryStore<ManualClock>>,
}

impl LimiterFixture {
    fn new(max: u64, window: Duration, algorithm: Algorithm) -> Self {
        let clock = ManualClock::at(START_TIME);
        let limit = Limit::new(Quota::new(max, window).unwrap(), algorithm).unwrap();
        let store = MemoryStore::with_clock(clock.clone(), 100);
        Self { limiter: Limiter::with_store("limiter", [limit], store).unwrap(), clock }
    }

    /// Makes `units` checks, each of one unit, without advancing the clock. Returns the number of allowed checks.
    fn count_allowed(&self, units: u64) -> u64 {
        (0..units).filter(|_| self.limiter.check("key").is_allowed()).count() as u64
    }

    fn check_cost(&self, cost: u64) -> bool {
        self.limiter.check(Check::new("key").cost(cost)).is_allowed()
    }

    fn remaining(&self) -> u64 {
        self.limiter.peek("key").remaining()
    }

    /// Sets the clock to [`START_TIME`] plus `elapsed`.
    fn set_time_since_start(&self, elapsed: Duration) {
        self.clock.set(START_TIME.after(elapsed));
    }
}

#[test]
fn full_sliding_log_denies_until_charges_expire() {
    let fixture = LimiterFixture::new(100, MINUTE, Algorithm::SlidingLog);
    fixture.set_time_since_start(MINUTE - Duration::from_micros(1));
    assert_eq!(fixture.count_allowed(300), 100);
    fixture.set_time_since_start(2 * MINUTE - Duration::from_micros(2));
    assert_eq!(fixture.count_allowed(300), 0, "all charges are still in the window");
    fixture.set_time_since_start(2 * MINUTE - Duration::from_micros(1));
    assert_eq!(fixture.count_allowed(300), 100, "all charges have expired after a full window");
}

#[test]
fn sliding_buckets_deny_at_most_one_bucket_longer() {
    let precision = Duration::from_secs(6);
    for offset_us in [0, 1, 2_999_999, 5_999_999] {
        let fixture = LimiterFixture::new(
            100,
            MINUTE,
            Algorithm::SlidingBuckets { precision: Some(precision) },
        );
        fixture.set_time_since_start(Duration::from_micros(offset_us));
        assert_eq!(fixture.count_allowed(300), 100);
        fixture.set_time_since_start(Duration::from_micros(offset_us) + MINUTE);
        let is_still_denied = fixture.count_allowed(300) == 0;
        assert!(is_still_denied, "the oldest bucket counts in full");
        fixture.set_time_since_start(MINUTE + precision);
        assert_eq!(fixture.count_allowed(300), 100, "at most one precision after the window");
    }
}

#[test]
fn sliding_window_admits_max_and_frees_units_soon_after_they_leave() {
    for offset_us in [0, 1, 29_999_999, 59_999_999] {
        let fixture = LimiterFixture::new(100, MINUTE, Algorithm::default());
        fixture.set_time_since_start(Duration::from_micros(offset_us));
        assert_eq!(fixture.count_allowed(300), 100);
        let leaves = Duration::from_micros(offset_us) + MINUTE;
        fixture.set_time_since_start(leaves - Duration::from_micros(10));
        assert_eq!(fixture.count_allowed(300), 0);
        fixture.set_time_since_start(leaves + MINUTE / 32);
        assert_eq!(fixture.count_allowed(300), 100);
    }
}

#[test]
fn sliding_counter_admits_up_to_twice_max_minus_one() {
    let fixture = LimiterFixture::new(100, MINUTE, Algorithm::SlidingCounter);
    fixture.set_time_since_start(MINUTE - Duration::from_micros(10));
    assert_eq!(fixture.count_allowed(300), 100);
    // Just before this burst leaves the window.
    fixture.set_time_since_start(2 * MINUTE - Duration::from_micros(20));
    assert_eq!(
        fixture.count_allowed(300),
        99,
        "the previous count has a weight of one unit until its window has passed"
    );
    fixture.set_time_since_start(2 * MINUTE);
    assert_eq!(fixture.count_allowed(300), 1, "99 in the last minute, and one more");
}

#[test]
fn sliding_counter_frees_units_gradually() {
    let fixture = LimiterFixture::new(100, MINUTE, Algorithm::SlidingCounter);
    assert_eq!(fixture.count_allowed(100), 100);
    fixture.set_time_since_start(MINUTE);
    assert_eq!(fixture.remaining(), 0);
    fixture.set_time_since_start(MINUTE + MINUTE / 4);
    assert_eq!(fixture.remaining(), 25);
    fixture.set_time_since_start(2 * MINUTE - Duration::from_micros(10));
    assert_eq!(fixture.remaining(), 99);
}

#[test]
fn fixed_windows_admit_twice_max_at_boundary() {
    let fixture = LimiterFixture::new(100, MINUTE, Algorithm::FixedWindow { align: Align::Clock });
    fixture.set_time_since_start(MINUTE - Duration::from_micros(1));
    assert_eq!(fixture.count_allowed(300), 100);
    fixture.set_time_since_start(MINUTE);
    assert_eq!(fixture.count_allowed(300), 100);
    fixture.set_time_since_start(2 * MINUTE - Duration::from_micros(1));
    assert_eq!(fixture.count_allowed(300), 0);
}

#[test]
fn fixed_windows_of_different_keys_end_separately() {
    let fixture = LimiterFixture::new(1, MINUTE, Algorithm::FixedWindow { align: Align::Key });
    let mut ends: Vec<Duration> =
        (0..50).map(|key| fixture.limiter.check(&format!("key {key}")).reset_after()).collect();
    ends.sort();
    ends.dedup();
    assert!(ends.len() > 45, "{} ends of 50 keys", ends.len());
    assert!(ends.iter().all(|end| *end <= MINUTE));
}

#[test]
fn token_bucket_admits_burst_plus_rate() {
    let fixture =
        LimiterFixture::new(60, MINUTE, Algorithm::TokenBucket { burst: Some(10), max_debt: None });
    assert_eq!(fixture.count_allowed(300), 10);
    let mut allowed = 10;
    for second in 1..60 {
        fixture.set_time_since_start(Duration::from_secs(second));
        allowed += fixture.count_allowed(5);
    }
    assert_eq!(allowed, 10 + 59, "within one minute; the sixtieth unit is free at its end");
    fixture.set_time_since_start(Duration::from_secs(3_600));
    assert_eq!(fixture.count_allowed(300), 10, "at most the burst at once");
}

#[test]
fn token_bucket_refill_loses_no_fraction() {
    let fixture = LimiterFixture::new(
        7,
        Duration::from_secs(1),
        Algorithm::TokenBucket { burst: Some(2), max_debt: None },
    );
    assert!(fixture.check_cost(1), "the bucket never becomes full");
    for nth in 0_u64..1_000 {
        let due = Duration::from_micros((nth * 1_000_000).div_ceil(7));
        assert_eq!(fixture.clock.now(), START_TIME.after(due), "unit {nth}");
        assert!(fixture.check_cost(1), "unit {nth}");
        let wait = fixture.limiter.check("key").retry_after().unwrap();
        fixture.clock.advance(wait);
    }
}

#[test]
fn sliding_log_stays_exact_after_tick_wraparound() {
    // The tick in a log word wraps after 2^31 microseconds, about 36 minutes.
    let fixture = LimiterFixture::new(2, Duration::from_secs(600), Algorithm::SlidingLog);
    for minutes in (0..10_000).step_by(7) {
        fixture.set_time_since_start(Duration::from_secs(minutes * 60));
        assert_eq!(fixture.remaining(), if minutes == 0 { 2 } else { 1 }, "minute {minutes}");
        assert!(
            fixture.check_cost(1),
            "minute {minutes}: only the charge from seven minutes ago is in the window"
        );
    }
    let wraps = Duration::from_micros(1 << 31);
    fixture.set_time_since_start(Duration::from_secs(700_000) + 1_000 * wraps);
    assert_eq!(fixture.count_allowed(3), 2);
    fixture.set_time_since_start(Duration::from_secs(700_000) + 1_001 * wraps);
    assert_eq!(fixture.remaining(), 2, "charges that are one wrap old do not count");
}

#[test]
fn sliding_log_counts_large_cost_exactly() {
    let fixture = LimiterFixture::new(10_000, MINUTE, Algorithm::SlidingLog);
    assert!(fixture.check_cost(10_000));
    assert!(!fixture.check_cost(1));
    fixture.set_time_since_start(MINUTE - Duration::from_micros(1));
    assert!(!fixture.check_cost(1));
    fixture.set_time_since_start(MINUTE);
    assert!(fixture.check_cost(9_999));
    assert!(fixture.check_cost(1));
    assert!(!fixture.check_cost(1));
}

#[test]
fn counts_survive_change_of_limit_max() {
    use slidegate::SyncStore;
    use slidegate::store::{Hit, Key, Scope};
    for algorithm in Algorithm::ALL {
        let clock = ManualClock::at(START_TIME);
        let store = MemoryStore::with_clock(clock.clone(), 100);
        let scope = Scope::new("domain", "rule", "limit", &["name"]);
        let allowed = |max: u64, units: u64| {
            let limit = Limit::new(Quota::new(max, MINUTE).unwrap(), algorithm).unwrap();
            let key = Key::new(&scope, &[Value::Text("key")]);
            let hit = Hit::new(key, &limit, 1);
            (0..units).filter(|_| store.charge(&[hit]).allowed).count()
        };
        assert_eq!(allowed(10, 15), 10, "{algorithm}");
        assert_eq!(allowed(25, 50), 15, "{algorithm}: raised");
        assert_eq!(allowed(5, 10), 0, "{algorithm}: lowered");
        clock.advance(3 * MINUTE);
        assert_eq!(allowed(5, 10), 5, "{algorithm}: all charges have expired");
    }
}

/// A state does not depend on the resolution, so another resolution continues with its entries.
#[test]
fn counts_survive_change_of_resolution() {
    use slidegate::SyncStore;
    use slidegate::store::{Adjustment, Hit, Key, Scope};
    let clock = ManualClock::at(START_TIME);
    let store = MemoryStore::with_clock(clock.clone(), 100);
    let scope = Scope::new("domain", "rule", "limit", &["name"]);
    let charge = |resolution, cost| {
        let quota = Quota::new(1_000, MINUTE).unwrap();
        let limit = Limit::new(quota, Algorithm::SlidingWindow { resolution }).unwrap();
        let key = Key::new(&scope, &[Value::Text("key")]);
        store.charge(&[Hit::new(key, &limit, cost)])
    };
    let mut receipts = Vec::new();
    for (step, resolution) in [None, Some(8), Some(1_024), Some(64), None].into_iter().enumerate() {
        // An entry of each resolution has several charges.
        for charged in 1..=100 {
            clock.advance(Duration::from_micros(20_000));
            let result = charge(resolution, 1);
            let remaining = 1_000 - 100 * step as u64 - charged;
            assert_eq!(result.outcomes[0].remaining(), remaining, "{resolution:?}");
            receipts.push(result.receipt);
        }
    }
    store.adjust(&receipts[150], Adjustment::Revert);
    assert_eq!(charge(Some(16), 0).outcomes[0].remaining(), 501, "the charge is found");
    let last_charge = clock.now();
    clock.set(last_charge.after(MINUTE - Duration::from_micros(1)));
    assert!(charge(Some(16), 0).outcomes[0].remaining() < 1_000);
    clock.set(last_charge.after(MINUTE));
    assert_eq!(charge(Some(16), 0).outcomes[0].remaining(), 1_000, "all charges have expired");
}

#[test]
fn counter_in_debt_denies_until_retry_after() {
    use slidegate::SyncStore;
    use slidegate::store::{Hit, Key, Scope};
    for algorithm in Algorithm::ALL {
        let clock = ManualClock::at(START_TIME);
        let store = MemoryStore::with_clock(clock.clone(), 100);
        let scope = Scope::new("domain", "rule", "limit", &["name"]);
        let limit = Limit::new(Quota::new(10, MINUTE).unwrap(), algorithm).unwrap();
        let key = Key::new(&scope, &[Value::Text("key")]);
        let hit = |cost| Hit::new(key, &limit, cost);
        let report = store.charge(&[hit(25).reported()]);
        assert!(report.allowed, "{algorithm}: a report is always charged");
        assert_eq!(report.receipt.charges()[0].cost, 25);
        let denied = store.charge(&[hit(1)]);
        assert!(!denied.allowed, "{algorithm}");
        let wait = denied.outcomes[0].retry_after().unwrap();
        assert!(wait > Duration::ZERO);
        clock.advance(wait);
        assert!(store.charge(&[hit(1)]).allowed, "{algorithm}");
    }
}

#[test]
fn many_small_debts_expire_within_one_window() {
    use slidegate::SyncStore;
    use slidegate::store::{Hit, Key, Scope};
    let clock = ManualClock::at(START_TIME);
    let store = MemoryStore::with_clock(clock.clone(), 100);
    let scope = Scope::new("domain", "rule", "limit", &["name"]);
    let limit = Limit::new(Quota::new(10, MINUTE).unwrap(), Algorithm::SlidingLog).unwrap();
    let key = Key::new(&scope, &[Value::Text("key")]);
    let hit = |cost| Hit::new(key, &limit, cost);
    for _ in 0..100_000 {
        clock.advance(Duration::from_micros(10));
        let _ = store.charge(&[hit(1).reported()]);
    }
    let after = store.charge(&[hit(1)]).outcomes[0];
    assert!(!after.fits());
    // Merged debt expires with its newest unit: later, but within one window.
    clock.advance(after.retry_after().unwrap());
    assert!(after.retry_after().unwrap() <= MINUTE);
    assert!(store.charge(&[hit(1)]).allowed);
}

/// A client that is always charged, at a rate below its limit, is denied after a large debt until the debt has left the
/// window, and not longer.
#[test]
fn later_charges_do_not_prolong_debt() {
    use slidegate::SyncStore;
    use slidegate::store::{Hit, Key, Scope};
    for algorithm in Algorithm::ALL {
        let clock = ManualClock::at(START_TIME);
        let store = MemoryStore::with_clock(clock.clone(), 100);
        let scope = Scope::new("domain", "rule", "limit", &["name"]);
        let limit = Limit::new(Quota::new(10, MINUTE).unwrap(), algorithm).unwrap();
        let key = Key::new(&scope, &[Value::Text("key")]);
        let hit = |cost| Hit::new(key, &limit, cost);
        store.charge(&[hit(25).reported()]);
        // At most the weighted second window of a sliding counter, and max_debt / max windows of a token bucket.
        for nth in 1..=7 {
            clock.advance(MINUTE / 2);
            let fits = store.charge(&[hit(1).charged_always()]).outcomes[0].fits();
            assert!(fits || nth < 7, "{algorithm}: denied after {nth} half windows");
        }
    }
}

#[test]
fn clock_moving_backward_opens_no_new_window() {
    for algorithm in Algorithm::ALL {
        let fixture = LimiterFixture::new(10, MINUTE, algorithm);
        fixture.set_time_since_start(10 * MINUTE);
        assert_eq!(fixture.count_allowed(5), 5);
        fixture.set_time_since_start(9 * MINUTE);
        assert_eq!(
            fixture.count_allowed(10),
            5,
            "{algorithm}: an earlier time opens no new window"
        );
        assert_eq!(fixture.count_allowed(10), 0, "{algorithm}");
    }
}

#[test]
fn millisecond_window_and_zero_max_are_enforced() {
    for algorithm in Algorithm::ALL {
        let fixture = LimiterFixture::new(3, Duration::from_millis(1), algorithm);
        assert_eq!(fixture.count_allowed(10), 3, "{algorithm}");
        let fixture = LimiterFixture::new(0, MINUTE, algorithm);
        assert_eq!(fixture.count_allowed(10), 0, "{algorithm}");
        let denied = fixture.limiter.check("key");
        assert_eq!(denied.retry_after(), None, "{algorithm}: it never fits");
    }
}
