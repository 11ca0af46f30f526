//! The promises, as laws that any store can be held to. Each takes an empty store and the clock that it
//! reads, and panics where the promise is broken.

use std::time::Duration;

use fastrand::Rng;

use crate::algorithm::{Algorithm, Align};
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::hit::{Hit, Veto};
use crate::key::{Key, Scope, Value};
use crate::limit::Limit;
use crate::outcome::Outcome;
use crate::quota::Quota;
use crate::store::{ChargeResult, Store};

use super::oracle::Oracle;

/// Windows of ticks of several sizes, from under a second to a week.
const WINDOWS: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(60),
    Duration::from_secs(3_600),
    Duration::from_secs(7 * 86_400),
];

/// Limits of every algorithm to hold a store to the laws with: small ones, and one that is not.
pub fn limits() -> Vec<Limit> {
    let algorithms = [
        Algorithm::SlidingLog,
        Algorithm::SlidingBuckets { precision: None },
        Algorithm::SlidingWindow,
        Algorithm::FixedWindow { align: Align::Key },
        Algorithm::FixedWindow { align: Align::Clock },
        Algorithm::TokenBucket { burst: None, max_debt: None },
        Algorithm::TokenBucket { burst: Some(3), max_debt: None },
    ];
    let mut limits = Vec::new();
    for window in WINDOWS {
        for max in [2, 10, 1_000] {
            limits.extend(algorithms.map(|algorithm| limit(max, window, algorithm)));
        }
    }
    limits
}

fn limit(max: u64, window: Duration, algorithm: Algorithm) -> Limit {
    let limit = Quota::new(max, window).map_err(Into::into);
    match limit.and_then(|quota| Limit::new(quota, algorithm)) {
        Ok(limit) => limit,
        Err(error) => unreachable!("these limits can be: {error}"),
    }
}

/// The most units that a limit may let into any window of its length.
pub fn max_units_in_window(limit: &Limit) -> u64 {
    let max = limit.quota().max();
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } => max,
        Algorithm::SlidingWindow => (2 * max).saturating_sub(1),
        Algorithm::FixedWindow { .. } => 2 * max,
        Algorithm::TokenBucket { .. } => max + limit.capacity(),
    }
}

/// One key and one limit at a store.
struct One<'s, S> {
    store: &'s S,
    scope: Scope,
    limit: Limit,
}

impl<S: Store> One<'_, S> {
    fn hit(&self, cost: u64) -> Hit<'_> {
        let key = Key::new(&self.scope, &[Value::Text("one")]);
        Hit::new(key, &self.limit, cost)
    }

    async fn take(&self, cost: u64) -> ChargeResult {
        answered(self.store.take(&[self.hit(cost)]).await)
    }

    async fn refund(&self, cost: u64) -> Outcome {
        answered(self.store.refund(&[self.hit(cost)]).await)[0]
    }

    async fn peek(&self, cost: u64) -> Outcome {
        answered(self.store.peek(&[self.hit(cost)]).await)[0]
    }
}

fn answered<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(answer) => answer,
        Err(error) => panic!("the laws hold for stores that answer: {error}"),
    }
}

fn one<'s, S: Store>(store: &'s S, clock: &ManualClock, limit: &Limit, start: u64) -> One<'s, S> {
    clock.set(Timestamp::from_micros(1_750_000_000_000_000 + start));
    One { store, scope: Scope::new("law", "rule", "limit", &["who"]), limit: *limit }
}

/// Never more than promised in any window, under random traffic that comes in bursts and at edges. The
/// log, where it counts in microseconds, also denies nothing that would fit.
pub async fn units_stay_below_bound<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let window = limit.quota().window();
    let window_us = window.as_micros() as u64;
    let one = one(store, clock, limit, rng.u64(..window_us));
    let mut oracle = Oracle::default();
    let mut retry_at = clock.now();
    for _ in 0..400 {
        let now_us = clock.now().as_micros();
        clock.set(Timestamp::from_micros(match rng.u32(..12) {
            0..=5 => now_us,
            6..=7 => now_us + rng.u64(..=window_us / 20),
            8 => (now_us / window_us + 1) * window_us - rng.u64(..=1),
            9 => now_us + rng.u64(..=window_us),
            _ => now_us.max(retry_at.as_micros()),
        }));
        let now = clock.now();
        let cost = if rng.bool() { 1 } else { rng.u64(1..=limit.capacity().max(1)) };
        let exact = oracle.fits(now, window, limit.quota().max(), cost);
        let taken = one.take(cost).await;
        if taken.allowed {
            oracle.charge(now, cost);
            let most = max_units_in_window(limit);
            let inside = oracle.in_window(now, window);
            assert!(
                inside <= most,
                "{limit}, seed {seed}: {inside} units in a window, at most {most}"
            );
        } else if let Some(wait) = taken.outcomes[0].retry_after() {
            retry_at = now.after(wait);
        }
        if limit.algorithm() == Algorithm::SlidingLog && window < Duration::from_secs(1_000) {
            assert_eq!(taken.allowed, exact, "{limit}, seed {seed}: the log is exact");
        }
    }
}

/// A denial's `retry_after` is exact: one microsecond before it the request is denied still, and then
/// it is allowed. Its `reset_after` is exact too: from then on the key is as if never seen.
pub async fn retry_after_is_exact<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let window_us = limit.quota().window().as_micros() as u64;
    let one = one(store, clock, limit, rng.u64(..window_us));
    for _ in 0..60 {
        clock.advance(Duration::from_micros(rng.u64(..=window_us / 4)));
        let cost = rng.u64(1..=limit.capacity());
        let taken = one.take(cost).await;
        if taken.allowed {
            continue;
        }
        let denied_at = clock.now();
        let Some(wait) = taken.outcomes[0].retry_after() else {
            panic!("{limit}: a cost of {cost} within the limit fits some day");
        };
        assert!(wait > Duration::ZERO, "{limit}, seed {seed}: a denial waits");
        clock.set(Timestamp::from_micros(denied_at.after(wait).as_micros() - 1));
        assert!(!one.peek(cost).await.fits(), "{limit}, seed {seed}: too early, {wait:?} promised");
        clock.set(denied_at.after(wait));
        assert!(one.take(cost).await.allowed, "{limit}, seed {seed}: denied after {wait:?}");
    }
    let reset = one.peek(1).await.reset_after();
    assert!(reset > Duration::ZERO, "{limit}: something was charged");
    clock.advance(reset - Duration::from_micros(1));
    assert_ne!(one.peek(1).await.reset_after(), Duration::ZERO, "{limit}: reset too early");
    clock.advance(Duration::from_micros(1));
    let outcome = one.peek(1).await;
    assert_eq!(outcome.reset_after(), Duration::ZERO, "{limit}, seed {seed}");
    assert_eq!(outcome.remaining(), limit.capacity(), "{limit}, seed {seed}: as if never seen");
}

/// A cost over what the limit holds is denied for ever, and says so.
pub async fn cost_above_max_has_no_retry_after<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
) {
    let one = one(store, clock, limit, 0);
    let taken = one.take(limit.capacity() + 1).await;
    assert!(!taken.allowed && taken.outcomes[0].retry_after().is_none(), "{limit}");
    let taken = one.take(u64::MAX).await;
    assert!(!taken.allowed && taken.outcomes[0].retry_after().is_none(), "{limit}");
}

/// A denial changes nothing, on any of the request's keys; nor does a cost of 0.
pub async fn denial_charges_nothing<S: Store>(store: &S, clock: &ManualClock, limit: &Limit) {
    let one = one(store, clock, limit, 7);
    let scope = Scope::new("law", "other", "limit", &["who"]);
    let other = Hit { key: Key::new(&scope, &[Value::Text("other")]), ..one.hit(1) };
    assert!(answered(store.take(&[other]).await).allowed);
    assert!(one.take(limit.capacity()).await.allowed);
    let standing = || async { (one.peek(1).await, answered(store.peek(&[other]).await)) };
    let before = standing().await;
    for hits in [[other, one.hit(1)], [one.hit(1), other]] {
        let taken = answered(store.take(&hits).await);
        assert!(!taken.allowed && taken.receipt.is_empty(), "{limit}");
    }
    assert!(one.take(0).await.receipt.is_empty(), "{limit}");
    assert_eq!(standing().await, before, "{limit}");
}

/// A debt is paid before anything else is admitted: whatever has been charged, reports and always-charged requests
/// included, an admitted request is within the limit. A counter in debt says exactly when one unit fits.
pub async fn debts_are_paid_first<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let window_us = limit.quota().window().as_micros() as u64;
    let one = one(store, clock, limit, rng.u64(..window_us));
    let mut oracle = Oracle::default();
    for _ in 0..120 {
        clock.advance(Duration::from_micros(rng.u64(..=window_us / 8)));
        let now = clock.now();
        let cost = rng.u64(1..=3 * limit.capacity());
        let hit = match rng.u32(..6) {
            0 => one.hit(cost).reported(),
            1 => one.hit(cost).charged_always(),
            _ => one.hit(if rng.bool() { 1 } else { rng.u64(1..=limit.capacity()) }),
        };
        let taken = answered(store.take(&[hit]).await);
        let charged: u64 = taken.receipt.charges.iter().map(|charge| charge.cost).sum();
        oracle.charge(now, charged);
        let is_check = hit.veto == Veto::Alone;
        if is_check && taken.allowed {
            assert_within(&one, &oracle, now, seed);
        }
        let outcome = one.peek(1).await;
        if is_check && !taken.allowed && charged > 0 {
            assert_eq!(taken.outcomes[0].retry_after(), outcome.retry_after(), "{limit}: one unit");
        }
        assert!(hit.veto != Veto::Never || taken.allowed, "{limit}: a report never denies");
        let Some(wait) = outcome.retry_after().filter(|wait| !wait.is_zero()) else { continue };
        if rng.u32(..4) == 0 {
            clock.set(Timestamp::from_micros(now.after(wait).as_micros() - 1));
            assert!(!one.take(1).await.allowed, "{limit}, seed {seed}: in debt, {wait:?}");
            clock.set(now.after(wait));
            assert!(one.take(1).await.allowed, "{limit}, seed {seed}: paid, {wait:?}");
            oracle.charge(clock.now(), 1);
        }
    }
}

/// Asserts what holds whenever a request is admitted, by all charges so far.
fn assert_within<S>(one: &One<'_, S>, oracle: &Oracle, now: Timestamp, seed: u64) {
    let limit = &one.limit;
    let (max, window) = (limit.quota().max(), limit.quota().window());
    let window_us = window.as_micros() as u64;
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } => {
            let inside = oracle.in_window(now, window);
            assert!(inside <= max, "{limit}, seed {seed}: {inside} units in a window");
        }
        Algorithm::SlidingWindow | Algorithm::FixedWindow { .. } => {
            let key = Key::new(&one.scope, &[Value::Text("one")]);
            let since_us = (now.as_micros() + limit.phase_us(&key)) % window_us;
            let span = |us: u64| oracle.in_window(now, Duration::from_micros(us));
            let running = span(since_us + 1);
            let mut inside = running;
            if limit.algorithm() == Algorithm::SlidingWindow {
                // The share of the previous window that the sliding one still covers.
                let previous = span(since_us + 1 + window_us) - running;
                inside += previous * (window_us - since_us) / window_us;
            }
            assert!(inside <= max, "{limit}, seed {seed}: {inside} units");
        }
        Algorithm::TokenBucket { .. } => {
            for span in [window / 10, window / 2, window, 3 * window] {
                let inside = u128::from(oracle.in_window(now, span));
                let leaked = (u128::from(max) * span.as_micros()).div_ceil(window.as_micros());
                let most = u128::from(limit.capacity()) + leaked + 1;
                assert!(inside <= most, "{limit}, seed {seed}: {inside} units in {span:?}");
            }
        }
    }
}

/// What is given back is as if it had never been charged; nothing once it has left the window.
pub async fn revert_undoes_its_charge<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let half = limit.capacity() / 2;
    let window_us = limit.quota().window().as_micros() as u64;
    let one = one(store, clock, limit, rng.u64(..window_us));
    one.take(rng.u64(1..=half)).await;
    clock.advance(Duration::from_micros(rng.u64(..=window_us / 3)));
    let before = one.peek(1).await;
    let taken = one.take(rng.u64(1..=half)).await;
    if taken.allowed {
        answered(store.revert(&taken.receipt).await);
        let after = one.peek(1).await;
        assert_eq!(after.remaining(), before.remaining(), "{limit}, seed {seed}");
        assert_eq!(after.fits(), before.fits(), "{limit}, seed {seed}");
    }
    let taken = one.take(1).await;
    assert!(taken.allowed, "{limit}, seed {seed}: there is room for one");
    clock.advance(Duration::from_micros(2 * window_us + 1));
    assert!(one.take(half).await.allowed);
    let before = one.peek(1).await;
    answered(store.revert(&taken.receipt).await);
    assert_eq!(one.peek(1).await, before, "{limit}, seed {seed}: it had left the window");
}

/// Units that are taken off without a receipt make room for exactly as many, if there were so many; what is left
/// waits exactly; and who takes off all is as if never seen.
pub async fn refund_frees_as_many_units<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let window_us = limit.quota().window().as_micros() as u64;
    let capacity = limit.capacity();
    let one = one(store, clock, limit, rng.u64(..window_us));
    assert_eq!(one.refund(1).await, one.peek(1).await, "{limit}: nothing to take off");
    for _ in 0..60 {
        clock.advance(Duration::from_micros(rng.u64(..=window_us / 4)));
        for _ in 0..rng.u32(..4) {
            one.take(rng.u64(1..=capacity)).await;
            clock.advance(Duration::from_micros(rng.u64(..=window_us / 20)));
        }
        let before = one.peek(1).await;
        assert_eq!(one.refund(0).await, before, "{limit}, seed {seed}: none taken off");
        let units = rng.u64(1..=capacity / 2);
        let after = one.refund(units).await;
        let room = (before.remaining() + units).min(capacity);
        assert_eq!(after.remaining(), room, "{limit}, seed {seed}: {units} taken off {before:?}");
        assert!(
            after.fits() && after.reset_after() <= before.reset_after(),
            "{limit}, seed {seed}"
        );
        assert_eq!(after, one.peek(1).await, "{limit}, seed {seed}");
        let Some(wait) = one.peek(room + 1).await.retry_after() else { continue };
        let now = clock.now();
        clock.set(Timestamp::from_micros(now.after(wait).as_micros() - 1));
        assert!(!one.peek(room + 1).await.fits(), "{limit}, seed {seed}: {wait:?} promised");
        clock.set(now.after(wait));
        assert!(one.peek(room + 1).await.fits(), "{limit}, seed {seed}: {wait:?} promised");
        clock.set(now);
    }
    let after = one.refund(u64::MAX).await;
    assert_eq!(after.remaining(), capacity, "{limit}, seed {seed}: never more than there is");
    assert_eq!(after.reset_after(), Duration::ZERO, "{limit}, seed {seed}: as if never seen");
}

/// Never more than promised in any window, not counting what was taken off without a receipt: of the units that
/// still counted the oldest. The log, where it counts in microseconds, is exactly as if they had never been
/// charged.
pub async fn units_stay_below_bound_without_refunds<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let window = limit.quota().window();
    let window_us = window.as_micros() as u64;
    let one = one(store, clock, limit, rng.u64(..window_us));
    let mut oracle = Oracle::default();
    for _ in 0..400 {
        let now_us = clock.now().as_micros();
        clock.set(Timestamp::from_micros(match rng.u32(..12) {
            0..=6 => now_us,
            7..=8 => now_us + rng.u64(..=window_us / 20),
            9 => (now_us / window_us + 1) * window_us - rng.u64(..=1),
            10 => now_us + rng.u64(..=window_us),
            _ => now_us + rng.u64(..=window_us / 3),
        }));
        let now = clock.now();
        if rng.u32(..4) == 0 {
            let counted = limit.capacity() - one.peek(1).await.remaining();
            let units = rng.u64(1..=limit.capacity());
            one.refund(units).await;
            oracle.refund(counted, units);
            continue;
        }
        let cost = if rng.bool() { 1 } else { rng.u64(1..=limit.capacity()) };
        let exact = oracle.fits(now, window, limit.quota().max(), cost);
        let allowed = one.take(cost).await.allowed;
        if allowed {
            oracle.charge(now, cost);
            let (most, inside) = (max_units_in_window(limit), oracle.in_window(now, window));
            assert!(
                inside <= most,
                "{limit}, seed {seed}: {inside} units in a window, at most {most}"
            );
        }
        if limit.algorithm() == Algorithm::SlidingLog && window < Duration::from_secs(1_000) {
            assert_eq!(allowed, exact, "{limit}, seed {seed}: the log is exact");
        }
    }
}

/// The order of the hits of a request never changes what is decided.
pub async fn order_of_hits_is_irrelevant<S: Store>(
    (store, twin): (&S, &S),
    clock: &ManualClock,
    limits: &[Limit],
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    clock.set(Timestamp::from_micros(1_750_000_000_000_000 + rng.u64(..1_000_000_000)));
    let scopes: Vec<Scope> = (0..limits.len())
        .map(|nth| Scope::new("law", &format!("rule-{nth}"), "limit", &["who"]))
        .collect();
    for _ in 0..200 {
        clock.advance(Duration::from_micros(rng.u64(..1_000_000)));
        let cost = rng.u64(1..4);
        let hits: Vec<Hit<'_>> = limits
            .iter()
            .zip(&scopes)
            .map(|(limit, scope)| Hit::new(Key::new(scope, &[Value::Text("one")]), limit, cost))
            .collect();
        let mut order: Vec<usize> = (0..hits.len()).collect();
        rng.shuffle(&mut order);
        let shuffled: Vec<Hit<'_>> = order.iter().map(|&nth| hits[nth]).collect();
        let taken = answered(store.take(&hits).await);
        let other = answered(twin.take(&shuffled).await);
        assert_eq!(taken.allowed, other.allowed, "seed {seed}");
        for (place, &nth) in order.iter().enumerate() {
            assert_eq!(taken.outcomes[nth], other.outcomes[place], "seed {seed}");
        }
    }
}
