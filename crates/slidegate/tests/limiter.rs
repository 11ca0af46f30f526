//! Tests of the public API of the limiter.

use std::num::NonZeroU32;
use std::time::Duration;

use slidegate::clock::Clock;
use slidegate::headers::{self, Style};
use slidegate::store::LocalCountsOptions;
use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::wait::{JitterSample, WaitOptions};
use slidegate::{
    Algorithm, Check, Decision, Jitter, Limit, Limiter, LimiterError, ManualClock, MemoryStore,
    OnStoreError, Quota, Reason, StoreError, Timestamp,
};

fn new_limiter(limits: &[&str]) -> (ManualClock, Limiter<MemoryStore<ManualClock>>) {
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    let store = MemoryStore::with_clock(clock.clone(), 1_000);
    (clock, Limiter::with_store("limiter", limits.iter().copied(), store).unwrap())
}

#[test]
fn limits_are_charged_together_or_not_at_all() {
    let (clock, limiter) = new_limiter(&["2/s", "3/min"]);
    let mut allowed = Vec::new();
    for _ in 0..3 {
        for _ in 0..3 {
            allowed.push(limiter.check("key").is_allowed());
        }
        clock.advance(Duration::from_secs(3));
    }
    // The fourth request is allowed only if the denied third one was not counted per minute.
    let expected = [true, true, false, true, false, false, false, false, false];
    assert_eq!(allowed, expected);
}

#[test]
fn limit_with_longest_wait_is_binding() {
    let (_, limiter) = new_limiter(&["2/s", "2/min", "5/h"]);
    let binding = |decision: &Decision<'_>| *decision.binding().unwrap().limit();
    let first = limiter.check("key");
    assert_eq!(binding(&first).to_string(), "2/1s sliding_window", "the first of two equal shares");
    let _ = limiter.check("key");
    let denied = limiter.check("key");
    assert_eq!(binding(&denied).to_string(), "2/1m sliding_window");
    assert_eq!(denied.limits().count(), 3);
    let never = limiter.check(Check::new("key").cost(6));
    assert_eq!(never.retry_after(), None);
}

#[test]
fn any_hashable_key_is_accepted() {
    let (_, limiter) = new_limiter(&["1/min"]);
    let address: std::net::IpAddr = "2001:db8::1".parse().unwrap();
    assert!(limiter.check("text").is_allowed());
    assert!(limiter.check(&42_u64).is_allowed());
    assert!(limiter.check(&("tenant", 7)).is_allowed());
    assert!(limiter.check(&address).is_allowed());
    assert!(!limiter.check(&String::from("text")).is_allowed(), "a String equals its text");
    assert!(limiter.check(&"x".repeat(1_000_000)).is_allowed());
    assert_eq!(limiter.store().keys(), 5);
}

#[test]
fn revert_and_reset_free_charged_units() {
    let (_, limiter) = new_limiter(&["2/min", "5/h"]);
    assert_eq!(limiter.peek("key").remaining(), 2);
    let first = limiter.check("key");
    assert!(first.is_allowed());
    assert_eq!(limiter.peek("key").remaining(), 1);
    limiter.revert(&first);
    assert_eq!(limiter.peek("key").remaining(), 2);
    assert!(limiter.check(Check::new("key").cost(2)).is_allowed());
    assert!(!limiter.check("key").is_allowed());
    limiter.reset("key");
    assert!(limiter.check(Check::new("key").cost(2)).is_allowed());
    assert!(limiter.check(Check::new("other").cost(0)).is_allowed(), "one unit would fit");
    assert!(!limiter.check(Check::new("key").cost(0)).is_allowed(), "no unit would fit");
}

#[test]
fn check_many_decides_like_single_checks() {
    let keys: Vec<u64> = (0..1_000).map(|index| index * 7919 % 37).collect();
    let (_, single) = new_limiter(&["5/min", "20/h"]);
    let (_, batched) = new_limiter(&["5/min", "20/h"]);
    let allowed: Vec<bool> = keys.iter().map(|key| single.check(key).is_allowed()).collect();
    let decisions = batched.check_many(&keys);
    assert_eq!(decisions.iter().map(Decision::is_allowed).collect::<Vec<_>>(), allowed);
    assert_eq!(allowed.iter().filter(|allowed| **allowed).count(), 37 * 5);
    assert!(decisions.iter().all(|decision| decision.limits().count() == 2));
}

#[test]
fn invalid_limits_are_rejected() {
    let error = |limits: &[&str]| Limiter::new(limits.iter().copied()).err().unwrap();
    assert_eq!(error(&[]), LimiterError::Empty);
    assert!(matches!(error(&["10/s", "5/1s"]), LimiterError::Duplicate(_)));
    assert!(error(&["10 per second"]).to_string().contains("is not a quota"));
    let log = Limit::new("5/s".parse().unwrap(), Algorithm::SlidingLog).unwrap();
    assert!(
        Limiter::new([log, "5/s".parse().unwrap()]).is_ok(),
        "different algorithms have separate counts"
    );
}

#[test]
fn wait_blocks_until_cost_fits() {
    let limiter = Limiter::new(["5/50ms"]).unwrap();
    // This test runs on the real clock. At any phase of the window, the sixth request has to wait.
    for _ in 0..6 {
        let _ = limiter.wait("key").unwrap();
    }
    let denied = limiter.wait(Check::new("key").cost(6)).unwrap_err();
    assert_eq!(denied.decision().reason(), Some(Reason::CostExceedsMax));
}

#[test]
fn first_reset_is_window_in_every_style() {
    let (clock, seconds) = (ManualClock::default(), [60, 900, 3_600, 86_400, 366 * 86_400]);
    for algorithm in [Algorithm::SlidingWindow { resolution: None }, Algorithm::SlidingLog] {
        for seconds in seconds {
            let window = Duration::from_secs(seconds);
            let limit = Limit::new(Quota::new(100, window).unwrap(), algorithm).unwrap();
            let store = MemoryStore::with_clock(clock.clone(), 100);
            let limiter = Limiter::with_store("limiter", [limit], store).unwrap();
            // The charge is rounded up to a tick.
            clock.advance(Duration::from_micros(1_234_567));
            let decision = limiter.check("key");
            assert_eq!(decision.reset_after(), window);
            assert!(decision.limits().all(|status| status.reset_after() == window));
            let headers = |style| headers::write(style, &decision, clock.now(), JitterSample::NONE);
            assert_eq!(
                headers(Style::Ietf)[1].1,
                format!("\"limiter\";r=99;t={seconds}"),
                "{limit}"
            );
            assert_eq!(headers(Style::Draft03)[2].1, seconds.to_string(), "{limit}");
            let reset_unix_seconds = clock.now().after(window).as_micros().div_ceil(1_000_000);
            assert_eq!(headers(Style::X)[2].1, reset_unix_seconds.to_string(), "{limit}");
            // The exact time is in the outcome: until then the unit is in use.
            let exact = decision.binding().unwrap().outcome().reset_after();
            clock.advance(exact - Duration::from_micros(1));
            assert_eq!(limiter.peek("key").remaining(), 99, "{limit}");
            clock.advance(Duration::from_micros(1));
            assert_eq!(limiter.peek("key").remaining(), 100, "{limit}");
        }
    }
}

#[test]
fn jitter_only_lengthens_waits() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        for max_jitter in [Duration::ZERO, Duration::from_secs(30)] {
            let (clock, limiter) = new_limiter(&["1/min"]);
            let options =
                WaitOptions { jitter: Jitter::up_to(max_jitter), ..WaitOptions::default() };
            let limiter = limiter.with_wait_options(options);
            let _ = limiter.check("key");
            let exact = limiter.check("key").retry_after().unwrap();
            let slack = Duration::from_millis(2);
            let before = tokio::time::Instant::now();
            let waiting = limiter.wait_async("key");
            let advance = async {
                // The clock of tokio is paused; the clock of the limiter advances just before the wait ends.
                tokio::time::sleep(exact - slack).await;
                clock.advance(exact);
            };
            let (decision, ()) = tokio::join!(waiting, advance);
            assert!(decision.unwrap().is_allowed());
            let waited = before.elapsed();
            assert!(
                waited >= exact && waited <= exact + max_jitter + slack,
                "{waited:?} of {exact:?}"
            );
        }
    });
}

#[test]
fn limiter_without_its_store_decides_by_on_store_error() {
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    let check_three_times = |faults: Faults, on_store_error| {
        let store = FaultyStore::new(&clock, 1, faults, 1);
        let limiter = Limiter::with_store("limiter", ["4/min"], store).unwrap();
        let limiter = limiter
            .with_local_counts(LocalCountsOptions {
                instances: NonZeroU32::new(2).unwrap(),
                ..LocalCountsOptions::with_clock(clock.clone())
            })
            .on_store_error(on_store_error);
        let decisions = [(); 3].map(|()| block_on(limiter.check_async("key")));
        let errors = decisions.iter().map(|decision| decision.store_error().cloned());
        let allowed = decisions.iter().map(Decision::is_allowed);
        (allowed.collect::<Vec<_>>(), errors.flatten().collect::<Vec<_>>())
    };
    let up = Faults::default();
    let down = Faults { unavailable: 100, ..Faults::default() };
    for (faults, on_store_error, allowed) in [
        (up, OnStoreError::Deny, [true, true, true]),
        (down, OnStoreError::Deny, [false, false, false]),
        (down, OnStoreError::Allow, [true, true, true]),
        (down, OnStoreError::Local, [true, true, false]),
    ] {
        let (found, errors) = check_three_times(faults, on_store_error);
        assert_eq!(found, allowed, "{on_store_error:?}");
        let is_down = faults.unavailable == 100;
        assert_eq!(errors.len(), if is_down { 3 } else { 0 });
        assert!(errors.iter().all(|error| matches!(error, StoreError::Unavailable(_))));
    }
}

#[test]
fn charge_without_the_store_is_settled_in_memory() {
    let clock = ManualClock::default();
    let down = Faults { unavailable: 100, ..Faults::default() };
    let store = FaultyStore::new(&clock, 1, down, 1);
    let limiter = Limiter::with_store("limiter", ["10/min"], store)
        .unwrap()
        .with_local_counts(LocalCountsOptions::with_clock(clock));
    let decision = block_on(limiter.check_async(Check::new("key").cost(8)));
    block_on(limiter.settle_async(&decision, 3)).unwrap();
    assert_eq!(block_on(limiter.peek_async("key")).remaining(), 7);
    block_on(limiter.revert_async(&decision)).unwrap();
    assert!(block_on(limiter.reset_async("key")).is_err());
}

#[test]
fn synchronous_and_asynchronous_methods_share_counts() {
    let limiter = Limiter::new(["3/min"]).unwrap();
    assert!(limiter.check("key").is_allowed());
    assert!(block_on(limiter.check_async(Check::new("key"))).is_allowed());
    assert_eq!(block_on(limiter.check_async("key")).remaining(), 0);
    assert!(!limiter.check("key").is_allowed());
    assert!(!block_on(limiter.peek_async("key")).is_allowed());
    block_on(limiter.refund_async("key", 1)).unwrap();
    assert!(limiter.peek("key").is_allowed());
    block_on(limiter.reset_async("key")).unwrap();
    assert_eq!(limiter.peek("key").remaining(), 3);
}
